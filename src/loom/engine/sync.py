"""Memory and Session for blocking code, and the base of all blocking forms.

The methods of a blocking form take what those of the async class take, and have their docstrings.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from typing import Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from loom.core.checkpoint import Compaction
from loom.core.event import Event
from loom.core.message import Message
from loom.core.record import Episode, Layer
from loom.core.threads import Portal
from loom.engine.open import open_memory
from loom.errors import UsageError
from loom.memory.memory import Memory
from loom.session.compaction.driver import CompactionPlan
from loom.session.reply import Reply
from loom.session.session import Session
from loom.session.turn import TurnOptions

_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S")
_R_co = TypeVar("_R_co", covariant=True)


class _Closes(Protocol):
    async def aclose(self) -> None: ...


_T = TypeVar("_T", bound=_Closes)


class Blocking(Generic[_T]):
    """An async object for blocking code: each call runs on one loop in one thread, and waits for the result.

    The loop runs for the object's whole life, so that connections live as long as it does, and it can be used where
    another loop is running. A process that is forked later has no such thread: every call there raises UsageError, and
    what was opened stays with the parent.
    """

    _kind: ClassVar[str]

    def __init__(self, of: _T) -> None:
        """Wrap an object that no other loop uses."""
        self._begin(of, Portal(f"this {self._kind}"), owns_portal=True)

    @classmethod
    def _on(cls, portal: Portal, of: _T) -> Self:
        """Wrap an object on a loop that runs already, and that its owner ends."""
        made = cls.__new__(cls)
        made._begin(of, portal, owns_portal=False)  # noqa: SLF001  (another of the same kind)
        return made

    def _begin(self, of: _T, portal: Portal, *, owns_portal: bool) -> None:
        self._of, self._portal, self._owns_portal = of, portal, owns_portal
        self._is_closed = False

    def close(self) -> None:
        """Finish writing and release everything. Closing twice is allowed."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._portal.is_of_this_process:
            return
        try:
            self._portal.call(self._of.aclose)
        finally:
            if self._owns_portal:
                self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._of!r})"

    def _call(self, function: Callable[[], Awaitable[_R]]) -> _R:
        return self._open_portal().call(function)

    def _iterate(self, make: Callable[[], AsyncIterable[_R]]) -> Iterator[_R]:
        return self._open_portal().iterate(make)

    def _open_portal(self) -> Portal:
        if self._is_closed:
            raise UsageError(f"this {self._kind} is closed; open another")
        return self._portal


# Methods of blocking forms. Each calls the method of the same name, with the same arguments.


class _Method(Protocol[_P, _R_co]):
    """A method as type checkers see it: the parameters of the async one, and the result of the blocking one."""

    def __get__(self, of: object, owner: type, /) -> Callable[_P, _R_co]: ...


class _Attribute(Protocol[_R_co]):
    """An attribute as type checkers see it."""

    def __get__(self, of: object, owner: type, /) -> _R_co: ...


class _Property(property):
    """A property with the docstring of the one of its name in the async class."""

    kind: type

    def __set_name__(self, owner: type, name: str) -> None:
        self.__doc__ = getattr(self.kind, name, self).__doc__ or f"The `{name}` of the async form."


def wait_for(method: Callable[Concatenate[Any, _P], Awaitable[_R]]) -> _Method[_P, _R]:
    """The blocking form of an async method."""
    return _method(method, Blocking[Any]._call)  # noqa: SLF001


def iterate(method: Callable[Concatenate[Any, _P], AsyncIterable[_R]]) -> _Method[_P, Iterator[_R]]:
    """The blocking form of a method that is read with `async for`."""
    return _method(method, Blocking[Any]._iterate)  # noqa: SLF001


def enter(
    method: Callable[Concatenate[Any, _P], AbstractAsyncContextManager[_R]],
) -> _Method[_P, AbstractContextManager[_R]]:
    """The blocking form of a method that is entered with `async with`."""
    return _method(method, lambda one, make: one._open_portal().enter(make))  # noqa: SLF001


def forward(method: Callable[Concatenate[Any, _P], _R]) -> _Method[_P, _R]:
    """The same method: it needs no loop."""
    return _method(method, lambda _, call: call())


def read(kind: type[_S], get: Callable[[_S], _R]) -> _Attribute[_R]:
    """An attribute of the async object, which cannot be set."""
    made = _Property(lambda self: get(self._of))
    made.kind = kind
    return made


def _method(method: Callable[..., Any], run: Callable[[Any, Callable[[], Any]], Any]) -> Any:
    @wraps(method)
    def call(self: Blocking[Any], /, *arguments: Any, **options: Any) -> Any:
        return run(self, lambda: getattr(self._of, method.__name__)(*arguments, **options))

    return call


def _on_same_loop(method: Callable[Concatenate[Any, _P], Memory]) -> _Method[_P, SyncMemory]:
    """The blocking form of a method that returns another memory."""
    return _method(method, lambda one, call: SyncMemory._on(one._portal, call()))  # noqa: SLF001


class SyncMemory(Blocking[Memory]):
    """Memory for blocking code: the same methods without `await`, streams as iterators."""

    _kind = "memory"

    store = read(Memory, lambda memory: memory.store)
    config = read(Memory, lambda memory: memory.config)
    namespace = read(Memory, lambda memory: memory.namespace)
    facts_mode = read(Memory, lambda memory: memory.facts_mode)
    place = read(Memory, lambda memory: memory.place)
    has_reader = read(Memory, lambda memory: memory.has_reader)
    waits_to_learn = read(Memory, lambda memory: memory.waits_to_learn)
    bill = read(Memory, lambda memory: memory.bill)
    usage = read(Memory, lambda memory: memory.usage)
    embedder_note = read(Memory, lambda memory: memory.embedder_note)

    remember = wait_for(Memory.remember)
    instruct = wait_for(Memory.instruct)
    confirm = wait_for(Memory.confirm)
    reject = wait_for(Memory.reject)
    recall = wait_for(Memory.recall)
    forget = wait_for(Memory.forget)
    epoch = wait_for(Memory.epoch)
    mark = wait_for(Memory.mark)
    end_session = wait_for(Memory.end_session)
    metabolize = wait_for(Memory.metabolize)
    worker = enter(Memory.worker)
    facts = wait_for(Memory.facts)
    assert_fact = wait_for(Memory.assert_fact)
    set_block = wait_for(Memory.set_block)
    blocks = wait_for(Memory.blocks)
    standing = wait_for(Memory.standing)
    profile = wait_for(Memory.profile)
    timeline = wait_for(Memory.timeline)
    explain = wait_for(Memory.explain)
    reembed = wait_for(Memory.reembed)
    stats = wait_for(Memory.stats)
    export = iterate(Memory.export)
    import_ = wait_for(Memory.import_)
    get = wait_for(Memory.get)
    list = iterate(Memory.list)
    update = wait_for(Memory.update)
    upsert = wait_for(Memory.upsert)
    learned = forward(Memory.learned)
    view = _on_same_loop(Memory.view)

    @overload
    def promote(self, id: str, /, *, user_id: str, to: Layer | None = None) -> Episode: ...
    @overload
    def promote(
        self, id: str, other: str, /, *more: str, user_id: str, to: Layer | None = None
    ) -> tuple[Episode, ...]: ...
    def promote(self, *ids: str, user_id: str, to: Layer | None = None) -> Episode | tuple[Episode, ...]:
        """Move episodes up one layer, or into `to`; returns the episode, or a tuple if several ids were given."""
        return self._call(lambda: self._of.promote(*ids, user_id=user_id, to=to))


class SyncSession(Blocking[Session]):
    """Session for blocking code: the same methods without `await`, streams as iterators."""

    _kind = "session"

    id = read(Session, lambda session: session.id)
    scope = read(Session, lambda session: session.scope)
    context = read(Session, lambda session: session.context)
    head = read(Session, lambda session: session.head)
    turn = read(Session, lambda session: session.turn)
    usage = read(Session, lambda session: session.usage)
    messages = read(Session, lambda session: session.messages)
    shown = read(Session, lambda session: session.shown)
    log = read(Session, lambda session: session.log)
    compactions = read(Session, lambda session: session.compactions)

    cost_of = forward(Session.cost_of)
    preview = wait_for(Session.preview)
    subscribe = forward(Session.subscribe)
    set_model = forward(Session.set_model)
    undo = wait_for(Session.undo)
    expand = forward(Session.expand)
    coverage = forward(Session.coverage)
    pin = forward(Session.pin)
    unpin = forward(Session.unpin)
    checkpoint = wait_for(Session.checkpoint)
    checkpoints = wait_for(Session.checkpoints)
    restore = wait_for(Session.restore)
    rewind = wait_for(Session.rewind)
    explain = forward(Session.explain)
    discard = forward(Session.discard)

    def send(self, content: str | Message, **options: Unpack[TurnOptions]) -> Reply:
        """Send a message. It returns when the turn is over."""
        return self._call(lambda: self._of.send(content, **options))

    def stream(self, content: str | Message, **options: Unpack[TurnOptions]) -> Iterator[Event]:
        """Send a message, and read the events as they happen; leaving the loop stops the turn."""
        return self._iterate(lambda: self._of.send(content, **options))

    def resume(self, **options: Unpack[TurnOptions]) -> Reply:
        """Go on with a turn that was cut off, without another message: after a crash, or where it ended early."""
        return self._call(lambda: self._of.resume(**options))

    @overload
    def compact(self, *, dry_run: Literal[False] = False) -> Compaction | None: ...
    @overload
    def compact(self, *, dry_run: Literal[True]) -> CompactionPlan: ...
    def compact(self, *, dry_run: bool = False) -> Compaction | CompactionPlan | None:
        """Compact now, whatever the trigger says; with `dry_run` only say what that would do."""
        return self._call(lambda: self._of.compact(dry_run=dry_run))

    def fork(self, at: int | str | None = None, *, session_id: str | None = None) -> SyncSession:
        """A new session that begins where this one is, or where it was; both go on alone, and nothing is copied."""
        return SyncSession._on(self._portal, self._call(lambda: self._of.fork(at, session_id=session_id)))


def _blocking(opens: Callable[_P, Memory]) -> Callable[_P, SyncMemory]:
    @wraps(opens, assigned=())
    def open_memory_sync(*arguments: _P.args, **options: _P.kwargs) -> SyncMemory:
        """A blocking memory; open_memory() says what the arguments are."""
        return SyncMemory(opens(*arguments, **options))

    return open_memory_sync


open_memory_sync = _blocking(open_memory)
