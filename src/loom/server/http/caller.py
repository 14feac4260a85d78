"""Who calls: the token of a request, the memory of its namespace, and the user it may speak for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Final, cast

from fastapi import Depends, Path, Request

from loom.core.checks import MAX_ID_BYTES, check_id
from loom.core.record import StoreReceipt
from loom.core.scope import Scope
from loom.errors import NotFound, UsageError
from loom.memory.memory import Memory
from loom.protocols.checkpoint_store import CheckpointStore
from loom.server.http.guard import Counts, Refusal
from loom.server.http.shapes import ScopeOut, scope_out
from loom.server.tokens import ANYBODY, Right, Token, TokenFile

TOKEN: Final = "loom.token"  # noqa: S105 - a name
"""Where the scope of a request holds its token, once that was looked up."""
_UNKNOWN: Final = "this server needs a token, and the request has none that is valid"
OWN: Final = "~"
"""In place of a user in a path: the only one that the token is for."""


@dataclass(slots=True)
class Place:
    """What a server serves: a memory, the conversations beside it, and who may call."""

    memory: Memory
    checkpoints: CheckpointStore
    tokens: TokenFile | None = None
    counts: Counts = field(default_factory=Counts)
    heartbeat: float = 15.0
    """Seconds without an event after which a stream says that it is there, so that nobody takes it for dead."""
    streams: Counter[str] = field(default_factory=Counter[str])
    """How many streams of events each token has now."""
    is_ending: bool = False
    """Whether the server ends, and so do the streams."""
    _views: dict[str, Memory] = field(default_factory=dict[str, Memory])

    def memory_of(self, namespace: str) -> Memory:
        """The memory of a namespace."""
        if namespace == self.memory.namespace:
            return self.memory
        if namespace not in self._views:
            self._views[namespace] = self.memory.view(namespace=namespace)
        return self._views[namespace]

    def allows(self, token: Token) -> bool:
        """Whether a token that was let in still counts."""
        if self.tokens is None:
            return True
        return not self.tokens.in_use if token is ANYBODY else self.tokens.holds(token)

    def end(self) -> None:
        """End the streams, which would otherwise go on."""
        self.is_ending = True

    async def close_views(self) -> None:
        """Finish the work of the namespaces that were used."""
        for view in self._views.values():
            await view.aclose()


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of one request, whom its token allows."""

    place: Place
    token: Token
    user: str
    called: str = OWN
    """The user as the path has it."""

    @property
    def memory(self) -> Memory:
        """The memory of the token's namespace."""
        return self.place.memory_of(self.namespace)

    @property
    def namespace(self) -> str:
        """The namespace of the token."""
        return self.place.memory.namespace if self.token is ANYBODY else self.token.namespace

    @property
    def scope(self) -> Scope:
        """Whose data it is."""
        return Scope(self.namespace, self.user)

    def session(self, id: str) -> Scope:
        """The scope of one conversation."""
        return self.scope.for_session(id)

    async def erase(self) -> tuple[StoreReceipt, StoreReceipt]:
        """Erase the user everywhere. Conversations go first: a memory reports those that are still saved."""
        sessions = await self.place.checkpoints.forget(self.scope)
        memory = await self.memory.forget(user_id=self.user)
        named = (("memory", memory), ("sessions", sessions))
        first, second = (StoreReceipt(store=name, removed=one.removed, pending=one.pending) for name, one in named)
        return first, second

    async def retry_job(self, id: str) -> int:
        """Queue a job that failed for good once more; 0 if the same work is waiting already."""
        store = self.memory.store
        job = next((letter.job for letter in await store.dead_letters(self.scope) if letter.job.id == id), None)
        if job is None:
            raise NotFound(f"no job {id!r:.200} of the user failed for good; GET jobs lists them")
        now = datetime.now(UTC)
        again = replace(job, id=f"{job.id[:400]}.{now.timestamp():.0f}", attempts=0, run_at=now)
        return await store.write(self.scope, jobs=[again])

    def echo(self, session: str | None = None) -> ScopeOut:
        """The scope as an answer repeats it."""
        return scope_out(self.scope if session is None else self.session(session))


def token_of(request: Request) -> Token:
    """The token of a request; raises Refusal where the server asks for one and there is none that counts."""
    known: Token | None = request.scope.get(TOKEN)
    if known is not None:
        return known
    place: Place = request.app.state.place
    if place.tokens is None or (not request.app.state.needs_token and not place.tokens.in_use):
        return ANYBODY
    found = token_in(request.headers.get("authorization", ""), place.tokens)
    if found is None:
        raise Refusal(
            401, "not_allowed", _UNKNOWN, "send Authorization: Bearer TOKEN; `loom serve token add` makes one"
        )
    return found


def token_in(header: str, tokens: TokenFile) -> Token | None:
    """The token of an Authorization header, if it is one of these."""
    kind, _, secret = header.partition(" ")
    return tokens.find(secret.strip()) if kind.lower() == "bearer" and secret.strip() else None


User = Annotated[str, Path(min_length=1, max_length=MAX_ID_BYTES, description="The user; ~ is the token's own.")]


def with_right(right: Right) -> Callable[[Request, str], Awaitable[Caller]]:
    """A dependency that lets in who has this right for the user in the path."""

    async def caller(request: Request, user: User) -> Caller:  # one that is not async would be run in a thread
        found = caller_of(request, user, right)
        check_user_in(await _body(request), found)
        return found

    return caller


def caller_of(request: Request, user: str, right: Right) -> Caller:
    """Who has this right for the user in the path; raises Refusal for others."""
    token = token_of(request)
    name = user
    if user == OWN and token.users is not None and len(token.users) == 1:
        name = token.users[0]
    if not token.may(right, name):
        raise Refusal(403, "forbidden", "this token does not allow that", "use one with the right, for this user")
    try:
        check_id(name, "the user")
    except UsageError as error:
        raise Refusal(422, "invalid", str(error)) from error
    return Caller(request.app.state.place, token, name, called=user)


def check_user_in(body: object, caller: Caller) -> None:
    """Raise Refusal where a body names another user than the path."""
    named = cast("dict[str, object]", body).get("user") if isinstance(body, dict) else None
    if named not in (None, caller.called, caller.user):
        raise Refusal(403, "forbidden", "the body names another user than the path", "name the user once, in the path")


async def _body(request: Request) -> object:
    """The body of a request, if it is one that can have any and it can be read."""
    if request.method not in {"POST", "PUT", "PATCH"}:
        return None
    try:
        return await request.json()  # which was read for the route already
    except (ValueError, RecursionError):
        return None


def operator(request: Request) -> Token:
    """Lets in who may operate the server."""
    token = token_of(request)
    if not token.may("operate"):
        raise Refusal(403, "forbidden", "this token does not allow that", "use one with the right to operate")
    return token


Reader = Annotated[Caller, Depends(with_right("read"))]
Writer = Annotated[Caller, Depends(with_right("write"))]
Forgetter = Annotated[Caller, Depends(with_right("forget"))]
Operator = Annotated[Caller, Depends(with_right("operate"))]
