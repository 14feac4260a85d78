"""In front of every route: who may connect, how much, how often and how long; and the counts of it."""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from itertools import accumulate
from time import monotonic
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

import anyio
import anyio.lowlevel

from loom.errors import (
    EmbedderMismatch,
    LoomError,
    MissingExtra,
    NotFound,
    ScopeRequired,
    StaleWrite,
    StoreConflict,
    StoreError,
    UsageError,
)
from loom.text.fence import plain_text

try:
    from starlette.convertors import Convertor, register_url_convertor
    from starlette.exceptions import HTTPException
except ImportError as error:
    raise MissingExtra("loom serve", "server") from error

_log = logging.getLogger(__name__)

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_CALLERS: Final = 10_000
"""Callers whose rate is remembered; the one that called longest ago is dropped first."""
_SLASH: Final = "\x1f"
"""What a slash inside a name becomes until the route is known; no name may hold this character itself."""
_SECURITY: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with none at all, a browser hides where a form comes from
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that are counted by name: a caller may make up others without end."""


_HEADERS: Final = {
    401: {"WWW-Authenticate": "Bearer"},
    413: {"Connection": "close"},  # the rest of a body is not waited for
    429: {"Retry-After": "1"},
    504: {"Connection": "close"},
}
"""What a refusal with this status also says."""


class Refusal(HTTPException):
    """A request that is not answered: its status, and the three parts of every error."""

    def __init__(self, status: int, error: str, message: str, advice: str = "") -> None:
        super().__init__(status, message, headers=_HEADERS.get(status))
        self.status, self.error, self.message, self.advice = status, error, message, advice

    def body(self) -> dict[str, str]:
        """The one form of all errors."""
        return {"error": self.error, "message": self.message, "advice": self.advice}


_STATUS: Final[tuple[tuple[type[LoomError], int, str], ...]] = (
    (NotFound, 404, "not_found"),
    (StaleWrite, 409, "conflict"),
    (StoreConflict, 409, "conflict"),
    (EmbedderMismatch, 409, "embedder_mismatch"),
    (ScopeRequired, 422, "invalid"),
    (UsageError, 422, "invalid"),
    (StoreError, 503, "store_unavailable"),
)


def refusal_of(error: LoomError) -> Refusal:
    """An error of Loom as an answer: its text says what happened, and behind the semicolon what to do."""
    status, name = next(((status, name) for kind, status, name in _STATUS if isinstance(error, kind)), (500, "failed"))
    message, _, advice = plain_text(str(error)).partition("; ")
    return Refusal(status, name, message, advice)


@dataclass(slots=True, kw_only=True)
class Limits:
    """What one request, and one caller, may use."""

    body_bytes: int = 8_000_000
    upload_bytes: int = 256_000_000
    """Of a transcript that is dropped on its page."""
    values: int | None = 100_000
    """JSON values of a body; None for any number. While they are parsed, the event loop stands still. The largest
    batch, 1,000 memories with 64 attributes each, has 70,000."""
    header_bytes: int = 64_000
    seconds: float = 60.0
    """Until an answer begins, and between two parts of it."""
    per_second: float = 500.0
    burst: int = 2_000


LAGS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds by which the event loop is late, as they are counted."""
_LAG_EVERY: Final = 0.05


@dataclass(slots=True)
class Counts:
    """What the server did since it started, as Prometheus reads it."""

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter[tuple[str, str, int]])
    seconds: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    running: int = 0
    lags: list[int] = field(default_factory=lambda: [0] * (len(LAGS) + 1))
    lagged: float = 0.0

    async def watch(self) -> None:
        """Measure for ever how late the event loop is: every request waits at least so long."""
        while True:
            due = monotonic() + _LAG_EVERY
            await anyio.sleep(_LAG_EVERY)
            late = max(0.0, monotonic() - due)
            self.lags[bisect_left(LAGS, late)] += 1
            self.lagged += late

    def text(self, jobs: Mapping[str, int]) -> str:
        """The text format of Prometheus; `jobs` are those of the store by their state."""
        lines = ["# HELP loom_requests_total Requests answered.", "# TYPE loom_requests_total counter"]
        lines += [
            f'loom_requests_total{{method="{method}",route="{_label(route)}",status="{status}"}} {count}'
            for (method, route, status), count in sorted(self.requests.items())
        ]
        lines += [
            "# HELP loom_request_seconds_total Seconds spent on requests.",
            "# TYPE loom_request_seconds_total counter",
        ]
        lines += [
            f'loom_request_seconds_total{{method="{method}",route="{_label(route)}"}} {seconds:.6f}'
            for (method, route), seconds in sorted(self.seconds.items())
        ]
        lines += ["# HELP loom_loop_lag_seconds How late the event loop is.", "# TYPE loom_loop_lag_seconds histogram"]
        bounds = [*map(str, LAGS), "+Inf"]
        lines += [
            f'loom_loop_lag_seconds_bucket{{le="{bound}"}} {count}'
            for bound, count in zip(bounds, accumulate(self.lags), strict=True)
        ]
        lines += [f"loom_loop_lag_seconds_sum {self.lagged:.6f}", f"loom_loop_lag_seconds_count {sum(self.lags)}"]
        lines += ["# HELP loom_requests_running Requests in progress.", "# TYPE loom_requests_running gauge"]
        lines += [f"loom_requests_running {self.running}"]
        if jobs:
            lines += ["# HELP loom_jobs Jobs of all users in the store.", "# TYPE loom_jobs gauge"]
            lines += [f'loom_jobs{{state="{state}"}} {count}' for state, count in jobs.items()]
        return "\n".join([*lines, ""])


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class NameConvertor(Convertor[str]):
    """One name in a path. A slash in it is written `%2F`, and does not end it: `/v1/users/a%2Fb/facts` is of `a/b`."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """The name."""
        return value.replace(_SLASH, "/")

    def to_string(self, value: str) -> str:
        """The name as it stands in a path."""
        return value.replace("/", _SLASH)


register_url_convertor("name", NameConvertor())


def _path_of(scope: Scope) -> str:
    """The path with the slashes inside names marked."""
    raw = scope.get("raw_path")
    if not raw or b"%2" not in raw:
        return scope["path"]
    return unquote(raw.partition(b"?")[0].decode("ascii", "replace").replace("%2F", "%1F").replace("%2f", "%1F"))


class _Rates:
    """A bucket of requests per caller."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> bool:
        """Whether the caller may make one more request now."""
        now = monotonic()
        left, at = self._buckets.pop(caller, (float(self._limits.burst), now))
        left = min(self._limits.burst, left + (now - at) * self._limits.per_second)
        self._buckets[caller] = (left - 1 if left >= 1 else left, now)
        if len(self._buckets) > _CALLERS:
            self._buckets.popitem(last=False)
        return left >= 1


Known: TypeAlias = Callable[[Scope, str], str | None]
"""The caller that an Authorization header is of, noted in the scope; None if it is of nobody that is known."""


class Gate:
    """The outermost layer of the server."""

    def __init__(
        self,
        app: App,
        *,
        hosts: frozenset[str] | None,
        limits: Limits,
        counts: Counts,
        known: Known | None = None,
        end: Callable[[], None] | None = None,
        uploads: frozenset[str] = frozenset(),
        added: tuple[tuple[bytes, bytes], ...] = _SECURITY,
    ) -> None:
        self._app, self._hosts, self._limits, self._counts, self._added = app, hosts, limits, counts, added
        self._known, self._end, self._uploads = known, end, uploads
        self._rates = _Rates(limits)

    def end(self) -> None:
        """Say that the server ends: streams that would go on are closed."""
        if self._end is not None:
            self._end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it before any route sees it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, "path": _path_of(scope)}
        begun, status, is_begun = monotonic(), 500, False
        headers: dict[bytes, bytes] = dict(scope["headers"])
        streams = scope["path"] == "/mcp" and scope["method"] == "GET" and _wants_events(headers)
        time_limit = anyio.CancelScope()

        async def note(message: MutableMapping[str, Any]) -> None:
            nonlocal status, is_begun
            if message["type"] == "http.response.start":
                status, is_begun = message["status"], True
                held = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in self._added if pair[0] not in held)]
            await send(message)
            if not streams:
                time_limit.deadline = anyio.current_time() + self._limits.seconds

        async def stop(refusal: Refusal) -> None:
            if is_begun:  # too late for another answer: the connection ends, and the caller sees that a part is missing
                _log.warning("an answer was cut off: %s", refusal.message)
            else:
                await _answer(note, refusal)

        self._counts.running += 1
        try:
            self._check(scope, headers)
            if not streams:
                time_limit.deadline = anyio.current_time() + self._limits.seconds
            with time_limit:
                await self._app(scope, self._capped(scope, receive), note)
            if time_limit.cancelled_caught:
                await stop(
                    Refusal(504, "too_slow", f"it took longer than {self._limits.seconds:g} seconds", "ask for less")
                )
        except Refusal as refusal:
            await stop(refusal)
        finally:
            self._counts.running -= 1
            route = getattr(scope.get("route"), "path_format", "") or "unknown"
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._counts.requests[method, route, status] += 1
            self._counts.seconds[method, route] += monotonic() - begun

    def _most(self, scope: Scope) -> int:
        """The bytes that the body of a request may have."""
        return self._limits.upload_bytes if scope["path"] in self._uploads else self._limits.body_bytes

    def _capped(self, scope: Scope, receive: Receive) -> Receive:
        """The body as it arrives; one that grows beyond a limit is refused unparsed, whatever its header said."""
        limit, taken = self._most(scope), 0
        most = None if scope["path"] in self._uploads else self._limits.values
        values = _ValueCount()

        async def read() -> MutableMapping[str, Any]:
            nonlocal taken
            message = await receive()
            body: bytes = message.get("body", b"")
            taken += len(body)
            if taken > limit:
                raise _too_large(limit)
            for start in range(0, len(body) if most is not None else 0, _PIECE):
                if start:
                    await anyio.lowlevel.checkpoint()
                values.add(body[start : start + _PIECE])
                if most is not None and values.count > most:
                    raise _too_many(most)
                if values.has_long_number:
                    raise _too_long(LONGEST_NUMBER)
            return message

        return read

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self._limits.header_bytes:
            raise Refusal(431, "too_large", f"the headers are longer than {self._limits.header_bytes:,} bytes")
        given = headers.get(b"host", b"").decode("latin-1")
        host = _name(given)
        if self._hosts is not None and host not in self._hosts:
            raise Refusal(421, "wrong_host", "this server does not answer for that host name", "use its own address")
        origin = headers.get(b"origin")
        if _is_embedded(headers) or (origin is not None and _place(origin.decode("latin-1")) != given):
            raise Refusal(403, "wrong_origin", "pages of other sites may not call this server", "call it from your own")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > _DIGITS or int(length) > self._most(scope):
            raise _too_large(self._most(scope))
        # Anybody can make up tokens, so that only one that counts has a rate of its own.
        token = self._known(scope, headers.get(b"authorization", b"").decode("latin-1")) if self._known else None
        if not self._rates.take(token or str((scope.get("client") or ("",))[0])):
            raise Refusal(429, "too_many", "there are too many requests from this caller", "send fewer, or batches")


_DIGITS: Final = 18
"""Of a length that is read as a number."""


def _wants_events(headers: dict[bytes, bytes]) -> bool:
    return headers.get(b"accept", b"").startswith(b"text/event-stream")


def _is_embedded(headers: dict[bytes, bytes]) -> bool:
    """Whether a page of another site loads it as a picture, a script or a frame, for which browsers send no Origin.

    A link that somebody follows is not meant.
    """
    if headers.get(b"sec-fetch-site") not in {b"cross-site", b"same-site"}:
        return False
    return headers.get(b"sec-fetch-mode") != b"navigate" or headers.get(b"sec-fetch-dest") != b"document"


def _place(origin: str) -> str | None:
    """Host and port of an origin; None if it has none."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _name(host: str) -> str:
    """The host name of a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _too_large(limit: int) -> Refusal:
    return Refusal(413, "too_large", f"the body is longer than {limit:,} bytes", "send it in several requests")


def _too_many(limit: int) -> Refusal:
    told = f"the body has more than {limit:,} JSON values"
    return Refusal(413, "too_large", told, "send them in several requests, in smaller batches")


def _too_long(limit: int) -> Refusal:
    told = f"the body has a number of more than {limit:,} digits"
    return Refusal(413, "too_large", told, "send it as a text, in quotes")


LONGEST_NUMBER: Final = 640
"""Digits of a number in a body. To read one takes as long as the square of its length. What is stored already may have
longer ones, so that the limit of Python itself, which is higher, stays as it is."""
_LONG_NUMBER: Final = b"0" * (LONGEST_NUMBER + 1)
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_PIECE: Final = 1 << 16
"""Bytes of a body whose values are counted in one step of the event loop: a millisecond at the most."""


class _ValueCount:
    """How many values a JSON text has at the most, counted as it arrives and without reading it.

    Every value but the first stands behind a comma or the beginning of a list or an object that is not empty. Those
    inside strings do not count: prose is full of commas. Where the text turns out not to be JSON, what was counted
    until then is all that a parser would make of it.
    """

    def __init__(self) -> None:
        self.count = 1
        self.has_long_number = False
        self._before = b""
        self._in_string = self._is_wide = False
        self._escape = b""

    def add(self, piece: bytes) -> None:
        """Count the next piece of the text."""
        # No JSON in UTF-8 has a NUL. In UTF-16 and UTF-32, which parsers take as well, quotes are not looked for.
        self._is_wide = self._is_wide or b"\0" in piece
        outside = piece if self._is_wide else self._without_strings(self._escape + piece)
        flat = self._before + outside.translate(_AS_ZEROS, b" \t\n\r")
        self.has_long_number = self.has_long_number or _LONG_NUMBER in flat
        # What follows a digit or an opening bracket says what it is: a longer number, an empty list.
        end = len(flat.rstrip(b"0")) - flat.endswith((b"[", b"{"))
        self._before, flat = flat[end:][:LONGEST_NUMBER], flat[:end]
        self.count += flat.count(b",") + flat.count(b"[") + flat.count(b"{") - flat.count(b"[]") - flat.count(b"{}")

    def _without_strings(self, text: bytes) -> bytes:
        is_cut = (len(text) - len(text.rstrip(b"\\"))) % 2 == 1  # between a backslash and what it escapes
        text, self._escape = (text[:-1], b"\\") if is_cut else (text, b"")
        parts = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        first, self._in_string = int(self._in_string), self._in_string != (len(parts) % 2 == 0)
        return b'"' * first + b'"'.join(parts[first::2])


async def _answer(send: Send, refusal: Refusal) -> None:
    body = json.dumps(refusal.body()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in (refusal.headers or {}).items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
