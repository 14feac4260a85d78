"""`loom proxy`: pass the calls of other programs on to their providers, record them, and change what is chosen."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import typer

from loom.cli.output import DEFAULT, Json, echo, print_json
from loom.cli.serve import Tokens, UrlGroup, listening, token_file
from loom.errors import MissingExtra, UsageError


class _ProxyGroup(UrlGroup):
    """The URL may also come behind options: `loom proxy --markers sqlite:./bot.db`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line."""
        with_value = {name for param in self.params if not getattr(param, "is_flag", False) for name in param.opts}
        words = [i for i, arg in enumerate(args) if not arg.startswith("-") and args[max(0, i - 1)] not in with_value]
        if words and args[words[0]] not in self.commands:
            args = [*args[: words[0]], "--url", *args[words[0] :]]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ProxyGroup, invoke_without_command=True)
Url = Annotated[
    str, typer.Option("--url", help="Where calls are recorded, such as sqlite:./bot.db.", envvar="LOOM_MEMORY")
]


@app.callback()
def proxy(
    ctx: typer.Context,
    *,
    url: Url = DEFAULT,
    upstream: Annotated[
        list[str] | None,
        typer.Option("--upstream", help="NAME=URL: one more provider at /NAME/v1, or another address of a known one."),
    ] = None,
    journal: Annotated[bool, typer.Option("--journal/--no-journal", help="Record each call.")] = True,
    markers: Annotated[
        bool, typer.Option("--markers", help="Place cache markers in requests of Anthropic's format, where they pay.")
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Add what memory has on a message behind it, and remember the turn.")
    ] = False,
    shorten_tools: Annotated[
        bool, typer.Option("--shorten-tools", help="Shorten long tool results; `loom proxy read ID` has the whole one.")
    ] = False,
    compact: Annotated[
        int | None,
        typer.Option("--compact", help="Tokens of a request from which on old turns become a summary.", min=2_000),
    ] = None,
    memory_budget: Annotated[
        int, typer.Option("--memory-budget", help="Tokens that memory may add to one message.", min=100)
    ] = 1_000,
    advance: Annotated[
        int,
        typer.Option("--advance", help="Tokens at the plain price that a conversation may be behind; 0: never.", min=0),
    ] = 0,
    namespace: Annotated[
        str, typer.Option("--namespace", help="The namespace of callers without a token.")
    ] = "default",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for any free one.", min=0, max=65535)] = 8421,
    tokens: Tokens = None,
    json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Pass calls of Anthropic's and OpenAI's clients on unchanged, and record what the prompt cache did.

    It takes /v1/messages, /v1/messages/count_tokens, /v1/responses and /v1/chat/completions. Point a client at it with
    ANTHROPIC_BASE_URL=http://127.0.0.1:8421 or OPENAI_BASE_URL=http://127.0.0.1:8421/v1, and see the calls with
    `loom inspect`. Keys pass through; they are neither kept nor logged.

    --markers, --memory, --shorten-tools and --compact change requests. By Loom's own account of the cache no
    conversation costs more than without them, memory's own text aside; what would is left out, and recorded.

    It listens on this machine only. Any other address needs tokens: `loom serve token add`.
    """
    if ctx.invoked_subcommand is not None:
        return
    try:
        from loom.server.http.guard import LOOPBACK
        from loom.server.proxy import upstreams_of
    except ImportError as error:
        raise MissingExtra("loom proxy", "server") from error

    file = token_file(tokens)
    is_local = host in LOOPBACK
    if not is_local and not file.tokens():
        raise UsageError(
            f"{host} can be reached from other machines, and there are no tokens; make one first with "
            "`loom serve token add NAME`, or listen on 127.0.0.1"
        )
    found = upstreams_of(upstream or ())
    if not journal and (memory or shorten_tools or compact is not None):
        raise UsageError("--memory, --shorten-tools and --compact keep what they did; leave --no-journal out")
    chosen = _Chosen(markers, memory, shorten_tools, compact, memory_budget, advance)
    place = url if journal else None
    anyio.run(_proxy, _Proxied(place, found, namespace, host, port, file, chosen, needs_token=not is_local, json=json))


@app.command("read")
def read(
    id: Annotated[str, typer.Argument(help="The id, as the end of a shortened result has it.")],
    *,
    lines: Annotated[str | None, typer.Option("--lines", help="Some lines of it, such as 10-60.")] = None,
    user: Annotated[str, typer.Option("--user", help="The user that it was sent for.")] = "me",
    namespace: Annotated[str, typer.Option("--namespace", help="The namespace of the user.")] = "default",
    url: Url = DEFAULT,
    json: Json = False,
) -> None:
    """Print the whole of a tool result that was shortened, or the messages that a compaction covers."""
    text = anyio.run(_read, url, namespace, user, id, lines)
    if json:
        print_json({"id": id, "text": text})
    else:
        echo(text)


async def _read(url: str, namespace: str, user: str, id: str, lines: str | None) -> str:
    try:
        from loom.server.proxy.app import lines_of
        from loom.server.proxy.features import read_result
    except ImportError as error:
        raise MissingExtra("loom proxy", "server") from error

    from loom.core.scope import Scope
    from loom.engine.agent_parts import agent_checkpoints
    from loom.engine.urls import check_is_there

    check_is_there(url)
    checkpoints, _ = agent_checkpoints(None, url)
    async with aclosing(checkpoints):
        return lines_of(await read_result(checkpoints, Scope(namespace, user), id), lines)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What is done to requests."""

    markers: bool
    memory: bool
    shorten_tools: bool
    compact: int | None
    memory_budget: int
    advance: int

    @property
    def names(self) -> list[str]:
        """The features, as they are written on the command line."""
        found = {"--markers": self.markers, "--memory": self.memory, "--shorten-tools": self.shorten_tools}
        return [name for name, is_on in (found | {"--compact": self.compact is not None}).items() if is_on]


@dataclass(frozen=True, slots=True)
class _Proxied:
    """What is passed on from where."""

    url: str | None
    upstreams: dict[str, str]
    namespace: str
    host: str
    port: int
    tokens: Any
    chosen: _Chosen
    needs_token: bool
    json: bool


async def _proxy(given: _Proxied) -> None:
    from loom.engine.agent_parts import agent_checkpoints
    from loom.engine.open import open_memory
    from loom.server.http.guard import LOOPBACK
    from loom.server.proxy import Features, open_proxy, server_of

    async with AsyncExitStack() as stack:
        checkpoints, notes = None, ()
        if given.url is not None:
            checkpoints, notes = agent_checkpoints(None, given.url)
            await stack.enter_async_context(aclosing(checkpoints))
        chosen, memory = given.chosen, None
        if chosen.memory and given.url is not None:
            memory = await stack.enter_async_context(open_memory(given.url, namespace=given.namespace))
        made = await stack.enter_async_context(
            open_proxy(
                given.upstreams,
                checkpoints=checkpoints,
                features=Features(
                    markers=chosen.markers,
                    memory=memory,
                    memory_budget=chosen.memory_budget,
                    shorten_tools=chosen.shorten_tools,
                    compact=chosen.compact,
                    advance=chosen.advance,
                ),
                namespace=given.namespace,
                tokens=given.tokens,
                needs_token=given.needs_token,
                hosts=None if given.needs_token else LOOPBACK,
            )
        )
        with listening(given.host, given.port) as listener:
            host = f"[{given.host}]" if ":" in given.host else given.host
            where = f"http://{host}:{listener.getsockname()[1]}"
            if given.json:
                shown = {"address": where, "upstreams": given.upstreams, "journal": given.url, "notes": notes}
                print_json({**shown, "features": chosen.names}, indent=None)
            else:
                kept = f"recorded in {given.url}" if given.url else "nothing is recorded"
                kept = f"{kept}; with {', '.join(chosen.names)}" if chosen.names else kept
                echo(f"Loom passes calls on from {where} to {', '.join(given.upstreams)}; {kept} (Ctrl-C ends it)")
                for note in notes:
                    echo(f"! {note}", err=True)
            await server_of(made).serve(sockets=[listener])
