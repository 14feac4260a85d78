"""A knowledge base against a plain dict: random calls, and after each the same documents."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from anyio.from_thread import start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from loom.core.filter import Eq, Filter, In, Not
from loom.core.hit import Hit, Passage, rank_key
from loom.protocols.knowledge_base import Document, KnowledgeBase

NAMES = ("Anna", "Bruno", "Clara", "Dmitri", "Emil")
IDS = st.sampled_from(["a", "A", "a#0", "a#1", "%", "e\u0301", "\u00e9"])
SENTENCES = st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).map("{0[0]} knows {0[1]}.".format)
TEXTS = st.tuples(st.lists(SENTENCES, min_size=1, max_size=4), st.integers(1, 10)).map(
    lambda drawn: " ".join(drawn[0] * drawn[1])
)
"""Up to 40 sentences: some documents have one passage and others many, and all of them together not so many that a base
may leave some out before it ranks them."""
DOCUMENTS = st.builds(
    Document, id=IDS, text=TEXTS, source=st.sampled_from(["", "diary"]),
    attributes=st.dictionaries(st.just("n"), st.sampled_from([1, True, "1"]), max_size=1),
)  # fmt: skip
FILTERS = (
    st.builds(Eq, st.just("document_id"), IDS)
    | st.builds(Eq, st.just("meta.n"), st.sampled_from([1, True, None]))
    | st.builds(Not, st.builds(In, st.just("source"), st.just(("diary",))))
)


class KnowledgeBaseMachine(RuleBasedStateMachine):
    """Subclass it and say how a base is made; its `TestCase` is the test."""

    def make_base(self) -> KnowledgeBase:
        """A new, empty knowledge base."""
        raise NotImplementedError(f"{type(self).__name__} has to say how to make a knowledge base")

    @initialize()
    def open(self) -> None:
        """Start with nothing."""
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal())
        self.base, self.documents = self.make_base(), dict[str, Document]()
        self.changed = False

    def teardown(self) -> None:
        """Close what was opened."""
        if hasattr(self, "_stack"):
            self._stack.close()

    def ask(self, call: Any, *args: Any, **named: Any) -> Any:
        """Make one call of the base and wait for it."""

        async def run() -> Any:
            return await call(*args, **named)

        return self._portal.call(run)

    @rule(documents=st.lists(DOCUMENTS, max_size=3))
    def add(self, documents: list[Document]) -> None:
        """As many are new or changed as differ from what was there."""
        latest = {document.id: document for document in documents}
        new = [document for id, document in latest.items() if repr(self.documents.get(id)) != repr(document)]
        assert self.ask(self.base.add, *documents) == len(new)
        self.documents |= latest
        self.changed = True

    @rule(ids=st.lists(IDS, max_size=3))
    def remove(self, ids: list[str]) -> None:
        """As many go as were there."""
        assert self.ask(self.base.remove, *ids) == len(set(ids) & set(self.documents))
        for id in ids:
            self.documents.pop(id, None)
        self.changed = True

    @rule(name=st.sampled_from(NAMES), where=st.none() | FILTERS)
    def search(self, name: str, where: Filter | None) -> None:
        """Hits are passages of documents that are there; those that hold the name are among them."""
        hits: tuple[Hit, ...] = self.ask(self.base.search, name, limit=1000, where=where)
        self._check(hits)
        assert all(where is None or where.matches(hit.item) for hit in hits)
        found = {hit.item.document_id for hit in hits if isinstance(hit.item, Passage)}
        fitting = {id for id, document in self.documents.items() if where is None or where.matches(_as_hit(document))}
        assert {id for id in fitting if name in self.documents[id].text} <= found <= fitting
        assert self.ask(self.base.search, name, limit=2, where=where) == hits[:2]

    @invariant()
    def holds_what_the_dict_holds(self) -> None:
        """After a change, every document is found by what it says, and no other."""
        if not getattr(self, "changed", False):
            return
        self.changed = False
        hits: tuple[Hit, ...] = self.ask(self.base.search, " ".join(NAMES), limit=1000)
        self._check(hits)
        assert {hit.item.document_id for hit in hits if isinstance(hit.item, Passage)} == set(self.documents)

    def _check(self, hits: tuple[Hit, ...]) -> None:
        assert list(hits) == sorted(hits, key=rank_key)
        assert len({hit.item.id for hit in hits}) == len(hits)
        for hit in hits:
            assert isinstance(hit.item, Passage)
            document = self.documents[hit.item.document_id]
            assert hit.item.text == document.text[hit.item.start : hit.item.end]
            assert (hit.item.source, hit.item.attributes) == (document.source, document.attributes)
            assert hit.why


def _as_hit(document: Document) -> Passage:
    """The document as one passage, for a filter to look at."""
    return Passage(
        id=document.id, document_id=document.id, text=document.text, start=0, end=len(document.text),
        provenance=document.provenance, source=document.source, attributes=document.attributes,
    )  # fmt: skip
