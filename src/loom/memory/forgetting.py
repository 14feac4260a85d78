"""Forgetting: what was learnt from records goes with them, and what they had closed holds again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from loom.core.filter import Eq
from loom.core.record import Episode, Fact, Provenance, Receipt, Record
from loom.core.scope import Scope
from loom.memory.entities import Aliases
from loom.memory.facts import behind, settled_without, versions_of
from loom.memory.listing import every
from loom.memory.metabolism import Store
from loom.memory.neighbours import Neighbours
from loom.memory.standing import own_words
from loom.protocols.memory_store import Scrubs


@dataclass(frozen=True, slots=True)
class _Loss:
    """What is deleted, and the facts that are written in its place."""

    gone: dict[str, Record]
    facts: tuple[Fact, ...]


async def forget_records(
    store: Store, user: Scope, ids: Iterable[str], *, neighbours: Neighbours, now: datetime
) -> Receipt:
    """Remove records with what was made from them, and their words from the keys of the turns around them.

    A fact that something else taught, too, only loses a source.
    """
    loss = _loss([record async for record in every(store, user)], set(ids), now)
    episodes = [record for record in loss.gone.values() if isinstance(record, Episode)]
    keys = await neighbours.keys_among(episodes, user=user, without=loss.gone)
    await store.write(user, put=loss.facts, delete=list(loss.gone), keys=keys)
    pending = await store.scrub() if isinstance(store, Scrubs) else ()
    return Receipt(removed=dict(Counter(record.kind for record in loss.gone.values())), pending=pending)


async def forget_session(store: Store, session: Scope, *, now: datetime) -> Receipt:
    """Remove the episodes of a session and what was learnt from them."""
    user = session.for_user()
    said = {record.id async for record in every(store, session, Eq("kind", "episode"))}
    loss = _loss([record async for record in every(store, user)], said, now)
    # What was learnt goes before the episodes: if this is broken off, doing it again finds what is left to do.
    learnt = {id: record for id, record in loss.gone.items() if id not in said}
    await store.write(user, put=loss.facts, delete=list(learnt))
    receipt = await store.forget(session)
    removed = Counter(receipt.removed) + Counter(record.kind for record in learnt.values())
    return Receipt(removed=dict(removed), pending=receipt.pending)


def _loss(records: Sequence[Record], ids: Collection[str], now: datetime) -> _Loss:
    """What is lost with these records."""
    gone = _with_made(records, ids)
    facts = [record for record in records if isinstance(record, Fact)]
    aliases = Aliases.of(facts)
    named = [fact for fact in facts if fact.id in ids]
    lost = {id for fact in named for id in behind(facts, fact, aliases=aliases)}
    episodes = {record.id: record for record in records if isinstance(record, Episode)}
    left = [_without_sources(fact, gone, episodes) for fact in facts]
    lost |= {fact.id for fact, old in zip(left, facts, strict=True) if old.sources and not fact.sources}
    lost = versions_of(facts, lost)
    settled = settled_without(left, lost, now=now, aliases=aliases)
    fewer = [fact for fact, old in zip(left, facts, strict=True) if fact is not old and fact.id not in lost]
    written = {fact.id: fact for fact in (*fewer, *settled)}
    return _Loss({r.id: r for r in records if r.id in gone or r.id in lost}, tuple(written.values()))


def _with_made(records: Sequence[Record], ids: Collection[str]) -> set[str]:
    """The ids, and those of the episodes that were made from one of them, at any depth."""
    gone = set(ids)
    made = [r for r in records if isinstance(r, Episode) and r.sources]
    while more := {r.id for r in made if r.id not in gone and not gone.isdisjoint(r.sources)}:
        gone |= more
    return gone


def _without_sources(fact: Fact, gone: Collection[str], episodes: Mapping[str, Episode]) -> Fact:
    left = [source for source in fact.sources if source not in gone]
    if len(left) == len(fact.sources):
        return fact
    left.sort(reverse=True)  # the first source decides between statements of one time: it is the greatest
    said = [own_words([episodes[source]]) for source in left if source in episodes]
    # It stays the user's word only while the user, or the program in his name, is among those who said it.
    is_others = left and len(said) == len(left) and all(part.origin != "user" for part in said)
    return replace(fact, sources=tuple(left), provenance=Provenance.derived(said) if is_others else fact.provenance)
