"""Graphs that run on LoomSaver and on LangGraph's InMemorySaver side by side: every state and history is the same."""

import asyncio
import operator
import re
from contextlib import aclosing
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite, Send, interrupt

from loom import open_checkpoints
from loom.adapters.langgraph import LoomSaver
from tests.adapters.langgraph_places import PLACES, new_user, stop, url_of


@pytest.fixture(scope="session", autouse=True)
def _stopped():
    yield
    stop()


@pytest.fixture(params=PLACES)
def place(request, tmp_path):
    """The URL of each place in turn."""
    return url_of(request.param, tmp_path)


def joined(items, writes):
    return [*items, *(item for write in writes for item in write)]


def newest(items, more):
    """Keeps the last five, so that the beginning of the list changes too."""
    return [*items, *more][-5:]


class State(TypedDict, total=False):
    said: Annotated[list[Any], operator.add]
    last: Annotated[list[Any], newest]
    deltas: Annotated[list[Any], DeltaChannel(joined, snapshot_frequency=3)]
    messages: Annotated[list[AnyMessage], add_messages]
    note: Any


class Inner(TypedDict, total=False):
    said: Annotated[list[Any], operator.add]
    own: Annotated[list[Any], operator.add]


def start(state):
    number = len(state.get("messages", []))
    if number and number % 3 == 0:
        state["messages"][0].content += "!"  # a node may change what it was given
    if state.get("said") and isinstance(state["said"][0], dict):
        state["said"][0]["seen"] = number
    return {"messages": [AIMessage(f"answer {number}", id=f"a{number}")], "deltas": [number]}


def left(state):
    return {"said": ["left"], "deltas": ["left", {"x": len(state["deltas"])}], "last": ["left"]}


def right(state):
    if state.get("note") == "ask":
        return {"said": [interrupt("what?")], "deltas": ["asked"]}
    return {"said": ["right"], "deltas": ["right"]}


def inner_node(state):
    if state["said"] and state["said"][-1] == "ask inside":
        return {"own": [interrupt("inside?")]}
    return {"own": ["in"], "said": [f"inner {len(state.get('own', []))}"]}


def spread(state):
    return [Send("worker", {"said": [n]}) for n in range(min(2, len(state.get("last", []))))]


def worker(state):
    return {"deltas": [("worker", *state["said"])], "last": [state["said"][0]]}


def failing(state):
    if state.get("note") == "fail":
        raise RuntimeError("the node failed")
    return {"note": len(state["said"])}


def graph(saver):
    inner = (
        StateGraph(Inner).add_node("inner_node", inner_node).add_edge(START, "inner_node").compile(checkpointer=True)
    )
    made = StateGraph(State)
    for name, node in {"start": start, "left": left, "right": right, "inner": inner, "worker": worker}.items():
        made.add_node(name, node)
    made.add_node("failing", failing)
    made.add_edge(START, "start").add_edge("start", "left").add_edge("start", "right")
    made.add_edge(["left", "right"], "inner").add_conditional_edges("inner", spread, ["worker"])
    made.add_edge("worker", "failing").add_edge("failing", END)
    return made.compile(checkpointer=saver)


SAVED = "sync"
"""A node may change what it was given: with any other, a checkpoint may be saved while that happens."""
CONFIG = {"configurable": {"thread_id": "t"}}
TEXTS = st.sampled_from(["hello", "ask", "fail", "ask inside", 1, True, None])
OPS = st.one_of(
    st.tuples(st.just("send"), TEXTS),
    st.tuples(st.just("send dict"), TEXTS),
    st.tuples(st.just("resume"), TEXTS),
    st.tuples(st.just("go on"), st.none()),
    st.tuples(st.just("update"), TEXTS),
    st.tuples(st.just("overwrite"), TEXTS),
    st.tuples(st.just("exit"), TEXTS),
    st.tuples(st.sampled_from(["fork", "replay", "update there", "copy"]), st.integers(0, 30)),
)


async def done(work):
    """What a call gave, or the error it raised, which has to be the same on both sides."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001  (any error is compared)
        return f"{type(error).__name__}: {error}"


def plain(value):
    """A value as text, without the ids that LangGraph makes of the ids of checkpoints."""
    return re.sub(r"id='[0-9a-f]{32}'", "", repr(value))


async def there(app, number):
    """The config of a checkpoint of the history, counted from the newest."""
    found = [one.config async for one in app.aget_state_history(CONFIG)]
    return found[number % len(found)] if found else CONFIG


async def do(app, op, number):
    kind, value = op
    if kind == "send":
        given = {"said": [value], "messages": [HumanMessage(f"{value}", id=f"h{number}")], "note": value}
        return await done(app.ainvoke(given, CONFIG, durability=SAVED))
    if kind == "send dict":
        return await done(app.ainvoke({"said": [{"x": [value]}], "last": [value, number]}, CONFIG, durability=SAVED))
    if kind == "exit":
        return await done(app.ainvoke({"said": [value], "deltas": [value]}, CONFIG, durability="exit"))
    if kind == "resume":
        return await done(app.ainvoke(Command(resume=value), CONFIG, durability=SAVED))
    if kind == "go on":
        return await done(app.ainvoke(None, CONFIG, durability=SAVED))
    if kind == "update":
        await done(app.aupdate_state(CONFIG, {"said": [value], "deltas": [number]}, as_node="start"))
    elif kind == "overwrite":
        await done(
            app.aupdate_state(CONFIG, {"said": Overwrite([value]), "deltas": Overwrite([value])}, as_node="left")
        )
    elif kind == "copy":
        await done(app.aupdate_state(await there(app, value), None, as_node="__copy__"))
    elif kind == "update there":
        await done(app.aupdate_state(await there(app, value), {"note": number, "last": [number]}, as_node="start"))
    elif kind == "replay":
        return await done(app.ainvoke(None, await there(app, value), durability=SAVED))
    else:
        return await done(app.ainvoke({"said": ["fork"]}, await there(app, value), durability=SAVED))
    return None


def shown(state, names):
    """A state with ids as numbers, in the order in which they were made."""

    def name(config):
        return config and names.setdefault(config["configurable"].get("checkpoint_id"), len(names))

    tasks = [
        (task.name, task.path, task.error and str(task.error), [one.value for one in task.interrupts], task.result)
        for task in state.tasks
    ]
    metadata = {key: value for key, value in (state.metadata or {}).items() if key != "parents"}
    order = name(state.config), name(state.parent_config)
    return repr((order, state.values, state.next, tasks, metadata, [one.value for one in state.interrupts]))


async def history(app):
    found = [one async for one in app.aget_state_history(CONFIG)]
    names = {}
    return [shown(one, names) for one in reversed(found)]


async def inner_states(app):
    state = await app.aget_state(CONFIG, subgraphs=True)
    return [repr(task.state and getattr(task.state, "values", None)) for task in state.tasks]


async def compare(ops, open_saver):
    oracle = graph(InMemorySaver(serde=JsonPlusSerializer()))
    for number, op in enumerate(ops):
        async with open_saver() as saver:
            app = graph(saver)
            assert plain(await do(app, op, number)) == plain(await do(oracle, op, number))
            assert shown(await app.aget_state(CONFIG), {}) == shown(await oracle.aget_state(CONFIG), {})
    async with open_saver() as saver:
        assert await history(graph(saver)) == await history(oracle)
        assert await inner_states(graph(saver)) == await inner_states(oracle)


async def compare_warm(ops, user="alice"):
    async with aclosing(open_checkpoints("inmemory")) as store:
        saver = LoomSaver(store, user_id=user)
        await compare(ops, lambda: saver)


async def compare_cold(ops):
    """Each operation by a saver that has seen nothing before."""
    async with aclosing(open_checkpoints("inmemory")) as store:
        await compare(ops, lambda: LoomSaver(store, user_id="alice"))


@settings(max_examples=25)
@given(st.lists(OPS, min_size=1, max_size=7))
def test_any_program_gives_the_same_history(ops):
    asyncio.run(compare_warm(ops))


@settings(max_examples=15)
@given(st.lists(OPS, min_size=1, max_size=6))
def test_any_program_gives_the_same_history_where_every_call_is_another_process(ops):
    asyncio.run(compare_cold(ops))


def test_a_copied_checkpoint_has_what_was_written_before_it():
    asyncio.run(compare_cold([("update", "hello"), ("update", "hello"), ("copy", 18), ("resume", "hello")]))


EVERYTHING = [
    ("send", "hello"), ("send", "ask"), ("resume", "because"), ("send dict", 1), ("fork", 4), ("update", "x"),
    ("go on", None), ("replay", 7), ("send", "fail"), ("go on", None), ("copy", 2), ("overwrite", "new"),
    ("exit", "x"), ("send", "ask inside"), ("resume", "in there"), ("update there", 9), ("send", "bye"),
]  # fmt: skip


def test_a_program_with_everything_gives_the_same_history_in_every_place(place):
    user = new_user()

    async def run():
        async with LoomSaver(place, user_id=user) as saver:
            await compare(EVERYTHING, lambda: Shared(saver))

    asyncio.run(run())


class Shared:
    """A saver that is used by several blocks, and closed by none of them."""

    def __init__(self, saver):
        self.saver = saver

    async def __aenter__(self):
        return self.saver

    async def __aexit__(self, *_):
        pass


def test_the_blocking_door_gives_the_same(tmp_path):
    with LoomSaver(f"sqlite:{tmp_path}/graph.db", user_id="alice") as saver:
        for one in (ours := graph(saver), oracle := graph(InMemorySaver())):
            one.invoke({"said": ["hello"], "messages": [HumanMessage("hi", id="1")]}, CONFIG)
            one.invoke({"said": ["x"], "note": "ask"}, CONFIG)
            one.invoke(Command(resume="yes"), CONFIG)
            one.update_state(CONFIG, {"said": ["updated"]}, as_node="start")
        found, wanted = ([*one.get_state_history(CONFIG)] for one in (ours, oracle))
        names, theirs = {}, {}
        assert [shown(one, names) for one in reversed(found)] == [shown(one, theirs) for one in reversed(wanted)]
        assert ours.get_state(found[3].config).values == wanted[3].values


def test_a_pruned_and_copied_thread_goes_on_with_its_delta_channels(place):
    oracle = graph(InMemorySaver())
    with LoomSaver(place, user_id=(user := new_user())) as saver:
        for app in (graph(saver), oracle):
            for n in range(3):
                app.invoke({"said": [n], "deltas": [n], "messages": [HumanMessage("hi", id=str(n))]}, CONFIG)
        saver.prune(["t"])
        saver.copy_thread("t", "copy")
        saver.delete_thread("t")
        copied = {"configurable": {"thread_id": "copy"}}
        assert graph(saver).get_state(copied).values == oracle.get_state(CONFIG).values
        if place != "inmemory":
            with LoomSaver(place, user_id=user) as again:
                assert graph(again).get_state(copied).values == oracle.get_state(CONFIG).values
        answer = graph(saver).invoke({"said": ["more"], "deltas": ["more"]}, copied)
        assert answer == oracle.invoke({"said": ["more"], "deltas": ["more"]}, CONFIG)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_durability_gives_the_same(durability):
    with LoomSaver("inmemory", user_id="alice") as saver:
        for app in (graph(saver), oracle := graph(InMemorySaver())):
            for n in range(4):
                app.invoke({"said": [n], "deltas": [n]}, CONFIG, durability=durability)
        assert graph(saver).get_state(CONFIG).values == oracle.get_state(CONFIG).values
