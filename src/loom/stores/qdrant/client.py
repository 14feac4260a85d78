"""Talking to Qdrant: a server, or the engine inside its client, behind one way to call it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

from anyio import to_thread

from loom.errors import MissingExtra, StoreError, StoreUnavailable, UsageError

MEMORY = ":memory:"


class QdrantCalls:
    """Makes calls of a Qdrant client by name. Connected at the first call; safe to share between threads.

    The engine inside the client answers in a worker thread, one call at a time; a server is asked as it comes.
    """

    def __init__(self, where: str, *, api_key: str | None, timeout: float) -> None:
        self.where = where
        self.is_server = where.startswith(("http://", "https://"))
        self._api_key = api_key
        self._timeout = timeout
        self._lock = Lock()
        self._client: Any = None
        self._is_closed = False

    async def __call__(self, method: str, **given: Any) -> Any:
        """Call this method of the client."""
        if not self.is_server:
            return await to_thread.run_sync(partial(self._locally, method, **given))
        with self._spoken_errors():
            return await getattr(self._opened(), method)(**given)

    async def aclose(self) -> None:
        """Release the client. Closing twice is allowed."""
        self._is_closed = True
        client, self._client = self._client, None
        if client is None:
            return
        if self.is_server:
            await client.close()
        else:
            await to_thread.run_sync(client.close)

    def _locally(self, method: str, **given: Any) -> Any:
        with self._lock, self._spoken_errors():
            return getattr(self._opened(), method)(**given)

    def _opened(self) -> Any:
        if self._is_closed:
            raise UsageError(f"the vector store {self.where} is closed; open another")
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _connect(self) -> Any:
        try:
            from qdrant_client import AsyncQdrantClient, QdrantClient  # noqa: PLC0415 - heavy, and optional
        except ImportError as error:
            raise MissingExtra("Qdrant", "qdrant") from error
        if self.is_server:
            return AsyncQdrantClient(
                url=self.where, api_key=self._api_key, timeout=max(1, round(self._timeout)), check_compatibility=False
            )
        at: dict[str, Any] = {"location": MEMORY} if self.where == MEMORY else {"path": self.where}
        # One thread at a time calls it, and not always the same one.
        return QdrantClient(**at, force_disable_check_same_thread=True)

    @contextmanager
    def _spoken_errors(self) -> Generator[None]:
        """Errors of the client as errors of a store."""
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> Exception:
        if "already accessed" in str(error):
            return StoreUnavailable(
                f"the Qdrant folder {self.where} is open elsewhere, and one process may use it at a time; "
                "close the other, or run a Qdrant server and give its URL"
            )
        status = getattr(error, "status_code", None)
        if status in {401, 403}:
            return StoreError(f"Qdrant at {self.where} refused the key (status {status}); give the right api_key")
        if status is None and not _is_of_connection(error):
            return error
        if status is None or status >= 500 or status in {408, 429}:
            return StoreUnavailable(f"Qdrant at {self.where} cannot be reached now: {error}; try again later")
        return StoreError(f"Qdrant at {self.where} refused the request: {error}")


def _is_of_connection(error: Exception) -> bool:
    from qdrant_client.http.exceptions import ResponseHandlingException  # noqa: PLC0415 - it is loaded by now

    return isinstance(error, ResponseHandlingException | OSError)
