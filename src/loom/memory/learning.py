"""Learning: a model reads remembered turns in the background, several at once, and never delays an answer.

Each remembered turn that may teach something leaves a durable job. The jobs of a user are read with one request when
enough of them wait, when the user has been quiet for a while, and when the memory is closed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from logging import getLogger
from typing import Literal, Protocol, TypeAlias

from anyio import CancelScope, Event, sleep

from loom.core.record import Episode
from loom.core.scope import Scope
from loom.memory.config import MemoryConfig
from loom.memory.extract.worth import worth_reading
from loom.memory.reading import KIND, BatchResult, TurnReader
from loom.memory.values import Learned
from loom.protocols.jobs import Job
from loom.telemetry.bill import Bill

AT_ONCE = 4
"""Users whose turns are read at the same time."""
LAST_LOTS = 8
"""Lots of jobs that closing may read; what is left then stays for the next start."""
_REPORTS = 1000
"""Users of whom it is remembered what was learnt until somebody asks."""
_log = getLogger(__name__)

Facts: TypeAlias = Literal["auto", "model", "rules"] | None
"""How facts are found in what is remembered: by plain rules at once, by a `model` in the background as well, or not at
all (None). `auto` is `model` for an agent whose model was named, and `rules` for everything else."""
FACTS = ("auto", "model", "rules", None)


class MakesJobs(Protocol):
    """Makes the job of some episodes."""

    def __call__(self, scope: Scope, kind: str, *, key: str | None = None, episodes: Sequence[str] = ()) -> Job:
        """A job for the user of a scope."""
        ...


class Learning:
    """Decides when a model reads what waits. Without a reader jobs are queued only, for somebody else to read."""

    def __init__(
        self, reader: TurnReader | None, config: MemoryConfig, *, make_job: MakesJobs, one_at_a_time: bool = False
    ) -> None:
        self.reader = reader
        self._config = config
        self._make_job = make_job
        self._one_at_a_time = one_at_a_time
        self._waiting: dict[Scope, int] = {}
        self._tasks: dict[Scope, asyncio.Task[None]] = {}
        self._reading: set[Scope] = set()
        self._freed: Event | None = None
        self._reports: OrderedDict[Scope, Learned] = OrderedDict()
        self._answers = 0
        self._closed = False

    @property
    def bill(self) -> Bill:
        """What has been spent so far."""
        return self.reader.bill if self.reader else Bill()

    @property
    def waits(self) -> bool:
        """Whether turns of this process wait to be read."""
        return bool(self._waiting)

    # -- what waits ---------------------------------------------------------------------------------------

    def jobs(self, scope: Scope, episodes: Sequence[Episode]) -> list[Job]:
        """The job that episodes leave, to be written with them; none where there is nothing to learn."""
        if not worth_reading(episodes):
            return []
        ids = [episode.id for episode in episodes]
        return [self._make_job(scope, KIND, key=f"{KIND}:{ids[0]}", episodes=ids)]

    def wake(self, scope: Scope, episodes: Sequence[Episode]) -> None:
        """These were written, with the job that they leave."""
        if worth_reading(episodes):
            self.retell(scope.for_user())

    def retell(self, user: Scope) -> None:
        """The episode of a session was written, with a job for a model to write it again."""
        if self.reader is not None and not self._closed:
            self._waiting[user] = self._waiting.get(user, 0) + 1
            self._schedule(user)

    def interrupt(self, user: Scope) -> None:
        """Break off what is being read of a user, because something of it is about to be forgotten.

        It does not wait, so that whoever forgets has the lock first; what is left is read again afterwards.
        """
        if self.reader is not None:
            self.reader.interrupt(user)
        if user in self._reports:  # its notes may repeat what is to be forgotten
            self._reports[user] = replace(self._reports[user], notes=())

    def pop_report(self, user: Scope) -> Learned | None:
        """What was learnt of a user since this was asked last."""
        return self._reports.pop(user, None)

    @asynccontextmanager
    async def answering(self) -> AsyncGenerator[None]:
        """Leave the model alone while an answer is made, if it makes one at a time."""
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

    # -- reading it ---------------------------------------------------------------------------------------

    async def drain(self, user: Scope | None = None, *, limit: int | None = None) -> tuple[Learned, ...]:
        """Read everything that is due now, of one user or of everybody, in at most `limit` lots.

        What is being read in the background is waited for.
        """
        reports: list[Learned] = []
        lots = 0
        while self._is_reading(user):
            await self._one_freed()
        while self.reader is not None and (limit is None or lots < limit):
            lot = await self.reader.read(user)
            if lot is None:
                break
            lots += 1
            reports += lot.reports
            if self.reader.has_given_up:
                break
        return tuple(reports)

    async def work(self, pause: float) -> None:
        """Read everything that is due, again and again, with a pause in seconds; until it is cancelled."""
        while True:
            await self.drain()
            await sleep(pause)

    async def aclose(self) -> None:
        """Read what waits in this process, as far as a few requests go, and end. Closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        waiting = [*self._waiting]
        try:
            for user, task in self._tasks.items():
                if user not in self._reading:
                    task.cancel()
            await self._ended()
            for user in waiting[:LAST_LOTS]:
                if self.reader is not None and not self.reader.has_given_up:
                    await self.drain(user, limit=max(1, LAST_LOTS // len(waiting)))
        finally:
            for task in self._tasks.values():
                task.cancel()
            with CancelScope(shield=True):
                await self._ended()

    async def _ended(self) -> None:
        """Wait until every task of this loop has ended."""
        tasks = [task for task in self._tasks.values() if task.get_loop() is asyncio.get_running_loop()]
        if tasks:
            await asyncio.wait(tasks)

    def _is_reading(self, user: Scope | None) -> bool:
        """Whether turns of a user, or of anybody, are being read by a task of this loop."""
        reading = [self._tasks.get(whose) for whose in self._reading if user in {None, whose}]
        return any(task is not None and task.get_loop() is asyncio.get_running_loop() for task in reading)

    async def _one_freed(self) -> None:
        """Wait until the turns of some user have been read."""
        self._freed = self._freed or Event()
        await self._freed.wait()

    def _schedule(self, user: Scope) -> None:
        """Have what waits of a user read: at once if it is enough, else when the user has been quiet for a while."""
        if user in self._reading or self._delay(user) is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # another kind of loop: what waits is read by drain() or aclose()
            return
        if (old := self._tasks.get(user)) is not None and not old.get_loop().is_closed():
            old.cancel()
        task = loop.create_task(self._run(user, self._delay(user)))
        self._tasks[user] = task
        task.add_done_callback(lambda done: self._tasks.pop(user) if self._tasks.get(user) is done else None)

    def _delay(self, user: Scope) -> float | None:
        """In how many seconds what waits of a user is to be read; None where nothing is."""
        if (
            user not in self._waiting
            or self._closed
            or self._answers
            or self.reader is None
            or self.reader.has_given_up
        ):
            return None
        return 0.0 if self._waiting[user] >= self._config.learn_turns else self._config.learn_seconds

    async def _run(self, user: Scope, delay: float | None) -> None:
        """Read what waits of a user, and later once more what failed."""
        while delay is not None:
            await sleep(delay)
            while len(self._reading) >= AT_ONCE:
                await self._one_freed()
            if self._answers:
                return  # it is scheduled again when the answer is there
            self._reading.add(user)
            try:
                again = await self._read(user)
                delay = self._delay(user) if again is None else again
            except Exception:  # noqa: BLE001 - nobody waits for this task; the jobs are kept, and the next turn tries again
                _log.exception("what was remembered could not be read")
                return
            finally:
                self._reading.discard(user)
                if self._freed is not None:
                    self._freed.set()
                    self._freed = None

    async def _read(self, user: Scope) -> float | None:
        """Read what waits of a user now; returns in how many seconds what failed is tried again, None if nothing did.

        What comes meanwhile waits for more, as what came before did.
        """
        assert self.reader is not None
        while not (self._closed or self._answers or self.reader.has_given_up):
            seen = self._waiting.get(user, 0)
            lot = await self.reader.read(user)
            left = self._waiting.pop(user, 0) - seen + (lot.left if lot else 0)
            if left > 0:
                self._waiting[user] = left
            if lot is None:
                return None
            self._report(user, lot)
            if lot.again is not None or not lot.is_full:
                return lot.again
        return None

    def _report(self, user: Scope, lot: BatchResult) -> None:
        for report in lot.reports:
            earlier = self._reports.pop(user, None)
            self._reports[user] = report if earlier is None else earlier + report
        while len(self._reports) > _REPORTS:
            self._reports.popitem(last=False)
