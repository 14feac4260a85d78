"""Session: one conversation with a model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from anyio import sleep as anyio_sleep

from loom.context.cache.plan import CachePlan
from loom.context.context import Context
from loom.context.prompt import Prompt
from loom.context.skills import Skill, checked_skills
from loom.core.checks import MAX_TEXT, check_length
from loom.core.clock import Clock, RecordIds, SystemClock
from loom.core.log import (
    Checkpoint,
    CheckpointSaved,
    Compaction,
    Event,
    LogEntry,
    LoggedMessage,
    Recorded,
    SessionEnd,
    SessionStart,
    Shown,
)
from loom.core.message import Message, TextPart, ThinkingPart, Usage, plain
from loom.core.scope import Scope
from loom.errors import NotFound, StoreConflict, UsageError
from loom.session.compaction.coverage import Coverage
from loom.session.compaction.driver import CompactionPlan
from loom.session.config import SessionConfig
from loom.session.history import SessionState, which
from loom.session.journal import BODY, REQUEST, RequestRecord, body_in
from loom.session.model_call import named_model, same_bill, with_models
from loom.session.reply import Events, Listener, PendingReply, Reply
from loom.session.turn import Parts, TurnOptions, TurnRun, build_parts, check_given, turn_spec

if TYPE_CHECKING:
    from loom.memory.memory import Memory
    from loom.protocols.checkpoint_store import CheckpointStore
    from loom.protocols.model import Model
    from loom.protocols.tool import Approve, Tool
    from loom.session.model_call import Sleep


# SessionExplanation: what the next request would hold, for people.


@dataclass(frozen=True, slots=True)
class ShownLine:
    """One message as the model is shown it."""

    id: str
    role: str
    tokens: int
    start: str
    """Its first characters."""
    stands_for: int
    """How many original messages; more than one for a summary."""
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionExplanation:
    """What the next request would hold, what of it is cached, and what was compacted."""

    session_id: str
    turn: int
    tokens: int
    window: int
    trigger: int
    sections: Mapping[str, int]
    """Tokens by section, by estimate."""
    messages: tuple[ShownLine, ...]
    compactions: tuple[Compaction, ...]
    usage: Usage
    cache: CachePlan = field(repr=False)

    def __str__(self) -> str:
        share = self.tokens / self.window if self.window else 0.0
        size = f"{self.tokens:,} of {self.window:,} tokens ({share:.0%})"
        lines = [
            f"session {self.session_id}, turn {self.turn}: {size}; compaction comes at {self.trigger:,}",
            "  " + ", ".join(f"{name} {count:,}" for name, count in self.sections.items() if count),
            f"  cache: {self.cache.read:,} read, {self.cache.write:,} written, {self.cache.uncached:,} uncached",
        ]
        for line in self.messages:
            marks = f" (stands for {line.stands_for})" if line.stands_for > 1 else ""
            marks += " (pinned)" if line.pinned else ""
            lines.append(f"  {line.id} {line.role:9} {line.tokens:6,}  {line.start}{marks}")
        for done in self.compactions:
            saved = f"{done.tokens_before:,} -> {done.tokens_after:,} tokens"
            lines.append(f"  compaction {done.id}: {done.strategy}, {saved}; undo({done.id!r}) takes it back")
        return "\n".join(lines)


def explain_session(parts: Parts) -> SessionExplanation:
    """Look at a session; nothing is sent or changed."""
    history, counter = parts.history, parts.model.meter.counter
    window = parts.context.compile(clear_volatile=False)
    load, decision = parts.compaction.load(window)

    def line(item: Shown) -> ShownLine:
        text = " ".join(" ".join(map(plain, item.message.parts)).split())
        return ShownLine(
            id=item.id,
            role=item.message.role,
            tokens=sum(map(counter.count_part, item.message.parts)),
            start=text[:60],
            stands_for=len(history.expand(item.id)),
            pinned=item.id in history.pins,
        )

    return SessionExplanation(
        session_id=parts.saver.scope.session_id or "",
        turn=history.turn,
        tokens=load.tokens,
        window=load.window,
        trigger=decision.trigger,
        sections=parts.model.meter.sections(window),
        messages=tuple(map(line, history.shown)),
        compactions=tuple(map(history.compaction, history.applied)),
        usage=history.usage,
        cache=parts.model.plan(window),
    )


_E = TypeVar("_E", bound=Event)


class Session:
    """One conversation: it recalls, compiles, calls the model, runs tools, compacts, saves, and reports each step.

    All messages stay in an append-only log; what the model is shown of it may be rewritten, and every rewrite can be
    undone. One turn runs at a time:

        session = Session(model=open_model("anthropic:claude-sonnet-5"), session_id="trip")
        reply = await session.send("Which train goes to Vienna?")
        print(reply.text, reply.usage, session.messages)
    """

    def __init__(
        self,
        *,
        model: Model | None = None,
        provider: Model | None = None,
        config: SessionConfig | Mapping[str, Any] | None = None,
        instructions: str | None = None,
        prompt: Prompt | None = None,
        context: Context | None = None,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        skills: Iterable[Skill] = (),
        memory: Memory | None = None,
        approve: Approve | None = None,
        checkpoints: CheckpointStore | None = None,
        checkpoint: CheckpointStore | None = None,
        session_id: str | None = None,
        user_id: str = "default",
        namespace: str = "default",
        agent_name: str = "",
        clock: Clock | None = None,
        sleep: Sleep = anyio_sleep,
    ) -> None:
        """Make a session. Nothing is read, written or sent yet.

        Args:
            model: the model that answers.
            provider: another word for the model.
            config: how the session behaves, as SessionConfig or as a plain mapping with its names.
            instructions: the first text of the foundation.
            prompt: a prompt of a PromptBuilder, after the instructions.
            context: what the model sees beside the conversation; a new one if not given. Its conversation becomes the
                beginning of the history.
            tools: what the model may call: functions with type hints, or tools; see @tool.
            skills: what the user may activate by what they say, and the model load with `load_skill`.
            memory: where a turn recalls from and is remembered; none if not given.
            approve: is asked before each call of a tool, and returns True, or False, or why not; see ToolRequest.
            checkpoints: where turns are saved; in this process only, if not given.
            checkpoint: another word for checkpoints.
            session_id: the name of the conversation; a new one if not given. To continue a saved one, call restore()
                first.
            user_id: the user whose conversation it is.
            namespace: keeps applications on one store apart.
            agent_name: what spans and metrics call it; see configure_telemetry().
            clock: what time it is.
            sleep: how to wait before a retry.
        """
        chosen = model or provider
        if None not in (model, provider) or None not in (checkpoints, checkpoint):
            raise UsageError("provider= is another name of model=, and checkpoint= of checkpoints=; give one name")
        store = checkpoints or checkpoint
        check_given(chosen, store, memory)
        clock = clock or SystemClock()
        self._ids = RecordIds(clock)
        self._given: dict[str, Any] = {
            "model": chosen,
            "config": SessionConfig.of(config),
            "tools": tuple(tools),
            "skills": checked_skills(skills),
            "memory": memory,
            "approve": approve,
            "agent_name": agent_name,
            "clock": clock,
            "sleep": sleep,
        }
        self._instructions = instructions
        context = context or Context("session")
        if instructions:
            context.foundation.add(instructions)
        if prompt is not None:
            if not isinstance(prompt, Prompt):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"prompt is {type(prompt).__name__}; give what PromptBuilder.build() returns")
            prompt.apply(context)
        opened, self._own_models = with_models(self._given["config"])
        given: dict[str, Any] = {**self._given, "config": opened}
        scope = Scope(namespace, user_id, session_id or self._ids.next_id())
        self._parts = build_parts(scope=scope, context=context, store=store, ids=self._ids, **given)
        self._history, self._saver, self._emitter = self._parts.history, self._parts.saver, self._parts.emitter
        self._started = False
        self._busy = False
        self._closed = False

    # -- properties ---------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The name of the conversation."""
        assert self.scope.session_id is not None
        return self.scope.session_id

    @property
    def scope(self) -> Scope:
        """The user, namespace and name of the conversation."""
        return self._saver.scope

    @property
    def context(self) -> Context:
        """What the model sees; its conversation belongs to the session."""
        return self._parts.context

    @property
    def head(self) -> str | None:
        """The checkpoint last saved of this conversation, as far as this session knows."""
        return self._saver.head

    @property
    def turn(self) -> int:
        """How many turns are finished."""
        return self._history.turn

    @property
    def usage(self) -> Usage:
        """Tokens of all calls, compactions included."""
        return self._history.usage

    def cost_of(self, usage: Usage) -> float | None:
        """What so many tokens of this session's model cost in US dollars; None where its prices are not known."""
        return self._parts.model.cost(usage)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as the model is shown it."""
        return tuple(item.message for item in self._history.shown)

    @property
    def shown(self) -> tuple[Shown, ...]:
        """The conversation as the model is shown it, each message with its id."""
        return tuple(self._history.shown)

    @property
    def log(self) -> tuple[LoggedMessage, ...]:
        """All messages, whether they are shown or not."""
        return tuple(entry for entry in self._history.log if isinstance(entry, LoggedMessage))

    @property
    def compactions(self) -> tuple[Compaction, ...]:
        """The compactions that apply, oldest first; their ids undo them."""
        return tuple(map(self._history.compaction, self._history.applied))

    # -- talking ------------------------------------------------------------------------------------------

    def send(self, content: str | Message, **options: Unpack[TurnOptions]) -> PendingReply:
        """Send a message. Await it for the reply, or read it with `async for` for the events as they happen.

        If the model fails for good before it answered, the message is withdrawn: send it again when you like. The
        options are `metadata`, `max_cost`, `output_type` and `output_retries`; see TurnOptions.
        """
        return self._pending(_user_message(content), None, options)

    def resume(self, **options: Unpack[TurnOptions]) -> PendingReply:
        """Go on with a turn that was cut off, without another message: after a crash, or where it ended early.

        A call that was interrupted is not made again: the model is told, and decides.

        Raises:
            UsageError: the last turn is complete, or there is none.
        """
        request = self._history.find_cut_turn(self.id)
        return self._pending(request.message, request, options)

    def _pending(self, message: Message, resumed: LoggedMessage | None, options: TurnOptions) -> PendingReply:
        spec = turn_spec(self._parts, self._ids.next_id(), **options)
        turn = TurnRun(self._parts, message, spec, resumed=resumed)

        async def run(reader: Events | None) -> Reply:
            with self._exclusive(), self._emitter.collect(reader) as events:
                try:
                    await self._saver.check_new()
                    self._start()
                    reply = await turn.run()
                except BaseException as error:
                    self._emitter.fail(error)
                    raise
                return replace(reply, events=tuple(events))

        return PendingReply(run)

    async def preview(self, content: str | Message) -> tuple[Message, ...]:
        """What the model would be shown for a message: instructions, conversation, memory, knowledge, the message.

        Nothing is sent or kept. All before the memory is the prefix that stays the same from turn to turn.
        """
        message, memory = _user_message(content), self._parts.memory
        request = self._parts.model.request(self.context.compile(clear_volatile=False))
        text = (await memory.view(message.text, self._history)).text() if memory else ""
        system = tuple(Message("system", (TextPart(part),)) for part in request.system)
        return (*system, *request.messages, *((Message.user(text),) if text else ()), message)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a function with every event from now on, the moment it happens; the returned function stops that."""
        return self._emitter.subscribe(listener)

    def announce(self, kind: type[_E], **values: Any) -> _E:
        """Send an event of something that happened beside the turns; its number and its time are added."""
        return self._emitter.emit_nowait(kind, **values)

    def set_model(self, model: Model | str) -> None:
        """Go on with another model, given as an object or by name; the conversation stays.

        A model given by name is closed with the session. Thinking that is bound to a prompt is not sent to it.
        """
        with self._exclusive():
            found = named_model(model)
            self._own_models = (*self._own_models, *((found,) if isinstance(model, str) else ()))
            self._given["model"] = same_bill(found, self._given["model"])
            self._parts.model.use(self._given["model"])
            self._history.load(self._history.log, self._history.applied, trust_thinking=False)
            self._parts.compaction.rebuild()

    # -- the journal --------------------------------------------------------------------------------------

    async def requests(self) -> tuple[RequestRecord, ...]:
        """Every call of a model that this conversation made, oldest first: failed ones and summaries included.

        It is the journal of the log that is continued: after going back, what came later is not in it.
        """
        return tuple(map(RequestRecord.of, await self._recorded(REQUEST)))

    async def request_body(self, request_id: str) -> dict[str, Any]:
        """The body of a request as it was sent.

        Raises:
            NotFound: there is no such request, or bodies are not kept; see `keep_requests`.
        """
        return body_in(await self._recorded(BODY), request_id)

    async def _recorded(self, kind: str) -> tuple[Recorded, ...]:
        """What was recorded of a kind, saved or not."""
        last, log = self._saver.last, self._history.log
        done = 0 if last is None else last.position
        fresh = tuple(entry for entry in log[done:] if isinstance(entry, Recorded) and entry.kind == kind)
        return fresh if last is None else (*await self._saver.store.recorded(self.scope, last.id, kind=kind), *fresh)

    # -- compaction ---------------------------------------------------------------------------------------

    @overload
    async def compact(self, *, dry_run: Literal[False] = False) -> Compaction | None: ...
    @overload
    async def compact(self, *, dry_run: Literal[True]) -> CompactionPlan: ...
    async def compact(self, *, dry_run: bool = False) -> Compaction | CompactionPlan | None:
        """Compact now, whatever the trigger says; with `dry_run` only say what that would do.

        What `retain` names stays as it is, and so does the newest answer. None where that is the whole conversation:
        nothing was changed.

        Raises:
            CannotCompact: no rewrite makes the history small enough; it is unchanged.
        """
        with self._exclusive():
            if dry_run:
                return await self._parts.compaction.plan()
            self._start()
            await self._make_durable()
            compaction = await self._parts.compaction.on_demand(self._history.spend)
            if compaction is not None:
                await self._save()
            return compaction

    async def undo(self, handle: str | None = None) -> None:
        """Show again what a compaction replaced: the one named, or the last one."""
        handle = handle or self._history.last_compaction
        if handle is None:
            raise NotFound("nothing was compacted, so there is nothing to undo")
        with self._exclusive():
            self._history.undo(handle)
            await self._save()

    def expand(self, id: str) -> tuple[LoggedMessage, ...]:
        """The original messages of something shown: a summary, a cleared result, or a whole compaction."""
        return self._history.expand(id)

    def coverage(self, handle: str | None = None) -> Coverage:
        """Which paths, numbers, names and decisions of what a compaction replaced are still shown."""
        return self._parts.compaction.coverage(handle)

    def pin(self, id: str) -> None:
        """Keep a message as it is through every compaction; explain() lists the ids."""
        found = next((item for item in self.shown if item.id == id), None)
        if found is None:
            raise NotFound(f"no message with the id {id!r} is shown; explain() lists those that are")
        thinks = any(isinstance(part, ThinkingPart) for part in found.message.parts)
        if thinks and self._parts.model.binds_thinking:
            raise UsageError(f"message {id!r} holds thinking that is bound to the messages before it; pin another")
        self._history.pins[id] = None

    def unpin(self, id: str) -> None:
        """Let a message be compacted again; nothing happens where it was not pinned."""
        self._history.pins.pop(id, None)

    # -- checkpoints --------------------------------------------------------------------------------------

    async def checkpoint(self) -> Checkpoint:
        """Save now. Every turn is saved anyway; this also saves what was pinned or undone since."""
        with self._exclusive():
            return await self._save()

    async def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The saved points of this session, last saved first."""
        return await self._saver.store.list(self.scope)

    async def restore(
        self, checkpoint: str | Checkpoint | SessionState | Mapping[str, Any] | None = None
    ) -> Checkpoint:
        """Become the session as it was saved: at a checkpoint, or as it was last.

        A SessionState, the same as a mapping, or a checkpoint of another session that has its messages, is a
        conversation from elsewhere: this session continues it under its own name, and is saved at once.

        Raises:
            NotFound: the checkpoint does not exist; the session is unchanged.
            StoreConflict: this very session is saved with other messages.
        """
        id, elsewhere = which(checkpoint, self.id)
        with self._exclusive():
            if elsewhere is None:
                found, log = await self._saver.load(id)
                self._become(found, log)
                self._start(found.id)
                return found
            own = elsewhere.session_id == self.id and self._saver.head is None
            if own and (same := await self._saver.find_same(elsewhere.messages)) is not None:
                found, log = await self._saver.load(same)
                self._become(found, log)
                return found
            await self._saver.check_new()
            log = elsewhere.log(self._ids, self._given["clock"])
            self._history.adopt(log, turn=elsewhere.turn_count, usage=elsewhere.usage)
            self._parts.compaction.reset()
            self._saver.last = None
            return await self._save()

    async def rewind(self, to: int | str) -> Checkpoint | None:
        """Go back to the end of a turn, or to a checkpoint, and go on from there; what came later stays loadable.

        Turn 0 is the very beginning.
        """
        with self._exclusive():
            await self._make_durable()
            if to == 0:
                self._become(None)
                self._saver.last = None
                return None
            found, log = await self._saver.load(to)
            self._become(found, log)
            return found

    async def fork(self, at: int | str | None = None, *, session_id: str | None = None) -> Session:
        """A new session that begins where this one is, or where it was; both go on alone, and nothing is copied.

        The context beside the conversation is shared: instructions, tools and files are the same objects' content.
        """
        with self._exclusive():
            with suppress(StoreConflict):  # it was continued elsewhere; the fork takes over what is not saved
                await self._make_durable()
            name = session_id or self._ids.next_id()
            forked = await self._saver.fork(at, session_id=name, now=self._given["clock"].now())
        other = Session(
            context=self.context.copy(),
            checkpoints=self._saver.store,
            session_id=name,
            user_id=self.scope.user_id,
            namespace=self.scope.namespace,
            **self._given,
        )
        await other.restore(forked.id)
        if at is None and not self._saver.is_saved(self._history):
            other._history.follow(self._history)
            await other._save()
        return other

    # -- looking and closing ------------------------------------------------------------------------------

    def explain(self) -> SessionExplanation:
        """What the next request would hold, what of it is cached, and what was compacted."""
        return explain_session(self._parts)

    def discard(self) -> None:
        """Drop the conversation without saving it, for good: it was forgotten.

        A turn that is running ends with NotFound before anything of it is kept.
        """
        self._closed = True
        self._saver.discard()
        if not self._busy:
            self._clear()

    async def aclose(self) -> None:
        """Save what is not saved, and end. What was given as an object stays open: it belongs to the caller."""
        async with AsyncExitStack() as stack:
            for model in self._own_models:
                stack.push_async_callback(model.aclose)
            if not self._closed and self._started:
                with suppress(NotFound):  # it was forgotten, and nothing of it is to be saved
                    await self._make_durable()
                if self._parts.memory is not None:
                    await self._parts.memory.end()
                self._emitter.emit_nowait(SessionEnd, turns=self.turn, usage=self.usage)
            self._closed = True

    def __repr__(self) -> str:
        return f"Session({self.id!r}, user_id={self.scope.user_id!r}, turns={self.turn})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- inside -------------------------------------------------------------------------------------------

    @contextmanager
    def _exclusive(self) -> Generator[None]:
        """Refuse anything else until this is over; then clear a conversation that was forgotten meanwhile."""
        self._saver.check_wanted()
        if self._closed:
            raise UsageError(f"session {self.id!r} is closed; make another one and call restore()")
        if self._busy:
            raise UsageError(f"session {self.id!r} is in a turn; read it to its end, or aclose() what send() returned")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            if self._saver.is_discarded:
                self._clear()

    def _start(self, checkpoint_id: str | None = None) -> None:
        started, self._started = self._started, True
        if not started:
            self._emitter.emit_nowait(SessionStart, checkpoint_id=checkpoint_id)

    def _become(self, checkpoint: Checkpoint | None, log: Iterable[LogEntry] = ()) -> None:
        """Take over the state of a checkpoint; None is the very beginning."""
        # The log lacks what the tail showed while the model thought, so that thinking no longer fits its prompt.
        trusted = self._parts.memory is None or self._parts.keeps_recall
        if checkpoint is None:
            self._history.begin_again(trust_thinking=trusted)
        else:
            self._history.restore(checkpoint, log, trust_thinking=trusted)
        self._parts.compaction.reset()

    def _clear(self) -> None:
        self._history.load((), ())
        self._parts.compaction.reset()

    async def _make_durable(self) -> None:
        # Of a conversation that was never saved, records of calls that failed alone are not worth a session.
        is_worth_it = self._saver.last is not None or any(not isinstance(e, Recorded) for e in self._history.log)
        if is_worth_it and self._history.log and not self._saver.is_saved(self._history):
            await self._save()

    async def _save(self) -> Checkpoint:
        self._start()
        checkpoint = await self._saver.save(self._history)
        self._emitter.emit_nowait(CheckpointSaved, checkpoint_id=checkpoint.id, turn=checkpoint.turn)
        return checkpoint


def _user_message(content: str | Message) -> Message:
    if isinstance(content, str) and not content.strip():
        raise UsageError("the message is empty; give it some text")
    message = Message.user(content) if isinstance(content, str) else content
    if not isinstance(message, Message) or message.role != "user":  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = "give text, or Message.user(...) for parts"
        if isinstance(content, list | tuple):
            hint = "give the newest message alone: what was said before is kept by its session_id"
        raise UsageError(f"a turn is one message of the user, not {content!r:.200}; {hint}")
    instead = "put it into a file entry or a knowledge base, or send it in parts"
    check_length(message.text, "the message", MAX_TEXT, instead)
    return message
