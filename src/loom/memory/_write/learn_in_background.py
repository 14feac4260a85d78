"""Learning with a language model in the background, in batches.

Each remembered turn worth reading queues a durable job. The jobs of a user are read with one request when enough of
them wait, when the user has been idle for a while, and when the memory is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby
from logging import getLogger
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from anyio import CancelScope, Event, sleep

from loom.core.clock import Clock
from loom.core.doors import Late
from loom.core.record import Claim, Episode
from loom.core.scope import Scope
from loom.core.threads import Locks
from loom.errors import BadResponse, LoomError, ProviderUnavailable, RateLimited, StoreConflict
from loom.memory._shared import retry_stale
from loom.memory._upkeep.metabolism import with_importance
from loom.memory._upkeep.summaries import SUMMARY, ContextCompressor, SessionEpisodes, job_episodes, texts_of
from loom.memory._write.apply_claims import Learner, LearnResult
from loom.memory._write.extract_llm import worth_reading
from loom.memory.config import MemoryConfig
from loom.memory.results import Learned, reason_of
from loom.protocols.extractor import Extraction, Extractor
from loom.protocols.memory_store import Job, Lease, Store
from loom.telemetry import Bill, Ledger

if TYPE_CHECKING:
    import asyncio
else:
    asyncio = Late("asyncio")

# Reads remembered turns with a model: pending jobs of a user become one request, and its claims become facts.
#
# If no turns wait, the model rewrites the episodes of sessions in its own words, one request for each.

KIND = "learn"
LEASE = timedelta(minutes=15)
"""Longer than a slow model takes: a lease that runs out too early is read, and paid for, twice."""
BATCH = 16
"""Turns per request."""
CHARS = 24_000
"""Characters of all turns of one request; a longer turn is read alone."""
MAX_ATTEMPTS = 3
"""Attempts per turn. From the second on it is read alone, so that one bad turn does not spoil the others."""
MAX_OUTAGES = 12
"""Attempts while the provider is unavailable; with pauses of 2 to 3,600 seconds that is a bit more than an hour."""
UNREAD_IN_A_ROW = 3
"""Unreadable replies in a row after which the model is not asked again until the next start: it costs money."""
_LONGEST_PAUSE = 3600.0
_KEPT = "an episode keeps sentences of its conversation, because no model could write it: "

_T = TypeVar("_T")


@runtime_checkable
class Meterable(Protocol):
    """An extractor whose requests can be metered."""

    def metered(self, ledger: Ledger) -> Extractor:
        """The same extractor, with every request on a ledger."""
        ...


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of reading a batch of jobs."""

    reports: tuple[Learned, ...] = ()
    retry_in: float | None = None
    """Seconds until the first failed job may be retried."""
    released: int = 0
    """Jobs that were put back unchanged, because reading them was interrupted."""
    has_more: bool = False
    """Whether more jobs may be due."""


class TurnReader:
    """Reads jobs with an extractor. Nothing is learned from turns that were forgotten meanwhile."""

    def __init__(
        self,
        store: Store,
        extractor: Extractor,
        *,
        learner: Learner,
        locks: Locks,
        clock: Clock,
        episodes: SessionEpisodes | None = None,
        compressor: ContextCompressor | None = None,
    ) -> None:
        self.bill = Bill()
        """The cost so far."""
        self._store, self._extractor, self._learner = store, extractor, learner
        self._locks, self._clock = locks, clock
        self._episodes, self._compressor = episodes, compressor
        self._unread = 0
        self._calls: dict[CancelScope, Scope] = {}
        self._idle: Event | None = None

    @property
    def has_given_up(self) -> bool:
        """Whether too many replies in a row could not be read."""
        return self._unread >= UNREAD_IN_A_ROW

    def interrupt(self, user: Scope | None = None) -> None:
        """Cancel the running requests of one user or of all, without waiting; their jobs are put back."""
        for call, owner in self._calls.items():
            if user in {None, owner}:
                call.cancel()

    async def stop(self) -> None:
        """Cancel all running requests, and wait until they have ended."""
        self.interrupt()
        while self._calls:
            self._idle = self._idle or Event()
            await self._idle.wait()

    async def read(self, user: Scope | None) -> BatchResult | None:
        """Read the oldest due jobs, of one user or of all; None if there are none."""
        now = self._clock.now()
        leases = await self._store.lease(now=now, until=now + LEASE, limit=BATCH, scope=user, kinds=(KIND,))
        if not leases:
            return await self._rewrite_episode(user)
        results: list[BatchResult] = []
        left = {lease.token: lease for lease in leases}
        try:
            episodes = {lease.token: await job_episodes(self._store, lease.job) for lease in leases}
            for group in _groups(leases, episodes):
                results.append(await self._read_group(group, [e for lease in group for e in episodes[lease.token]]))
                left = {token: lease for token, lease in left.items() if lease not in group}
                if self.has_given_up:
                    await self._release(left.values())
                    break
        except BaseException:
            with CancelScope(shield=True), suppress(LoomError):
                await self._release(left.values())
            raise
        return BatchResult(
            tuple(report for result in results for report in result.reports),
            min((result.retry_in for result in results if result.retry_in is not None), default=None),
            sum(result.released for result in results),
            has_more=len(leases) == BATCH,
        )

    async def _read_group(self, leases: Sequence[Lease], episodes: Sequence[Episode]) -> BatchResult:
        """Read the episodes of some jobs with one request, and close the jobs or put them back."""
        user, ledger = leases[0].job.scope, Ledger()
        report = Learned(user_id=user.user_id, turns=len(leases))
        try:
            if not worth_reading(episodes):
                await self._close(leases)
                return BatchResult()
            found = await self._extract(user, ledger, episodes)
            if found is None:
                await self._release(leases)
                async with self._locks.of(user):  # wait for forget(), which interrupted it
                    return BatchResult(released=len(leases))
            result = await self._write(leases, episodes, found.claims)
            if result is None:
                return BatchResult((replace(report, turns=0, bill=ledger.bill),), released=len(leases))
            self._unread = 0
            notes = (*result.notes, *result.instruction_notes)
            if found.skipped:  # it quotes nothing, because the text may be forgotten later
                notes += (f"{len(found.skipped)} part(s) of what a model read or answered were left out",)
            return BatchResult((replace(report, facts=len(result.facts), notes=notes, bill=ledger.bill),))
        except Exception as error:  # noqa: BLE001 - extractors are third-party code; the leases must be released
            self._unread += isinstance(error, BadResponse)
            retry_in = await self._put_back(leases, error)
            stops = "; no more turns are read until the next start" if self.has_given_up else ""
            return BatchResult((replace(report, failed=reason_of(error) + stops, bill=ledger.bill),), retry_in)
        finally:
            self.bill += ledger.bill

    async def _extract(self, user: Scope, ledger: Ledger, episodes: Sequence[Episode]) -> Extraction | None:
        """The extraction of some episodes; None if it was interrupted."""
        is_metered = isinstance(self._extractor, Meterable)
        extractor = self._extractor.metered(ledger) if isinstance(self._extractor, Meterable) else self._extractor
        found = await self._interruptible(user, lambda: extractor.extract(episodes))
        if found is not None and not is_metered:
            ledger.answered(found.usage)
        if found is not None and found.unread and not found.claims:
            raise BadResponse(f"no JSON could be read in {found.unread} of the model's replies")
        return found

    async def _interruptible(self, user: Scope, ask: Callable[[], Awaitable[_T]]) -> _T | None:
        """The result of a request; None if it was interrupted."""
        answer: _T | None = None
        with CancelScope() as call:
            self._calls[call] = user
            try:
                answer = await ask()
            finally:
                del self._calls[call]
                if self._idle is not None and not self._calls:
                    self._idle.set()
                    self._idle = None
        return answer

    async def _rewrite_episode(self, user: Scope | None) -> BatchResult | None:
        """Let the model rewrite the episode of one session; None if none waits, or without a model."""
        if self._episodes is None or self._compressor is None:
            return None
        now = self._clock.now()
        leases = await self._store.lease(now=now, until=now + LEASE, limit=1, scope=user, kinds=(SUMMARY,))
        if not leases:
            return None
        (lease,), ledger = leases, Ledger()
        report = Learned(user_id=lease.job.scope.user_id)
        try:
            is_written = await self._summarize(lease, self._episodes, self._compressor.metered(ledger))
            if is_written is None:
                await self._release(leases)
                async with self._locks.of(lease.job.scope):  # wait for forget(), which interrupted it
                    return BatchResult((replace(report, bill=ledger.bill),), released=1, has_more=True)
            return BatchResult((replace(report, episodes=int(is_written), bill=ledger.bill),), has_more=True)
        except Exception as error:  # noqa: BLE001 - models are third-party code; the selected sentences stay
            retry_in = await self._put_back(leases, error) if isinstance(error, LoomError) and error.retryable else None
            await self._close(leases)
            report = replace(report, notes=(_KEPT + reason_of(error),), bill=ledger.bill)
            return BatchResult((report,), retry_in, has_more=True)
        except BaseException:
            with CancelScope(shield=True), suppress(LoomError):
                await self._release(leases)
            raise
        finally:
            self.bill += ledger.bill

    async def _summarize(self, lease: Lease, episodes: SessionEpisodes, compressor: ContextCompressor) -> bool | None:
        """Ask the model, and write its summary if the turns did not change meanwhile; None if it was interrupted.

        A session that went on meanwhile queues another job when it ends.
        """
        user, session = lease.job.scope, str(lease.job.payload["session"])
        turns = await episodes.turns(user, session)
        if not turns:
            await self._close([lease])
            return False
        lines = [f"{turn.speaker or turn.provenance.origin}: {turn.text}" for turn in turns]
        text = await self._interruptible(user, lambda: compressor.summarize(lines))
        if text is None:
            return None

        async def attempt(epoch: str) -> bool:
            is_same = texts_of(await episodes.turns(user, session)) == texts_of(turns)
            built, _ = await episodes.build(user, session, turns, text=text) if is_same else (None, True)
            await self._store.finish(lease, put=[built] if built else [], since=epoch)
            return built is not None

        async with self._locks.of(user):
            return await retry_stale(self._store, user, attempt)

    async def _write(
        self, leases: Sequence[Lease], episodes: Sequence[Episode], claims: Sequence[Claim]
    ) -> LearnResult | None:
        """Write the facts of claims and close the jobs; None if an episode was forgotten or changed meanwhile.

        Any claim may contain words of any episode that was read, so what is left is put back to be read again.
        """
        user = leases[0].job.scope

        async def attempt(epoch: str) -> LearnResult | None:
            current = [e for lease in leases for e in await job_episodes(self._store, lease.job)]
            if texts_of(current) != texts_of(episodes):
                return None
            result = await self._learner.learn(user, episodes, claims)
            important = await with_importance(self._store, user, result.importance)
            await self._store.finish(leases[0], put=[*result.facts, *result.unconfirmed, *important], since=epoch)
            return result

        async with self._locks.of(user):
            result = await retry_stale(self._store, user, attempt)
            if result is None:
                await self._release(leases)
                return None
            await self._close(leases[1:])
            with suppress(LoomError):  # the next claim about the same subject repairs it
                await self._learner.settle(user, result.facts)
        return result

    async def _close(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            with suppress(StoreConflict):  # forgotten, or done by another worker
                await self._store.finish(lease)

    async def _release(self, leases: Iterable[Lease]) -> None:
        """Put jobs back unchanged: this attempt does not count."""
        for lease in leases:
            with suppress(StoreConflict):
                job = replace(lease.job, attempts=lease.job.attempts - 1)
                await self._store.finish(lease, jobs=[job])

    async def _put_back(self, leases: Sequence[Lease], error: Exception) -> float | None:
        """Schedule a retry of failed jobs, or give them up; returns the seconds until the first retry."""
        now = self._clock.now()
        limit = MAX_OUTAGES if isinstance(error, LoomError) and error.retryable else MAX_ATTEMPTS
        requested = error.retry_after if isinstance(error, RateLimited | ProviderUnavailable) else None
        reason = type(error).__name__  # the message is not stored: it may quote text that is forgotten later
        reason += f": {str(type(error).__doc__).splitlines()[0]}" if isinstance(error, LoomError) else ""
        pauses: list[float] = []
        for lease in leases:
            pause = min(max(requested or 0.0, 2.0**lease.job.attempts), _LONGEST_PAUSE)
            is_retried = lease.job.attempts < limit
            pauses += [pause] if is_retried else []
            with suppress(StoreConflict):
                retry_at = now + timedelta(seconds=pause) if is_retried else None
                await self._store.fail(lease, reason=reason, now=now, retry_at=retry_at)
        return min(pauses, default=None)


def _groups(leases: Sequence[Lease], episodes: dict[str, list[Episode]]) -> Iterator[list[Lease]]:
    """The jobs that share a request: of one user, as many as fit; a job that failed before is read alone."""
    for _, of_user in groupby(sorted(leases, key=lambda one: one.job.scope.key()), key=lambda one: one.job.scope):
        group, size = list[Lease](), 0
        for lease in of_user:
            length = sum(len(e.text) for e in episodes[lease.token] if e.provenance.origin != "assistant")
            if lease.job.attempts > 1:
                yield [lease]
            elif group and size + length > CHARS:
                yield group
                group, size = [lease], length
            else:
                group, size = [*group, lease], size + length
        if group:
            yield group


AT_ONCE = 4
"""Users whose turns are read at the same time."""
LAST_BATCHES = 8
"""Batches that closing may read; the rest stays for the next start."""
_REPORTS = 1000
"""Users whose reports are held until learned() is called."""
_log = getLogger(__name__)

Facts: TypeAlias = Literal["auto", "model", "rules"] | None
"""How facts are extracted: by `rules` at once, by a `model` in the background as well, or not at all (None). `auto` is
`model` for an agent whose model was named, and `rules` otherwise."""
FACTS = ("auto", "model", "rules", None)


class Learning:
    """Decides when a model reads pending turns. Without a reader, jobs are only queued, for another process."""

    def __init__(
        self,
        reader: TurnReader | None,
        config: MemoryConfig,
        *,
        make_job: Callable[..., Job],
        one_at_a_time: bool = False,
    ) -> None:
        self.reader = reader
        self._config, self._make_job, self._one_at_a_time = config, make_job, one_at_a_time
        self._waiting: dict[Scope, int] = {}
        self._tasks: dict[Scope, asyncio.Task[None]] = {}
        self._reading: set[Scope] = set()
        self._freed: Event | None = None
        self._reports: OrderedDict[Scope, Learned] = OrderedDict()
        self._answers = 0
        self._closed = False

    @property
    def bill(self) -> Bill:
        """The cost so far."""
        return self.reader.bill if self.reader else Bill()

    @property
    def waits(self) -> bool:
        """Whether turns of this process wait to be read."""
        return bool(self._waiting)

    # -- pending turns ------------------------------------------------------------------------------------

    def jobs(self, scope: Scope, episodes: Sequence[Episode]) -> list[Job]:
        """The job to write with these episodes; none if there is nothing to learn from them."""
        if not worth_reading(episodes):
            return []
        ids = [episode.id for episode in episodes]
        return [self._make_job(scope, KIND, key=f"{KIND}:{ids[0]}", episodes=ids)]

    def wake(self, scope: Scope, episodes: Sequence[Episode]) -> None:
        """Schedule reading of episodes that were written with their job."""
        if worth_reading(episodes):
            self.schedule(scope.for_user())

    def schedule(self, user: Scope) -> None:
        """Schedule reading, after a job of a user was written for the model."""
        if self.reader is not None and not self._closed:
            self._waiting[user] = self._waiting.get(user, 0) + 1
            self._schedule(user)

    def interrupt(self, user: Scope) -> None:
        """Cancel requests about a user, because some of their turns are about to be forgotten.

        It does not wait, so that forget() gets the lock first; what is left is read again afterwards.
        """
        if self.reader is not None:
            self.reader.interrupt(user)
        if user in self._reports:  # its notes may quote what is to be forgotten
            self._reports[user] = replace(self._reports[user], notes=())

    def pop_report(self, user: Scope) -> Learned | None:
        """What was learned about a user since the last call."""
        return self._reports.pop(user, None)

    @asynccontextmanager
    async def answering(self) -> AsyncGenerator[None]:
        """Pause learning while an answer is generated, if the model serves one request at a time."""
        if self.reader is None or not self._one_at_a_time:
            yield
            return
        self._answers += 1
        try:
            await self.reader.stop()
            yield
        finally:
            self._answers -= 1
            if not self._answers:
                for user in self._waiting:
                    self._schedule(user)

    # -- reading ------------------------------------------------------------------------------------------

    async def drain(self, user: Scope | None = None, *, limit: int | None = None) -> tuple[Learned, ...]:
        """Read all due jobs, of one user or of all, in at most `limit` batches; waits for background reading first."""
        reports: list[Learned] = []
        batches = 0
        while self._is_reading(user):
            await self._wait_for_reader()
        while self.reader is not None and (limit is None or batches < limit):
            result = await self.reader.read(user)
            if result is None:
                break
            batches += 1
            reports += result.reports
            if self.reader.has_given_up:
                break
        return tuple(reports)

    async def work(self, pause: float) -> None:
        """Read due jobs repeatedly, with a pause in seconds, until cancelled."""
        while True:
            await self.drain()
            await sleep(pause)

    async def aclose(self) -> None:
        """Read the pending turns of this process, in LAST_BATCHES batches at most, and stop. May be called twice."""
        if self._closed:
            return
        self._closed = True
        waiting = [*self._waiting]
        try:
            for user, task in self._tasks.items():
                if user not in self._reading:
                    task.cancel()
            await self._wait_for_tasks()
            for user in waiting[:LAST_BATCHES]:
                if self.reader is not None and not self.reader.has_given_up:
                    await self.drain(user, limit=max(1, LAST_BATCHES // len(waiting)))
        finally:
            for task in self._tasks.values():
                task.cancel()
            with CancelScope(shield=True):
                await self._wait_for_tasks()

    async def _wait_for_tasks(self) -> None:
        """Wait until every task of this event loop has ended."""
        tasks = [task for task in self._tasks.values() if task.get_loop() is asyncio.get_running_loop()]
        if tasks:
            await asyncio.wait(tasks)

    def _is_reading(self, user: Scope | None) -> bool:
        """Whether a task of this event loop reads turns of a user, or of any user."""
        reading = [self._tasks.get(owner) for owner in self._reading if user in {None, owner}]
        return any(task is not None and task.get_loop() is asyncio.get_running_loop() for task in reading)

    async def _wait_for_reader(self) -> None:
        """Wait until one of the readers is free again."""
        self._freed = self._freed or Event()
        await self._freed.wait()

    def _schedule(self, user: Scope) -> None:
        """Start a task that reads a user's turns: at once if enough wait, else after the user was idle for a while."""
        if user in self._reading or self._delay(user) is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # not asyncio: pending turns are read by drain() or aclose()
            return
        if (old := self._tasks.get(user)) is not None and not old.get_loop().is_closed():
            old.cancel()
        task = loop.create_task(self._run(user, self._delay(user)))
        self._tasks[user] = task
        task.add_done_callback(lambda done: self._tasks.pop(user) if self._tasks.get(user) is done else None)

    def _delay(self, user: Scope) -> float | None:
        """Seconds until the turns of a user are to be read; None if none are."""
        if user not in self._waiting or self._closed or self._answers:
            return None
        if self.reader is None or self.reader.has_given_up:
            return None
        return 0.0 if self._waiting[user] >= self._config.learn_turns else self._config.learn_seconds

    async def _run(self, user: Scope, delay: float | None) -> None:
        """Read the pending turns of a user, and retry those that failed."""
        while delay is not None:
            await sleep(delay)
            while len(self._reading) >= AT_ONCE:
                await self._wait_for_reader()
            if self._answers:
                return  # answering() schedules it again
            self._reading.add(user)
            try:
                retry_in = await self._read(user)
                delay = self._delay(user) if retry_in is None else retry_in
            except Exception:  # noqa: BLE001 - no caller awaits this task; the jobs stay queued for the next turn
                _log.exception("remembered turns could not be read")
                return
            finally:
                self._reading.discard(user)
                if self._freed is not None:
                    self._freed.set()
                    self._freed = None

    async def _read(self, user: Scope) -> float | None:
        """Read the pending turns of a user now; returns the seconds until failed ones are retried, None if none failed.

        Turns that arrive meanwhile are not part of it: they wait until there are enough of them.
        """
        assert self.reader is not None
        while not (self._closed or self._answers or self.reader.has_given_up):
            before = self._waiting.get(user, 0)
            result = await self.reader.read(user)
            left = self._waiting.pop(user, 0) - before + (result.released if result else 0)
            if left > 0:
                self._waiting[user] = left
            if result is None:
                return None
            for report in result.reports:
                earlier = self._reports.pop(user, None)
                self._reports[user] = report if earlier is None else earlier + report
            while len(self._reports) > _REPORTS:
                self._reports.popitem(last=False)
            if result.retry_in is not None or not result.has_more:
                return result.retry_in
        return None
