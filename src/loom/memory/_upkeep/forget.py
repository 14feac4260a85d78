"""Forgetting: removes records together with everything derived from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TypeAlias

from loom.core.clock import Clock
from loom.core.record import Episode, Fact, Provenance, Receipt, Record
from loom.core.scope import Scope
from loom.memory._facts.entities import Aliases
from loom.memory._facts.facts import resettle_without, supporting_ids, versions_of
from loom.memory._facts.instructions import provenance_of
from loom.memory._history import old_ids
from loom.memory._shared import every, retry_stale
from loom.memory._upkeep.summaries import episode_jobs
from loom.memory._write.ingest import ContextKeys, Keys
from loom.protocols.memory_store import Job, Scrubs, Store

SESSIONS_LEFT = (
    "{count} saved conversation(s) of {user!r} are in the same place, and are not part of memory; "
    "Agent.forget(), or `loom forget`, removes them as well"
)
_Choose: TypeAlias = Callable[[Sequence[Record]], set[str]]
"""Picks the ids to remove, given all records of a user."""


@dataclass(frozen=True, slots=True)
class _Removal:
    """The records to delete, and the facts to write in their place."""

    gone: dict[str, Record]
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Removes records of a user from a store."""

    store: Store
    neighbours: ContextKeys
    clock: Clock

    async def records(self, user: Scope, ids: Iterable[str]) -> Receipt:
        """Remove records and what was derived from them, and their words from the keys of the turns around them.

        A fact that has other sources only loses these.
        """
        wanted = set(ids)
        return await self._forget(user, lambda _: wanted)

    async def session(self, session: Scope) -> Receipt:
        """Remove the episodes of a session and what was learned from them."""

        def choose(records: Sequence[Record]) -> set[str]:
            return {r.id for r in records if isinstance(r, Episode) and r.session_id == session.session_id}

        return await self._forget(session.for_user(), choose)

    async def before(self, scope: Scope, before: datetime) -> Receipt:
        """Remove what happened before a moment, and facts and blocks written before it; of one session, if named.

        A fact that was learned from episodes goes with the last of them.
        """

        def is_older(record: Record, episodes: set[str]) -> bool:
            if isinstance(record, Episode):
                return record.at < before and scope.session_id in {None, record.session_id}
            if scope.session_id is not None:
                return False
            if isinstance(record, Fact):
                return record.recorded_at < before and not (set(record.sources) & episodes)
            return record.updated_at < before

        def choose(records: Sequence[Record]) -> set[str]:
            episodes = {record.id for record in records if isinstance(record, Episode)}
            return {record.id for record in records if is_older(record, episodes)}

        return await self._forget(scope.for_user(), choose)

    async def _forget(self, user: Scope, choose: _Choose) -> Receipt:
        """Remove the chosen records, in one transaction that is based on everything stored at that moment."""
        removal = await retry_stale(self.store, user, partial(self._remove, user, choose))
        if first := set(removal.gone):
            # Another process may have derived records from them between our read and our write. Once they are gone
            # nothing more can be derived, so one second pass is enough.
            late = await retry_stale(self.store, user, partial(self._remove, user, lambda _: first))
            removal = _Removal({**removal.gone, **late.gone}, removal.facts)
        pending = await self.store.scrub() if removal.gone and isinstance(self.store, Scrubs) else ()
        return Receipt(removed=dict(Counter(record.kind for record in removal.gone.values())), pending=pending)

    async def _remove(self, user: Scope, choose: _Choose, epoch: str) -> _Removal:
        records = [record async for record in every(self.store, user)]
        removal = _removal(records, choose(records), self.clock.now())
        if removal.gone or removal.facts:
            jobs, keys = await self._follow_up(user, records, removal.gone)
            await self.store.write(
                user, put=removal.facts, delete=list(removal.gone), keys=keys, jobs=jobs, since=epoch
            )
        return removal

    async def rewrite(
        self, user: Scope, new: Episode, *, jobs: Sequence[Job], epoch: str, is_second_pass: bool = False
    ) -> None:
        """Replace an episode by one with the same id, and remove what was derived from the old one, in one step.

        `epoch` is the one read before the old episode was; StaleWrite if something was removed since. The second pass
        removes what another process derived from the old text between the read and the write of the first, and does
        nothing if there is none. What was derived from the new text already is made again by the queued job.
        """
        records = [record async for record in every(self.store, user)]
        removal = _removal(records, {new.id}, self.clock.now())
        derived = {id: record for id, record in removal.gone.items() if id != new.id}
        if is_second_pass and not derived:
            return
        more, keys = await self._follow_up(user, records, derived, new)
        put = [new, *removal.facts]
        await self.store.write(user, put=put, delete=list(derived), keys=keys, jobs=[*jobs, *more], since=epoch)

    async def _follow_up(
        self, user: Scope, records: Sequence[Record], gone: Mapping[str, Record], new: Episode | None = None
    ) -> tuple[list[Job], Keys]:
        """The jobs and search keys to write with a removal; `new` replaces the turn that has its id."""
        episodes = [record for record in gone.values() if isinstance(record, Episode)]
        around = [*([new] if new else []), *episodes]
        keys = await self.neighbours.keys_among(around, user=user, without=gone, instead=new)
        left = (record for record in records if record.id not in gone)
        return episode_jobs(gone.values(), left, user, self.clock.now()), keys


def _removal(records: Sequence[Record], ids: Collection[str], now: datetime) -> _Removal:
    """What goes with these records: what was derived from one of them, at any depth, their facts, and old texts."""
    gone = set(ids) | old_ids(records, ids)
    derived = [r for r in records if isinstance(r, Episode) and r.sources]
    while more := {r.id for r in derived if r.id not in gone and not gone.isdisjoint(r.sources)}:
        gone |= more
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


def _without_sources(fact: Fact, gone: Collection[str], episodes: Mapping[str, Episode]) -> Fact:
    left = [source for source in fact.sources if source not in gone]
    if len(left) == len(fact.sources):
        return fact
    left.sort(reverse=True)  # the first source breaks ties between statements of one time, so it is the greatest
    parts = [provenance_of([episodes[source]]) for source in left if source in episodes]
    # The fact keeps the origin `user` only while one of its sources is the user, or the program on their behalf.
    is_others = left and len(parts) == len(left) and all(part.origin != "user" for part in parts)
    return replace(fact, sources=tuple(left), provenance=Provenance.derived(parts) if is_others else fact.provenance)
