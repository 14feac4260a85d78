"""Session: one conversation with a model, whole for as long as it lasts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from anyio import sleep as anyio_sleep

from loom.context.context import Context
from loom.core.checkpoint import Checkpoint, Compaction, LoggedMessage, Shown
from loom.core.clock import Clock, SystemClock
from loom.core.event import CheckpointSaved, CompactionEnd, Event, SessionEnd, SessionStart
from loom.core.ids import RecordIds
from loom.core.limits import MAX_TEXT, check_length
from loom.core.message import Message, TextPart, ThinkingPart, Usage
from loom.core.scope import Scope
from loom.errors import NotFound, StoreConflict, UsageError
from loom.session.build import applied, build_state, check_given
from loom.session.compacting import CompactionPlan
from loom.session.compaction.coverage import Coverage
from loom.session.config import SessionConfig
from loom.session.events import Listener
from loom.session.explaining import SessionExplanation, explain_session
from loom.session.naming import named_model, same_bill, with_models
from loom.session.options import Asked, turn_options
from loom.session.restoring import SessionState, take_on, which
from loom.session.resuming import cut_turn
from loom.session.sending import Reply, Sending
from loom.session.turn import TurnRun

if TYPE_CHECKING:
    from loom.context.prompt import Prompt
    from loom.context.skills import Skill
    from loom.memory.memory import Memory
    from loom.protocols.approve import Approve
    from loom.protocols.checkpoint_store import CheckpointStore
    from loom.protocols.model import Model
    from loom.protocols.tool import Tool
    from loom.session.calling import Sleep


_E = TypeVar("_E", bound=Event)


class Session:
    """One conversation: it recalls, compiles, calls the model, runs tools, compacts, saves, and tells of each step.

    Everything that was said stays in an append-only log; what the model is shown of it may be rewritten, and every
    rewrite can be undone. One turn runs at a time.
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
        tools: Iterable[Tool] = (),
        skills: Iterable[Skill] = (),
        memory: Memory | None = None,
        approve: Approve | None = None,
        checkpoint: CheckpointStore | None = None,
        session_id: str | None = None,
        user_id: str = "default",
        namespace: str = "default",
        clock: Clock | None = None,
        sleep: Sleep = anyio_sleep,
    ) -> None:
        """Make a session. Nothing is read, written or sent yet.

        Args:
            model: who answers.
            provider: another word for the model.
            config: how the session behaves, as SessionConfig or as a plain mapping with its names.
            instructions: the first text of the foundation.
            prompt: what a PromptBuilder built, behind the instructions.
            context: what the model sees beside the conversation; a new one if not given. What its conversation
                holds already becomes the beginning of the history.
            tools: what the model may call.
            skills: what the user may activate by what they say, and the model load with `load_skill`.
            memory: what is recalled for a turn and what is kept of it; nothing if not given.
            approve: is asked before each call of a tool, and says True, or False, or why not; see ToolRequest.
            checkpoint: where turns are saved; in this process only, if not given.
            session_id: the name of the conversation; a new one if not given. To go on with one that was saved,
                call restore() first.
            user_id: whose conversation it is.
            namespace: keeps applications on one store apart.
            clock: what time it is.
            sleep: how to wait before a call is tried again.
        """
        chosen = model or provider
        check_given(chosen, checkpoint, memory)
        clock = clock or SystemClock()
        self._ids = RecordIds(clock)
        self._given: dict[str, Any] = {
            "model": chosen,
            "config": SessionConfig.of(config),
            "tools": tuple(tools),
            "skills": tuple(skills),
            "memory": memory,
            "approve": approve,
            "clock": clock,
            "sleep": sleep,
        }
        self._instructions = instructions
        context = context or Context("session")
        if instructions:
            context.foundation.add(instructions)
        if prompt is not None:
            applied(prompt, context)
        opened, self._own_models = with_models(self._given["config"])
        given: dict[str, Any] = {**self._given, "config": opened}
        self._state = build_state(
            scope=Scope(namespace, user_id, session_id or self._ids.next_id()),
            context=context,
            store=checkpoint,
            ids=self._ids,
            **given,
        )
        self._started = False
        self._busy = False
        self._closed = False

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The name of the conversation."""
        assert self._state.scope.session_id is not None
        return self._state.scope.session_id

    @property
    def scope(self) -> Scope:
        """Whose conversation it is."""
        return self._state.scope

    @property
    def context(self) -> Context:
        """What the model sees; its conversation belongs to the session."""
        return self._state.context

    @property
    def head(self) -> str | None:
        """The checkpoint last saved of this conversation, as far as this session knows."""
        return self._state.saver.head

    @property
    def turn(self) -> int:
        """How many turns are finished."""
        return self._state.turn

    @property
    def usage(self) -> Usage:
        """Tokens of all calls, compactions included."""
        return self._state.usage

    def cost_of(self, usage: Usage) -> float | None:
        """What so many tokens of this session's model cost in US dollars; None where its prices are not known."""
        return self._state.caller.cost(usage)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as the model is shown it."""
        return tuple(item.message for item in self.shown)

    @property
    def shown(self) -> tuple[Shown, ...]:
        """The conversation as the model is shown it, each message with its id."""
        return tuple(self._state.history.shown)

    @property
    def log(self) -> tuple[LoggedMessage, ...]:
        """Every message that was said, whatever is shown of it."""
        return tuple(entry for entry in self._state.history.log if isinstance(entry, LoggedMessage))

    @property
    def compactions(self) -> tuple[Compaction, ...]:
        """The compactions that apply, oldest first; their ids undo them."""
        return tuple(self._state.history.compaction(id) for id in self._state.history.applied)

    # -- talking ------------------------------------------------------------------------------------------

    def send(self, content: str | Message, **asked: Unpack[Asked]) -> Sending:
        """Send a message. Await it for the reply, or read it with `async for` for the events as they happen.

        If the model fails for good before it answered, the message is withdrawn: send it again when you like. `Asked`
        says what else may be asked of the turn: `metadata`, `max_cost`, `output_type` and `output_retries`.
        """
        run = TurnRun(self._state, _user_message(content), turn_options(self._state, self._ids.next_id(), **asked))
        return Sending(lambda: self._events(run), run.reply)

    def resume(self, **asked: Unpack[Asked]) -> Sending:
        """Go on with a turn that was cut off, without another message: after a crash, or where it ended early.

        A call that was interrupted is not made again: the model is told, and decides.

        Raises:
            UsageError: the last turn is complete, or there is none.
        """
        began = cut_turn(self._state)
        options = turn_options(self._state, self._ids.next_id(), **asked)
        run = TurnRun(self._state, began.message, options, resumed=began)
        return Sending(lambda: self._events(run), run.reply)

    async def preview(self, content: str | Message) -> tuple[Message, ...]:
        """What the model would be shown for a message: instructions, conversation, memory, knowledge, the message.

        Nothing is sent or kept. All before the memory is the prefix that stays the same from turn to turn.
        """
        message = _user_message(content)
        request = self._state.caller.request(self.context.compile(clear_volatile=False))
        known = await self._state.memory.known(message.text, self._state.history) if self._state.memory else None
        text = known.text() if known else ""
        system = tuple(Message("system", (TextPart(part),)) for part in request.system)
        return (*system, *request.messages, *((Message.user(text),) if text else ()), message)

    async def _events(self, run: TurnRun) -> AsyncGenerator[Event]:
        self._begin()
        try:
            await self._state.saver.check_new()
            for event in self._opened():
                yield event
            async with aclosing(run.events()) as events:
                async for event in events:
                    yield event
        except BaseException as error:
            event = self._state.emitter.failed(error)
            if isinstance(error, Exception):  # a turn that was stopped has listeners, but no reader any more
                yield event
            raise
        finally:
            self._busy = False
            if self._state.saver.is_discarded:
                self._state.clear()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a function with every event from now on, the moment it happens; the returned function stops that."""
        return self._state.emitter.subscribe(listener)

    def announce(self, kind: type[_E], **values: Any) -> _E:
        """Tell of something that happened beside the turns, as the next event; its number and its time are added."""
        return self._state.emitter.emit(kind, **values)

    def set_model(self, model: Model | str) -> None:
        """Go on with another model, given as an object or by name; the conversation stays.

        One that is given by name is closed with the session. Thinking that is bound to a prompt is not sent to it.
        """
        self._begin()
        try:
            found = named_model(model)
            self._own_models = (*self._own_models, *((found,) if isinstance(model, str) else ()))
            self._given["model"] = same_bill(found, self._given["model"])
            self._state.use(self._given["model"])
        finally:
            self._busy = False

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
        self._begin()
        try:
            compacting = self._state.compacting
            if dry_run:
                return await compacting.plan()
            self._opened()
            await self._durable()
            async for event in compacting.on_demand():
                if isinstance(event, CompactionEnd):
                    self._state.usage += event.usage
            if compacting.last is not None:
                await self._save()
            return compacting.last
        finally:
            self._busy = False

    async def undo(self, handle: str | None = None) -> None:
        """Show again what a compaction replaced: the one named, or the last one."""
        history = self._state.history
        handle = handle or history.last_compaction
        if handle is None:
            raise NotFound("nothing was compacted, so there is nothing to undo")
        self._begin()
        try:
            history.undo(handle)
            await self._save()
        finally:
            self._busy = False

    def expand(self, id: str) -> tuple[LoggedMessage, ...]:
        """The original messages behind something shown: a summary, a cleared result, or a whole compaction."""
        return self._state.history.expand(id)

    def coverage(self, handle: str | None = None) -> Coverage:
        """Which paths, numbers, names and decisions of what a compaction replaced are still shown."""
        return self._state.compacting.coverage(handle)

    def pin(self, id: str) -> None:
        """Keep a message as it is through every compaction; explain() lists the ids."""
        found = next((item for item in self.shown if item.id == id), None)
        if found is None:
            raise NotFound(f"no message with the id {id!r} is shown; explain() lists those that are")
        thinks = any(isinstance(part, ThinkingPart) for part in found.message.parts)
        if thinks and self._state.caller.binds_thinking:
            raise UsageError(f"message {id!r} holds thinking that is bound to what stands before it; pin another")
        self._state.compacting.pins[id] = None

    def unpin(self, id: str) -> None:
        """Let a message be compacted again; one that is not pinned does not matter."""
        self._state.compacting.pins.pop(id, None)

    # -- checkpoints --------------------------------------------------------------------------------------

    async def checkpoint(self) -> Checkpoint:
        """Save now. Every turn is saved anyway; this also keeps what was pinned or undone since."""
        self._begin()
        try:
            return await self._save()
        finally:
            self._busy = False

    async def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The saved points of this session, last saved first."""
        return await self._state.saver.store.list(self.scope)

    async def restore(
        self, checkpoint: str | Checkpoint | SessionState | Mapping[str, Any] | None = None
    ) -> Checkpoint:
        """Become the session as it was saved: at a checkpoint, or as it was last.

        A SessionState, the same as a mapping, or a checkpoint of another session that has its messages, is a
        conversation from elsewhere: this session goes on with its messages, under its own name, and is saved at once.

        Raises:
            NotFound: there is no such checkpoint; the session is unchanged.
            StoreConflict: this very session is saved with other messages.
        """
        id, elsewhere = which(checkpoint, self.id)
        self._begin()
        try:
            if elsewhere is not None:
                taken = await take_on(self._state, elsewhere, self._ids, self._given["clock"])
                return taken or await self._save()
            found, log = await self._state.saver.load(id)
            self._state.become(found, log)
            self._opened(found.id)
            return found
        finally:
            self._busy = False

    async def rewind(self, to: int | str) -> Checkpoint | None:
        """Go back to the end of a turn, or to a checkpoint, and go on from there; what came later stays loadable.

        Turn 0 is the very beginning.
        """
        self._begin()
        try:
            await self._durable()
            if to == 0:
                self._state.become(None, self._state.begun)
                self._state.saver.last = None
                return None
            found, log = await self._state.saver.load(*((None, to) if isinstance(to, int) else (to, None)))
            self._state.become(found, log)
            return found
        finally:
            self._busy = False

    async def fork(self, at: int | str | None = None, *, session_id: str | None = None) -> Session:
        """A new session that begins where this one is, or where it was; both go on alone, and nothing is copied.

        The context beside the conversation is shared: instructions, tools and files are the same objects' content.
        """
        self._begin()
        try:
            with suppress(StoreConflict):  # it was continued somewhere else; the fork takes on what is not saved
                await self._durable()
            name = session_id or self._ids.next_id()
            forked = await self._state.saver.fork(at, session_id=name)
        finally:
            self._busy = False
        scope = self.scope.for_session(name)
        other = Session(
            context=self.context.copy(),
            checkpoint=self._state.saver.store,
            session_id=name,
            user_id=scope.user_id,
            namespace=scope.namespace,
            **self._given,
        )
        await other.restore(forked.id)
        if at is None and not self._state.is_saved:
            other._state.follow(self._state)
            await other._save()
        return other

    # -- looking and closing ------------------------------------------------------------------------------

    def explain(self) -> SessionExplanation:
        """What the next request would hold, what of it is cached, and what was compacted."""
        return explain_session(self._state)

    def discard(self) -> None:
        """Let go of the conversation without saving it, for good: it was forgotten.

        A turn that is running ends with NotFound before anything of it is kept.
        """
        self._closed = True
        self._state.saver.discard()
        if not self._busy:
            self._state.clear()

    async def aclose(self) -> None:
        """Save what is not saved, and end. What was given as an object stays open: it belongs to the caller."""
        async with AsyncExitStack() as stack:
            for model in self._own_models:
                stack.push_async_callback(model.aclose)
            if not self._closed and self._started:
                with suppress(NotFound):  # it was forgotten, and nothing of it is to be saved
                    await self._durable()
                if self._state.memory is not None:
                    await self._state.memory.end()
                self._state.emitter.emit(SessionEnd, turns=self.turn, usage=self.usage)
            self._closed = True

    def __repr__(self) -> str:
        return f"Session({self.id!r}, user_id={self.scope.user_id!r}, turns={self.turn})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- inside -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._state.saver.check_wanted()
        if self._closed:
            raise UsageError(f"session {self.id!r} is closed; make another one and call restore()")
        if self._busy:
            raise UsageError(f"session {self.id!r} is in a turn; read it to its end, or aclose() what send() returned")
        self._busy = True

    def _opened(self, checkpoint_id: str | None = None) -> list[Event]:
        started, self._started = self._started, True
        return [] if started else [self._state.emitter.emit(SessionStart, checkpoint_id=checkpoint_id)]

    async def _durable(self) -> None:
        if self._state.history.log and not self._state.is_saved:
            await self._save()

    async def _save(self) -> Checkpoint:
        self._opened()
        checkpoint = await self._state.save()
        self._state.emitter.emit(CheckpointSaved, checkpoint_id=checkpoint.id, turn=checkpoint.turn)
        return checkpoint


def _user_message(content: str | Message) -> Message:
    message = Message.user(content) if isinstance(content, str) and content.strip() else content
    if not isinstance(message, Message) or message.role != "user":
        raise UsageError(f"a session takes text or a user message, not {content!r:.200}")
    instead = "put it into a file entry or a knowledge base, or send it in parts"
    check_length(message.text, "the message", MAX_TEXT, instead)
    return message


__all__ = ["Reply", "Session", "SessionExplanation"]
