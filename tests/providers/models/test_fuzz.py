"""Whatever comes over the wire: text and inputs arrive as they were said, and a damaged stream is an error of Loom."""

from asyncio import Runner
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.core.message import Message, TextPart, ToolCallPart
from loom.errors import LoomError
from loom.protocols.model import ModelRequest, ModelResponse
from loom.testing.wire import Refused, Said, serve
from tests.providers.models.served import KINDS, each_kind

ASKED = ModelRequest(messages=(Message.user("hi"),))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
)
INPUTS = st.dictionaries(
    TEXTS, st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=5), max_size=4
)


@contextmanager
def asking(kind):
    """A server, and a function that asks the model it answers."""
    with serve(kind.wire()) as service, Runner() as runner:
        model = kind.model(kind.name, base_url=service.url, api_key="test")
        yield service, lambda: runner.run(model.complete(ASKED))
        runner.run(model.aclose())


@each_kind
def test_what_was_said_is_what_arrives(kind):
    with asking(kind) as (service, ask):

        @settings(max_examples=40, deadline=None)
        @given(TEXTS, st.lists(INPUTS, max_size=3))
        def check(text, inputs):
            calls = tuple(ToolCallPart(f"c{n}", "search", input) for n, input in enumerate(inputs))
            service.script(Said(parts=(TextPart(text), *calls), stop="tool" if calls else "end"))
            response = ask()
            assert response.parts == (TextPart(text), *calls)
            assert (response.stop == "tool") == bool(calls)

        check()


def damaged(frames):
    """The bytes of a stream, some events lost, repeated, out of order or with letters changed."""
    events = st.lists(st.sampled_from(frames), max_size=len(frames) + 2) | st.permutations(frames)
    junk = st.sampled_from(
        [b"", b"data: null\n\n", b"data: [1]\n\n", b'data: "x"\n\n', b"data: {}\n\n", b"\xff\xfe\n\n"]
    )

    def spoiled(parts):
        whole, place, byte, extra = parts
        body = b"".join(whole) + extra
        at = place % (len(body) or 1)
        return body[:at] + byte + body[at + 1 :]

    return st.tuples(events, st.integers(0, 10_000), st.binary(max_size=2), junk).map(spoiled)


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_stream_is_an_answer_or_an_error_of_loom(name):
    kind = KINDS[name]
    said = Said.calls(*kind.thinking, TextPart("Let me look."), ToolCallPart("c1", "search", {"q": "tea"}))
    with asking(kind) as (service, ask):

        @settings(max_examples=120, deadline=None)
        @given(damaged(kind.wire().frames(said)))
        def check(body):
            service.script(Refused(200, body, {"content-type": "text/event-stream"}))
            with suppress(LoomError):
                assert isinstance(ask(), ModelResponse)

        check()
