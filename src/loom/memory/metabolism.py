"""Metabolism: jobs that move experience up the layers, idempotent, with everything they make linked to its sources.

One call of run() is a pass. In a pass a record moves up one layer at the most, whatever the order of its jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Protocol, TypeAlias

from anyio import sleep

from loom.core.clock import Clock
from loom.core.filter import And, Eq
from loom.core.heavy import off_loop
from loom.core.ids import RecordIds
from loom.core.record import Episode, Fact, Layer, Provenance, Record
from loom.core.scope import Scope
from loom.errors import LoomError, StaleWrite, StoreConflict
from loom.memory.accesses import LAYER_JOBS, REVIVE, statement_id, successor
from loom.memory.compress import ContextCompressor
from loom.memory.config import MemoryConfig
from loom.memory.episodes import EPISODE, SessionEpisodes, episode_job, summary_job
from loom.memory.guarded import TRIES, retry_stale
from loom.memory.layers import LayerPlan, revived, sort_layer
from loom.memory.learn import LearnResult
from loom.memory.listing import every
from loom.memory.locks import Locks
from loom.memory.marking import with_importance
from loom.memory.neighbours import Store
from loom.memory.values import Metabolized
from loom.protocols.extractor import Claim
from loom.protocols.jobs import Job, Lease

LEASE = timedelta(seconds=30)
MAX_ATTEMPTS = 5
_NEXT = {Layer.L2: "assimilate", Layer.L3: "sediment"}
_LAYER_JOBS = tuple(dict.fromkeys(LAYER_JOBS.values()))


class Learns(Protocol):
    """Finds facts in episodes."""

    async def read(self, episodes: Sequence[Episode]) -> Sequence[Claim]:
        """What episodes state; may take a while."""
        ...

    async def learn(self, scope: Scope, episodes: Sequence[Episode], claims: Sequence[Claim]) -> LearnResult:
        """The facts to write for what these episodes state, and what they retire."""
        ...

    async def settle(self, scope: Scope, written: Sequence[Fact]) -> None:
        """Put right what another process decided at the same time, after facts were written."""
        ...


Embed = Callable[[Scope, Sequence[Episode]], Awaitable[tuple[str, ...]]]
"""Gives records their vectors; says so where it cannot."""


@dataclass(slots=True)
class _Effects:
    """What one job changes, applied together or not at all."""

    put: list[Record] = field(default_factory=list[Record])
    sunk: list[Episode] = field(default_factory=list[Episode])
    """Those of them that reached L4 and were made from others: they have no vector yet."""
    jobs: list[Job] = field(default_factory=list[Job])
    moved: set[str] = field(default_factory=set[str])
    """The ids of what moves up; it stays there for the rest of the pass."""
    counts: Counter[str] = field(default_factory=Counter[str])
    notes: tuple[str, ...] = ()


_Moved: TypeAlias = dict[Scope, set[str]]
_Verb: TypeAlias = Callable[[Job, Sequence[Claim], set[str]], Awaitable[_Effects]]


class Metabolism:
    """Runs the three verbs: digest (L1 to L2), assimilate (L2 to L3), sediment (L3 to L4).

    Beside them, `revive` brings back what is archived and was recalled often enough, and `episode` writes down what a
    session was about when it is over.

    A job reads, decides with pure rules, and writes everything it decided in the transaction that closes it; a
    worker that died leaves a lease that runs out, and the next one does the same again to the same effect.
    """

    def __init__(
        self,
        store: Store,
        config: MemoryConfig,
        *,
        clock: Clock,
        ids: RecordIds,
        learner: Learns,
        embed: Embed | None = None,
        locks: Locks | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._ids = ids
        self._learner = learner
        self._locks = locks or Locks()
        self._embed = embed
        self._compressor = ContextCompressor()
        self.episodes = SessionEpisodes(store, config, clock=clock)
        self.retell: Callable[[Scope], None] | None = None
        """Is told that an episode waits for a model to write it again; None where there is no model."""
        self._verbs: Mapping[str, _Verb] = {
            "digest": self._digest,
            "assimilate": self._assimilate,
            "sediment": self._sediment,
            REVIVE: self._revive,
            EPISODE: self._episode,
        }

    def job(
        self,
        scope: Scope,
        kind: str,
        *,
        key: str | None = None,
        episodes: Sequence[str] = (),
        records: Sequence[str] = (),
    ) -> Job:
        """A job for a user; one of each kind is open at a time, unless `key` tells them apart.

        Facts are found in `episodes`; `records` are what it is about otherwise.
        """
        about = {"episodes": list(episodes), "records": list(records)}
        return Job(
            id=self._ids.next_id(),
            scope=scope.for_user(),
            kind=kind,
            key=key or kind,
            run_at=self._clock.now(),
            payload={name: ids for name, ids in about.items() if ids},
        )

    async def queue_layer_jobs(self, scope: Scope) -> None:
        """Queue a look at every layer of a user: retention passes also when nothing is written."""
        await self._store.write(scope.for_user(), jobs=[self.job(scope, kind) for kind in _LAYER_JOBS])

    async def run(self, scope: Scope | None = None, *, limit: int = 1000) -> Metabolized:
        """Do the jobs that are due, and those they bring about, of one user or of all: one pass."""
        moved: _Moved = {}
        done, counts, notes, failed = 0, Counter[str](), list[str](), list[str]()
        while done + len(failed) < limit:
            now = self._clock.now()
            leases = await self._store.lease(now=now, until=now + LEASE, limit=1, scope=scope, kinds=[*self._verbs])
            if not leases:
                break
            try:
                effects = await self._do(leases[0], moved.setdefault(leases[0].job.scope, set()))
                counts += effects.counts
                notes += effects.notes
                done += 1
            except StoreConflict as error:  # somebody else took over; what he does is as good
                failed.append(str(error))
            except Exception as error:  # noqa: BLE001 - an extractor may be anybody's; the job must not stay as it was
                failed.append(_reason(error))
                await self._put_back(leases[0], _reason(error))
        return Metabolized(jobs=done, counts=dict(counts), notes=tuple(notes), failed=tuple(failed))

    async def work(self, pause: float) -> None:
        """Do the jobs that are due, again and again, with a pause in seconds; until it is cancelled."""
        while True:
            await self.run()
            await sleep(pause)

    async def _do(self, lease: Lease, moved: set[str]) -> _Effects:
        verb = self._verbs.get(lease.job.kind)
        if verb is None:
            raise LoomError(f"there is no verb {lease.job.kind!r}; a newer Loom may have queued it")
        for _ in range(TRIES):
            read = await self._new(lease.job)
            claims = await self._learner.read(read)
            attempt = partial(self._decide, lease, verb, read, claims, moved=moved)
            # One at a time decides for a user, as far as this process goes; the epoch is for all others.
            async with self._locks.of(lease.job.scope):
                effects = await retry_stale(self._store, lease.job.scope, attempt)
                if effects is not None:
                    moved |= effects.moved
                    effects.notes += await self._after(lease.job.scope, effects)
                    if lease.job.kind == EPISODE and not any(job.kind == EPISODE for job in effects.jobs):
                        await self._wait_on(lease.job)
                    return effects
        raise StaleWrite(lease.job.scope.user_id)

    async def _decide(
        self,
        lease: Lease,
        verb: _Verb,
        read: Sequence[Episode],
        claims: Sequence[Claim],
        epoch: str,
        *,
        moved: set[str],
    ) -> _Effects | None:
        """Do what a job asks for; None, and nothing is done, where something of what was read is not there any more.

        What a model read may have found its way into each of its claims, so it has to read again what is left.
        """
        if _texts(await self._new(lease.job)) != _texts(read):
            return None
        effects = await verb(lease.job, claims, moved)
        await self._store.finish(lease, put=effects.put, jobs=effects.jobs, since=epoch)
        return effects

    async def _after(self, scope: Scope, effects: _Effects) -> tuple[str, ...]:
        """What is left to do when a job is done; returns what could not be, in words."""
        notes: tuple[str, ...] = ()
        try:
            await self._learner.settle(scope, [record for record in effects.put if isinstance(record, Fact)])
        except LoomError as error:  # the next claim about the same finds and mends it
            notes += (f"facts were not compared with what others wrote meanwhile: {error}",)
        try:
            notes += await self._embed(scope, effects.sunk) if self._embed is not None and effects.sunk else ()
        except LoomError as error:  # what was moved is found by its words
            notes += (f"moved to L4 without vectors: {error}",)
        if self.retell is not None and effects.counts["retold"]:
            self.retell(scope)
        return notes

    async def _wait_on(self, job: Job) -> None:
        """Wait for the end of a session again, of which something was said while its episode was written.

        That turn found the job open and left none.
        """
        session = str(job.payload["session"])
        turns, known = await self.episodes.turns(job.scope, session), await self.episodes.stored(job.scope, session)
        if turns and (known is None or known.sources != tuple(turn.id for turn in turns)):
            await self._store.write(job.scope, jobs=[episode_job(job.scope, session, self.episodes.idle_at(turns))])

    async def end(self, scope: Scope) -> Episode | None:
        """Write the episode of a session now; returns it, None where nothing was said in it.

        A session that goes on gets another text under the same id when it ends again.
        """
        user, session = scope.for_user(), scope.session_id
        assert session is not None

        async def attempt(epoch: str) -> _Effects:
            effects = await self._told(user, session)
            if effects.put:
                await self._store.write(user, put=effects.put, jobs=effects.jobs, since=epoch)
            return effects

        async with self._locks.of(user):
            effects = await retry_stale(self._store, user, attempt)
            await self._after(user, effects)
            return await self.episodes.stored(user, session)

    async def _put_back(self, lease: Lease, reason: str) -> None:
        now = self._clock.now()
        again = lease.job.attempts < MAX_ATTEMPTS
        wait = timedelta(seconds=2**lease.job.attempts)
        await self._store.fail(lease, reason=reason, now=now, retry_at=now + wait if again else None)

    # -- the verbs ----------------------------------------------------------------------------------------

    async def _digest(self, job: Job, claims: Sequence[Claim], moved: set[str]) -> _Effects:
        """L1 to L2: learn facts from what is new, shorten what is worth keeping, archive what overflows."""
        effects = _Effects()
        learnt = await self._learner.learn(job.scope, await self._new(job), claims)
        important = await with_importance(self._store, job.scope, learnt.importance)
        effects.put += [*learnt.facts, *learnt.waiting, *important]
        effects.counts["facts"] += len(learnt.facts)
        effects.notes = (*learnt.notes, *learnt.instruction_notes)
        sorted_ = await self._sorted(job.scope, Layer.L1, moved, important)
        effects.put += await self._in_l2(sorted_.promote)
        effects.put += [self._archived(e) for e in sorted_.archive]
        return self._moved(effects, job.scope, Layer.L1, sorted_)

    async def _assimilate(self, job: Job, _: Sequence[Claim], moved: set[str]) -> _Effects:
        """L2 to L3: what was asked for again becomes an episode; what leaves is told by that of its session."""
        effects = _Effects()
        sorted_ = await self._sorted(job.scope, Layer.L2, moved)
        effects.put += [replace(e, layer=Layer.L3) for e in sorted_.promote]
        effects.put += [self._archived(e) for e in sorted_.archive]
        leaving = sorted(sorted_.archive, key=lambda e: (e.session_id or "", e.id))
        for session, group in groupby(leaving, key=lambda e: e.session_id):
            episodes = list(group)
            if session is not None and await self._tells(job.scope, session, effects):
                continue
            if len(episodes) == 1:  # a statement says in short what it says; its summary would be itself once more
                continue
            chars = self._compressor.read([episode.text for episode in episodes])
            effects.put.append(await off_loop(chars, partial(self._summary, session, episodes)))
            effects.counts["summaries"] += 1
        return self._moved(effects, job.scope, Layer.L2, sorted_)

    async def _sediment(self, job: Job, _: Sequence[Claim], moved: set[str]) -> _Effects:
        """L3 to L4: what keeps being asked for stays for good; L4 itself is held to its capacity."""
        effects = _Effects()
        sorted_ = await self._sorted(job.scope, Layer.L3, moved)
        effects.put += [replace(e, layer=Layer.L4) for e in sorted_.promote]
        effects.sunk += [e for e in sorted_.promote if e.sources]
        effects.put += [self._archived(e) for e in sorted_.archive]
        last = await self._sorted(job.scope, Layer.L4, moved)
        effects.put += [self._archived(e) for e in last.archive]
        effects.counts["archived"] += len(last.archive)
        return self._moved(effects, job.scope, Layer.L3, sorted_)

    async def _revive(self, job: Job, _: Sequence[Claim], moved: set[str]) -> _Effects:
        """What is archived and was recalled often enough comes back: where it was, or one layer up."""
        effects, now = _Effects(), self._clock.now()
        for id in job.payload.get("records", ()):
            found = await self._store.get(job.scope, id)
            record = await successor(self._store, job.scope, found) if isinstance(found, Episode) else None
            if record is None or record.archived_at is None or record.id in moved:
                continue
            back = revived(record, self._config, now=now)
            if back is None:
                continue
            made = await self._in_l2([record]) if back.layer == Layer.L2 != record.layer else [back]
            effects.put += made
            effects.sunk += [back] if back.layer == Layer.L4 and back.sources else []
            effects.moved |= {episode.id for episode in made} if back.layer != record.layer else set()
            effects.counts["returned"] += 1
            if self._config.enable_auto_migration:
                effects.jobs.append(self.job(job.scope, LAYER_JOBS[back.layer]))
        return effects

    async def _episode(self, job: Job, _: Sequence[Claim], __: set[str]) -> _Effects:
        """A session that is over leaves an episode in L3; of one that went on meanwhile the end is waited for."""
        session = str(job.payload["session"])
        turns = await self.episodes.turns(job.scope, session)
        if turns and (quiet_at := self.episodes.idle_at(turns)) > self._clock.now():
            return _Effects(jobs=[episode_job(job.scope, session, quiet_at)])
        effects = await self._told(job.scope, session)
        if self._config.enable_auto_migration:  # also where the session was ended before: L3 may have grown then
            effects.jobs.append(self.job(job.scope, LAYER_JOBS[Layer.L3]))
        return effects

    async def _told(self, user: Scope, session: str) -> _Effects:
        """What writes the episode of a session, as far as it is not written yet."""
        effects = _Effects()
        made, whole = await self.episodes.build(user, session, await self.episodes.turns(user, session))
        if made is None:
            return effects
        effects.put.append(made)
        effects.counts["episodes"] += 1
        if self.retell is not None and not whole:  # a model has nothing to add where every sentence is there
            effects.jobs.append(summary_job(user, session, self._clock.now()))
            effects.counts["retold"] += 1
        return effects

    async def _tells(self, user: Scope, session: str, effects: _Effects) -> bool:
        """Whether a session has an episode that tells of what leaves L2, which is written now if there is none yet.

        What was said since then left a job that writes it again, so that a long session is not read again and again.
        """
        if await self.episodes.stored(user, session) is not None:
            return True
        told = await self._told(user, session)
        effects.put += told.put
        effects.jobs += told.jobs
        effects.counts += told.counts
        return bool(told.put)

    # -- what they make -----------------------------------------------------------------------------------

    async def _new(self, job: Job) -> list[Episode]:
        """The episodes that a job is about, as far as they are there."""
        found = [await self._store.get(job.scope, id) for id in job.payload.get("episodes", ())]
        return [episode for episode in found if isinstance(episode, Episode)]

    async def _sorted(self, scope: Scope, layer: Layer, moved: set[str], changed: Sequence[Episode] = ()) -> LayerPlan:
        where = And(Eq("kind", "episode"), Eq("layer", int(layer)), Eq("archived_at", None))
        found = [record async for record in every(self._store, scope, where) if isinstance(record, Episode)]
        newer = {episode.id: episode for episode in changed}
        found = [newer.get(episode.id, episode) for episode in found]
        chars = self._compressor.read([episode.text for episode in found])
        sort = partial(sort_layer, found, layer, self._config, now=self._clock.now(), moved=moved)
        return await off_loop(chars, sort)

    def _moved(self, effects: _Effects, scope: Scope, layer: Layer, sorted_: LayerPlan) -> _Effects:
        effects.counts["promoted"] += len(sorted_.promote)
        effects.counts["archived"] += len(sorted_.archive)
        effects.moved |= {id for e in sorted_.promote for id in (e.id, statement_id(e.id))}
        above = Layer(layer + 1)
        grew = bool(sorted_.promote) or any(isinstance(r, Episode) and r.layer == above for r in effects.put)
        if grew and above in _NEXT and self._config.enable_auto_migration:
            effects.jobs.append(self.job(scope, _NEXT[above]))
        return effects

    def _archived(self, episode: Episode) -> Episode:
        return replace(episode, archived_at=self._clock.now())

    async def _in_l2(self, promoted: Sequence[Episode]) -> list[Episode]:
        """Records of L1 in L2: as statements, and they themselves in the archive; or they themselves, uncompressed."""
        if not (self._config.enable_compression and self._config.l2.auto_compress):
            return [replace(episode, layer=Layer.L2, archived_at=None) for episode in promoted]
        chars = self._compressor.read([episode.text for episode in promoted])
        statements = await off_loop(chars, lambda: [self._statement(episode) for episode in promoted])
        return [*statements, *(e if e.archived_at else self._archived(e) for e in promoted)]

    def _statement(self, episode: Episode) -> Episode:
        """A record of what an episode says in short; it points at the episode, which stays in the archive."""
        return replace(
            episode,
            id=statement_id(episode.id),
            text=self._compressor.statement(episode.text),
            layer=Layer.L2,
            recorded_at=self._clock.now(),
            archived_at=None,
            provenance=Provenance.derived([episode.provenance]),
            sources=(episode.id, *episode.sources),
        )

    def _summary(self, session: str | None, episodes: list[Episode]) -> Episode:
        first = episodes[0]
        return Episode(
            id=f"sum:{first.id}",
            text=self._compressor.summary([e.text for e in episodes]),
            at=min(e.at for e in episodes),
            recorded_at=self._clock.now(),
            provenance=Provenance.derived([e.provenance for e in episodes]),
            layer=Layer.L3,
            session_id=session,
            importance=max(e.importance for e in episodes),
            sources=tuple(dict.fromkeys(s for e in episodes for s in (e.id, *e.sources))),
        )


def _texts(episodes: Sequence[Episode]) -> list[tuple[str, str]]:
    return [(episode.id, episode.text) for episode in episodes]


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, LoomError) else f"{type(error).__name__}: {error}"
