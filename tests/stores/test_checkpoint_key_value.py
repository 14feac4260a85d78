"""Anything with save, load, list and delete by key is a checkpoint store, and keeps every law of one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from hypothesis import settings

from loom import Agent, KeyValueCheckpointStore, Scope, Session, open_checkpoints
from loom.core.clock import Clock
from loom.errors import StoreConflict, StoreError, StoreUnavailable, UsageError
from loom.protocols.checkpoint_store import CheckpointStore, Forks, PrunesCheckpoints
from loom.testing import FakeClock, ScriptedModel
from loom.testing.conformance import CheckpointStoreMachine, CheckpointStoreSuite
from loom.testing.conformance.checkpoint_store import CHAT, a_checkpoint, save, save_turns
from tests.stores.session_ids import check_session_ids

pytestmark = pytest.mark.anyio


class Bucket:
    """A fake of a bucket: blocking calls, bytes, and an error of its own where a key is missing."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[str] = []

    def save(self, key: str, value: bytes) -> None:
        self.calls.append("save")
        assert isinstance(value, bytes)
        self.objects[key] = value

    def load(self, key: str) -> bytes:
        self.calls.append("load")
        return self.objects[key]

    def list(self, prefix: str) -> Iterable[str]:
        self.calls.append("list")
        return [key for key in sorted(self.objects, reverse=True) if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        self.calls.append("delete")
        del self.objects[key]


class Table:
    """A fake of a table of texts: coroutines, list() without an argument, None where a key is missing."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {"other/key": "of somebody else", "loom/checkpoints/odd": "?"}

    async def save(self, key: str, value: str) -> None:
        assert isinstance(value, str)
        self.rows[key] = value

    async def load(self, key: str) -> str | None:
        return self.rows.get(key)

    async def list(self) -> list[str]:
        return list(self.rows)

    async def delete(self, key: str) -> None:
        self.rows.pop(key, None)


class TestBucket(CheckpointStoreSuite):
    @pytest.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[CheckpointStore]:
        async with aclosing(KeyValueCheckpointStore(Bucket(), clock=clock)) as store:
            yield store


class TestTable(CheckpointStoreSuite):
    @pytest.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[CheckpointStore]:
        values: Any = Table()
        async with aclosing(KeyValueCheckpointStore(values, text=True, clock=clock)) as store:
            yield store


class BucketMachine(CheckpointStoreMachine):
    bucket: Bucket | None = None

    @asynccontextmanager
    async def open_store(self, clock: Clock) -> AsyncGenerator[CheckpointStore]:
        self.bucket = self.bucket or Bucket()
        async with aclosing(KeyValueCheckpointStore(self.bucket, clock=clock)) as store:
            yield store


TestBucketModel = BucketMachine.TestCase
TestBucketModel.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)

stores: list[CheckpointStore] = [KeyValueCheckpointStore(Bucket())]
forking: list[Forks] = [KeyValueCheckpointStore(Bucket())]
pruning: list[PrunesCheckpoints] = [KeyValueCheckpointStore(Bucket())]


async def test_a_session_lives_in_a_bucket() -> None:
    bucket = Bucket()
    model = ScriptedModel(lambda request: f"answer {len(request.messages)}")
    first = Session(model=model, checkpoints=open_checkpoints(bucket), session_id="s1")
    await first.send("hello")
    await first.send("and again")
    store = KeyValueCheckpointStore(bucket)
    found = await store.load("s1")
    assert found is not None
    assert found.messages == first.messages
    again = Session(model=model, checkpoints=store, session_id="s1")
    await again.restore()
    await again.send("third")
    fork = await again.fork(1)
    assert len(fork.messages) == 2
    assert await store.delete("s1")
    assert await store.load(fork.id) is not None
    await store.forget(Scope(user_id="default"))
    assert bucket.objects == {}, "nothing is left of a user who is forgotten"


async def test_an_agent_saves_in_a_bucket_and_leaves_it_open() -> None:
    bucket = Bucket()
    for _ in range(2):
        async with Agent(model=ScriptedModel(["hi"]), memory=None, checkpoints=bucket) as agent:
            await agent.run("hello", session_id="s1")
    found = await KeyValueCheckpointStore(bucket).load("s1")
    assert found is not None
    assert (found.turn, len(found.messages)) == (2, 4)


async def test_a_session_id_is_a_scope_of_the_default_user() -> None:
    await check_session_ids(KeyValueCheckpointStore(Bucket()))


async def test_a_save_is_one_value_and_costs_what_is_new() -> None:
    bucket = Bucket()
    store = KeyValueCheckpointStore(bucket)
    await save_turns(store, CHAT, *(f"c{n}" for n in range(50)))
    sizes = [len(value) for value in bucket.objects.values()]
    assert len(sizes) == 50
    assert max(sizes) < 2 * min(sizes)
    bucket.calls.clear()
    assert await store.load(CHAT) is not None
    assert len(await store.history(CHAT, "c49")) == 100
    assert bucket.calls == ["list", "list"], "what was written here is known"


async def test_no_id_can_name_a_key_of_another() -> None:
    bucket = Bucket()
    store = KeyValueCheckpointStore(bucket, prefix="mine/")
    for odd in ("../up", "a/b", "a.b", "x" * 500, "\u0000"[:0] + "é\n"):
        await save(store, Scope(user_id=odd, session_id=odd), odd, "tea")
    assert all(key.startswith("mine/") and key.isascii() and len(key) < 300 for key in bucket.objects)


class Rival(Bucket):
    """Another process writes between the look and the write of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.other: Callable[[], Any] | None = None

    async def save(self, key: str, value: bytes) -> None:  # type: ignore[override]
        super().save(key, value)
        if (other := self.other) is not None:
            self.other = None
            await other()


async def test_of_two_writers_at_the_same_moment_none_is_overwritten_in_silence() -> None:
    bucket = Rival()
    one, two = KeyValueCheckpointStore(bucket), KeyValueCheckpointStore(bucket)
    first = await save(one, CHAT, "c1", "tea")

    async def meanwhile() -> None:
        with pytest.raises(StoreConflict):  # it sees the first one's value already
            await two.save(CHAT, a_checkpoint("c3", position=1, parent="c1"), entries=(), head="c1")

    bucket.other = meanwhile
    await save(one, CHAT, "c2", "coffee", after=first)
    assert [c.id for c in await two.list(CHAT)] == ["c2", "c1"]


class Late(Bucket):
    """Another process continues the session after this one looked and before it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.put_first: dict[str, bytes] = {}

    def save(self, key: str, value: bytes) -> None:
        self.objects |= self.put_first
        self.put_first = {}
        super().save(key, value)


async def test_a_session_that_was_continued_between_look_and_write_is_a_conflict() -> None:
    bucket = Late()
    one = KeyValueCheckpointStore(bucket)
    first = await save(one, CHAT, "c1", "tea")
    elsewhere = Bucket()
    elsewhere.objects = dict(bucket.objects)
    await save(KeyValueCheckpointStore(elsewhere), CHAT, "c3", "milk", after=first)
    bucket.put_first = elsewhere.objects
    with pytest.raises(StoreConflict, match="last saved as 'c3'"):
        await save(one, CHAT, "c2", "coffee", after=first)
    assert [c.id for c in await one.list(CHAT)] == ["c3", "c1"]


async def test_a_deletion_that_broke_off_is_finished_by_the_next() -> None:
    bucket = Bucket()
    store = KeyValueCheckpointStore(bucket)
    await save_turns(store, CHAT, "c1", "c2", "c3")
    real, bucket.delete = bucket.delete, _down  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await store.delete(CHAT, "c1")
    bucket.delete = real  # type: ignore[method-assign]
    assert await store.load(CHAT, "c1") is None, "deleted is deleted"
    assert len(await store.history(CHAT, "c3")) == 6
    await store.forget(CHAT)
    assert bucket.objects == {}


def _down(key: str) -> None:
    raise ConnectionError("the network is down")


class Broken:
    def save(self, key: str, value: bytes) -> None:
        raise ConnectionError("the network is down")

    def load(self, key: str) -> int:
        return 5

    def list(self, prefix: str) -> str:
        return prefix

    def delete(self, key: str) -> None:
        raise ConnectionError("the network is down")


async def test_what_a_key_value_store_does_wrong_is_told() -> None:
    broken: Any = Broken()
    with pytest.raises(UsageError, match="return keys"):
        await KeyValueCheckpointStore(broken).load(CHAT)
    with pytest.raises(UsageError, match="has no save, load, list, delete"):
        KeyValueCheckpointStore(object())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no"):
        open_checkpoints(object())  # type: ignore[arg-type]
    bucket = Bucket()
    store = KeyValueCheckpointStore(bucket)
    await save(store, CHAT, "c1", "tea")
    bucket.load = broken.load  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="bytes or text"):
        await KeyValueCheckpointStore(bucket).load(CHAT)
    bucket.save = broken.save  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="network is down"):
        await store.save(CHAT, a_checkpoint("c2", position=1, parent="c1"), entries=(), head="c1")
    await store.aclose()
    with pytest.raises(UsageError, match="closed"):
        await store.load(CHAT)


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"format": 1}', b"\xff", b'{"format": 1, "checkpoint": 5}'])
async def test_a_damaged_value_is_an_error_of_the_store(value: bytes) -> None:
    bucket = Bucket()
    await save(KeyValueCheckpointStore(bucket), CHAT, "c1", "tea")
    bucket.objects = dict.fromkeys(bucket.objects, value)
    with pytest.raises(StoreError):
        await KeyValueCheckpointStore(bucket).load(CHAT)


async def test_a_log_with_a_hole_is_an_error_and_never_shorter() -> None:
    bucket = Bucket()
    await save_turns(KeyValueCheckpointStore(bucket), CHAT, "c1", "c2", "c3")
    del bucket.objects[sorted(bucket.objects)[1]]
    with pytest.raises(StoreError, match="missing"):
        await KeyValueCheckpointStore(bucket).history(CHAT, "c3")
