"""Laws of isolation: nothing forgotten comes back, no user sees another.

A memory is stopped at each call of its store, before and after it, and there a record, its session or its user is
forgotten: by another memory on the same place, as another process would, or by a task that uses the same memory. And
a memory that forgets is stopped in the same way, and there another one makes something of what is to go.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import anyio
import anyio.to_thread
import pytest

from loom.core.filter import Eq
from loom.core.record import Fact, Layer, Record
from loom.core.scope import Scope
from loom.errors import LoomError, NotFound
from loom.protocols.memory_store import (
    HybridSearch,
    KeepsJobs,
    KeepsKeys,
    KeepsVectors,
    MemoryStore,
    Prunes,
    Query,
    Touches,
)
from loom.testing.conformance.suite import DAY, TWINS, Suite, a_block, a_fact, a_job, an_episode
from loom.testing.fakes import START, Interrupter

WORD = "Zebra4711"
_SESSION = "talk"
_TURNS = 60  # of the event loop that a forgetting task gets before the interrupted call goes on


class Memories(NamedTuple):
    """Two memories on one store. They share nothing else in this process."""

    one: Any
    other: Any


@dataclass(frozen=True, slots=True)
class Scene:
    """A user of whom something is to be forgotten: the id of the turn, and the memory that is working."""

    memory: Any
    user: str
    said: str
    other: str
    """The id of another turn, which says where the user lives, too."""

    async def records(self) -> list[Record]:
        """Everything that is stored of the user."""
        return list(await self.memory.store.list(Scope(self.memory.namespace, self.user), limit=10_000))


_Call: TypeAlias = Callable[[Scene], Awaitable[Any]]
_Forget: TypeAlias = Callable[[Any, Scene], Awaitable[Any]]


async def _forget_record(memory: Any, scene: Scene) -> None:
    await memory.forget(scene.said, user_id=scene.user)


async def _forget_facts(memory: Any, scene: Scene) -> None:
    ids = [r.id for r in await scene.records() if isinstance(r, Fact) and WORD in r.text and "~" not in r.id]
    await memory.forget(scene.said, *ids, user_id=scene.user)


async def _forget_session(memory: Any, scene: Scene) -> None:
    await memory.forget(user_id=scene.user, session_id=_SESSION)


async def _forget_user(memory: Any, scene: Scene) -> None:
    await memory.forget(user_id=scene.user)


async def _remember(scene: Scene) -> None:
    done = await scene.memory.remember("Shall we go on?", user_id=scene.user, session_id=_SESSION)
    assert done.kept, "the turn was lost"


async def _promote(scene: Scene) -> None:
    with suppress(NotFound):
        await scene.memory.promote(scene.said, user_id=scene.user)


async def _mark(scene: Scene) -> None:
    with suppress(NotFound):
        await scene.memory.mark(scene.said, user_id=scene.user, importance=0.9)


async def _import(scene: Scene) -> None:
    """Read back an export that holds the turns around the forgotten one, and not that one itself."""
    lines = [line async for line in scene.memory.export(user_id=scene.user)]
    await scene.memory.import_([line for line in lines if WORD not in line], user_id=scene.user)


_CALLS: dict[str, tuple[_Call, _Forget]] = {
    "remember": (_remember, _forget_record),
    "metabolize": (lambda scene: scene.memory.metabolize(user_id=scene.user), _forget_record),
    "promote": (_promote, _forget_record),
    "import": (_import, _forget_record),
    "end a session": (lambda s: s.memory.end_session(user_id=s.user, session_id=_SESSION), _forget_record),
    "mark": (_mark, _forget_record),
    "instruct": (lambda s: s.memory.instruct("Always answer in French.", user_id=s.user), _forget_facts),
    "assert a fact": (lambda s: s.memory.assert_fact("user", "lives_in", "Paris", user_id=s.user), _forget_facts),
    "forget another": (lambda s: s.memory.forget(s.other, user_id=s.user), _forget_facts),
}


_OF_FACTS = ("assert a fact", "forget another", "instruct")
"""Calls that rewrite facts which are known already."""


class ErasureSuite(Suite):
    """Subclass it and override the fixture `memories`; `stride` leaves out steps where a store is slow."""

    stride = 1

    @pytest.fixture
    async def memories(self) -> Memories:
        """Two memories on one place with nothing in it; closed afterwards."""
        raise NotImplementedError(f"{type(self).__name__} has to override the fixture `memories`")

    @pytest.mark.parametrize("call", _CALLS)
    async def test_what_another_forgets_at_any_step_stays_forgotten(self, memories: Memories, call: str) -> None:
        """By another memory, which the first one cannot know of."""
        act, forget = _CALLS[call]
        learnt = call in _OF_FACTS
        await self._at_every_step(memories.one, act, lambda scene: forget(memories.other, scene), learnt=learnt)

    @pytest.mark.parametrize("call", _CALLS)
    async def test_what_is_forgotten_at_any_step_stays_forgotten(self, memories: Memories, call: str) -> None:
        """By a task that uses the same memory; where it has to wait for the call, it waits."""
        act, forget = _CALLS[call]
        learnt = call in _OF_FACTS
        await self._at_every_step(
            memories.one, act, lambda scene: forget(memories.one, scene), slow=2, beside=True, learnt=learnt
        )

    @pytest.mark.parametrize("call", ["remember", "metabolize", "import", "end a session"])
    @pytest.mark.parametrize("forget", [_forget_session, _forget_user], ids=["session", "user"])
    async def test_a_session_and_a_user_stay_forgotten(self, memories: Memories, call: str, forget: _Forget) -> None:
        """At any step; a turn that is remembered beside it is kept or forgotten, and never an error."""
        await self._at_every_step(memories.one, _CALLS[call][0], lambda scene: forget(memories.other, scene), slow=2)

    @pytest.mark.parametrize("call", ["remember", "metabolize", "import"])
    @pytest.mark.parametrize(
        "forget", [_forget_record, _forget_session, _forget_user], ids=["record", "session", "user"]
    )
    async def test_what_another_makes_at_any_step_of_forgetting_goes_too(
        self, memories: Memories, call: str, forget: _Forget
    ) -> None:
        """The other way round: a second memory does its work between the reads and the writes of a forget."""
        await self._at_every_step(
            memories.one,
            lambda scene: forget(memories.one, scene),
            lambda scene: _CALLS[call][0](replace(scene, memory=memories.other)),
        )

    async def test_the_next_turn_does_not_bring_back_what_another_forgot(self, memories: Memories) -> None:
        """Nothing happens at the same time: the first memory simply does not know."""
        for number, place in enumerate(range(4)):
            scene = await _scene(memories.one, f"next{number}", before=place)
            await memories.other.forget(scene.said, user_id=scene.user)
            await _remember(scene)
            assert await _left(scene) == []

    async def test_a_receipt_of_one_record_says_what_is_pending(self, memories: Memories) -> None:
        """What the store cannot remove at once is named for a record as it is for a user."""
        one = await _scene(memories.one, "single")
        whole = await _scene(memories.one, "whole")
        by_id = await memories.one.forget(one.said, user_id=one.user)
        by_user = await memories.one.forget(user_id=whole.user)
        assert by_id.removed["episode"] >= 1
        assert set(by_id.pending) == set(by_user.pending)

    @pytest.mark.parametrize("forgets", [True, False], ids=["forget inside", "forget outside"])
    async def test_old_texts_of_a_block_go_with_it_at_any_step(self, memories: Memories, *, forgets: bool) -> None:
        """A block is forgotten at any step of changing it, and changed at any step of forgetting it."""

        async def forget(memory: Any, user: str) -> None:
            await memory.forget("block:notes", user_id=user)

        async def change(memory: Any, user: str) -> None:
            await memory.set_block("notes", "clean", user_id=user)

        inside, outside = (forget, change) if forgets else (change, forget)
        steps, step = Interrupter(), 0
        steps.watch(memories.one.store)
        while True:
            scene = Scene(memories.one, f"{'in' if forgets else 'out'}{step}", "", "")
            for text in (WORD, f"{WORD} again", f"{WORD} once more"):
                await memories.one.set_block("notes", text, user_id=scene.user)

            async def interrupt(user: str = scene.user) -> None:
                await inside(memories.other, user)

            async with steps.counting(step, interrupt):
                await outside(memories.one, scene.user)
            if not steps.reached:
                break
            assert await _left(scene) == [], f"interrupted at step {step}"
            step += self.stride
        assert step, "the call made no step at all"
        await memories.one.forget(user_id=scene.user)
        assert await _left(scene) == []

    async def _at_every_step(
        self, memory: Any, act: _Call, interrupting: _Call, *, slow: int = 1, beside: bool = False, learnt: bool = False
    ) -> None:
        """Do the call again and again, interrupted at one step of it after the other, until it has no more steps.

        What is `slow` leaves out more steps. With `learnt`, facts of what is to be forgotten are known before.
        """
        steps = Interrupter()
        steps.watch(memory.store)
        step = 0
        while True:
            scene = await _scene(memory, f"user{step}")
            if learnt:
                await memory.metabolize(user_id=scene.user)
            async with anyio.create_task_group() as tasks:

                async def interrupt(scene: Scene = scene, tasks: Any = tasks) -> None:
                    if not beside:
                        await interrupting(scene)
                        return
                    done = anyio.Event()
                    tasks.start_soon(_and_set, lambda: interrupting(scene), done)
                    for _ in range(_TURNS):
                        if done.is_set():
                            break
                        await anyio.to_thread.run_sync(lambda: None)  # a moment for threads

                async with steps.counting(step, interrupt):
                    await act(scene)
            if not steps.reached:
                assert step, "the call made no step at all"
                return
            assert await _left(scene) == [], f"interrupted at step {step}"
            await memory.metabolize(user_id=scene.user)
            assert await _left(scene) == [], f"interrupted at step {step}, and after metabolism"
            step += slow * self.stride


async def _scene(memory: Any, user: str, *, before: int = 2) -> Scene:
    """A user who said the word, and so many turns after it; what was said before is learnt already."""
    other = (await memory.remember("I live in Oslo.", user_id=user, session_id="earlier")).kept[0].id
    await memory.remember("Never mention cats.", user_id=user, session_id="earlier")
    await memory.metabolize(user_id=user)
    said = (await memory.remember(f"I live in {WORD}.", user_id=user, session_id=_SESSION)).kept[0].id
    for number in range(before):
        await memory.remember(f"It rains, I said {number}.", user_id=user, session_id=_SESSION)
    return Scene(memory, user, said, other)


async def _left(scene: Scene) -> list[str]:
    """What still holds the word: records, the keys that find them, and what a search finds."""
    store: Any = scene.memory.store
    user = Scope(scene.memory.namespace, scene.user)
    records = await scene.records()
    left = [f"record {record.id}: {record.text}" for record in records if WORD in record.text]
    if hasattr(store, "search_keys"):
        found = await store.search_keys(user, *(record.id for record in records))
        left += [f"key {kind} of {id}" for id, how in found.items() for kind, text in how.keys.items() if WORD in text]
    hits = await store.search(user, Query(text=WORD, limit=100, history=True, archived=True))
    left += [f"hit {hit.item.id}" for hit in hits]
    jobs = await store.open_jobs(user) if hasattr(store, "open_jobs") else ()
    return [*left, *(f"job {job.id}" for job in jobs if WORD in repr(job))]


async def _and_set(call: Callable[[], Awaitable[Any]], done: anyio.Event) -> None:
    try:
        await call()
    except LoomError as error:  # a task that fails would only cancel the others
        raise AssertionError(f"forgetting failed: {error}") from error
    finally:
        done.set()


# Non-interference: random traces of calls by two users, and what one of them observes.

Op: TypeAlias = tuple[str, str, Any]
"""One call: the user, the method and its arguments."""

WORDS = ("tea", "coffee", "piano", "winter", "garden", "zurich")
_WEIGHTS = {
    "put": 54, "search": 28, "list": 3, "count": 3, "delete": 4, "forget": 1, "prune": 2, "touch": 3, "keys": 3,
    "vectors": 3, "jobs": 3,
}  # fmt: skip
DIMENSION = 3


def random_trace(rng: random.Random, *, steps: int) -> list[Op]:
    """Calls of A and B in a random order; half of them write and a quarter search."""
    names = rng.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()), k=steps)
    return [(rng.choice("AB"), name, _argument(rng, name)) for name in names]


def _argument(rng: random.Random, name: str) -> Any:
    id = f"r{rng.randrange(6)}"
    text = " ".join(rng.choices(WORDS, k=rng.randint(1, 4)))
    match name:
        case "put":
            return _records(rng, id, text)
        case "search":
            vector = [rng.uniform(0.1, 1) for _ in range(DIMENSION)] if rng.random() < 0.3 else None
            return Query(text=text, vector=vector, limit=rng.choice((1, 3, 50)), history=rng.random() < 0.5)
        case "vectors":
            return {id: [rng.uniform(0.1, 1) for _ in range(DIMENSION)]}
        case "keys":
            return {id: {rng.choice(("around", "fact")): text}}
        case "prune":
            return rng.randrange(3)
        case _:
            return id


def _records(rng: random.Random, id: str, text: str) -> list[Record]:
    session = rng.choice((None, "s1"))
    at = START + rng.randrange(5) * DAY
    episode = an_episode(id, text, session_id=session, recorded_at=at, layer=Layer(rng.choice((1, 2))))
    fact = a_fact(f"f{rng.randrange(4)}", text, superseded_at=rng.choice((None, START + DAY)))
    block = a_block(version=rng.choice((1, 2)), text=text)
    return rng.choice(([episode], [episode, replace(episode, id=f"{id}b")], [fact], [block]))


async def check_non_interference(store: MemoryStore, seed: int, *, steps: int = 40) -> None:
    """Run one trace with both users and again without the second; the first must see the same.

    Each seed has its own namespaces, so that one store takes any number of them.
    """
    mine, theirs = TWINS[seed % len(TWINS)]
    trace = random_trace(random.Random(seed), steps=steps)  # noqa: S311
    both, alone = f"both {seed}", f"alone {seed}"
    together = await observe(store, trace, {"A": Scope(both, mine), "B": Scope(both, theirs)})
    without = await observe(store, [op for op in trace if op[0] == "A"], {"A": Scope(alone, mine)})
    assert together == without, f"seed {seed}"


async def observe(store: MemoryStore, trace: Sequence[Op], scopes: Mapping[str, Scope]) -> list[Any]:
    """Run a trace; returns everything that A saw, in order."""
    if isinstance(store, KeepsVectors):
        await store.bind("trace:1:3", DIMENSION)
    seen: list[Any] = []
    for who, name, argument in trace:
        try:
            result = await _call(store, scopes[who], name, argument)
        except LoomError as error:
            result = type(error).__name__
        if who == "A":
            seen.append((name, result))
    return seen


async def _call(store: MemoryStore, scope: Scope, name: str, argument: Any) -> Any:
    match name:
        case "put":
            return await store.put(scope, *argument)
        case "search":
            query = argument if isinstance(store, KeepsVectors) else replace(argument, vector=None)
            hits = await store.search(scope, query)
            if isinstance(store, HybridSearch) and query.vector is not None and query.text.strip():
                hits += await store.search_hybrid(scope, query, near=3)
            return [(hit.item, hit.score, dict(hit.why)) for hit in hits]
        case "list":
            return await store.list(scope, where=Eq("kind", "episode")), await store.list(scope.for_session("s1"))
        case "count":
            return await store.count(scope), await store.get(scope, argument)
        case "delete":
            return await store.delete(scope, argument)
        case "forget":
            return (await store.forget(scope)).removed
        case _:
            return await _call_power(store, scope, name, argument)


async def _call_power(store: MemoryStore, scope: Scope, name: str, argument: Any) -> Any:
    if name == "prune" and isinstance(store, Prunes):
        return await store.prune(scope, layer=Layer.L1, keep=argument)
    if name == "touch" and isinstance(store, Touches):
        return await store.touch(scope, argument, at=START + DAY)
    if name == "keys" and isinstance(store, KeepsKeys):
        return await store.put_keys(scope, argument)
    if name == "vectors" and isinstance(store, KeepsVectors):
        return await store.put_vectors(scope, argument)
    if name == "jobs" and isinstance(store, KeepsJobs):
        new = await store.write(scope, jobs=[a_job(argument, scope=scope)])
        leases = await store.lease(now=START + DAY, until=START + 2 * DAY, limit=9, scope=scope)
        return new, [(lease.job.id, lease.job.attempts) for lease in leases], await store.pending(scope)
    return None
