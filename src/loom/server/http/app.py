"""The server as one ASGI application: routes, errors in one form, health, metrics, and MCP beside them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncGenerator, Callable, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
from pydantic import TypeAdapter

from loom import __version__
from loom.core.checks import MAX_ID_BYTES, MAX_NAME
from loom.core.clock import SystemClock
from loom.errors import LoomError, MissingExtra, StoreError
from loom.memory.memory import Memory
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.memory_store import CountsJobs
from loom.server.tokens import ANYBODY, Right, TokenFile

try:
    import jinja2  # noqa: F401  # pyright: ignore[reportUnusedImport]  # who has FastAPI need not have the pages' templates
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, PlainTextResponse, Response
    from fastapi.routing import APIRoute
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.routing import Route
except ImportError as error:
    raise MissingExtra("loom serve", "server") from error

from loom.core.scope import Scope
from loom.server.http import events, knowledge_routes, memory_routes, session_routes
from loom.server.http.caller import TOKEN, Caller, Place, caller_of, check_user_in, operator, token_in, token_of
from loom.server.http.guard import (
    LOOPBACK,
    App,
    Counts,
    Gate,
    Limits,
    NameConvertor,
    Receive,
    Refusal,
    Send,
    refusal_of,
)
from loom.server.http.shapes import ErrorOut, MemoriesIn, RecalledOut, RecallIn, RememberedOut, UserBody
from loom.server.inspector import requests as request_pages
from loom.server.inspector import sessions as session_pages
from loom.server.inspector.pages import LOGIN, PREFIX, TRANSCRIPT, add_pages, refusal_page, token_of_page
from loom.server.mcp import MemoryTools, mcp_server

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server
    from starlette.applications import Starlette

_log = logging.getLogger(__name__)
_SEND_JSON: Final = "send the body as JSON, with the header Content-Type: application/json; see /openapi.json"
_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorOut, "description": text}
    for status, text in {
        401: "No valid token.",
        403: "The token does not allow it.",
        404: "It is not there.",
        409: "Somebody else was faster.",
        413: "Too large.",
        422: "The request is not valid.",
        429: "Too many requests.",
        503: "The store does not answer.",
    }.items()
}


def create_app(
    memory: Memory,
    checkpoints: CheckpointStore,
    *,
    tokens: TokenFile | None = None,
    needs_token: bool = False,
    hosts: frozenset[str] | None = LOOPBACK,
    limits: Limits | None = None,
    transcript: Path | None = None,
    mcp_app: Callable[[Server[Any]], Starlette] | None = None,
) -> Gate:
    """The server over a memory and the conversations beside it; both stay open when it ends.

    With `tokens`, a caller needs one as soon as there is any, and always with `needs_token`. `hosts` are the host names
    that it answers for; None for all. `transcript` is a file or folder that the page of transcripts shows.
    `mcp_app` makes the app of the MCP server, for those who have more tools to offer on the same address.
    """
    limits = limits or Limits()
    place = Place(memory, checkpoints, tokens, Counts(), heartbeat=min(15.0, limits.seconds / 2))
    mcp = (mcp_app or _mcp_app)(mcp_server(_door_of))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(mcp.router.lifespan_context(mcp))
            stack.push_async_callback(place.close_views)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            tasks.start_soon(place.counts.watch)
            stack.callback(tasks.cancel_scope.cancel)
            stack.callback(place.end)
            yield

    app = _application(lifespan)
    app.state.place, app.state.needs_token, app.state.transcript = place, needs_token, transcript
    served = (route for route in mcp.router.routes if isinstance(route, Route))
    app.router.routes.extend(Route(route.path, _Checked(route.app)) for route in served)

    def known(scope: MutableMapping[str, Any], header: str) -> str | None:
        with suppress(StoreError):  # the route says that the tokens cannot be read
            token = scope[TOKEN] = None if tokens is None else token_in(header, tokens)
            return None if token is None else f"token {token.name}"
        return None

    uploads = frozenset({TRANSCRIPT})
    return Gate(
        _Direct(app), hosts=hosts, limits=limits, counts=place.counts, known=known, end=place.end, uploads=uploads
    )


def _mcp_app(server: Server[Any]) -> Starlette:
    """Each request by itself: no session is kept, and the host name is checked by the gate."""
    return server.streamable_http_app(stateless_http=True, json_response=True, host="")


def describe() -> dict[str, Any]:
    """The OpenAPI document of the server."""
    return _application(None).openapi()


def _application(lifespan: Any) -> FastAPI:
    app = FastAPI(
        title="Loom",
        version=__version__,
        summary="The memory and the conversations of agents.",
        lifespan=lifespan,
        responses=_ERRORS,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # it has a route of ours, which asks for a token as all others do
    )
    app.include_router(memory_routes.router)
    app.include_router(session_routes.router)
    app.include_router(events.router)
    app.include_router(knowledge_routes.router)
    add_pages(app, session_pages.router, request_pages.router)
    _add_health(app)
    _add_errors(app)
    return app


def _add_health(app: FastAPI) -> None:
    @app.get("/openapi.json", include_in_schema=False)
    async def description(request: Request) -> JSONResponse:
        """This description."""
        token_of(request)
        return JSONResponse(app.openapi())

    @app.get("/healthz", tags=["server"], response_class=PlainTextResponse)
    async def healthz() -> str:
        """Whether the process answers."""
        return "ok"

    @app.get("/readyz", tags=["server"], response_class=PlainTextResponse)
    async def readyz(request: Request) -> str:
        """Whether the store answers."""
        place: Place = request.app.state.place
        await place.memory.store.count(Scope("readyz", "readyz"))
        return "ok"

    @app.get("/metrics", tags=["server"], response_class=PlainTextResponse)
    async def metrics(request: Request) -> PlainTextResponse:
        """Counts for Prometheus; needs the right to operate."""
        operator(request)
        place: Place = request.app.state.place
        store = place.memory.store
        jobs = await store.job_counts(now=SystemClock().now()) if isinstance(store, CountsJobs) else {}
        return PlainTextResponse(place.counts.text(jobs), media_type="text/plain; version=0.0.4")


def _add_errors(app: FastAPI) -> None:
    def answer(request: Request, refusal: Refusal) -> Response:
        if request.url.path.startswith(PREFIX):
            return refusal_page(request, refusal)
        return JSONResponse(refusal.body(), status_code=refusal.status, headers=refusal.headers)

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return answer(request, error)

    @app.exception_handler(LoomError)
    async def failed(request: Request, error: LoomError) -> Response:
        return answer(request, refusal_of(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        _clear_frames(error)
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        is_json = "json" in request.headers.get("content-type", "")
        advice = "see /openapi.json" if is_json or request.method in {"GET", "DELETE"} else _SEND_JSON
        return answer(request, Refusal(422, "invalid", f"the request is not valid: {wrong:.1000}", advice))

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        _clear_frames(error)
        status = 422 if error.status_code == 400 else error.status_code  # a body that is not JSON
        name = {404: "not_found", 405: "wrong_method", 422: "invalid"}.get(status, "failed")
        methods = ", ".join(_methods(app, request.url.path)) if status == 405 else ""
        told = {404: "there is no such path", 405: f"this path takes {methods}"}.get(status, str(error.detail))
        response = answer(request, Refusal(status, name, told, "GET /openapi.json describes all of them"))
        if methods:
            response.headers["Allow"] = methods
        return response

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, _: ClientDisconnect) -> Response:
        return answer(request, Refusal(400, "invalid", "the body did not come whole", "send all of it"))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        _log.exception("a request failed", exc_info=error)
        return answer(request, Refusal(500, "failed", "the server made a mistake", "its log says more"))


def _clear_frames(error: BaseException | None) -> None:
    """Let go of what the functions held that an error went through: a body that is not JSON is megabytes.

    The error and they hold each other, so that it would all stay until the garbage collector comes by.
    """
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _methods(app: FastAPI, path: str) -> list[str]:
    """The methods of a path: of `/memories/upsert`, not those of `/memories/{id}`, which would fit as well."""
    inner = (getattr(route, "original_router", None) for route in app.router.routes)
    routes = [*app.router.routes, *(route for router in inner if router is not None for route in router.routes)]
    fitting = [route for route in routes if isinstance(route, Route) and route.path_regex.match(path)]
    nearest = min((route.path.count("{") for route in fitting), default=0)
    found = (route.methods or () for route in fitting if route.path.count("{") == nearest)
    return sorted({method for methods in found for method in methods})


_DIRECT: Final = re.compile("/v1/users/([^/]+)/(memories|recall)")
_NAME: Final = NameConvertor()
_Message: TypeAlias = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Way:
    """A route that is answered directly: what its caller must have a right to, and what it takes and gives."""

    route: APIRoute
    right: Right
    body: type[UserBody]
    answer: TypeAdapter[Any]
    takes_key: bool = False


def _is_known(scope: _Message) -> bool:
    """Whether the caller has a token, needs none, or may be about to show it in a form."""
    request = Request(scope)
    path: str = scope["path"]
    if path == LOGIN:
        return True
    try:
        token_of_page(request) if path.startswith(PREFIX) else token_of(request)
    except (Refusal, LoomError):  # whatever is wrong, the route says it
        return False
    return True


def _no_body() -> Receive:
    """A request without a body, whose caller has nothing else to say."""
    left = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> _Message:
        return next(left, {"type": "http.disconnect"})

    return receive


async def _read(receive: Receive) -> tuple[bytes, _Message]:
    """The body of a request as far as it came, and the last message about it."""
    body, last = bytearray(), await receive()
    while last.get("more_body"):
        body += last.get("body", b"")
        last = await receive()
    body += last.get("body", b"")
    return bytes(body), last


def _again(body: bytes, last: _Message, receive: Receive) -> Receive:
    """What was read, for the next who reads it."""
    is_whole = last["type"] == "http.request"
    whole = {"type": "http.request", "body": body, "more_body": not is_whole}
    left = iter([whole] if is_whole else [whole, last])

    async def again() -> _Message:
        return next(left, None) or await receive()

    return again


class _Direct:
    """In front of the framework, which reads a body before it asks for a token: the body of a stranger stays unread.

    The two routes of every turn of a conversation are answered here, without the layers of the framework around them.
    Those layers cost more than all the rest of the HTTP part. Only a request that is as it should be is answered
    here; any other goes to the framework as it came, which says what is wrong with it. What a route does, takes and
    gives, who may call it and how its errors read is defined once, for both.
    """

    def __init__(self, app: FastAPI) -> None:
        self.framework = app
        known = {route.endpoint: route for route in memory_routes.router.routes if isinstance(route, APIRoute)}
        remember, recall = known[memory_routes.remember], known[memory_routes.recall]
        self._ways = {
            "memories": _Way(remember, "write", MemoriesIn, TypeAdapter(RememberedOut), takes_key=True),
            "recall": _Way(recall, "read", RecallIn, TypeAdapter(RecalledOut)),
        }

    async def __call__(self, scope: _Message, receive: Receive, send: Send) -> None:
        """Answer, or let the framework answer."""
        if scope["type"] != "http":
            await self.framework(scope, receive, send)
            return
        scope["app"] = self.framework
        if not _is_known(scope):
            await self.framework(scope, _no_body(), send)
            return
        found = _DIRECT.fullmatch(scope["path"]) if scope["method"] == "POST" else None
        if found is None or len(found[1]) > MAX_ID_BYTES:
            await self.framework(scope, receive, send)
            return
        way = self._ways[found[2]]
        scope["route"] = way.route
        caller = caller_of(Request(scope), _NAME.convert(found[1]), way.right)  # before the body is read
        body, last = await _read(receive)
        is_whole = last["type"] == "http.request"  # not where the caller hung up, whatever came until then
        if is_whole and await self._answer(scope, body, send, way, caller):
            return
        await self.framework(scope, _again(body, last, receive), send)

    async def _answer(self, scope: _Message, content: bytes, send: Send, way: _Way, caller: Caller) -> bool:
        """Whether the request was answered; nothing was done for it if not."""
        request = Request(scope)
        key = request.headers.get("idempotency-key")
        if request.headers.get("content-type") != "application/json" or len(key or "") > MAX_NAME:
            return False
        try:
            given = json.loads(content)
            check_user_in(given, caller)
            body = way.body.model_validate(given)
        except (ValueError, RecursionError, Refusal, LoomError):
            return False
        try:
            done = await way.route.endpoint(caller, body, *([key] if way.takes_key else []))
            content = way.answer.dump_json(done)
        except Exception as error:
            handlers: dict[Any, Any] = self.framework.exception_handlers
            handler = next(handlers[kind] for kind in type(error).__mro__ if kind in handlers)
            response: Response = await handler(request, error)
            await response(scope, request.receive, send)
            if handler is handlers[Exception]:
                raise
            return True
        headers = [(b"content-length", b"%d" % len(content)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": way.route.status_code or 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})
        return True


class _Checked:
    """The MCP routes, which answer only who has a token for them."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        _door_for(Request(scope))
        body, last = await _read(receive)
        if last["type"] != "http.request":
            raise ClientDisconnect  # MCP would write an error into the log
        await self._app(scope, _again(body, last, receive), send)


def _door_of(ctx: Any) -> MemoryTools:
    """The MCP tools of the caller of a message."""
    return _door_for(ctx.request)


def _door_for(request: Request) -> MemoryTools:
    """The MCP tools of the caller of a request: for the one user that its token names."""
    place: Place = request.app.state.place
    token = token_of(request)
    if token is ANYBODY:
        user = request.headers.get("x-loom-user", "me")
        return MemoryTools(place.memory, place.checkpoints, user_id=user)
    if token.users is None or len(token.users) != 1 or not {"read", "write", "forget"} <= set(token.rights):
        raise Refusal(403, "forbidden", "MCP needs a token for one user that may read, write and forget", "make one")
    return MemoryTools(place.memory_of(token.namespace), place.checkpoints, user_id=token.users[0])
