"""Keeping: new episodes become durable, then get the keys and vectors that find them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from loom.core.record import Episode, Fact, Layer, Record
from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, NotFound, StaleWrite
from loom.memory.accesses import REVIVE, revive_key, successor
from loom.memory.binding import EmbedderBinding
from loom.memory.guarded import TRIES, retry_stale
from loom.memory.learning import Learning
from loom.memory.marking import with_importance
from loom.memory.metabolism import Metabolism
from loom.memory.neighbours import Neighbours, Store, with_positions
from loom.memory.store_notes import StoreNotes
from loom.memory.values import OTHER_TEXT, REPEATED, Remembered, Skip
from loom.protocols.embedder import Vector
from loom.protocols.jobs import Job
from loom.protocols.memory_store import KeepsVectors

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Is told how many are done, and of how many."""

BATCH = 500
"""Texts that are embedded at once where there are many."""


class Keeper:
    """Writes episodes for a memory. Text is never lost for want of a vector."""

    def __init__(
        self,
        store: Store,
        binding: EmbedderBinding,
        *,
        neighbours: Neighbours,
        metabolism: Metabolism,
        learning: Learning | None = None,
        finds_facts: bool = True,
    ) -> None:
        self._store = store
        self._binding = binding
        self._neighbours = neighbours
        self._metabolism = metabolism
        self._learning = learning
        self._finds_facts = finds_facts
        self._store_notes = StoreNotes(store)

    async def keep(
        self,
        scope: Scope,
        episodes: Sequence[Episode],
        *,
        facts: Sequence[Fact] = (),
        skipped: Sequence[Skip] = (),
        keyed: bool = False,
        since: str | None = None,
    ) -> Remembered:
        """Write episodes, facts and the job that digests them; with `keyed`, those that are there already stay.

        `since` is the epoch before what the facts were made from was read; StaleWrite if it is over.
        """
        user = scope.for_user()
        known = [await self._store.get(user, e.id) for e in episodes] if keyed else [None] * len(episodes)
        new = [e for e, old in zip(episodes, known, strict=True) if old is None]
        again = [(e, old) for e, old in zip(episodes, known, strict=True) if old is not None]
        notes: tuple[str, ...] = ()
        if new:
            new = await self._write(scope, new, facts, since)
            if self._learning and not facts:
                self._learning.wake(scope, new)
            notes = (*self._store_notes.new(), *await self.embed(scope, new))
        written = {e.id: e for e in new}
        kept: list[Record] = [old or written[e.id] for e, old in zip(episodes, known, strict=True)]
        repeated = [Skip(e.text[:80], _why_not(e, old)) for e, old in again]
        return Remembered(kept=tuple(kept), skipped=(*skipped, *repeated), notes=notes)

    def jobs(self, scope: Scope, new: Sequence[Episode], facts: Sequence[Fact] = ()) -> list[Job]:
        """The jobs that read what is new."""
        ids = [e.id for e in new]
        # Whoever does the job finds facts in the episodes that it names, with whatever rules they have.
        read = ids if self._finds_facts else ()
        jobs = [self._metabolism.job(scope, "digest", key=f"digest:{ids[0]}", episodes=read)]
        # What comes with facts is an instruction, and says no more than they do.
        jobs += self._learning.jobs(scope, new) if self._learning and not facts else []
        return jobs + ([self._metabolism.episodes.job(scope)] if scope.session_id is not None else [])

    async def _write(
        self, scope: Scope, new: Sequence[Episode], facts: Sequence[Fact], since: str | None
    ) -> list[Episode]:
        """Write everything in one transaction; returns the episodes with their places."""
        jobs = self.jobs(scope, new, facts)
        if scope.session_id is None:
            await self._store.write(scope.for_user(), put=[*new, *facts], jobs=jobs, since=since)
            return list(new)
        async with self._neighbours.appending(scope):
            # What others forget meanwhile must not come back in the keys of the turns around it; nor may they, however
            # often they forget, keep this turn from being written.
            for number in range(TRIES):
                end = await self._neighbours.end(scope, epoch=since)
                if since not in {None, end.epoch}:
                    raise StaleWrite(scope.user_id)
                turns = with_positions(end, new)
                is_last = number == TRIES - 1 and since is None
                keys = self._neighbours.keys(replace(end, turns=()) if is_last else end, turns)
                try:
                    await self._store.write(
                        scope.for_user(),
                        put=[*turns, *facts],
                        keys=keys,
                        jobs=jobs,
                        since=None if is_last else end.epoch,
                    )
                except StaleWrite:
                    self._neighbours.drop(scope)
                    if since is not None:
                        raise
                    continue
                self._neighbours.extend(scope, turns)
                return turns
        raise AssertionError("the last try stands on nothing, and so it cannot be stale")

    async def promote(self, scope: Scope, id: str, to: Layer | None) -> Episode:
        """Move an episode up a layer, or into the layer named, out of the archive."""

        async def attempt(epoch: str) -> Episode:
            record = await self._store.get(scope, id)
            if not isinstance(record, Episode):
                raise NotFound(f"user {scope.user_id!r} has no episode {id!r}; recall() gives the ids")
            if record.archived_at is not None:  # what was made from it speaks for it; both would be there twice
                record = await successor(self._store, scope, record)
            above = Layer(min(record.layer + 1, Layer.L4)) if to is None else Layer(to)
            moved = replace(record, layer=above, archived_at=None)
            await self._store.write(scope, put=[moved], since=epoch)
            return moved

        moved = await retry_stale(self._store, scope, attempt)
        if moved.layer is Layer.L4 and moved.sources:
            await self.embed(scope, [moved])
        return moved

    async def mark(self, scope: Scope, id: str, importance: float) -> Episode:
        """Set how important an episode is, and what speaks for it; it moves up with the next jobs if it is now."""

        async def attempt(epoch: str) -> Episode:
            record = await self._store.get(scope, id)
            if not isinstance(record, Episode):
                raise NotFound(f"user {scope.user_id!r} has no episode {id!r}; recall() gives the ids")
            records = await with_importance(self._store, scope, {id: importance}, may_fall=True)
            now = [one for one in records if one.id == id] or [record]
            job = self._metabolism.job
            jobs = [job(scope, "digest"), job(scope, REVIVE, key=revive_key(id), records=[id])]
            await self._store.write(scope, put=records, jobs=jobs, since=epoch)
            return now[0]

        return await retry_stale(self._store, scope, attempt)

    async def embed(
        self, scope: Scope, episodes: Sequence[Episode], *, progress: ProgressCallback | None = None
    ) -> tuple[str, ...]:
        """Give new records their vectors; where that fails they are found by their words, and a note says so."""
        if self._binding.embedder is None or not isinstance(self._store, KeepsVectors):
            return ()
        for start in range(0, len(episodes), BATCH):
            batch = episodes[start : start + BATCH]
            try:
                embedder, texts = self._binding.embedder, [e.text for e in batch]
                vectors = await embedder.embed(texts, purpose="document")
                if (bound := await self._binding.bound()) is not embedder:
                    vectors = await bound.embed(texts, purpose="document")
                await put_vectors(self._store, scope, {e.id: v for e, v in zip(batch, vectors, strict=True)})
            except EmbedderMismatch as error:
                return (f"kept without vectors, found by words: {error}",)
            except Exception as error:  # noqa: BLE001 - an embedder may be anybody's, and the text is kept already
                return (f"kept without vectors, found by words until `loom memory reembed`: {error}",)
            if progress is not None:
                progress(start + len(batch), len(episodes))
        return ()


def _why_not(new: Episode, old: Record) -> str:
    """Why something that came under a key is not kept: what is there says the same, or something else."""
    return REPEATED if old.text == new.text else OTHER_TEXT


async def put_vectors(store: KeepsVectors, scope: Scope, vectors: Mapping[str, Vector]) -> int:
    """Give records their vectors; returns how many there were. What somebody forgot meanwhile needs none."""
    try:
        await store.put_vectors(scope, vectors)
    except NotFound:
        if len(vectors) == 1:
            return 0
        return sum([await put_vectors(store, scope, {id: vector}) for id, vector in vectors.items()])
    return len(vectors)
