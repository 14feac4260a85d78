"""One turn: recall, compile, call, run tools, append, compact when it is time, save."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from loom.context.entry import StringEntry
from loom.core.checkpoint import LoggedMessage
from loom.core.event import CheckpointSaved, CompactionEnd, Event, Recovery, TurnEnd, TurnStart
from loom.core.message import Message
from loom.core.window import Window
from loom.errors import ContextOverflow, LoomError
from loom.memory.ingest import said_in
from loom.memory.values import Recalled, Remembered
from loom.protocols.model import ModelResponse
from loom.session.history import is_sayable
from loom.session.recalling import Known
from loom.session.sending import Reply
from loom.session.state import State
from loom.telemetry.bill import Bill


class TurnRun:
    """A turn in progress. `events()` does the work; the rest tells how it went."""

    def __init__(self, state: State, message: Message) -> None:
        self._state = state
        self._message = message
        self._start = -1
        self._unfinished = False
        self._steps = 0
        self._request: LoggedMessage | None = None
        self._tail: StringEntry | None = None
        self._known: Known | None = None
        self.text = ""
        self.stop = "end"
        self.turn = 0
        self.checkpoint_id = ""
        self.bill = Bill()
        self.recalled: Recalled | None = None
        self.remembered: Remembered | None = None

    async def events(self) -> AsyncGenerator[Event]:
        """Run the turn. If it fails before the model answered, it is as if it had never been sent."""
        state = self._state
        yield state.emitter.emit(TurnStart, turn=state.turn + 1)
        try:
            async with aclosing(self._run()) as events:
                async for event in events:
                    yield event
        finally:
            state.context.step.clear()
            if not self._steps and self._start >= 0 and not state.is_durable(self._start):
                state.history.withdraw(self._start)
                state.unfinished = self._unfinished

    def reply(self, events: tuple[Event, ...]) -> Reply:
        """How the turn ended."""
        return Reply(
            text=self.text,
            stop=self.stop,
            turn=self.turn,
            usage=self.bill.usage,
            cost=self.bill.cost,
            checkpoint_id=self.checkpoint_id,
            recalled=self.recalled,
            remembered=self.remembered,
            events=events,
        )

    async def _run(self) -> AsyncGenerator[Event]:
        state = self._state
        async for event in self._recall():
            yield event
        self._begin()
        while True:
            async with aclosing(self._answer()) as events:
                async for event in events:
                    yield event
            response = state.caller.response
            assert response is not None
            if response.stop != "pause" and not response.tool_calls:
                break
            if self._steps == state.config.max_steps:
                self.stop = "steps"
            async with aclosing(self._tools(response)) as events:
                async for event in events:
                    yield event
            if self.stop == "steps":
                break
        state.turn, state.unfinished = state.turn + 1, False
        self.turn = state.turn
        yield await self._saved()
        async for event in self._remember():
            yield event
        yield state.emitter.emit(TurnEnd, turn=state.turn, stop=self.stop, usage=self.bill.usage)

    def _begin(self) -> None:
        """The message joins the history, behind what was recalled and activated for it."""
        state = self._state
        self._start = len(state.history.log)
        self._unfinished, state.unfinished = state.unfinished, True
        for instructions in state.skills.activate(self._message.text, [s.message for s in state.history.shown]):
            state.history.append(instructions)
        text = self._known.text(state.history.shown if state.keeps_recall else ()) if self._known else ""
        if text and state.keeps_recall:
            state.history.append(Message.user(text))
        elif text:
            self._tail = StringEntry(text, role="user")
        self._request = state.history.append(self._message)

    async def _answer(self) -> AsyncGenerator[Event]:
        """One answer of the model, after a compaction where it is time for one."""
        state = self._state
        state.saver.check_wanted()
        async for event in state.compacting.if_needed():
            self._heard(event)
            yield event
        retried = False
        while True:
            if self._tail is not None:
                state.context.step.add(self._tail)
            window = state.context.compile(clear_volatile=False)
            try:
                async with aclosing(state.caller.send(window)) as events:
                    async for event in events:
                        yield event
            except ContextOverflow as error:
                if retried:
                    raise
                retried = True
                yield state.emitter.emit(Recovery, action="compact", reason=str(error), attempt=1)
                async for event in state.compacting.after_overflow(window, error):
                    self._heard(event)
                    yield event
            else:
                self._took(window)
                return

    def _took(self, window: Window) -> None:
        """An answer is complete: it joins the history."""
        state = self._state
        response = state.caller.response
        assert response is not None
        self._spend(Bill(requests=1, usage=response.usage, cost=state.caller.cost(response.usage)))
        state.context.commit(window)
        if response.message is not None and is_sayable(response.message):
            state.history.append(response.message)
        self.text, self.stop = response.text, response.stop
        self._steps += 1

    def _heard(self, event: Event) -> None:
        if isinstance(event, CompactionEnd):
            self._spend(self._state.compacting.spent)

    def _spend(self, bill: Bill) -> None:
        self.bill += bill
        self._state.usage += bill.usage

    async def _tools(self, response: ModelResponse) -> AsyncGenerator[Event]:
        state = self._state
        calls = response.tool_calls
        if calls:
            for event in state.tools.started(calls):
                yield event
            results, ends = await state.tools.run(calls, self._refused(response))
            for event in ends:
                yield event
            logged = state.history.append(results)
            if state.spilling is not None:
                await state.spilling.shorten(logged)
        yield await self._saved()

    def _refused(self, response: ModelResponse) -> dict[str, str]:
        """Why calls are not run, by their ids."""
        if response.stop == "length":
            reason = "the answer was cut off before the call was complete; make it again, with less input"
        elif self.stop == "steps":
            reason = f"this turn has had its {self._state.config.max_steps} steps; the call was not made"
        else:
            return self._state.skills.refused(response.tool_calls)
        return {call.id: reason for call in response.tool_calls}

    async def _saved(self) -> Event:
        state = self._state
        checkpoint = await state.save()
        self.checkpoint_id = checkpoint.id
        return state.emitter.emit(CheckpointSaved, checkpoint_id=checkpoint.id, turn=checkpoint.turn)

    async def _recall(self) -> AsyncGenerator[Event]:
        memory = self._state.memory
        if memory is not None:
            try:
                self._known = await memory.known(self._message.text, self._state.history)
                self.recalled = self._known.found
            except LoomError as error:
                yield self._degraded("nothing was recalled", error)

    async def _remember(self) -> AsyncGenerator[Event]:
        state = self._state
        if state.memory is not None:
            assert self._request is not None
            key = f"turn:{self._request.id}"
            try:
                state.saver.check_wanted()
                answer = self.text if state.config.remember_answers else ""
                said = said_in(self._message)
                self.remembered = await state.memory.remember(key, said, answer, known=self._known)
            except LoomError as error:
                yield self._degraded("this turn was not remembered", error)

    def _degraded(self, what: str, error: LoomError) -> Event:
        return self._state.emitter.emit(Recovery, action="degrade", reason=f"{what}: {error}", attempt=1)
