"""Talking to Chroma: in memory, in a folder, or as a server, behind one way to call it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import urlsplit

from anyio import to_thread

from loom.errors import LoomError, MissingExtra, StoreError, StoreUnavailable, UsageError
from loom.stores.chroma import folder

MEMORY = ":memory:"
_T = TypeVar("_T")


class ChromaCalls:
    """Does work with a Chroma client, in worker threads. Connected at the first call; safe to share between threads."""

    def __init__(self, where: str, *, headers: dict[str, str] | None, timeout: float) -> None:
        self.where = where
        self.is_server = where.startswith(("http://", "https://"))
        self._headers = headers
        self._timeout = timeout
        self._lock = Lock()
        self._client: Any = None
        self._folder: str | None = None
        self.is_closed = False

    async def __call__(self, work: Callable[..., _T], *given: Any) -> _T:
        """Give the client to `work`, with what else it takes."""
        return await to_thread.run_sync(partial(self._do, work, *given))

    async def aclose(self) -> None:
        """Release the client. Closing twice is allowed."""
        await to_thread.run_sync(self._close)

    def _do(self, work: Callable[..., _T], *given: Any) -> _T:
        with self._spoken_errors():
            return work(self._opened(), *given)

    def _close(self) -> None:
        with self._lock:
            self.is_closed = True
            client, self._client = self._client, None
            if client is not None:
                sessions = _sessions(client) if self.is_server else ()
                client.close()
                for session in sessions:
                    session.close()  # the client's own close() leaves its connections open
            if self._folder is not None:
                folder.release(self._folder)
                self._folder = None

    def _opened(self) -> Any:
        with self._lock:
            if self.is_closed:
                raise UsageError(f"the vector store {self.where} is closed; open another")
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        try:
            import chromadb  # noqa: PLC0415 - heavy, and optional
            from chromadb.config import Settings  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtra("Chroma", "chroma") from error
        settings = Settings(anonymized_telemetry=False)
        if self.where == MEMORY:
            return chromadb.EphemeralClient(settings)
        if self.is_server:
            url = urlsplit(self.where)
            is_safe = url.scheme == "https"
            port = url.port or (443 if is_safe else 80)
            client = chromadb.HttpClient(
                host=url.hostname or "", port=port, ssl=is_safe, headers=self._headers, settings=settings
            )
            for session in _sessions(client):
                session.timeout = self._timeout  # the client itself would wait for ever
            return client
        self._folder = self._folder or folder.hold(self.where)
        return chromadb.PersistentClient(self._folder, settings)

    @contextmanager
    def _spoken_errors(self) -> Generator[None]:
        """Errors of the client as errors of a store."""
        try:
            yield
        except LoomError:
            raise
        except Exception as error:
            raise self._spoken(error) from error

    def _spoken(self, error: Exception) -> Exception:
        import httpx  # noqa: PLC0415 - Chroma brings it
        from chromadb.errors import AuthorizationError, ChromaAuthError, ChromaError  # noqa: PLC0415

        if isinstance(error, httpx.HTTPError | OSError) or "Could not connect" in str(error):
            return StoreUnavailable(f"Chroma at {self.where} cannot be reached now: {error}; try again later")
        if isinstance(error, ChromaAuthError | AuthorizationError):
            return StoreError(f"Chroma at {self.where} refused the caller: {error}; give the right headers")
        if isinstance(error, ChromaError):
            return StoreError(f"Chroma at {self.where} could not do it: {error}")
        return error


def _sessions(client: Any) -> tuple[Any, ...]:
    """The HTTP sessions of a client of a server: its own, and that of its administrator."""
    return (client._server._session, client._admin_client._server._session)  # noqa: SLF001 - there is no other way
