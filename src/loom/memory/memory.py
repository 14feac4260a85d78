"""Memory: remember, recall, forget, promote."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from anyio import create_task_group

from loom.core.checks import as_utc, check_share
from loom.core.filter import Eq, Where, as_filter
from loom.core.hit import Hit, Passage
from loom.core.record import Episode, Fact, Layer, Origin, Provenance, Receipt, Record, Scalar, WorkingBlock
from loom.core.scope import Scope
from loom.errors import LoomError, NotFound, UsageError
from loom.memory.candidates import claim_of, found_candidate, is_candidate
from loom.memory.checked import check_block, check_fact, checked_turns, cleaned
from loom.memory.editing import MemoryEdits
from loom.memory.entities import USER, normalise, predicate_key
from loom.memory.episodes import waiting_jobs
from loom.memory.events import EventKind, Timeline, read_timeline
from loom.memory.explain import Explained, explain
from loom.memory.forgetting import SESSIONS_LEFT, forget_before, forget_records, forget_session
from loom.memory.guarded import guarded
from loom.memory.halves import Halves
from loom.memory.ingest import Content, Turn, checked_instruction, keyed_id, spoken_by, turns_of
from loom.memory.keep import Progress
from loom.memory.learn import Learnt
from loom.memory.listing import FILE, counts, every, every_fact
from loom.memory.portable import import_lines, lines_of, put_records
from loom.memory.profile import Profile, grouped
from loom.memory.reading import KIND as LEARN
from loom.memory.reembed import Reembedded, reembed
from loom.memory.standing import Instructed, Standing, behind_wish, within
from loom.memory.times import after, latest_of
from loom.memory.values import Metabolized, Recalled, Remembered, Skip
from loom.protocols.extractor import Claim
from loom.protocols.memory_store import SeesSessions

if TYPE_CHECKING:
    from types import TracebackType

    from loom.core.clock import Clock
    from loom.memory.config import MemoryConfig
    from loom.memory.learning import Facts
    from loom.memory.neighbours import Store
    from loom.protocols.embedder import Embedder
    from loom.protocols.extractor import Extractor
    from loom.protocols.reranker import Reranker


class Memory(MemoryEdits):
    """What an agent should know next time, for many users, on one store.

    Every call names its user; there is no call that reaches everybody. What `remember` returned is durable, and
    can be recalled at once.
    """

    @staticmethod
    def open(
        where: str | Mapping[str, Any] | Memory | Store = "inmemory",
        *,
        namespace: str | None = None,
        embedder: str | Embedder | None = None,
        facts: Facts = "auto",
        with_facts: bool = True,
        extractor: Extractor | None = None,
        config: MemoryConfig | None = None,
        reranker: Reranker | None = None,
        clock: Clock | None = None,
        durability: Literal["full", "fast"] = "full",
    ) -> Memory:
        """The same as open_memory(), which says what the arguments are."""
        from loom.engine.open import open_memory  # noqa: PLC0415  (a door: listed in the import contract)

        return open_memory(
            where,
            namespace=namespace,
            embedder=embedder,
            facts=facts,
            with_facts=with_facts,
            extractor=extractor,
            config=config,
            reranker=reranker,
            clock=clock,
            durability=durability,
        )

    def __repr__(self) -> str:
        return f"Memory({type(self.store).__name__}, namespace={self.namespace!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

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
        since: str | None = None,
    ) -> Remembered:
        """Keep one thing, several, or a whole conversation.

        Args:
            content: text, a message, a turn, a mapping with `text`/`content` and `role`/`name`/`speaker`, or many of
                them. A `name` says who speaks: only one that is the `user_id` is the user.
            user_id: whose memory it is.
            session_id: the conversation it belongs to.
            speaker: who said it, where the content does not say.
            at: when it happened; now, if not given.
            importance: from 0 to 1.
            origin: where it comes from, where the content does not say.
            trusted: whether it may be taken as an instruction; only for text of your own.
            attributes: values to filter by.
            key: under the same key the same content is kept once, however often it is sent.
            since: what epoch() said before this was made from what is stored; StaleWrite, and nothing is kept, if
                something of the user was forgotten since then.
        """
        scope = self._scope(user_id, session_id)
        now = await self._times.now(scope)
        kept: list[Episode] = []
        skipped: list[Skip] = []
        given = turns_of(content, user_id=user_id)
        turns = checked_turns(given, speaker=speaker, attributes=attributes, key=key)
        for number, (turn, (text, skip)) in enumerate(zip(turns, await cleaned(turns), strict=True)):
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
                    speaker=spoken_by(turn.speaker or speaker, user_id=user_id),
                    importance=importance,
                    attributes={**(attributes or {}), **turn.attributes},
                )
            )
        return await self._keeper.keep(scope, kept, skipped=skipped, keyed=key is not None, since=since)

    async def instruct(
        self, text: str, *, user_id: str, session_id: str | None = None, trusted: bool = False
    ) -> Instructed:
        """Give a preference or an instruction that stands: it is shown in every turn, and not left to search.

        What it contradicts is retired and returned. Only the user's own words belong here; text of a tool or a
        document is for remember().
        """
        scope = self._scope(user_id, session_id)
        now = await self._times.now(scope)
        episode = self._wish(checked_instruction(text), now, session_id, trusted=trusted)

        async def attempt(epoch: str) -> tuple[Learnt, Remembered]:
            learnt = await self._learner.instructed(scope, episode)
            return learnt, await self._keeper.keep(scope, [episode], facts=learnt.facts, since=epoch)

        async with self._locks.of(scope.for_user()):
            learnt, done = await guarded(self.store, scope, attempt)
            await self._learner.settle(scope, learnt.facts)
        kept = tuple(item for item in learnt.after if episode.id in item.sources)
        return Instructed(kept=kept, retired=learnt.retired, episode=episode, notes=learnt.notes + done.notes)

    async def confirm(self, id: str, *, user_id: str) -> Instructed:
        """Make a wish stand that was found among other text and waits in `standing().unconfirmed`.

        What it contradicts is retired and returned.

        Raises:
            NotFound: the user has no unconfirmed wish of this id.
        """
        scope = self._scope(user_id)

        async def attempt(epoch: str) -> tuple[Episode, Learnt, Remembered]:
            waiting = found_candidate(await self.store.get(scope, id), id, user_id)
            episode = self._wish(waiting.object, await self._times.now(scope))
            learnt = await self._learner.claimed(scope, [(claim_of(waiting, episode), episode.provenance)])
            return episode, learnt, await self._keeper.keep(scope, [episode], facts=learnt.facts, since=epoch)

        async with self._locks.of(scope):
            episode, learnt, done = await guarded(self.store, scope, attempt)
            await self.store.write(scope, delete=[id])
            await self._learner.settle(scope, learnt.facts)
        kept = tuple(item for item in learnt.after if episode.id in item.sources)
        return Instructed(kept=kept, retired=learnt.retired, episode=episode, notes=learnt.notes + done.notes)

    async def reject(self, id: str, *, user_id: str) -> Receipt:
        """Drop a wish that waits, or take back one that stands: what that had retired stands again.

        Raises:
            NotFound: the user has neither under this id.
        """
        scope = self._scope(user_id)
        async with self._locks.of(scope):
            gone = behind_wish(await every_fact(self.store, scope, Eq("subject", USER)), id)
            if not gone:
                raise NotFound(f"user {user_id!r} has no wish {id!r}; standing() lists what stands and what waits")
            return await forget_records(self.store, scope, gone, neighbours=self._neighbours, now=self._clock.now())

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
        where: Where | None = None,
        at: datetime | None = None,
        known_at: datetime | None = None,
        history: bool = False,
        min_score: float | None = None,
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
            layers: only living records of these layers, not the archive; facts belong to L4.
            where: a further filter, or a mapping: `{"topic": "drinks"}`.
            at: facts that were true then; now, if not given.
            known_at: facts as believed then; now, if not given.
            history: facts that are no longer believed, too.
            min_score: hits with a lower score are left out. Scores compare the hits of one question with each other.
        """
        scope = self._scope(user_id, session_id)
        now = await self._times.now(scope)
        found = await self._recall.find(
            scope,
            query,
            limit=limit,
            budget=budget,
            halves=halves,
            layers=layers,
            where=as_filter(where),
            at=at or now,
            known_at=known_at or now,
            history=history,
            min_score=min_score,
        )
        self._times.saw(scope, (hit.item for hit in found.hits if not isinstance(hit.item, Passage)))
        await self._accesses.count(scope, found.hits)
        return found

    async def forget(
        self, *ids: str, user_id: str, session_id: str | None = None, before: datetime | None = None
    ) -> Receipt:
        """Remove records by id with what was made from them alone, or everything of a user or a session.

        With `before`, only what happened, or was stated or pinned, before that moment. What was prepared from a
        removed record by anybody, and is not written yet, is never written. Conversations that an agent saved are not
        part of memory: the receipt says where there are any, and `Agent.forget` removes them, too.
        """
        scope = self._scope(user_id, session_id)
        if ids and before is not None:
            raise UsageError("forget() takes ids or before=, not both; call it twice")
        for learning in self._learnings:
            learning.interrupt(scope.for_user())
        try:
            async with self._locks.of(scope.for_user()):
                receipt = await self._forget(scope, ids, before)
        finally:
            self._neighbours.forget(scope)  # also what was remembered while this was at work
        return await self._with_sessions(scope, receipt) if not ids else receipt

    async def _forget(self, scope: Scope, ids: Sequence[str], before: datetime | None) -> Receipt:
        now, neighbours = self._clock.now(), self._neighbours
        if ids:
            return await forget_records(self.store, scope.for_user(), ids, neighbours=neighbours, now=now)
        if before is not None:
            moment = as_utc(before, "before of forget()")
            return await forget_before(self.store, scope, moment, neighbours=neighbours, now=now)
        if scope.session_id is not None:
            return await forget_session(self.store, scope, neighbours=neighbours, now=now)
        return await self.store.forget(scope)

    async def _with_sessions(self, scope: Scope, receipt: Receipt) -> Receipt:
        """The receipt, with a line about conversations that stand in the same place and are not part of memory."""
        saved = await self.store.saved_sessions(scope) if isinstance(self.store, SeesSessions) else 0
        left = (SESSIONS_LEFT.format(count=saved, user=scope.user_id),) if saved else ()
        return replace(receipt, pending=(*receipt.pending, *left))

    async def epoch(self, *, user_id: str) -> str:
        """A token that changes whenever something of a user is forgotten; for `remember(since=)`."""
        return await self.store.epoch(self._scope(user_id))

    async def mark(self, id: str, *, user_id: str, importance: float) -> Episode:
        """Say how important an episode is, from 0 to 1; from `MemoryConfig.importance_threshold` on it moves into L2.

        Raises:
            NotFound: the user has no such episode.
        """
        check_share(importance, "the importance given to mark()")
        return await self._keeper.mark(self._scope(user_id), id, importance)

    async def end_session(self, *, user_id: str, session_id: str) -> Episode | None:
        """A conversation is over: write its episode into L3 now, not after an hour of silence; None if it has no turns.

        If it goes on, the same episode is written again when it ends again.
        """
        return await self._metabolism.end(self._scope(user_id, session_id))

    async def metabolize(self, *, user_id: str | None = None, learn: bool = True) -> Metabolized:
        """Do the jobs that wait: of one user, after a look at all of their layers, or of everybody.

        Turns that wait for a model are read as well, before it returns; with `learn=False` no model is asked.
        """
        scope = self._scope(user_id) if user_id is not None else None
        if scope is not None:
            await self._metabolism.tick(scope)
        done = await self._metabolism.run(scope)
        if self._learning is None or not learn:
            return done
        return done.with_learned(await self._learning.drain(scope), waiting=await self._unread(scope))

    async def _unread(self, scope: Scope | None) -> int:
        """How many turns of a user wait for a model, where there is none."""
        if self.has_reader or scope is None:
            return 0
        waiting = await waiting_jobs(self.store, scope, self._clock.now())
        return waiting[LEARN] + waiting[""]

    @asynccontextmanager
    async def worker(self, *, every: float = 1.0) -> AsyncGenerator[None]:
        """Do the jobs that wait in the background, for as long as the block lasts; `every` is in seconds."""
        async with create_task_group() as tasks:
            tasks.start_soon(self._metabolism.work, every)
            if self._learning is not None:
                tasks.start_soon(self._learning.work, max(every, self.config.learn_seconds))
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
        check_fact(subject, predicate)
        wanted = predicate_key(predicate) if predicate else None
        found = await every_fact(self.store, self._scope(user_id), *([Eq("predicate", wanted)] if wanted else []))
        now = after(latest_of(found), self._clock.now())
        about = [f for f in found if subject is None or normalise(f.subject) == normalise(subject)]
        about = [f for f in about if not is_candidate(f)]
        self._times.saw(self._scope(user_id), found)
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
        check_fact(subject, predicate, object)
        scope = self._scope(user_id)
        claim = Claim(
            subject=subject,
            predicate=predicate,
            object=object,
            valid_from=valid_from,
            valid_until=valid_until,
            sources=("stated",),
        )

        async def attempt(epoch: str) -> Learnt:
            learnt = await self._learner.claimed(scope, [(claim, Provenance("user", trusted=trusted))])
            await self.store.write(scope, put=learnt.facts, since=epoch)
            return learnt

        async with self._locks.of(scope):
            learnt = await guarded(self.store, scope, attempt)
            await self._learner.settle(scope, learnt.facts)
        return learnt.facts

    async def set_block(
        self,
        name: str,
        text: str,
        *,
        user_id: str,
        trusted: bool = False,
        origin: Origin = "user",
        version: int | None = None,
    ) -> WorkingBlock:
        """Pin a named text for a user; it is shown in every turn. `origin` says who wrote it.

        With `version`, the one you read, it is written only while that stands: StoreConflict has the block as it is
        now in `current`. 0 is for a block that must be new. Without it, what stands there is replaced.
        """
        check_block(name, text)
        source = Provenance(origin, trusted=trusted)
        return await self._blocks.write(self._scope(user_id), name, text, provenance=source, version=version)

    async def blocks(self, *, user_id: str) -> tuple[WorkingBlock, ...]:
        """The pinned texts of a user."""
        found = every(self.store, self._scope(user_id), Eq("kind", "block"))
        return tuple([r async for r in found if isinstance(r, WorkingBlock) and not r.name.startswith(FILE)])

    async def standing(self, *, user_id: str) -> Standing:
        """The preferences and instructions that stand, the newest first, within `MemoryConfig.standing_tokens`.

        `unconfirmed` lists wishes that were found among other text: confirm() makes one stand, reject() drops it.
        """
        facts = await every_fact(self.store, self._scope(user_id), Eq("subject", USER))
        return within(facts, self.config.standing_tokens, now=self._clock.now())

    async def profile(self, *, user_id: str) -> Profile:
        """What is to be shown of a user in every turn; `str()` of it is fenced text for a prompt."""
        return Profile(
            standing=replace(await self.standing(user_id=user_id), unconfirmed=()),
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
        where: Where | None = None,
        kind: EventKind | None = "episode",
    ) -> Timeline:
        """What happened, in order, for exact answers: `first`, `last`, `count`, `between(start, end)`.

        Args:
            user_id: whose memory it is.
            session_id: one conversation only.
            about: records that hold all of these words, in any form (boat, boats), stop words left out.
            where: a further filter, or a mapping: `{"topic": "drinks"}`.
            kind: `episode` for what was said, by its time; `fact` for facts that are believed, by when they became
                true; None for both.
        """
        scope, fits = self._scope(user_id, session_id), as_filter(where)
        return await read_timeline(self.store, scope, about=about, where=fits, kind=kind)

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
        """How much is known of a user, by layer and kind; `jobs` wait, and those that `failed` were given up.

        That a session may end later is not a job yet.
        """
        scope = self._scope(user_id)
        with suppress(LoomError):  # which embedder the store has matters less than what it holds
            await self._binding.look()
        waiting = await waiting_jobs(self.store, scope, self._clock.now())
        jobs = {"jobs": waiting.total(), "failed": len(await self.store.dead_letters(scope))}
        return {**await counts(self.store, scope), **jobs}

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

    def _wish(self, text: str, now: datetime, session_id: str | None = None, *, trusted: bool = False) -> Episode:
        """A wish that the user gives now."""
        id, source = self._ids.next_id(), Provenance("user", trusted=trusted)
        return Episode(id=id, text=text, at=now, recorded_at=now, provenance=source, session_id=session_id)


__all__ = ["Memory", "Turn"]
