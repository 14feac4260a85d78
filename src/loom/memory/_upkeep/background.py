"""When the jobs of a user run that no worker runs: some turns after they were queued, or when the user is idle."""

from __future__ import annotations

from collections import Counter, OrderedDict
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING

from loom.core.doors import Late
from loom.core.scope import Scope
from loom.errors import LoomError
from loom.memory._upkeep.metabolism import MOVES, NO_MOVES, Metabolism, Moves
from loom.memory.config import MemoryConfig
from loom.memory.results import Metabolized

if TYPE_CHECKING:
    import asyncio
else:
    asyncio = Late("asyncio")

TURNS = 64
"""Turns of a user after which their jobs run, even if the user is not idle: what turns move is written with them."""
SHARE = 8
"""Jobs that run at once beside a conversation: its own, and a few of a backlog, which an idle hour works off."""
LAST_USERS = 32
"""Users whose jobs closing runs; those of the others stay for the next start."""
_MOST_HELD = 1000
"""Records of a user that wait for their next turn to come back; of more, jobs are queued."""
_USERS = 1000
"""Users of whom anything is held: reports, and what their accesses made due."""
_log = getLogger(__name__)


class Upkeep:
    """Runs the jobs of users who spoke in this process: those of a turn with it, the others behind the answers."""

    def __init__(self, metabolism: Metabolism, config: MemoryConfig) -> None:
        self._metabolism, self._config = metabolism, config
        self._waiting = Counter[Scope]()
        self._hurried = set[Scope]()
        self._held: dict[Scope, Moves] = {}
        """What accesses made due, of users whose next turn writes it; their accesses queue no jobs."""
        self._due: dict[Scope, Moves] = {}
        """What accesses of others made due, and is not queued yet."""
        self._queueing: dict[Scope, asyncio.Task[None]] = {}
        self._reports: OrderedDict[Scope, Metabolized] = OrderedDict()
        self._tasks: dict[Scope, asyncio.Task[None]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._calls = 0
        self._closed = False

    def schedule(self, user: Scope) -> None:
        """Run the jobs of a user soon: after TURNS turns, or when nobody speaks for a while."""
        self._calls += 1
        self._waiting[user] += 1
        if len(self._held) < _USERS:
            self._held.setdefault(user, NO_MOVES)
        self._arm(user)

    def _arm(self, user: Scope) -> None:
        if (loop := _running_loop()) is None:  # aclose() or a worker runs them
            return
        if self._waiting[user] >= TURNS:
            self._start(user, loop)
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = loop.call_later(self._config.learn_seconds, self._start_all, loop)

    async def take(self, user: Scope, moves: Moves) -> None:
        """Keep what accesses made due for the next turn of a user; where nothing says that there will be one, queue it.

        Where asyncio runs, a recall does not wait for that: it would wait for all that is written at the same time.
        """
        held = self._held.get(user)
        if held is not None and not self._closed and len(held.back) < _MOST_HELD:
            self._held[user] = held | moves
            self._waiting[user] += 0  # if no turn comes, it is queued with the jobs of the user
            self._arm(user)
            return
        self._due[user] = self._due.get(user, NO_MOVES) | moves
        loop, running = _running_loop(), self._queueing.get(user)
        if loop is None or self._closed or len(self._queueing) >= _USERS:
            await self._queue_due(user)
        elif running is None or running.done() or running.get_loop() is not loop:
            task = self._queueing[user] = loop.create_task(self._queue_due(user))
            task.add_done_callback(lambda done: self._queueing.get(user) is done and self._queueing.pop(user))

    async def _queue_due(self, user: Scope) -> None:
        """Queue what accesses of a user made due, and what they make due meanwhile."""
        while due := self._due.pop(user, None):
            try:
                await self._metabolism.queue_moves(user, due)
            except Exception as error:  # noqa: BLE001 - no caller awaits this, and stores may be third-party code
                _log.warning("what a recall made due could not be queued: %s", error)
                return  # records in the archive are due again when they are recalled; layers are checked anyway
            except BaseException:  # the event loop ends
                self._due[user] = self._due.get(user, NO_MOVES) | due
                raise
            self._hurry(user)

    async def _settle_due(self, user: Scope) -> None:
        """Have what accesses of a user made due queued."""
        running = self._queueing.get(user)
        if running is not None and not running.done() and running.get_loop() is _running_loop():
            await asyncio.wait([running])
        await self._queue_due(user)

    def held(self, user: Scope) -> Moves:
        """What accesses made due, and no turn has written yet."""
        return self._held.get(user, NO_MOVES)

    async def queue(self, user: Scope | None) -> None:
        """Queue what accesses made due, and a check of every layer: of a user, or of all that have some due."""
        for one in [*{**self._due, **self._queueing}] if user is None else [user]:
            await self._settle_due(one)
        waiting = [one for one, due in self._held.items() if due.back or due.kinds]
        for one in waiting if user is None else [user]:
            due = self.held(one)
            await self._metabolism.queue_layer_jobs(one, due)
            self.release(one, due)

    def release(self, user: Scope, done: Moves) -> None:
        """Note that a turn wrote what was due."""
        held = self._held.get(user)
        if held is not None:
            self._held[user] = Moves(held.back - done.back, held.kinds - done.kinds)

    def _hurry(self, user: Scope) -> None:
        """Note that an access queued jobs, which catch_up() runs."""
        if len(self._hurried) < _USERS:
            self._hurried.add(user)

    async def catch_up(self, user: Scope) -> None:
        """Run the jobs that accesses of a turn queued; not those that were there before."""
        await self._settle_due(user)
        if user in self._hurried:
            self._hurried.discard(user)
            self._add(user, await self._metabolism.run(user, limit=SHARE, kinds=MOVES))

    async def settled(self, user: Scope) -> None:
        """Wait for jobs of a user that are running, so that what is read next does not depend on how fast they are.

        A backlog is interrupted for it.
        """
        task = self._tasks.get(user)
        if task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop():
            self._calls += 1
            await asyncio.wait([task])

    def report(self, user: Scope) -> Metabolized | None:
        """What the jobs of a user did since the last call."""
        return self._reports.pop(user, None)

    def forget(self, user: Scope) -> None:
        """Drop what is held of a user: notes in a report may quote what is to be forgotten."""
        self._due.pop(user, None)
        self._reports.pop(user, None)
        del self._waiting[user]
        self._hurried.discard(user)
        self._held.pop(user, None)

    async def aclose(self) -> None:
        """Run the jobs that wait in this process, a share of each user's. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for user in [*self._tasks]:
            await self.settled(user)
        for user in [*self._waiting][:LAST_USERS]:
            with suppress(LoomError):  # the jobs stay queued for the next start
                await self._run(user)
        with suppress(
            LoomError
        ):  # of the other users: accesses are counted, so that the next recall finds it due again
            await self.queue(None)

    def _start_all(self, loop: asyncio.AbstractEventLoop) -> None:
        for user in [*self._waiting]:
            self._start(user, loop)

    def _start(self, user: Scope, loop: asyncio.AbstractEventLoop) -> None:
        running = self._tasks.get(user)
        if running is None or running.get_loop() is not loop:
            task = self._tasks[user] = loop.create_task(self._tend(user))
            task.add_done_callback(lambda done: self._tasks.pop(user) if self._tasks.get(user) is done else None)

    async def _tend(self, user: Scope) -> None:
        """Run a share of a user's jobs, and the rest of a backlog as long as nobody speaks."""
        calls = self._calls
        try:
            while await self._run(user) and self._calls == calls and not self._closed:
                pass
        except Exception:  # noqa: BLE001 - no caller awaits this task; the jobs stay queued for the next turn
            _log.exception("memory jobs could not be run")

    async def _run(self, user: Scope) -> bool:
        """Run a share of a user's jobs; whether there are more."""
        del self._waiting[user]
        await self.queue(user)
        done = await self._metabolism.run(user, limit=SHARE)
        self._add(user, done)
        return done.jobs + len(done.failed) >= SHARE

    def _add(self, user: Scope, done: Metabolized) -> None:
        earlier = self._reports.pop(user, None)
        self._reports[user] = done if earlier is None else earlier + done
        while len(self._reports) > _USERS:
            self._reports.popitem(last=False)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs here; None if it is not asyncio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
