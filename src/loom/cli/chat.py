"""`loom chat`: talk to an agent in the terminal, and inspect what it sees."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.text import Text

from loom.cli.output import Stream, console, echo, plain, print_json
from loom.errors import LoomError, NotFound, UsageError

if TYPE_CHECKING:
    from loom.agent.agent import Agent
    from loom.core.log import Event
    from loom.memory._facts.instructions import Standing
    from loom.memory.memory import Memory
    from loom.session.session import Session

CHATS = "sqlite:./loom-chat.db"
"""The default store of a chat's memory and conversations."""
WHO = "me"
"""The default user."""

OFFLINE = "offline:memory"
"""The built-in model that costs nothing."""
_HELP = (
    "/context  /cost  /memory [QUESTION]  /forget ID  /standing  /confirm ID  /reject ID  /compact  /undo  /help  /quit"
)


def chat(
    message: Annotated[str | None, typer.Argument(help="Send one message and exit; without it, chat.")] = None,
    model: Annotated[str | None, typer.Option(help="provider:model; by default, the value of LOOM_MODEL.")] = None,
    memory: Annotated[str, typer.Option(help="The store of the agent's memory.", envvar="LOOM_MEMORY")] = CHATS,
    user: Annotated[str, typer.Option(help="Your user id.", envvar="LOOM_USER")] = WHO,
    session: Annotated[str | None, typer.Option(help="The conversation to continue; by default, a new one.")] = None,
    instructions: Annotated[str, typer.Option(help="The agent's instructions.")] = "You are a helpful assistant.",
    json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
) -> None:
    """Talk to an agent that remembers. Lines that begin with / are commands: /help lists them."""
    from loom.agent.agent import Agent

    async def work() -> None:
        async with Agent(instructions, model=model, memory=memory, memory_tools=True) as agent:
            opened = await agent.session(user_id=user, session_id=session)
            talk = Chat(agent, opened, json=json)
            try:
                await talk.talk(message)
            finally:
                talk.explain_wait()
        talk.print_bill()

    try:
        anyio.run(work)
    except KeyboardInterrupt:
        echo(err=True)  # the terminal shows ^C where it was typed: the next output begins a line
        raise


class Chat:
    """One conversation in the terminal."""

    def __init__(self, agent: Agent, session: Session, *, json: bool) -> None:
        self._agent = agent
        self._session = session
        self._json = json
        self._known: set[str] | None = None  # instructions that the user has already been shown
        self._out = console()
        self._errors = console(stderr=True)
        self._answer = Stream()
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "context": self._context,
            "cost": self._cost,
            "memory": self._memory,
            "forget": self._forget,
            "standing": self._standing,
            "confirm": self._confirm,
            "reject": self._reject,
            "compact": self._compact,
            "undo": self._undo,
            "help": self._help,
        }

    async def talk(self, message: str | None) -> None:
        """Send one message, or every line that is typed until the input ends."""
        if message is not None:
            await self._line(message)
            return
        if not self._json:
            self._out.print(Text(f"{self._agent.model.name}; {_HELP}", style="dim"))
            for note in self._agent.notes:
                self._out.print(Text(f"! {note}", style="yellow"))
        prompt = Text("> " if sys.stdin.isatty() else "", style="bold")
        while True:
            try:
                line = await self._read_line(prompt)
            except EOFError:
                return
            if line.strip() in ("/quit", "/exit"):
                return
            if line.strip():
                try:
                    await self._line(line)
                except LoomError as error:  # it ends the line, not the conversation
                    self._errors.print(Text(f"loom: {error}", style="red"))

    def explain_wait(self) -> None:
        """Say why closing takes a moment, if a model still reads the conversation."""
        if self._agent.memory is not None and self._agent.memory.waits_to_learn:
            self._errors.print(
                Text("[learning from the conversation; Ctrl-C postpones it to the next time]", style="dim")
            )

    def print_bill(self) -> None:
        """Print the total cost, learning at the end included."""
        if not self._json and self._agent.model.name != OFFLINE and self._agent.bill.requests:
            self._out.print(Text(f"({self._bill()})", style="dim"))

    def _bill(self) -> str:
        """The cost so far, and the part of it for learning."""
        memory = self._agent.memory
        learning = f"; of it for learning: {memory.bill}" if memory is not None and memory.bill.requests else ""
        return f"{self._agent.bill}{learning}"

    async def _read_line(self, prompt: Text) -> str:
        """Read the next line.

        In a terminal the event loop waits until a whole line is there, so that Ctrl-C works; a blocking read could not
        be interrupted.
        """
        self._errors.print(prompt, end="")
        if sys.stdin.isatty() and sys.platform != "win32":
            await anyio.wait_readable(sys.stdin)
        return self._errors.input()

    async def _line(self, line: str) -> None:
        if not line.startswith("/"):
            await self._send(line)
            return
        name, _, rest = line[1:].partition(" ")
        if name not in self._commands:
            raise UsageError(f"there is no /{name}; {_HELP}")
        await self._commands[name](rest.strip())

    async def _send(self, text: str) -> None:
        from loom.core.log import to_dict

        scope = self._session.scope
        if self._known is None:
            self._known = {item for _, item, _ in _instructions(await self._read_standing())}
        async for event in self._agent.stream(text, user_id=scope.user_id, session_id=self._session.id):
            if self._json:
                print_json(to_dict(event), indent=None)
            else:
                self._show(event)
        # Instructions that were learnt or wait for a confirmation are shown: the user can object.
        for id, wish, waits in _instructions(await self._read_standing()):
            if wish not in self._known:
                self._known.add(wish)
                does = f"waits; /confirm {id} or /reject {id}" if waits else f"learnt; /reject {id}"
                self._print(f"! {wish}: {does}", type="standing", id=id, wish=wish, unconfirmed=waits)

    def _show(self, event: Event) -> None:
        match event.type:
            case "text":
                self._answer.write(event.text)
            case "tool.start":
                self._out.print(Text(f"[{event.name}]", style="cyan"))
            case "compaction.end":
                change = f"{event.tokens_before:,} -> {event.tokens_after:,} tokens"
                self._out.print(Text(f"[compacted: {change}; /undo reverses it]", style="cyan"))
            case "recovery":
                self._out.print(Text(f"[{event.action}: {event.reason}]", style="yellow"))
            case "memory.learned" if event.by == "model":
                result = f"learnt {event.facts} facts from {event.turns} turns" if event.error is None else event.error
                self._out.print(
                    Text(f"[{result}: {event.usage.input:,} tokens in, {event.usage.output:,} out]", style="cyan")
                )
            case "turn.end":
                usage = event.usage
                read = f", {usage.cache_read / usage.input:.0%} from the cache" if usage.input else ""
                self._out.print(Text(f"\n({usage.input:,} tokens in{read}, {usage.output:,} out)", style="dim"))
            case _:
                pass

    def _print(self, text: str, **data: object) -> None:
        """Print a result: text for people, a line of JSON for programs."""
        if self._json:
            print_json(data, indent=None)
        else:
            self._out.print(Text(text))

    @property
    def _store(self) -> Memory:
        memory = self._agent.memory
        assert memory is not None
        return memory

    # -- commands -----------------------------------------------------------------------------------------

    async def _context(self, _: str) -> None:
        found = self._session.explain()
        self._print(str(found), tokens=found.tokens, window=found.window, sections=found.sections)

    async def _cost(self, _: str) -> None:
        bill, memory = self._agent.bill, self._agent.memory
        self._print(self._bill(), all=plain(bill), learning=plain(memory.bill) if memory else None)

    async def _memory(self, question: str) -> None:
        user = self._session.scope.user_id
        if not question:
            profile = str(await self._store.profile(user_id=user))
            self._print(profile or "nothing is known yet", profile=profile)
            return
        hits = (await self._store.recall(question, user_id=user)).hits
        lines = [f"{hit.item.id}  {hit.score:5.2f}  {hit.text}" for hit in hits]
        found = [{"id": hit.item.id, "score": hit.score, "text": hit.item.text} for hit in hits]
        self._print("\n".join(lines) or "nothing was found", hits=found)

    async def _forget(self, id: str) -> None:
        if not id:
            raise UsageError("name what to forget: /forget ID; /memory QUESTION shows the ids")
        receipt = await self._store.forget(id, user_id=self._session.scope.user_id)
        gone = sum(receipt.removed.values())
        if not gone:
            raise NotFound(f"there is nothing with the id {id!r}; /memory QUESTION shows the ids")
        self._print(f"forgot {gone} records", removed=receipt.removed)

    async def _read_standing(self) -> Standing:
        return await self._store.standing(user_id=self._session.scope.user_id)

    async def _standing(self, _: str) -> None:
        found = _instructions(await self._read_standing())
        lines = [f"{id}  {text}{'  (unconfirmed)' if waits else ''}" for id, text, waits in found]
        listed = [{"id": id, "wish": text, "unconfirmed": waits} for id, text, waits in found]
        self._print("\n".join(lines) or "there are no standing instructions", standing=listed)

    async def _confirm(self, id: str) -> None:
        if not id:
            raise UsageError("name what to confirm: /confirm ID; /standing shows the ids")
        done = await self._store.confirm(id, user_id=self._session.scope.user_id)
        kept, retired = [item.text for item in done.kept], [item.text for item in done.retired]
        gone = f"; no longer: {', '.join(retired)}" if retired else ""
        self._print(f"standing instruction: {', '.join(kept)}{gone}", kept=kept, retired=retired)

    async def _reject(self, id: str) -> None:
        if not id:
            raise UsageError("name what to reject: /reject ID; /standing shows the ids")
        receipt = await self._store.reject(id, user_id=self._session.scope.user_id)
        self._known = None  # if the user repeats it, it is new again
        self._print("rejected", removed=receipt.removed)

    async def _compact(self, _: str) -> None:
        done = await self._session.compact()
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

    async def _undo(self, _: str) -> None:
        await self._session.undo()
        self._print("the messages of the last compaction are shown again", messages=len(self._session.messages))

    async def _help(self, _: str) -> None:
        self._print(_HELP, commands=[f"/{name}" for name in (*self._commands, "quit")])


def _instructions(found: Standing) -> list[tuple[str, str, bool]]:
    """Standing and waiting instructions: the id, the text, and whether it waits for a confirmation."""
    active = [(item.id, item.text, False) for item in (*found.items, *found.left_out)]
    return [*active, *((item.id, item.text, True) for item in found.unconfirmed)]
