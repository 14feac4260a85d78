"""The base of the models on official SDKs: the client, the call, and the errors of its failures."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any, ClassVar, Protocol, TypeAlias, cast

from anyio import to_thread
from anyio.lowlevel import RunVar

from loom.core.clock import Clock, SystemClock
from loom.core.message import JSON
from loom.errors import LoomError, MissingExtra, ProviderError, UsageError
from loom.protocols.model import Chunk, ModelRequest, ModelResponse
from loom.providers._failures import Failure, as_error, nothing_came, retry_after, unreachable, unreadable
from loom.providers.models import RENDERER, Render
from loom.providers.models._answer import Repairer

DEFAULT_TIMEOUT = 600.0
"""Seconds without a word from the provider after which a call is given up; models may think for minutes."""
_CONNECT_TIMEOUT = 10.0

Body: TypeAlias = dict[str, JSON]


class Reader(Protocol):
    """Makes one answer of the events of one stream."""

    def take(self, event: Mapping[str, Any]) -> Iterable[Chunk]:
        """What an event adds to the answer."""
        ...

    def response(self) -> ModelResponse:
        """The whole answer; raises ProviderUnavailable where the stream ended before it did."""
        ...


class StreamedModel(ABC):
    """A model whose answers are always streamed: a long one must not look like a dead connection."""

    provider: str
    """The name that requests are rendered under."""
    model: str

    @property
    def name(self) -> str:
        """`provider:model`."""
        return f"{self.provider}:{self.model}"

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The whole answer."""
        last: Chunk | None = None
        async for chunk in self.stream(request):
            last = chunk
        assert isinstance(last, ModelResponse)
        return last

    @abstractmethod
    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The answer as it comes; the last item is the whole ModelResponse."""


class SdkModel(StreamedModel):
    """A model behind an official SDK, whose own retries are off. Subclasses say what is different about a provider."""

    sdk: ClassVar[str]
    """The SDK's package, and the name of the extra that installs it."""
    key: str
    """The environment variable that holds the key."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        client: Any = None,
        timeout: float = DEFAULT_TIMEOUT,
        render: Render | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make a model. Nothing is imported or called before the first request.

        Args:
            model: the model's id, as the provider writes it.
            api_key: the key; read from the environment if not given, unless `base_url` names another address.
            base_url: where the provider answers, if not at its own address.
            client: an async client of the SDK to use instead; it stays open.
            timeout: seconds without a word from the provider after which a call is given up.
            render: who makes request bodies; Loom's own renderers if not given.
            clock: what time it is, for a date in `retry-after`.
        """
        if not model:
            raise UsageError(f"a model of {self.provider} needs a name; write {self.provider}:MODEL")
        if client is None and find_spec(self.sdk) is None:
            raise MissingExtra(f"the model {self.provider}:{model}", self.sdk)
        self.model = model
        self._api_key, self._base_url, self._timeout = api_key, base_url, timeout
        self._given = client
        self._render = render
        self._clock = clock or SystemClock()
        # A connection belongs to the event loop it was made in, so each loop has a client of its own.
        self._client: RunVar[Any] = RunVar("client")

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The answer as it comes; the last item is the whole ModelResponse."""
        body = self._body(request)
        client = await self._connected()
        reader, repairer = self._reader(request), Repairer()
        has_begun = False
        async with await self._opened(client, body) as events:
            try:
                async for event in events:
                    has_begun = True
                    for chunk in repairer.chunks(reader.take(event.to_dict(mode="json", warnings=False))):
                        yield chunk
                response = self._whole(reader, has_begun=has_begun)
            except LoomError:
                raise
            except Exception as error:
                raise self._as_loom_error(error) from error
        for chunk in repairer.chunks([response]):
            yield chunk

    async def aclose(self) -> None:
        """Close the connections of this event loop. Closing twice is allowed."""
        client = self._client.get(None)
        self._client.set(None)
        if client is not None:
            await client.close()

    @abstractmethod
    def _settled(self, body: Body, request: ModelRequest) -> Body:
        """The body with the settings of a request, in the provider's own words."""

    @abstractmethod
    def _connect(self, sdk: Any) -> Any:
        """A new client."""

    @abstractmethod
    def _create(self, client: Any) -> Any:
        """The method of a client that sends a request."""

    @abstractmethod
    def _reader(self, request: ModelRequest) -> Reader:
        """What reads the answer to a request."""

    def _body(self, request: ModelRequest) -> Body:
        render = self._render or RENDERER.get()
        body = {**render(request, self.provider, self.model).body, "model": self.model}
        return {**self._settled(body, request), **request.settings.extra, "stream": True}

    async def _connected(self) -> Any:
        if self._given is not None:
            return self._given.with_options(max_retries=0)
        if self.sdk not in sys.modules:
            await to_thread.run_sync(import_module, self.sdk)  # it takes seconds, in which others may work
        client = self._client.get(None)
        if client is None:
            client = self._connect(import_module(self.sdk))
            self._client.set(client)
        return client

    async def _opened(self, client: Any, body: Body) -> Any:
        """The stream of events that answers a body."""
        create = self._create(client)
        # What this version of the SDK has no argument for is sent as it is.
        known = signature(create).parameters
        unknown = {name: value for name, value in body.items() if name not in known}
        try:
            return await create(**{name: body[name] for name in body if name in known}, extra_body=unknown or None)
        except (TypeError, ValueError) as error:
            raise UsageError(f"the request to {self.name} cannot be sent: {error}") from error
        except Exception as error:
            raise self._as_loom_error(error) from error

    def _whole(self, reader: Reader, *, has_begun: bool) -> ModelResponse:
        """The answer of a stream that ended; it has begun if an event came."""
        if not has_begun:
            raise nothing_came(self.name)
        return reader.response()

    def _timeouts(self, sdk: Any) -> Any:
        return sdk.Timeout(self._timeout, connect=min(self._timeout, _CONNECT_TIMEOUT))

    def _no_key(self) -> ProviderError:
        return ProviderError(f"there is no key for {self.name}; set {self.key}, or give api_key=")

    def _as_loom_error(self, error: Exception) -> LoomError:
        """The Loom error for an error that was raised while an answer was fetched."""
        sdk = import_module(self.sdk)
        kind, failed = type(error), cast("Any", error)
        if issubclass(kind, sdk.APIStatusError):
            wait = retry_after(failed.response.headers, self._clock)
            failure = Failure.read(failed.body, status=failed.status_code, retry_after=wait)
            return as_error(self.name, failure, key=self.key)
        if issubclass(kind, sdk.APIConnectionError | OSError) or kind.__module__.startswith("httpx"):
            return unreachable(self.name, error, self._base_url)
        if issubclass(kind, sdk.APIError):  # said inside a stream that had begun well
            return as_error(self.name, Failure.read(failed.body or failed.message), key=self.key)
        if issubclass(kind, ValueError | LookupError | TypeError | AttributeError):
            return unreadable(self.name, error)
        return ProviderError(f"the call of {self.name} failed ({kind.__name__}: {error})")
