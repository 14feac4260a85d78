"""The bill: model requests, their tokens and their cost, counted where a request is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

from loom.catalog import KNOWN_AS, Catalog, ModelInfo, find_model
from loom.core.message import Usage
from loom.protocols.model import Chunk, KnowsWindow, Model, ModelRequest, ModelResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The sum of some model requests. A request that failed counts as a request, and has no tokens."""

    requests: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = 0.0
    """In US dollars, by the catalogue's prices; None where the price of a model that answered is not known."""

    def __add__(self, other: Bill) -> Bill:
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        return Bill(requests=self.requests + other.requests, usage=self.usage + other.usage, cost=cost)

    def __str__(self) -> str:
        price = "" if self.cost is None else f", ${self.cost:.4f}"
        what = "request" if self.requests == 1 else "requests"
        return f"{self.requests:,} {what}, {self.usage.input:,} tokens in, {self.usage.output:,} out{price}"


class Ledger:
    """Adds up a bill."""

    __slots__ = ("bill",)

    def __init__(self) -> None:
        self.bill = Bill()

    def sent(self) -> None:
        """Count a request."""
        self.bill += Bill(requests=1)

    def answered(self, usage: Usage, info: ModelInfo | None = None) -> None:
        """Count the tokens of an answer; a model without an entry in the catalogue has no price."""
        cost = info.cost(usage) if info else None
        self.bill += Bill(usage=usage, cost=cost if usage != Usage() else 0.0)


class MeteredModel:
    """A model whose requests are counted on a ledger. In everything else it is the model inside."""

    def __init__(self, model: Model, ledger: Ledger) -> None:
        self._model = model
        self.ledger = ledger
        """Where its requests are counted."""

    @property
    def name(self) -> str:
        """`provider:model`."""
        return self._model.name

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The complete answer."""
        self.ledger.sent()
        response = await self._model.complete(request)
        self.ledger.answered(response.usage, info_of(self.name))
        return response

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The answer in pieces; the last item is the complete ModelResponse."""
        self.ledger.sent()
        chunks = self._model.stream(request)
        try:
            async for chunk in chunks:
                if isinstance(chunk, ModelResponse):
                    self.ledger.answered(chunk.usage, info_of(self.name))
                yield chunk
        finally:
            if isinstance(chunks, AsyncGenerator):  # closing it stops the request
                await chunks.aclose()  # pyright: ignore[reportUnknownMemberType]

    async def aclose(self) -> None:
        """Release the connections of the model inside."""
        await self._model.aclose()


class _Windowed(MeteredModel):
    """The same for a model that knows its own window: isinstance() must see `context_window` only then."""

    @property
    def context_window(self) -> int:
        """Tokens of prompt and answer together."""
        assert isinstance(self._model, KnowsWindow)
        return self._model.context_window


def metered(model: Model, ledger: Ledger) -> MeteredModel:
    """The model with a ledger for its requests."""
    return (_Windowed if isinstance(model, KnowsWindow) else MeteredModel)(model, ledger)


def info_of(name: str) -> ModelInfo:
    """The entry of the catalogue for a model, by `provider:model`."""
    head, colon, rest = name.partition(":")
    provider = KNOWN_AS.get(head.lower(), head.lower())
    return find_model(rest, provider) if colon and provider in Catalog.current().providers else find_model(name)
