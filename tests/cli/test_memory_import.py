"""`loom memory import`: what is read, what is said of it, and what an interrupt leaves."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from loom.cli.importing import import_file
from loom.engine import open_memory_sync
from loom.providers.embedding.hashing import HashEmbedder

LOOM = Path(sys.executable).parent / "loom"
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
        done = subprocess.run(
            [LOOM, "memory", *map(str, args)], capture_output=True, text=True, check=False, cwd=tmp_path
        )
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
    assert loom("import", tmp_path / "me.jsonl", "--user", "you").stdout == "imported for you: 0 new, 4 there already\n"
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


def test_an_interrupt_ends_in_one_line_that_says_what_is_kept(loom, talk, tmp_path):
    loom("import", talk)
    os.mkfifo(tmp_path / "pipe")
    command = [LOOM, "memory", "import", "pipe"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    with (tmp_path / "pipe").open("w"):  # opens when the command reads it, which then waits for the first line
        child.send_signal(signal.SIGINT)
    out, said = child.communicate()
    assert (child.returncode, out) == (130, "")
    assert said == "loom: stopped; 1 records of me are kept; run it again to go on, nothing is added twice\n"


class Interrupting(HashEmbedder):
    """Somebody presses Ctrl-C while texts are embedded."""

    async def embed(self, texts, *, purpose):
        os.kill(os.getpid(), signal.SIGINT)
        return await super().embed(texts, purpose=purpose)


def test_an_interrupt_waits_for_the_conversation_and_the_rest_follows_later(tmp_path):
    path = tmp_path / "talk.jsonl"
    talks = [{"messages": [{"role": "user", "content": f"boat {n} is green"}]} for n in range(3)]
    path.write_text("\n".join(map(json.dumps, talks)))
    seen = []

    def import_with(embedder):
        with open_memory_sync(f"sqlite:{tmp_path}/m.db", embedder=embedder) as memory:
            return import_file(memory, path, user="me", progress=lambda *at: seen.append(at))

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
    assert (done.new, done.there, rows("vectors"), seen) == (2, 1, 3, [(1, 3), (2, 3), (3, 3)])
