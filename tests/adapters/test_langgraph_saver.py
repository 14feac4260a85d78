"""LoomSaver: LangGraph's own conformance suite, users, owners, several writers, and what a log costs."""

import asyncio
import multiprocessing
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from loom import Scope, ScopeRequired, StoreConflict, UsageError, open_checkpoints
from loom.adapters import _langgraph_log
from loom.adapters.langgraph import LoomSaver
from tests.adapters.langgraph_places import PLACES, new_user, stop, url_of

USER = "alice"


@pytest.fixture(scope="session", autouse=True)
def _stopped():
    yield
    stop()


@pytest.fixture(params=PLACES)
def place(request, tmp_path):
    """The URL of each place in turn."""
    return url_of(request.param, tmp_path)


def config(thread="t", id=None, ns="", **more):
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, **({"checkpoint_id": id} if id else {}), **more}}


def named(config):
    return config["configurable"]


def written(saver):
    """What was written at the newest checkpoint, in order of the values."""
    return sorted(tuple(value) for _, _, value in saver.get_tuple(config()).pending_writes)


def checkpoint(number, **values):
    versions = dict.fromkeys(values, number + 1)
    made = {"id": f"{number:08}", "channel_values": values, "channel_versions": versions}
    return {**empty_checkpoint(), **made}


def put(saver, number, parent=None, thread="t", new=None, **values):
    made = checkpoint(number, **values)
    versions = made["channel_versions"] if new is None else new
    return saver.put(config(thread, parent and f"{parent - 1:08}"), made, {"source": "loop", "step": number}, versions)


def values(saver, number, thread="t"):
    return saver.get_tuple(config(thread, f"{number:08}")).checkpoint["channel_values"]


# LangGraph's own suite.


@pytest.mark.anyio
async def test_the_conformance_suite_reports_full(place):
    @checkpointer_test(name="LoomSaver")
    async def made():
        async with LoomSaver(place, user_id=new_user()) as saver:
            yield saver

    report = await validate(made)
    failed = {name: result.failures for name, result in report.results.items() if result.failures}
    assert (report.conformance_level(), failed) == ("FULL", {})


def test_all_nine_capabilities_are_its_own():
    names = "put put_writes get_tuple list delete_thread delete_for_runs copy_thread prune get_delta_channel_history"
    for name in [form for verb in names.split() for form in (verb, f"a{verb}")]:
        assert getattr(LoomSaver, name) is not getattr(BaseCheckpointSaver, name), name


# Whose threads they are.


def test_users_with_the_same_thread_never_meet(tmp_path):
    url = f"sqlite:{tmp_path}/graph.db"
    with LoomSaver(url, user_id="alice") as alice, LoomSaver(url, user_id="bob") as bob:
        put(alice, 0, text="of alice")
        assert bob.get_tuple(config()) is None
        assert list(bob.list(config())) == list(bob.list(None)) == []
        put(bob, 0, text="of bob")
        bob.delete_thread("t")
        bob.delete_for_runs(["r"])
        assert values(alice, 0) == {"text": "of alice"}
        assert [named(found.config)["thread_id"] for found in alice.list(None)] == ["t"]


def test_a_run_says_whose_thread_it_is():
    with LoomSaver("inmemory") as saver:
        saver.put(config(user_id="alice"), checkpoint(0, text="of alice"), {}, {"text": 1})
        assert saver.get_tuple(config(user_id="bob")) is None
        found = saver.get_tuple(config(user_id="alice"))
        assert saver.get_tuple(found.config).checkpoint["channel_values"] == {"text": "of alice"}  # it goes on with it
        with pytest.raises(ScopeRequired, match="user_id='alice'"):
            saver.get_tuple(config())
        with pytest.raises(ScopeRequired, match="user_id='alice'"):
            saver.delete_thread("t")


def test_the_user_of_the_saver_counts_more_than_that_of_a_run():
    with LoomSaver("inmemory", user_id="app") as saver:
        saver.put(config(user_id="alice"), checkpoint(0, text="x"), {}, {"text": 1})
        assert values(saver, 0) == {"text": "x"}


def test_what_is_missing_in_a_config_is_said():
    with LoomSaver("inmemory", user_id=USER) as saver:
        with pytest.raises(UsageError, match="names no thread"):
            saver.get_tuple({"configurable": {}})
        with pytest.raises(UsageError, match="names no checkpoint_id"):
            saver.put_writes(config(), [("text", "x")], "task")
        with pytest.raises(UsageError, match="no strategy 'oldest'"):
            saver.prune(["t"], strategy="oldest")


# Who opens closes.


@pytest.mark.anyio
async def test_a_store_that_was_given_stays_open():
    async with aclosing(open_checkpoints("inmemory")) as store:
        async with LoomSaver(store, user_id=USER) as saver:
            await saver.aput(config(), checkpoint(0, text="x"), {}, {"text": 1})
        assert [one.session_id for one in await store.sessions(Scope("langgraph", USER))] == ["t"]


def test_a_url_is_closed_and_opened_again(tmp_path):
    url = f"sqlite:{tmp_path}/graph.db"
    with LoomSaver(url, user_id=USER) as saver:
        put(saver, 0, text="x")
    saver.close()
    with LoomSaver(url, user_id=USER) as again:
        assert values(again, 0) == {"text": "x"}


def test_the_package_that_is_missing_is_named():
    code = "import sys; sys.modules['langgraph'] = None; import loom.adapters.langgraph"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'loom-engine[langgraph]'" in done.stderr.splitlines()[-1]


# What is kept.


@pytest.mark.parametrize("is_cold", [False, True])
def test_lists_are_what_was_put_whatever_happened_to_them(tmp_path, is_cold):
    saver, oracle = LoomSaver(f"sqlite:{tmp_path}/graph.db", user_id=USER), InMemorySaver()
    lists = [
        [],
        [1, "a", {"x": [1]}],
        [1, "a", {"x": [1]}, None],
        [True, "a", {"x": [1]}, None],  # 1 and True are not the same
        [True, "a", {"x": [1.0]}, None],
        [True, "a", {"x": [1.0], "y": 2}],
        [True, "a", {"y": 2, "x": [1.0]}],  # neither are dicts in another order
        [True],
        [True, float("nan"), (1, 2), {3}, b"x"],
        [True, float("nan"), (1, 2), {3}, b"x", HumanMessage("hi", id="1")],
        [HumanMessage("hi", id="1")],
        [HumanMessage("hi", id="1"), AIMessage("you", id="2", tool_calls=[{"name": "f", "args": {}, "id": "3"}])],
        [HumanMessage("hi", id="1"), AIMessage("me", id="2")],
        "not a list",
        ["x"],
    ]
    for number, given in enumerate(lists):
        for one in (saver, oracle):
            put(one, number, number or None, items=given, same="x")
        if is_cold:
            saver.close()
            saver = LoomSaver(f"sqlite:{tmp_path}/graph.db", user_id=USER)
    for number in range(len(lists)):
        assert repr(values(saver, number)) == repr(values(oracle, number))
    found = [repr(one.checkpoint["channel_values"]) for one in saver.list(config())]
    assert found == [repr(one.checkpoint["channel_values"]) for one in oracle.list(config())]
    saver.close()


def test_what_a_graph_does_to_its_objects_changes_nothing_that_is_kept():
    with LoomSaver("inmemory", user_id=USER) as saver:
        given = [HumanMessage("hi", id="1"), {"x": [1]}]
        put(saver, 0, items=given)
        given[0].content, given[1]["x"][0] = "changed", 2
        found = values(saver, 0)["items"]
        assert (found[0].content, found[1]) == ("hi", {"x": [1]})
        found[0].additional_kwargs["seen"], found[0].more, found[1]["x"][0] = True, 1, 3
        assert values(saver, 0)["items"] == [HumanMessage("hi", id="1"), {"x": [1]}]
        put(saver, 1, 1, items=[*found, "more"])  # what was changed and put again is kept as it is now
        assert values(saver, 1)["items"][0].additional_kwargs == {"seen": True}
        assert values(saver, 1)["items"][0].more == 1
        assert values(saver, 1)["items"][1:] == [{"x": [3]}, "more"]


def test_a_channel_that_did_not_change_is_not_written_again(tmp_path):
    file = tmp_path / "graph.db"
    with LoomSaver(f"sqlite:{file}", user_id=USER) as saver:
        large = {"items": ["x" * 1000] * 100, "text": "y" * 100_000}
        for number in range(30):
            made = checkpoint(number, **large)
            made["channel_versions"] = dict.fromkeys(large, 1)
            parent = f"{number - 1:08}" if number else None
            saver.put(config(id=parent), made, {}, {} if number else made["channel_versions"])
        assert values(saver, 29) == large
    assert file.stat().st_size < 400_000


def test_a_growing_list_grows_the_file_by_what_is_new(tmp_path):
    def size_after(turns):
        file = tmp_path / f"{turns}.db"
        with LoomSaver(f"sqlite:{file}", user_id=USER) as saver:
            items = []
            for number in range(turns):
                items = [*items, HumanMessage(f"{number} " + "x" * 1000, id=str(number))]
                put(saver, number, number or None, items=items)
        return file.stat().st_size

    assert size_after(80) < 2.2 * size_after(40)


def test_a_parent_that_is_not_there_is_no_obstacle():
    with LoomSaver("inmemory", user_id=USER) as saver:
        put(saver, 5, 5, items=[1, 2])
        found = saver.get_tuple(config())
        assert found.checkpoint["channel_values"] == {"items": [1, 2]}
        assert named(found.parent_config)["checkpoint_id"] == "00000004"


def test_the_same_checkpoint_again_takes_its_place():
    with LoomSaver("inmemory", user_id=USER) as saver:
        put(saver, 0, items=[1])
        put(saver, 1, 1, items=[1, 2])
        put(saver, 1, 1, items=[1, 3])
        assert [one.checkpoint["channel_values"] for one in saver.list(config())] == [{"items": [1, 3]}, {"items": [1]}]


def test_what_removed_checkpoints_held_stays_for_those_that_need_it(place):
    user = new_user()
    with LoomSaver(place, user_id=user) as saver:
        for number in range(6):
            put(saver, number, number or None, items=[*range(number)])
        saver.prune(["t"])
        assert [one.checkpoint["channel_values"] for one in saver.list(config())] == [{"items": [0, 1, 2, 3, 4]}]
        saver.copy_thread("t", "copy")
        saver.delete_thread("t")
        assert saver.get_tuple(config()) is None
        put(saver, 6, 6, "copy", items=[*range(6)])
    if place != "inmemory":
        with LoomSaver(place, user_id=user) as again:
            assert values(again, 6, "copy") == {"items": [0, 1, 2, 3, 4, 5]}


def test_a_copy_goes_into_a_new_thread():
    with LoomSaver("inmemory", user_id=USER) as saver:
        put(saver, 0, text="x")
        put(saver, 0, thread="other", text="y")
        with pytest.raises(StoreConflict, match="thread 'other' is already there"):
            saver.copy_thread("t", "other")
        assert values(saver, 0, "other") == {"text": "y"}


def test_a_channel_that_comes_back_is_whole_for_every_process(tmp_path):
    url = f"sqlite:{tmp_path}/graph.db"
    with LoomSaver(url, user_id=USER) as one, LoomSaver(url, user_id=USER) as other:
        put(one, 0, items=[1, 2])
        put(one, 1, 1, text="no items")
        put(other, 2, 2, items=[1, 2, 3])
        assert values(one, 2) == values(other, 2) == {"items": [1, 2, 3]}
        assert values(one, 1) == {"text": "no items"}


def test_an_encrypted_thread_holds_no_plain_text(tmp_path):
    class Mirror:  # a cipher only in form: it turns the bytes round
        def encrypt(self, plaintext):
            return "mirror", plaintext[::-1]

        def decrypt(self, ciphername, ciphertext):
            return ciphertext[::-1]

    url, serde = f"sqlite:{tmp_path}/graph.db", EncryptedSerializer(Mirror(), JsonPlusSerializer())
    with LoomSaver(url, user_id=USER, serde=serde) as saver:
        put(saver, 0, items=["canary-4711"])
        put(saver, 1, 1, items=["canary-4711", HumanMessage("canary-4712", id="1")])
        saver.put_writes(config(id="00000001"), [("items", "canary-4713")], "task")
    assert b"canary" not in b"".join(one.read_bytes() for one in tmp_path.iterdir())
    with LoomSaver(url, user_id=USER, serde=serde) as saver:
        assert values(saver, 1) == {"items": ["canary-4711", HumanMessage("canary-4712", id="1")]}


def test_what_is_known_of_large_threads_is_let_go(monkeypatch):
    monkeypatch.setattr(_langgraph_log, "KNOWN", 10_000)
    with LoomSaver("inmemory", user_id=USER) as saver:
        for number in range(20):
            put(saver, number, number or None, items=["x" * 1000] * (number + 1), text="y" * 1000)
            saver.put_writes(config(id=f"{number:08}"), [("items", "z" * 1000)], "task")
        for number in range(20):
            assert values(saver, number) == {"items": ["x" * 1000] * (number + 1), "text": "y" * 1000}
        known = saver._threads.logs.caches[:3]
        assert all(1 <= len(one._held) < 12 for one in known)


def test_no_byte_of_a_deleted_thread_is_left(tmp_path):
    file = tmp_path / "graph.db"
    with LoomSaver(f"sqlite:{file}", user_id=USER) as saver:
        kept = put(saver, 0, items=["canary-4711"])
        saver.put_writes(kept, [("items", "canary-4711")], "task")
        saver.delete_thread("t")
        assert saver.get_tuple(config()) is None
    assert b"canary-4711" not in b"".join(one.read_bytes() for one in tmp_path.iterdir())


def test_a_value_that_cannot_be_serialised_is_an_error_and_no_pickle():
    with LoomSaver("inmemory", user_id=USER) as saver:
        with pytest.raises(TypeError):
            put(saver, 0, text=lambda: None)
        assert saver.get_tuple(config()) is None
    assert not JsonPlusSerializer().pickle_fallback


def test_a_session_that_another_program_wrote_is_not_mistaken_for_a_thread(tmp_path):
    with LoomSaver("inmemory", user_id=USER) as saver:
        assert saver.get_tuple(config(id="root")) is None
        put(saver, 0, text="x")
        assert saver.get_tuple(config(id="root")) is None


# Several writers.


def test_five_threads_with_a_loop_each_lose_nothing(place):
    with LoomSaver(place, user_id=new_user()) as saver:
        kept = put(saver, 0, items=[])

        async def write(number):
            for n in range(8):
                await saver.aput_writes(kept, [("items", (number, n))], f"{number}.{n}")
                await saver.aput(
                    config(f"own{number}", f"{n - 1:08}" if n else None), checkpoint(n, n=n), {}, {"n": n + 1}
                )

        with ThreadPoolExecutor(5) as pool:
            list(pool.map(lambda number: asyncio.run(write(number)), range(5)))
        assert written(saver) == [(number, n) for number in range(5) for n in range(8)]
        assert [len(list(saver.list(config(f"own{number}")))) for number in range(5)] == [8] * 5


def write_many(url, number):
    with LoomSaver(url, user_id=USER) as saver:
        for n in range(125):
            saver.put_writes(config(id="00000000"), [("items", [number, n])], f"{number}.{n}")


def test_a_thousand_writes_of_eight_processes_to_one_thread_are_all_there_once(tmp_path):
    url = f"sqlite:{tmp_path}/graph.db"
    with LoomSaver(url, user_id=USER) as saver:
        put(saver, 0, items=[])
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of a fork where there are threads
        children = [context.Process(target=partial(write_many, url, number)) for number in range(8)]
        for child in children:
            child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 8
    with LoomSaver(url, user_id=USER) as saver:
        assert written(saver) == [(number, n) for number in range(8) for n in range(125)]


def test_another_process_goes_on_where_this_one_stopped(tmp_path):
    url = f"sqlite:{tmp_path}/graph.db"
    with LoomSaver(url, user_id=USER) as one, LoomSaver(url, user_id=USER) as other:
        put(one, 0, items=[0])
        put(other, 1, 1, items=[0, 1])
        put(one, 2, 2, items=[0, 1, 2])
        assert values(other, 2) == {"items": [0, 1, 2]}
        other.prune(["t"])
        put(one, 3, 3, items=[0, 1, 2, 3])
        put(one, 4, 2, items=[0, 1, 4])  # its parent was removed by the other
        assert [one.checkpoint["channel_values"]["items"][-1] for one in other.list(config())] == [4, 3, 2]
        other.delete_thread("t")
        put(one, 5, 5, items=[5])
        assert values(other, 5) == {"items": [5]}
