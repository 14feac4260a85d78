"""Messages, log entries and checkpoints survive the way to JSON and back."""

import json
from dataclasses import fields
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.core.codec import (
    checkpoint_from_dict,
    checkpoint_to_dict,
    entry_from_dict,
    entry_to_dict,
    from_bytes,
    log_from_dict,
    log_to_dict,
    message_from_dict,
    message_to_dict,
    part_from_dict,
    part_to_dict,
    to_bytes,
)
from loom.core.log import FORMAT_VERSION, Checkpoint, Compaction, LoggedMessage
from loom.core.message import PARTS, Message, TextPart, ToolCallPart, ToolResultPart, Usage
from loom.errors import FormatTooNew, UsageError
from loom.testing.conformance.checkpoint_store import awkward_checkpoint, awkward_entries

T0 = datetime(2026, 1, 1, tzinfo=UTC)
ENTRIES = awkward_entries()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_comes_back_equal(entry):
    data = entry_to_dict(entry)
    assert entry_from_dict(from_bytes(to_bytes(data))) == entry
    assert entry_to_dict(entry_from_dict(data)) == data


def test_every_kind_of_part_is_among_the_samples():
    messages = [entry.message for entry in ENTRIES if isinstance(entry, LoggedMessage)]
    assert {type(part) for message in messages for part in message.parts} == set(PARTS.values())


@given(st.text(alphabet=st.characters()), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8,
))  # fmt: skip
def test_any_text_and_any_input_come_back(text, value):
    message = Message("assistant", (TextPart(text), ToolCallPart(text, text, value)))
    assert message_from_dict(from_bytes(to_bytes(message_to_dict(message)))) == message


def test_types_of_numbers_survive():
    call = ToolCallPart("t", "n", [1, 1.0, True, 0, 0.0, False])
    back = part_from_dict(from_bytes(to_bytes(part_to_dict(call))))
    assert [type(value) for value in back.input] == [int, float, bool, int, float, bool]


@given(st.builds(
    Checkpoint, id=st.sampled_from(["c", "\u00e9"]), session_id=st.just("s"), position=st.integers(0, 10**9),
    at=st.datetimes(timezones=st.just(UTC)), turn=st.integers(0, 9), parent=st.none() | st.just("p"),
    compactions=st.lists(st.sampled_from(["k1", "k2"])).map(tuple), pins=st.lists(st.just("m")).map(tuple),
    usage=st.builds(Usage, input=st.integers(0, 9), output=st.integers(0, 9), cache_read=st.integers(0, 9)),
))  # fmt: skip
def test_a_checkpoint_comes_back_equal(checkpoint):
    assert checkpoint_from_dict(json.loads(json.dumps(checkpoint_to_dict(checkpoint)))) == checkpoint


def test_every_field_is_written():
    """A field that is added to a value has to be added to the format too."""
    checkpoint = checkpoint_to_dict(Checkpoint(
        id="c", session_id="s", at=T0, position=1, turn=1, parent="p", compactions=("k",), pins=("m",),
        usage=Usage(input=1, output=1, cache_read=1, cache_write=1), unfinished=True,
        attributes={"run": "r1"},
    ))  # fmt: skip
    # What is shown is read from the log when it is asked for, and stands in no file.
    assert set(checkpoint) == {f.name for f in fields(Checkpoint)} - {"shown"}
    assert set(checkpoint["usage"]) == {f.name for f in fields(Usage)}
    assert set(entry_to_dict(ENTRIES[-1])) == {"type", *(f.name for f in fields(Compaction))}
    assert set(entry_to_dict(ENTRIES[0])) == {"type", "id", "at", *(f.name for f in fields(Message))}
    assert {f.name for f in fields(LoggedMessage)} == {"id", "at", "message"}


def test_references_can_stand_for_parts():
    parts = []

    def put(part):
        parts.append(part)
        return len(parts) - 1

    packed = [json.loads(json.dumps(entry_to_dict(entry, put))) for entry in ENTRIES]
    assert len(parts) == sum(len(entry.message.parts) for entry in ENTRIES[:3]) + 2
    assert tuple(entry_from_dict(data, parts.__getitem__) for data in packed) == ENTRIES


def test_a_log_is_one_document():
    checkpoint = awkward_checkpoint(len(ENTRIES))
    document = from_bytes(to_bytes(log_to_dict(checkpoint, ENTRIES)))
    assert document["format"] == FORMAT_VERSION
    assert log_from_dict(document) == (checkpoint, ENTRIES)
    with pytest.raises(FormatTooNew, match="upgrade Loom"):
        log_from_dict(document | {"format": FORMAT_VERSION + 1, "unknown": 1})
    with pytest.raises(UsageError, match="is at 4, but 3 entries came"):
        log_from_dict(document | {"entries": document["entries"][1:]})


def test_a_newer_checkpoint_is_too_new_even_with_unknown_fields():
    data = checkpoint_to_dict(awkward_checkpoint(0)) | {"format_version": FORMAT_VERSION + 1, "mood": "new"}
    with pytest.raises(FormatTooNew):
        checkpoint_from_dict(data)


GOOD_PART = part_to_dict(ToolResultPart("t", (TextPart("x"),)))
GOOD = entry_to_dict(ENTRIES[0])
COMPACTION = entry_to_dict(ENTRIES[-1])
CHECKPOINT = checkpoint_to_dict(awkward_checkpoint(1))


@pytest.mark.parametrize(("read", "data", "says"), [
    (part_from_dict, None, "NoneType"),
    (part_from_dict, {}, "type=None"),
    (part_from_dict, {"type": "smell"}, "not a kind of part"),
    (part_from_dict, {"type": "text"}, "not a part of type text"),
    (part_from_dict, {"type": "text", "text": 1}, "text=1"),
    (part_from_dict, {"type": "text", "text": None}, "text=None"),
    (part_from_dict, {"type": "text", "text": "x", "mood": 1}, "no field mood"),
    (part_from_dict, {"type": "image", "data": "!", "media_type": "image/png"}, "not base64"),
    (part_from_dict, GOOD_PART | {"is_error": 0}, "is_error=0"),
    (part_from_dict, GOOD_PART | {"content": "x"}, "content='x'"),
    (part_from_dict, GOOD_PART | {"content": [{"type": "thinking"}]}, "ThinkingPart"),
    (part_from_dict, {"type": "native", "provider": "x", "body": []}, "body="),
    (message_from_dict, {"role": "user"}, "parts=None"),
    (message_from_dict, {"role": "nobody", "parts": [{"type": "text", "text": "x"}]}, "nobody"),
    (message_from_dict, {"role": "user", "parts": []}, "no parts"),
    (message_from_dict, {"role": "user", "parts": [], "id": "x"}, "no field id"),
    (entry_from_dict, "x", "a str"),
    (entry_from_dict, {"type": "dream"}, "not a kind of log entry"),
    (entry_from_dict, GOOD | {"mood": 1}, "no field mood"),
    (entry_from_dict, GOOD | {"at": "yesterday"}, "yesterday"),
    (entry_from_dict, GOOD | {"at": "2026-01-01"}, "without a zone"),
    (entry_from_dict, GOOD | {"id": ""}, "empty"),
    (entry_from_dict, COMPACTION | {"tokens_after": True}, "tokens_after=True"),
    (entry_from_dict, COMPACTION | {"replacements": [{"covers": [1]}]}, "list of texts"),
    (entry_from_dict, COMPACTION | {"replacements": [{"covers": []}]}, "at least one"),
    (checkpoint_from_dict, [], "a list"),
    (checkpoint_from_dict, CHECKPOINT | {"position": "1"}, "position='1'"),
    (checkpoint_from_dict, CHECKPOINT | {"position": -1}, "count from 0"),
    (checkpoint_from_dict, CHECKPOINT | {"usage": {"input": 1.5}}, "input=1.5"),
    (checkpoint_from_dict, CHECKPOINT | {"usage": {"mood": 1}}, "no field mood"),
    (checkpoint_from_dict, CHECKPOINT | {"parent": None}, "parent=None"),
    (checkpoint_from_dict, {k: v for k, v in CHECKPOINT.items() if k != "at"}, "at=None"),
    (log_from_dict, {"format": 1, "entries": []}, "a checkpoint is a NoneType"),
])  # fmt: skip
def test_what_is_not_in_the_format_is_refused(read, data, says):
    with pytest.raises(UsageError, match=says):
        read(data)
