"""LoomStore: what LangGraph's own tests of its SQLite and in-memory stores ask for, on Loom's stores.

LangGraph ships no suite for stores, so these tests ask for the same through the public protocol. Left out, with the
reason:

- tests that read private fields or SQL tables of a store (`store.conn`, `_data`, `_vectors`, migrations, indexes):
  they are about another implementation;
- vector types and distances that the caller chooses (`ann_index_config`, `distance_type`, `vector_type`): Loom's
  stores compare by cosine, always;
- items without a vector that fill up the results of a query: the in-memory store of LangGraph does that, its SQLite and
  Postgres stores do not, and neither does this one;
- a sweeper thread (`start_ttl_sweeper`): this store sweeps in the first call after the interval, and when it is told to;
- `created_at` that changes with every put: here it stays, as in LangGraph's Postgres store.
"""

import asyncio
import multiprocessing
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.graph import StateGraph
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from loom import EmbedderMismatch, ScopeRequired, UsageError, open_memory
from loom.adapters.langgraph import LoomStore
from loom.testing import FakeClock
from tests.adapters.langgraph_places import new_user, stop, url_of

LETTERS = "abcdefgh"


def embed(texts):
    """A vector for each text: how often each letter is in it."""
    return [[text.count(letter) + 0.01 for letter in LETTERS] for text in texts]


async def aembed(texts):
    return embed(texts)


INDEX = {"dims": len(LETTERS), "embed": embed, "fields": ["text"]}


@pytest.fixture(scope="session", autouse=True)
def _stopped():
    yield
    stop()


@pytest.fixture(params=["inmemory", "sqlite", "postgres", "redis"])
def store(request, tmp_path, clock):
    with LoomStore(url_of(request.param, tmp_path), user_id=new_user(), clock=clock) as made:
        yield made


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def indexed(tmp_path, clock):
    with LoomStore(f"sqlite:{tmp_path}/graph.db", user_id="alice", index=INDEX, clock=clock) as made:
        yield made


def keys(found):
    return [item.key for item in found]


def test_an_item_is_put_read_changed_and_deleted(store, clock):
    assert store.get(("a", "b"), "k") is None
    store.put(("a", "b"), "k", {"n": 1, "nested": {"x": [1, None, "é\0"]}})
    first = clock.now()
    clock.advance(60)
    store.put(("a", "b"), "k", {"n": 2})
    assert store.get(("a", "b"), "k") == Item(
        value={"n": 2}, key="k", namespace=("a", "b"), created_at=first, updated_at=clock.now()
    )
    assert store.get(("a",), "k") is store.get(("a", "b", "c"), "k") is None
    store.delete(("a", "b"), "k")
    store.delete(("a", "b"), "k")
    assert store.get(("a", "b"), "k") is None
    assert store.search(()) == store.list_namespaces() == []


def test_a_batch_reads_before_it_writes_and_the_last_put_counts(store):
    store.put(("a",), "old", {"n": 0})
    found = store.batch(
        [
            PutOp(("a",), "k", {"n": 1}),
            GetOp(("a",), "k"),
            PutOp(("a",), "k", {"n": 2}),
            SearchOp(("a",)),
            ListNamespacesOp(),
            PutOp(("a",), "old", None),
            PutOp(("b",), "k", {"n": 3}),
        ]
    )
    assert [one if not isinstance(one, list) else len(one) for one in found] == [None, None, None, 1, 1, None, None]
    assert store.get(("a",), "k").value == {"n": 2}
    assert store.list_namespaces() == [("a",), ("b",)]


def test_search_goes_through_a_prefix_newest_first_page_by_page(store, clock):
    for n in range(6):
        store.put(("docs", "x" if n % 2 else "y"), f"k{n}", {"n": n})
        clock.advance(1)
    store.put(("docsx",), "other", {"n": 9})  # not under ("docs",)
    assert keys(store.search(("docs",))) == ["k5", "k4", "k3", "k2", "k1", "k0"]
    assert keys(store.search(("docs",), limit=2, offset=3)) == ["k2", "k1"]
    assert keys(store.search(("docs", "x"))) == ["k5", "k3", "k1"]
    assert len(store.search((), limit=100)) == 7
    assert keys(store.search(("docs",), query="not looked at")) == keys(store.search(("docs",)))
    assert all(isinstance(item, SearchItem) and item.score is None for item in store.search(()))


def test_filters_compare_values(store, clock):
    values = [
        {"n": 1, "s": "a", "d": {"x": 1, "y": [1, 2]}},
        {"n": 2.5, "s": "b"},
        {"n": None},
        {"n": "2"},
        {"n": True},
    ]
    for n, value in enumerate(values):
        store.put(("f",), str(n), value)
        clock.advance(1)

    def found(**filter):
        return sorted(keys(store.search(("f",), filter=filter)))

    assert found(n=1) == found(n={"$eq": 1}) == ["0", "4"]  # Python takes True for 1, and so does LangGraph
    assert found(n=2.5, s="b") == ["1"]
    assert found(n=2.5, s="a") == []
    assert found(n=None) == ["2"]
    assert found(missing=None) == ["0", "1", "2", "3", "4"]
    assert found(n={"$gt": 1}) == ["1"]
    assert found(n={"$gte": 1, "$lt": 2}) == ["0", "4"]
    assert found(n={"$lte": "2"}) == ["3"]
    assert found(s={"$ne": "a"}) == ["1", "2", "3", "4"]
    assert found(d={"x": 1}) == found(d={"y": [1, 2]}) == found(d={"x": {"$gt": 0}}) == ["0"]
    assert found(d={"y": [2, 1]}) == []
    with pytest.raises(ValueError, match=r"'\$like' is not an operator"):
        found(s={"$like": "a"})


def test_namespaces_are_listed_by_prefix_suffix_and_depth(store):
    for path in ("a.b.c", "a.b.d.e", "a.b.d.i", "a.b.f", "a.c.f", "b"):
        store.put(tuple(path.split(".")), "k", {})
        store.put(tuple(path.split(".")), "k2", {})
    assert store.list_namespaces(prefix=("a", "b"), max_depth=3) == [("a", "b", "c"), ("a", "b", "d"), ("a", "b", "f")]
    assert store.list_namespaces(suffix=("f",)) == [("a", "b", "f"), ("a", "c", "f")]
    assert store.list_namespaces(prefix=("a", "*", "f")) == [("a", "b", "f"), ("a", "c", "f")]
    assert store.list_namespaces(prefix=("a",), suffix=("*", "d", "*")) == [("a", "b", "d", "e"), ("a", "b", "d", "i")]
    assert store.list_namespaces(limit=2, offset=1) == [("a", "b", "d", "e"), ("a", "b", "d", "i")]
    conditions = (MatchCondition("prefix", ("a",)), MatchCondition("suffix", ("c",)))
    assert store.batch([ListNamespacesOp(match_conditions=conditions)]) == [[("a", "b", "c")]]
    assert store.list_namespaces(prefix=("a", "b", "c", "d", "e", "f")) == []


@pytest.mark.parametrize("namespace", [(), ("",), ("a.b",), ("langgraph", "x"), ("a\0b",), (1,)])
def test_bad_namespaces_are_refused(namespace):
    with LoomStore("inmemory", user_id="alice") as store, pytest.raises(InvalidNamespaceError):
        store.put(namespace, "k", {})


def test_labels_in_a_batch_are_checked_too():
    with LoomStore("inmemory", user_id="alice") as store:
        store.put(("a", "b"), "k", {"n": 1})
        with pytest.raises(InvalidNamespaceError):
            store.batch([GetOp(("a.b",), "k")])


def test_a_value_that_is_not_json_is_refused_in_words():
    with LoomStore("inmemory", user_id="alice") as store:
        for value in ({"x": object()}, {"x": float("nan")}):
            with pytest.raises(UsageError, match="'k' in \\('a',\\) cannot be kept as JSON"):
                store.put(("a",), "k", value)
        assert store.search(()) == []


# Search by meaning.


def test_a_query_finds_the_nearest_of_the_prefix(indexed):
    indexed.put(("docs",), "1", {"text": "aaa"})
    indexed.put(("docs", "sub"), "2", {"text": "aab"})
    indexed.put(("docs",), "3", {"text": "bbb"})
    indexed.put(("other",), "4", {"text": "aaa"})
    indexed.put(("docs",), "no vector", {"text": "aaa"}, index=False)
    indexed.put(("docs",), "no text", {"other": "aaa"})
    found = indexed.search(("docs",), query="aaa")
    assert keys(found) == ["1", "2", "3"]
    assert found[0].score == pytest.approx(1)
    assert found[0].score > found[1].score > found[2].score > 0
    assert keys(indexed.search(("docs",), query="aaa", limit=1, offset=1)) == ["2"]
    assert len(indexed.search(("docs",))) == 5


def test_each_field_has_a_vector_and_the_best_counts(indexed):
    value = {"title": "aaa", "body": {"parts": ["bbb", "ccc"]}, "rest": "ddd"}
    indexed.put(("docs",), "many", value, index=["title", "body.parts[*]"])
    indexed.put(("docs",), "one", {"text": "abcd"})
    assert [indexed.search(("docs",), query=text)[0].key for text in ("aaa", "bbb", "ccc", "ddd")] == [
        *("many", "many", "many", "one"),
    ]
    assert keys(indexed.search(("docs",), query="ccc")) == ["many", "one"]  # once, with its best
    assert (len(indexed.search(())), indexed.list_namespaces()) == (2, [("docs",)])  # no read shows the vectors


def test_a_new_value_has_new_vectors(indexed):
    indexed.put(("docs",), "k", {"p": ["aaa", "bbb", "ccc"]}, index=["p[*]"])
    indexed.put(("docs",), "k", {"p": ["ddd"]}, index=["p[*]"])
    indexed.put(("docs",), "other", {"text": "ccd"})
    assert keys(indexed.search(("docs",), query="ccc")) == ["other", "k"]
    indexed.delete(("docs",), "k")
    assert keys(indexed.search(("docs",), query="ddd")) == ["other"]
    indexed.put(("docs",), "other", {"text": "ccd"}, index=False)
    assert indexed.search(("docs",), query="ccd") == []


def test_a_filter_comes_before_the_limit(indexed):
    for n in range(40):
        indexed.put(("docs",), f"{n:02}", {"text": "a" * (40 - n) + "b", "n": n})
    assert keys(indexed.search(("docs",), query="a", filter={"n": {"$gte": 37}}, limit=2)) == ["37", "38"]
    assert keys(indexed.search(("docs",), query="a", filter={"n": {"$gte": 37}}, offset=2)) == ["39"]


def test_the_whole_value_is_embedded_where_no_fields_are_named(tmp_path):
    with LoomStore("inmemory", user_id="alice", index={"dims": len(LETTERS), "embed": embed}) as store:
        store.put(("docs",), "1", {"x": {"y": "ggg"}})
        store.put(("docs",), "2", {"x": "h" * 9})
        assert store.search(("docs",), query="ggg")[0].key == "1"


def test_another_embedder_is_refused_and_not_mixed_in(tmp_path):
    url = f"sqlite:{tmp_path}/graph.db"
    with LoomStore(url, user_id="alice", index={**INDEX, "embed": Named("one")}) as store:
        store.put(("docs",), "1", {"text": "aaa"})
    with LoomStore(url, user_id="alice", index={**INDEX, "embed": Named("two")}) as store:
        assert store.get(("docs",), "1").value == {"text": "aaa"}
        with pytest.raises(EmbedderMismatch, match="langgraph:one"):
            store.search(("docs",), query="aaa")


class Named:
    """An embedding function with a name, as the classes of LangChain have one."""

    def __init__(self, model):
        self.model = model

    def __call__(self, texts):
        return embed(texts)


# Expiry.


def test_items_expire_and_are_swept(clock):
    with LoomStore("inmemory", user_id="alice", index=INDEX, ttl={"default_ttl": 10}, clock=clock) as store:
        store.put(("a",), "default", {"text": "a"})
        store.put(("a",), "short", {"text": "a"}, ttl=1)
        store.put(("a",), "forever", {"text": "a"}, ttl=None)
        clock.advance(timedelta(minutes=1))
        assert store.get(("a",), "short", refresh_ttl=False) is not None  # shown until it is swept, as in LangGraph
        assert store.sweep_ttl() == 1
        assert sorted(keys(store.search(("a",), query="a", refresh_ttl=False))) == ["default", "forever"]
        clock.advance(timedelta(minutes=9))
        assert store.sweep_ttl() == 1
        assert keys(store.search(())) == ["forever"]


def test_reading_refreshes_where_it_is_not_told_otherwise(clock):
    with LoomStore("inmemory", user_id="alice", clock=clock, ttl={"omit_expired": True}) as store:
        for key in ("got", "found", "untouched"):
            store.put(("a", key), "k", {"key": key}, ttl=10)
        clock.advance(timedelta(minutes=9))
        store.get(("a", "got"), "k")
        store.search(("a", "found"))
        store.get(("a", "untouched"), "k", refresh_ttl=False)
        clock.advance(timedelta(minutes=9))
        assert [store.get(("a", key), "k") is None for key in ("got", "found", "untouched")] == [False, False, True]
        assert store.list_namespaces() == [("a", "found"), ("a", "got")]
        clock.advance(timedelta(minutes=11))
        assert store.search(()) == store.list_namespaces() == []
        assert store.sweep_ttl() == 3


def test_a_time_without_an_end_date_is_refused():
    with LoomStore("inmemory", user_id="alice") as store:
        for minutes in (1e12, float("nan")):
            with pytest.raises(UsageError, match="minutes end at no date"):
                store.put(("a",), "k", {}, ttl=minutes)
        assert store.search(()) == []


def test_refresh_on_read_can_be_switched_off(clock):
    ttl = {"default_ttl": 10, "refresh_on_read": False, "omit_expired": True}
    with LoomStore("inmemory", user_id="alice", clock=clock, ttl=ttl) as store:
        store.put(("a",), "k", {})
        clock.advance(timedelta(minutes=9))
        assert store.get(("a",), "k") is not None
        clock.advance(timedelta(minutes=2))
        assert store.get(("a",), "k") is None


def test_the_first_call_after_the_interval_sweeps(clock):
    ttl = {"default_ttl": 1, "sweep_interval_minutes": 5}
    with LoomStore("inmemory", user_id="alice", clock=clock, ttl=ttl) as store:
        store.put(("a",), "k", {})
        clock.advance(timedelta(minutes=4))
        assert store.get(("a",), "k", refresh_ttl=False) is not None
        clock.advance(timedelta(minutes=1))
        assert store.get(("a",), "k", refresh_ttl=False) is None


# Users, owners, doors.


def test_users_never_meet_whatever_the_namespaces(tmp_path):
    url = f"sqlite:{tmp_path}/graph.db"
    with LoomStore(url, user_id="alice", index=INDEX) as alice, LoomStore(url, user_id="bob", index=INDEX) as bob:
        alice.put(("memories", "bob"), "k", {"text": "aaa"})
        assert bob.get(("memories", "bob"), "k") is None
        assert bob.search((), query="aaa") == bob.search(()) == bob.list_namespaces() == []
        bob.delete(("memories", "bob"), "k")
        assert alice.get(("memories", "bob"), "k").value == {"text": "aaa"}
    with pytest.raises(ScopeRequired):
        LoomStore(url, user_id="")


@pytest.mark.anyio
async def test_a_memory_that_was_given_stays_open(tmp_path):
    async with open_memory(f"sqlite:{tmp_path}/graph.db") as memory:
        async with LoomStore(memory, user_id="alice") as store:
            await store.aput(("a",), "k", {"n": 1})
        async with LoomStore(memory.store, user_id="alice") as again:
            assert (await again.aget(("a",), "k")).value == {"n": 1}
        await memory.remember("I live in Oslo.", user_id="alice")
        assert [hit async for hit in memory.list(user_id="alice")] != []
        assert [one.key for one in await again.asearch(())] == ["k"]  # neither sees the other's


def test_the_blocking_door_works_inside_and_outside_of_loops(store):
    async def both():
        await store.aput(("a",), "1", {"n": 1})
        store.put(("a",), "2", {"n": 2})
        return sorted(keys(await store.asearch(("a",)))), sorted(keys(store.search(("a",))))

    assert asyncio.run(both()) == (["1", "2"], ["1", "2"])
    assert asyncio.run(both()) == (["1", "2"], ["1", "2"])  # another loop
    assert sorted(keys(store.search(("a",)))) == ["1", "2"]


@pytest.mark.anyio
async def test_async_embedders_are_awaited_where_they_were_called():
    async with LoomStore("inmemory", user_id="alice", index={**INDEX, "embed": aembed}) as store:
        await store.aput(("a",), "k", {"text": "aaa"})
        assert [item.key for item in await store.asearch((), query="aaa")] == ["k"]
        assert await store.asweep_ttl() == 0


def test_nodes_of_a_graph_use_it(store):
    class Said(TypedDict):
        text: str

    def keep(state: Said, *, store: BaseStore) -> Said:
        store.put(("said",), state["text"], {"text": state["text"]})
        return {"text": str(len(store.search(("said",))))}

    async def akeep(state: Said, *, store: BaseStore) -> Said:
        await store.aput(("said",), state["text"], {"text": state["text"]})
        return {"text": str(len(await store.asearch(("said",))))}

    def graph(node):
        return StateGraph(Said).add_node("keep", node).set_entry_point("keep").compile(store=store)

    assert graph(keep).invoke({"text": "a"}) == {"text": "1"}
    assert asyncio.run(graph(akeep).ainvoke({"text": "b"})) == {"text": "2"}
    assert asyncio.run(graph(keep).ainvoke({"text": "c"})) == {"text": "3"}


def test_five_threads_with_a_loop_each_lose_nothing(store):
    async def write(number):
        for n in range(10):
            await store.aput(("a", str(number)), str(n), {"n": n})

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda number: asyncio.run(write(number)), range(5)))
    assert len(store.search(("a",), limit=100)) == 50


def write_many(url, number):
    with LoomStore(url, user_id="alice", index=INDEX) as store:
        for n in range(25):
            store.put(("a",), f"{number}.{n}", {"text": "a" * number, "p": n})
            store.put(("same",), "k", {"text": "abcdefgh"[number]})


def test_eight_processes_lose_nothing_and_leave_one_value_with_its_own_vector(tmp_path):
    url = f"sqlite:{tmp_path}/graph.db"
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of a fork where there are threads
        children = [context.Process(target=partial(write_many, url, number)) for number in range(8)]
        for child in children:
            child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 8
    with LoomStore(url, user_id="alice", index=INDEX) as store:
        assert len(store.search(("a",), limit=1000)) == 200
        (left,) = store.search(("same",))
        (found,) = store.search(("same",), query=left.value["text"])
        assert found.score == pytest.approx(1)


# Beside LangGraph's own store.

OPS = st.one_of(
    st.builds(
        PutOp,
        st.sampled_from([("a",), ("a", "b"), ("b",)]),
        st.sampled_from("xyz"),
        st.one_of(st.none(), st.fixed_dictionaries({"text": st.text("abc", max_size=3), "n": st.integers(0, 3)})),
        st.sampled_from([None, False, ["text"]]),
        st.none(),
    ),
    st.builds(GetOp, st.sampled_from([("a",), ("a", "b"), ("b",)]), st.sampled_from("xyz"), st.booleans()),
    st.builds(
        SearchOp,
        st.sampled_from([(), ("a",), ("a", "b"), ("c",)]),
        st.sampled_from([None, {"n": 1}, {"n": {"$gt": 1}}]),
        st.just(50),
        st.just(0),
        st.sampled_from([None, "a", "bc"]),
        st.booleans(),
    ),
    st.builds(ListNamespacesOp, st.just(None), st.sampled_from([None, 1]), st.just(100), st.just(0)),
)


def plain(result: Any) -> Any:
    """A result without times and order; of a query only what has a score, with equal scores in any order."""
    if not isinstance(result, list):
        return result and (result.namespace, result.key, result.value)
    if not all(isinstance(one, SearchItem) for one in result):
        return result
    return sorted((one.namespace, one.key, one.score and round(one.score, 4)) for one in result)


@settings(max_examples=40)
@given(st.lists(OPS, min_size=1, max_size=20))
def test_any_operations_give_what_langgraphs_own_store_gives(ops):
    oracle = InMemoryStore(index=INDEX)
    with LoomStore("inmemory", user_id="alice", index=INDEX) as store:
        for op in ops:
            if isinstance(op, PutOp):  # that store keeps the vectors of a value that another one takes the place of
                oracle.delete(op.namespace, op.key)
            found, wanted = (plain(one.batch([op])[0]) for one in (store, oracle))
            if isinstance(op, SearchOp) and op.query:
                wanted = [one for one in wanted if one[2] is not None]
            if isinstance(op, ListNamespacesOp):  # and it lists namespaces whose items are all gone
                wanted = sorted({item.namespace[: op.max_depth] for item in oracle.search((), limit=100)})
            assert found == wanted
