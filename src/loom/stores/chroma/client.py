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
                sessions = [_session(client), _session(client._admin_client)] if self.is_server else []  # noqa: SLF001
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
            return self._connect_to_server(settings)
        self._folder = self._folder or folder.hold(self.where)
        return chromadb.PersistentClient(self._folder, settings)

    def _connect_to_server(self, settings: Any) -> Any:
        url = urlsplit(self.where)
        settings.chroma_api_impl = "chromadb.api.fastapi.FastAPI"
        settings.chroma_server_host = url.hostname or ""
        settings.chroma_server_ssl_enabled = url.scheme == "https"
        if not settings.chroma_server_ssl_enabled:
            settings.chroma_server_ssl_verify = False  # else each of its two sessions reads all certificates: 30 ms
        settings.chroma_server_http_port = url.port or (443 if settings.chroma_server_ssl_enabled else 80)
        settings.chroma_server_headers = self._headers
        return _patient_for(self._timeout)(settings=settings)

    @contextmanager
    def _spoken_errors(self) -> Generator[None]:
        """Errors of the client as errors of a store."""
        try:
            yield
        except LoomError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> Exception:
        import httpx  # noqa: PLC0415 - Chroma brings it
        from chromadb.errors import AuthorizationError, ChromaAuthError, ChromaError  # noqa: PLC0415

        if isinstance(error, httpx.HTTPError | OSError) or "Could not connect" in str(error):
            return StoreUnavailable(f"Chroma at {self.where} cannot be reached now: {error}; try again later")
        if isinstance(error, ChromaAuthError | AuthorizationError):
            return StoreError(f"Chroma at {self.where} refused the caller: {error}; give the right headers")
        if isinstance(error, ChromaError):
            return StoreError(f"Chroma at {self.where} could not do it: {error}")
        return error


def _patient_for(timeout: float) -> Any:
    """A client of a server that waits so long for each answer.

    Chroma's own client would wait for ever, also while it is made: it asks the server twice before that.
    """
    from chromadb.api.client import Client  # noqa: PLC0415 - it is loaded by now

    class PatientClient(Client):
        def get_user_identity(self) -> Any:
            _session(self).timeout = timeout
            return self._server.get_user_identity()  # the other one hides which error it was

        def _validate_tenant_database(self, tenant: str, database: str) -> None:
            _session(self._admin_client).timeout = timeout
            super()._validate_tenant_database(tenant, database)

    return PatientClient


def _session(client: Any) -> Any:
    """The HTTP session of a client of a server, or of its administrator."""
    return client._server._session  # noqa: SLF001 - the client has no public way
