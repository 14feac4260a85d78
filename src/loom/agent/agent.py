"""Agent: a model, tools and a memory over sessions; its result; an agent as a tool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from loom.agent.sessions import Sessions
from loom.context.context import Context
from loom.context.prompt import Prompt
from loom.context.skills import Skill, checked_skills
from loom.core.clock import Clock
from loom.core.doors import missing_attribute
from loom.core.log import Event, MemoryLearned, MemoryPromoted, Recovery
from loom.core.message import JSON, Message, ToolSpec, Usage
from loom.core.record import Erasure, StoreReceipt
from loom.core.scope import current_run
from loom.core.threads import Portal, renew_lock_after_fork
from loom.engine.agent_parts import agent_checkpoints, agent_config, agent_memory
from loom.engine.open import open_model
from loom.errors import LoomError, NotFound, UsageError
from loom.memory._write.learn_in_background import Facts
from loom.memory.memory import Memory
from loom.memory.results import Recalled, Remembered
from loom.protocols.checkpoint_store import CheckpointStore, KeyValues
from loom.protocols.model import Model
from loom.protocols.tool import CALLABLE, Approve, Tool, ToolError, ToolOutput
from loom.session.config import SessionConfig
from loom.session.reply import PendingReply, Reply
from loom.session.session import Session
from loom.session.tools import check_approve
from loom.session.turn import TurnOptions
from loom.telemetry import Bill, Ledger, metered

if TYPE_CHECKING:
    from loom.agent._blocking import SyncAgent


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a run ended, what it cost, what was recalled and what was remembered."""

    text: str
    stop: str
    user_id: str
    session_id: str
    turn: int
    usage: Usage
    cost: float | None
    """Of this turn, in US dollars; None where the prices of the model are not known."""
    run_id: str = ""
    """The name of this run, as tools see it in get_run_context().run_id."""
    output: Any = None
    """The answer: its text, or a value of the `output_type` that was asked for; None where that run ended early."""
    recalled: Recalled | None
    """What was found in memory, each hit with why."""
    remembered: Remembered | None
    """What was kept of this turn, and what was left out with its reason."""
    notes: tuple[str, ...] = ()
    """What a person should know: what failed or was missing, and what was done instead."""
    events: tuple[Event, ...] = field(default=(), repr=False)

    @property
    def cache_share(self) -> float:
        """The share of the prompt that came from the provider's cache."""
        return self.usage.cache_read / self.usage.input if self.usage.input else 0.0

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise missing_attribute(self, name, _OTHER_RESULT_WORDS)

    def __str__(self) -> str:
        return self.text


_OTHER_RESULT_WORDS = {
    **dict.fromkeys(("content", "answer", "response", "message", "output_text"), "text"),
    **dict.fromkeys(("data", "final_output"), "output"),
    **dict.fromkeys(("messages", "all_messages"), "(await agent.session(user_id=..., session_id=...)).messages"),
}
"""What others call these parts of a result."""


def result_of(session: Session, reply: Reply, *, notes: tuple[str, ...], learned: tuple[Event, ...] = ()) -> Result:
    """The result of a turn, with what was learned in the background since the last one."""
    without = tuple(e.reason for e in reply.events if isinstance(e, Recovery) and e.action == "degrade")
    found = () if reply.recalled is None else reply.recalled.problems
    kept = reply.remembered.notes if reply.remembered else ()
    return Result(
        text=reply.text,
        stop=reply.stop,
        user_id=session.scope.user_id,
        session_id=session.id,
        turn=reply.turn,
        usage=reply.usage,
        cost=reply.cost,
        run_id=reply.run_id,
        output=reply.output,
        recalled=reply.recalled,
        remembered=reply.remembered,
        notes=(*notes, *without, *found, *kept),
        events=(*reply.events, *learned),
    )


_OTHER_WORDS = {
    **dict.fromkeys(("invoke", "chat", "query", "ask", "generate"), "run_sync(text, user_id=...), or await run(...)"),
    **dict.fromkeys(("ainvoke", "arun", "run_async"), "await run(text, user_id=...)"),
    **dict.fromkeys(("astream", "run_stream", "stream_events"), "stream(text, user_id=...)"),
    "stream_sync": "run_sync(text, user_id=...) and its .events, or async for event in stream(...)",
    **dict.fromkeys(("reset", "clear", "delete_user", "forget_user"), "await forget(user_id)"),
    "forget_sync": "blocking.forget(user_id), or await forget(user_id)",
    "export": "memory.export(user_id=...)",
    **dict.fromkeys(("messages", "history"), "(await session(user_id=..., session_id=...)).messages"),
}
"""What other agents call these methods."""


class Agent:
    """Answers users, each with a memory of their own.

    `await agent.run(text, user_id="alice")` is one turn. Without a `session_id` it is a conversation of its own; with
    one, the conversation goes on, from another process too if sessions are saved in a file. Nothing is opened or
    connected before the first turn:

        agent = Agent("You plan trips.", model="anthropic:claude-sonnet-5", memory="sqlite:./bot.db", tools=[fare])
        result = agent.run_sync("I live in Oslo.", user_id="ann", session_id="monday")
        print(result, result.cost, result.recalled, result.notes)
    """

    def __init__(
        self,
        instructions: str | Prompt | Context = "",
        *,
        model: str | Model | None = None,
        memory: str | Mapping[str, Any] | Memory | None = "inmemory",
        tools: Iterable[Tool | Callable[..., Any]] = (),
        skills: Iterable[Skill] = (),
        memory_tools: bool = False,
        checkpoints: str | CheckpointStore | KeyValues | None = None,
        config: SessionConfig | Mapping[str, Any] | None = None,
        compaction: Mapping[str, Any] | None = None,
        approve: Approve | None = None,
        cache_ttl: float | None = None,
        tool_output_limit: int | None = 25_000,
        facts: Facts = "auto",
        namespace: str | None = None,
        name: str = "agent",
        clock: Clock | None = None,
    ) -> None:
        """Make an agent.

        Args:
            instructions: what it is told first: text, a built Prompt, or a Context that every session begins with.
            model: `provider:model`, or a model. If not given: the one that LOOM_MODEL names, else one that needs no
                key and answers with what it finds in memory.
            memory: `inmemory`, `sqlite:PATH`, a mapping, or a memory; None for none. If not given, it remembers
                until the process ends. What is given as an object (a model, a store) is not closed by the agent.
            tools: what it may call: functions with type hints, sync or async, whose docstring says what they do; what
                @tool made; or any object with `spec` and `run`.
            skills: what the user may activate by what they say, and the model load with `load_skill`.
            memory_tools: whether it may search and change the memory by itself, beside what is recalled anyway.
            checkpoints: where sessions are saved; beside the memory if that lasts, else in this process.
            config: how sessions behave.
            compaction: when and how histories are compacted, as in `config`.
            approve: is asked before each call of a tool, with a ToolRequest; a function, sync or async, that returns
                True, or False, or why not. The model is told of a refusal, and the run goes on.
            cache_ttl: how long the provider should keep the prefix, in seconds.
            tool_output_limit: characters of a tool result that are shown; the model sees both ends of a longer one,
                and reads or searches the rest with the tool `read_output`. None shows every result whole.
            facts: how facts are extracted from messages: by `rules` before the answer is returned; by a `model`, which
                is this agent's, in the background as well; or not at all (None). If not said, as the memory says, else
                `model` where one was named.
            namespace: keeps applications on one store apart; that of the memory if not given.
            name: what it is called.
            clock: what time it is.
        """
        check_approve(approve)
        self.model: Model = open_model(model)
        self.name = name
        self._ledger = Ledger()
        self.memory: Memory | None
        self.memory, notes, self._closes_memory = agent_memory(
            memory, self.model, namespace=namespace, facts=facts, clock=clock
        )
        self._closes_model = self.model is not model
        store, more = agent_checkpoints(checkpoints, memory)
        self.notes: tuple[str, ...] = (*notes, *more)
        session_config, self._opened = agent_config(
            config,
            self.model,
            compaction=compaction,
            cache_ttl=cache_ttl,
            tool_output_limit=tool_output_limit,
            ledger=self._ledger,
        )
        own: Any = {"skills": checked_skills(skills), "memory": self.memory, "approve": approve, "agent_name": name}
        self._sessions = Sessions(
            partial(Session, model=metered(self.model, self._ledger), config=session_config, checkpoints=store, **own),
            instructions=instructions,
            tools=(*_as_tools(tools), *(_memory_tools(self.memory) if memory_tools else ())),
            store=store,
            closes_store=store is not checkpoints,
            namespace=namespace or (self.memory.namespace if self.memory else "default"),
            clock=clock,
            one_loop=self.memory is not None,
        )
        self._portal: Portal | None = None
        self._portal_lock = Lock()
        renew_lock_after_fork(self, "_portal_lock")

    async def run(
        self,
        text: str | Message,
        *,
        user_id: str = "default",
        session_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_cost: float | None = None,
        output_type: Any = None,
        output_retries: int = 1,
    ) -> Result:
        """Answer one message.

        Args:
            text: what the user says.
            user_id: the user; no other user's memory is read or written.
            session_id: the conversation; a new one if not given.
            metadata: what tools find in get_run_context().metadata.
            max_cost: US dollars that the run may cost. What is spent is compared with it before each request; then the
                run ends with the stop `cost`. What the memory learns in the background is not part of the run.
            output_type: the form of the answer: a pydantic model, a dataclass, a TypedDict or a plain type. The value
                is `result.output`.
            output_retries: how often an answer that does not fit is asked for again, with what was wrong with it.

        Raises:
            BadOutput: no answer had the form that was asked for.
            CostExceeded: making room for the next request has cost what the run may cost.
        """
        async with self._sessions.acquire(user_id, session_id) as session:
            pending = session.send(
                text, metadata=metadata, max_cost=max_cost, output_type=output_type, output_retries=output_retries
            )
            return await self._finish(session, pending)

    async def stream(
        self,
        text: str | Message,
        *,
        user_id: str = "default",
        session_id: str | None = None,
        **options: Unpack[TurnOptions],
    ) -> AsyncIterator[Event]:
        """Answer one message, and yield each step as it happens; the events are those of a session.

        The options are those of run().
        """
        async with self._sessions.acquire(user_id, session_id) as session:
            async with self._answering():
                pending = session.send(text, **options)
                async with aclosing(aiter(pending)) as events:
                    async for event in events:
                        yield event
                _, learned = await self._learned(session, pending.reply.remembered)
            for event in learned:
                yield event

    async def resume(
        self,
        text: str | Message | None = None,
        *,
        session_id: str,
        user_id: str = "default",
        at: int | str | None = None,
        **options: Unpack[TurnOptions],
    ) -> Result:
        """Go on with a saved conversation; from an earlier turn or checkpoint `at`, in a new conversation.

        Without a text it goes on with a turn that was cut off, by a crash, say, or by a cost limit. The options are
        those of run().

        Raises:
            NotFound: this user has no such conversation.
            UsageError: no text was given, and the last turn is complete.
        """
        if not await self._sessions.exists(user_id, session_id):
            raise NotFound(f"user {user_id!r} has no conversation {session_id!r}; run() begins one")
        if at is not None:
            async with self._sessions.acquire(user_id, session_id) as session:
                session_id = (await session.fork(at)).id
        async with self._sessions.acquire(user_id, session_id) as session:
            pending = session.resume(**options) if text is None else session.send(text, **options)
            return await self._finish(session, pending)

    def run_sync(
        self,
        text: str | Message,
        *,
        user_id: str = "default",
        session_id: str | None = None,
        **asked: Unpack[TurnOptions],
    ) -> Result:
        """run() for programs without an event loop, from any thread; works where a loop is running, too.

        Raises:
            UsageError: the process was forked after the agent ran in it; make another agent there.
        """
        return self.blocking.run(text, user_id=user_id, session_id=session_id, **asked)

    def resume_sync(
        self,
        text: str | Message | None = None,
        *,
        session_id: str,
        user_id: str = "default",
        at: int | str | None = None,
        **asked: Unpack[TurnOptions],
    ) -> Result:
        """resume() for programs without an event loop; see run_sync()."""
        return self.blocking.resume(text, session_id=session_id, user_id=user_id, at=at, **asked)

    @property
    def blocking(self) -> SyncAgent:
        """This agent for programs without an event loop: `agent.blocking.stream(...)`, `.session(...)` and the rest."""
        from loom.agent._blocking import SyncAgent  # noqa: PLC0415  (which imports this module)

        return SyncAgent(self)

    def _shared_portal(self) -> Portal:
        """The loop of all blocking calls of this agent, which close() ends."""
        with self._portal_lock:
            self._portal = self._portal or Portal("this agent")
            return self._portal

    def as_tool(self, *, name: str | None = None, description: str | None = None, max_depth: int = 3) -> Tool:
        """This agent as a tool of another one: it gets a task in words, and answers.

        It works for the user of the run that calls it, in a conversation of its own, with its own memory and tools.
        What it spends is on the bill of that run, too, and counts for its `max_cost`.

        Args:
            name: what the model calls it; the agent's name if not given.
            description: what it is good for; the beginning of its instructions if not given.
            max_depth: how many agents may stand below the first one; a call of the next is refused.
        """
        about = description or self._sessions.description
        return AgentTool(self, name=name or self.name, description=about, max_depth=max_depth)

    async def preview(
        self, text: str | Message, *, user_id: str = "default", session_id: str | None = None
    ) -> tuple[Message, ...]:
        """What the model would be shown for a message: instructions, conversation, memory, knowledge, the message.

        Nothing is sent or kept. Tools travel beside the messages of a request, not among them.
        """
        async with self._sessions.acquire(user_id, session_id) as session:
            return await session.preview(text)

    async def session(self, *, user_id: str = "default", session_id: str | None = None) -> Session:
        """The session behind a conversation, to look at, compact, rewind or fork."""
        async with self._sessions.acquire(user_id, session_id) as session:
            return session

    async def forget(self, user_id: str, *, before: datetime | None = None) -> Erasure:
        """Erase a person: what is remembered of them, their conversations, and those that are open in this process.

        A turn of theirs that is running ends with NotFound, and nothing of it is kept. With `before`, only what
        happened before that moment, and conversations that were last saved before it. The receipt names each store,
        what it removed, and what is pending there.
        """
        sessions = await self._sessions.forget(user_id, before)
        receipts = [("sessions", sessions)]
        if self.memory is not None:
            receipts.insert(0, ("memory", await self.memory.forget(user_id=user_id, before=before)))
        stores = [StoreReceipt(store=name, removed=done.removed, pending=done.pending) for name, done in receipts]
        return Erasure(user_id=user_id, stores=tuple(stores))

    @property
    def bill(self) -> Bill:
        """Everything since the agent was made: answers, summaries, and learning (`memory.bill` is that alone)."""
        return self._ledger.bill + (self.memory.bill if self.memory else Bill())

    @property
    def usage(self) -> Usage:
        """The tokens of all requests since the agent was made, learning included."""
        return self.bill.usage

    @property
    def cost(self) -> float | None:
        """What all of them cost, in US dollars; None where the price of a model is not known."""
        return self.bill.cost

    async def aclose(self) -> None:
        """Save, learn from what waits, and close everything the agent opened; what it was given stays open.

        Learning takes a few requests to the model at the most; what is left waits in the memory for the next time.
        """
        async with AsyncExitStack() as stack:
            for model in (*((self.model,) if self._closes_model else ()), *self._opened):
                stack.push_async_callback(model.aclose)
            if self.memory is not None and self._closes_memory:
                stack.push_async_callback(self.memory.aclose)
            stack.push_async_callback(self._sessions.aclose)

    def close(self) -> None:
        """aclose() for programs without an event loop. In a forked process, what ran before stays with the parent."""
        with self._portal_lock:
            portal, self._portal = self._portal, None
        if portal is not None and portal.is_of_this_process:
            try:
                portal.call(self.aclose)
            finally:
                portal.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, _OTHER_WORDS)

    def __repr__(self) -> str:
        return f"Agent(name={self.name!r}, model={self.model.name!r}, memory={self.memory!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _finish(self, session: Session, pending: PendingReply) -> Result:
        async with self._answering():
            reply = await pending
            notes, learned = await self._learned(session, reply.remembered)
        return result_of(session, reply, notes=(*self.notes, *notes), learned=learned)

    async def _learned(
        self, session: Session, remembered: Remembered | None
    ) -> tuple[tuple[str, ...], tuple[Event, ...]]:
        """Notes and events of what memory made of this turn, and of its jobs in the background since the last one."""
        if self.memory is None:
            return (), ()
        user_id = session.scope.user_id
        notes, events = tuple[str, ...](), list[Event]()
        if remembered is not None and remembered.facts:
            facts = len(remembered.facts)
            events.append(session.announce(MemoryLearned, turns=1, facts=facts, usage=Usage(), by="rules"))
        promoted, archived = (remembered.promoted, remembered.archived) if remembered else (0, 0)
        try:
            done = await self.memory.upkeep(user_id=user_id)
        except LoomError as error:  # the answer is there, and what was not done waits
            done, notes = None, (f"memory jobs were not run: {error}",)
        if done is not None:
            notes = (*done.notes, *(f"background memory job failed: {reason}" for reason in done.failed))
            promoted, archived = promoted + done.counts.get("promoted", 0), archived + done.counts.get("archived", 0)
        if promoted:
            events.append(session.announce(MemoryPromoted, count=promoted, archived=archived))
        learned = self.memory.learned(user_id=user_id)
        if learned is None:
            return notes, tuple(events)
        event = session.announce(
            MemoryLearned,
            turns=learned.turns,
            facts=learned.facts,
            usage=learned.bill.usage,
            error=learned.failed or None,
        )
        return (*notes, str(learned), *learned.notes), (*events, event)

    def _answering(self) -> AbstractAsyncContextManager[None]:
        return self.memory.answering() if self.memory else nullcontext()


def _as_tools(given: Iterable[Tool | Callable[..., Any]]) -> tuple[Tool, ...]:
    if given == ():
        return ()
    from loom.tools.function import as_tools  # noqa: PLC0415  (pydantic, only where there are tools)

    return as_tools(given)


def _memory_tools(memory: Memory | None) -> tuple[Tool, ...]:
    from loom.tools.memory import memory_tools  # noqa: PLC0415  (only where they are wanted)

    if memory is None:
        raise UsageError("memory_tools=True needs a memory; give memory='sqlite:./bot.db', say")
    return memory_tools(memory)


# An agent as a tool of another agent.

_TASK = "task"


class AgentTool:
    """Runs an agent for the user of the run that calls it, each time in a new conversation."""

    def __init__(self, agent: Agent, *, name: str, description: str, max_depth: int) -> None:
        if not CALLABLE.fullmatch(name):
            raise UsageError(f"a tool cannot be called {name!r}; give name=, of at most 64 letters, digits, _ and -")
        if isinstance(max_depth, bool) or not isinstance(max_depth, int) or max_depth < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"max_depth={max_depth!r}; give a whole number, 1 or more")
        self._agent = agent
        self._max_depth = max_depth
        task: JSON = {"type": "string", "description": "What to do, with everything that has to be known for it."}
        schema: JSON = {"type": "object", "properties": {_TASK: task}, "required": [_TASK]}
        self.spec = ToolSpec(name, description or f"Ask the agent {name}.", schema)

    async def run(self, input: JSON) -> ToolOutput:
        """Give the agent a task, and return its answer."""
        task: Any = cast("Mapping[str, Any]", input).get(_TASK) if isinstance(input, Mapping) else None
        if not isinstance(task, str) or not task.strip():
            raise ToolError(f"the input of {self.spec.name} is wrong: give `{_TASK}`, a text")
        outer = current_run()
        if outer is not None and outer.depth >= self._max_depth:
            raise ToolError(f"{outer.depth + 1} agents call each other already; do this yourself, or do without it")
        user_id = outer.user_id if outer else "default"
        result = await self._agent.run(task, user_id=user_id, metadata=outer.metadata if outer else None)
        return result.text or "(it said nothing)"
