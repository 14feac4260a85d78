"""Forgetting: what was learnt from records goes with them, and what they had closed holds again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from loom.core.record import Episode, Fact, Provenance, Receipt, Record
from loom.core.scope import Scope
from loom.memory.entities import Aliases
from loom.memory.episodes import episode_jobs
from loom.memory.facts import supporting_ids, resettle_without, versions_of
from loom.memory.guarded import retry_stale
from loom.memory.listing import every
from loom.memory.neighbours import Neighbours, Store
from loom.memory.standing import provenance_of
from loom.protocols.jobs import Job
from loom.protocols.memory_store import Scrubs

SESSIONS_LEFT = (
    "{count} saved conversation(s) of {user!r} are in the same place, and are not part of memory; "
    "Agent.forget(), or `loom forget`, removes them as well"
)


@dataclass(frozen=True, slots=True)
class _Removal:
    """What is deleted, and the facts that are written in its place."""

    gone: dict[str, Record]
    facts: tuple[Fact, ...]


async def forget_records(
    store: Store, user: Scope, ids: Iterable[str], *, neighbours: Neighbours, now: datetime
) -> Receipt:
    """Remove records with what was made from them, and their words from the keys of the turns around them.

    A fact that something else taught, too, only loses a source.
    """
    wanted = set(ids)
    return await _forget(store, user, lambda _: wanted, neighbours=neighbours, now=now)


async def forget_session(store: Store, session: Scope, *, neighbours: Neighbours, now: datetime) -> Receipt:
    """Remove the episodes of a session and what was learnt from them."""

    def chosen(records: Sequence[Record]) -> set[str]:
        return {r.id for r in records if isinstance(r, Episode) and r.session_id == session.session_id}

    return await _forget(store, session.for_user(), chosen, neighbours=neighbours, now=now)


async def forget_before(
    store: Store, scope: Scope, before: datetime, *, neighbours: Neighbours, now: datetime
) -> Receipt:
    """Remove what happened before a moment, and facts and blocks that were written before it; of a session, if named.

    A fact that was learnt from episodes goes with the last of them.
    """

    def is_older(record: Record) -> bool:
        if isinstance(record, Episode):
            return record.at < before and scope.session_id in {None, record.session_id}
        if scope.session_id is not None:
            return False
        if isinstance(record, Fact):
            return record.recorded_at < before and not (set(record.sources) & known)
        return record.updated_at < before

    def chosen(records: Sequence[Record]) -> set[str]:
        known.update(record.id for record in records if isinstance(record, Episode))
        return {record.id for record in records if is_older(record)}

    known: set[str] = set()
    return await _forget(store, scope.for_user(), chosen, neighbours=neighbours, now=now)


async def _forget(
    store: Store, user: Scope, chosen: Callable[[Sequence[Record]], set[str]], *, neighbours: Neighbours, now: datetime
) -> Receipt:
    """Remove the chosen ones of a user's records, in one step that stands on all that is there at that moment."""

    async def attempt(epoch: str) -> _Removal:
        records = [record async for record in every(store, user)]
        loss = _loss(records, chosen(records), now)
        if loss.gone or loss.facts:
            episodes = [record for record in loss.gone.values() if isinstance(record, Episode)]
            keys = await neighbours.keys_among(episodes, user=user, without=loss.gone)
            left = (record for record in records if record.id not in loss.gone)
            jobs = episode_jobs(loss.gone.values(), left, user, now)
            await store.write(user, put=loss.facts, delete=list(loss.gone), keys=keys, jobs=jobs, since=epoch)
        return loss

    loss = await retry_stale(store, user, attempt)
    if first := set(loss.gone):
        # What another process made of them between the read and the write is not among them; no more can follow.
        chosen = lambda _: first  # noqa: E731
        late = await retry_stale(store, user, attempt)
        loss = _Removal({**loss.gone, **late.gone}, loss.facts)
    pending = await store.scrub() if loss.gone and isinstance(store, Scrubs) else ()
    return Receipt(removed=dict(Counter(record.kind for record in loss.gone.values())), pending=pending)


async def rewrite(
    store: Store,
    user: Scope,
    new: Episode,
    *,
    neighbours: Neighbours,
    now: datetime,
    jobs: Sequence[Job],
    epoch: str,
    is_again: bool = False,
) -> None:
    """Write an episode in place of the one of its id, and remove what was made from that, in one step.

    `epoch` is that of before the old one was read; StaleWrite if something was removed since. A second call, with
    `is_again`, removes what another process made of the old text between the read and the write of the first, and does
    nothing if there is none of it. If it was made from the new text already, the job that is queued makes it once more.
    """
    records = [record async for record in every(store, user)]
    loss = _loss(records, {new.id}, now)
    made = {id: record for id, record in loss.gone.items() if id != new.id}
    if is_again and not made:
        return
    episodes = [new, *(record for record in made.values() if isinstance(record, Episode))]
    keys = await neighbours.keys_among(episodes, user=user, without=made, instead=new)
    left = (record for record in records if record.id not in made)
    jobs = [*jobs, *episode_jobs(made.values(), left, user, now)]
    await store.write(user, put=[new, *loss.facts], delete=list(made), keys=keys, jobs=jobs, since=epoch)


def _loss(records: Sequence[Record], ids: Collection[str], now: datetime) -> _Removal:
    """What is lost with these records."""
    gone = _with_made(records, ids)
    facts = [record for record in records if isinstance(record, Fact)]
    aliases = Aliases.of(facts)
    named = [fact for fact in facts if fact.id in ids]
    lost = {id for fact in named for id in supporting_ids(facts, fact, aliases=aliases)}
    episodes = {record.id: record for record in records if isinstance(record, Episode)}
    left = [_without_sources(fact, gone, episodes) for fact in facts]
    lost |= {fact.id for fact, old in zip(left, facts, strict=True) if old.sources and not fact.sources}
    lost = versions_of(facts, lost)
    settled = resettle_without(left, lost, now=now, aliases=aliases)
    fewer = [fact for fact, old in zip(left, facts, strict=True) if fact is not old and fact.id not in lost]
    written = {fact.id: fact for fact in (*fewer, *settled)}
    return _Removal({r.id: r for r in records if r.id in gone or r.id in lost}, tuple(written.values()))


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
    said = [provenance_of([episodes[source]]) for source in left if source in episodes]
    # It stays the user's word only while the user, or the program in his name, is among those who said it.
    is_others = left and len(said) == len(left) and all(part.origin != "user" for part in said)
    return replace(fact, sources=tuple(left), provenance=Provenance.derived(said) if is_others else fact.provenance)
