"""The calls of other programs, passed on to their providers byte by byte, and recorded.

With no feature chosen, what arrives is what is sent, and what comes back is what is answered: bodies, status codes and
all headers but those that belong to one connection. Nothing is tried again, and where a client hangs up its call to the
provider ends. The address of a provider is never taken from a request. Keys pass through: they are neither kept nor
logged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
from anyio.lowlevel import checkpoint

from loom.core.clock import Clock, SystemClock
from loom.core.scope import Scope as Owner
from loom.core.threads import off_loop
from loom.errors import MissingExtra, NotFound, UsageError
from loom.protocols.checkpoint_store import CheckpointStore
from loom.server.tokens import ANYBODY, Token, TokenFile

try:
    import httpx2
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route, Router

    from loom.server.http.guard import LOOPBACK, App, Counts, Gate, Limits, Receive, Refusal, Scope, Send
except ImportError as error:
    raise MissingExtra("loom proxy", "server") from error

from loom.server.proxy.features import Arrived, Features, RequestEditor, read_result
from loom.server.proxy.journal import Call, ProxyJournal, session_of_body
from loom.server.proxy.tool_results import READ, how_to_read

_log = logging.getLogger(__name__)

UPSTREAMS: Final[Mapping[str, str]] = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com"}
"""The providers that are known by name."""
_PATHS: Final[Mapping[str, str]] = {
    "/v1/messages": "anthropic",
    "/v1/messages/count_tokens": "anthropic",
    "/v1/responses": "openai",
    "/v1/chat/completions": "openai",
}
"""What is passed on, and to whom where the path names no upstream."""
_UPSTREAM_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_COUNTING: Final = "/v1/messages/count_tokens"

_OF_ONE_CONNECTION: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    )
)
"""Headers between two neighbours, which a proxy must not pass on (RFC 9110, section 7.6.1)."""
_NOT_SENT: Final = _OF_ONE_CONNECTION | {b"host", b"expect"}
_OWN: Final = b"x-loom-"
"""Headers for the proxy itself."""
_LIMITS: Final = Limits(body_bytes=64_000_000, values=None, seconds=float("inf"))
"""Anthropic takes 32 MB. How long an answer may take is for the client to say: it hangs up."""
_TIMEOUT: Final = {"connect": 30.0, "read": None, "write": None, "pool": None}
_IDLE_SECONDS: Final = 5.0
"""How long a connection is kept for the next call: well below the time after which a provider closes it, as a call
that is sent at that moment fails, and is not sent again here."""
_DEFAULT_USER: Final = "me"


def upstreams_of(given: Iterable[str]) -> dict[str, str]:
    """The upstreams by name, with those given as NAME=URL.

    Raises:
        UsageError: one of them is not NAME=URL with an address of HTTP.
    """
    found = dict(UPSTREAMS)
    for text in given:
        name, equals, url = text.partition("=")
        parts = urlsplit(url)
        if not equals or parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(f"--upstream {text!r} is not NAME=URL; write it as openrouter=https://openrouter.ai/api")
        if parts.username is not None:
            raise UsageError(f"the address of upstream {name!r} holds a key; let the clients send it in a header")
        if name == "v1" or not _UPSTREAM_NAME.fullmatch(name):
            raise UsageError(f"an upstream cannot be called {name!r}: it is a part of a path; use a-z, 0-9, - and _")
        found[name] = url.rstrip("/").removesuffix("/v1")  # a base URL of OpenAI's clients ends with it, others do not
    return found


@asynccontextmanager
async def open_proxy(
    upstreams: Mapping[str, str] = UPSTREAMS,
    *,
    checkpoints: CheckpointStore | None = None,
    features: Features | None = None,
    namespace: str = "default",
    tokens: TokenFile | None = None,
    needs_token: bool = False,
    hosts: frozenset[str] | None = LOOPBACK,
    clock: Clock | None = None,
) -> AsyncGenerator[App]:
    """The proxy as an ASGI application; when it ends, what waits is recorded first.

    Args:
        upstreams: where to send to, by name. `/v1/messages` goes to `anthropic`, the paths of OpenAI to `openai`, and
            `/NAME/v1/...` to any of them.
        checkpoints: where calls are recorded; None records nothing.
        features: what is done to requests; nothing if not given.
        namespace: the namespace of callers without a token.
        tokens: who may call; a token is needed as soon as there is any, and always with `needs_token`.
        needs_token: whether nobody is let in without one.
        hosts: the host names that it answers for; None for all.
        clock: tells when a call began.
    """
    doorman = _Doorman(namespace, tokens, needs_token=needs_token)
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        editor = RequestEditor(features, checkpoints, clock) if features is not None and features.any else None
        journal = None
        if checkpoints is not None:
            behind = editor.remember if editor is not None else None
            journal = await stack.enter_async_context(ProxyJournal(checkpoints, behind).running())
        routes = [Route("/loom/results/{id}", _Only("GET", _Results(checkpoints, doorman)))]
        for name, url in upstreams.items():
            transport = await stack.enter_async_context(_transport(url))
            for path, owner in _PATHS.items():
                door = _Door(
                    name, url, path, transport=transport, doorman=doorman, journal=journal, clock=clock, editor=editor
                )
                routes += [Route(at, _Only("POST", door)) for at in (f"/{name}{path}", path)[: 1 + (owner == name)]]
        yield Gate(
            Router(routes, default=_unknown, redirect_slashes=False),
            hosts=hosts,
            limits=_LIMITS,
            counts=Counts(),
            added=(),
        )


def server_of(app: App) -> uvicorn.Server:
    """A server that adds nothing of its own to an answer. The proxy's own log says when a provider breaks off."""
    config = uvicorn.Config(
        app, log_level="critical", lifespan="off", access_log=False, server_header=False, date_header=False
    )
    return uvicorn.Server(config)


def _transport(url: str) -> httpx2.AsyncHTTPTransport:
    """Connections to one upstream: no cookies, no redirects, no second try; through the machine's HTTP proxy if any."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = None if host in LOOPBACK or proxy_bypass(host) else getproxies().get(parts.scheme)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=_IDLE_SECONDS)
    return httpx2.AsyncHTTPTransport(limits=limits, proxy=proxy)


async def _unknown(scope: Scope, _: Receive, __: Send) -> None:
    if scope["type"] == "http":
        paths = ", ".join(_PATHS)
        raise Refusal(404, "not_found", "nothing is passed on from this path", f"the paths are {paths}")


class _Only:
    """What answers one method of a path; others are refused in the form of all errors."""

    def __init__(self, method: str, app: App) -> None:
        self._method, self._app = method, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["method"] != self._method:
            refusal = Refusal(405, "wrong_method", f"this path takes {self._method}", f"use {self._method}")
            refusal.headers = {"Allow": self._method}
            raise refusal
        await self._app(scope, receive, send)


class _Doorman:
    """Says for whom a call is: by its token, and by `x-loom-user` and `x-loom-session` where the token allows it."""

    def __init__(self, namespace: str, tokens: TokenFile | None, *, needs_token: bool) -> None:
        self._namespace, self._tokens, self._needs_token = namespace, tokens, needs_token

    def owner(self, headers: Mapping[bytes, bytes]) -> Owner:
        """The user of a call, and the conversation if a header names it."""
        token = self._token(headers)
        try:
            user = headers[b"x-loom-user"].decode() if b"x-loom-user" in headers else self._user_of(token)
            session = headers[b"x-loom-session"].decode() if b"x-loom-session" in headers else None
            owner = Owner(self._namespace if token is ANYBODY else token.namespace, user, session)
        except (UsageError, UnicodeDecodeError) as error:
            raise Refusal(422, "invalid", f"x-loom-user or x-loom-session is not valid: {error}") from error
        if not token.may("write", owner.user_id):
            raise Refusal(403, "forbidden", "this token does not allow that", "use one with the right, for this user")
        return owner

    def how_to_read(self, headers: Mapping[bytes, bytes], owner: Owner) -> str:
        """The command that reads a stored result: of this proxy, unless that would need the token in it."""
        if self._token(headers) is not ANYBODY:
            return READ
        return how_to_read(headers.get(b"host", b"").decode("latin-1"), owner.user_id, _DEFAULT_USER)

    def _token(self, headers: Mapping[bytes, bytes]) -> Token:
        if self._tokens is None or (not self._needs_token and not self._tokens.tokens()):
            return ANYBODY
        secret = headers.get(b"x-loom-token", b"").decode("latin-1").strip()
        found = self._tokens.find(secret) if secret else None
        if found is None:
            raise Refusal(401, "not_allowed", "the request has no token that is valid", "send x-loom-token: TOKEN")
        return found

    def _user_of(self, token: Token) -> str:
        if token.users is None:
            return _DEFAULT_USER
        if len(token.users) == 1:
            return token.users[0]
        raise Refusal(403, "forbidden", "this token is for several users", "name one in x-loom-user")


class _Door:
    """One path of one upstream."""

    def __init__(
        self,
        name: str,
        url: str,
        path: str,
        *,
        transport: httpx2.AsyncHTTPTransport,
        doorman: _Doorman,
        journal: ProxyJournal | None,
        clock: Clock,
        editor: RequestEditor | None,
    ) -> None:
        self._name, self._path, self._url = name, path, url + path
        self._target = (urlsplit(url).path + path).encode()
        self._transport, self._doorman, self._clock = transport, doorman, clock
        self._journal = None if path == _COUNTING else journal  # counting calls no model
        self._editor = None if path == _COUNTING else editor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one call on, and its answer back, until either side is done."""
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        owner = self._doorman.owner(dict(headers))
        body = await _whole(receive)
        if body is None:
            return
        encoding = dict(headers).get(b"content-encoding", b"")
        now = self._clock.now()
        prepared = None
        if self._editor is not None and encoding in {b"", b"identity"}:
            named = owner
            if not owner.session_id:
                named = owner.for_session(await off_loop(len(body), partial(session_of_body, body)))
            read = self._doorman.how_to_read(dict(headers), named)
            prepared = await self._editor.prepare(Arrived(named, self._name, self._path, body, now, read))
            owner, body = named, prepared.body
        request = self._request(headers, scope.get("query_string", b""), body)
        call = Call(owner, self._name, self._path, now, body, encoding, prepared=prepared)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
                await self._exchange(request, call, send)
                tasks.cancel_scope.cancel()
        except* Refusal as refused:
            raise refused.exceptions[0] from None
        finally:
            if prepared is not None:
                prepared.commit(call.status is not None and call.status < 300)
            if self._journal is not None:
                self._journal.put(call)

    def _request(self, headers: list[tuple[bytes, bytes]], query: bytes, body: bytes) -> httpx2.Request:
        sent = [pair for pair in _passed_on(headers, _NOT_SENT) if not pair[0].startswith(_OWN)]
        if self._editor is not None:
            length = (b"content-length", b"%d" % len(body))
            sent = [length if name.lower() == b"content-length" else (name, value) for name, value in sent]
        target = self._target + (b"?" + query if query else b"")
        extensions = {"timeout": _TIMEOUT, "target": target}  # the target as it arrived, not as a URL is written here
        return httpx2.Request("POST", self._url, headers=sent, content=body, extensions=extensions)

    async def _exchange(self, request: httpx2.Request, call: Call, send: Send) -> None:
        """Send a request and pass the answer on as it comes."""
        try:
            response = await self._transport.handle_async_request(request)
        except httpx2.TransportError as error:
            call.error = f"{type(error).__name__}: {self._name} did not answer"
            raise _unreachable(self._name, error) from error
        call.status, call.reply_headers = response.status_code, list(response.headers.raw)
        started = {"type": "http.response.start", "status": response.status_code}
        added = call.prepared.headers if call.prepared is not None else []
        try:
            await send({**started, "headers": [*_passed_on(response.headers.raw, _OF_ONE_CONNECTION), *added]})
            async for chunk in response.aiter_raw():
                call.add(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await checkpoint()  # pieces that are here already come without a wait: a hang-up has to be heard too
            call.is_whole = True
            await send({"type": "http.response.body", "body": b""})
        except httpx2.TransportError as error:
            # Half an answer must not look like a whole one: the connection to the client ends without its end, too.
            call.error = f"{type(error).__name__}: {self._name} broke off its answer"
            _log.warning("%s broke off an answer: %s", self._name, type(error).__name__)
        finally:
            with anyio.CancelScope(shield=True), suppress(httpx2.TransportError):
                await response.aclose()


class _Results:
    """The whole of what was shortened or compacted, for the user that it was sent for."""

    def __init__(self, store: CheckpointStore | None, doorman: _Doorman) -> None:
        self._store, self._doorman = store, doorman

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the text, or with some lines of it."""
        request = Request(scope, receive)
        owner = self._doorman.owner(dict(scope["headers"])).for_user()
        if self._store is None:
            raise Refusal(404, "not_found", "nothing is recorded here", "start the proxy without --no-journal")
        try:
            text = await read_result(self._store, owner, request.path_params["id"])
            shown = lines_of(text, request.query_params.get("lines"))
        except NotFound as error:
            raise Refusal(404, "not_found", str(error), "see the end of the shortened result for its id") from error
        except UsageError as error:
            raise Refusal(422, "invalid", str(error), "write it as lines=10-60") from error
        kind = {"content-type": "text/plain; charset=utf-8"}
        await Response(shown.encode("utf-8", "replace"), headers=kind)(scope, receive, send)


def lines_of(text: str, wanted: str | None) -> str:
    """Some lines of a text, as in `10-60`, or all of it.

    Raises:
        UsageError: they are not two numbers.
    """
    if wanted is None:
        return text
    found = re.fullmatch(r"(\d{1,9})-(\d{1,9})", wanted)
    if found is None:
        raise UsageError(f"lines {wanted!r} are not two numbers, as in 10-60")
    return "\n".join(text.split("\n")[max(0, int(found[1]) - 1) : int(found[2])])


def _unreachable(name: str, error: httpx2.TransportError) -> Refusal:
    if isinstance(error, httpx2.LocalProtocolError):
        return Refusal(400, "bad_header", "a header of the request cannot be sent", "send only what HTTP/1.1 allows")
    status = 504 if isinstance(error, httpx2.TimeoutException) else 502
    return Refusal(status, "no_upstream", f"{name} did not answer: {type(error).__name__}", "try again later")


def _passed_on(headers: Iterable[tuple[bytes, bytes]], left_out: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """Headers without those of one connection, which are the known ones and those that it names itself."""
    pairs = list(headers)
    named = {
        word.strip().lower() for name, value in pairs if name.lower() == b"connection" for word in value.split(b",")
    }
    return [(name, value) for name, value in pairs if name.lower() not in left_out | named]


async def _whole(receive: Receive) -> bytes | None:
    """The body of a request; None where the client hung up before its end."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
