"""Non-interference: random traces of calls by two users, and what one of them observes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from loom.core.filter import Eq
from loom.core.record import Layer, Record
from loom.core.scope import Scope
from loom.errors import LoomError
from loom.protocols.jobs import KeepsJobs
from loom.protocols.memory_store import KeepsKeys, KeepsVectors, MemoryStore, Prunes, Query, SearchesApart, Touches
from loom.testing.conformance.samples import DAY, START, TWINS, a_block, a_fact, a_job, an_episode

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
            if isinstance(store, SearchesApart) and query.vector is not None and query.text.strip():
                hits += await store.search_apart(scope, query, near=3)
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
