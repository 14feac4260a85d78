"""Memory, the public class: remember, recall, forget, facts, instructions, blocks, jobs, import and export."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from anyio import create_task_group

from loom.core.checks import as_utc, check_share
from loom.core.clock import Clock
from loom.core.doors import missing_attribute
from loom.core.filter import And, Eq, Where, as_filter
from loom.core.message import Usage
from loom.core.record import (
    Claim,
    Episode,
    Fact,
    Hit,
    Layer,
    Origin,
    Passage,
    Provenance,
    Receipt,
    Record,
    Scalar,
    WorkingBlock,
    latest_of,
)
from loom.core.scope import Scope
from loom.errors import LoomError, NotFound, StoreConflict, UsageError
from loom.memory._editing import MemoryEdits
from loom.memory._facts.entities import USER, normalise, predicate_key
from loom.memory._facts.instructions import (
    NOT_A_WISH,
    OF_PROFILE,
    Instructed,
    Overview,
    Profile,
    Standing,
    Unconfirmed,
    candidate_claim,
    fit_budget,
    instruction_ids,
    profile_of,
    proposed,
    require_candidate,
    shown_blocks,
    unconfirmed_items,
)
from loom.memory._history import (
    TextHistory,
    block_history,
    check_is_free,
    replaced_text,
    standing_histories,
)
from loom.memory._recall.rank import Prefer
from loom.memory._recall.recall import latest_turns, recent
from loom.memory._shared import (
    ARE_CURRENT,
    counts,
    every,
    every_fact,
    is_candidate,
    later_than,
    read_together,
    retry_stale,
)
from loom.memory._upkeep.explain import EventKind, Explained, Timeline, explain, read_timeline
from loom.memory._upkeep.forget import SESSIONS_LEFT
from loom.memory._upkeep.portable import import_lines, lines_of, put_records
from loom.memory._upkeep.summaries import waiting_jobs
from loom.memory._write.apply_claims import LearnResult
from loom.memory._write.ingest import (
    MemoryInput,
    check_block,
    check_fact,
    check_turns,
    clean_instruction,
    clean_turns,
    speaker_name,
    turn_id,
    turns_of,
)
from loom.memory._write.learn_in_background import KIND as LEARN
from loom.memory._write.learn_in_background import Facts
from loom.memory._write.write import ProgressCallback, Reembedded, reembed
from loom.memory.config import MemoryConfig
from loom.memory.results import Learned, Metabolized, Recalled, Remembered
from loom.protocols.embedder import Embedder
from loom.protocols.extractor import Extractor
from loom.protocols.memory_store import SeesSessions, Store
from loom.protocols.reranker import Reranker
from loom.telemetry import Bill, traced

_QUOTED = 200
"""Characters of a block that an error quotes."""

_OTHER_WORDS = {
    **dict.fromkeys(("add", "put", "save", "store_memory"), "remember(text, user_id=...)"),
    **dict.fromkeys(("search", "query", "retrieve"), "recall(question, user_id=...)"),
    "get_all": "list(user_id=...)",
    **dict.fromkeys(("delete", "delete_all", "remove", "reset"), "forget(id, user_id=...), or forget(user_id=...)"),
    **dict.fromkeys(("clear", "forget_user", "delete_user"), "forget(user_id=...)"),
    "history": "explain(id, user_id=...), or facts(user_id=..., history=True)",
}
"""What mem0, LangGraph and others call these methods."""


class Memory(MemoryEdits):
    """Long-term memory of an agent, for many users, on one store.

    Every call names its user; no call reads or writes across users. What `remember` returned is durable, and can be
    recalled at once. open_memory() opens one, and open_memory_sync() the same without `await`:

        async with open_memory("sqlite:./bot.db") as memory:
            await memory.remember("I live in Oslo.", user_id="ann", learn=True)
            found = await memory.recall("Where does she live?", user_id="ann")
            print(found.hits[0].text, await memory.facts(user_id="ann"))
    """

    @staticmethod
    def open(
        url: str | Mapping[str, Any] | Memory | Store = "inmemory",
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
            url,
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

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, _OTHER_WORDS)

        def __enter__(self) -> Any:
            raise UsageError("open_memory() is for `async with`; use open_memory_sync() for a plain `with`")

        __exit__ = __enter__  # a plain `with` looks for both

    def __repr__(self) -> str:
        return f"Memory({type(self.store).__name__}, namespace={self.namespace!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @traced("create_memory")
    async def remember(
        self,
        content: MemoryInput | Sequence[MemoryInput],
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
        learn: bool = False,
    ) -> Remembered:
        """Store one text, several, or a whole conversation.

        Args:
            content: text, a message, a turn, a mapping with `text`/`content` and `role`/`name`/`speaker`, or many of
                them. A `name` that equals `user_id` is the user; any other name is another speaker.
            user_id: the user whose memory it is.
            session_id: the conversation it belongs to.
            speaker: the speaker, where the content names none.
            at: when it happened; now, if not given.
            importance: from 0 to 1.
            origin: where it comes from, where the content does not say.
            trusted: whether it may be followed as an instruction; only for text of your own.
            attributes: values to filter by.
            key: an idempotency key: content sent again under it is stored once.
            since: the value of epoch() before this content was derived from memory. Raises StaleWrite, and stores
                nothing, if something of the user was forgotten since.
            learn: extract facts from it with rules now, so that the next call knows them; otherwise a job does.
        """
        scope = self._scope(user_id, session_id)
        now = await self._times.now(scope)
        turns = turns_of(content, user_id=user_id)
        check_turns(turns, speaker=speaker, attributes=attributes, key=key)
        cleaned = await clean_turns(turns)
        episodes = [
            Episode(
                id=turn_id(scope, turn, key, number) or self._ids.next_id(),
                text=text,
                at=turn.at or at or now,
                recorded_at=now,
                provenance=Provenance(turn.origin or origin, trusted=trusted),
                session_id=session_id,
                speaker=speaker_name(turn.speaker or speaker, user_id=user_id),
                importance=importance,
                attributes={**(attributes or {}), **turn.attributes},
            )
            for number, (turn, (text, skip)) in enumerate(zip(turns, cleaned, strict=True))
            if not skip
        ]
        skipped = [skip for _, skip in cleaned if skip]
        keyed = key is not None or any(turn.key for turn in turns)
        return await self._keeper.write(scope, episodes, skipped=skipped, keyed=keyed, since=since, learn=learn)

    @traced("create_memory")
    async def instruct(
        self, text: str, *, user_id: str, session_id: str | None = None, trusted: bool = False, confirmed: bool = True
    ) -> Instructed:
        """Add a standing preference or instruction: it is shown in every turn instead of being searched for.

        What it contradicts is retired and returned. Only the user's own words belong here; text of a tool or a
        document is for remember(). With `confirmed=False`, for what somebody else says the user wishes, it waits in
        `standing().unconfirmed`, and no prompt shows it before confirm().
        """
        scope = self._scope(user_id, session_id)
        now = await self._times.now(scope)
        episode = self._instruction(clean_instruction(text), now, session_id, trusted=trusted)
        if not confirmed:
            said = replace(episode, speaker="assistant", provenance=Provenance("assistant"))
            return await self._propose(scope, said)

        async def attempt(epoch: str) -> tuple[LearnResult, Remembered]:
            result = await self._learner.read_instruction(scope, episode)
            return result, await self._keeper.write(scope, [episode], facts=result.facts, since=epoch)

        async with self._locks.of(scope.for_user()):
            result, written = await retry_stale(self.store, scope, attempt)
            return await self._instructed(scope, episode, result, written)

    async def _propose(self, scope: Scope, episode: Episode) -> Instructed:
        """Keep an instruction that waits for the user."""

        async def attempt(epoch: str) -> tuple[tuple[Unconfirmed, ...], Remembered]:
            known = await every_fact(self.store, scope.for_user(), Eq("subject", USER))
            facts = proposed(episode, known, now=episode.at, ids=self._ids)
            written = await self._keeper.write(scope, [episode], facts=facts, since=epoch)
            return unconfirmed_items(facts), written

        async with self._locks.of(scope.for_user()):
            waiting, written = await retry_stale(self.store, scope, attempt)
        notes = written.notes if waiting else (*written.notes, NOT_A_WISH)
        return Instructed(kept=(), retired=(), episode=episode, waiting=waiting, notes=notes)

    @traced("create_memory")
    async def confirm(self, id: str, *, user_id: str) -> Instructed:
        """Turn an unconfirmed instruction, found among other text and listed in `standing()`, into a standing one.

        What it contradicts is retired and returned.

        Raises:
            NotFound: the user has no unconfirmed instruction of this id.
        """
        scope = self._scope(user_id)

        async def attempt(epoch: str) -> tuple[Episode, LearnResult, Remembered]:
            candidate = require_candidate(await self.store.get(scope, id), id, user_id)
            episode = self._instruction(candidate.object, await self._times.now(scope))
            claim = candidate_claim(candidate, episode)
            result = await self._learner.apply_claims(scope, [(claim, episode.provenance)])
            return episode, result, await self._keeper.write(scope, [episode], facts=result.facts, since=epoch)

        async with self._locks.of(scope):
            episode, result, written = await retry_stale(self.store, scope, attempt)
            await self.store.write(scope, delete=[id])
            return await self._instructed(scope, episode, result, written)

    async def _instructed(self, scope: Scope, episode: Episode, result: LearnResult, written: Remembered) -> Instructed:
        await self._learner.settle(scope, result.facts)
        kept = tuple(item for item in result.after if episode.id in item.sources)
        return Instructed(kept=kept, retired=result.retired, episode=episode, notes=result.notes + written.notes)

    @traced("delete_memory")
    async def reject(self, id: str, *, user_id: str) -> Receipt:
        """Drop an unconfirmed instruction, or take back a standing one, which restores what it had retired.

        Raises:
            NotFound: the user has neither under this id.
        """
        scope = self._scope(user_id)
        async with self._locks.of(scope):
            gone = instruction_ids(await every_fact(self.store, scope, Eq("subject", USER)), id)
            if not gone:
                raise NotFound(f"user {user_id!r} has no instruction {id!r}; standing() lists them, unconfirmed too")
            return await self._forgetting.records(scope, gone)

    @traced("search_memory")
    async def recall(
        self,
        query: str,
        *,
        user_id: str,
        session_id: str | None = None,
        limit: int = 8,
        budget: int | None = None,
        prefer: Prefer = "user",
        layers: Sequence[Layer] | None = None,
        where: Where | None = None,
        at: datetime | None = None,
        known_at: datetime | None = None,
        history: bool = False,
        min_score: float | None = None,
        min_confidence: float | None = None,
    ) -> Recalled:
        """Search a user's memory: the best hits first, each with the signals that contributed to its score.

        Args:
            query: the question, in plain words.
            user_id: the user whose memory is searched.
            session_id: search one conversation only.
            limit: maximum number of hits.
            budget: maximum number of tokens, all hits together.
            prefer: rank messages of the user above replies of the assistant (`"user"`), or treat both alike (`"both"`).
            layers: only records in these layers, not the archive; facts belong to L4.
            where: a further filter, or a mapping: `{"topic": "drinks"}`.
            at: return facts that were true then; now, if not given.
            known_at: return facts as they were believed then; now, if not given.
            history: include facts that are no longer believed.
            min_score: leave out hits below this score. Scores are comparable within one query only.
            min_confidence: return no hits if it is less likely than this that any is about the question, from 0 to 1.
        """
        scope = self._scope(user_id, session_id)
        await self._upkeep.settled(scope.for_user())
        now = await self._times.now(scope)
        found = await self._recall.find(
            scope,
            query,
            limit=limit,
            budget=budget,
            prefer=prefer,
            layers=layers,
            where=as_filter(where),
            at=at or now,
            known_at=known_at or now,
            history=history,
            min_score=min_score,
            min_confidence=min_confidence,
        )
        # A record from the future shows how far another process's clock is ahead; later writes must come after it.
        self._times.observe(scope, (hit.item for hit in found.hits if not isinstance(hit.item, Passage)))
        await self._accesses.count(scope, query, found.hits)
        return found

    @traced("delete_memory")
    async def forget(
        self, *ids: str, user_id: str, session_id: str | None = None, before: datetime | None = None
    ) -> Receipt:
        """Remove records by id with everything derived from them alone, or all records of a user or a session.

        With `before`, only what happened, or was stated or pinned, before that moment. Text that a job derived from a
        removed record, and has not written yet, is never written. Saved conversations of an agent are not part of
        memory: the receipt says if there are any, and `Agent.forget` removes them too.
        """
        scope = self._scope(user_id, session_id)
        if ids and before is not None:
            raise UsageError("forget() takes ids or before=, not both; call it twice")
        for learning in self._learnings:
            learning.interrupt(scope.for_user())
        for upkeep in self._upkeeps:
            upkeep.forget(scope.for_user())
        try:
            async with self._locks.of(scope.for_user()):
                receipt = await self._forget(scope, ids, before)
        finally:
            self._neighbours.forget(scope)  # including turns that were remembered meanwhile
        saved = await self.store.saved_sessions(scope) if not ids and isinstance(self.store, SeesSessions) else 0
        left = (SESSIONS_LEFT.format(count=saved, user=scope.user_id),) if saved else ()
        return replace(receipt, pending=(*receipt.pending, *left))

    async def _forget(self, scope: Scope, ids: Sequence[str], before: datetime | None) -> Receipt:
        if ids:
            return await self._forgetting.records(scope.for_user(), ids)
        if before is not None:
            return await self._forgetting.before(scope, as_utc(before, "before of forget()"))
        if scope.session_id is not None:
            return await self._forgetting.session(scope)
        return await self.store.forget(scope)

    async def epoch(self, *, user_id: str) -> str:
        """A token that changes whenever something of a user is forgotten; for `remember(since=)`."""
        return await self.store.epoch(self._scope(user_id))

    @traced("update_memory")
    async def mark(self, id: str, *, user_id: str, importance: float) -> Episode:
        """Set the importance of an episode, from 0 to 1; at `MemoryConfig.importance_threshold` it moves into L2.

        Raises:
            NotFound: the user has no such episode.
        """
        check_share(importance, "the importance given to mark()")
        return await self._keeper.mark(self._scope(user_id), id, importance)

    async def end_session(self, *, user_id: str, session_id: str) -> Episode | None:
        """Write the episode of a conversation into L3 now, not after an idle hour; None if it has no turns.

        If the conversation goes on, its episode is rewritten when it ends again.
        """
        return await self._metabolism.end(self._scope(user_id, session_id))

    async def metabolize(
        self, *, user_id: str | None = None, learn: bool = True, progress: ProgressCallback | None = None
    ) -> Metabolized:
        """Run the pending jobs: of one user, after checking all of their layers, or of all users.

        Turns that wait for a model are read as well, before it returns; `learn=False` calls no model. `progress` is
        called with how many jobs of the user are done, and how many there were: jobs may queue others.
        """
        scope = self._scope(user_id) if user_id is not None else None
        await self._upkeep.queue(scope)
        total = 0
        if scope is not None and progress is not None:
            total = (await waiting_jobs(self.store, scope, self._clock.now())).total()

        def report(done: int) -> None:
            if progress is not None:
                progress(done, max(done, total))

        done = await self._metabolism.run(scope, progress=report)
        if self._learning is None or not learn:
            return done
        learned, unread = await self._learning.drain(scope), 0
        if scope is not None and not self.has_reader:
            waiting = await waiting_jobs(self.store, scope, self._clock.now())
            unread = waiting[LEARN] + waiting[""]
        return done.with_learned(learned, waiting=unread)

    async def upkeep(self, *, user_id: str) -> Metabolized | None:
        """Run the jobs that a turn queued, and have all jobs of the user run soon, in the background.

        Returns what jobs did since the last call. In the background they run after some turns, or when nobody speaks
        for `MemoryConfig.learn_seconds`, or with aclose().
        """
        user = self._scope(user_id)
        await self._upkeep.catch_up(user)
        self._upkeep.schedule(user)
        return self._upkeep.report(user)

    @asynccontextmanager
    async def worker(self, *, every: float = 1.0) -> AsyncGenerator[None]:
        """Run pending jobs in the background while the block lasts; `every` is in seconds."""
        async with create_task_group() as tasks:
            tasks.start_soon(self._metabolism.work, every)
            if self._learning is not None:
                tasks.start_soon(self._learning.work, max(every, self.config.learn_seconds))
            yield
            tasks.cancel_scope.cancel()

    # -- learning -----------------------------------------------------------------------------------------

    @property
    def has_reader(self) -> bool:
        """Whether a model, or another extractor, reads remembered turns in the background."""
        return self._reader is not None

    @property
    def waits_to_learn(self) -> bool:
        """Whether turns remembered in this process wait for a model to read them."""
        return self._learning is not None and self._learning.waits

    @property
    def bill(self) -> Bill:
        """The cost of learning by a model so far: requests, tokens, US dollars."""
        return self._learning.bill if self._learning else Bill()

    @property
    def usage(self) -> Usage:
        """Tokens of learning by a model so far."""
        return self.bill.usage

    def learned(self, *, user_id: str) -> Learned | None:
        """What a model learned about a user in the background since the last call, and what it cost."""
        return self._learning.pop_report(self._scope(user_id)) if self._learning else None

    def answering(self) -> AbstractAsyncContextManager[None]:
        """Pauses learning while the block lasts, for a model that serves one request at a time."""
        return self._learning.answering() if self._learning else nullcontext()

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
        """The facts of a user: those true now, those true at `at`, or with `history` all that were ever believed."""
        check_fact(subject, predicate)
        wanted = predicate_key(predicate) if predicate else None
        found = await every_fact(self.store, self._scope(user_id), *([Eq("predicate", wanted)] if wanted else []))
        about = [f for f in found if subject is None or normalise(f.subject) == normalise(subject)]
        if history:
            return tuple(f for f in about if not is_candidate(f))
        return self._current(user_id, about, at, known_at)

    def _current(
        self, user_id: str, facts: Sequence[Fact], at: datetime | None = None, known_at: datetime | None = None
    ) -> tuple[Fact, ...]:
        """Those of stored facts that are true at a time, now if none is given."""
        now = later_than(latest_of(facts), self._clock.now())
        self._times.observe(self._scope(user_id), facts)
        return tuple(f for f in facts if not is_candidate(f) and f.is_current(at or now, known_at or now))

    @traced("create_memory")
    async def assert_fact(
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

        async def attempt(epoch: str) -> tuple[Fact, ...]:
            result = await self._learner.apply_claims(scope, [(claim, Provenance("user", trusted=trusted))])
            await self.store.write(scope, put=result.facts, since=epoch)
            return result.facts

        async with self._locks.of(scope):
            facts = await retry_stale(self.store, scope, attempt)
            await self._learner.settle(scope, facts)
        return facts

    @traced("upsert_memory")
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

        With `version`, the one you read, the write succeeds only if that is still the current version; otherwise
        StoreConflict carries the block in `current`. 0 means that the block must be new. Without `version`, the
        current text is replaced. block_history() shows the texts before it.
        """
        check_block(name, text)
        check_is_free(name)
        if version is not None and version < 0:
            raise UsageError(f"version={version} is not a version of a block; give the one you read, 0 for a new block")
        scope, source = self._scope(user_id), Provenance(origin, trusted=trusted)
        async with self._block_locks.of(scope):
            while True:  # each conflict means that another writer made progress
                found = await self.store.get(scope, f"block:{name}")
                current = found if isinstance(found, WorkingBlock) else None
                held = current.version if current else 0
                if version is not None and version != held:
                    raise _conflict(name, version, current)
                now = self._clock.now()
                block = WorkingBlock(name=name, text=text, updated_at=now, provenance=source, version=held + 1)
                old, too_many = tuple[WorkingBlock, ...](), tuple[str, ...]()
                if current is not None and (current.text, current.provenance) != (text, source):
                    keep = self.config.block_versions
                    old, too_many = await replaced_text(self.store, scope, current, keep=keep)
                with suppress(StoreConflict):
                    await self.store.write(scope, put=[block, *old], delete=too_many)
                    return block

    async def blocks(self, *, user_id: str) -> tuple[WorkingBlock, ...]:
        """The pinned texts of a user."""
        found = every(self.store, self._scope(user_id), And(Eq("kind", "block"), ARE_CURRENT))
        return shown_blocks([record async for record in found])

    async def block_history(self, name: str, *, user_id: str) -> TextHistory:
        """The texts that a block has and had, oldest first, each with its author and time; `diff()` compares two.

        The last `MemoryConfig.block_versions` old texts are kept, until the block or the user is forgotten; an old text
        can be forgotten alone, by the `id` of its version.

        Raises:
            NotFound: the user has no such block.
        """
        return await block_history(self.store, self._scope(user_id), name)

    async def standing_history(self, *, user_id: str) -> tuple[TextHistory, ...]:
        """The standing preferences and instructions with the texts they replaced, and those that have ended.

        Those that changed last come first. What was rejected or forgotten is gone.
        """
        facts = await every_fact(self.store, self._scope(user_id), Eq("subject", USER))
        return standing_histories(facts, now=later_than(latest_of(facts), self._clock.now()))

    async def standing(self, *, user_id: str) -> Standing:
        """The standing preferences and instructions, newest first, within `MemoryConfig.standing_tokens`.

        `unconfirmed` lists those that were found among other text: confirm() accepts one, reject() drops it.
        """
        facts = await every_fact(self.store, self._scope(user_id), Eq("subject", USER))
        return fit_budget(facts, self.config.standing_tokens, now=self._clock.now())

    async def profile(self, *, user_id: str) -> Profile:
        """Standing instructions, facts and pinned blocks of a user; `str()` of it is fenced text for a prompt."""
        found = every(self.store, self._scope(user_id), OF_PROFILE)
        return self._profile(user_id, [record async for record in found])

    async def overview(self, *, user_id: str, session_id: str | None = None) -> Overview:
        """What every turn is shown of a user: the profile, and the recent turns of conversations but `session_id`.

        All of it is of one moment, where the store can tell, and nothing of it is older than its epoch.
        """
        scope, now, layer = self._scope(user_id, session_id), self._clock.now(), self.config.l1
        await self._upkeep.settled(scope.for_user())
        lately = recent(scope, layer, now=now)
        epoch, (records, turns) = await read_together(self.store, scope.for_user(), OF_PROFILE, lately)
        return Overview(epoch, self._profile(user_id, records), latest_turns(turns, layer))

    def _profile(self, user_id: str, records: Sequence[Record]) -> Profile:
        """The profile that facts and blocks make."""
        self._times.observe(self._scope(user_id), [record for record in records if isinstance(record, Fact)])
        return profile_of(records, standing_tokens=self.config.standing_tokens, now=self._clock.now())

    async def timeline(
        self,
        *,
        user_id: str,
        session_id: str | None = None,
        about: str | None = None,
        where: Where | None = None,
        kind: EventKind | None = "episode",
    ) -> Timeline:
        """Dated records in order, for exact answers: `first`, `last`, `count`, `between(start, end)`.

        Args:
            user_id: the user whose memory it is.
            session_id: one conversation only.
            about: records that contain all of these words, in any form (boat, boats), ignoring stop words.
            where: a further filter, or a mapping: `{"topic": "drinks"}`.
            kind: `episode` for turns, by their time; `fact` for current facts, by when they became true; None for both.
        """
        scope, fits = self._scope(user_id, session_id), as_filter(where)
        return await read_timeline(self.store, scope, about=about, where=fits, kind=kind)

    async def explain(self, what: str | Hit, *, user_id: str) -> Explained:
        """Where a record comes from, down to the original turns, what was derived from it, and why it was found."""
        id, why = (what.item.id, what.why) if isinstance(what, Hit) else (what, None)
        return await explain(self.store, self._scope(user_id), id, why=why)

    async def reembed(self, *, progress: ProgressCallback | None = None) -> Reembedded:
        """Replace the vectors of all users in the store by those of this memory's embedder; safe to repeat.

        `progress` is called with how many records are done, and the total.
        """
        return await reembed(self.store, self._embedder, progress=progress)

    async def stats(self, *, user_id: str) -> dict[str, int]:
        """Number of records of a user by layer and kind, of pending `jobs`, and of jobs that `failed` for good.

        A session that has not ended yet counts as no job.
        """
        scope = self._scope(user_id)
        await self._upkeep.settled(scope)
        with suppress(LoomError):  # the counts do not depend on the embedder
            await self._binding.adopt_stored()
        waiting = await waiting_jobs(self.store, scope, self._clock.now())
        jobs = {"jobs": waiting.total(), "failed": len(await self.store.dead_letters(scope))}
        return {**await counts(self.store, scope), **jobs}

    async def export(self, *, user_id: str) -> AsyncIterator[str]:
        """All records of a user as JSON lines; the first line names the format."""
        async for line in lines_of(every(self.store, self._scope(user_id))):
            yield line

    @traced("create_memory")
    async def import_(
        self, lines: Iterable[str], *, user_id: str, progress: ProgressCallback | None = None, start: int = 0
    ) -> Remembered:
        """Import what export() wrote, batch by batch. Records that exist are replaced, and listed in `skipped` too.

        A line that is not a record stops it; the error names the line and what was imported. `start` is the number of
        lines imported before, for callers that read a file in pieces.
        """
        scope = self._scope(user_id)

        async def write(records: Sequence[Record], progress: ProgressCallback | None) -> Remembered:
            async with self._locks.of(scope):
                episodes, repeated = await put_records(
                    self.store, scope, records, neighbours=self._neighbours, keep=self.config.block_versions
                )
            notes = await self._keeper.embed(scope, episodes, progress=progress)
            return Remembered(kept=tuple(records), skipped=repeated, notes=notes)

        return await import_lines(lines, write, start=start, progress=progress)

    def _instruction(
        self, text: str, now: datetime, session_id: str | None = None, *, trusted: bool = False
    ) -> Episode:
        id, source = self._ids.next_id(), Provenance("user", trusted=trusted)
        return Episode(id=id, text=text, at=now, recorded_at=now, provenance=source, session_id=session_id)


def _conflict(name: str, version: int, current: WorkingBlock | None) -> StoreConflict:
    state = "the block does not exist; create it with version=0"
    if current is not None:
        text = current.text if len(current.text) <= _QUOTED else f"{current.text[:_QUOTED]}..."
        state = (
            f"it has version {current.version} now, with the text {text!r}; "
            f"change that text, and write it with version={current.version}"
        )
    return StoreConflict(f"block {name!r} was to follow version {version}, but {state}", current=current)
