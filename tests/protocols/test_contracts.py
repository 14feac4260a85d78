"""Each protocol says its laws where implementers look, and a plain class with the right methods satisfies it."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

import loom.protocols
from loom.core.filter import Eq, Filter
from loom.core.log import Checkpoint, LogEntry, Recorded, Replacement, SavedSession, Shown
from loom.core.message import Message, Part, TextPart, ToolCallPart, Usage
from loom.core.record import Claim, Episode, Fact, Hit, Layer, Passage, Provenance, Receipt, Record, rank_key
from loom.core.scope import Scope
from loom.errors import CannotCompact, UsageError
from loom.protocols.checkpoint_store import CheckpointStore, Forks, PrunesCheckpoints
from loom.protocols.compactor import Compactor, Rewrite
from loom.protocols.embedder import Embedder, Purpose, Vector
from loom.protocols.extractor import Extraction, Extractor
from loom.protocols.knowledge_base import Document, KnowledgeBase, SearchesGraph, SearchMode
from loom.protocols.memory_store import KeepsVectors, MemoryStore, Prunes, Query, Touches
from loom.protocols.model import (
    Chunk,
    KnowsWindow,
    Model,
    ModelRequest,
    ModelResponse,
    Rendered,
    TextChunk,
)
from loom.protocols.reranker import Reranker
from loom.protocols.token_counter import TokenCounter
from loom.protocols.vector_store import VectorHit, VectorItem, VectorStore

T0 = datetime(2026, 1, 1, tzinfo=UTC)
MODULES = sorted(module.name for module in iter_modules(loom.protocols.__path__))


def the_protocols(module: str) -> list[type]:
    found = vars(import_module(f"loom.protocols.{module}")).values()
    here = f"loom.protocols.{module}"
    return [c for c in found if inspect.isclass(c) and c.__module__ == here and getattr(c, "_is_protocol", False)]


def test_there_is_one_module_for_each_protocol():
    assert MODULES == [
        "checkpoint_store", "compactor", "embedder", "extractor", "knowledge_base", "memory_store",
        "model", "reranker", "token_counter", "tool", "vector_store",
    ]  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_a_protocol_says_its_laws(module: str):
    named = "".join(word.title() for word in module.split("_"))
    main = next(c for c in the_protocols(module) if c.__name__ == named)
    doc = inspect.getdoc(main) or ""
    assert import_module(main.__module__).__doc__
    laws = doc.partition("\nLaws:\n")[2]
    assert laws.count("- ") >= 3


@pytest.mark.parametrize("module", MODULES)
def test_every_method_of_a_protocol_says_what_it_does(module: str):
    assert the_protocols(module)
    for protocol in the_protocols(module):
        for name, member in vars(protocol).items():
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{protocol.__name__}.{name}"


@pytest.mark.parametrize(
    "protocol", [MemoryStore, VectorStore, CheckpointStore, Prunes, Touches, Forks, PrunesCheckpoints]
)
def test_the_scope_comes_first_in_every_store_call(protocol: type):
    unscoped = {"aclose", "bind"}
    for name, method in inspect.getmembers(protocol, inspect.isfunction):
        if not name.startswith("_") and name not in unscoped:
            scope = list(inspect.signature(method).parameters.values())[1]
            assert (scope.name, scope.annotation, scope.default) == ("scope", "Scope", inspect.Parameter.empty)


class Echo:
    name = "test:echo"

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse(parts=request.messages[-1].parts, stop="end", usage=Usage(input=1), model="echo")

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        response = await self.complete(request)
        for char in response.text:
            yield TextChunk(char)
        yield response

    async def aclose(self) -> None:
        pass


class LocalEcho(Echo):
    context_window = 4096


class Lengths:
    identity = "lengths:1:2"
    dimension = 2

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Sequence[Vector]:
        return [[float(len(text)), 1.0] for text in texts]


class Words:
    name = "words"
    error = 0.0

    def count(self, text: str) -> int:
        return len(text.split())

    def count_part(self, part: Part) -> int:
        return self.count(part.text) if isinstance(part, TextPart) else 0


class KeepLast:
    name = "keep_last"

    async def compact(
        self, shown: Sequence[Shown], *, target: int, counter: TokenCounter, keep: Any = frozenset()
    ) -> Rewrite:
        old = [item.id for item in shown[:-1] if item.id not in keep]
        if counter.count(shown[-1].message.text) > target:
            raise CannotCompact("the last message alone is too long")
        return Rewrite(replacements=(Replacement(tuple(old), None),))


class Nothing:
    async def extract(self, episodes: Sequence[Episode], *, known: Sequence[Fact] = ()) -> Extraction:
        return Extraction(claims=())


class ById:
    name = "by_id"

    async def rerank(self, query: str, hits: Sequence[Hit], *, limit: int) -> tuple[Hit, ...]:
        return tuple(sorted(hits, key=rank_key)[:limit])


class EmptyStore:
    """Satisfies the shape of a memory store with every optional power."""

    async def put(self, scope: Scope, *records: Record) -> None: ...
    async def get(self, scope: Scope, id: str) -> Record | None: ...
    async def search(self, scope: Scope, query: Query) -> tuple[Hit, ...]:
        return ()

    async def list(
        self, scope: Scope, *, where: Filter | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[Record, ...]:
        return ()

    async def count(self, scope: Scope, *, where: Filter | None = None) -> int:
        return 0

    async def delete(self, scope: Scope, *ids: str) -> int:
        return 0

    async def forget(self, scope: Scope) -> Receipt:
        return Receipt(removed={})

    async def aclose(self) -> None: ...
    async def prune(
        self, scope: Scope, *, layer: Layer, keep: int | None = None, before: datetime | None = None
    ) -> tuple[str, ...]:
        return ()

    async def touch(self, scope: Scope, *ids: str, at: datetime) -> None: ...
    async def bind(self, identity: str, dimension: int) -> None: ...
    async def put_vectors(self, scope: Scope, vectors: Mapping[str, Vector]) -> None: ...


class EmptyLog:
    async def save(
        self, scope: Scope, checkpoint: Checkpoint, *, entries: Sequence[LogEntry], head: str | None
    ) -> None: ...
    async def load(self, scope: Scope, id: str | None = None) -> Checkpoint | None: ...
    async def append(
        self,
        scope: Scope,
        entries: Sequence[LogEntry],
        *,
        attributes: Mapping[str, str] | None = None,
        once: bool = False,
        parent: str | None = None,
        id: str | None = None,
    ) -> Checkpoint:
        return Checkpoint(id=id or "k1", session_id="s", at=T0, position=len(entries), turn=0)

    async def history(self, scope: Scope, id: str, *, after: int = 0, bodies: bool = True) -> tuple[LogEntry, ...]:
        return ()

    async def recorded(
        self, scope: Scope, id: str | None = None, *, kind: str | None = None, after: int = 0
    ) -> tuple[Recorded, ...]:
        return ()

    async def list(
        self,
        scope: Scope,
        *,
        limit: int | None = None,
        attributes: Mapping[str, str] | None = None,
        before: str | None = None,
    ) -> tuple[Checkpoint, ...]:
        return ()

    async def sessions(self, scope: Scope, *, limit: int | None = None) -> tuple[SavedSession, ...]:
        return ()

    async def delete(self, scope: Scope, id: str) -> bool:
        return False

    async def forget(self, scope: Scope) -> Receipt:
        return Receipt(removed={})

    async def aclose(self) -> None: ...


class ForkingLog(EmptyLog):
    async def fork(self, scope: Scope, id: str, *, session_id: str, at: datetime | None = None) -> Checkpoint:
        return Checkpoint(id="k2", session_id=session_id, at=at or T0, position=0, turn=0, parent=id)

    async def prune(self, scope: Scope, *, keep: int) -> tuple[str, ...]:
        return ()


class EmptyVectors:
    async def bind(self, identity: str, dimension: int) -> None: ...
    async def upsert(self, scope: Scope, items: Sequence[VectorItem]) -> None: ...
    async def search(
        self, scope: Scope, vector: Vector, *, limit: int = 10, where: Filter | None = None
    ) -> tuple[VectorHit, ...]:
        return ()

    async def delete(self, scope: Scope, *ids: str) -> int:
        return 0

    async def count(self, scope: Scope) -> int:
        return 0

    async def forget(self, scope: Scope) -> int:
        return 0

    async def aclose(self) -> None: ...


class EmptyBase:
    async def add(self, *documents: Document) -> int:
        return 0

    async def remove(self, *document_ids: str) -> int:
        return 0

    async def search(self, query: str, *, limit: int = 5, where: Filter | None = None) -> tuple[Hit, ...]:
        return ()


class GraphBase(EmptyBase):
    async def search_graph(
        self, query: str, *, mode: SearchMode = "hybrid", max_hops: int = 2, limit: int = 5
    ) -> tuple[Hit, ...]:
        return ()


# The assignments are checked by pyright, signatures included; the isinstance below sees names only.
model: Model = Echo()
embedder: Embedder = Lengths()
counter: TokenCounter = Words()
compactor: Compactor = KeepLast()
extractor: Extractor = Nothing()
reranker: Reranker = ById()
memory: MemoryStore = EmptyStore()
pruning: Prunes = EmptyStore()
touching: Touches = EmptyStore()
embedding: KeepsVectors = EmptyStore()
log: CheckpointStore = EmptyLog()
forking: Forks = ForkingLog()
short_log: PrunesCheckpoints = ForkingLog()
vectors: VectorStore = EmptyVectors()
base: KnowledgeBase = EmptyBase()
graph: SearchesGraph = GraphBase()
window: KnowsWindow = LocalEcho()


@pytest.mark.parametrize(
    ("thing", "protocol"),
    [
        (model, Model), (window, KnowsWindow), (embedder, Embedder), (counter, TokenCounter),
        (compactor, Compactor), (extractor, Extractor), (reranker, Reranker), (memory, MemoryStore), (pruning, Prunes),
        (touching, Touches), (embedding, KeepsVectors), (log, CheckpointStore), (forking, Forks), (short_log, PrunesCheckpoints),
        (vectors, VectorStore), (base, KnowledgeBase), (graph, SearchesGraph),
    ],
)  # fmt: skip
def test_a_plain_class_satisfies_its_protocol(thing: object, protocol: type):
    assert isinstance(thing, protocol)
    assert not isinstance(object(), protocol)


@pytest.mark.parametrize(
    ("thing", "power"),
    [
        (Echo(), KnowsWindow),
        (EmptyLog(), Forks),
        (EmptyLog(), PrunesCheckpoints),
        (EmptyBase(), SearchesGraph),
    ],
)
def test_optional_powers_are_seen_as_missing(thing: object, power: type):
    assert not isinstance(thing, power)


def test_a_stream_ends_with_the_response():
    async def run() -> tuple[list[Chunk], ModelResponse]:
        request = ModelRequest(messages=(Message.user("tea"),))
        return [chunk async for chunk in model.stream(request)], await model.complete(request)

    chunks, response = asyncio.run(run())
    assert chunks == [TextChunk("t"), TextChunk("e"), TextChunk("a"), response]


def test_a_response_becomes_a_message_unless_it_is_empty():
    call = ToolCallPart("t1", "search", {"q": "tea"})
    response = ModelResponse(parts=(TextPart("one "), call, TextPart("two")), stop="tool", usage=Usage(), model="m")
    assert response.text == "one two"
    assert response.tool_calls == (call,)
    assert response.message == Message("assistant", response.parts)
    assert ModelResponse(parts=(), stop="end", usage=Usage(), model="m").message is None


def test_a_request_carries_the_rendered_body():
    body = {"model": "m", "messages": []}
    request = ModelRequest(messages=(), rendered=Rendered("anthropic", body))
    assert request.rendered is not None
    assert request.rendered.body is body
    assert request.settings.max_output is None


def test_a_rewrite_knows_what_it_covers():
    shown = [Shown(f"m{n}", Message.user("a b")) for n in range(3)]
    rewrite = asyncio.run(compactor.compact(shown, target=2, counter=counter))
    assert rewrite.covered == {"m0", "m1"}
    with pytest.raises(CannotCompact, match="alone"):
        asyncio.run(compactor.compact(shown, target=1, counter=counter))


def test_queries_and_claims_are_checked():
    with pytest.raises(UsageError, match="limit=0"):
        Query(limit=0)
    with pytest.raises(UsageError, match="known_at of a query"):
        Query(known_at=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(UsageError, match="no source"):
        Claim(subject="alice", predicate="likes", object="tea", sources=())
    with pytest.raises(UsageError, match="object of a claim"):
        Claim(subject="alice", predicate="likes", object=" ", sources=("e1",))
    with pytest.raises(UsageError, match="text of document d1"):
        Document(id="d1", text="")


def test_filters_reach_vectors_and_passages():
    passage = Passage(
        id="p1", document_id="d1", text="tea", start=0, end=3, provenance=Provenance("web"), attributes={"lang": "en"}
    )
    for thing in (VectorItem("p1", [0.0, 1.0], {"lang": "en"}), passage):
        assert Eq("meta.lang", "en").matches(thing)
        assert Eq("id", "p1").matches(thing)
        assert not Eq("meta.lang", "de").matches(thing)
    assert Eq("document_id", "d1").matches(passage)
    assert not Document(id="d1", text="tea").provenance.trusted
