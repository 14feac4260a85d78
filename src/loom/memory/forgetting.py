"""Forgetting: what was learnt from records goes with them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from loom.core.filter import Eq
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.memory.listing import every, every_fact
from loom.protocols.memory_store import MemoryStore


async def forget_session(store: MemoryStore, session: Scope) -> Receipt:
    """Remove the episodes of a session and the facts that nothing else taught; other facts lose it as a source."""
    episodes = {record.id async for record in every(store, session, Eq("kind", "episode"))}
    facts = await _forget_facts(store, session.for_user(), episodes)
    receipt = await store.forget(session)
    removed = {**receipt.removed, "fact": facts} if facts else receipt.removed
    return Receipt(removed=removed, pending=receipt.pending)


async def _forget_facts(store: MemoryStore, user: Scope, gone: Collection[str]) -> int:
    taught = [fact for fact in await every_fact(store, user) if not set(fact.sources).isdisjoint(gone)]
    left = {fact.id: tuple(source for source in fact.sources if source not in gone) for fact in taught}
    # Facts before episodes: if this is broken off, doing it again finds what is left to do.
    await store.put(user, *(replace(fact, sources=left[fact.id]) for fact in taught if left[fact.id]))
    return await store.delete(user, *(id for id, sources in left.items() if not sources))
