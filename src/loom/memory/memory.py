"""Memory: remember, recall, forget, promote."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from anyio import create_task_group, sleep

from loom.core.clock import Clock, SystemClock
from loom.core.codec import FORMAT, record_from_dict, record_to_dict
from loom.core.filter import And, Eq, Filter
from loom.core.ids import RecordIds
from loom.core.record import Episode, Fact, Layer, Origin, Provenance, Receipt, Record, Scalar, WorkingBlock
from loom.core.scope import Scope
from loom.errors import NotFound, ProviderError, UsageError
from loom.memory.config import MemoryConfig
from loom.memory.entities import predicate_key
from loom.memory.facts import assert_claim
from loom.memory.ingest import Content, Turn, clean, keyed_id, turns_of
from loom.memory.metabolism import Metabolism, Store
from loom.memory.neighbours import Neighbours
from loom.memory.recall import Recall
from loom.memory.values import Metabolized, Recalled, Remembered, Skip
from loom.protocols.embedder import Embedder
from loom.protocols.extractor import Claim, Extractor
from loom.protocols.memory_store import KeepsKeys, KeepsVectors

if TYPE_CHECKING:
    from types import TracebackType

_PAGE = 500


class Memory:
    """What an agent should know next time, for many users, on one store.

    Every call names its user; there is no call that reaches everybody. What `remember` returned is durable, and
    can be recalled at once.
    """

    def __init__(
        self,
        store: Store,
        *,
        embedder: Embedder | None = None,
        extractor: Extractor | None = None,
        config: MemoryConfig | None = None,
        namespace: str = "default",
        clock: Clock | None = None,
        ids: RecordIds | None = None,
    ) -> None:
        self.store = store
        self.config = config or MemoryConfig()
        self.namespace = namespace
        self._clock = clock or SystemClock()
        self._ids = ids or RecordIds(self._clock)
        self._embedder = embedder
        self._extractor = extractor
        self._neighbours = Neighbours(store)
        self._recall = Recall(store, embedder, clock=self._clock)
        self._metabolism = Metabolism(store, self.config, clock=self._clock, ids=self._ids, learn=self._learn)

    @classmethod
    def open(cls, where: str | Mapping[str, Any] | Memory = "inmemory", **options: Any) -> Memory:
        """A memory on a store named by a URL (`inmemory`, `sqlite:./bot.db`), a mapping, or a memory itself."""
        return import_module("loom.engine").open_memory(where, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Finish writing and release the store."""
        await self.store.aclose()

    # -- remember -----------------------------------------------------------------------------------------

    async def remember(
        self,
        content: Content | Sequence[Content],
        *,
        user_id: str,
        session_id: str | None = None,
        speaker: str | None = None,
        at: datetime | None = None,
        importance: float = 0.0,
        origin: Origin = "user",
        trusted: bool = False,
        attributes: Mapping[str, Scalar] | None = None,
        key: str | None = None,
    ) -> Remembered:
        """Keep one thing, several, or a whole conversation.

        Args:
            content: text, a message, a turn, a mapping with `text`/`content` and `role`/`speaker`, or many of them.
            user_id: whose memory it is.
            session_id: the conversation it belongs to.
            speaker: who said it, where the content does not say.
            at: when it happened; now, if not given.
            importance: from 0 to 1.
            origin: where it comes from, where the content does not say.
            trusted: whether it may be taken as an instruction; only for text of your own.
            attributes: values to filter by.
            key: under the same key the same content is kept once, however often it is sent.
        """
        scope = self._scope(user_id, session_id)
        now = self._clock.now()
        kept: list[Episode] = []
        skipped: list[Skip] = []
        for number, turn in enumerate(turns_of(content)):
            text, skip = clean(turn.text)
            if skip:
                skipped.append(skip)
                continue
            kept.append(
                Episode(
                    id=keyed_id(scope, key, number) if key else self._ids.next_id(),
                    text=text,
                    at=turn.at or at or now,
                    recorded_at=now,
                    provenance=Provenance(turn.origin or origin, trusted=trusted),
                    session_id=session_id,
                    speaker=turn.speaker or speaker,
                    importance=importance,
                    attributes={**(attributes or {}), **turn.attributes},
                )
            )
        return await self._write(scope, kept, skipped, keyed=key is not None)

    async def _write(self, scope: Scope, kept: list[Episode], skipped: list[Skip], *, keyed: bool) -> Remembered:
        known = [await self.store.get(scope.for_user(), e.id) for e in kept] if keyed else [None] * len(kept)
        new = [e for e, old in zip(kept, known, strict=True) if old is None]
        repeated = [e for e, old in zip(kept, known, strict=True) if old is not None]
        skipped += [Skip(e.text[:80], "remembered before under this key") for e in repeated]
        notes: tuple[str, ...] = ()
        if new:
            new = await self._neighbours.placed(scope, new)
            keys = await self._neighbours.keys(scope, new) if isinstance(self.store, KeepsKeys) else None
            digest = self._metabolism.job(scope, "digest", key=f"digest:{new[0].id}", episodes=[e.id for e in new])
            await self.store.write(scope.for_user(), put=new, keys=keys, jobs=[digest])
            self._neighbours.said(scope, new)
            notes = await self._embed(scope, new)
        written = {e.id: e for e in new}
        result: list[Record] = [old or written[e.id] for e, old in zip(kept, known, strict=True)]
        return Remembered(kept=tuple(result), skipped=tuple(skipped), notes=notes)

    async def _embed(self, scope: Scope, episodes: Sequence[Episode]) -> tuple[str, ...]:
        """Give new records their vectors; without an embedder that works they are found by their words."""
        if self._embedder is None or not isinstance(self.store, KeepsVectors):
            return ()
        try:
            vectors = await self._embedder.embed([e.text for e in episodes], purpose="document")
        except ProviderError as error:
            return (f"not embedded, found by words only until `reembed`: {error}",)
        await self.store.bind(self._embedder.identity, self._embedder.dimension)
        await self.store.put_vectors(scope, {e.id: v for e, v in zip(episodes, vectors, strict=True)})
        return ()

    # -- recall, forget, promote --------------------------------------------------------------------------

    async def recall(
        self,
        query: str,
        *,
        user_id: str,
        session_id: str | None = None,
        limit: int = 8,
        budget: int | None = None,
        layers: Sequence[Layer] | None = None,
        where: Filter | None = None,
        at: datetime | None = None,
        known_at: datetime | None = None,
        history: bool = False,
    ) -> Recalled:
        """What is known that answers a question, best first, each hit with the signals that spoke for it.

        Args:
            query: the question, in plain words.
            user_id: whose memory is searched.
            session_id: search one conversation only.
            limit: hits at the most.
            budget: tokens at the most, all hits together.
            layers: only records of these layers; facts belong to L4.
            where: a further filter.
            at: facts that were true then; now, if not given.
            known_at: facts as believed then; now, if not given.
            history: facts that are no longer believed, too.
        """
        if not query.strip():
            raise UsageError("recall was given an empty question; ask in words, or use export() to see everything")
        scope = self._scope(user_id, session_id)
        found = await self._recall.find(
            scope,
            query,
            limit=limit,
            budget=budget,
            layers=layers,
            where=where,
            at=at,
            known_at=known_at,
            history=history,
        )
        await self._recall.touch(scope, found)
        return found

    async def forget(self, *ids: str, user_id: str, session_id: str | None = None) -> Receipt:
        """Remove records by id with what was made from them, or everything of a user or a session."""
        scope = self._scope(user_id, session_id)
        self._neighbours.forget(scope)
        if not ids:
            return await self.store.forget(scope)
        gone = list(dict.fromkeys(ids))
        async for record in self._all(scope.for_user()):
            if not isinstance(record, WorkingBlock) and set(record.sources) & set(gone):
                gone.append(record.id)
        removed = await self.store.delete(scope.for_user(), *gone)
        return Receipt(removed={"records": removed})

    async def promote(self, id: str, *, user_id: str, to: Layer | None = None) -> Episode:
        """Move an episode up a layer, or into the layer named."""
        scope = self._scope(user_id)
        record = await self.store.get(scope, id)
        if not isinstance(record, Episode):
            raise NotFound(f"user {user_id!r} has no episode {id!r}; recall() gives the ids")
        layer = to or Layer(min(record.layer + 1, Layer.L4))
        moved = replace(record, layer=layer, archived_at=None)
        await self.store.put(scope, moved)
        return moved

    async def metabolize(self, *, user_id: str | None = None) -> Metabolized:
        """Do the jobs that wait: of one user, after a look at all of his layers, or of everybody."""
        if user_id is None:
            return await self._metabolism.run()
        scope = self._scope(user_id)
        await self._metabolism.tick(scope)
        return await self._metabolism.run(scope)

    @asynccontextmanager
    async def worker(self, *, every: float = 1.0) -> AsyncGenerator[None]:
        """Do the jobs that wait in the background, for as long as the block lasts; `every` is in seconds."""
        async with create_task_group() as tasks:
            tasks.start_soon(self._work, every)
            yield
            tasks.cancel_scope.cancel()

    async def _work(self, every: float) -> None:
        while True:
            await self._metabolism.run()
            await sleep(every)

    # -- facts and blocks ---------------------------------------------------------------------------------

    async def facts(
        self,
        *,
        user_id: str,
        subject: str | None = None,
        predicate: str | None = None,
        at: datetime | None = None,
        known_at: datetime | None = None,
        history: bool = False,
    ) -> tuple[Fact, ...]:
        """The facts of a user: those that hold now, those that held then, or all that were ever believed."""
        now = self._clock.now()
        wanted = predicate_key(predicate) if predicate else None
        named = [Eq(f, v) for f, v in (("subject", subject), ("predicate", wanted)) if v is not None]
        where = And(Eq("kind", "fact"), *named)
        found = [r async for r in self._all(self._scope(user_id), where) if isinstance(r, Fact)]
        return tuple(f for f in found if history or f.is_current(at or now, known_at or now))

    async def state(
        self,
        subject: str,
        predicate: str,
        object: str,
        *,
        user_id: str,
        valid_from: datetime | None = None,
        valid_until: datetime | None = None,
        trusted: bool = False,
    ) -> tuple[Fact, ...]:
        """Assert a fact; returns what was written: the fact, and those it retired."""
        scope = self._scope(user_id)
        claim = Claim(
            subject=subject,
            predicate=predicate,
            object=object,
            valid_from=valid_from,
            valid_until=valid_until,
            sources=("stated",),
        )
        written = await self._assert(scope, [claim], Provenance("user", trusted=trusted))
        await self.store.put(scope, *written)
        return written

    async def set_block(self, name: str, text: str, *, user_id: str, trusted: bool = False) -> WorkingBlock:
        """Pin a named text for a user; it is shown in every turn."""
        scope = self._scope(user_id)
        old = await self.store.get(scope, f"block:{name}")
        version = old.version + 1 if isinstance(old, WorkingBlock) else 1
        block = WorkingBlock(
            name=name,
            text=text,
            updated_at=self._clock.now(),
            provenance=Provenance("user", trusted=trusted),
            version=version,
        )
        await self.store.put(scope, block)
        return block

    async def blocks(self, *, user_id: str) -> tuple[WorkingBlock, ...]:
        """The pinned texts of a user."""
        found = self._all(self._scope(user_id), Eq("kind", "block"))
        return tuple([r async for r in found if isinstance(r, WorkingBlock)])

    # -- everything ---------------------------------------------------------------------------------------

    async def stats(self, *, user_id: str) -> dict[str, int]:
        """How much is known of a user, by layer and kind."""
        counts = {"L1": 0, "L2": 0, "L3": 0, "L4": 0, "archived": 0, "facts": 0, "blocks": 0}
        scope = self._scope(user_id)
        async for record in self._all(scope):
            if isinstance(record, Episode):
                counts["archived" if record.archived_at else record.layer.label] += 1
            else:
                counts["facts" if isinstance(record, Fact) else "blocks"] += 1
        return {**counts, "jobs": await self.store.pending(scope)}

    async def export(self, *, user_id: str) -> AsyncIterator[str]:
        """Everything of a user as JSON lines; the first one says the format."""
        yield json.dumps({"loom": "memory", "format": FORMAT})
        async for record in self._all(self._scope(user_id)):
            yield json.dumps(record_to_dict(record), ensure_ascii=False)

    async def import_(self, lines: Iterable[str], *, user_id: str) -> Remembered:
        """Read what export() wrote into a user's memory; what is there already under an id is replaced."""
        scope = self._scope(user_id)
        kept: list[Record] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                data: Any = json.loads(line)
            except ValueError as error:
                raise UsageError(f"line {number} is not JSON ({error}); nothing was imported") from error
            if not isinstance(data, dict):
                raise UsageError(f"line {number} is no JSON object; nothing was imported")
            if "loom" not in data:
                kept.append(record_from_dict(data))  # pyright: ignore[reportUnknownArgumentType]
            elif data.get("format", 0) > FORMAT:  # pyright: ignore[reportUnknownMemberType]
                raise UsageError(f"this export has format {data['format']}; this Loom reads up to {FORMAT}")
        fresh = [r for r in kept if not isinstance(r, WorkingBlock)]
        await self.store.put(scope, *fresh)
        for block in [r for r in kept if isinstance(r, WorkingBlock)]:
            await self.set_block(block.name, block.text, user_id=user_id, trusted=block.provenance.trusted)
        notes = await self._embed(scope, [r for r in fresh if isinstance(r, Episode)])
        return Remembered(kept=tuple(kept), notes=notes)

    # -- inside -------------------------------------------------------------------------------------------

    def _scope(self, user_id: str, session_id: str | None = None) -> Scope:
        return Scope(self.namespace, user_id, session_id)

    async def _all(self, scope: Scope, where: Filter | None = None) -> AsyncIterator[Record]:
        after: str | None = None
        while page := await self.store.list(scope, where=where, after=after, limit=_PAGE):
            for record in page:
                yield record
            after = page[-1].id

    async def _learn(self, scope: Scope, episodes: Sequence[Episode]) -> Sequence[Record]:
        """The facts that episodes state, as records to write."""
        if self._extractor is None or not episodes:
            return ()
        found = await self._extractor.extract(episodes)
        provenance = Provenance.derived([e.provenance for e in episodes])
        return await self._assert(scope, found.claims, provenance)

    async def _assert(self, scope: Scope, claims: Sequence[Claim], provenance: Provenance) -> tuple[Fact, ...]:
        stored = {f.id: f for p in {predicate_key(c.predicate) for c in claims} for f in await self._believed(scope, p)}
        written: dict[str, Fact] = {}
        for claim in claims:
            change = assert_claim(
                list({**stored, **written}.values()), claim, now=self._clock.now(), ids=self._ids, provenance=provenance
            )
            written.update({fact.id: fact for fact in change.put})
        return tuple(written.values())

    async def _believed(self, scope: Scope, predicate: str) -> list[Fact]:
        """Every fact with a predicate, retired ones included."""
        where = And(Eq("kind", "fact"), Eq("predicate", predicate))
        return [r async for r in self._all(scope.for_user(), where) if isinstance(r, Fact)]


__all__ = ["Memory", "Turn"]
