"""Reads remembered turns with a model: pending jobs of a user become one request, and its claims become facts.

If no turns wait, the model rewrites the episodes of sessions in its own words, one request for each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby
from typing import Protocol, TypeVar, runtime_checkable

from anyio import CancelScope, Event

from loom.core.clock import Clock
from loom.core.record import Episode
from loom.core.scope import Scope
from loom.errors import BadResponse, LoomError, ProviderUnavailable, RateLimited, StoreConflict
from loom.memory.compress import ContextCompressor
from loom.memory.episodes import SUMMARY, SessionEpisodes, job_episodes, texts_of
from loom.memory.extract.worth import worth_reading
from loom.memory.guarded import retry_stale
from loom.memory.learn import Learner, LearnResult
from loom.memory.locks import Locks
from loom.memory.marking import with_importance
from loom.memory.neighbours import Store
from loom.memory.values import Learned, reason_of
from loom.protocols.extractor import Claim, Extraction, Extractor
from loom.protocols.jobs import Lease
from loom.telemetry.bill import Bill, Ledger

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
            notes = (*result.notes, *result.instruction_notes, *_unused(found))
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
        pauses: list[float] = []
        for lease in leases:
            pause = _pause(error, lease.job.attempts)
            is_retried = lease.job.attempts < limit
            pauses += [pause] if is_retried else []
            with suppress(StoreConflict):
                retry_at = now + timedelta(seconds=pause) if is_retried else None
                await self._store.fail(lease, reason=_stored_reason(error), now=now, retry_at=retry_at)
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


def _unused(found: Extraction) -> tuple[str, ...]:
    """A note on how much could not be used; it quotes nothing, because the text may be forgotten later."""
    return (f"{len(found.skipped)} part(s) of what a model read or answered were left out",) if found.skipped else ()


def _pause(error: Exception, attempts: int) -> float:
    requested = error.retry_after if isinstance(error, RateLimited | ProviderUnavailable) else None
    return min(max(requested or 0.0, 2.0**attempts), _LONGEST_PAUSE)


def _stored_reason(error: Exception) -> str:
    """The reason of a failure as it is stored: without the message, which may quote text that is forgotten later."""
    kind = type(error).__name__
    return f"{kind}: {str(type(error).__doc__).splitlines()[0]}" if isinstance(error, LoomError) else kind
