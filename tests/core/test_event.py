import json
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.core.log import EVENT_TYPES, CompactionEnd, ContextPressure, Event, Text, from_dict, to_dict
from loom.core.message import Usage
from loom.errors import UsageError

T0 = datetime(2026, 1, 1, tzinfo=UTC)

tokens = st.integers(0, 10**9)
st.register_type_strategy(Usage, st.builds(Usage, input=tokens, output=tokens, cache_read=tokens, cache_write=tokens))
st.register_type_strategy(
    datetime,
    st.datetimes(T0.replace(year=1971, tzinfo=None), timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))])),
)


objects = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()))


@st.composite
def events(draw) -> Event:
    cls = draw(st.sampled_from(list(EVENT_TYPES.values())))
    hints = get_type_hints(cls)
    values = {f.name: draw(objects if f.name == "arguments" else st.from_type(hints[f.name])) for f in fields(cls)}
    return cls(**{**values, "seq": draw(tokens)})


@given(events())
def test_every_event_survives_json(event: Event):
    assert from_dict(json.loads(json.dumps(to_dict(event)))) == event


def test_the_types_are_the_documented_ones():
    assert list(EVENT_TYPES) == [
        "session.start", "session.end", "turn.start", "turn.end", "text", "tool.start", "tool.refused", "tool.end", "context.pressure",
        "compaction.start", "compaction.end", "checkpoint.saved", "memory.recalled", "memory.remembered", "memory.learned",
        "memory.promoted", "cache.status", "recovery", "error",
    ]  # fmt: skip


def test_an_event_on_the_wire():
    event = CompactionEnd(
        seq=7, at=T0, session_id="s1", strategy="truncate", tokens_before=900, tokens_after=300, covered=12,
        dropped_thinking=1, usage=Usage(input=5, output=2), undo="c1",
    )  # fmt: skip
    assert to_dict(event) == {
        "type": "compaction.end", "seq": 7, "at": "2026-01-01T00:00:00+00:00", "session_id": "s1", "strategy": "truncate",
        "tokens_before": 900, "tokens_after": 300, "covered": 12, "dropped_thinking": 1,
        "usage": {"input": 5, "output": 2, "cache_read": 0, "cache_write": 0}, "undo": "c1", "error": None,
    }  # fmt: skip


def test_events_are_told_apart_by_type():
    event = from_dict(
        {
            "type": "context.pressure",
            "seq": 0,
            "at": "2026-01-01T00:00:00Z",
            "session_id": "s",
            "tokens": 80,
            "window": 100,
            "trigger": 90,
        }
    )
    assert event == ContextPressure(seq=0, at=T0, session_id="s", tokens=80, window=100, trigger=90)
    assert event.type == "context.pressure"


GOOD: dict[str, Any] = {"type": "text", "seq": 1, "at": "2026-01-01T00:00:00+00:00", "session_id": "s", "text": "hi"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"type": "txt"}, "no event of type 'txt'"),
        ({"type": None}, "no event of type None"),
        ({"type": ["text"]}, "no event of type"),
        ({"seq": "1"}, "'1' is not int"),
        ({"seq": True}, "True is not int"),
        ({"seq": -1}, "seq=-1"),
        ({"text": None}, "None is not str"),
        ({"at": "yesterday"}, "not an event of type text"),
        ({"at": "2026-01-01T00:00:00"}, "without a zone"),
        ({"at": 5}, "not an event of type text"),
        ({"colour": 1}, "no field colour"),
    ],
)
def test_what_is_not_an_event_is_refused(change: dict[str, Any], why: str):
    assert from_dict(GOOD) == Text(seq=1, at=T0, session_id="s", text="hi")
    with pytest.raises(UsageError, match=why):
        from_dict({**GOOD, **change})


def test_a_missing_field_is_refused():
    for name in GOOD:
        with pytest.raises(UsageError):
            from_dict({key: value for key, value in GOOD.items() if key != name})


@pytest.mark.parametrize("usage", [{"input": "1"}, {"price": 1}, 5, None, [1]])
def test_a_broken_usage_is_refused(usage):
    data = {
        "type": "session.end",
        "seq": 1,
        "at": "2026-01-01T00:00:00Z",
        "session_id": "s",
        "turns": 1,
        "usage": usage,
    }
    with pytest.raises(UsageError, match=r"not an event of type session\.end"):
        from_dict(data)


def test_every_event_has_the_common_fields():
    for cls in EVENT_TYPES.values():
        required = {f.name for f in fields(cls) if f.default is MISSING}
        assert required >= {"seq", "at", "session_id"}
