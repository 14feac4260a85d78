"""The parts a memory is made of, shared by all views of one store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import Self

from loom.core.clock import Clock, RecordIds, RisingClock, SystemClock
from loom.core.record import Episode
from loom.core.scope import Scope
from loom.core.threads import Locks
from loom.errors import UsageError
from loom.memory._recall.recall import Recall
from loom.memory._shared import Adopt, EmbedderBinding, UserTimes
from loom.memory._upkeep.background import Upkeep
from loom.memory._upkeep.forget import Forgetting
from loom.memory._upkeep.metabolism import Accesses, Metabolism
from loom.memory._upkeep.summaries import ContextCompressor
from loom.memory._write.apply_claims import Learner
from loom.memory._write.extract_llm import LlmExtractor
from loom.memory._write.extract_rules import RuleExtractor
from loom.memory._write.ingest import ContextKeys
from loom.memory._write.learn_in_background import Facts, Learning, TurnReader
from loom.memory._write.write import EpisodeWriter
from loom.memory.config import MemoryConfig
from loom.protocols.embedder import Embedder
from loom.protocols.extractor import Extractor
from loom.protocols.memory_store import Store
from loom.protocols.reranker import Reranker


class MemoryParts:
    """Builds and owns the parts of a Memory."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        embedder: Embedder | None = None,
        extractor: Extractor | None = None,
        reader: Extractor | None = None,
        facts: Facts = "auto",
        config: MemoryConfig | None = None,
        namespace: str = "default",
        clock: Clock | None = None,
        ids: RecordIds | None = None,
        embedder_note: str = "",
        adopt: Adopt | None = None,
        reranker: Reranker | None = None,
        place: str | None = None,
    ) -> None:
        """Create a memory on an open store; open_memory() does it from a URL.

        Args:
            store: the store that holds all records.
            embedder: makes the vectors; None searches by words alone.
            extractor: finds facts when a turn is digested; has to be fast.
            reader: finds more facts in the background, with a model, if `facts` is `model`.
            facts: `model`, `rules` or None, as in open_memory().
            config: the four layers.
            namespace: separates applications on one store.
            clock: the source of time.
            ids: the source of record ids.
            embedder_note: why this embedder was chosen.
            adopt: returns the embedder that the store was made with, if none was named.
            reranker: reorders the best hits.
            place: the URL of the store, for what is to be saved beside it.
        """
        if store is None or isinstance(store, str | Mapping):  # as other libraries are made; it may hold a password
            given = "a store, and none is given" if store is None else "a store and not its URL"
            raise UsageError(f"Memory() takes {given}; write Memory.open(URL), or open_memory(URL)")
        self.store: Store = store
        self.config = config or MemoryConfig()
        self.namespace = namespace
        self.facts_mode: Facts = facts
        self.place = place
        self._extractor, self._reader, self._reranker = extractor, reader, reranker
        # Writes are ordered by a clock that never goes back; a question is about the time that it is asked at.
        self._wall_clock = clock or SystemClock()
        self._clock = RisingClock(self._wall_clock)
        self._ids = ids or RecordIds(self._clock)
        self._embedder = embedder
        self._binding = EmbedderBinding(store, embedder, note=embedder_note, adopt=adopt)
        self._locks = Locks()  # per user: changes of facts and removals run one at a time
        self._times = UserTimes(store, self._clock)
        self._neighbours = ContextKeys(store)
        self._forgetting = Forgetting(store, self._neighbours, self._clock)
        self._block_locks = Locks()  # so that only writers in other processes can cause a conflict
        self._learnings: list[Learning] = []  # of this memory and of all its views
        self._upkeeps: list[Upkeep] = []  # likewise
        self._owns_store = True
        self._assemble()

    def _assemble(self, *, one_at_a_time: bool = False) -> Self:
        """Create the parts that depend on the namespace, the configuration and on how facts are found."""
        self._scope = partial(Scope, self.namespace)
        store, clock, locks = self.store, self._clock, self._locks
        self._recall = Recall(
            store,
            self._binding,
            clock=self._wall_clock,
            reranker=self._reranker,
            knowledge_base=self.config.knowledge_base,
        )
        self._learner = Learner(store, self._extractor, clock=clock, ids=self._ids)
        self._metabolism = Metabolism(
            store, self.config, clock=clock, ids=self._ids, learner=self._learner, embed=self._embed, locks=locks
        )
        self._upkeep = Upkeep(self._metabolism, self.config)
        self._upkeeps.append(self._upkeep)
        self._accesses = Accesses(store, self.config, clock=clock, on_due=self._upkeep.take)
        self._learning: Learning | None = None
        if self.facts_mode == "model":
            reader = None
            if self._reader is not None:
                model = self._reader.model if isinstance(self._reader, LlmExtractor) else None
                reader = TurnReader(
                    store,
                    self._reader,
                    learner=self._learner,
                    locks=locks,
                    clock=clock,
                    episodes=self._metabolism.episodes,
                    compressor=ContextCompressor(model=model) if model else None,
                )
            self._learning = Learning(reader, self.config, make_job=self._metabolism.job, one_at_a_time=one_at_a_time)
            if isinstance(self._reader, LlmExtractor):
                self._metabolism.on_summary_job = self._learning.schedule
            self._learnings.append(self._learning)
        self._keeper = EpisodeWriter(
            store,
            self._binding,
            neighbours=self._neighbours,
            metabolism=self._metabolism,
            learner=self._learner,
            locks=locks,
            upkeep=self._upkeep,
            learning=self._learning,
            finds_facts=self.facts_mode is not None,
        )
        return self

    def view(
        self,
        *,
        namespace: str | None = None,
        facts: Facts = "auto",
        reader: Extractor | None = None,
        config: MemoryConfig | None = None,
        owns_store: bool = False,
        one_at_a_time: bool = False,
    ) -> Self:
        """The same memory with another namespace, configuration or way to learn; what is not given stays the same.

        It shares the store, the embedder and the locks. Closing it ends its learning and leaves the store open, unless
        it `owns_store`. With `one_at_a_time`, the model does not learn while it answers.
        """
        made = copy(self)
        mode = self.facts_mode if facts == "auto" else facts
        made.__dict__.update(
            namespace=namespace or self.namespace,
            config=config or self.config,
            facts_mode=mode,
            _reader=reader or self._reader,
            _extractor=None if mode is None else self._extractor or (RuleExtractor() if facts != "auto" else None),
            _owns_store=owns_store,
        )
        return made._assemble(one_at_a_time=one_at_a_time)  # noqa: SLF001  (another of the same kind)

    async def aclose(self) -> None:
        """Learn from pending turns, with a few model requests at most; finish writing, and close the store.

        A view leaves the store open: it belongs to the memory that the view was made from.
        """
        own = [self._upkeep, *([self._learning] if self._learning else [])]
        try:
            for part in [*self._upkeeps, *self._learnings] if self._owns_store else own:
                await part.aclose()
        finally:
            self._upkeeps[:] = [upkeep for upkeep in self._upkeeps if upkeep not in own]
            self._learnings[:] = [learning for learning in self._learnings if learning not in own]
            if self._owns_store:
                await self.store.aclose()

    @property
    def embedder_note(self) -> str:
        """The embedder in use, and why it was chosen."""
        return self._binding.note

    async def _embed(self, scope: Scope, episodes: Sequence[Episode]) -> tuple[str, ...]:
        # A method, because the keeper is created after the metabolism that embeds through it.
        return await self._keeper.embed(scope, episodes)
