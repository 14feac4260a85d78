"""`loom proxy`: pass the calls of other programs on to their providers, and record them."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import typer

from loom.cli.memory import DEFAULT
from loom.cli.output import echo, print_json
from loom.cli.serve import Tokens, listening, token_file
from loom.errors import MissingExtra, UsageError


def proxy(
    url: Annotated[
        str, typer.Argument(help="Where calls are recorded, such as sqlite:./bot.db.", envvar="LOOM_MEMORY")
    ] = DEFAULT,
    *,
    upstream: Annotated[
        list[str] | None,
        typer.Option("--upstream", help="NAME=URL: one more provider at /NAME/v1, or another address of a known one."),
    ] = None,
    journal: Annotated[bool, typer.Option("--journal/--no-journal", help="Record each call.")] = True,
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

    It listens on this machine only. Any other address needs tokens: `loom serve token add`.
    """
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
    place = url if journal else None
    anyio.run(_proxy, _Proxied(place, found, namespace, host, port, file, needs_token=not is_local, json=json))


@dataclass(frozen=True, slots=True)
class _Proxied:
    """What is passed on from where."""

    url: str | None
    upstreams: dict[str, str]
    namespace: str
    host: str
    port: int
    tokens: Any
    needs_token: bool
    json: bool


async def _proxy(given: _Proxied) -> None:
    from loom.engine.agent_parts import agent_checkpoints
    from loom.server.http.guard import LOOPBACK
    from loom.server.proxy import open_proxy, server_of

    async with AsyncExitStack() as stack:
        checkpoints, notes = None, ()
        if given.url is not None:
            checkpoints, notes = agent_checkpoints(None, given.url)
            await stack.enter_async_context(aclosing(checkpoints))
        app = await stack.enter_async_context(
            open_proxy(
                given.upstreams,
                checkpoints=checkpoints,
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
                print_json(shown, indent=None)
            else:
                kept = f"recorded in {given.url}" if given.url else "nothing is recorded"
                echo(f"Loom passes calls on from {where} to {', '.join(given.upstreams)}; {kept} (Ctrl-C ends it)")
                for note in notes:
                    echo(f"! {note}", err=True)
            await server_of(app).serve(sockets=[listener])
