"""The suite can fail: models with one planted fault each, and the law that catches it."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from loom.core.message import TextPart, ThinkingPart, ToolCallPart
from loom.errors import ContextOverflow, ProviderError, ProviderUnavailable, RateLimited
from loom.protocols.model import ModelResponse, TextChunk
from loom.providers.models import AnthropicModel
from loom.testing.conformance import WireModelSuite
from loom.testing.conformance import model as laws
from loom.testing.wire import AnthropicWire, Said, serve

pytestmark = pytest.mark.anyio


class Suite(WireModelSuite):
    __test__ = False

    def thinking(self):
        return (ThinkingPart("Hm.", "c2lnbmVk"),)


class Changes(AnthropicModel):
    """Changes what it streams."""

    def change(self, chunk: Any) -> Any:
        return chunk

    async def stream(self, request):
        async for chunk in super().stream(request):
            changed = self.change(chunk)
            if changed is not None:
                yield changed


class LosesAPiece(Changes):
    def change(self, chunk):
        return None if isinstance(chunk, TextChunk) and chunk.text.startswith("Hel") else chunk


class SaysNothingAtTheEnd(Changes):
    def change(self, chunk):
        return None if isinstance(chunk, ModelResponse) else chunk


class CountsTheRestOnly(Changes):
    def change(self, chunk):
        if not isinstance(chunk, ModelResponse):
            return chunk
        return replace(chunk, usage=replace(chunk.usage, input=chunk.usage.uncached))


class LosesTheSeal(Changes):
    def change(self, chunk):
        if not isinstance(chunk, ModelResponse):
            return chunk
        parts = [replace(p, signature=None) if isinstance(p, ThinkingPart) else p for p in chunk.parts]
        return replace(chunk, parts=tuple(parts))


class ReadsWhatCannotBeRead(Changes):
    def change(self, chunk):
        if not isinstance(chunk, ModelResponse):
            return chunk
        parts = [replace(p, input={}) if isinstance(p, ToolCallPart) else p for p in chunk.parts]
        return replace(chunk, parts=tuple(parts))


class CallsItDone(Changes):
    def change(self, chunk):
        return replace(chunk, stop="end") if isinstance(chunk, ModelResponse) else chunk


class Retries(AnthropicModel):
    async def stream(self, request):
        try:
            async for chunk in super().stream(request):
                yield chunk
        except ProviderUnavailable:
            async for chunk in super().stream(request):
                yield chunk


class EndsQuietly(AnthropicModel):
    async def stream(self, request):
        said = ""
        try:
            async for chunk in super().stream(request):
                said += chunk.text if isinstance(chunk, TextChunk) else ""
                yield chunk
        except ProviderError:
            usage = Said().usage
            yield ModelResponse(parts=(TextPart(said),), stop="end", usage=usage, model="m")


class CallsEverythingAnOverflow(AnthropicModel):
    def _as_loom_error(self, error):
        found = super()._as_loom_error(error)
        return ContextOverflow(str(found)) if type(found) is ProviderError else found


class ForgetsHowLong(AnthropicModel):
    def _as_loom_error(self, error):
        found = super()._as_loom_error(error)
        return RateLimited(str(found)) if isinstance(found, RateLimited) else found


class ForgetsTheSize(AnthropicModel):
    def _as_loom_error(self, error):
        found = super()._as_loom_error(error)
        return ContextOverflow(str(found)) if isinstance(found, ContextOverflow) else found


class DropsWhatItDoesNotKnow(AnthropicModel):
    def _body(self, request):
        return super()._body(replace(request, settings=replace(request.settings, extra={})))


class SaysNoSystemText(AnthropicModel):
    def _body(self, request):
        return super()._body(replace(request, system=()))


class KeepsTheLineOpen(AnthropicModel):
    kept: ClassVar = []

    async def _opened(self, client, body):
        stream = await super()._opened(client, body)
        self.kept.append((stream, stream._iterator))

        class Left:
            async def __aenter__(self):
                return stream

            async def __aexit__(self, *error):
                pass

        return Left()


CAUGHT_BY = {
    LosesAPiece: "test_a_stream_ends_with_one_answer_that_has_its_text",
    SaysNothingAtTheEnd: "test_a_stream_ends_with_one_answer_that_has_its_text",
    CountsTheRestOnly: "test_usage_counts_the_whole_prompt_with_the_cache_inside",
    LosesTheSeal: "test_an_answer_comes_back_exactly_as_it_was_received",
    ReadsWhatCannotBeRead: "test_input_that_is_not_json_stays_text",
    CallsItDone: "test_parallel_calls_come_whole_and_in_order",
    Retries: "test_a_fault_ends_as_documented_and_is_not_retried:overloaded",
    EndsQuietly: "test_a_broken_stream_never_ends_quietly",
    CallsEverythingAnOverflow: "test_a_fault_ends_as_documented_and_is_not_retried:empty_400",
    ForgetsHowLong: "test_a_rate_limit_says_how_long_to_wait",
    ForgetsTheSize: "test_an_overflow_tells_limit_and_size_where_they_are_known",
    DropsWhatItDoesNotKnow: "test_the_rest_of_the_settings_is_passed_on",
    SaysNoSystemText: "test_a_system_text_tools_and_messages_are_sent",
    KeepsTheLineOpen: "test_closing_the_stream_stops_the_request",
}


async def keeps(made, law):
    """Whether a model keeps a law."""
    name, _, fault = law.partition(":")
    with serve(AnthropicWire(), default=Said.text("Hello there.")) as service:
        model = made("claude-sonnet-5", base_url=service.url, api_key="test")
        given = {"model": model, "service": service, **({"fault": fault} if fault else {})}
        takes = getattr(Suite, name).__code__.co_varnames
        try:
            await getattr(Suite(), name)(**{key: value for key, value in given.items() if key in takes})
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - a fault may break a law in any way
            return False
        finally:
            await model.aclose()
    return True


@pytest.mark.parametrize("mutant", CAUGHT_BY, ids=lambda mutant: mutant.__name__)
async def test_a_planted_fault_breaks_its_law(mutant, monkeypatch):
    assert await keeps(AnthropicModel, CAUGHT_BY[mutant])
    monkeypatch.setattr(laws, "_PATIENCE", 1.0)  # of those who would wait in vain
    assert not await keeps(mutant, CAUGHT_BY[mutant])
