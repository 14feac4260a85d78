"""`loom chat`: talk to an agent in the terminal, and look at what it sees."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.text import Text

from loom.cli.output import Stream, console, echo, plain, print_json
from loom.core.event import Event, to_dict
from loom.errors import LoomError, NotFound, UsageError

if TYPE_CHECKING:
    from loom.agent.agent import Agent
    from loom.memory.memory import Memory
    from loom.memory.standing import Standing
    from loom.session.session import Session

CHATS = "sqlite:./loom-chat.db"
"""Where a chat remembers and is saved, if nothing is said."""
WHO = "me"
"""Who talks, if nothing is said."""

OFFLINE = "offline:memory"
"""The model that costs nothing."""
_HELP = (
    "/context  /cost  /memory [QUESTION]  /forget ID  /standing  /confirm ID  /reject ID  /compact  /undo  /help  /quit"
)


def chat(
    message: Annotated[str | None, typer.Argument(help="Say one thing and leave; talk if not given.")] = None,
    model: Annotated[str | None, typer.Option(help="provider:model; the one LOOM_MODEL names, if not given.")] = None,
    memory: Annotated[str, typer.Option(help="Where it remembers.", envvar="LOOM_MEMORY")] = CHATS,
    user: Annotated[str, typer.Option(help="Who you are.", envvar="LOOM_USER")] = WHO,
    session: Annotated[str | None, typer.Option(help="The conversation to go on with; a new one if not given.")] = None,
    instructions: Annotated[str, typer.Option(help="What the agent is told first.")] = "You are a helpful assistant.",
    json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
) -> None:
    """Talk to an agent that remembers. Lines that begin with / look at it: /help lists them."""
    from loom.agent.agent import Agent

    async def work() -> None:
        async with Agent(instructions, model=model, memory=memory, memory_tools=True) as agent:
            held = await agent.session(user_id=user, session_id=session)
            talk = Chat(agent, held, json=json)
            try:
                await talk.talk(message)
            finally:
                talk.before_the_end()
        talk.after_the_end()

    try:
        anyio.run(work)
    except KeyboardInterrupt:
        echo(err=True)  # the terminal shows ^C where it was typed: what comes next begins a line
        raise


class Chat:
    """One conversation in the terminal."""

    def __init__(self, agent: Agent, session: Session, *, json: bool) -> None:
        self._agent = agent
        self._session = session
        self._json = json
        self._heard: set[str] | None = None  # what stands or waits already, so that it is no news
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
        """Say one thing, or whatever is typed until it ends."""
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
                said = await self._typed(prompt)
            except EOFError:
                return
            if said.strip() in ("/quit", "/exit"):
                return
            if said.strip():
                await self._mended(said)

    def before_the_end(self) -> None:
        """Say why it takes a moment to leave, where a model still reads what was said."""
        if self._agent.memory is not None and self._agent.memory.waits_to_learn:
            self._errors.print(Text("[learning from what was said; Ctrl-C leaves it for the next time]", style="dim"))

    def after_the_end(self) -> None:
        """Say what it all cost, with what was learnt at the end."""
        if not self._json and self._agent.model.name != OFFLINE and self._agent.bill.requests:
            self._out.print(Text(f"({self._bill()})", style="dim"))

    def _bill(self) -> str:
        """What everything cost so far, and what of it was learning."""
        memory = self._agent.memory
        learning = f"; of it for learning: {memory.bill}" if memory is not None and memory.bill.requests else ""
        return f"{self._agent.bill}{learning}"

    async def _typed(self, prompt: Text) -> str:
        """The next line.

        In a terminal the loop waits until the line is whole, and hears Ctrl-C meanwhile; nobody else could end a read.
        """
        self._errors.print(prompt, end="")
        if sys.stdin.isatty() and sys.platform != "win32":
            await anyio.wait_readable(sys.stdin)
        return self._errors.input()

    async def _mended(self, said: str) -> None:
        """A line of a conversation: a mistake ends the line, not the conversation."""
        try:
            await self._line(said)
        except LoomError as error:
            self._errors.print(Text(f"loom: {error}", style="red"))

    async def _line(self, said: str) -> None:
        if not said.startswith("/"):
            await self._say(said)
            return
        name, _, rest = said[1:].partition(" ")
        if name not in self._commands:
            raise UsageError(f"there is no /{name}; {_HELP}")
        await self._commands[name](rest.strip())

    async def _say(self, said: str) -> None:
        scope = self._session.scope
        if self._heard is None:
            self._heard = {text for _, text, _ in _wishes(await self._standing_now())}
        async for event in self._agent.stream(said, user_id=scope.user_id, session_id=self._session.id):
            if self._json:
                print_json(to_dict(event), indent=None)
            else:
                self._show(event)
        await self._tell_news(self._heard)

    async def _tell_news(self, heard: set[str]) -> None:
        """Which wishes were learnt from what was said, and which wait: the user can object."""
        for id, text, waits in _wishes(await self._standing_now()):
            if text not in heard:
                heard.add(text)
                does = f"waits; /confirm {id} or /reject {id}" if waits else f"stands from now on; /reject {id}"
                self._tell(f"! {text}: {does}", type="standing", id=id, wish=text, unconfirmed=waits)

    def _show(self, event: Event) -> None:
        match event.type:
            case "text":
                self._answer.write(event.text)
            case "tool.start":
                self._out.print(Text(f"[{event.name}]", style="cyan"))
            case "compaction.end":
                change = f"{event.tokens_before:,} -> {event.tokens_after:,} tokens"
                self._out.print(Text(f"[compacted: {change}; /undo takes it back]", style="cyan"))
            case "recovery":
                self._out.print(Text(f"[{event.action}: {event.reason}]", style="yellow"))
            case "memory.learned" if event.by == "model":
                told = f"learnt {event.facts} facts from {event.turns} turns" if event.error is None else event.error
                self._out.print(
                    Text(f"[{told}: {event.usage.input:,} tokens in, {event.usage.output:,} out]", style="cyan")
                )
            case "turn.end":
                usage = event.usage
                read = f", {usage.cache_read / usage.input:.0%} from the cache" if usage.input else ""
                self._out.print(Text(f"\n({usage.input:,} tokens in{read}, {usage.output:,} out)", style="dim"))
            case _:
                pass

    def _tell(self, text: str, **data: object) -> None:
        """What a command found: words for people, a line of JSON for programs."""
        if self._json:
            print_json(data, indent=None)
        else:
            self._out.print(Text(text))

    @property
    def _kept(self) -> Memory:
        memory = self._agent.memory
        assert memory is not None
        return memory

    # -- commands -----------------------------------------------------------------------------------------

    async def _context(self, _: str) -> None:
        found = self._session.explain()
        self._tell(str(found), tokens=found.tokens, window=found.window, sections=found.sections)

    async def _cost(self, _: str) -> None:
        bill, memory = self._agent.bill, self._agent.memory
        self._tell(self._bill(), all=plain(bill), learning=plain(memory.bill) if memory else None)

    async def _memory(self, question: str) -> None:
        user = self._session.scope.user_id
        if not question:
            profile = str(await self._kept.profile(user_id=user))
            self._tell(profile or "nothing is known yet", profile=profile)
            return
        hits = (await self._kept.recall(question, user_id=user)).hits
        lines = [f"{hit.item.id}  {hit.score:5.2f}  {hit.item.text}" for hit in hits]
        found = [{"id": hit.item.id, "score": hit.score, "text": hit.item.text} for hit in hits]
        self._tell("\n".join(lines) or "nothing was found", hits=found)

    async def _forget(self, id: str) -> None:
        if not id:
            raise UsageError("name what to forget: /forget ID; /memory QUESTION shows the ids")
        receipt = await self._kept.forget(id, user_id=self._session.scope.user_id)
        gone = sum(receipt.removed.values())
        if not gone:
            raise NotFound(f"there is nothing with the id {id!r}; /memory QUESTION shows the ids")
        self._tell(f"forgotten: {gone} of what was kept", removed=receipt.removed)

    async def _standing_now(self) -> Standing:
        return await self._kept.standing(user_id=self._session.scope.user_id)

    async def _standing(self, _: str) -> None:
        found = _wishes(await self._standing_now())
        lines = [f"{id}  {text}{'  (unconfirmed)' if waits else ''}" for id, text, waits in found]
        listed = [{"id": id, "wish": text, "unconfirmed": waits} for id, text, waits in found]
        self._tell("\n".join(lines) or "nothing stands", standing=listed)

    async def _confirm(self, id: str) -> None:
        if not id:
            raise UsageError("name what to confirm: /confirm ID; /standing shows the ids")
        done = await self._kept.confirm(id, user_id=self._session.scope.user_id)
        kept, retired = [item.text for item in done.kept], [item.text for item in done.retired]
        gone = f"; no longer: {', '.join(retired)}" if retired else ""
        self._tell(f"stands from now on: {', '.join(kept)}{gone}", kept=kept, retired=retired)

    async def _reject(self, id: str) -> None:
        if not id:
            raise UsageError("name what to reject: /reject ID; /standing shows the ids")
        receipt = await self._kept.reject(id, user_id=self._session.scope.user_id)
        self._heard = None  # said again, it is news again
        self._tell("rejected", removed=receipt.removed)

    async def _compact(self, _: str) -> None:
        done = await self._session.compact()
        if done is None:
            self._tell("nothing to compact: the conversation is no longer than what stays anyway", strategy=None)
            return
        change = f"{done.tokens_before:,} -> {done.tokens_after:,} tokens"
        self._tell(
            f"{done.strategy}: {change}; /undo takes it back",
            strategy=done.strategy,
            tokens_before=done.tokens_before,
            tokens_after=done.tokens_after,
        )

    async def _undo(self, _: str) -> None:
        await self._session.undo()
        self._tell("what was compacted last is shown again", messages=len(self._session.messages))

    async def _help(self, _: str) -> None:
        self._tell(_HELP, commands=[f"/{name}" for name in (*self._commands, "quit")])


def _wishes(found: Standing) -> list[tuple[str, str, bool]]:
    """What stands, shown or not, and what waits: the id, the words, and whether it waits."""
    stands = [(item.id, item.text, False) for item in (*found.items, *found.left_out)]
    return [*stands, *((item.id, item.text, True) for item in found.unconfirmed)]
