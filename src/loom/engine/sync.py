"""The base of the blocking forms of Memory, Session and Agent, whose methods are generated."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, Self, TypeVar

from loom.core.doors import missing_attribute
from loom.core.threads import Portal
from loom.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType

_R = TypeVar("_R")


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

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            of = self.__dict__.get("_of")
            if of is None or name.startswith("_") or hasattr(of, name):
                raise missing_attribute(self, name, {})
            return getattr(of, name)  # its error says how Loom calls that

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._of!r})"

    def _call(self, function: Callable[[], Awaitable[_R]]) -> _R:
        return self._open_portal().call(function)

    def _iterate(self, make: Callable[[], AsyncIterable[_R]]) -> Iterator[_R]:
        return self._open_portal().iterate(make)

    def _enter(self, make: Callable[[], AbstractAsyncContextManager[_R]]) -> AbstractContextManager[_R]:
        return self._open_portal().enter(make)

    def _open_portal(self) -> Portal:
        if self._is_closed:
            raise UsageError(f"this {self._kind} is closed; open another")
        return self._portal
