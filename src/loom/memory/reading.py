"""Reading: the jobs of a user that wait for a model become one request, and what it finds becomes facts.

Where no turns wait, it writes the episodes of sessions again, in its own words: one request for each.
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
from loom.core.record import Episode, Fact
from loom.core.scope import Scope
from loom.errors import BadResponse, LoomError, ProviderUnavailable, RateLimited, StoreConflict
from loom.memory.compress import ContextCompressor
from loom.memory.episodes import SUMMARY, SessionEpisodes
from loom.memory.extract.worth import worth_reading
from loom.memory.guarded import retry_stale
from loom.memory.learn import LearnResult
from loom.memory.locks import Locks
from loom.memory.marking import with_importance
from loom.memory.neighbours import Store
from loom.memory.values import Learned
from loom.protocols.extractor import Claim, Extraction, Extractor
from loom.protocols.jobs import Lease
from loom.telemetry.bill import Bill, Ledger

KIND = "learn"
LEASE = timedelta(minutes=15)
"""Longer than a slow model takes: what is taken for abandoned is read, and paid for, twice."""
BATCH = 16
"""Turns that are read with one request."""
CHARS = 24_000
"""Characters of all turns of one request; a turn that is longer is read alone."""
MAX_ATTEMPTS = 3
"""How often turns are read that fail; from the second time on each is read alone, so that one spoils no others."""
MAX_OUTAGES = 12
"""How often they are tried while the provider is away, with pauses of up to an hour."""
UNREAD_IN_A_ROW = 3
"""Replies that cannot be read, one after the other: then the model is asked no more until the next start."""
_LONGEST_PAUSE = 3600.0
_KEPT = "an episode keeps sentences of its conversation, because no model could write it: "

_T = TypeVar("_T")


class Decides(Protocol):
    """Decides what claims change."""

    async def learn(self, scope: Scope, episodes: Sequence[Episode], claims: Sequence[Claim]) -> LearnResult:
        """The facts to write for what these episodes state."""
        ...

    async def settle(self, scope: Scope, written: Sequence[Fact]) -> None:
        """Put right what another process decided at the same time."""
        ...


@runtime_checkable
class Meterable(Protocol):
    """An extractor whose requests can be counted one by one."""

    def metered(self, ledger: Ledger) -> Extractor:
        """The same, with every request on a ledger."""
        ...


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of some jobs."""

    reports: tuple[Learned, ...] = ()
    again: float | None = None
    """In how many seconds the first of those that failed may be tried again."""
    left: int = 0
    """How many were put back as they were, because reading them was broken off."""
    is_full: bool = False
    """Whether there may be more of them."""


class TurnReader:
    """Reads jobs with an extractor. What was forgotten while it read is not learnt."""

    def __init__(
        self,
        store: Store,
        extractor: Extractor,
        *,
        learner: Decides,
        locks: Locks,
        clock: Clock,
        episodes: SessionEpisodes | None = None,
        compressor: ContextCompressor | None = None,
    ) -> None:
        self.bill = Bill()
        """What has been spent so far."""
        self._unread = 0
        self._store = store
        self._extractor = extractor
        self._learner = learner
        self._locks = locks
        self._clock = clock
        self._episodes_of = episodes
        self._compressor = compressor
        self._calls: dict[CancelScope, Scope] = {}
        self._idle: Event | None = None

    @property
    def has_given_up(self) -> bool:
        """Whether so many replies in a row could not be read that more of them would be money for nothing."""
        return self._unread >= UNREAD_IN_A_ROW

    def interrupt(self, user: Scope | None = None) -> None:
        """Break off what is being read, of one user or of all. It does not wait; the jobs are put back."""
        for call, whose in self._calls.items():
            if user in {None, whose}:
                call.cancel()

    async def stop(self) -> None:
        """Break off everything that is being read, and wait until it has ended."""
        self.interrupt()
        while self._calls:
            self._idle = self._idle or Event()
            await self._idle.wait()

    async def read(self, user: Scope | None) -> BatchResult | None:
        """Read the oldest jobs that are due, of one user or of everybody; None where there are none."""
        now = self._clock.now()
        leases = await self._store.lease(now=now, until=now + LEASE, limit=BATCH, scope=user, kinds=(KIND,))
        if not leases:
            return await self._retell(user)
        lots: list[BatchResult] = []
        left = {lease.token: lease for lease in leases}
        try:
            said = {lease.token: await self._episodes(lease) for lease in leases}
            for group in _groups(leases, said):
                lots.append(await self._group(group, [e for lease in group for e in said[lease.token]]))
                left = {token: lease for token, lease in left.items() if lease not in group}
                if self.has_given_up:
                    await self._release(left.values())
                    break
        except BaseException:
            with CancelScope(shield=True), suppress(LoomError):
                await self._release(left.values())
            raise
        return BatchResult(
            tuple(report for lot in lots for report in lot.reports),
            min((lot.again for lot in lots if lot.again is not None), default=None),
            sum(lot.left for lot in lots),
            is_full=len(leases) == BATCH,
        )

    async def _group(self, leases: Sequence[Lease], episodes: Sequence[Episode]) -> BatchResult:
        """Read the episodes of some jobs with one call, and close the jobs or put them back."""
        user, ledger = leases[0].job.scope, Ledger()
        told = Learned(user_id=user.user_id, turns=len(leases))
        try:
            if not worth_reading(episodes):
                await self._close(leases)
                return BatchResult()
            found = await self._extracted(user, ledger, episodes)
            if found is None:
                await self._release(leases)
                async with self._locks.of(user):  # whoever broke it off is done then
                    return BatchResult(left=len(leases))
            learnt = await self._applied(leases, episodes, found.claims)
            if learnt is None:
                return BatchResult((replace(told, turns=0, bill=ledger.bill),), left=len(leases))
            self._unread = 0
            notes = (*learnt.notes, *learnt.instruction_notes, *_unused(found))
            return BatchResult((replace(told, facts=len(learnt.facts), notes=notes, bill=ledger.bill),))
        except Exception as error:  # noqa: BLE001 - an extractor may be anybody's; the jobs must not stay as they were
            self._unread += isinstance(error, BadResponse)
            again = await self._put_back(leases, error)
            stops = "; no more turns are read until the next start" if self.has_given_up else ""
            return BatchResult((replace(told, failed=_reason(error) + stops, bill=ledger.bill),), again)
        finally:
            self.bill += ledger.bill

    async def _extracted(self, user: Scope, ledger: Ledger, episodes: Sequence[Episode]) -> Extraction | None:
        """What the extractor finds; None where it was broken off."""
        counted = isinstance(self._extractor, Meterable)
        extractor = self._extractor.metered(ledger) if isinstance(self._extractor, Meterable) else self._extractor
        found = await self._unless_broken_off(user, lambda: extractor.extract(episodes))
        if found is not None and not counted:
            ledger.answered(found.usage)
        if found is not None and found.unread and not found.claims:
            raise BadResponse(f"no JSON could be read in {found.unread} of the model's replies")
        return found

    async def _unless_broken_off(self, user: Scope, ask: Callable[[], Awaitable[_T]]) -> _T | None:
        """What a call returns; None where it was broken off."""
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

    async def _retell(self, user: Scope | None) -> BatchResult | None:
        """Have the model write the episode of one session; None where none waits, or there is no model for it."""
        if self._episodes_of is None or self._compressor is None:
            return None
        now = self._clock.now()
        leases = await self._store.lease(now=now, until=now + LEASE, limit=1, scope=user, kinds=(SUMMARY,))
        if not leases:
            return None
        (lease,), ledger = leases, Ledger()
        told = Learned(user_id=lease.job.scope.user_id)
        try:
            is_written = await self._retold(lease, self._compressor.metered(ledger))
            if is_written is None:
                await self._release(leases)
                async with self._locks.of(lease.job.scope):  # whoever broke it off is done then
                    return BatchResult((replace(told, bill=ledger.bill),), left=1, is_full=True)
            return BatchResult((replace(told, episodes=int(is_written), bill=ledger.bill),), is_full=True)
        except Exception as error:  # noqa: BLE001 - a model may be anybody's; the sentences that were chosen stand
            again = await self._put_back(leases, error) if isinstance(error, LoomError) and error.retryable else None
            await self._close(leases)
            return BatchResult((replace(told, notes=(_KEPT + _reason(error),), bill=ledger.bill),), again, is_full=True)
        except BaseException:
            with CancelScope(shield=True), suppress(LoomError):
                await self._release(leases)
            raise
        finally:
            self.bill += ledger.bill

    async def _retold(self, lease: Lease, compressor: ContextCompressor) -> bool | None:
        """Ask the model, and write what it says if the turns are still as it read them; None where it was broken off.

        A session in which more was said meanwhile leaves another job when it ends.
        """
        assert self._episodes_of is not None
        user, session, episodes = lease.job.scope, str(lease.job.payload["session"]), self._episodes_of
        turns = await episodes.turns(user, session)
        if not turns:
            await self._close([lease])
            return False
        text = await self._unless_broken_off(user, lambda: compressor.summarize([_spoken(turn) for turn in turns]))
        if text is None:
            return None

        async def attempt(epoch: str) -> bool:
            now_there = await episodes.turns(user, session)
            is_same = [(e.id, e.text) for e in now_there] == [(e.id, e.text) for e in turns]
            made, _ = await episodes.build(user, session, turns, text=text) if is_same else (None, True)
            await self._store.finish(lease, put=[made] if made else [], since=epoch)
            return made is not None

        async with self._locks.of(user):
            return await retry_stale(self._store, user, attempt)

    async def _applied(
        self, leases: Sequence[Lease], episodes: Sequence[Episode], claims: Sequence[Claim]
    ) -> LearnResult | None:
        """Write what claims change and close the jobs; None where something that was read is not there any more.

        What a model read may have found its way into each of its claims, so what is left is put back to be read again.
        """
        user = leases[0].job.scope

        async def attempt(epoch: str) -> LearnResult | None:
            now_there = [e for lease in leases for e in await self._episodes(lease)]
            if [(e.id, e.text) for e in now_there] != [(e.id, e.text) for e in episodes]:
                return None
            learnt = await self._learner.learn(user, episodes, claims)
            important = await with_importance(self._store, user, learnt.importance)
            await self._store.finish(leases[0], put=[*learnt.facts, *learnt.waiting, *important], since=epoch)
            return learnt

        async with self._locks.of(user):
            learnt = await retry_stale(self._store, user, attempt)
            if learnt is None:
                await self._release(leases)
                return None
            await self._close(leases[1:])
            with suppress(LoomError):  # the next claim about the same finds and corrects it
                await self._learner.settle(user, learnt.facts)
        return learnt

    async def _episodes(self, lease: Lease) -> list[Episode]:
        found = [await self._store.get(lease.job.scope, id) for id in lease.job.payload.get("episodes", ())]
        return [episode for episode in found if isinstance(episode, Episode)]

    async def _close(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            with suppress(StoreConflict):  # forgotten, or done by somebody else
                await self._store.finish(lease)

    async def _release(self, leases: Iterable[Lease]) -> None:
        """Put jobs back as they were: that they were taken does not count."""
        for lease in leases:
            with suppress(StoreConflict):
                job = replace(lease.job, attempts=lease.job.attempts - 1)
                await self._store.finish(lease, jobs=[job])

    async def _put_back(self, leases: Sequence[Lease], error: Exception) -> float | None:
        """Try jobs again later, or give them up; returns in how many seconds the first may be tried."""
        now = self._clock.now()
        away = isinstance(error, LoomError) and error.retryable
        pauses: list[float] = []
        for lease in leases:
            pause = _pause(error, lease.job.attempts)
            again = lease.job.attempts < (MAX_OUTAGES if away else MAX_ATTEMPTS)
            pauses += [pause] if again else []
            with suppress(StoreConflict):
                retry_at = now + timedelta(seconds=pause) if again else None
                await self._store.fail(lease, reason=_stored(error), now=now, retry_at=retry_at)
        return min(pauses, default=None)


def _groups(leases: Sequence[Lease], said: dict[str, list[Episode]]) -> Iterator[list[Lease]]:
    """The jobs that are read together: of one user, as many as fit; what failed before is read alone."""
    for _, of_user in groupby(sorted(leases, key=lambda one: one.job.scope.key()), key=lambda one: one.job.scope):
        group, size = list[Lease](), 0
        for lease in of_user:
            length = sum(len(e.text) for e in said[lease.token] if e.provenance.origin != "assistant")
            if lease.job.attempts > 1:
                yield [lease]
            elif group and size + length > CHARS:
                yield group
                group, size = [lease], length
            else:
                group, size = [*group, lease], size + length
        if group:
            yield group


def _spoken(turn: Episode) -> str:
    """A turn as a model is shown it: who spoke, and what."""
    return f"{turn.speaker or turn.provenance.origin}: {turn.text}"


def _unused(found: Extraction) -> tuple[str, ...]:
    """How much of what was read or answered was of no use, without its words."""
    return (f"{len(found.skipped)} part(s) of what a model read or answered were left out",) if found.skipped else ()


def _pause(error: Exception, attempts: int) -> float:
    asked = error.retry_after if isinstance(error, RateLimited | ProviderUnavailable) else None
    return min(max(asked or 0.0, 2.0**attempts), _LONGEST_PAUSE)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, LoomError) else f"{type(error).__name__}: {error}"


def _stored(error: Exception) -> str:
    """Why it failed, to be stored: in our own words alone, because an error may repeat text that is forgotten later."""
    kind = type(error).__name__
    return f"{kind}: {str(type(error).__doc__).splitlines()[0]}" if isinstance(error, LoomError) else kind
