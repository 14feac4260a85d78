"""Files that are damaged, huge, in the way, or still being written: a message, or a counted skip."""

import json
import os
import random
import tracemalloc
from contextlib import suppress

import pytest

from loom.errors import UsageError
from loom.memory._upkeep.transcripts import parts_of
from loom.traces import stream as module
from loom.traces.reader import TranscriptReader, find_files, read_transcripts
from loom.traces.stream import JsonStream
from tests.traces.claude import assistant, text_of, user
from tests.traces.others import CHATGPT, CLAUDE_AI, LANGFUSE, LANGGRAPH, LETTA, LITELLM, MEM0, REQUESTS, SPANS, otlp
from tests.traces.others import lines as lines_of
from tests.traces.rollouts import meta, said
from tests.traces.rollouts import text_of as rollout_of

TALK = text_of(user("u1", None, "One."), assistant("a2", "u1", "Two."), user("u3", "a2", "Three."))
ROLLOUT = rollout_of(meta("m"), *said("One."), *said("Two."), *said("Three."))
KINDS = {"claude": (TALK, ["One.", "Two.", "Three."]), "codex": (ROLLOUT, ["One.", "Two.", "Three."])}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def read(tmp_path):
    def read(data):
        path = tmp_path / "talk.jsonl"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        (one,) = read_transcripts([path])
        return [text.text for text in one.texts], [(skip.line, skip.reason) for skip in one.skipped]

    return read


@pytest.mark.parametrize(
    "change",
    [lambda t: t.replace("\n", "\r\n"), lambda t: "\ufeff" + t, lambda t: "\n\n" + t, str.rstrip],
    ids=["CRLF", "BOM", "blank lines", "no last line end"],
)
def test_other_line_ends_and_marks(read, kind, change):
    text, expected = kind
    assert read(change(text))[0] == expected


DAMAGE = {
    "not JSON": (b'{"type": "user", "mess', "broken: it is not JSON"),
    "a list": (b"[1, 2]", "broken: it is not a JSON object"),
    "a number": (b"5", "broken: it is not a JSON object"),
    "not UTF-8": (b'{"type": "\xff"}', "broken: it is not UTF-8 text"),
    "zeros": (b"\0" * 4096, "broken: it is not JSON"),
    "deep": (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "broken: it is nested too deeply"),
    "digits": (b'{"a": ' + b"1" * 5000 + b"}", "broken: it is not JSON"),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_damaged_line_is_left_out_with_its_number(read, kind, name, place):
    damage, reason = DAMAGE[name]
    text, expected = kind
    lines = text.encode().splitlines()
    place = len(lines) if place == -1 else place
    texts, skipped = read(b"\n".join([*lines[:place], damage, *lines[place:]]) + b"\n")
    assert texts == expected
    assert [line for line, why in skipped if why.startswith(reason)] == [place + 1]


@pytest.mark.parametrize("text", ["", "hello\n", "5\n", "[1, 2]\n", '{"name": "x"}\n', "\0" * 10])
def test_a_file_of_another_kind_is_refused_or_skipped_in_words(tmp_path, kind, text):
    (tmp_path / "odd.jsonl").write_text(text)
    with pytest.raises(UsageError, match=r"odd\.jsonl: "):
        list(read_transcripts([tmp_path / "odd.jsonl"]))
    (tmp_path / "good.jsonl").write_text(kind[0])
    found = list(read_transcripts([tmp_path]))
    assert sorted(one.program != "" for one in found) == [False, True]
    assert next(one for one in found if not one.program).skipped[0].reason.startswith("file: ")


def test_a_line_that_is_still_being_written_is_said_to_be(read, kind):
    text, expected = kind
    texts, skipped = read(text + '{"type": "user", "message": {"content": "I li')
    assert texts == expected
    assert skipped[-1][1].startswith("unfinished: ")


def test_a_file_that_grows_is_read_as_far_as_it_was(tmp_path):
    path = tmp_path / "talk.jsonl"
    path.write_text(TALK)

    def growing(done, total):
        with path.open("a") as file:
            file.write(text_of(user(f"u{done}", "u3", "More.")) * 10_000)

    (one,) = read_transcripts([path], progress=growing)
    assert len(one.texts) == 3
    assert path.stat().st_size > 1_000_000


def test_a_line_of_twenty_megabytes_is_read(read):
    picture = {"type": "image", "source": {"type": "base64", "data": "A" * 20_000_000}}
    big = user("u4", "u3", [picture, {"type": "text", "text": "What is it?"}])
    tracemalloc.start()
    texts, _ = read(TALK + text_of(big))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert texts[-1] == "What is it?"
    assert peak < 150_000_000


def test_a_longer_line_is_dropped_while_it_is_read(read, monkeypatch):
    monkeypatch.setattr(module, "MAX_VALUE", 1_000_000)
    monkeypatch.setattr(module, "_PIECE", 10_000)
    lines = TALK.encode().splitlines()
    tracemalloc.start()
    texts, skipped = read(b"\n".join([lines[0], b'{"a": "' + b"x" * 9_000_000 + b'"}', *lines[1:]]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert texts == ["One.", "Two.", "Three."]
    assert skipped == [(2, "too long: it has more than 0 MiB")]
    assert peak < 24_000_000  # the file itself, twice, and what is read of it


def test_a_folder_that_leads_back_to_itself_is_entered_once(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "talk.jsonl").write_text(TALK)
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    found = list(read_transcripts([tmp_path]))
    assert [len(one.texts) for one in found if one.program] == [3]
    assert [one.skipped[0].reason for one in found if not one.program] == [
        "file: it cannot be read (No such file or directory); check the path"
    ]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_file_without_permission_is_named(tmp_path, monkeypatch):
    (tmp_path / "good.jsonl").write_text(TALK)
    closed = tmp_path / "closed.jsonl"
    closed.write_text(TALK)
    opened = type(closed).open

    def refuse(self, *args, **more):  # root may read everything, so the refusal is the system's only in its words
        if self.name == "closed.jsonl":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *args, **more)

    monkeypatch.setattr(type(closed), "open", refuse)
    found = list(read_transcripts([tmp_path]))
    assert sorted(len(one.texts) for one in found) == [0, 3]
    with pytest.raises(UsageError, match=r"closed\.jsonl: it cannot be read \(Permission denied\); check who may"):
        list(read_transcripts([closed]))


def test_folders_patterns_and_files_are_found_once(tmp_path):
    (tmp_path / "p" / "x").mkdir(parents=True)
    for name in ("p/a.jsonl", "p/x/b.jsonl", "p/notes.txt", "p/x/c.json"):
        (tmp_path / name).write_text(TALK)
    folder = [one.path.name for one in find_files([tmp_path])]
    assert sorted(folder) == ["a.jsonl", "b.jsonl", "c.json"]
    assert [one.path.name for one in find_files([str(tmp_path / "**" / "*.jsonl"), tmp_path / "p" / "a.jsonl"])] == [
        "a.jsonl",
        "b.jsonl",
    ]
    odd = tmp_path / "[1].jsonl"
    odd.write_text(TALK)
    assert [one.path for one in find_files([odd])] == [odd]
    for nothing in ("*.none", "p/**/none*"):
        with pytest.raises(UsageError, match="nothing matches it"):
            find_files([str(tmp_path / nothing)])


def test_any_damage_is_a_message_or_a_skip(tmp_path):
    """Bytes that are changed, removed and repeated at random."""
    rng = random.Random(7)
    whole = {
        "claude": TALK.encode(),
        "codex": ROLLOUT.encode(),
        "array": json.dumps([json.loads(line) for line in TALK.splitlines()]).encode(),
    }
    for number in range(400):
        data = bytearray(whole[rng.choice(sorted(whole))])
        for _ in range(rng.randint(1, 6)):
            place = rng.randrange(len(data))
            change = rng.choice(["set", "cut", "insert", "null"])
            if change == "set":
                data[place] = rng.randrange(256)
            elif change == "cut":
                del data[place : place + rng.randint(1, 80)]
            elif change == "insert":
                data[place:place] = rng.choice([b'"', b"{", b"}", b"\n", b"[", b"null", b"\\"])
            else:
                data[:] = data.replace(rng.choice([b'"user"', b'"u1"', b'"role"', b"true"]), b"null", 1)
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(bytes(data))
        refused = None
        found = []
        try:
            found = list(read_transcripts([path]))
        except UsageError as error:
            refused = str(error)
        assert refused.startswith(f"{path}: ") if refused else any(one.texts or one.skipped for one in found)


SHAPES = [
    None,
    True,
    5,
    -1.5,
    "x",
    [],
    {},
    [[]],
    [{}],
    {"type": "text"},
    [{"type": "text", "text": 5}],
    "\ud800",
    10**30,
]


FORMATS = {
    "claude": TALK,
    "codex": ROLLOUT,
    "chatgpt": lines_of(CHATGPT),
    "claude.ai": lines_of(CLAUDE_AI),
    "spans": lines_of(*SPANS),
    "otlp": lines_of(otlp(*SPANS[:1])),
    "litellm": lines_of(*LITELLM),
    "langfuse": lines_of(*LANGFUSE),
    "requests": lines_of(*REQUESTS),
    "mem0": lines_of(*MEM0),
    "langgraph": lines_of(*LANGGRAPH),
    "letta": lines_of(LETTA),
    "messages": lines_of(
        {"role": "user", "content": "Hi."}, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_any_value_in_any_field_is_read_or_refused_in_words(name):
    """Every field of every line, replaced by values of other types."""
    for text in (FORMATS[name],):
        lines = [json.loads(line) for line in text.splitlines()]
        for number, line in enumerate(lines):
            for place in _places(line):
                for shape in SHAPES:
                    changed = json.loads(json.dumps(line))
                    inner = changed
                    for step in place[:-1]:
                        inner = inner[step]
                    inner[place[-1]] = shape
                    read_without_surprise(
                        "".join(json.dumps(one) + "\n" for one in [*lines[:number], changed, *lines[number + 1 :]])
                    )


def read_without_surprise(text):
    with suppress(UsageError):
        for one in TranscriptReader().read(JsonStream([text.encode()]), "odd.jsonl"):
            for part in parts_of(one):
                assert all(isinstance(turn.text, str) for turn in part.turns)


def _places(value, before=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*before, key)
            yield from _places(inner, (*before, key))
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            yield (*before, n)
            yield from _places(inner, (*before, n))
