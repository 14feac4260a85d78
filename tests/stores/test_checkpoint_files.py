"""What the file store promises when processes die, meet or forget, and when files are damaged."""

import multiprocessing
import os
import random
from contextlib import aclosing

import anyio
import pytest

from loom.core.scope import Scope
from loom.errors import FormatTooNew, StoreConflict, StoreError, StoreUnavailable
from loom.stores.files import FileCheckpointStore, checkpoints
from loom.stores.files.checkpoints import framed, frames_of
from loom.testing.conformance.checkpoint_store import (
    CHAT,
    NAMES,
    a_checkpoint,
    a_message,
    everything,
    ids_in,
    save,
    save_turns,
    texts_of,
)
from loom.testing.conformance.suite import ALICE, BOB

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path):
    async with aclosing(FileCheckpointStore(tmp_path / "sessions")) as store:
        yield store


async def test_reading_writes_nothing(tmp_path, store):
    assert await store.list(ALICE) == ()
    assert await store.load(CHAT) is None
    assert list(tmp_path.iterdir()) == []
    await save_turns(store, CHAT, "a")
    (tmp_path / "sessions" / "lock").unlink()  # as in a copy of the logs alone
    async with aclosing(FileCheckpointStore(tmp_path / "sessions")) as other:
        assert len(await other.list(ALICE)) == 1
    assert list((tmp_path / "sessions").iterdir()) == [the_log(tmp_path)]


def the_log(tmp_path):
    (path,) = (tmp_path / "sessions").glob("*.log")
    return path


async def test_a_write_that_was_cut_at_any_byte_is_cut_off(tmp_path):
    path, folder = tmp_path / "whole", tmp_path / "sessions"
    async with aclosing(FileCheckpointStore(folder)) as store:
        first = await save_turns(store, CHAT, "c1", "c2")
        sound = the_log(tmp_path).stat().st_size
        await save(store, CHAT, "c3", "tea", after=first)
        due = (await everything(store, CHAT))[1:]
    data = the_log(tmp_path).read_bytes()
    path.write_bytes(data)
    chance = random.Random(3)
    for cut in range(sound, len(data)):
        # A crash leaves a part of the bytes, or the right number of them with some not written.
        torn = data[:cut] if cut % 2 else data[:cut] + chance.randbytes(len(data) - cut)
        the_log(tmp_path).write_bytes(torn)
        async with aclosing(FileCheckpointStore(folder)) as store:
            assert await everything(store, CHAT) == due
            assert the_log(tmp_path).stat().st_size == len(torn)  # a reader repairs nothing
            await save(store, CHAT, "c3", "milk", after=first)
            assert (await texts_of(store, CHAT, "c3"))[-1] == "milk"
        async with aclosing(FileCheckpointStore(folder)) as store:
            assert await ids_in(store, CHAT) == ["c3", "c2", "c1"]


async def test_damage_before_the_end_is_an_error_and_not_a_cut(tmp_path, store):
    await save_turns(store, CHAT, "c1", "c2", "c3")
    path = the_log(tmp_path)
    data = path.read_bytes()
    _, end = frames_of(data, "x")
    assert end == len(data)
    for place in range(0, data.rindex(b"\xffLM\n") - 1, 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        async with aclosing(FileCheckpointStore(tmp_path / "sessions")) as other:
            with pytest.raises(StoreError, match="damaged"):
                await other.load(CHAT)
            with pytest.raises(StoreError, match="damaged"):
                await save(other, CHAT, "c4", "x")
        assert path.stat().st_size == len(data)


async def test_a_file_of_another_program_or_user_is_not_touched(tmp_path, store):
    await save(store, CHAT, "c1", "tea")
    path = the_log(tmp_path)
    mine = path.read_bytes()
    await store.forget(ALICE)
    for foreign, says in ((b"not a log", "not a log of Loom"), (b"", "not a log of Loom")):
        path.write_bytes(foreign)
        with pytest.raises(StoreError, match=says):
            await save(store, CHAT, "c1", "tea")
        assert path.read_bytes() == foreign
    path.write_bytes(mine)
    await save(store, BOB.for_session("chat"), "c1", "tea")
    (theirs,) = [file for file in path.parent.glob("*.log") if file != path]
    theirs.write_bytes(mine)
    async with aclosing(FileCheckpointStore(path.parent)) as other:
        with pytest.raises(StoreError, match="another user"):
            await other.load(BOB.for_session("chat"))


async def test_no_id_names_a_file(tmp_path, store):
    (tmp_path / "up.log").write_text("outside")
    names = sorted({id for pair in NAMES for id in pair})
    for name in names:
        await save(store, Scope(name, name, name), "../x", name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sessions", "up.log"]
    files = sorted(path.name for path in (tmp_path / "sessions").iterdir())
    # Lower-case hexadecimal digits mean the same on every file system.
    assert files == sorted({file.casefold() for file in files})
    assert len(files) == len(names) + 1
    assert all(set(file.removesuffix(".log")) <= set("0123456789abcdef") for file in files if file != "lock")


async def test_forgetting_leaves_no_byte(tmp_path, store):
    other = ALICE.for_session("other")
    await save_turns(store, other, "c1")
    first = await save(store, CHAT, "canary-id", "canary one", "shared")
    await save(store, CHAT, "c2", "canary two", after=first)
    await save(store, other, "c2", "shared", after=await store.load(other))
    await store.delete(CHAT, "c2")
    due = await everything(store, other)
    assert the_log(tmp_path).read_bytes().count(b"canary") >= 3
    assert (await store.forget(CHAT)).pending == ()
    assert b"canary" not in the_log(tmp_path).read_bytes()
    assert await everything(store, other) == due
    await store.forget(ALICE)
    assert [path.name for path in (tmp_path / "sessions").iterdir()] == ["lock"]


async def test_forgetting_removes_what_was_only_deleted(tmp_path, store):
    await save_turns(store, ALICE.for_session("other"), "c1")
    await save(store, CHAT, "c1", "canary")
    await store.delete(CHAT, "c1")
    assert b"canary" in the_log(tmp_path).read_bytes()
    await store.forget(CHAT)
    assert b"canary" not in the_log(tmp_path).read_bytes()


async def test_saving_writes_what_is_new_and_equal_parts_once(tmp_path, store):
    text = "x" * 10_000
    first = await save(store, CHAT, "c0", text)
    size = the_log(tmp_path).stat().st_size
    for n in range(1, 20):
        first = await save(store, CHAT, f"c{n}", text, after=first)
        grown, size = the_log(tmp_path).stat().st_size - size, the_log(tmp_path).stat().st_size
        assert grown < 500
    assert await texts_of(store, CHAT, "c19") == [text] * 20
    fork = await store.fork(CHAT, "c19", session_id="fork")
    assert the_log(tmp_path).stat().st_size - size < 500
    assert await texts_of(store, ALICE.for_session("fork"), fork.id) == [text] * 20


async def test_deleting_gives_the_space_back(tmp_path, store):
    other = ALICE.for_session("other")
    await save_turns(store, other, "c1", "c2")
    due = await everything(store, other)
    for n in range(200):
        await save(store, CHAT, f"c{n}", f"{n} " * 500)
        if n % 10 == 9:
            await store.prune(CHAT, keep=1)
    assert the_log(tmp_path).stat().st_size < 150_000  # 400,000 bytes came
    assert await texts_of(store, CHAT, "c199") == ["199 " * 500]
    assert await everything(store, other) == due


async def test_a_full_disk_loses_nothing_and_the_next_save_works(tmp_path, store, monkeypatch):
    await save_turns(store, ALICE.for_session("other"), "c1")
    first = await save_turns(store, CHAT, "c1", "c2")
    before = await everything(store, ALICE)
    write = os.pwrite

    def half(handle, data, offset):
        if len(data) < 50:
            raise OSError(28, "No space left on device")
        return write(handle, data[: len(data) // 2], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        with pytest.raises(StoreUnavailable, match="No space left"):
            await save(store, CHAT, "c3", "tea", after=first)
        with pytest.raises(StoreUnavailable):
            await store.forget(CHAT)
    assert await everything(store, ALICE) == before
    await save(store, CHAT, "c3", "tea", after=first)
    assert len(await texts_of(store, CHAT, "c3")) == 5


async def test_a_held_lock_is_waited_for_and_then_unavailable(tmp_path, store, monkeypatch):
    await save(store, CHAT, "c1", "tea")
    monkeypatch.setattr(checkpoints, "DEADLINE_SECONDS", 0.0)
    refused = pytest.raises(StoreUnavailable, match="held by another process")
    with checkpoints.locked(tmp_path / "sessions" / "lock", exclusive=True), refused:
        await store.load(CHAT)
    with checkpoints.locked(tmp_path / "sessions" / "lock", exclusive=False):
        assert await ids_in(store, CHAT) == ["c1"]
        with pytest.raises(StoreUnavailable):
            await store.delete(CHAT, "c1")


async def test_a_newer_format_is_refused(tmp_path, store):
    await save(store, CHAT, "c1", "tea")
    path = the_log(tmp_path)
    frames, _ = frames_of(path.read_bytes(), "x")
    newer = frames[0][1].replace(b'"format":2', b'"format":3')
    path.write_bytes(framed(newer) + b"".join(framed(payload) for _, payload in frames[1:]))
    async with aclosing(FileCheckpointStore(path.parent)) as other:
        with pytest.raises(FormatTooNew, match="upgrade Loom"):
            await other.load(CHAT)
        with pytest.raises(FormatTooNew):
            await save(other, CHAT, "c2", "x")


def write_turns(folder, name, turns):
    """Save turns in one session with another process, each time after what is there."""

    async def run():
        async with aclosing(FileCheckpointStore(folder)) as store:
            done = 0
            while done < turns:
                last = await store.load(CHAT)
                id, head = (
                    f"{name}{done}",
                    last.id if last else None,
                )  # what this process knows, not what is there by now
                position = last.position + 1 if last else 1
                turn = a_checkpoint(id, session_id=CHAT.session_id, position=position, parent=head)
                try:
                    await store.save(CHAT, turn, entries=[a_message(f"{id}.0", name)], head=head)
                    done += 1
                except StoreConflict:
                    continue

    anyio.run(run)


async def test_two_processes_lose_no_turn_of_each_other(tmp_path, store):
    context = multiprocessing.get_context("spawn")
    folder = tmp_path / "sessions"
    processes = [context.Process(target=write_turns, args=(folder, name, 25)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    last = await store.load(CHAT)
    said = await texts_of(store, CHAT, last.id)
    assert (said.count("a"), said.count("b")) == (25, 25)
