"""The model that is used where none is named: it answers with what memory found, and says so."""

from __future__ import annotations

from collections.abc import AsyncIterator

from loom.core.message import TextPart, Usage
from loom.core.threads import off_loop
from loom.protocols.model import Chunk, ModelRequest, ModelResponse, TextChunk
from loom.text.tokens import EstimateCounter, count_request
from loom.text.words import query_terms, terms

_OPEN, _CLOSE = "<memory>\n", "\n</memory>"
_LINES = 5
"""Lines of the conversation that are quoted at the most."""
_HOW = "no language model is connected; set LOOM_MODEL, or give model='anthropic:...'"


class OfflineModel:
    """Needs no key and no network. It thinks nothing up: it shows the memory that was recalled for the question."""

    name = "offline:memory"
    context_window = 200_000
    reads_text = False

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The memory recalled for the last message, and earlier lines of this conversation about the same."""
        chars = sum(len(message.text) for message in request.messages)
        return await off_loop(chars // 4, lambda: self._answer(request))

    def _answer(self, request: ModelRequest) -> ModelResponse:
        asked = request.messages[-1].text if request.messages else ""
        shown = _recalled(asked)
        found = "\n\n".join([*shown, *_said_before(request)])
        text = f"From memory ({_HOW}):\n{found}" if found else f"Noted ({_HOW})."
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


def _recalled(text: str) -> list[str]:
    """The texts between the tags of memory. A tag that is never closed is looked at once."""
    found: list[str] = []
    start = text.find(_OPEN)
    while start >= 0 and (end := text.find(_CLOSE, start + len(_OPEN))) >= 0:
        found.append(text[start + len(_OPEN) : end])
        start = text.find(_OPEN, end)
    return found


def _said_before(request: ModelRequest) -> list[str]:
    """The lines of earlier user messages that share a word with a question, under a title: a model would see them."""
    parts = [part.text for part in request.messages[-1].parts if isinstance(part, TextPart)] if request.messages else []
    asked = " ".join(text for text in parts if not _recalled(text) and text.rstrip().endswith("?"))
    wanted = set(query_terms(asked))
    earlier = [message.text for message in request.messages[:-1] if message.role == "user"]
    said = [line for text in earlier for line in text.splitlines() if wanted & set(terms(line))]
    lines = [line if line.startswith("- ") else f"- {line}" for line in dict.fromkeys(said)]
    return ["\n".join(["Said in this conversation:", *lines[-_LINES:]])] if lines else []
