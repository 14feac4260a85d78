"""Embeddings from OpenAI and from services that speak its wire, through the official SDK."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from loom.core.clock import Clock, SystemClock
from loom.errors import BadResponse, MissingExtra, ProviderError, ProviderUnavailable, RateLimited, UsageError
from loom.providers._failures import retry_after
from loom.providers.embedding.local import EmbedsBatches, checked_texts, checked_vectors, cut_bytes

if TYPE_CHECKING:
    from loom.protocols.embedder import Purpose, Vector

_DIMENSIONS = {"text-embedding-3-small": 1536, "text-embedding-3-large": 3072, "text-embedding-ada-002": 1536}
# A token is never shorter than a byte, so these fit the service's limits of 8,192 tokens for a text and
# 300,000 for a request, whatever the language.
_MAX_TEXT_BYTES = 8_191
_MAX_REQUEST_BYTES = 290_000
_MAX_REQUEST_TEXTS = 2_048
_CUT_BY_NAME = "text-embedding-3"


class OpenAIEmbeddingProvider(EmbedsBatches):
    """Embeds with OpenAI, or with any service that speaks its wire at `base_url`.

    `api_key` defaults to OPENAI_API_KEY, read at the first use; a service named by `base_url` gets only a
    key that was given here. `dimension` is needed for a model that Loom does not know, and shortens the
    vectors of the text-embedding-3 models. `name` starts the identity: give another one for a service
    whose model of the same name answers differently. Texts are cut after 8,191 bytes.
    """

    __slots__ = ("_api_key", "_base_url", "_batch_size", "_client", "_clock", "_dimension", "_lock", "_max_retries",
                 "_model", "_name", "_timeout")  # fmt: skip

    def __init__(
        self,
        model: str = "text-embedding-3-small",
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        dimension: int | None = None,
        name: str = "openai",
        batch_size: int = _MAX_REQUEST_TEXTS,
        timeout: float = 30.0,
        max_retries: int = 2,
        clock: Clock | None = None,
    ) -> None:
        known = _DIMENSIONS.get(model)
        if dimension is None and known is None:
            raise UsageError(f"how long the vectors of {model!r} are is not known; give dimension=")
        if dimension is not None and dimension < 1:
            raise UsageError(f"dimension={dimension} is not a size; give 1 or more")
        if not 1 <= batch_size <= _MAX_REQUEST_TEXTS:
            raise UsageError(f"batch_size={batch_size} is out of range; give 1 to {_MAX_REQUEST_TEXTS:,}")
        self._model, self._name, self._dimension = model, name, dimension or known or 0
        self._api_key, self._base_url = api_key, base_url
        self._batch_size, self._timeout, self._max_retries = batch_size, timeout, max_retries
        self._clock = clock or SystemClock()
        self._client: Any = None
        self._lock = Lock()

    @property
    def identity(self) -> str:
        """`openai:MODEL:DIMENSION`, with `name` in the first place."""
        return f"{self._name}:{self._model}:{self._dimension}"

    @property
    def dimension(self) -> int:
        """That of the model, or as given."""
        return self._dimension

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> Sequence[Vector]:
        """One vector for each text; raises RateLimited, ProviderUnavailable, BadResponse or ProviderError."""
        checked = [cut_bytes(text, _MAX_TEXT_BYTES) for text in checked_texts(texts, purpose)]
        vectors: list[Vector] = []
        for batch in _batches(checked, self._batch_size):
            # A blocking client in a thread outlives any one event loop; an async one dies with its first.
            call = partial(self._request, batch)
            vectors.extend(await to_thread.run_sync(call, abandon_on_cancel=True))
        return vectors

    async def aclose(self) -> None:
        """Close the connections. Closing twice is allowed."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            await to_thread.run_sync(client.close)

    def _request(self, texts: list[str]) -> Sequence[Vector]:
        client = self._connected()
        asked: dict[str, Any] = {"model": self._model, "input": texts}
        if self._model.startswith(_CUT_BY_NAME) and self._dimension != _DIMENSIONS.get(self._model):
            asked["dimensions"] = self._dimension
        try:
            answer = client.embeddings.create(**asked)
            rows = sorted(answer.data, key=lambda row: row.index)
            vectors: list[Vector] = [row.embedding for row in rows]
            places = [row.index for row in rows]
        except Exception as error:
            raise _as_loom_error(error, self._model, self._clock) from error
        if places != list(range(len(texts))):
            raise BadResponse(
                f"{self._model} answered {len(rows)} vectors for {len(texts)} texts, numbered {places!s:.80}"
            )
        try:
            return checked_vectors(vectors, count=len(texts), dimension=self._dimension, who=self._model)
        except (TypeError, ValueError) as error:
            raise BadResponse(f"{self._model} answered with something that is not a vector ({error})") from error

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        if find_spec("openai") is None:
            raise MissingExtra("the embedder 'openai'", "openai")
        import openai  # noqa: PLC0415

        key = self._api_key
        if key is None:
            # The user's OpenAI key is not for a server at another address.
            key = "none" if self._base_url is not None else os.environ.get("OPENAI_API_KEY")
        if not key:
            raise UsageError("no OpenAI key was given; set OPENAI_API_KEY, or give api_key= or embedder='static'")
        return openai.OpenAI(api_key=key, base_url=self._base_url, timeout=self._timeout, max_retries=self._max_retries)


OpenAIEmbedder = OpenAIEmbeddingProvider
"""The same class under the other name that people know it by."""


def _batches(texts: list[str], most: int) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        bytes_ = len(text.encode())
        if batch and (len(batch) == most or size + bytes_ > _MAX_REQUEST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += bytes_
    if batch:
        yield batch


def _as_loom_error(error: Exception, model: str, clock: Clock) -> ProviderError:
    import openai  # noqa: PLC0415

    if isinstance(error, openai.RateLimitError):
        if error.code == "insufficient_quota":
            return ProviderError(f"the account has no quota left for {model}; add credit, waiting does not help")
        wait = retry_after(error.response.headers, clock)
        said = "it did not say for how long" if wait is None else f"for {wait:g} seconds"
        return RateLimited(f"the service asks to wait before using {model} again ({said})", retry_after=wait)
    if isinstance(error, openai.APIStatusError):
        if error.status_code >= 500 or error.status_code in {408, 409}:
            return ProviderUnavailable(f"the service of {model} answered {error.status_code}; try again later")
        return ProviderError(f"the service refused to embed with {model}: {error.message}")
    if isinstance(error, openai.APIConnectionError):
        return ProviderUnavailable(f"the service of {model} cannot be reached ({error}); check base_url and network")
    if isinstance(error, openai.OpenAIError | ValueError | TypeError | AttributeError):
        return BadResponse(f"{model} answered with something that holds no vectors ({error}); check base_url")
    return ProviderError(f"embedding with {model} failed ({type(error).__name__}: {error})")
