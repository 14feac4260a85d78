"""Memory: remember, recall, forget, promote."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from anyio import create_task_group

from loom.core.clock import Clock, SystemClock
from loom.core.filter import Eq, Filter
from loom.core.hit import Hit
from loom.core.ids import RecordIds
from loom.core.record import Episode, Fact, Layer, Origin, Provenance, Receipt, Record, Scalar, WorkingBlock
from loom.core.scope import Scope
from loom.memory.config import MemoryConfig
from loom.memory.entities import USER, normalise, predicate_key
from loom.memory.events import EventKind, Timeline, read_timeline
from loom.memory.explain import Explained, explain
from loom.memory.forgetting import forget_records, forget_session
from loom.memory.halves import Halves
from loom.memory.ingest import Content, Turn, checked_instruction, clean, keyed_id, turns_of
from loom.memory.keep import Keeper, Progress
from loom.memory.learn import Learner
from loom.memory.listing import FILE, counts, every, every_fact
from loom.memory.locks import Locks
from loom.memory.metabolism import Metabolism, Store
from loom.memory.neighbours import Neighbours
from loom.memory.portable import import_lines, lines_of, put_records
from loom.memory.profile import Profile, grouped
from loom.memory.recall import Recall
from loom.memory.reembed import Reembedded, reembed
from loom.memory.standing import Instructed, Standing, within
from loom.memory.values import Metabolized, Recalled, Remembered, Skip
from loom.protocols.embedder import Embedder
from loom.protocols.extractor import Claim, Extractor
from loom.protocols.reranker import Reranker

if TYPE_CHECKING:
    from types import TracebackType


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
        embedder_note: str = "",
        reranker: Reranker | None = None,
    ) -> None:
        self.store = store
        self.embedder_note = embedder_note or (f"embedding with {embedder.identity}" if embedder else "no embedder")
        self.config = config or MemoryConfig()
        self.namespace = namespace
        self._clock = clock or SystemClock()
        self._ids = ids or RecordIds(self._clock)
        self._embedder = embedder
        self._locks = Locks()  # of users: one at a time decides what is believed of him, or removes it
        self._neighbours = Neighbours(store)
        self._recall = Recall(
            store, embedder, clock=self._clock, reranker=reranker, knowledge_base=self.config.knowledge_base
        )
        self._learner = Learner(store, extractor, clock=self._clock, ids=self._ids)
        self._metabolism = Metabolism(
            store,
            self.config,
            clock=self._clock,
            ids=self._ids,
            learner=self._learner,
            embed=self._embed,
            locks=self._locks,
        )
        self._keeper = Keeper(store, embedder, neighbours=self._neighbours, metabolism=self._metabolism)

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
        return await self._keeper.keep(scope, kept, skipped=skipped, keyed=key is not None)

    async def instruct(
        self, text: str, *, user_id: str, session_id: str | None = None, trusted: bool = False
    ) -> Instructed:
        """Give a preference or an instruction that stands: it is shown in every turn, and not left to search.

        What it contradicts is retired and returned. Only the user's own words belong here; text of a tool or a
        document is for remember().
        """
        scope = self._scope(user_id, session_id)
        now = self._clock.now()
        episode = Episode(
            id=self._ids.next_id(),
            text=checked_instruction(text),
            at=now,
            recorded_at=now,
            provenance=Provenance("user", trusted=trusted),
            session_id=session_id,
        )
        async with self._locks.of(scope.for_user()):
            learnt = await self._learner.instructed(scope, episode)
            done = await self._keeper.keep(scope, [episode], facts=learnt.facts)
            await self._learner.settle(scope, learnt.facts)
        kept = tuple(item for item in learnt.after if episode.id in item.sources)
        return Instructed(kept=kept, retired=learnt.retired, episode=episode, notes=learnt.notes + done.notes)

    # -- recall, forget, promote --------------------------------------------------------------------------

    async def recall(
        self,
        query: str,
        *,
        user_id: str,
        session_id: str | None = None,
        limit: int = 8,
        budget: int | None = None,
        halves: Halves = "user",
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
            halves: which half of an exchange comes first within a budget: what the `user` said, the assistant's
                answers only where room is left; or `both` as they rank.
            layers: only records of these layers; facts belong to L4.
            where: a further filter.
            at: facts that were true then; now, if not given.
            known_at: facts as believed then; now, if not given.
            history: facts that are no longer believed, too.
        """
        scope = self._scope(user_id, session_id)
        found = await self._recall.find(
            scope,
            query,
            limit=limit,
            budget=budget,
            halves=halves,
            layers=layers,
            where=where,
            at=at,
            known_at=known_at,
            history=history,
        )
        await self._recall.touch(scope, found)
        return found

    async def forget(self, *ids: str, user_id: str, session_id: str | None = None) -> Receipt:
        """Remove records by id with what was made from them alone, or everything of a user or a session."""
        scope = self._scope(user_id, session_id)
        user, now = scope.for_user(), self._clock.now()
        self._neighbours.forget(scope)
        async with self._locks.of(user):
            if ids:
                return await forget_records(self.store, user, ids, neighbours=self._neighbours, now=now)
            return await (forget_session(self.store, scope, now=now) if session_id else self.store.forget(scope))

    async def promote(self, id: str, *, user_id: str, to: Layer | None = None) -> Episode:
        """Move an episode up a layer, or into the layer named."""
        return await self._keeper.promote(self._scope(user_id), id, to)

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
            tasks.start_soon(self._metabolism.work, every)
            yield
            tasks.cancel_scope.cancel()

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
        found = await every_fact(self.store, self._scope(user_id), *([Eq("predicate", wanted)] if wanted else []))
        about = [f for f in found if subject is None or normalise(f.subject) == normalise(subject)]
        return tuple(f for f in about if history or f.is_current(at or now, known_at or now))

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
        async with self._locks.of(scope):
            learnt = await self._learner.claimed(scope, [(claim, Provenance("user", trusted=trusted))])
            await self.store.put(scope, *learnt.facts)
            await self._learner.settle(scope, learnt.facts)
        return learnt.facts

    async def set_block(self, name: str, text: str, *, user_id: str, trusted: bool = False) -> WorkingBlock:
        """Pin a named text for a user; it is shown in every turn."""
        scope = self._scope(user_id)
        old = await self.store.get(scope, f"block:{name}")
        version = old.version + 1 if isinstance(old, WorkingBlock) else 1
        source, now = Provenance("user", trusted=trusted), self._clock.now()
        block = WorkingBlock(name=name, text=text, updated_at=now, provenance=source, version=version)
        await self.store.put(scope, block)
        return block

    async def blocks(self, *, user_id: str) -> tuple[WorkingBlock, ...]:
        """The pinned texts of a user."""
        found = every(self.store, self._scope(user_id), Eq("kind", "block"))
        return tuple([r async for r in found if isinstance(r, WorkingBlock) and not r.name.startswith(FILE)])

    async def standing(self, *, user_id: str) -> Standing:
        """The preferences and instructions that stand, the newest first, within `MemoryConfig.standing_tokens`."""
        facts = await every_fact(self.store, self._scope(user_id), Eq("subject", USER))
        return within(facts, self.config.standing_tokens, now=self._clock.now())

    async def profile(self, *, user_id: str) -> Profile:
        """What is to be shown of a user in every turn; `str()` of it is fenced text for a prompt."""
        return Profile(
            standing=await self.standing(user_id=user_id),
            facts=grouped(await self.facts(user_id=user_id)),
            blocks=await self.blocks(user_id=user_id),
        )

    # -- everything ---------------------------------------------------------------------------------------

    async def timeline(
        self,
        *,
        user_id: str,
        session_id: str | None = None,
        about: str | None = None,
        where: Filter | None = None,
        kind: EventKind | None = "episode",
    ) -> Timeline:
        """What happened, in order, for exact answers: `first`, `last`, `count`, `between(start, end)`.

        Args:
            user_id: whose memory it is.
            session_id: one conversation only.
            about: records that hold all of these words, in any form (boat, boats), stop words left out.
            where: a further filter.
            kind: `episode` for what was said, by its time; `fact` for facts that are believed, by when they became
                true; None for both.
        """
        return await read_timeline(self.store, self._scope(user_id, session_id), about=about, where=where, kind=kind)

    async def explain(self, what: str | Hit, *, user_id: str) -> Explained:
        """Where a record comes from, down to the turns as they were said, what came of it, and why it was found."""
        id, why = (what.item.id, what.why) if isinstance(what, Hit) else (what, None)
        return await explain(self.store, self._scope(user_id), id, why=why)

    async def reembed(self, *, progress: Progress | None = None) -> Reembedded:
        """Exchange the vectors of everybody in the store for those of this memory's embedder; can be called again.

        `progress` is told how many records are done, and of how many.
        """
        return await reembed(self.store, self._embedder, progress=progress)

    async def stats(self, *, user_id: str) -> dict[str, int]:
        """How much is known of a user, by layer and kind."""
        scope = self._scope(user_id)
        return {**await counts(self.store, scope), "jobs": await self.store.pending(scope)}

    async def export(self, *, user_id: str) -> AsyncIterator[str]:
        """Everything of a user as JSON lines; the first one says the format."""
        async for line in lines_of(every(self.store, self._scope(user_id))):
            yield line

    async def import_(
        self, lines: Iterable[str], *, user_id: str, progress: Progress | None = None, start: int = 0
    ) -> Remembered:
        """Read what export() wrote, batch by batch; what is there under an id is replaced, and named in `skipped` too.

        A line that is not a record ends it, and the error says which one and what is imported. `start` is for those
        who read a file in pieces: how many of its lines were imported before.
        """
        scope = self._scope(user_id)

        async def write(records: Sequence[Record], progress: Progress | None) -> Remembered:
            async with self._locks.of(scope):
                episodes, repeated = await put_records(self.store, scope, records, neighbours=self._neighbours)
            notes = await self._keeper.embed(scope, episodes, progress=progress)
            return Remembered(kept=tuple(records), skipped=repeated, notes=notes)

        return await import_lines(lines, write, start=start, progress=progress)

    async def _embed(self, scope: Scope, episodes: Sequence[Episode]) -> tuple[str, ...]:
        """What was made from others has a vector from L4 on, which is searched by them."""
        return await self._keeper.embed(scope, episodes)

    def _scope(self, user_id: str, session_id: str | None = None) -> Scope:
        return Scope(self.namespace, user_id, session_id)


__all__ = ["Memory", "Turn"]
