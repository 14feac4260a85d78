"""What the contributors' guide adds keeps the laws of its protocol."""

import pytest

from loom import Message
from loom.core.log import Shown
from loom.protocols.compactor import Compactor
from loom.session.compaction.strategies import broken_law
from loom.testing.conformance import EmbedderSuite, ModelSuite
from loom.text.tokens import EstimateCounter
from tests.docs.pages import GUIDE, blocks


def defined(name):
    """An object that a block of the guide defines; only the definitions of the block are run."""
    (block,) = [b for b in blocks(GUIDE.read_text("utf-8")) if b.language == "python" and f"class {name}" in b.code]
    space = {}
    exec(block.code.partition("\n\nwith ")[0].partition("\n\nasync def main")[0], space)
    return space[name]()


class TestModel(ModelSuite):
    @pytest.fixture
    async def model(self):
        return defined("EchoModel")


class TestEmbedder(EmbedderSuite):
    @pytest.fixture
    async def embedder(self):
        return defined("DigestEmbedder")


@pytest.mark.anyio
async def test_the_strategy_breaks_no_law():
    strategy = defined("KeepTheRequest")
    assert isinstance(strategy, Compactor)
    texts = ["Where is it? " * 50, "There. " * 50, "And now?"]
    shown = [Shown(f"m{n}", (Message.assistant if n % 2 else Message.user)(text)) for n, text in enumerate(texts)]
    rewrite = await strategy.compact(shown, target=100, counter=EstimateCounter(), keep={"m2"})
    assert rewrite.covered == {"m0", "m1"}
    assert broken_law(shown, rewrite, target=100, counter=EstimateCounter(), keep={"m2"}) is None
