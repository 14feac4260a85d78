"""One turn: its options, recall, compile, call, tools, compaction, save; and the parts of a session it uses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from loom.context.context import Context
from loom.context.entry import StringEntry
from loom.context.skills import Skill
from loom.core.checks import check_attributes
from loom.core.clock import Clock, RecordIds
from loom.core.log import (
    Checkpoint,
    CheckpointSaved,
    LoggedMessage,
    MemoryRecalled,
    MemoryRemembered,
    Recovery,
    TurnEnd,
    TurnStart,
)
from loom.core.message import Message, Usage
from loom.core.scope import RunContext, Scope, current_run
from loom.core.window import Window
from loom.errors import ContextOverflow, CostExceeded, LoomError, UsageError
from loom.memory._write.ingest import said_in
from loom.memory.memory import Memory
from loom.memory.results import Remembered
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.model import Model, ModelResponse
from loom.protocols.tool import Approve, Tool
from loom.session.compaction.driver import CompactionDriver
from loom.session.config import SessionConfig, check_ceiling
from loom.session.history import History, Saver, has_content
from loom.session.journal import Journal, Purpose
from loom.session.memory import MemoryView, SessionMemory, turn_key
from loom.session.model_call import ModelCaller, Sleep
from loom.session.reply import Emitter, Reply
from loom.session.tools import ActiveSkills, LongResults, Toolbox, payer_above
from loom.telemetry import Bill, Ledger, MeteredModel, SessionSpans, info_of
from loom.text.tokens import EstimateCounter

if TYPE_CHECKING:
    from loom.session.output import Output


# The parts of a session, and putting them together.


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a session, as a turn uses them."""

    config: SessionConfig
    context: Context
    history: History
    journal: Journal
    emitter: Emitter
    model: ModelCaller
    compaction: CompactionDriver
    tools: Toolbox
    skills: ActiveSkills
    long_results: LongResults | None
    saver: Saver
    memory: SessionMemory | None
    spans: SessionSpans

    @property
    def keeps_recall(self) -> bool:
        """Whether recalled memory stays in the conversation."""
        place = self.config.recall_place
        return place == "kept" or (place == "auto" and self.model.binds_thinking and bool(self.tools.specs))


def check_given(model: object, checkpoints: object, memory: object) -> None:
    """Refuse what a session cannot work with, such as the name of a model."""
    if model is None:
        raise UsageError("a session needs a model; give model=, or a ScriptedModel of loom.testing to try it out")
    for name, value, kind, opener in (
        ("model", model, Model, "open_model"),
        ("checkpoints", checkpoints, CheckpointStore, "open_checkpoints"),
        ("memory", memory, Memory, "open_memory"),
    ):
        if value is not None and not isinstance(value, kind):
            raise UsageError(
                f"{name} is {value!r}, which is not a {kind.__name__}; a session takes what is open already: give "
                f"{name}={opener}(...), with `from loom import {opener}`"
            )


def build_parts(
    *,
    scope: Scope,
    context: Context,
    store: CheckpointStore | None,
    ids: RecordIds,
    model: Model,
    config: SessionConfig,
    tools: Sequence[Tool],
    skills: Sequence[Skill],
    memory: Memory | None,
    approve: Approve | None,
    clock: Clock,
    sleep: Sleep,
    agent_name: str = "",
) -> Parts:
    """All parts of a session, connected."""
    assert scope.session_id is not None
    history, emitter = History(context, clock=clock, ids=ids), Emitter(scope.session_id, clock)
    spans = SessionSpans(scope.session_id, agent=agent_name, is_compacted=lambda: bool(history.applied))
    emitter.subscribe(spans)
    limit = config.tool_output_limit if tools else None
    long_results = LongResults(history, limit, EstimateCounter()) if limit is not None else None
    active = ActiveSkills(skills)
    own = (*((long_results,) if long_results else ()), *active.tools(tools))
    toolbox = Toolbox((*tools, *own), approve=approve, emitter=emitter, clock=clock)
    active.show(context)
    context.tools += [spec for spec in toolbox.specs if spec not in context.tools]
    journal = Journal(history, keeps_bodies=config.keep_requests)
    caller = ModelCaller(model, config=config, emitter=emitter, spans=spans, journal=journal, sleep=sleep)
    return Parts(
        config=config,
        context=context,
        history=history,
        journal=journal,
        emitter=emitter,
        model=caller,
        compaction=CompactionDriver(
            config.compaction, caller=caller, context=context, history=history, emitter=emitter
        ),
        tools=toolbox,
        skills=active,
        long_results=long_results,
        saver=Saver(store or _in_process(clock), scope, clock=clock, ids=ids),
        memory=SessionMemory(memory, scope, config) if memory else None,
        spans=spans,
    )


def _in_process(clock: Clock) -> CheckpointStore:
    from loom.stores.inmemory.checkpoints import MemoryCheckpointStore  # noqa: PLC0415  (only where no store is given)

    return MemoryCheckpointStore(clock=clock)


# The options of one turn: metadata, a cost limit, and the form of the answer.

_PRICED = Usage(input=1, output=1)


class TurnOptions(TypedDict, total=False):
    """What may be given for one turn, beside its message."""

    metadata: Mapping[str, Any] | None
    """What tools find in get_run_context().metadata."""
    max_cost: float | None
    """US dollars that this turn may cost; the limit of the configuration if not given."""
    output_type: Any
    """The form of the answer: a pydantic model, a dataclass, a TypedDict or a plain type; the value is `output`."""
    output_retries: int
    """How often an answer that does not fit is asked for again; once if not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSpec:
    """The options of one turn, checked."""

    run: RunContext
    max_cost: float | None = None
    output: Output | None = None

    def exceeded(self, bill: Bill) -> CostExceeded | None:
        """The error to say that a turn has reached its cost limit; None where it has not."""
        if self.max_cost is None or (bill.cost is not None and bill.cost < self.max_cost):
            return None
        return CostExceeded(spent=bill.cost, ceiling=self.max_cost)


def turn_spec(parts: Parts, run_id: str, **options: Unpack[TurnOptions]) -> TurnSpec:
    """The checked options of a turn that begins now."""
    given = options.get("max_cost")
    ceiling = parts.config.max_cost if given is None else given
    if ceiling is not None:
        check_ceiling(ceiling)
        _check_priced(parts, ceiling)
    output, form = None, options.get("output_type")
    if form is not None:
        from loom.session.output import Output  # noqa: PLC0415  (pydantic, only where it is wanted)

        retries = options.get("output_retries", 1)
        output = Output(form, retries=retries, taken=[spec.name for spec in parts.tools.specs])
    return TurnSpec(run=_run(parts.saver.scope, run_id, options.get("metadata")), max_cost=ceiling, output=output)


def _check_priced(parts: Parts, ceiling: float) -> None:
    """Refuse a cost limit where the price of a model is not known: reaching it could not be noticed."""
    summaries = parts.config.compaction.summary_model
    priced = {parts.model.model.name: parts.model.cost(_PRICED)}
    if summaries is not None:
        name = str(getattr(summaries, "name", summaries))
        priced[name] = info_of(name).cost(_PRICED)
    for name, cost in priced.items():
        if cost is None:
            raise UsageError(
                f"max_cost={ceiling:g} needs the price of {name}, which is not known; add it to your model data "
                "(LOOM_MODELS), or leave max_cost out"
            )


def _run(scope: Scope, run_id: str, metadata: Mapping[str, Any] | None) -> RunContext:
    check_attributes(dict.fromkeys(metadata or ()), "the metadata of a run")
    outer = current_run()
    return RunContext(
        user_id=scope.user_id,
        session_id=scope.session_id or "",
        namespace=scope.namespace,
        run_id=run_id,
        depth=0 if outer is None else outer.depth + 1,
        metadata=dict(metadata or {}),
    )


class TurnRun:
    """A turn in progress. With `resumed` it is a turn that was cut off, and that message began it."""

    def __init__(self, parts: Parts, message: Message, spec: TurnSpec, *, resumed: LoggedMessage | None = None) -> None:
        self._parts = parts
        self._emitter = parts.emitter
        self._history = parts.history
        self._context = parts.context
        self._message = message
        self._spec = spec
        self._resumed = resumed
        self._above = payer_above()
        self._steps = 0
        self._tail: StringEntry | None = None
        self._text = ""
        self._stop = "end"
        self._purpose: Purpose = "answer"
        self._bill = Bill()

    async def run(self) -> Reply:
        """Run the turn. If it fails before the model answered, it is as if it had never been sent."""
        history, output = self._history, self._spec.output
        start, unfinished = len(history.log), history.unfinished
        await self._emitter.emit(TurnStart, turn=history.turn + 1, run_id=self._spec.run.run_id)
        try:
            self._context.tools += [output.spec] if output else []
            with self._parts.spans.running():
                return await self._run()
        finally:
            self._context.step.clear()
            if output:
                self._context.tools = [spec for spec in self._context.tools if spec is not output.spec]
            if not self._steps and not self._parts.saver.is_durable(start):
                history.withdraw(start)
                history.unfinished = unfinished

    async def _run(self) -> Reply:
        history, output = self._history, self._spec.output
        view = await self._recall()
        request = self._begin(view)
        while not await self._step():
            pass
        if self._stop == "cost" and (error := self.exceeded()) is not None:
            await self._emitter.emit(Recovery, action="degrade", reason=str(error), attempt=1)
        history.turn, history.unfinished = history.turn + 1, False
        checkpoint = await self._save()
        remembered = await self._remember(request, view)
        await self._emitter.emit(TurnEnd, turn=history.turn, stop=self._stop, usage=self._bill.usage)
        if output is not None:
            output.check()
        return Reply(
            text=self._text,
            stop=self._stop,
            turn=history.turn,
            usage=self._bill.usage,
            cost=self._bill.cost,
            checkpoint_id=checkpoint.id,
            run_id=self._spec.run.run_id,
            output=output.value if output else self._text,
            recalled=view.found if view else None,
            remembered=remembered,
        )

    async def _step(self) -> bool:
        """One answer of the model, and the calls in it; whether the turn is over."""
        response = await self._answer()
        if self._is_over(response):
            self._settle_output(response)
            return True
        self._stop = self._ended_early() or self._stop
        await self._run_tools(response)
        ended = self._ended_early()  # what tools spent counts, too
        self._stop = ended or self._stop
        return ended is not None

    def _is_over(self, response: ModelResponse) -> bool:
        """Whether the model has given its final answer."""
        if self._spec.output is not None:
            return self._spec.output.is_over(response)
        return response.stop != "pause" and not response.tool_calls

    def _ended_early(self) -> str | None:
        """Why the model is not asked again, where it is not."""
        if self._steps == self._parts.config.max_steps:
            return "steps"
        return "cost" if self.exceeded() is not None else None

    def _settle_output(self, response: ModelResponse) -> None:
        """Close the calls of a turn whose answer has a form, and use the answer as its text."""
        output = self._spec.output
        if output is None:
            return
        if (closing := output.closing(response.tool_calls)) is not None:
            self._history.append(closing)
        self._text, self._stop = output.text, "end" if output.is_given else "output"

    def _begin(self, view: MemoryView | None) -> LoggedMessage:
        """Add the message to the history, after recalled memory and activated skills; returns it as logged."""
        history = self._history
        history.unfinished = True
        if self._resumed is not None:
            for results in history.missing_results():
                history.append(results)
            self._show_recalled(view)
            return self._resumed
        for instructions in self._parts.skills.activate(self._message.text, history.shown):
            history.append(instructions)
        self._show_recalled(view)
        return history.append(self._message)

    def _show_recalled(self, view: MemoryView | None) -> None:
        """Show recalled memory, in the conversation or after it; a turn that was cut off has it there already."""
        keeps, memory = self._parts.keeps_recall, self._parts.memory
        earlier = memory.shown.read(self._history.shown) if keeps and memory else None
        text = view.text(earlier) if view else ""
        if text and not keeps:
            self._tail = StringEntry(text, role="user")
        elif text and self._resumed is None:
            self._history.append(Message.user(text))

    async def _answer(self) -> ModelResponse:
        """One answer of the model, after a compaction where it is time for one."""
        self._parts.saver.check_wanted()
        await self._parts.compaction.if_needed(self.spend)
        window = self._compile()
        try:
            response = await self._parts.model.send(window, self._purpose)
        except ContextOverflow as error:  # once: a smaller request that is refused as well is an error of the turn
            await self._emitter.emit(Recovery, action="compact", reason=str(error), attempt=1)
            await self._parts.compaction.after_overflow(window, error, self.spend)
            window = self._compile()
            response = await self._parts.model.send(window, self._purpose)
        self._purpose = "answer"
        self._record_response(window, response)
        return response

    def _compile(self) -> Window:
        if (exceeded := self.exceeded()) is not None:
            raise exceeded
        if self._tail is not None:
            self._context.step.add(self._tail)
        return self._context.compile(clear_volatile=False)

    def _record_response(self, window: Window, response: ModelResponse) -> None:
        """An answer is complete: it joins the history, and the turn can no longer be withdrawn."""
        self.spend(Bill(requests=1, usage=response.usage, cost=self._parts.model.cost(response.usage)))
        self._context.commit(window)
        if response.message is not None and has_content(response.message):
            self._history.append(response.message)
        self._text, self._stop = response.text, response.stop
        self._steps += 1

    def exceeded(self) -> CostExceeded | None:
        """The error to say that this turn, or one above it, has reached its cost limit; None where it has not."""
        return self._spec.exceeded(self._bill) or (self._above.exceeded() if self._above else None)

    def spend(self, bill: Bill, counted: Collection[Ledger] | None = None) -> None:
        """Add a bill: of this turn, or, if it is `counted` on some ledgers, of a run inside one of its tools."""
        model = self._parts.model.model
        own = (model.ledger,) if isinstance(model, MeteredModel) else ()
        for ledger in own if counted is not None else ():
            if ledger not in (counted or ()):  # an agent may be called by itself
                ledger.bill += bill
        if counted is not None:
            self._parts.journal.nested(bill)
        self._bill += bill
        self._history.spend(bill)
        if self._above is not None:
            self._above.spend(bill, {*(counted or ()), *own})

    async def _run_tools(self, response: ModelResponse) -> None:
        parts, calls, output = self._parts, response.tool_calls, self._spec.output
        if calls:
            refused = self._refused(response)
            if len(refused) < len(calls):  # after a crash in a tool, it has to be known that it was called
                await parts.saver.save(self._history)
            results = self._history.append(await parts.tools.run(calls, refused, run=self._spec.run, payer=self))
            if parts.long_results is not None:
                await parts.long_results.shorten(results)
        elif output is not None and self._ended_early() is None:
            for again in output.again():
                self._history.append(again)
                self._purpose = "repair"
        await self._save()

    def _refused(self, response: ModelResponse) -> dict[str, str]:
        """Why calls are not run, by their ids."""
        if response.stop == "length":
            reason = "the answer was cut off before the call was complete; make it again, with less input"
        elif self._stop == "steps":
            reason = f"this turn has had its {self._parts.config.max_steps} steps; the call was not made"
        elif (error := self.exceeded()) is not None:
            reason = f"{error.reason}; the call was not made"
        else:
            output = self._spec.output
            wrong = output.refused(response.tool_calls) if output else {}
            self._purpose = "repair" if wrong else self._purpose
            return {**self._parts.skills.refused(response.tool_calls), **wrong}
        return {call.id: reason for call in response.tool_calls}

    async def _save(self) -> Checkpoint:
        checkpoint = await self._parts.saver.save(self._history)
        await self._emitter.emit(CheckpointSaved, checkpoint_id=checkpoint.id, turn=checkpoint.turn)
        return checkpoint

    async def _recall(self) -> MemoryView | None:
        """Look into memory; where that fails, the turn goes on without it."""
        if self._parts.memory is None:
            return None
        try:
            view = await self._parts.memory.view(self._message.text, self._history)
        except LoomError as error:
            await self._degrade("nothing was recalled", error)
            return None
        if view.found is not None:
            ids = tuple(hit.item.id for hit in view.found.hits)
            await self._emitter.emit(MemoryRecalled, ids=ids, count=len(ids), tokens=view.found.tokens)
        return view

    async def _remember(self, request: LoggedMessage, view: MemoryView | None) -> Remembered | None:
        """Keep the exchange in memory; where that fails, the answer is still there."""
        parts = self._parts
        if parts.memory is None:
            return None
        try:
            parts.saver.check_wanted()
            answer = self._text if parts.config.remember_answers else ""
            done = await parts.memory.remember(turn_key(request.id), said_in(self._message), answer, view=view)
        except LoomError as error:
            await self._degrade("this turn was not remembered", error)
            return None
        ids = tuple(record.id for record in done.kept)
        await self._emitter.emit(MemoryRemembered, ids=ids, count=len(ids), skipped=len(done.skipped))
        return done

    async def _degrade(self, what: str, error: LoomError) -> None:
        await self._emitter.emit(Recovery, action="degrade", reason=f"{what}: {error}", attempt=1)
