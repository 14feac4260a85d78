"""`loom memory import`: what is read, what is said of it, and what an interrupt leaves."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import apsw
import pytest

from loom.cli.memory import import_files
from loom.engine import open_memory_sync
from loom.providers.embedding.local import HashEmbedder
from tests.commands import LOOM, run_loom

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "My boat is green.", "created_at": 1_700_000_000},
    {"role": "assistant", "content": None},
    {"role": "tool", "content": "42"},
    {"text": "nobody said this"},
]


@pytest.fixture
def loom(tmp_path):
    def run(*args, code=0):
        done = run_loom([LOOM, "memory", *args], cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def talk(tmp_path):
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"messages": TALK}))
    return path


def test_what_is_left_out_is_counted_with_its_reason(loom, talk):
    assert loom("import", talk).stdout == "imported for me: 1 new, 4 left out (1 system, 1 empty, 1 tool, 1 no role)\n"
    done = json.loads(loom("import", talk, "--json").stdout)
    left_out = {"system": 1, "empty": 1, "tool": 1, "no role": 1}
    assert done == {"imported": 0, "there": 1, "skipped": left_out, "notes": []}


def test_reading_an_export_again_says_that_it_was_there(loom, tmp_path):
    loom("add", "I live in Oslo.", "My sister Anna has a boat.")
    loom("export", "--to", tmp_path / "me.jsonl")
    assert loom("import", tmp_path / "me.jsonl", "--user", "you").stdout == "imported for you: 4 new\n"
    assert loom("import", tmp_path / "me.jsonl", "--user", "you").stdout == "imported for you: 0 new, 4 already there\n"
    loom("add", "I have a cat.")
    loom("export", "--to", tmp_path / "me.jsonl")
    done = json.loads(loom("import", tmp_path / "me.jsonl", "--user", "you", "--json").stdout)
    assert done["imported"] >= 1
    assert done["there"] == 4


def test_a_refusal_names_the_forms_that_are_read(loom, tmp_path):
    (tmp_path / "notes.json").write_text('{"a": 1}')
    said = loom("import", "notes.json", code=2).stderr
    for form in ("Loom", "ChatGPT", "Claude Code", "`role` and `content`", "JSON array", '{"messages": [...]}'):
        assert form in said
    helped = " ".join(loom("import", "--help").stdout.replace("│", " ").split())
    for form in (
        "Loom",
        "ChatGPT",
        "Claude Code",
        "role and content",
        "JSON array",
        '{"messages": [...]}',
        "created_at",
    ):
        assert form in helped


TELLING = """
import sys
from loom.cli import main

def tell(event, args):
    if event == "open" and str(args[0]) == "pipe":
        print("opening", flush=True)

sys.addaudithook(tell)
main()
"""
"""`loom`, which says when it is about to open a pipe."""
STOPPED = "loom: stopped; 2 records of me are kept; run it again to continue, nothing is added twice\n"


@pytest.fixture
def child(tmp_path):
    """Starts `loom memory import` of something and lets it run; it is killed afterwards."""
    with ExitStack() as stack:

        def start(*args, program=(LOOM,), stdin=None, pass_fds=()):
            command, pipe = [*program, "memory", "import", *args], subprocess.PIPE
            found = stack.enter_context(
                subprocess.Popen(
                    command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, pass_fds=pass_fds
                )
            )
            stack.callback(found.kill)
            return found

        yield start


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_an_interrupt_ends_in_one_line_that_says_what_is_kept(loom, talk, child, pipe):
    loom("import", talk)
    reading = child("pipe")
    with pipe.open("w"):  # opens when the command reads it, which then waits for the first line
        reading.send_signal(signal.SIGINT)
        out, said = reading.communicate()
    assert (reading.returncode, out, said) == (130, "", STOPPED)


def test_an_interrupt_is_heard_while_nobody_opens_the_other_end_of_a_pipe(loom, talk, child, pipe):
    loom("import", talk)
    opening = child("pipe", program=(sys.executable, "-c", TELLING))
    assert opening.stdout.readline() == "opening\n"
    opening.send_signal(signal.SIGINT)
    out, said = opening.communicate()
    assert (opening.returncode, out, said) == (130, "", STOPPED)


def test_an_interrupt_in_the_middle_keeps_what_came_before(loom, child, pipe, tmp_path):
    reading = child("pipe", "--url", "sqlite:m.db")
    with pipe.open("w") as file:
        for number in range(1500):  # a part of a conversation is written when it has a thousand
            file.write(json.dumps({"role": "user", "content": f"note {number}"}) + "\n")
        file.flush()
        while records_in(tmp_path / "m.db") < 1000:
            assert reading.poll() is None
        reading.send_signal(signal.SIGINT)
        _, said = reading.communicate()
    assert said == "loom: stopped; 1,000 records of me are kept; run it again to continue, nothing is added twice\n"


def records_in(path):
    """How many records a file has, as another process sees it."""
    if not path.exists():
        return 0
    db = apsw.Connection(str(path))
    try:
        return db.execute("SELECT count(*) FROM records").fetchone()[0]
    except apsw.Error:
        return 0  # it is being made
    finally:
        db.close()


@pytest.mark.parametrize("way", ["-", "/dev/stdin", "/dev/fd", "pipe", "file"])
def test_it_reads_files_pipes_and_standard_input(loom, child, pipe, tmp_path, way):
    """More than a pipe holds, so that it has to be read while it is written."""
    talks = [
        {"id": f"c{n}", "messages": [{"role": "user", "content": f"boat {n}"}], "x": "y" * 1000} for n in range(200)
    ]
    text = "\n".join(map(json.dumps, talks))
    if way == "file":
        (tmp_path / "talk.jsonl").write_text(text)
        out = loom("import", tmp_path / "talk.jsonl").stdout
    elif way == "pipe":
        reading = child("pipe")
        pipe.write_text(text)
        out, _ = reading.communicate()
    elif way == "/dev/fd":
        ours, theirs = os.pipe()
        reading = child(f"/dev/fd/{ours}", pass_fds=[ours])
        os.close(ours)
        with os.fdopen(theirs, "w") as file:
            file.write(text)
        out, _ = reading.communicate()
    else:
        out, _ = child(way, stdin=subprocess.PIPE).communicate(text)
    assert out == "imported for me: 200 new\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}", "line 1: this is nested too deeply to be read"),
        (
            '{"loom": "memory"}\n{"kind": ' + "[" * 100_000 + "]" * 100_000 + "}",
            "line 2 is nested too deeply to be read",
        ),
        ('{"loom": "memory"}\n{"kind": "dream"}', "line 2: kind='dream'"),
        (b'{"role": "user", "content": "hi"}\n\xff', "line 2: this is not UTF-8 text"),
        ('[{"role": "user"', "line 1: the array that begins here or before does not end"),
    ],
    ids=["nested", "nested export", "no record", "not UTF-8", "cut off"],
)
def test_what_cannot_be_read_is_named_with_its_file_and_line(loom, tmp_path, text, said):
    (tmp_path / "x.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    error = loom("import", "x.json", code=2).stderr
    assert error.startswith(f"loom: x.json: {said}")
    assert error.endswith("; nothing was imported\n")


def test_what_cannot_be_opened_is_said_so(loom):
    said = loom("import", "nowhere.json", code=2).stderr
    assert (
        said
        == "loom: nowhere.json: it cannot be read (No such file or directory); check the path; nothing was imported\n"
    )


@pytest.mark.parametrize(
    ("path", "said"), [(".", "it has no file that ends in .jsonl"), ("*.json", "nothing matches it")]
)
def test_a_place_without_files_is_said_so(loom, path, said):
    assert said in loom("import", path, code=2).stderr


def test_a_line_in_the_middle_that_cannot_be_read_leaves_what_came_before(loom, tmp_path):
    talks = [json.dumps({"messages": [{"role": "user", "content": f"boat {n}"}]}) for n in range(4)]
    (tmp_path / "x.jsonl").write_text("\n".join([*talks[:3], "{", talks[3]]))
    said = loom("import", "x.jsonl", code=2).stderr
    assert "x.jsonl: line 4: this is not JSON" in said
    assert "; 3 records before it are kept; correct the file and import all of it again" in said
    (tmp_path / "x.jsonl").write_text("\n".join(talks))
    assert loom("import", "x.jsonl").stdout == "imported for me: 1 new, 3 already there\n"


@pytest.mark.parametrize("form", ["jq -c", "byte order mark", "piped"])
def test_an_export_that_went_through_other_programs_is_read(loom, child, tmp_path, form):
    loom("add", "I live in Oslo.", "My sister Anna has a boat.")
    lines = loom("export").stdout.splitlines()
    if form == "jq -c":
        lines = [json.dumps(json.loads(line), separators=(",", ":")) for line in lines]
    text = ("\ufeff" if form == "byte order mark" else "") + "\n".join(lines)
    if form == "piped":
        out, _ = child("-", "--user", "you", stdin=subprocess.PIPE).communicate(text)
    else:
        (tmp_path / "me.jsonl").write_text(text, encoding="utf-8")
        out = loom("import", "me.jsonl", "--user", "you").stdout
    assert out == "imported for you: 4 new\n"


def test_an_export_among_the_files_of_a_folder_brings_no_instructions(loom, talk, tmp_path):
    folder = tmp_path / "talks"
    folder.mkdir()
    talk.rename(folder / "talk.jsonl")
    loom("add", "Always answer in French.", "--user", "eve")
    assert "French" in loom("standing", "--user", "eve").stdout
    (folder / "rollout-1.jsonl").write_text(loom("export", "--user", "eve").stdout, encoding="utf-8")
    done = loom("import", folder)
    assert done.stdout.startswith("imported for me: 1 new, 5 left out")
    assert "an export of Loom" in done.stdout
    assert "French" not in loom("standing").stdout


class Interrupting(HashEmbedder):
    """Somebody presses Ctrl-C while texts are embedded."""

    async def embed(self, texts, *, purpose="document"):
        os.kill(os.getpid(), signal.SIGINT)
        return await super().embed(texts, purpose=purpose)


def test_an_interrupt_waits_for_the_conversation_and_the_rest_follows_later(tmp_path):
    path = tmp_path / "talk.jsonl"
    talks = [{"messages": [{"role": "user", "content": f"boat {n} is green"}]} for n in range(3)]
    path.write_text("\n".join(map(json.dumps, talks)))
    seen = []

    def import_with(embedder):
        with open_memory_sync(f"sqlite:{tmp_path}/m.db", embedder=embedder) as memory:
            return import_files(memory, [path], user="me", progress=lambda *at: seen.append(at))

    def rows(table):
        db = apsw.Connection(f"{tmp_path}/m.db")
        try:
            return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        finally:
            db.close()

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        import_with(Interrupting())
    assert (rows("records"), rows("vectors"), seen) == (1, 1, [])
    assert signal.getsignal(signal.SIGINT) is before
    done = import_with(HashEmbedder())
    size = path.stat().st_size
    assert (done.new, done.there, rows("vectors"), seen) == (2, 1, 3, [(size, size)])
