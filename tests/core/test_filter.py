from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.core.filter import FIELDS, And, Eq, Filter, In, Not, Or, Range, as_filter
from loom.core.record import Episode, Fact, Layer, Provenance, WorkingBlock
from loom.errors import UsageError

T0 = datetime(2026, 1, 1, tzinfo=UTC)
TIMES = [T0 + timedelta(days=n) for n in range(3)]

scalars = st.sampled_from([None, "", "a", "b", 0, 1, 1.0, 2, 0.5, True, False, *TIMES])
orderable = st.sampled_from(["a", "b", 0, 1, 1.5, 2, *TIMES])
episodes = st.builds(
    Episode,
    id=st.sampled_from(["a", "b", "c"]),
    text=st.sampled_from(["a", "b"]),
    at=st.sampled_from(TIMES),
    recorded_at=st.sampled_from(TIMES),
    provenance=st.builds(Provenance, st.sampled_from(["user", "tool"]), st.booleans()),
    layer=st.sampled_from(Layer),
    session_id=st.sampled_from([None, "a", "b"]),
    importance=st.sampled_from([0, 0.5, 1]),
    accesses=st.integers(0, 2),
    sources=st.sampled_from([(), ("a",), ("a", "b")]),
    attributes=st.dictionaries(st.sampled_from(["x", "y"]), scalars),
)
names = st.sampled_from(
    [
        "id",
        "kind",
        "at",
        "layer",
        "session_id",
        "importance",
        "accesses",
        "sources",
        "origin",
        "trusted",
        "meta.x",
        "meta.y",
        "subject",
    ]
)


@st.composite
def ranges(draw) -> Range:
    low, high = draw(st.none() | orderable), draw(st.none() | orderable)
    comparable = low is None or high is None or kind_of(low) == kind_of(high)
    if (low is None and high is None) or not comparable:
        low, high = 1, None
    return Range(draw(names), low, high)


leaves = st.one_of(
    st.builds(Eq, names, scalars), st.builds(In, names, st.lists(scalars, max_size=3).map(tuple)), ranges()
)
filters: st.SearchStrategy[Filter] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.lists(inner, max_size=3).map(lambda fs: And(*fs)),
        st.lists(inner, max_size=3).map(lambda fs: Or(*fs)),
    ),
    max_leaves=8,
)


def kind_of(value: Any) -> str:
    if value is None or isinstance(value, bool | str):
        return type(value).__name__
    return "time" if isinstance(value, datetime) else "number"


def flat(episode: Episode) -> dict[str, list[Any]]:
    """Every field of an episode, spelled out by hand."""
    row: dict[str, Any] = {
        "id": episode.id, "kind": "episode", "at": episode.at, "layer": int(episode.layer), "session_id": episode.session_id,
        "importance": episode.importance, "accesses": episode.accesses, "origin": episode.provenance.origin,
        "trusted": episode.provenance.trusted, "subject": None,
        "meta.x": episode.attributes.get("x"), "meta.y": episode.attributes.get("y"),
    }  # fmt: skip
    return {name: [value] for name, value in row.items()} | {"sources": list(episode.sources) or [None]}


def oracle(f: Filter, row: dict[str, list[Any]]) -> bool:
    match f:
        case Eq(name, wanted):
            return (kind_of(wanted), wanted) in [(kind_of(v), v) for v in row[name]]
        case In(name, wanted):
            return any(oracle(Eq(name, w), row) for w in wanted)
        case Range(name, low, high):
            wanted = {kind_of(end) for end in (low, high) if end is not None}
            values: list[Any] = [v for v in row[name] if {kind_of(v)} == wanted]
            return any((low is None or not v < low) and (high is None or v < high) for v in values)
        case And(inner):
            return [oracle(i, row) for i in inner].count(False) == 0
        case Or(inner):
            return [oracle(i, row) for i in inner].count(True) > 0
        case Not(inner):
            return not oracle(inner, row)


@settings(max_examples=400)
@given(filters, episodes)
def test_filters_mean_what_the_oracle_says(f: Filter, episode: Episode):
    assert f.matches(episode) == oracle(f, flat(episode))


@given(st.lists(filters, max_size=3), episodes)
def test_de_morgan(fs: list[Filter], episode: Episode):
    assert Not(And(*fs)).matches(episode) == Or(*[Not(f) for f in fs]).matches(episode)


EPISODE = Episode(
    id="e1", text="tea", at=T0, recorded_at=T0, provenance=Provenance("tool"), layer=Layer.L2, sources=("e0",),
    attributes={"project": "x", "done": True, "n": 1},
)  # fmt: skip
FACT = Fact(id="f1", subject="alice", predicate="likes", object="tea", recorded_at=T0, provenance=Provenance("user"))
BLOCK = WorkingBlock(name="persona", text="", updated_at=T0, provenance=Provenance("user"), version=3)


@pytest.mark.parametrize(
    ("f", "found"),
    [
        (Eq("layer", 2), [EPISODE]),
        (Eq("layer", Layer.SESSION), [EPISODE]),
        (Eq("kind", "fact"), [FACT]),
        (Eq("subject", "alice"), [FACT]),
        (Eq("subject", None), [EPISODE, BLOCK]),
        (Eq("sources", "e0"), [EPISODE]),
        (Eq("origin", "tool"), [EPISODE]),
        (Eq("meta.project", "x"), [EPISODE]),
        (Eq("meta.project", None), [FACT, BLOCK]),
        (Eq("meta.done", 1), []),
        (Eq("meta.done", True), [EPISODE]),
        (Eq("meta.n", 1.0), [EPISODE]),
        (Eq("meta.n", "1"), []),
        (Eq("name", "persona"), [BLOCK]),
        (In("id", ("e1", "f1", "nobody")), [EPISODE, FACT]),
        (In("id", ()), []),
        (Range("recorded_at", T0), [EPISODE, FACT]),
        (Range("recorded_at", high=T0), []),
        (Range("version", 3, 4), [BLOCK]),
        (Range("version", 2, 3), []),
        (Range("id", "e", "f"), [EPISODE]),
        (And(), [EPISODE, FACT, BLOCK]),
        (Or(), []),
        (Not(Or()), [EPISODE, FACT, BLOCK]),
    ],
)
def test_filters_by_example(f: Filter, found: list[object]):
    assert [record for record in (EPISODE, FACT, BLOCK) if f.matches(record)] == found


def test_times_compare_as_moments():
    tokyo = timezone(timedelta(hours=9))
    assert Eq("at", datetime(2026, 1, 1, 9, tzinfo=tokyo)).matches(EPISODE)


@pytest.mark.parametrize("name", ["layr", "__class__", "provenance", "attributes", "meta.", "", "id; DROP TABLE"])
def test_only_known_fields_can_be_named(name: str):
    for make in (lambda: Eq(name, 1), lambda: In(name, (1,)), lambda: Range(name, 1)):
        with pytest.raises(UsageError, match="there is no field"):
            make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Eq("at", datetime(2026, 1, 1)),  # noqa: DTZ001
        lambda: Eq("id", ["a"]),  # pyright: ignore[reportArgumentType]
        lambda: Eq("importance", float("nan")),
        lambda: In("id", "abc"),  # pyright: ignore[reportArgumentType]
        lambda: Range("id"),
        lambda: Range("id", 1, "b"),
        lambda: Range("trusted", False),
        lambda: And("id = 1"),  # pyright: ignore[reportArgumentType]
        lambda: Not(None),  # pyright: ignore[reportArgumentType]
    ],
)
def test_filters_that_mean_nothing_are_refused(make):
    with pytest.raises(UsageError):
        make()


def test_filters_are_values():
    assert And(Eq("id", "a"), Not(Eq("layer", 1))) == And(Eq("id", "a"), Not(Eq("layer", 1)))
    assert len({Or(Eq("id", "a")), Or(Eq("id", "a")), And(Eq("id", "a"))}) == 2


def test_every_field_exists_on_some_record():
    known = {name for record in (EPISODE, FACT, BLOCK) for name in dir(record)} | {
        "origin",
        "trusted",
        "document_id",
        "source",
    }
    assert set(FIELDS) <= known


@pytest.mark.parametrize(
    ("where", "filter"),
    [
        ({"topic": "drinks"}, Eq("meta.topic", "drinks")),
        ({"meta.topic": "drinks"}, Eq("meta.topic", "drinks")),
        ({"layer": 2}, Eq("layer", 2)),
        ({"n": [1, 2]}, In("meta.n", (1, 2))),
        ({"n": (1,), "layer": 1}, And(In("meta.n", (1,)), Eq("layer", 1))),
        ({"n": None}, Eq("meta.n", None)),
        ({"n": {1}}, In("meta.n", (1,))),
        ({}, And()),
        (None, None),
        (Not(Eq("layer", 1)), Not(Eq("layer", 1))),
    ],
    ids=str,
)
def test_a_mapping_is_a_filter(where, filter):
    assert as_filter(where) == filter


@pytest.mark.parametrize("bad", ["topic", ["topic"], {"n": {"$gt": 1}}, {3: 1}, {"n": b"x"}, {"meta.": 1}], ids=str)
def test_what_is_neither_a_filter_nor_a_mapping_is_refused(bad):
    with pytest.raises(UsageError):
        as_filter(bad)
