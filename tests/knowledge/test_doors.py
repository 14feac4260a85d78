import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("door", "name", "home"),
    [
        ("loom.memory", "ContextCompressor", "loom.memory._upkeep.summaries"),
        ("loom.memory.vector_store", "InMemoryVectorStore", "loom.stores.inmemory.vectors"),
        ("loom.memory.embedder", "OpenAIEmbedder", "loom.providers.embedding.openai"),
        ("loom.memory.embedder", "HashEmbedder", "loom.providers.embedding.local"),
        ("loom.memory.embedder", "StaticEmbedder", "loom.providers.embedding.local"),
        ("loom.memory.embedder", "MiniLmEmbedder", "loom.providers.embedding.local"),
        ("loom.memory.embedder", "pick_embedder", "loom.providers.embedding.choose"),
        ("loom.providers.knowledge", "InMemoryKnowledgeBase", "loom.knowledge.in_memory"),
        ("loom.providers.knowledge", "VectorKnowledgeBase", "loom.knowledge.vector"),
        ("loom.providers.knowledge", "GraphKnowledgeBase", "loom.knowledge.graph"),
        ("loom.providers.knowledge", "KnowledgeItem", "loom.knowledge.document"),
        ("loom.providers.knowledge", "Document", "loom.protocols.knowledge_base"),
    ],
)
def test_a_door_leads_to_the_one_home(door, name, home):
    module = importlib.import_module(door)
    assert getattr(module, name) is getattr(importlib.import_module(home), name)
    assert name in dir(module)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        module.Nothing  # noqa: B018


def test_opening_the_doors_loads_nothing_heavy():
    code = (
        "import sys, loom.memory.vector_store, loom.memory.embedder, loom.providers.knowledge\n"
        "from loom.memory.embedder import OpenAIEmbedder, StaticEmbedder, pick_embedder\n"
        "from loom.providers.knowledge import GraphKnowledgeBase\n"
        "OpenAIEmbedder(api_key='k'), StaticEmbedder().identity\n"
        "print([name for name in ('numpy', 'openai', 'wordllama', 'tokenizers') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
