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
        found = "\n\n".join([*_recalled(request.messages[-1].text if request.messages else ""), *_said_before(request)])
        was_told = any(_HOW in message.text for message in request.messages[:-1] if message.role == "assistant")
        how = "" if was_told else f" ({_HOW})"
        nothing = "Nothing about this is in memory" if _question(request) else "Noted"
        text = f"From memory{how}:\n{found}" if found else f"{nothing}{how}."
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


def _question(request: ModelRequest) -> str:
    """What the last message asks; empty where it asks nothing."""
    parts = request.messages[-1].parts if request.messages else ()
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return " ".join(text for text in texts if not _recalled(text) and _is_question(text))


def _is_question(text: str) -> bool:
    return text.rstrip().endswith(("?", "\uff1f"))


def _said_before(request: ModelRequest) -> list[str]:
    """Earlier statements of the user that share a word with the question, under a title: a model would see them."""
    wanted = set(query_terms(_question(request)))
    earlier = [message.text for message in request.messages[:-1] if message.role == "user"]
    lines = [line for text in earlier for line in text.splitlines() if not _is_question(line)]
    said = [line for line in lines if wanted & set(terms(line))]
    shown = [line if line.startswith("- ") else f"- {line}" for line in dict.fromkeys(said)]
    return ["\n".join(["Said in this conversation:", *shown[-_LINES:]])] if shown else []
