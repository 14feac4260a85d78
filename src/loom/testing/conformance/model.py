"""The laws of a model: for any model, and for one that is called over HTTP against a scripted server."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from anyio import create_task_group, to_thread

from loom.core.message import JSON, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.errors import BadResponse, ContextOverflow, LoomError, ProviderError, ProviderUnavailable, RateLimited
from loom.protocols.model import (
    Chunk,
    Model,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)
from loom.testing.conformance.suite import Suite
from loom.testing.wire import RETRY_AFTER, Fault, Said, WireServer

SEARCH = ToolSpec("search", "Search the notes.", {"type": "object", "properties": {"q": {"type": "string"}}})
QUESTION = ModelRequest(messages=(Message.user("Say hello, please."),), settings=ModelSettings(max_output=16))
_PATIENCE = 300.0
"""Seconds after which a request that should have been stopped counts as still running."""

_FAULTS: dict[Fault, type[LoomError]] = {
    "rate_limited": RateLimited,
    "overloaded": ProviderUnavailable,
    "server_error": ProviderUnavailable,
    "overflow": ContextOverflow,
    "empty_400": ProviderError,
    "bad_request": ProviderError,
    "unauthorized": ProviderError,
    "dropped": ProviderUnavailable,
    "cut": ProviderUnavailable,
    "ended_early": ProviderUnavailable,
    "malformed": BadResponse,
    "error_in_stream": ProviderUnavailable,
}


async def drained(model: Model, request: ModelRequest) -> tuple[list[Chunk], ModelResponse]:
    """The pieces of an answer, and the answer."""
    chunks = [chunk async for chunk in model.stream(request)]
    last = chunks.pop()
    assert isinstance(last, ModelResponse), "a stream ends with the whole answer"
    return chunks, last


class ModelSuite(Suite):
    """Laws that hold for any model, whatever it answers. Needs a `model` that can be called."""

    @pytest.fixture
    async def model(self) -> Model:
        """The model; yield it and close it."""
        raise NotImplementedError("yield a model")

    async def test_it_has_a_provider_and_a_name(self, model: Model) -> None:
        """A name is `provider:model`."""
        provider, colon, name = model.name.partition(":")
        assert all((provider, colon, name))

    async def test_it_answers_and_says_what_that_cost(self, model: Model) -> None:
        """Usage is always there, and the cached part lies inside the input."""
        response = await model.complete(QUESTION)
        usage = response.usage
        assert usage.input > 0
        assert usage.cache_read + usage.cache_write <= usage.input
        assert response.model

    async def test_a_stream_ends_with_one_answer_that_has_its_text(self, model: Model) -> None:
        """The text chunks joined are the text of the answer, which comes last and once."""
        chunks, response = await drained(model, QUESTION)
        assert not any(isinstance(chunk, ModelResponse) for chunk in chunks)
        assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk)) == response.text
        assert response.usage.input > 0

    async def test_a_stream_may_be_left_and_the_model_asked_again(self, model: Model) -> None:
        """Leaving a stream early costs nothing but that stream."""
        async with aclosing(cast("Any", model.stream(QUESTION))) as chunks:
            await anext(chunks)
        assert (await model.complete(QUESTION)).usage.input > 0

    async def test_closing_twice_is_allowed(self, model: Model) -> None:
        """Closing is safe to repeat."""
        await model.complete(QUESTION)
        await model.aclose()
        await model.aclose()


class WireModelSuite(ModelSuite, Suite):
    """Laws of a model that is asked over a wire. Needs a `service`, and a `model` whose base URL is `service.url`.

    `service` answers with text by itself, and otherwise as scripted.
    """

    @pytest.fixture
    def service(self) -> WireServer:
        """The scripted provider: `with serve(wire, default=Said.text("Hello.")) as service: yield service`."""
        raise NotImplementedError("yield a server")

    # -- answers ------------------------------------------------------------------------------------------

    async def test_complete_and_stream_give_the_same_answer(self, model: Model, service: WireServer) -> None:
        """There is one answer, whichever way it is asked for."""
        said = Said.text("The answer is forty-two, as everybody knows.")
        service.script(said, said)
        chunks, streamed = await drained(model, QUESTION)
        assert streamed == await model.complete(QUESTION)
        assert streamed.text == "The answer is forty-two, as everybody knows."
        assert len([chunk for chunk in chunks if isinstance(chunk, TextChunk)]) > 1
        assert (streamed.stop, streamed.model, streamed.id) == ("end", said.model, said.id)

    async def test_an_answer_without_a_word_is_an_answer(self, model: Model, service: WireServer) -> None:
        """Some models end a turn without text; that is not a failure."""
        service.script(Said())
        response = await model.complete(QUESTION)
        assert (response.parts, response.message, response.stop) == ((), None, "end")

    async def test_usage_counts_the_whole_prompt_with_the_cache_inside(self, model: Model, service: WireServer) -> None:
        """However a provider counts, the numbers mean the same here."""
        said = Said.text("Hi.")
        service.script(said)
        assert (await model.complete(QUESTION)).usage == said.usage

    async def test_an_answer_that_is_cut_off_says_so(self, model: Model, service: WireServer) -> None:
        """A limit that was hit is reported."""
        service.script(Said.text("This goes on and", stop="length"))
        response = await model.complete(QUESTION)
        assert (response.text, response.stop) == ("This goes on and", "length")

    async def test_a_refusal_asks_for_no_tools(self, model: Model, service: WireServer) -> None:
        """What a model asked for before it refused must not be run."""
        service.script(Said(parts=(TextPart("I will not."), ToolCallPart("c1", "search")), stop="refusal"))
        response = await model.complete(QUESTION)
        assert (response.text, response.stop, response.tool_calls) == ("I will not.", "refusal", ())

    # -- tools --------------------------------------------------------------------------------------------

    async def test_parallel_calls_come_whole_and_in_order(self, model: Model, service: WireServer) -> None:
        """Several calls in one answer keep their order, ids, names and inputs."""
        calls = (
            ToolCallPart("c1", "search", {"q": "täglich ☕", "deep": {"n": [1, 2.5, None, True]}}),
            ToolCallPart("c2", "search", {"q": "two"}),
        )
        service.script(Said.calls(TextPart("Let me look."), *calls))
        chunks, response = await drained(model, replace(QUESTION, tools=(SEARCH,)))
        assert response.tool_calls == calls
        assert response.stop == "tool"
        told = [chunk for chunk in chunks if isinstance(chunk, ToolCallChunk)]
        assert {chunk.id for chunk in told} == {"c1", "c2"}
        assert {chunk.name for chunk in told} == {"search"}

    async def test_a_call_without_input_has_an_empty_one(self, model: Model, service: WireServer) -> None:
        """No input at all is an empty object."""
        service.script(Said.calls(ToolCallPart("c1", "search", "")))
        assert (await model.complete(QUESTION)).tool_calls == (ToolCallPart("c1", "search", {}),)

    async def test_input_that_is_not_json_stays_text(self, model: Model, service: WireServer) -> None:
        """What cannot be read is kept for the tool to refuse; the answer itself is fine."""
        service.script(Said.calls(ToolCallPart("c1", "search", '{"q": "unfinis')))
        response = await model.complete(QUESTION)
        assert response.tool_calls == (ToolCallPart("c1", "search", '{"q": "unfinis'),)
        assert response.stop == "tool"

    async def test_call_ids_are_unique(self, model: Model, service: WireServer) -> None:
        """A result must find its call, also where a server sends one id twice."""
        service.script(
            Said.calls(ToolCallPart("same", "search", {"q": "1"}), ToolCallPart("same", "search", {"q": "2"}))
        )
        calls = (await model.complete(QUESTION)).tool_calls
        assert len({call.id for call in calls}) == len(calls) > 0

    async def test_a_call_that_is_cut_off_is_not_run(self, model: Model, service: WireServer) -> None:
        """A call that hit the limit is distinguished from one that waits for its result."""
        service.script(Said(parts=(ToolCallPart("c1", "search", '{"q": "unf'),), stop="length"))
        assert (await model.complete(QUESTION)).stop == "length"

    async def test_an_answer_comes_back_exactly_as_it_was_received(self, model: Model, service: WireServer) -> None:
        """Reasoning and calls are replayed in the next request as they came."""
        said = Said.calls(*self.thinking(), TextPart("Looking."), ToolCallPart("c1", "search", {"q": "tea"}))
        service.script(said)
        asked = replace(QUESTION, tools=(SEARCH,))
        chunks, response = await drained(model, asked)
        assert response.parts == said.parts
        thought = "".join(part.text for part in said.parts if isinstance(part, ThinkingPart))
        assert "".join(chunk.text for chunk in chunks if isinstance(chunk, ThinkingChunk)) == thought
        assert response.message is not None
        result = Message("user", (ToolResultPart("c1", (TextPart("Earl Grey"),)),))
        await model.complete(replace(asked, messages=(*asked.messages, response.message, result)))
        missing = [block for block in service.wire.replayed(said) if not _holds(service.requests[-1], block)]
        assert missing == []

    def thinking(self) -> tuple[Part, ...]:
        """Reasoning of this provider, as parts that must come back; none where it takes none back."""
        return ()

    # -- requests -----------------------------------------------------------------------------------------

    async def test_a_system_text_tools_and_messages_are_sent(self, model: Model, service: WireServer) -> None:
        """The neutral fields of a request all reach the provider."""
        request = replace(QUESTION, system=("You are terse.",), tools=(SEARCH,))
        await model.complete(request)
        sent = str(service.requests[-1])
        assert all(text in sent for text in ("You are terse.", "Search the notes.", "Say hello, please."))

    async def test_the_rest_of_the_settings_is_passed_on(self, model: Model, service: WireServer) -> None:
        """`extra` is sent as it is, known to the SDK or not."""
        settings = ModelSettings(extra={"loom_test_field": {"a": [1]}})
        await model.complete(replace(QUESTION, settings=settings))
        assert _holds(service.requests[-1], {"a": [1]})

    # -- failures -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("fault", _FAULTS)
    async def test_a_fault_ends_as_documented_and_is_not_retried(
        self, model: Model, service: WireServer, fault: Fault
    ) -> None:
        """Each fault is one error of loom.errors after one request, and leaves the model usable."""
        service.script(fault)
        with pytest.raises(LoomError) as caught:
            await drained(model, QUESTION)
        assert type(caught.value) is _FAULTS[fault]
        assert len(service.requests) == 1
        assert (await model.complete(QUESTION)).text, "the next request is answered"

    async def test_a_rate_limit_says_how_long_to_wait(self, model: Model, service: WireServer) -> None:
        """`retry_after` is what the provider asked for."""
        service.script("rate_limited")
        with pytest.raises(RateLimited) as caught:
            await model.complete(QUESTION)
        assert caught.value.retry_after == RETRY_AFTER

    async def test_an_overflow_tells_limit_and_size_where_they_are_known(
        self, model: Model, service: WireServer
    ) -> None:
        """The numbers in the provider's words are read."""
        service.script("overflow")
        with pytest.raises(ContextOverflow) as caught:
            await model.complete(QUESTION)
        assert (caught.value.limit, caught.value.size) == service.wire.overflow

    async def test_a_broken_stream_never_ends_quietly(self, model: Model, service: WireServer) -> None:
        """Half an answer is never passed off as one."""
        broken: tuple[Fault, ...] = ("cut", "ended_early", "malformed")
        for fault in broken:
            service.script(fault)
            ended = False
            with pytest.raises(LoomError):  # noqa: PT012  (what came before the error is looked at too)
                async for chunk in model.stream(QUESTION):
                    ended = isinstance(chunk, ModelResponse)
            assert not ended

    async def test_an_error_names_the_model(self, model: Model, service: WireServer) -> None:
        """A caller that uses several models sees which one it was."""
        service.script("bad_request")
        with pytest.raises(ProviderError, match=model.name):
            await model.complete(QUESTION)

    # -- stopping -----------------------------------------------------------------------------------------

    async def test_cancelling_the_call_stops_the_request(self, model: Model, service: WireServer) -> None:
        """The provider sees that the client has closed the connection."""
        service.script("stalled")
        async with create_task_group() as tasks:
            tasks.start_soon(model.complete, QUESTION)
            await to_thread.run_sync(service.arrived.wait)
            tasks.cancel_scope.cancel()
        assert await to_thread.run_sync(partial(service.hung_up.wait, _PATIENCE))

    async def test_closing_the_stream_stops_the_request(self, model: Model, service: WireServer) -> None:
        """The provider sees that the client has closed the connection."""
        service.script("stalled")
        async with aclosing(cast("Any", model.stream(QUESTION))) as chunks:
            await anext(chunks)
        assert await to_thread.run_sync(partial(service.hung_up.wait, _PATIENCE))


def _holds(body: JSON, block: JSON) -> bool:
    """Whether a JSON value holds a block, somewhere, exactly; a cache marker on it does not count."""
    if isinstance(body, dict):
        found = cast("dict[str, Any]", body)
        bare = {name: value for name, value in found.items() if name != "cache_control"}
        return bare == block or any(_holds(value, block) for value in found.values())
    return isinstance(body, list) and any(_holds(value, block) for value in cast("list[Any]", body))
