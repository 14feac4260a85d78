"""Schedules background learning: a model reads remembered turns, several per request, and never delays an answer.

Each remembered turn worth reading queues a durable job. The jobs of a user are read with one request when enough of
them wait, when the user has been idle for a while, and when the memory is closed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from logging import getLogger
from typing import Literal, TypeAlias

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
            self._report(user, result)
            if result.retry_in is not None or not result.has_more:
                return result.retry_in
        return None

    def _report(self, user: Scope, result: BatchResult) -> None:
        for report in result.reports:
            earlier = self._reports.pop(user, None)
            self._reports[user] = report if earlier is None else earlier + report
        while len(self._reports) > _REPORTS:
            self._reports.popitem(last=False)
