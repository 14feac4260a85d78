"""Background jobs that move records up the layers; idempotent, and everything they create names its sources.

One call of run() is a pass. In a pass a record moves up at most one layer, whatever the order of its jobs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache, partial
from hashlib import sha256
from itertools import groupby
from typing import NamedTuple, TypeAlias

from anyio import sleep

from loom.core.checks import RANKED
from loom.core.clock import Clock, RecordIds
from loom.core.filter import And, Eq, Filter, In
from loom.core.record import Claim, Episode, Fact, Hit, Layer, Provenance, Record, changed
from loom.core.scope import Scope
from loom.core.threads import Locks, off_loop
from loom.errors import LoomError, StaleWrite, StoreConflict
from loom.memory._recall.recall import recalled
from loom.memory._shared import TRIES, every, get_all, list_together, retry_stale
from loom.memory._upkeep.summaries import (
    EPISODE,
    SUMMARY,
    ContextCompressor,
    SessionEpisodes,
    episode_id,
    job_episodes,
    session_job,
    texts_of,
)
from loom.memory._write.apply_claims import Learner
from loom.memory.config import MemoryConfig, MemoryLayerConfig, MemoryStrategyType
from loom.memory.results import Metabolized, reason_of
from loom.protocols.memory_store import Job, Lease, Newest, Store, Touches

# Layers: access counts, promotion, importance, and what leaves a layer.

_CRITICAL = re.compile(
    r"\b(?=[acdefimnp])(?:error|exception|fail(?:ed|ure)?|crash(?:ed)?|decid(?:ed?|ing)|decision|agreed|must|never"
    r"|always|important|deadline|promise[ds]?|allerg\w+)\b",
    re.IGNORECASE,
)
"""Content that is kept even if it is never recalled; the first letters rule out most words of a text at once."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What happens to the records of one layer."""

    promote: tuple[Episode, ...]
    archive: tuple[Episode, ...]
    """Records over capacity or past retention: no longer shown, still searchable."""
    keep: tuple[Episode, ...]


def sort_layer(
    episodes: Sequence[Episode], layer: Layer, config: MemoryConfig, *, now: datetime, moved: Collection[str] = ()
) -> LayerPlan:
    """Decide for each record of a layer whether it moves up, is archived, or stays.

    Records that `moved` in this pass do not move again. Over capacity, the least valuable are archived first: by
    importance, then by how often and how recently they were recalled. Retention counts from when a record was written
    or last recalled, whichever is later.
    """
    settings = _settings(config, layer)
    allowed = None if settings.retention_hours is None else timedelta(hours=settings.retention_hours)
    promote, expired, staying = list[Episode](), list[Episode](), list[Episode]()
    for e in episodes:
        if e.layer != layer or e.archived_at is not None:
            continue
        if e.id not in moved and deserves_promotion(e, config, now=now):
            promote.append(e)
        elif allowed is not None and now - max(e.recorded_at, e.accessed_at or e.recorded_at) >= allowed:
            expired.append(e)
        else:
            staying.append(e)
    staying.sort(key=lambda e: (e.importance, e.accesses, e.accessed_at or e.recorded_at, e.id), reverse=True)
    room = len(staying) if settings.capacity is None else settings.capacity
    return LayerPlan(tuple(promote), tuple(expired) + tuple(staying[room:]), tuple(staying[:room]))


def _settings(config: MemoryConfig, layer: Layer) -> MemoryLayerConfig:
    return (config.l1, config.l2, config.l3, config.l4)[layer - 1]


def deserves_promotion(episode: Episode, config: MemoryConfig, *, now: datetime, accesses: int | None = None) -> bool:
    """Whether a record moves up: recalled often enough (or so many `accesses`), important, or critical by its content.

    Importance alone moves a record into L2; only the importance-based strategy moves it further.
    """
    if episode.layer == Layer.L4:
        return False
    settings = _settings(config, episode.layer)
    accesses = episode.accesses if accesses is None else accesses
    if settings.promote_threshold and accesses >= settings.promote_threshold:
        return True
    if episode.layer == Layer.L1 and (is_important(episode, config) or is_critical(episode)):
        return True
    if config.strategy is MemoryStrategyType.IMPORTANCE_BASED:
        return is_important(episode, config)
    if config.strategy is MemoryStrategyType.TIME_BASED and settings.retention_hours is not None:
        half = timedelta(hours=settings.retention_hours / 2)
        return accesses > 0 and now - episode.recorded_at >= half
    return False


def revived(episode: Episode, config: MemoryConfig, *, now: datetime) -> Episode | None:
    """An archived record in the layer that its access count deserves, one above its own at most; None if lower.

    A record of L1 comes back in L2 or not at all: below the threshold of L1 its time there is simply over.
    """
    layer = _layer_deserved(episode, config, episode.accesses, now=now)
    return None if layer is None else changed(episode, layer=layer, archived_at=None)


def _layer_deserved(episode: Episode, config: MemoryConfig, accesses: int, *, now: datetime) -> Layer | None:
    """The layer that revived() brings a record back into."""
    if deserves_promotion(episode, config, now=now, accesses=accesses):
        return Layer(episode.layer + 1)
    below = _settings(config, Layer(episode.layer - 1)).promote_threshold if episode.layer > Layer.L1 else 0
    by_count = bool(below) and accesses >= below
    stays = by_count or (episode.layer == Layer.L2 and is_important(episode, config))
    return episode.layer if stays else None


def is_important(episode: Episode, config: MemoryConfig) -> bool:
    """Whether a record was marked as important enough."""
    return episode.importance > 0 and episode.importance >= config.importance_threshold


def is_critical(episode: Episode) -> bool:
    """Whether the content alone makes a record worth keeping, such as an error or a decision."""
    return bool(_CRITICAL.search(episode.text, 0, RANKED))


# Counts accesses: a recall counts for the records about the question, and for the statements made from them.
#
# An archived record whose count has become high enough is brought back by a job, one layer at a time.

REVIVE = "revive"
"""The kind of job that brings records back from the archive."""
LAYER_JOBS = {Layer.L1: "digest", Layer.L2: "assimilate", Layer.L3: "sediment", Layer.L4: "sediment"}
"""The kind of job that checks each layer."""


def statement_id(id: str) -> str:
    """The id of the statement that is made from a record when it moves into L2."""
    return f"s:{id}"


async def successor(store: Store, user: Scope, record: Episode) -> Episode:
    """The statement that replaced a record when it moved into L2, or else the record itself."""
    return (await successors(store, user, [record]))[0]


async def successors(store: Store, user: Scope, records: Sequence[Episode]) -> list[Episode]:
    """The successor of each record; they are read with one call."""
    made = await get_all(store, user, [statement_id(record.id) for record in records if not record.sources])
    found = [made.get(statement_id(record.id)) for record in records]
    return [new if isinstance(new, Episode) else old for old, new in zip(records, found, strict=True)]


def living(ids: Collection[str], records: Iterable[Record]) -> list[Episode]:
    """The successors of these records, among all that was read of both."""
    found = {record.id: record for record in records if isinstance(record, Episode)}
    named = [found[id] for id in sorted(ids) if id in found]
    return [e if e.sources else found.get(statement_id(e.id), e) for e in named]


@cache
def in_layer(layer: Layer) -> Filter:
    """The living records of a layer."""
    return And(Eq("kind", "episode"), Eq("layer", int(layer)), Eq("archived_at", None))


class Moves(NamedTuple):
    """What accesses made due: archived records that may come back, and the kinds of jobs that check layers."""

    back: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()

    def __or__(self, other: Moves) -> Moves:
        return Moves(self.back | other.back, self.kinds | other.kinds)

    def jobs(self, user: Scope, make_job: Callable[..., Job]) -> list[Job]:
        """The same as jobs."""
        back = [make_job(user, REVIVE, key=revive_key(id), records=[id]) for id in sorted(self.back)]
        return back + [make_job(user, kind) for kind in sorted(self.kinds)]


class Accesses:
    """Counts the records that were recalled, and tells `on_due` what becomes due by that."""

    def __init__(
        self, store: Store, config: MemoryConfig, *, clock: Clock, on_due: Callable[[Scope, Moves], Awaitable[None]]
    ) -> None:
        self._config, self._clock, self._on_due = config, clock, on_due
        self._touches = store if isinstance(store, Touches) else None

    async def count(self, scope: Scope, question: str, hits: Sequence[Hit]) -> None:
        """Count one access of each record that a question recalled, and of the statement made from it.

        The store ignores ids that do not exist, so the statement is touched without reading it first.
        """
        found = {record.id: record for record in recalled(question, hits)}
        if not found or self._touches is None:
            return
        user, now = scope.for_user(), self._clock.now()
        made = [statement_id(e.id) for e in found.values() if e.archived_at is not None and not e.sources]
        await self._touches.touch(user, *dict.fromkeys([*found, *made]), at=now)
        # Mostly nothing becomes due, so that records with the new count are not made.
        kinds = {e.id: due_kind(e, self._config, now=now, accesses=e.accesses + 1) for e in found.values()}
        back = frozenset(id for id, kind in kinds.items() if kind == REVIVE)
        due = frozenset(kind for kind in kinds.values() if kind is not None and kind != REVIVE)
        if due or back:
            await self._on_due(user, Moves(back, due))


NO_MOVES = Moves()


def due_kind(record: Episode, config: MemoryConfig, *, now: datetime, accesses: int | None = None) -> str | None:
    """The kind of job that the last access of a record made due, if any; with `accesses`, as if it were that one."""
    accesses = record.accesses if accesses is None else accesses
    if record.archived_at is not None:
        return None if _layer_deserved(record, config, accesses, now=now) is None else REVIVE
    # Only the access that reaches a threshold queues a job: a program that never runs jobs must not pile them up.
    reached = deserves_promotion(record, config, now=now, accesses=accesses)
    if not reached or deserves_promotion(record, config, now=now, accesses=max(0, accesses - 1)):
        return None
    return LAYER_JOBS[record.layer]


def revive_key(id: str) -> str:
    """The job key of a record's return: one is open at a time. Hashed, because an id may be as long as a key."""
    return f"{REVIVE}:{sha256(id.encode()).hexdigest()[:32]}"


# Sets the importance of records, as a caller or a model rates them.


async def with_importance(
    store: Store, user: Scope, importance: Mapping[str, float], *, may_fall: bool = False
) -> list[Episode]:
    """The records, and their successors, whose importance changes; ids that do not exist are ignored.

    Unless `may_fall`, importance only rises.
    """
    found: dict[str, Episode] = {}
    named = [record for record in (await get_all(store, user, [*importance])).values() if isinstance(record, Episode)]
    for record, made in zip(named, await successors(store, user, named), strict=True):
        value = importance[record.id]
        for episode in (record, made):
            if episode.importance < value or (may_fall and episode.importance != value):
                found[episode.id] = replace(episode, importance=value)
    return list(found.values())


LEASE = timedelta(seconds=30)
"""Rules take milliseconds, so a lease this old belongs to a worker that died."""
PASS = 1000
"""Jobs of one pass."""
_BACKLOG, _SLICE = 256, 32
"""So many records over the capacity of L1, as after an import, are left to a job: a turn does not wait for them. It
moves a slice of them, the newest, so that the layer empties where jobs are never run, too."""
MAX_ATTEMPTS = 5
"""With pauses of 2, 4, 8 and 16 seconds between them, a job outlives half a minute of trouble."""
_NEXT = {Layer.L2: "assimilate", Layer.L3: "sediment"}
_LAYER_JOBS = tuple(dict.fromkeys(LAYER_JOBS.values()))
MOVES = (REVIVE, *_NEXT.values())
"""The kinds of jobs that an access or a move queues."""


@dataclass(slots=True)
class Effects:
    """The changes of one job, applied together or not at all."""

    put: list[Record] = field(default_factory=list[Record])
    unembedded: list[Episode] = field(default_factory=list[Episode])
    """Derived records among them that reached L4: they have no vector yet."""
    jobs: list[Job] = field(default_factory=list[Job])
    moved: set[str] = field(default_factory=set[str])
    """Ids of the records that move up; they stay where they are for the rest of the pass."""
    counts: Counter[str] = field(default_factory=Counter[str])
    notes: tuple[str, ...] = ()

    def add(self, later: Effects) -> None:
        """Bring in what comes after these."""
        self.put += later.put
        self.unembedded += later.unembedded
        self.jobs += later.jobs
        self.moved |= later.moved
        self.counts += later.counts

    def episodes(self) -> list[Episode]:
        """The episodes to put, each as it was put last."""
        return [record for record in {r.id: r for r in self.put}.values() if isinstance(record, Episode)]


class AlreadyStored(Exception):
    """Some of the episodes that were to be written as new ones are stored; `records` are those."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        super().__init__(", ".join(records))
        self.records = records


_Verb: TypeAlias = Callable[[Job, Sequence[Claim], set[str]], Awaitable[Effects]]


class Metabolism:
    """Runs the three verbs: digest (L1 to L2), assimilate (L2 to L3), sediment (L3 to L4).

    Two more kinds of jobs: `revive` brings back archived records that were recalled often enough, and `episode` writes
    the episode of a session that has ended.

    A job reads, decides with pure rules, and writes all it decided in the transaction that closes it. If a worker
    dies, its lease runs out and the next worker repeats the job with the same result.
    """

    def __init__(
        self,
        store: Store,
        config: MemoryConfig,
        *,
        clock: Clock,
        ids: RecordIds,
        learner: Learner,
        embed: Callable[[Scope, Sequence[Episode]], Awaitable[tuple[str, ...]]] | None = None,
        locks: Locks | None = None,
    ) -> None:
        self._store, self._config, self._clock, self._ids = store, config, clock, ids
        self._learner, self._embed, self._locks = learner, embed, locks or Locks()
        self._compressor = ContextCompressor()
        self.episodes = SessionEpisodes(store, config, clock=clock)
        self.on_summary_job: Callable[[Scope], None] | None = None
        """Called when an episode waits for a model to rewrite it; None without a model."""
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
        """A job for a user; one of each kind is open at a time, unless `key` distinguishes them.

        Facts are extracted from `episodes`; `records` are the subjects of other jobs.
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

    async def queue_layer_jobs(self, scope: Scope, due: Moves = NO_MOVES) -> None:
        """Queue a check of every layer of a user, and what is `due`: records expire even when nothing is written."""
        with suppress(StaleWrite):  # something is forgotten all the time; the next call looks again
            wanted = Moves(due.back, frozenset(_LAYER_JOBS))
            await retry_stale(self._store, scope, lambda epoch: self._queue(scope.for_user(), wanted, epoch))

    async def queue_moves(self, user: Scope, due: Moves) -> None:
        """Queue what accesses made due: of a record that comes back, its statement comes, if there is one.

        Where that was never archived, its layer is checked if it deserves to move up: accesses since may have counted
        past the threshold.
        """

        async def attempt(epoch: str) -> None:
            now, back, kinds = self._clock.now(), set[str](), set(due.kinds)
            for record in await self._successors(user, due.back) if due.back else ():
                if record.archived_at is None and deserves_promotion(record, self._config, now=now):
                    kinds.add(LAYER_JOBS[record.layer])
                elif record.archived_at is not None and due_kind(record, self._config, now=now) == REVIVE:
                    back.add(record.id)
            await self._queue(user, Moves(frozenset(back), frozenset(kinds)), epoch)

        await retry_stale(self._store, user, attempt)

    async def _queue(self, user: Scope, due: Moves, epoch: str) -> None:
        """Queue what was due at an epoch of the user.

        Not of a user without records: another process may have forgotten them, and a job would bring the name back.
        """
        if (due.back or due.kinds) and await self._store.list(user, limit=1):
            await self._store.write(user, jobs=due.jobs(user, self.job), since=epoch)

    async def run(
        self,
        scope: Scope | None = None,
        *,
        limit: int | None = None,
        kinds: Sequence[str] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Metabolized:
        """Run the due jobs and the jobs they queue, of one user or of all: one pass.

        `progress` is called with the jobs done.
        """
        moved_of: dict[Scope, set[str]] = {}
        done, counts, notes, failed = 0, Counter[str](), list[str](), list[str]()
        while done + len(failed) < (PASS if limit is None else limit):
            now = self._clock.now()
            # One job at a time: each reads what the one before it wrote, and a lease must not run out in a queue.
            leases = await self._store.lease(
                now=now, until=now + LEASE, limit=1, scope=scope, kinds=kinds or [*self._verbs], in_order=True
            )
            if not leases:
                break
            try:
                effects = await self._do(leases[0], moved_of.setdefault(leases[0].job.scope, set()))
                counts += effects.counts
                notes += effects.notes
                done += 1
            except StoreConflict as error:  # another worker took the job over, and does the same
                failed.append(str(error))
            except Exception as error:  # noqa: BLE001 - extractors are third-party code; the lease must be released
                failed.append(reason_of(error))
                now, attempts = self._clock.now(), leases[0].job.attempts
                retry_at = now + timedelta(seconds=2**attempts) if attempts < MAX_ATTEMPTS else None
                await self._store.fail(leases[0], reason=reason_of(error), now=now, retry_at=retry_at)
            if progress is not None:
                progress(done + len(failed))
        return Metabolized(jobs=done, counts=dict(counts), notes=tuple(notes), failed=tuple(failed))

    async def work(self, pause: float) -> None:
        """Run due jobs repeatedly, with a pause in seconds, until cancelled."""
        while True:
            await self.run()
            await sleep(pause)

    async def _do(self, lease: Lease, moved: set[str]) -> Effects:
        verb = self._verbs.get(lease.job.kind)
        if verb is None:
            raise LoomError(f"job kind {lease.job.kind!r} is not known; a newer Loom may have queued it")
        for _ in range(TRIES):
            read = await job_episodes(self._store, lease.job)
            claims = await self._learner.read(read)  # outside the lock: an extractor may be slow
            attempt = partial(self._decide, lease, verb, read, claims, moved=moved)
            # The lock orders the deciders of this process; the epoch inside retry_stale() those of other processes.
            async with self._locks.of(lease.job.scope):
                effects = await retry_stale(self._store, lease.job.scope, attempt)
                if effects is not None:
                    moved |= effects.moved
                    effects.notes += await self._finish(lease.job.scope, effects)
                    if lease.job.kind == EPISODE and not any(job.kind == EPISODE for job in effects.jobs):
                        await self._requeue_episode(lease.job)
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
    ) -> Effects | None:
        """Run a job; None, and nothing is written, if an episode that was read has been forgotten or changed since.

        Any claim may contain words of any episode that was read, so what is left has to be read again.
        """
        if texts_of(await job_episodes(self._store, lease.job)) != texts_of(read):
            return None
        effects = await verb(lease.job, claims, moved)
        await self._store.finish(lease, put=effects.put, jobs=effects.jobs, since=epoch)
        return effects

    async def _finish(self, scope: Scope, effects: Effects) -> tuple[str, ...]:
        """Settle facts and embed records after a job was written; returns notes on what failed."""
        notes: tuple[str, ...] = ()
        try:
            await self._learner.settle(scope, [record for record in effects.put if isinstance(record, Fact)])
        except LoomError as error:  # the next claim about the same subject repairs it
            notes += (f"facts were not compared with what others wrote meanwhile: {error}",)
        try:
            if self._embed is not None and effects.unembedded:
                notes += await self._embed(scope, effects.unembedded)
        except LoomError as error:  # the records are still found by words
            notes += (f"moved to L4 without vectors: {error}",)
        if self.on_summary_job is not None and effects.counts["retold"]:
            self.on_summary_job(scope)
        return notes

    async def _requeue_episode(self, job: Job) -> None:
        """Queue the episode of a session again if a turn was added while it was written.

        That turn found this job still open, so it queued none.
        """
        session = str(job.payload["session"])
        turns, known = await self.episodes.turns(job.scope, session), await self.episodes.stored(job.scope, session)
        if turns and (known is None or known.sources != tuple(turn.id for turn in turns)):
            again = session_job(EPISODE, job.scope, session, self.episodes.idle_at(turns))
            await self._store.write(job.scope, jobs=[again])

    async def end(self, scope: Scope) -> Episode | None:
        """Write the episode of a session now and return it; None if the session has no turns.

        If the session goes on, the episode is rewritten under the same id when it ends again.
        """
        user, session = scope.for_user(), scope.session_id
        assert session is not None

        async def attempt(epoch: str) -> Effects:
            effects = await self._write_episode(user, session)
            if effects.put:
                await self._store.write(user, put=effects.put, jobs=effects.jobs, since=epoch)
            return effects

        async with self._locks.of(user):
            effects = await retry_stale(self._store, user, attempt)
            await self._finish(user, effects)
            return await self.episodes.stored(user, session)

    async def join(
        self, scope: Scope, new: Sequence[Episode], due: Moves = NO_MOVES, *, keyed: bool = False
    ) -> Effects:
        """What new episodes change as they join L1, and what is `due`: all of it is written with them.

        New ones may move up at once, and others make room for them. What needs more than a look at the layers is left
        to a job.

        Raises:
            AlreadyStored: they have ids of their own (`keyed`), and some of them are stored.
        """
        # One read for all that is likely to be looked at: the layer that grows, what comes back, and where it comes to.
        room = self._config.l1.capacity
        growing = in_layer(Layer.L1) if room is None else Newest(in_layer(Layer.L1), room + _BACKLOG)
        layers = [growing, in_layer(Layer.L2)] if due.back or due.kinds else [growing]
        ids = (*due.back, *map(statement_id, due.back), *((e.id for e in new) if keyed else ()))
        first, *others = await list_together(self._store, scope, *layers, *([In("id", ids)] if ids else ()))
        if keyed and (stored := {e.id for e in new} & {record.id for record in others[-1]}):
            raise AlreadyStored({record.id: record for record in others[-1] if record.id in stored})
        rest = list[Job]()
        if room is not None and len(first) == room + _BACKLOG:
            first = Newest(in_layer(Layer.L1), room + _SLICE).of(first)
            rest.append(self.job(scope, LAYER_JOBS[Layer.L1]))
        plan = await self._plan(scope, Layer.L1, set(), new, found=first)
        effects = self._moved(Effects(put=[*await self._in_l2(plan.promote)]), scope, Layer.L1, plan)
        kinds, effects.jobs = {*due.kinds, *(job.kind for job in effects.jobs)}, []
        if due.back:
            stored, now = living(due.back, others[-1]), self._clock.now()
            kinds |= {kind for e in stored if not e.archived_at and (kind := due_kind(e, self._config, now=now))}
            effects.add(await self._revived(scope, stored, effects.moved))
            kinds |= {job.kind for job in effects.jobs}
            effects.jobs.clear()
        if "assimilate" in kinds:
            second = others[0] if len(layers) > 1 else None
            changed = effects.episodes()
            effects.add(await self._assimilated(scope, effects.moved, changed, second, writes_episodes=False))
        if "sediment" in kinds and all(job.kind != "sediment" for job in effects.jobs):
            effects.jobs.append(self.job(scope, "sediment"))  # L3 and L4 are large: a job looks at them
        effects.jobs += rest
        return effects

    # -- the verbs ----------------------------------------------------------------------------------------

    async def _digest(self, job: Job, claims: Sequence[Claim], moved: set[str]) -> Effects:
        """L1 to L2: learn facts from new episodes, shorten those worth keeping, archive the overflow.

        Facts come before layers: a claim may raise the importance of an episode, which then moves up in the same job.
        """
        result = await self._learner.learn(job.scope, await job_episodes(self._store, job), claims)
        important = await with_importance(self._store, job.scope, result.importance)
        plan = await self._plan(job.scope, Layer.L1, moved, important)
        effects = Effects(
            put=[*result.facts, *result.unconfirmed, *important, *await self._in_l2(plan.promote)],
            counts=Counter(facts=len(result.facts)),
            notes=(*result.notes, *result.instruction_notes),
        )
        return self._moved(effects, job.scope, Layer.L1, plan)

    async def _assimilate(self, job: Job, _: Sequence[Claim], moved: set[str]) -> Effects:
        """L2 to L3: recalled records become episodes; archived ones are covered by the episode of their session."""
        return await self._assimilated(job.scope, moved)

    async def _assimilated(
        self,
        user: Scope,
        moved: set[str],
        changed: Sequence[Episode] = (),
        found: Sequence[Record] | None = None,
        *,
        writes_episodes: bool = True,
    ) -> Effects:
        """What assimilating does. Episodes that are not there yet are left to jobs, unless it `writes_episodes`."""
        plan = await self._plan(user, Layer.L2, moved, changed, found=found)
        effects = Effects(put=[replace(e, layer=Layer.L3) for e in plan.promote])
        leaving = sorted(plan.archive, key=lambda e: (e.session_id or "", e.id))
        if not writes_episodes:
            effects.jobs += await self._missing_episodes(user, {e.session_id for e in leaving if e.session_id})
        for session, group in groupby(leaving, key=lambda e: e.session_id):
            episodes = list(group)
            if session is not None and (not writes_episodes or await self._has_episode(user, session, effects)):
                continue
            if len(episodes) == 1:  # a statement is short already; its summary would repeat it
                continue
            chars = self._compressor.chars_read([episode.text for episode in episodes])
            effects.put.append(await off_loop(chars, partial(self._summary, session, episodes)))
            effects.counts["summaries"] += 1
        return self._moved(effects, user, Layer.L2, plan)

    async def _sediment(self, job: Job, _: Sequence[Claim], moved: set[str]) -> Effects:
        """L3 to L4: records that keep being recalled stay for good; L4 itself is held to its capacity."""
        user = job.scope
        third, fourth = await list_together(self._store, user, in_layer(Layer.L3), in_layer(Layer.L4))
        plan = await self._plan(user, Layer.L3, moved, found=third)
        effects = Effects(
            put=[replace(e, layer=Layer.L4) for e in plan.promote], unembedded=[e for e in plan.promote if e.sources]
        )
        # What is promoted here is not stored yet, so it counts against the capacity of L4 from the next pass on.
        last = await self._plan(user, Layer.L4, moved, found=fourth)
        effects.put += [self._archived(e) for e in last.archive]
        effects.counts["archived"] += len(last.archive)
        return self._moved(effects, user, Layer.L3, plan)

    async def _revive(self, job: Job, _: Sequence[Claim], moved: set[str]) -> Effects:
        """Archived records that were recalled often enough come back: where they were, or one layer up."""
        records = await self._successors(job.scope, [str(id) for id in job.payload.get("records", ())])
        return await self._revived(job.scope, records, moved)

    async def _successors(self, user: Scope, ids: Collection[str]) -> list[Episode]:
        """The successors of these records, as far as they exist, read with one call."""
        return living(ids, (await get_all(self._store, user, [*ids, *map(statement_id, ids)])).values())

    async def _revived(self, user: Scope, records: Iterable[Episode], moved: set[str]) -> Effects:
        effects, now = Effects(), self._clock.now()
        for record in records:
            if record.archived_at is None or record.id in moved:
                continue
            back = revived(record, self._config, now=now)
            if back is None:
                continue
            made = await self._in_l2([record]) if back.layer == Layer.L2 != record.layer else [back]
            effects.put += made
            effects.unembedded += [back] if back.layer == Layer.L4 and back.sources else []
            effects.moved |= {episode.id for episode in made} if back.layer != record.layer else set()
            effects.counts["returned"] += 1
            if self._config.enable_auto_migration:
                effects.jobs.append(self.job(user, LAYER_JOBS[back.layer]))
        return effects

    async def _episode(self, job: Job, _: Sequence[Claim], __: set[str]) -> Effects:
        """Write the episode of a session that has ended into L3; if it went on meanwhile, queue the job again."""
        session = str(job.payload["session"])
        turns = await self.episodes.turns(job.scope, session)
        if turns and (idle_at := self.episodes.idle_at(turns)) > self._clock.now():
            return Effects(jobs=[session_job(EPISODE, job.scope, session, idle_at)])
        effects = await self._write_episode(job.scope, session)
        if self._config.enable_auto_migration:  # also if end_session() wrote it before: L3 may have grown then
            effects.jobs.append(self.job(job.scope, LAYER_JOBS[Layer.L3]))
        return effects

    async def _write_episode(self, user: Scope, session: str) -> Effects:
        """The effects that write the episode of a session; none if it is up to date."""
        effects = Effects()
        built, is_complete = await self.episodes.build(user, session, await self.episodes.turns(user, session))
        if built is None:
            return effects
        effects.put.append(built)
        effects.counts["episodes"] += 1
        if self.on_summary_job is not None and not is_complete:  # a model has nothing to add to a complete one
            effects.jobs.append(session_job(SUMMARY, user, session, self._clock.now()))
            effects.counts["retold"] += 1
        return effects

    async def _has_episode(self, user: Scope, session: str, effects: Effects) -> bool:
        """Whether a session has an episode that covers what leaves L2; it is written now if there is none yet.

        Turns since then queued a job that rewrites it, so a long session is not read again for each of them.
        """
        if await self.episodes.stored(user, session) is not None:
            return True
        written = await self._write_episode(user, session)
        effects.put += written.put
        effects.jobs += written.jobs
        effects.counts += written.counts
        return bool(written.put)

    async def _missing_episodes(self, user: Scope, sessions: Collection[str]) -> list[Job]:
        """Jobs that write the episodes of those of these sessions that have none; mostly, such a job is open."""
        known = await get_all(self._store, user, [episode_id(session) for session in sessions])
        missing = sorted(session for session in sessions if episode_id(session) not in known)
        return [session_job(EPISODE, user, session, self._clock.now()) for session in missing]

    # -- shared by the verbs ------------------------------------------------------------------------------

    async def _plan(
        self,
        scope: Scope,
        layer: Layer,
        moved: set[str],
        changed: Sequence[Episode] = (),
        *,
        found: Sequence[Record] | None = None,
    ) -> LayerPlan:
        """What moves up from a layer and what is archived; `changed` are records that are about to be written.

        `found` are the records of the layer, where they were read before.
        """
        if found is None:
            found = [record async for record in every(self._store, scope, in_layer(layer))]
        newer = {episode.id: episode for episode in changed}
        stored = [newer.pop(record.id, record) for record in found if isinstance(record, Episode)]
        episodes = [*stored, *newer.values()]
        chars = self._compressor.chars_read([episode.text for episode in episodes])
        sort = partial(sort_layer, episodes, layer, self._config, now=self._clock.now(), moved=moved)
        return await off_loop(chars, sort)

    def _moved(self, effects: Effects, scope: Scope, layer: Layer, plan: LayerPlan) -> Effects:
        """The effects with what a plan archives, its counts, and the job for the next layer if that grew."""
        effects.put += [self._archived(e) for e in plan.archive]
        effects.counts["promoted"] += len(plan.promote)
        effects.counts["archived"] += len(plan.archive)
        effects.moved |= {id for e in plan.promote for id in (e.id, statement_id(e.id))}
        above = Layer(layer + 1)
        grew = bool(plan.promote) or any(isinstance(r, Episode) and r.layer == above for r in effects.put)
        if grew and above in _NEXT and self._config.enable_auto_migration:
            effects.jobs.append(self.job(scope, _NEXT[above]))
        return effects

    def _archived(self, episode: Episode) -> Episode:
        return changed(episode, archived_at=self._clock.now())

    async def _in_l2(self, promoted: Sequence[Episode]) -> list[Episode]:
        """Records of L1 moved to L2: as statements, with the originals archived; or as they are, uncompressed."""
        if not (self._config.enable_compression and self._config.l2.auto_compress):
            return [replace(episode, layer=Layer.L2, archived_at=None) for episode in promoted]
        chars = self._compressor.chars_read([episode.text for episode in promoted])
        statements = await off_loop(chars, lambda: [self._statement(episode) for episode in promoted])
        return [*statements, *(e if e.archived_at else self._archived(e) for e in promoted)]

    def _statement(self, episode: Episode) -> Episode:
        """A short form of an episode; it names the episode, which stays in the archive, as its source."""
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
