"""When the jobs of a user run that no worker runs: some turns after they were queued, or when the user is idle."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from logging import getLogger

from loom.core.scope import Scope
from loom.memory._upkeep.metabolism import Metabolism
from loom.memory.config import MemoryConfig
from loom.memory.results import Metabolized

TURNS = 16
"""Turns of a user after which their jobs run, even if the user is not idle."""
SHARE = 8
"""Jobs that run at once beside a conversation: its own, and a few of a backlog, which an idle hour works off."""
LAST_USERS = 32
"""Users whose jobs closing runs; those of the others stay for the next start."""
_USERS = 1000
"""Users whose reports are held until report() is called."""
_log = getLogger(__name__)


class Upkeep:
    """Runs the jobs of users who spoke in this process, behind their answers."""

    def __init__(self, metabolism: Metabolism, config: MemoryConfig) -> None:
        self._metabolism, self._config = metabolism, config
        self._waiting = Counter[Scope]()
        self._hurried = set[Scope]()
        self._reports: OrderedDict[Scope, Metabolized] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def schedule(self, user: Scope) -> None:
        """Run the jobs of a user soon: at once, after TURNS turns, or when nobody speaks for a while."""
        self._waiting[user] += 1
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # not asyncio: aclose() or a worker runs them
            return
        if self._timer is not None:
            self._timer.cancel()
        is_due = user in self._hurried or self._waiting[user] >= TURNS
        self._hurried.discard(user)
        delay = 0.0 if is_due else self._config.learn_seconds
        self._timer = loop.call_later(delay, self._start, loop)

    def hurry(self, user: Scope) -> None:
        """Jobs of a user were queued that something waits for: the next schedule() starts them at once."""
        if len(self._hurried) < _USERS:
            self._hurried.add(user)

    def report(self, user: Scope) -> Metabolized | None:
        """What the jobs of a user did since the last call."""
        return self._reports.pop(user, None)

    def forget(self, user: Scope) -> None:
        """Drop what is held of a user: notes in a report may quote what is to be forgotten."""
        self._reports.pop(user, None)
        del self._waiting[user]
        self._hurried.discard(user)

    async def aclose(self) -> None:
        """Run the jobs that wait in this process, a share of each user's. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._task])
        for user in [*self._waiting][:LAST_USERS]:
            await self._run(user)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._work())

    async def _work(self) -> None:
        """Run the jobs of all who wait; a backlog only as long as nobody speaks."""
        try:
            for user in [*self._waiting]:
                spoken = self._waiting.total()
                has_more = True
                while has_more and self._waiting.total() <= spoken and not self._closed:
                    has_more = await self._run(user)
        except Exception:  # noqa: BLE001 - no caller awaits this task; the jobs stay queued for the next turn
            _log.exception("memory jobs could not be run")

    async def _run(self, user: Scope) -> bool:
        """Run a share of a user's jobs; whether there are more."""
        del self._waiting[user]
        await self._metabolism.queue_layer_jobs(user)
        done = await self._metabolism.run(user, limit=SHARE)
        earlier = self._reports.pop(user, None)
        self._reports[user] = done if earlier is None else earlier + done
        while len(self._reports) > _USERS:
            self._reports.popitem(last=False)
        return done.jobs + len(done.failed) >= SHARE
