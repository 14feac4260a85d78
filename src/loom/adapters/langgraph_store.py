"""LangGraph's long-term store on a memory store of Loom: values under namespaces, with search, filters and expiry.

An item is one record whose text is JSON. Its vectors, one for each text that `index` names, are on records of their own
beside it, which no read returns: in every store of Loom a record has one vector, and a search takes an item's best.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

from loom.adapters import _langgraph_items as form
from loom.adapters._shared import Home, Owner
from loom.core.clock import TICK, Clock, RecordIds, SystemClock
from loom.core.filter import In, Range
from loom.core.record import Episode
from loom.core.scope import Scope
from loom.engine.urls import Opening, store_at
from loom.errors import MissingExtra, StaleWrite
from loom.memory.memory import Memory
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import AdminStore, Query, Store

try:
    from langgraph.store import base as lg
    from langgraph.store.base.embed import ensure_embeddings
except ImportError as error:
    raise MissingExtra("loom.adapters.langgraph", "langgraph") from error

_PAGE = 500


class LoomStore(Owner, lg.BaseStore):
    """A LangGraph store in any memory store of Loom, for one user of it.

    Args:
        url: where it is: `sqlite:./graph.db`, `postgres://...`, `redis://...`, `inmemory`; or a store or a Memory that
            is open, which stays open when this one is closed.
        user_id: whose it is. Users never see each other's items, whatever the namespaces.
        namespace: keeps it apart from other data of that user in the same place.
        index: LangGraph's own: `{"dims": 384, "embed": ..., "fields": [...]}`. Without it, a query is not looked at.
        ttl: LangGraph's own: `default_ttl`, `refresh_on_read`, `omit_expired`, and `sweep_interval_minutes`, after
            which the next call removes what expired; sweep_ttl() removes it at once.
        clock: what time it is.
    """

    supports_ttl = True

    def __init__(
        self,
        url: str | Mapping[str, Any] | Store | Memory,
        *,
        user_id: str,
        namespace: str = "langgraph",
        index: lg.IndexConfig | None = None,
        ttl: lg.TTLConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._scope, self._clock = Scope(namespace, user_id), clock or SystemClock()
        self._store: AdminStore = cast("Any", url.store if isinstance(url, Memory) else store_at(url, Opening(clock)))
        self._home = Home(self._store, owns=isinstance(url, str | Mapping))
        self._ids, self._swept_at, self._is_bound = RecordIds(self._clock), self._clock.monotonic(), False
        self._index, self.ttl_config, self._ttl = index, ttl, ttl or lg.TTLConfig()
        self._embeddings = ensure_embeddings(index.get("embed")) if index else None

    def batch(self, ops: Iterable[lg.Op]) -> list[lg.Result]:
        """Do these operations, reads before writes. Where a loop is running, it blocks it."""
        asked, texts, queries = self._asked(ops)
        vectors = self._embeddings.embed_documents(texts) if self._embeddings and texts else ()
        sought = {query: self._embeddings.embed_query(query) for query in queries} if self._embeddings else {}
        return self._home.run(lambda _: self._do(asked, dict(zip(texts, vectors, strict=True)), sought))

    async def abatch(self, ops: Iterable[lg.Op]) -> list[lg.Result]:
        """Do these operations, reads before writes."""
        asked, texts, queries = self._asked(ops)
        vectors = await self._embeddings.aembed_documents(texts) if self._embeddings and texts else ()
        sought = {query: await self._embeddings.aembed_query(query) for query in queries} if self._embeddings else {}
        return await self._home.call(lambda _: self._do(asked, dict(zip(texts, vectors, strict=True)), sought))

    def sweep_ttl(self) -> int:
        """Remove what expired; returns how many items that were."""
        return self._home.run(lambda _: self._sweep())

    async def asweep_ttl(self) -> int:
        """Remove what expired; returns how many items that were."""
        return await self._home.call(lambda _: self._sweep())

    def _asked(self, ops: Iterable[lg.Op]) -> tuple[list[lg.Op], list[str], list[str]]:
        """The operations, the texts to embed for them, and the queries."""
        asked = list(ops)
        for op in asked:
            lg.validate_op_namespace(op)
        texts = [form.texts_of(op, self._index) for op in asked if isinstance(op, lg.PutOp)]
        queries = [op.query for op in asked if isinstance(op, lg.SearchOp) and op.query]
        return asked, list(dict.fromkeys(text for some in texts for text in some)), queries

    async def _do(self, ops: list[lg.Op], vectors: Mapping[str, Vector], sought: Mapping[str, Vector]) -> list[Any]:
        await self._prepare(needs_vectors=bool(vectors or sought))
        epoch = await self._store.epoch(self._scope)
        named = [op for op in ops if isinstance(op, lg.GetOp | lg.PutOp)]
        held = await self._held({form.item_id(op.namespace, op.key) for op in named})
        puts = {form.item_id(op.namespace, op.key): op for op in named if isinstance(op, lg.PutOp)}
        results, read = list[Any](), dict[str, Episode]()
        for op in ops:
            found: list[tuple[Episode, float | None]] = []
            if isinstance(op, lg.GetOp):
                one = held.get(form.item_id(op.namespace, op.key))
                found = [(one, None)] if one and self._is_shown(one) else []
                results.append(form.item_of(lg.Item, found[0][0]) if found else None)
            elif isinstance(op, lg.SearchOp):
                found = await self._search(op, sought.get(op.query or ""))
                results.append([form.item_of(lg.SearchItem, one, score=score) for one, score in found])
            else:
                results.append(await self._namespaces(op) if isinstance(op, lg.ListNamespacesOp) else None)
            if isinstance(op, lg.GetOp | lg.SearchOp) and op.refresh_ttl:
                read |= {one.id: one for one, _ in found if "minutes" in one.attributes}
        now, minutes = self._clock.now(), {id: cast("float", one.attributes["minutes"]) for id, one in read.items()}
        if fresh := [form.expiring(one, minutes[id], now) for id, one in read.items() if id not in puts]:
            with suppress(StaleWrite):  # an item was changed since: what was read must not take its place
                await self._store.write(self._scope, put=fresh, since=epoch)
        if puts:
            await self._put(puts, held, vectors)
        return results

    async def _prepare(self, *, needs_vectors: bool) -> None:
        every = self._ttl.get("sweep_interval_minutes")
        if every is not None and self._clock.monotonic() - self._swept_at >= every * 60:
            await self._sweep()
        if needs_vectors and not self._is_bound and self._index:
            await self._store.bind(f"langgraph:{form.name_of(self._index.get('embed'))}", self._index.get("dims", 0))
            self._is_bound = True

    def _is_shown(self, record: Episode) -> bool:
        return not self._ttl.get("omit_expired") or not form.is_expired(record, self._clock.now())

    async def _put(self, puts: dict[str, lg.PutOp], held: dict[str, Episode], vectors: Mapping[str, Vector]) -> None:
        put, delete, embedded = list[Episode](), list[str](), dict[str, Vector]()
        for id, op in puts.items():
            before, now, made = held.get(id), self._clock.now(), self._ids.next_id()
            parts = {f"{id}.{n}": vectors[text] for n, text in enumerate(form.texts_of(op, self._index))}
            delete += [part for part in form.vector_ids(before) if part not in parts]
            if op.value is None:
                delete.append(id)
            else:
                put += form.records_of(op, parts, created_at=before.recorded_at if before else now, now=now, made=made)
            embedded |= parts
        await self._store.write(self._scope, put=put, delete=delete)
        if embedded:
            await self._store.put_vectors(self._scope, embedded)

    async def _search(self, op: lg.SearchOp, vector: Vector | None) -> list[tuple[Episode, float | None]]:
        end = op.offset + op.limit
        if vector is None:
            fitting = [one async for one in self._items(op.namespace_prefix) if form.fits(one, op.filter)]
            return [(one, None) for one in sorted(fitting, key=lambda one: one.at, reverse=True)[op.offset : end]]
        where, most = form.items_under("vector", op.namespace_prefix), 4 * max(end, 1)
        while True:
            hits = await self._store.search(self._scope, Query(vector=vector, where=where, limit=most))
            parts = [(hit.score, cast("Episode", hit.item)) for hit in hits]
            items = await self._held({part.sources[0] for _, part in parts})
            best: dict[str, tuple[Episode, float | None]] = {}
            for score, part in parts:
                one = items.get(part.sources[0])
                # A vector of another writing belongs to a value that is gone.
                if one and one.attributes["made"] == part.attributes["made"] and self._is_shown(one):
                    best |= {one.id: (one, score)} if one.id not in best and form.fits(one, op.filter) else {}
            if len(best) >= end or len(hits) < most:
                return list(best.values())[op.offset : end]
            most *= 4

    async def _namespaces(self, op: lg.ListNamespacesOp) -> list[tuple[str, ...]]:
        found = {tuple(cast("list[str]", json.loads(one.text)[0])) async for one in self._items(())}
        fitting = {path for path in found if all(form.matches(one, path) for one in op.match_conditions or ())}
        return sorted({path[: op.max_depth] for path in fitting})[op.offset : op.offset + op.limit]

    async def _held(self, ids: Collection[str]) -> dict[str, Episode]:
        found = await self._store.list(self._scope, where=In("id", tuple(ids)), limit=len(ids)) if ids else ()
        return {one.id: one for one in found if isinstance(one, Episode)}

    async def _items(self, prefix: tuple[str, ...]) -> AsyncGenerator[Episode]:
        after: str | None = None
        while True:
            page = await self._store.list(self._scope, where=form.items_under("item", prefix), after=after, limit=_PAGE)
            for one in page:
                if isinstance(one, Episode) and self._is_shown(one):
                    yield one
            if len(page) < _PAGE:
                return
            after = page[-1].id

    async def _sweep(self) -> int:
        self._swept_at, count = self._clock.monotonic(), 0
        where = Range("meta.expires", high=self._clock.now() + TICK)
        while page := await self._store.list(self._scope, where=where, limit=_PAGE):
            ids = [id for one in page if isinstance(one, Episode) for id in (one.id, *form.vector_ids(one))]
            await self._store.delete(self._scope, *ids)
            count += len(page)
        return count
