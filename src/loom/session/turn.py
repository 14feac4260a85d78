"""One turn: recall, compile, call, run tools, append, compact when it is time, save."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing

from loom.context.entry import StringEntry
from loom.core.checkpoint import LoggedMessage
from loom.core.event import (
    CheckpointSaved,
    CompactionEnd,
    Event,
    MemoryRecalled,
    MemoryRemembered,
    Recovery,
    TurnEnd,
    TurnStart,
)
from loom.core.message import Message
from loom.core.window import Window
from loom.errors import ContextOverflow, CostExceeded, LoomError
from loom.memory.ingest import said_in
from loom.memory.values import Recalled, Remembered
from loom.protocols.model import ModelResponse
from loom.session.history import is_sayable
from loom.session.options import TurnOptions
from loom.session.recalling import Known
from loom.session.resuming import interrupted
from loom.session.sending import Reply
from loom.session.state import State
from loom.session.tools import payer_above
from loom.telemetry.bill import Bill, Ledger, MeteredModel


class TurnRun:
    """A turn in progress. `events()` does the work; the rest tells how it went.

    With `resumed` it is a turn that was cut off, and that message began it.
    """

    def __init__(
        self, state: State, message: Message, options: TurnOptions, *, resumed: LoggedMessage | None = None
    ) -> None:
        self._state = state
        self._message = message
        self._options = options
        self._resumed = resumed
        self._above = payer_above()
        self._start = -1
        self._unfinished = False
        self._steps = 0
        self._request: LoggedMessage | None = resumed
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
        state, output = self._state, self._options.output
        yield state.emitter.emit(TurnStart, turn=state.turn + 1, run_id=self._options.run.run_id)
        try:
            state.context.tools += [output.spec] if output else []
            async with aclosing(self._run()) as events:
                async for event in events:
                    yield event
        finally:
            state.context.step.clear()
            if output:
                state.context.tools = [spec for spec in state.context.tools if spec is not output.spec]
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
            run_id=self._options.run.run_id,
            output=self._options.output.value if self._options.output else self.text,
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
            if self._is_over(response):
                self._settle_output(response)
                break
            self.stop = self._ended_early() or self.stop
            async with aclosing(self._tools(response)) as events:
                async for event in events:
                    yield event
            if (ended := self._ended_early()) is not None:  # what tools spent counts, too
                self.stop = ended
                break
        if self.stop == "cost" and (error := self.exceeded()) is not None:
            yield state.emitter.emit(Recovery, action="degrade", reason=str(error), attempt=1)
        state.turn, state.unfinished = state.turn + 1, False
        self.turn = state.turn
        yield await self._saved()
        async for event in self._remember():
            yield event
        yield state.emitter.emit(TurnEnd, turn=state.turn, stop=self.stop, usage=self.bill.usage)
        if self._options.output is not None:
            self._options.output.check()

    def _is_over(self, response: ModelResponse) -> bool:
        """Whether the model has said its last word."""
        if self._options.output is not None:
            return self._options.output.is_over(response)
        return response.stop != "pause" and not response.tool_calls

    def _ended_early(self) -> str | None:
        """Why the model is not asked again, where it is not."""
        if self._steps == self._state.config.max_steps:
            return "steps"
        return "cost" if self.exceeded() is not None else None

    def _settle_output(self, response: ModelResponse) -> None:
        """Close the calls of a turn whose answer has a form, and take the answer for its text."""
        output = self._options.output
        if output is None:
            return
        if (closing := output.closing(response.tool_calls)) is not None:
            self._state.history.append(closing)
        self.text, self.stop = output.text, "end" if output.is_given else "output"

    def _begin(self) -> None:
        """The message joins the history, behind what was recalled and activated for it."""
        state = self._state
        self._start = len(state.history.log)
        self._unfinished, state.unfinished = state.unfinished, True
        if self._resumed is not None:
            for results in interrupted(state.history):
                state.history.append(results)
            self._show_recalled()
            return
        for instructions in state.skills.activate(self._message.text, [s.message for s in state.history.shown]):
            state.history.append(instructions)
        self._show_recalled()
        self._request = state.history.append(self._message)

    def _show_recalled(self) -> None:
        """Show what was recalled, in the conversation or behind it; in a turn that was cut off, it is there already."""
        state = self._state
        text = self._known.text(state.history.shown if state.keeps_recall else ()) if self._known else ""
        if text and not state.keeps_recall:
            self._tail = StringEntry(text, role="user")
        elif text and self._resumed is None:
            state.history.append(Message.user(text))

    async def _answer(self) -> AsyncGenerator[Event]:
        """One answer of the model, after a compaction where it is time for one."""
        state = self._state
        state.saver.check_wanted()
        async for event in state.compacting.if_needed():
            self._heard(event)
            yield event
        retried = False
        while True:
            if (exceeded := self.exceeded()) is not None:
                raise exceeded
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
        self.spend(Bill(requests=1, usage=response.usage, cost=state.caller.cost(response.usage)))
        state.context.commit(window)
        if response.message is not None and is_sayable(response.message):
            state.history.append(response.message)
        self.text, self.stop = response.text, response.stop
        self._steps += 1

    def _heard(self, event: Event) -> None:
        if isinstance(event, CompactionEnd):
            self.spend(self._state.compacting.spent)

    def exceeded(self) -> CostExceeded | None:
        """The error to say that this turn, or one above it, has cost as much as it may; None where it has not."""
        return self._options.exceeded(self.bill) or (self._above.exceeded() if self._above else None)

    def spend(self, bill: Bill, counted: Collection[Ledger] | None = None) -> None:
        """Something was spent: by this turn, or, if it is `counted` somewhere, by a run inside one of its tools."""
        model = self._state.caller.model
        own = (model.ledger,) if isinstance(model, MeteredModel) else ()
        for ledger in own if counted is not None else ():
            if ledger not in (counted or ()):  # an agent may stand below itself
                ledger.bill += bill
        self.bill += bill
        self._state.usage += bill.usage
        if self._above is not None:
            self._above.spend(bill, {*(counted or ()), *own})

    async def _tools(self, response: ModelResponse) -> AsyncGenerator[Event]:
        state = self._state
        calls = response.tool_calls
        if calls:
            refused = self._refused(response)
            async for event in state.approving.ask(calls, refused, self._options.run):
                yield event
            for event in state.tools.started(calls):
                yield event
            results, ends = await state.tools.run(calls, refused, run=self._options.run, payer=self)
            for event in ends:
                yield event
            logged = state.history.append(results)
            if state.spilling is not None:
                await state.spilling.shorten(logged)
        elif self._options.output is not None and self._ended_early() is None:
            for again in self._options.output.again():
                state.history.append(again)
        yield await self._saved()

    def _refused(self, response: ModelResponse) -> dict[str, str]:
        """Why calls are not run, by their ids."""
        if response.stop == "length":
            reason = "the answer was cut off before the call was complete; make it again, with less input"
        elif self.stop == "steps":
            reason = f"this turn has had its {self._state.config.max_steps} steps; the call was not made"
        elif (error := self.exceeded()) is not None:
            reason = f"{error.reason}; the call was not made"
        else:
            output = self._options.output
            answered = output.refused(response.tool_calls) if output else {}
            return {**self._state.skills.refused(response.tool_calls), **answered}
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
            if self.recalled is not None:
                ids = tuple(hit.item.id for hit in self.recalled.hits)
                tokens = self.recalled.tokens
                yield self._state.emitter.emit(MemoryRecalled, ids=ids, count=len(ids), tokens=tokens)

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
            else:
                ids, left_out = tuple(r.id for r in self.remembered.kept), len(self.remembered.skipped)
                yield state.emitter.emit(MemoryRemembered, ids=ids, count=len(ids), skipped=left_out)

    def _degraded(self, what: str, error: LoomError) -> Event:
        return self._state.emitter.emit(Recovery, action="degrade", reason=f"{what}: {error}", attempt=1)
