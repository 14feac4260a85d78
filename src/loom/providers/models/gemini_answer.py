"""Putting Gemini's chunks together into one answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from loom.core.ids import RecordIds
from loom.core.message import NativePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage
from loom.errors import BadResponse
from loom.protocols.model import Chunk, ModelResponse, Stop, TextChunk, ThinkingChunk, ToolCallChunk
from loom.providers.models.failures import ended_early
from loom.providers.models.parts import ended

if TYPE_CHECKING:
    from google.genai import types

_STOPS: dict[str, Stop] = {
    "STOP": "end",
    "MAX_TOKENS": "length",
    "SAFETY": "refusal",
    "RECITATION": "refusal",
    "BLOCKLIST": "refusal",
    "PROHIBITED_CONTENT": "refusal",
    "SPII": "refusal",
    "IMAGE_SAFETY": "refusal",
    "IMAGE_PROHIBITED_CONTENT": "refusal",
    "IMAGE_RECITATION": "refusal",
}


class GeminiAnswer:
    """Collects the pieces of one answer, whether they come in one response or in many.

    A seal (thought signature) that stands on a part which is not thinking becomes a ThinkingPart without text
    before it: that is how the renderer puts it back. Texts are joined, except around a seal, which is bound to
    the part it came on.
    """

    def __init__(self, model: str, ids: RecordIds) -> None:
        self._model = model
        self._ids = ids
        self._parts: list[Part] = []
        self._usage = Usage()
        self._finish: str | None = None
        self._blocked = False
        self._id: str | None = None
        self._served_by: str | None = None
        self._sealed = False

    def add(self, response: types.GenerateContentResponse) -> Iterator[Chunk]:
        """Take one response of a stream, or the only one; yields what is new in it."""
        self._id = response.response_id or self._id
        self._served_by = response.model_version or self._served_by
        if response.usage_metadata is not None:
            self._usage = _usage(response.usage_metadata)
        if response.prompt_feedback is not None and response.prompt_feedback.block_reason is not None:
            self._blocked = True
        for candidate in (response.candidates or [])[:1]:
            if candidate.finish_reason is not None:
                self._finish = candidate.finish_reason.value
            for part in (candidate.content.parts or []) if candidate.content else []:
                yield from self._take(part)

    def response(self) -> ModelResponse:
        """The whole answer; raises where it is not complete."""
        parts, stop = ended(tuple(self._parts), self._stop())
        return ModelResponse(
            parts=parts, stop=stop, usage=self._usage, model=self._served_by or self._model, id=self._id
        )

    def _stop(self) -> Stop:
        if self._blocked:
            return "refusal"
        if self._finish is None:
            raise ended_early(self._model)
        stop = _STOPS.get(self._finish)
        if stop is None:
            raise BadResponse(f"{self._model} ended its answer with {self._finish}; ask again, or change the request")
        return stop

    def _take(self, part: types.Part) -> Iterator[Chunk]:
        seal = base64.urlsafe_b64encode(part.thought_signature).decode() if part.thought_signature else None
        if part.thought:
            self._join(ThinkingPart(part.text or "", signature=seal, provider="gemini"), sealed=seal is not None)
            if part.text:
                yield ThinkingChunk(part.text)
            return
        if seal is not None:
            self._parts.append(ThinkingPart(signature=seal, provider="gemini"))
        if part.function_call is not None:
            call = self._call(part.function_call)
            self._parts.append(call)
            yield ToolCallChunk(call.id, call.name, json.dumps(call.input))
        elif part.text is not None:
            if part.text:
                self._join(TextPart(part.text), sealed=seal is not None)
                yield TextChunk(part.text)
        else:
            body: dict[str, Any] = part.model_dump(mode="json", exclude_none=True, exclude={"thought_signature"})
            self._parts.append(NativePart("gemini", body))

    def _join(self, part: TextPart | ThinkingPart, *, sealed: bool) -> None:
        """Append a part, or add its text to the one before it where neither carries a seal."""
        last = self._parts[-1] if self._parts else None
        free = not sealed and not self._sealed
        if free and isinstance(part, TextPart) and isinstance(last, TextPart):
            self._parts[-1] = TextPart(last.text + part.text)
        elif free and isinstance(part, ThinkingPart) and isinstance(last, ThinkingPart) and last.text:
            self._parts[-1] = ThinkingPart(last.text + part.text, provider="gemini")
        else:
            self._parts.append(part)
        self._sealed = sealed

    def _call(self, call: types.FunctionCall) -> ToolCallPart:
        taken = {part.id for part in self._parts if isinstance(part, ToolCallPart)}
        id = call.id or f"{self._id or self._ids.next_id()}-{len(taken)}"
        if id in taken:
            id = f"{id}-{len(taken)}"
        return ToolCallPart(id, call.name or "", call.args or {})


def _usage(reported: types.GenerateContentResponseUsageMetadata) -> Usage:
    """Tokens with one meaning for all providers: what was cached is inside the prompt, thinking is output."""
    return Usage(
        input=(reported.prompt_token_count or 0) + (reported.tool_use_prompt_token_count or 0),
        output=(reported.candidates_token_count or 0) + (reported.thoughts_token_count or 0),
        cache_read=reported.cached_content_token_count or 0,
    )
