"""Tools in a session: approval, execution, skills, and long results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import isawaitable, iscoroutinefunction
from logging import getLogger
from math import inf
from typing import Any, Final, Protocol

from anyio import create_task_group, current_effective_deadline, get_cancelled_exc_class, to_thread

from loom.context.context import Context
from loom.context.entry import MessageEntry, StringEntry
from loom.context.skills import (
    CATALOG_RULE,
    Skill,
    SkillMatcher,
    create_active_skill_fragment,
    create_skills_fragment,
    tool_refusal,
)
from loom.core.checks import (
    MAX_TEXT,
    MAX_TOOL_INPUT,
    MAX_TOOL_NAME,
    MAX_VALUE,
    chars_in,
    check_length,
    join_surrogates,
    shortened,
)
from loom.core.clock import Clock
from loom.core.log import LoggedMessage, Replacement, Shown, ToolEnd, ToolRefused, ToolStart
from loom.core.message import JSON, ContentPart, Message, Part, TextPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.core.scope import RunContext, within_run
from loom.core.threads import off_loop
from loom.errors import CostExceeded, NotFound, UsageError
from loom.protocols.token_counter import TokenCounter
from loom.protocols.tool import Approve, Tool, ToolOutput, ToolRequest
from loom.session import TOOL_MAKER
from loom.session.config import SMALLEST_OUTPUT
from loom.session.history import SPILL, History
from loom.session.reply import Emitter
from loom.telemetry import Bill, Ledger

_log = getLogger(__name__)


class Payer(Protocol):
    """A turn that pays for what runs inside its tools."""

    def spend(self, bill: Bill, counted: Collection[Ledger]) -> None:
        """Add a bill, which is on these ledgers already."""
        ...

    def exceeded(self) -> CostExceeded | None:
        """The error to say that the turn, or one above it, has cost as much as it may; None where it has not."""
        ...


_payer: ContextVar[Payer | None] = ContextVar("loom_payer", default=None)


def payer_above() -> Payer | None:
    """The turn whose tool this is inside of; None where there is none."""
    return _payer.get()


class Toolbox:
    """Tools by name. The calls of one answer run concurrently; their results come back in order."""

    def __init__(
        self, tools: Iterable[Tool | Callable[..., Any]], *, approve: Approve | None, emitter: Emitter, clock: Clock
    ) -> None:
        check_approve(approve)
        self._tools: dict[str, Tool] = {}
        for given in tools:
            tool = given if isinstance(given, Tool) else TOOL_MAKER.get()(given)
            instead = "no provider takes a longer one: rename it"
            check_length(tool.spec.name, f"the name of tool {tool.spec.name[:40]!r}", MAX_TOOL_NAME, instead)
            if tool.spec.name in self._tools:
                raise UsageError(f"two tools are called {tool.spec.name!r}; rename one")
            self._tools[tool.spec.name] = tool
        self._approve = approve
        self._emitter = emitter
        self._clock = clock

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told, in the order given."""
        return tuple(tool.spec for tool in self._tools.values())

    async def run(
        self, calls: Sequence[ToolCallPart], refused: dict[str, str], *, run: RunContext, payer: Payer
    ) -> Message:
        """The results of all calls; those in `refused` (by id) get the reason instead.

        `payer` pays for what runs inside the tools.
        """
        refused = {**refused, **await self._ask([call for call in calls if call.id not in refused], run)}
        for call in calls:
            await self._emitter.emit(ToolStart, call_id=call.id, name=call.name, arguments=call.arguments)
        results: dict[str, ToolResultPart] = {}

        async def one(call: ToolCallPart) -> None:
            began = self._clock.monotonic()
            result = _failed(call, "the tool was cancelled before it answered")
            try:
                with within_run(run), _paid_by(payer):
                    result = await self._answer(call, refused.get(call.id), MAX_TEXT // len(calls))
            except get_cancelled_exc_class():
                # A tool that awaits a task which was cancelled ends like this, too. It must not stop the others.
                if current_effective_deadline() == -inf:
                    raise
            finally:
                results[call.id] = result
                spent = round((self._clock.monotonic() - began) * 1000)
                texts = [part.text for part in result.content if isinstance(part, TextPart)]
                values = {"name": call.name, "is_error": result.is_error, "milliseconds": spent}
                self._emitter.emit_nowait(ToolEnd, call_id=call.id, text="\n".join(texts), **values)

        async with create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(one, call)
        return Message("user", tuple(results[call.id] for call in calls))

    async def _ask(self, calls: Sequence[ToolCallPart], run: RunContext) -> dict[str, str]:
        """Ask the approval hook about calls; returns the reasons of those that it refuses, by id."""
        refused: dict[str, str] = {}
        if self._approve is None:
            return refused
        for call in calls:
            request = ToolRequest(name=call.name, arguments=call.arguments, call_id=call.id, run=run)
            reason = await _refusal(self._approve, request)
            if reason is not None:
                refused[call.id] = f"the call was refused, and not made: {reason}"
                await self._emitter.emit(ToolRefused, call_id=call.id, name=call.name, reason=reason)
        return refused

    async def _answer(self, call: ToolCallPart, refusal: str | None, most: int) -> ToolResultPart:
        """The result of a call, in at most so many characters."""
        tool = self._tools.get(call.name)
        if refusal is not None:
            return _failed(call, refusal)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return _failed(call, f"there is no tool {call.name[:MAX_TOOL_NAME]!r}; the tools are: {known}")
        if (size := chars_in(call.input, MAX_TOOL_INPUT)) > MAX_TOOL_INPUT:
            return _failed(call, f"the input has over {MAX_TOOL_INPUT:,} characters ({size:,}); send less of it")
        try:
            result = ToolResultPart(call.id, _content(await tool.run(call.input), most))
            MessageEntry(Message("user", (result,)))  # refuses what no provider takes
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the model is told of whatever a tool raises)
            return _failed(call, shortened(f"{type(error).__name__}: {error}", most))
        return result


def check_approve(approve: object) -> None:
    """Refuse an approval hook that cannot be called."""
    if approve is not None and not callable(approve):
        raise UsageError(f"approve={approve!r} is not a function; give one that takes a ToolRequest and returns a bool")


@contextmanager
def _paid_by(payer: Payer) -> Generator[None]:
    token = _payer.set(payer)
    try:
        yield
    finally:
        _payer.reset(token)


def _content(output: ToolOutput, most: int) -> tuple[ContentPart, ...]:
    """What a tool returned as parts; of text in more than `most` characters both ends, and how much is left out."""
    if isinstance(output, str):
        return (TextPart(shortened(output, most)),)
    if not isinstance(output, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"the tool returned {type(output).__name__}; it has to return text, or parts")
    texts = [part for part in output if isinstance(part, TextPart)]
    if sum(len(part.text) for part in texts) <= most:
        return tuple(output)
    share = most // len(texts)
    return tuple(TextPart(shortened(p.text, share), p.phase) if isinstance(p, TextPart) else p for p in output)


def _failed(call: ToolCallPart, reason: str) -> ToolResultPart:
    reason = join_surrogates(reason)  # an error may name a file whose name is not UTF-8
    return ToolResultPart(call.id, (TextPart(reason),), is_error=True)


async def _refusal(approve: Approve, request: ToolRequest) -> str | None:
    """Why a call is refused; None where it may be made."""
    try:
        with within_run(request.run):
            answer = await _answer(approve, request)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a guard that cannot decide must not let anything through)
        _log.exception("the approval of %s failed", request.name)
        return f"its approval failed ({type(error).__name__})"
    if answer is True:
        return None
    if isinstance(answer, str) and answer.strip():
        return shortened(answer, MAX_VALUE)
    return "it was not approved"


async def _answer(approve: Approve, request: ToolRequest) -> Any:
    if iscoroutinefunction(approve) or iscoroutinefunction(getattr(approve, "__call__", None)):  # noqa: B004
        return await approve(request)  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
    answer = await to_thread.run_sync(approve, request, abandon_on_cancel=True)
    return await answer if isawaitable(answer) else answer


# Skills of a session: activated by the user's message or loaded by the model, and the tools they allow.

LOAD: Final = "load_skill"
"""The tool by which a model loads a skill."""
_SURE = 0.6
"""Matches below this confidence activate nothing; a description alone reaches it at best."""


class ActiveSkills:
    """The skills of a session. One is active in the turn whose message asks for it, or in which the model loads it."""

    def __init__(self, skills: Iterable[Skill]) -> None:
        self._skills = tuple(skills)
        self._matcher = SkillMatcher(self._skills)
        self.active: tuple[Skill, ...] = ()
        self.loaded: tuple[Skill, ...] = ()

    @property
    def loadable(self) -> dict[str, Skill]:
        """Those that the model may load, by name."""
        return {skill.name: skill for skill in self._skills if not skill.user_only}

    def activate(self, text: str, shown: Sequence[Shown]) -> list[Message]:
        """Activate what a message asks for; returns the instructions that are not in the conversation yet."""
        self.loaded = ()
        if not self._skills:
            return []
        self.active = tuple(m.skill for m in self._matcher.match(text) if m.confidence >= _SURE)
        wanted = [Message.user(create_active_skill_fragment(skill).text()) for skill in self.active]
        return [message for message in wanted if all(message != item.message for item in shown)]

    def load(self, name: str) -> str:
        """Activate a skill by its name; returns its instructions."""
        skill = self.loadable.get(name)
        if skill is None:
            raise NotFound(f"there is no skill {name[:80]!r}; the skills are: {', '.join(sorted(self.loadable))}")
        if skill not in (*self.active, *self.loaded):
            self.loaded = (*self.loaded, skill)
        return create_active_skill_fragment(skill).text()

    def refused(self, calls: Sequence[ToolCallPart]) -> dict[str, str]:
        """Why calls may not run while the active skills are, by the id of the call.

        A skill that the model loaded can take tools away, but not give back those that the user's skills took.
        """
        if not self.active and not self.loaded:
            return {}
        asked = [call for call in calls if call.name != LOAD or not self.loadable]
        reasons = {call.id: tool_refusal(call, self.active) or tool_refusal(call, self.loaded) for call in asked}
        return {id: reason for id, reason in reasons.items() if reason}

    def tools(self, given: Iterable[Tool]) -> tuple[Tool, ...]:
        """The tool by which the model loads a skill, unless there is nothing to load or one of that name is given."""
        taken = any(isinstance(tool, Tool) and tool.spec.name == LOAD for tool in given)  # pyright: ignore[reportUnnecessaryIsInstance]
        return (LoadSkill(self),) if self.loadable and not taken else ()

    def show(self, context: Context) -> None:
        """List the skills in the prefix, unless a prompt there does already."""
        catalog = create_skills_fragment(self._skills)
        listed = any(isinstance(entry, StringEntry) and CATALOG_RULE in entry.text for entry in context.foundation)
        if self.loadable and not listed:
            context.foundation.add(StringEntry(f"# {catalog.label}\n{catalog.text()}"))


class LoadSkill:
    """The tool by which a model loads a skill."""

    def __init__(self, skills: ActiveSkills) -> None:
        self._skills = skills
        name = {"type": "string", "enum": sorted(skills.loadable), "description": "The skill."}
        schema = {"type": "object", "properties": {"name": name}, "required": ["name"], "additionalProperties": False}
        self.spec = ToolSpec(LOAD, "Load the instructions of a skill, before you do what it is for.", schema)

    async def run(self, input: JSON) -> str:
        """The instructions of a skill, which is active from now on until the turn is over."""
        given: dict[str, Any] = dict(input) if isinstance(input, dict) else {}  # pyright: ignore[reportUnknownArgumentType]
        name = given.get("name")
        if not isinstance(name, str):
            raise UsageError(f"{LOAD} takes the name of a skill: {', '.join(sorted(self._skills.loadable))}")
        return self._skills.load(name)


# Long tool results: the log keeps all of them, the model sees both ends and can read the rest.

_NOTICE: Final = SMALLEST_OUTPUT // 2
"""Characters that are set aside for the notice."""
_TOOL: Final = "read_output"
_MATCHES: Final = 20
_LINE: Final = 200
"""Characters of a line that is shown for a match."""


class LongResults:
    """Shortens the results of one session that are longer than `limit` characters, and reads them again.

    Shortening is a rewrite of what is shown, like a compaction: the original stays in the log, is saved, restored and
    forked with it, and the rewrite can be undone.
    """

    def __init__(self, history: History, limit: int, counter: TokenCounter) -> None:
        self._history = history
        self._limit = limit
        self._counter = counter
        fields = {
            "id": {"type": "string", "description": "The id that the shortened result names."},
            "start": {"type": "integer", "minimum": 0, "description": "The first character to read; 0 if left out."},
            "length": {"type": "integer", "minimum": 1, "maximum": self._most, "description": "Characters to read."},
            "find": {"type": "string", "description": "Show where this text stands, instead of reading."},
        }
        schema = {"type": "object", "properties": fields, "required": ["id"], "additionalProperties": False}
        self.spec = ToolSpec(_TOOL, "Read, or search, a tool result that was too long to show whole.", schema)

    @property
    def _most(self) -> int:
        return self._limit - _NOTICE  # so that what it reads is never shortened itself

    async def shorten(self, logged: LoggedMessage) -> None:
        """Show a message of results with the long ones shortened."""
        parts = [self._shortened(part, f"{logged.id}-{n}") for n, part in enumerate(logged.message.parts)]
        short = Message(logged.message.role, tuple(parts))
        if short != logged.message:
            count, both = self._counter.count_part, (logged.message, short)
            chars = sum(len(_text(part)) for part in logged.message.parts)
            before, after = await off_loop(chars // 8, lambda: [sum(map(count, message.parts)) for message in both])
            self._history.rewrite(SPILL, [Replacement((logged.id,), short)], before=before, after=after)

    async def run(self, input: JSON) -> str:
        """A piece of a result, or the places where a text stands in it."""
        given: dict[str, Any] = dict(input) if isinstance(input, dict) else {}  # pyright: ignore[reportUnknownArgumentType]
        id, start, length = given.get("id"), given.get("start", 0), given.get("length", self._most)
        if not isinstance(id, str) or not _is_count(start, 0) or not _is_count(length, 1):
            raise UsageError(f"{_TOOL} takes id (a text), start (0 or more) and length (1 or more), or find (a text)")
        text = self._output(id)
        if given.get("find"):
            return _matches(text, str(given["find"]))
        piece = text[start : start + min(length, self._most)]
        if not piece:
            raise UsageError(f"the result has {len(text):,} characters; start={start} lies behind its end")
        end = start + len(piece)
        return piece + (f"\n[{len(text) - end:,} more characters; start={end} reads on]" if end < len(text) else "")

    def _output(self, id: str) -> str:
        """The whole text of a result of this session."""
        message_id, _, number = id.rpartition("-")
        for entry in self._history.log:
            if isinstance(entry, LoggedMessage) and entry.id == message_id and number.isdigit():
                part = entry.message.parts[int(number)] if int(number) < len(entry.message.parts) else None
                if isinstance(part, ToolResultPart):
                    return _text(part)
        raise NotFound(f"there is no result {id!r} in this conversation; a shortened result names its id")

    def _shortened(self, part: Part, id: str) -> Part:
        text = _text(part)
        if not isinstance(part, ToolResultPart) or len(text) <= self._limit:
            return part
        head = (self._limit - _NOTICE) * 3 // 4
        tail = self._limit - _NOTICE - head
        notice = (
            f"[{len(text) - head - tail:,} of {len(text):,} characters are not shown here. "
            f'{_TOOL}(id="{id}", start={head}) reads on; with find="..." it searches.]'
        )
        shown = TextPart(f"{text[:head]}\n\n{notice}\n\n{text[-tail:]}")
        rest = tuple(piece for piece in part.content if not isinstance(piece, TextPart))
        return ToolResultPart(part.call_id, (shown, *rest), is_error=part.is_error)


def _text(part: Part) -> str:
    """The text of a tool result; empty for any other part."""
    pieces = part.content if isinstance(part, ToolResultPart) else ()
    return "\n".join(piece.text for piece in pieces if isinstance(piece, TextPart))


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _matches(text: str, wanted: str) -> str:
    """The places of a text, letter case aside, each with its line."""
    folded, target = text.lower(), wanted.lower()
    found: list[str] = []
    place = folded.find(target)
    while place >= 0 and len(found) < _MATCHES:
        begin = max(text.rfind("\n", 0, place) + 1, place - _LINE // 2)
        line = text[begin : begin + _LINE].split("\n", maxsplit=1)[0]
        found.append(f"{place}: {line}")
        place = folded.find(target, place + len(target))
    if not found:
        return f"{wanted!r} does not stand in it."
    more = "\n[there are more]" if place >= 0 else ""
    return "\n".join(found) + more
