"""`loom chat`: talk to an agent in the terminal, and inspect what it sees."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import typer
from rich.text import Text

from loom.cli.output import DEFAULT, WHO, Stream, console, plain, print_json, shortened
from loom.cli.store import run_and_close
from loom.cli.terminal import LineReader, Waiting, Wrap
from loom.core.checks import did_you_mean
from loom.core.scope import Scope
from loom.errors import LoomError, NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from loom.admin.sessions import SessionLine
    from loom.agent._blocking import SyncAgent
    from loom.agent.agent import Agent
    from loom.core.log import Event
    from loom.core.message import Usage
    from loom.engine._blocking import SyncMemory, SyncSession
    from loom.memory._facts.instructions import Standing
    from loom.protocols.checkpoint_store import CheckpointStore
    from loom.protocols.model import Model

_T = TypeVar("_T")
OFFLINE = "offline:memory"
"""The built-in model that costs nothing."""
_HELP = {
    "/memory": "what is known about you, and shown in every turn",
    "/memory QUESTION": "what is found for a question, with ids",
    "/forget ID": "forget a record",
    "/standing": "your standing instructions, with ids",
    "/confirm ID": "let an instruction stand that waits for it",
    "/reject ID": "end an instruction",
    "/context": "what the next request would hold",
    "/cost": "what was spent, and on learning",
    "/compact": "shorten the history",
    "/undo": "reverse the last compaction",
    "/sessions": "earlier conversations, by their first words",
    "/help": "this list",
    "/quit": "end the chat, as Ctrl-D does",
}
_EARLIER = "loom-chat.db"
"""The file of chats before they shared that of `loom memory`."""
_RECENT = 20
"""Conversations whose lines can be called back, and that /sessions lists."""
_MEASURED = 0.5
"""Seconds of an answer after which its speed is worth a number."""


def chat(
    message: Annotated[str | None, typer.Argument(help="Send one message and exit; without it, chat.")] = None,
    model: Annotated[str | None, typer.Option(help="provider:model; by default, the value of LOOM_MODEL.")] = None,
    memory: Annotated[
        str, typer.Option("--memory", "--url", help="The store of the agent's memory.", envvar="LOOM_MEMORY")
    ] = DEFAULT,
    user: Annotated[str, typer.Option(help="Your user id.", envvar="LOOM_USER")] = WHO,
    session: Annotated[
        str | None,
        typer.Option(help="The conversation to continue, by its id or its first words; by default, a new one."),
    ] = None,
    instructions: Annotated[str, typer.Option(help="The agent's instructions.")] = "You are a helpful assistant.",
    memory_tools: Annotated[
        bool,
        typer.Option("--memory-tools", help="Let the model search and change the memory with tools, too."),
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Cores that a local model uses.", min=1)] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of a local model's context window.", min=1)] = None,
    max_output: Annotated[int | None, typer.Option(help="Tokens that an answer may have.", min=1)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
) -> None:
    """Talk to an agent that remembers. Lines that begin with / are commands: /help lists them.

    Ctrl-C ends an answer, Ctrl-D the chat. The default store is that of `loom memory`.
    """
    from loom.agent.agent import Agent

    file = DEFAULT.partition(":./")[2]
    if memory == DEFAULT and Path(_EARLIER).exists() and not Path(file).exists():
        note = f"chats of an earlier Loom are in {_EARLIER}; rename it to {file} to go on with them"
        console(stderr=True).print(Text(f"! {note}", style="yellow"))
    config: dict[str, Any] = {} if max_output is None else {"settings": {"max_output": max_output}}
    local = _local_model(model, threads, context)
    agent = Agent(instructions, model=local or model, memory=memory, memory_tools=memory_tools, config=config)
    talk = Chat(agent, user, session, place=memory, json=json)
    try:
        talk.talk(message)
    finally:
        talk.close()
        if local is not None:  # it was given as an object, so the agent leaves it open
            anyio.run(local.aclose)
    talk.print_bill()


def _local_model(name: str | None, threads: int | None, context: int | None) -> Model | None:
    """The model on this machine that options are given for; None where there are none."""
    from loom.engine.open import DEFAULT_MODEL, open_model

    options = {"--threads": threads, "--context": context}
    given = [option for option, value in options.items() if value is not None]
    if not given:
        return None
    name = name or os.environ.get(DEFAULT_MODEL, "")
    if not name.startswith("local:"):
        raise UsageError(f"{' and '.join(given)}: for models on this machine alone; give --model local:PATH too")
    values = {"threads": threads, "context_window": context}
    return open_model(name, **{option: value for option, value in values.items() if value is not None})


class Chat:
    """One conversation in the terminal."""

    def __init__(self, agent: Agent, user: str, session: str | None, *, place: str, json: bool) -> None:
        self._agent: SyncAgent = agent.blocking
        self._place = place
        self._begins = ""  # the first words of the conversation that is continued, if it was named by them
        if session is not None and " " in session.strip():
            session = self._session_that_begins(session.strip(), user)
        self._session: SyncSession = self._agent.session(user_id=user, session_id=session)
        self._json = json
        self._known: set[str] | None = None  # instructions that the user has already been shown
        self._out = console()
        self._errors = console(stderr=True)
        self._answer = Stream(Wrap() if sys.stdout.isatty() else None)
        self._waiting = Waiting()
        self._first_text: float | None = None
        self._prompt = 0
        self._commands: dict[str, Callable[[str], None]] = {
            "context": self._context,
            "cost": self._cost,
            "memory": self._memory,
            "forget": self._forget,
            "standing": self._standing,
            "confirm": self._confirm,
            "reject": self._reject,
            "compact": self._compact,
            "undo": self._undo,
            "sessions": self._sessions,
            "help": self._help,
        }

    def talk(self, message: str | None) -> None:
        """Send one message, or every line that is typed until the input ends."""
        if message is not None:
            self._line(message)
            return
        reader = LineReader()
        if not self._json:
            line = (
                f"{self._agent.model.name}, user {self._session.scope.user_id}; /help lists the commands, Ctrl-D ends"
            )
            self._out.print(Text(line, style="dim"))
            if self._begins:
                self._out.print(Text(f"continuing {self._begins!r}", style="dim"))
            for note in self._agent.notes:
                self._out.print(Text(f"! {note}", style="yellow"))
        if reader.has_history:
            reader.remember(self._earlier_lines())
        while True:
            try:
                line = reader.read()
            except EOFError:
                if reader.is_terminal:
                    self._errors.print()  # Ctrl-D ends no line
                return
            if line.strip() in ("/quit", "/exit"):
                return
            if line.strip() and not self._is_said(line, goes_on=reader.is_terminal):
                self._errors.print(Text("[stopped; Ctrl-D ends the chat]", style="dim"))

    def _is_said(self, line: str, *, goes_on: bool) -> bool:
        """Send a line, or run the command that it is; False if it was stopped by Ctrl-C."""
        try:
            self._line(line)
        except LoomError as error:  # it ends the line, not the conversation
            self._errors.print(Text(f"loom: {error}", style="red"))
        except KeyboardInterrupt:
            if not goes_on:  # nobody is there to type the next one
                raise
            return False
        return True

    def close(self) -> None:
        """Save and learn what waits; Ctrl-C postpones learning to the next time."""
        memory = self._agent.memory
        if memory is not None and memory.waits_to_learn:
            what = "learning from the conversation; Ctrl-C postpones it to the next time"
            if self._errors.is_terminal:
                self._waiting.show(what)
            else:
                self._errors.print(Text(f"[{what}]", style="dim"))
        try:
            self._agent.close()
        finally:
            self._waiting.hide()

    def print_bill(self) -> None:
        """Print the total cost, learning at the end included."""
        if not self._json and self._agent.model.name != OFFLINE and self._agent.bill.requests:
            self._out.print(Text(f"({self._bill()})", style="dim"))

    def _bill(self) -> str:
        """The cost so far, and the part of it for learning."""
        memory = self._agent.memory
        learning = f"; of it for learning: {memory.bill}" if memory is not None and memory.bill.requests else ""
        return f"{self._agent.bill}{learning}"

    def _line(self, line: str) -> None:
        if not line.startswith("/"):
            self._send(line)
            return
        name, _, rest = line[1:].partition(" ")
        if name not in self._commands:
            hint = did_you_mean(name, self._commands).replace("'", "'/", 1)
            raise UsageError(f"there is no /{name}{hint or '; /help lists the commands'}")
        self._commands[name](rest.strip())

    def _send(self, text: str) -> None:
        from loom.core.log import to_dict

        scope = self._session.scope
        if self._known is None:
            self._known = {item for _, item, _ in _instructions(self._read_standing())}
        self._first_text = None
        try:
            self._wait_for_answer(text)
            for event in self._agent.stream(text, user_id=scope.user_id, session_id=self._session.id):
                if self._json:
                    print_json(to_dict(event), indent=None)
                else:
                    self._show(event)
        finally:
            self._waiting.hide()
            if not self._json:
                self._answer.end()
        # Instructions that were learned or wait for a confirmation are shown: the user can object.
        for id, wish, waits in _instructions(self._read_standing()):
            if wish not in self._known:
                self._known.add(wish)
                does = f"waits; /confirm {id} or /reject {id}" if waits else f"learned; /reject {id}"
                self._print(f"! {wish}: {does}", type="standing", id=id, wish=wish, unconfirmed=waits)

    # -- what an answer shows -----------------------------------------------------------------------------

    def _wait_for_answer(self, text: str) -> None:
        """Say what is waited for until the first word: a file to be loaded, a prompt to be read."""
        if self._json or not self._waiting.is_shown:
            return
        from loom.text.tokens import estimate_tokens

        self._prompt = self._session.explain().tokens + round(estimate_tokens(text))
        self._wait_for_model()

    def _wait_for_model(self) -> None:
        loaded = getattr(self._agent.model, "is_loaded", True)
        what = "reading" if loaded else f"loading {self._agent.model.name}, then reading"
        self._waiting.show(f"{what} about {self._prompt:,} tokens")

    def _show(self, event: Event) -> None:
        if event.type == "text":
            self._waiting.hide()
            self._first_text = self._first_text or monotonic()
            self._answer.write(event.text)
            return
        match event.type:
            case "memory.recalled":
                self._prompt += event.tokens
                self._wait_for_model()
            case "tool.start":
                self._remark(f"[{event.name}]", "cyan")
                self._waiting.show(f"running {event.name}")
            case "tool.end":
                self._waiting.show(f"reading the result of {event.name}")
            case "compaction.start":
                self._waiting.show(f"compacting {event.tokens:,} tokens")
            case "compaction.end":
                change = f"{event.tokens_before:,} -> {event.tokens_after:,} tokens"
                self._remark(f"[compacted: {change}; /undo reverses it]", "cyan")
            case "recovery":
                self._remark(f"[{event.action}: {event.reason}]", "yellow")
                self._waiting.show("waiting for the model again")
            case "memory.learned" if event.by == "model":
                result = f"learned {event.facts} facts from {event.turns} turns" if event.error is None else event.error
                self._remark(f"[{result}: {event.usage.input:,} tokens in, {event.usage.output:,} out]", "cyan")
            case "turn.end":
                self._remark(self._summary(event.usage), "dim")
            case _:
                pass

    def _remark(self, text: str, style: str) -> None:
        """Print a remark on a line of its own, between the lines of an answer."""
        self._waiting.hide()
        self._answer.end()
        self._out.print(Text(text, style=style))

    def _summary(self, usage: Usage) -> str:
        read = f", {usage.cache_read / usage.input:.0%} from the cache" if usage.input else ""
        seconds = monotonic() - self._first_text if self._first_text is not None else 0.0
        # What comes in one piece says nothing about speed.
        is_measured = seconds >= _MEASURED and self._agent.model.name != OFFLINE
        speed = f", {usage.output / seconds:.0f} tokens/s" if is_measured else ""
        return f"({usage.input:,} tokens in{read}, {usage.output:,} out{speed})"

    def _print(self, text: str, **data: object) -> None:
        """Print a result: text for people, a line of JSON for programs."""
        if self._json:
            print_json(data, indent=None)
        else:
            self._out.print(Text(text))

    @property
    def _store(self) -> SyncMemory:
        memory = self._agent.memory
        assert memory is not None
        return memory

    # -- commands -----------------------------------------------------------------------------------------

    def _context(self, _: str) -> None:
        found = self._session.explain()
        self._print(str(found), tokens=found.tokens, window=found.window, sections=found.sections)

    def _cost(self, _: str) -> None:
        bill, memory = self._agent.bill, self._agent.memory
        self._print(self._bill(), all=plain(bill), learning=plain(memory.bill) if memory else None)

    def _memory(self, question: str) -> None:
        user = self._session.scope.user_id
        if not question:
            profile = str(self._store.profile(user_id=user))
            self._print(profile or "nothing is known yet", profile=profile)
            return
        hits = (self._store.recall(question, user_id=user)).hits
        lines = [f"{hit.item.id}  {hit.score:5.2f}  {hit.text}" for hit in hits]
        found = [{"id": hit.item.id, "score": hit.score, "text": hit.item.text} for hit in hits]
        self._print("\n".join(lines) or "nothing was found", hits=found)

    def _forget(self, id: str) -> None:
        if not id:
            raise UsageError("name what to forget: /forget ID; /memory QUESTION shows the ids")
        receipt = self._store.forget(id, user_id=self._session.scope.user_id)
        gone = sum(receipt.removed.values())
        if not gone:
            raise NotFound(f"there is nothing with the id {id!r}; /memory QUESTION shows the ids")
        self._print(f"forgot {gone} records", removed=receipt.removed)

    def _read_standing(self) -> Standing:
        return self._store.standing(user_id=self._session.scope.user_id)

    def _standing(self, _: str) -> None:
        found = _instructions(self._read_standing())
        lines = [f"{id}  {text}{'  (unconfirmed)' if waits else ''}" for id, text, waits in found]
        listed = [{"id": id, "wish": text, "unconfirmed": waits} for id, text, waits in found]
        self._print("\n".join(lines) or "there are no standing instructions", standing=listed)

    def _confirm(self, id: str) -> None:
        if not id:
            raise UsageError("name what to confirm: /confirm ID; /standing shows the ids")
        done = self._store.confirm(id, user_id=self._session.scope.user_id)
        kept, retired = [item.text for item in done.kept], [item.text for item in done.retired]
        gone = f"; no longer: {', '.join(retired)}" if retired else ""
        self._print(f"standing instruction: {', '.join(kept)}{gone}", kept=kept, retired=retired)

    def _reject(self, id: str) -> None:
        if not id:
            raise UsageError("name what to reject: /reject ID; /standing shows the ids")
        receipt = self._store.reject(id, user_id=self._session.scope.user_id)
        self._known = None  # if the user repeats it, it is new again
        self._print("rejected", removed=receipt.removed)

    def _compact(self, _: str) -> None:
        done = self._session.compact()
        if done is None:
            self._print("nothing to compact: all messages of the conversation are kept anyway", strategy=None)
            return
        change = f"{done.tokens_before:,} -> {done.tokens_after:,} tokens"
        self._print(
            f"{done.strategy}: {change}; /undo reverses it",
            strategy=done.strategy,
            tokens_before=done.tokens_before,
            tokens_after=done.tokens_after,
        )

    def _undo(self, _: str) -> None:
        self._session.undo()
        self._print("the messages of the last compaction are shown again", messages=len(self._session.messages))

    def _sessions(self, _: str) -> None:
        found = self._recent()
        lines = [f"{one.id}  {one.last.at:%Y-%m-%d %H:%M}  {shortened(one.begins)}" for one in found]
        listed = [{"session": one.id, "last": one.last.at, "begins": one.begins} for one in found]
        hint = "loom chat --session ID continues one of them, and so does --session with two or more of its first words"
        self._print("\n".join([*lines, hint] if lines else ["no conversations are saved yet"]), sessions=listed)

    def _recent(self) -> list[SessionLine]:
        return self._recent_of(self._session.scope.for_user())

    def _recent_of(self, user: Scope) -> list[SessionLine]:
        from loom.admin.sessions import recent_sessions

        return self._read_saved(lambda store: recent_sessions(store, user, limit=_RECENT)) or []

    def _session_that_begins(self, words: str, user: str) -> str:
        """The id of the recent conversation that begins with these words; the words themselves where none does."""
        recent = self._recent_of(Scope("default", user))
        begin = words.casefold()
        found = [one for one in recent if one.id != words and one.begins.casefold().startswith(begin)]
        if any(one.id == words for one in recent) or not found:
            return words
        if len(found) > 1:
            ids = ", ".join(one.id for one in found)
            raise UsageError(
                f"{len(found)} conversations begin with {words!r}: {ids}; give one of these, or more words"
            )
        self._begins = shortened(found[0].begins)
        return found[0].id

    def _earlier_lines(self) -> list[str]:
        """What the user said in earlier conversations, oldest first.

        It comes out of the store and goes into no file of its own, so what is forgotten is forgotten here, too.
        """
        from loom.admin.sessions import lines_of_user

        with suppress(LoomError):
            return (
                self._read_saved(lambda store: lines_of_user(store, self._session.scope.for_user(), limit=_RECENT))
                or []
            )
        return []

    def _read_saved(self, read: Callable[[CheckpointStore], Awaitable[_T]]) -> _T | None:
        """What is read from the saved conversations; None if they are not saved."""
        from loom.engine.open import open_checkpoints
        from loom.engine.urls import check_is_there, sessions_place

        place = sessions_place(self._place)
        if place is None:
            return None
        with suppress(NotFound):
            check_is_there(place)
            return run_and_close(open_checkpoints(place), read)
        return None

    def _help(self, _: str) -> None:
        width = max(map(len, _HELP))
        lines = [f"{command:{width}}  {about}" for command, about in _HELP.items()]
        self._print("\n".join(lines), commands=[f"/{name}" for name in (*self._commands, "quit")])


def _instructions(found: Standing) -> list[tuple[str, str, bool]]:
    """Standing and waiting instructions: the id, the text, and whether it waits for a confirmation."""
    active = [(item.id, item.text, False) for item in (*found.items, *found.left_out)]
    return [*active, *((item.id, item.text, True) for item in found.unconfirmed)]
