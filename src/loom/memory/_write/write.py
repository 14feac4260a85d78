"""Writing episodes durably, with their keys and vectors; re-embedding a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TypeAlias

from loom.core.filter import And, Eq, Or
from loom.core.record import Claim, Episode, Fact, Layer, Record
from loom.core.scope import Scope
from loom.core.threads import Locks
from loom.errors import EmbedderMismatch, LoomError, NotFound, StaleWrite, UsageError
from loom.memory._shared import TRIES, EmbedderBinding, get_all, is_instant, notes_of, retry_stale
from loom.memory._upkeep.background import Upkeep
from loom.memory._upkeep.metabolism import (
    REVIVE,
    AlreadyStored,
    Effects,
    Metabolism,
    revive_key,
    successor,
    with_importance,
)
from loom.memory._write.apply_claims import Learner, LearnResult
from loom.memory._write.ingest import ContextKeys, Keys, with_positions
from loom.memory._write.learn_in_background import Learning
from loom.memory.results import OTHER_TEXT, REPEATED, Remembered, Skip, reason_of
from loom.protocols.embedder import Embedder, Vector
from loom.protocols.memory_store import Job, KeepsVectors, MemoryStore, Reembeds, Store, WritesVectors

_Place: TypeAlias = Callable[[Sequence[Episode]], Awaitable[Effects]]
"""Returns everything to write with new episodes, themselves included, from a read after the epoch."""
ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Called with how many are done, and the total."""

BATCH = 500
"""Texts per call of the embedder."""


class EpisodeWriter:
    """Writes episodes for a memory. Text is stored even if embedding it fails."""

    def __init__(
        self,
        store: Store,
        binding: EmbedderBinding,
        *,
        neighbours: ContextKeys,
        metabolism: Metabolism,
        learner: Learner,
        locks: Locks,
        upkeep: Upkeep,
        learning: Learning | None = None,
        finds_facts: bool = True,
    ) -> None:
        self._store, self._binding, self._neighbours = store, binding, neighbours
        self._metabolism, self._learner, self._locks, self._upkeep = metabolism, learner, locks, upkeep
        self._learning, self._finds_facts = learning, finds_facts
        self._with_vectors = store if isinstance(store, WritesVectors) else None
        self._reported = set[str]()  # notes of the store that a caller has seen

    async def write(
        self,
        scope: Scope,
        episodes: Sequence[Episode],
        *,
        facts: Sequence[Fact] = (),
        skipped: Sequence[Skip] = (),
        keyed: bool = False,
        since: str | None = None,
        learn: bool = False,
    ) -> Remembered:
        """Write episodes, facts and their jobs; with `keyed`, episodes whose id exists are left as they are.

        `since` is the epoch read before anything that the facts were derived from; StaleWrite if it changed. With
        `learn`, facts are extracted from the episodes now, not by a job.
        """
        known = await get_all(self._store, scope.for_user(), [e.id for e in episodes]) if keyed and not learn else {}
        write = partial(self._write_new, scope, episodes, facts=facts, skipped=skipped, since=since, learn=learn)
        try:
            return await write(known, keyed=keyed)
        except AlreadyStored as found:  # learning reads the layers, and looks for the ids with that
            return await write(found.records, keyed=keyed)

    async def _write_new(
        self,
        scope: Scope,
        episodes: Sequence[Episode],
        stored: Mapping[str, Record],
        *,
        facts: Sequence[Fact],
        skipped: Sequence[Skip],
        keyed: bool,
        since: str | None,
        learn: bool,
    ) -> Remembered:
        """Write those of the episodes that are not `stored`."""
        pairs = [(e, stored.get(e.id)) for e in episodes]
        new = [e for e, old in pairs if old is None]
        done = Remembered(kept=())
        if new:
            vectors = await self._vectors(new)
            if learn:
                done = await self._learn(scope, new, since, vectors, keyed=keyed)
            else:
                done = await self._write(scope, new, facts, since, vectors)
            new = [record for record in done.kept if isinstance(record, Episode)]
            if self._learning and not facts:
                self._learning.wake(scope, new)
            # A store may know its notes only after its first use. Each is reported once.
            from_store = [note for note in notes_of(self._store) if note not in self._reported]
            self._reported.update(from_store)
            rest = [e for e in new if e.id not in vectors]
            done = replace(done, notes=(*done.notes, *from_store, *await self.embed(scope, rest)))
        written = {e.id: e for e in new}
        kept = [old or written[e.id] for e, old in pairs]
        repeated = [
            Skip(e.text[:80], REPEATED if old.text == e.text else OTHER_TEXT) for e, old in pairs if old is not None
        ]
        return replace(done, kept=tuple(kept), skipped=(*skipped, *repeated))

    async def _write(
        self,
        scope: Scope,
        new: Sequence[Episode],
        facts: Sequence[Fact],
        since: str | None,
        vectors: dict[str, Vector],
    ) -> Remembered:
        """Write episodes and facts; jobs find their place."""
        jobs = self.jobs(scope, new, facts)

        async def place(turns: Sequence[Episode]) -> Effects:
            return Effects(put=[*turns, *facts], jobs=jobs)

        return Remembered(kept=tuple(await self._write_all(scope, new, place, vectors, since)))

    async def _learn(
        self, scope: Scope, new: Sequence[Episode], since: str | None, vectors: dict[str, Vector], *, keyed: bool
    ) -> Remembered:
        """Write episodes with the facts in them and with their place in L1, in one transaction.

        If the facts cannot be extracted, a job tries again. With `keyed`, AlreadyStored is raised if one is stored.
        """
        claims: Sequence[Claim] = ()
        jobs, notes = self.jobs(scope, new, is_read=True), list[str]()
        try:
            claims = await self._learner.read(new) if self._finds_facts else ()
        except Exception as error:  # noqa: BLE001 - extractors are third-party code; the turn must be kept
            jobs = self.jobs(scope, new)
            notes.append(f"nothing was learned from this yet, a job tries again: {reason_of(error)}")
        learned, effects = LearnResult(), Effects()
        user = scope.for_user()
        due = self._upkeep.held(user)

        async def place(turns: Sequence[Episode]) -> Effects:
            nonlocal learned, effects
            learned = await self._learner.learn(scope, turns, claims) if claims else LearnResult()
            rated = [
                replace(e, importance=value) if (value := learned.importance.get(e.id, 0.0)) > e.importance else e
                for e in turns
            ]
            effects = await self._metabolism.join(user, rated, due, keyed=keyed)
            put = [*rated, *learned.facts, *learned.unconfirmed, *effects.put]
            return Effects(put=put, jobs=[*jobs, *effects.jobs])

        async with self._locks.of(user):
            write = partial(self._write_all, scope, new, place, vectors)
            kept = await (write(since) if since is not None else retry_stale(self._store, scope, write))
            try:
                await self._learner.settle(scope, learned.facts)
            except LoomError as error:  # the next claim about the same subject repairs it
                notes.append(f"facts were not compared with what others wrote meanwhile: {error}")
        self._upkeep.release(user, due)
        if effects.unembedded:
            notes += await self.embed(user, effects.unembedded)
        return Remembered(
            kept=tuple(kept),
            facts=learned.facts,
            promoted=effects.counts["promoted"],
            archived=effects.counts["archived"],
            notes=(*learned.notes, *learned.instruction_notes, *notes),
        )

    def jobs(
        self, scope: Scope, new: Sequence[Episode], facts: Sequence[Fact] = (), *, is_read: bool = False
    ) -> list[Job]:
        """The jobs for new episodes: digest them, learn from them, and write the episode of their session.

        There is nothing to digest if that was done as they were written (`is_read`).
        """
        ids = [e.id for e in new]
        # The worker extracts facts from the episodes that the job names, with its own extractor.
        read = ids if self._finds_facts else ()
        jobs = [] if is_read else [self._metabolism.job(scope, "digest", key=f"digest:{ids[0]}", episodes=read)]
        # An episode written with facts is an instruction; a model would find nothing more in it.
        jobs += self._learning.jobs(scope, new) if self._learning and not facts else []
        return jobs + ([self._metabolism.episodes.job(scope)] if scope.session_id is not None else [])

    async def _write_all(
        self,
        scope: Scope,
        new: Sequence[Episode],
        place: _Place,
        vectors: dict[str, Vector],
        since: str | None,
    ) -> list[Episode]:
        """Write new episodes as `place` says, in one transaction; returns them as they were written.

        `vectors` are emptied if the store refuses them: then the episodes are written without.
        """

        async def write(turns: Sequence[Episode], keys: Keys, epoch: str | None) -> list[Episode]:
            effects = await place(turns)
            put = {record.id: record for record in effects.put}  # an episode that moves up at once is there twice
            user, records = scope.for_user(), [*put.values()]
            if vectors and self._with_vectors is not None:
                try:
                    await self._with_vectors.write_embedded(
                        user, vectors, put=records, keys=keys, jobs=effects.jobs, since=epoch
                    )
                except (EmbedderMismatch, UsageError):  # embed() says what is wrong with them
                    vectors.clear()
            if not vectors:
                await self._store.write(user, put=records, keys=keys, jobs=effects.jobs, since=epoch)
            return [record for turn in turns if isinstance(record := put[turn.id], Episode)]

        if scope.session_id is None:
            return await write(new, {}, since)
        async with self._neighbours.appending(scope):
            # A turn's keys quote the turns before it. If one of those is forgotten meanwhile, the epoch changes and the
            # keys are made again. The last try writes without quotes and without an epoch, so it cannot be stale: a
            # process that keeps forgetting must not block this turn.
            for number in range(TRIES):
                end = await self._neighbours.end(scope, epoch=since)
                if since not in {None, end.epoch}:
                    raise StaleWrite(scope.user_id)
                is_last = number == TRIES - 1 and since is None
                turns = with_positions(end, new)
                keys = self._neighbours.keys(replace(end, turns=()) if is_last else end, turns)
                try:
                    turns = await write(turns, keys, None if is_last else end.epoch)
                except StaleWrite:
                    self._neighbours.drop(scope)
                    if since is not None:
                        raise
                    continue
                self._neighbours.extend(scope, turns)
                return turns
        raise AssertionError("the last try names no epoch, so it cannot be stale")

    async def promote(self, scope: Scope, id: str, to: Layer | None) -> Episode:
        """Move an episode up one layer, or into `to`, out of the archive."""

        async def attempt(epoch: str) -> Episode:
            record = await self._require(scope, id)
            if record.archived_at is not None:  # its statement replaced it; with both, the text would be there twice
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
        """Set the importance of an episode and of its successor; the next jobs move them up if it is high enough."""

        async def attempt(epoch: str) -> Episode:
            record = await self._require(scope, id)
            records = await with_importance(self._store, scope, {id: importance}, may_fall=True)
            job = self._metabolism.job
            jobs = [job(scope, "digest"), job(scope, REVIVE, key=revive_key(id), records=[id])]
            await self._store.write(scope, put=records, jobs=jobs, since=epoch)
            return next((changed for changed in records if changed.id == id), record)

        return await retry_stale(self._store, scope, attempt)

    async def _require(self, scope: Scope, id: str) -> Episode:
        record = await self._store.get(scope, id)
        if not isinstance(record, Episode):
            raise NotFound(f"user {scope.user_id!r} has no episode {id!r}; recall() gives the ids")
        return record

    async def _vectors(self, new: Sequence[Episode]) -> dict[str, Vector]:
        """The vectors that are written with new episodes: of an embedder that takes no time, in a store that can.

        Otherwise none: text is stored first, and an embedder may be slow, or fail.
        """
        if self._with_vectors is None or not is_instant(self._binding.embedder) or len(new) > BATCH:
            return {}
        try:
            embedder = await self._binding.bind()
            vectors = await embedder.embed([e.text for e in new], purpose="document") if is_instant(embedder) else ()
        except Exception:  # noqa: BLE001 - embedders are third-party code; embed() tries again and says what failed
            return {}
        return {e.id: vector for e, vector in zip(new, vectors, strict=False)}

    async def embed(
        self, scope: Scope, episodes: Sequence[Episode], *, progress: ProgressCallback | None = None
    ) -> tuple[str, ...]:
        """Embed new records; if that fails, they are still found by words, and the returned note says so."""
        if not episodes or self._binding.embedder is None or not isinstance(self._store, KeepsVectors):
            return ()
        for start in range(0, len(episodes), BATCH):
            batch = episodes[start : start + BATCH]
            try:
                embedder, texts = self._binding.embedder, [e.text for e in batch]
                vectors = await embedder.embed(texts, purpose="document")
                if (bound := await self._binding.bind()) is not embedder:  # the store was made with another one
                    vectors = await bound.embed(texts, purpose="document")
                await put_vectors(self._store, scope, {e.id: v for e, v in zip(batch, vectors, strict=True)})
            except EmbedderMismatch as error:
                return (f"kept without vectors, found by words: {error}",)
            except Exception as error:  # noqa: BLE001 - embedders are third-party code; the text is stored already
                return (f"kept without vectors, found by words until `loom memory reembed`: {error}",)
            if progress is not None:
                progress(start + len(batch), len(episodes))
        return ()


async def put_vectors(store: KeepsVectors, scope: Scope, vectors: Mapping[str, Vector]) -> int:
    """Write vectors of records; returns how many. Records that were forgotten meanwhile are skipped."""
    try:
        await store.put_vectors(scope, vectors)
    except NotFound:
        if len(vectors) == 1:
            return 0
        return sum([await put_vectors(store, scope, {id: vector}) for id, vector in vectors.items()])
    return len(vectors)


# Re-embedding: replaces the vectors of a whole store by those of another embedder.

_WITH_VECTORS = And(Eq("kind", "episode"), Or(Eq("sources", None), Eq("layer", int(Layer.L4))))
"""Records with vectors: original turns, and derived records in L4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reembedded:
    """The result: the embedder, how many records were embedded, and whether other vectors were dropped before."""

    embedder: str
    records: int
    exchanged: bool


async def reembed(
    store: MemoryStore, embedder: Embedder | None, *, progress: ProgressCallback | None = None
) -> Reembedded:
    """Embed every record of every user in the store with this embedder.

    Dropping the old vectors is one transaction. If the work is interrupted after it, records without a vector are
    still found by words, and the next call continues with them.
    """
    if embedder is None:
        raise UsageError("this memory has no embedder; open it with embedder='static' or another one")
    if not isinstance(store, KeepsVectors) or not isinstance(store, Reembeds):
        raise UsageError(f"{type(store).__name__} cannot replace its vectors; export, and import into a new store")
    await embedder.embed(["a text to try it on"], purpose="document")  # fails before the old vectors are dropped
    exchanged = await store.rebind(embedder.identity, embedder.dimension)
    total = await store.count_unembedded(where=_WITH_VECTORS)
    done, seen = 0, 0
    after: tuple[Scope, str] | None = None
    while page := await store.unembedded(where=_WITH_VECTORS, after=after, limit=BATCH):
        vectors = await embedder.embed([record.text for _, record in page], purpose="document")
        for scope, group in groupby(zip(page, vectors, strict=True), key=lambda pair: pair[0][0]):
            done += await put_vectors(store, scope, {record.id: vector for (_, record), vector in group})
        seen += len(page)
        if progress is not None:
            progress(seen, max(seen, total))
        after = (page[-1][0], page[-1][1].id)
    return Reembedded(embedder=embedder.identity, records=done, exchanged=exchanged)
