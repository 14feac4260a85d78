"""A model for those who have none yet: it answers with what memory found, and says so."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from loom.core.message import TextPart, Usage
from loom.protocols.model import Chunk, ModelRequest, ModelResponse, TextChunk
from loom.tokens import EstimateCounter, count_request

_FOUND = re.compile(r"<memory>\n(.*?)\n</memory>", re.DOTALL)
_HOW = "no language model is connected; set LOOM_MODEL, or give model='anthropic:...'"


class OfflineModel:
    """Needs no key and no network. It thinks nothing up: it shows the memory that was recalled for the question."""

    name = "offline:memory"
    context_window = 200_000

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """What was recalled for the last message."""
        asked = request.messages[-1].text if request.messages else ""
        found = _FOUND.search(asked)
        text = f"From memory ({_HOW}):\n{found[1]}" if found else f"Noted ({_HOW})."
        counter = EstimateCounter()
        usage = Usage(input=count_request(request, counter), output=counter.count(text))
        return ModelResponse(parts=(TextPart(text),), stop="end", usage=usage, model=self.name)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The same, as a stream."""
        response = await self.complete(request)
        yield TextChunk(response.text)
        yield response

    async def aclose(self) -> None:
        """Nothing to release."""
