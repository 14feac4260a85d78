"""Memory's verbs for single records: get, list, update, upsert, promote."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Literal, TypeAlias, get_args, overload

from loom.core.checks import check_attributes
from loom.core.filter import And, Eq, Filter, In, Where, as_filter
from loom.core.record import Episode, Fact, Layer, Origin, Provenance, Record, Scalar, layers_of
from loom.core.scope import Scope
from loom.errors import NotFound, UsageError
from loom.memory._parts import MemoryParts
from loom.memory._shared import ARE_CURRENT, TRIES, every, is_candidate, retry_stale
from loom.memory._write.ingest import MemoryInput, check_turns, clean, keyed_id, speaker_name, turns_of
from loom.memory.results import OTHER_TEXT, Remembered
from loom.protocols.memory_store import Scrubs
from loom.telemetry import traced

RecordKind: TypeAlias = Literal["episode", "fact", "block"]
"""The kinds of records that list() can filter by."""

_EpisodeEdit: TypeAlias = Callable[[Episode], Episode]


class MemoryEdits(MemoryParts):
    """The calls of a Memory that read, list or change single records."""

    async def get(self, id: str, *, user_id: str) -> Record | None:
        """The record of a user with this id (an episode, a fact or a block), or None."""
        return await self.store.get(self._scope(user_id), id)

    async def list(
        self,
        *,
        user_id: str,
        session_id: str | None = None,
        kind: RecordKind | None = None,
        layer: Layer | Sequence[Layer] | None = None,
        where: Where | None = None,
        archived: bool = False,
        limit: int | None = None,
    ) -> AsyncIterator[Record]:
        """Iterate over the records of a user, ordered by id, read page by page: `async for record in memory.list(...)`.

        Args:
            user_id: the user whose memory it is.
            session_id: only episodes of one conversation, beside the facts and blocks of the user.
            kind: `episode`, `fact` or `block`; None for all.
            layer: episodes of this layer, or of these.
            where: a further filter, or a mapping: `{"topic": "drinks"}`.
            archived: include archived episodes, facts that are no longer believed, and old texts of blocks.
            limit: maximum number of records.
        """
        if limit is not None and limit < 1:
            raise UsageError(f"limit must be at least 1, or None for all; got {limit}")
        fits, left = _filter(kind, layer, where, archived=archived), limit
        async for record in every(self.store, self._scope(user_id, session_id), fits):
            if is_candidate(record):  # unconfirmed: standing() lists it
                continue
            yield record
            left = None if left is None else left - 1
            if left == 0:
                return

    @traced("update_memory")
    async def update(
        self,
        id: str,
        *,
        user_id: str,
        text: str | None = None,
        importance: float | None = None,
        attributes: Mapping[str, Scalar] | None = None,
    ) -> Remembered:
        """Change an episode in place: it keeps its id, time, speaker and layer.

        A new text gets new search keys and a new vector, and everything derived from the old text alone (statements,
        summaries, facts) is removed, as forget() would; facts are extracted from the new text. Attributes are merged;
        None removes one.

        Raises:
            NotFound: the user has no episode of this id.
            UsageError: nothing to change was given, or the record is a fact (assert_fact()) or a block (set_block()).
        """
        if text is None and importance is None and attributes is None:
            raise UsageError("update() was given nothing to change; give text=, importance= or attributes=")
        new_text, more = None if text is None else _clean(text), attributes or {}
        check_attributes(more, "what is updated")

        def change(old: Episode) -> Episode:
            merged = {**old.attributes, **more}
            return replace(
                old,
                text=old.text if new_text is None else new_text,
                importance=old.importance if importance is None else importance,
                attributes={name: value for name, value in merged.items() if more.get(name, value) is not None},
            )

        return await self._edit(self._scope(user_id), id, change)

    @traced("upsert_memory")
    async def upsert(
        self,
        content: MemoryInput,
        *,
        key: str,
        user_id: str,
        session_id: str | None = None,
        speaker: str | None = None,
        at: datetime | None = None,
        importance: float = 0.0,
        origin: Origin = "user",
        trusted: bool = False,
        attributes: Mapping[str, Scalar] | None = None,
    ) -> Remembered:
        """Store one text under a key, replacing the one stored under it.

        Like remember() with `key=`, but a different text replaces the old one and everything derived from it, in one
        step. Id, layer and access count stay. The arguments are those of remember().
        """
        scope = self._scope(user_id, session_id)
        turns = turns_of(content, user_id=user_id)
        check_turns(turns, speaker=speaker, attributes=attributes, key=key)
        if len(turns) != 1:
            raise UsageError(f"upsert() stores one text under its key and was given {len(turns)}; call it for each")
        turn, text = turns[0], _clean(turns[0].text)
        now = await self._times.now(scope)
        new = Episode(
            id=keyed_id(scope, key, 0),
            text=text,
            at=turn.at or at or now,
            recorded_at=now,
            provenance=Provenance(turn.origin or origin, trusted=trusted),
            session_id=session_id,
            speaker=speaker_name(turn.speaker or speaker, user_id=user_id),
            importance=importance,
            attributes={**(attributes or {}), **turn.attributes},
        )
        change = partial(_replaced, new=new, is_dated=bool(turn.at or at))
        for _ in range(TRIES):
            epoch, raced = await self.store.epoch(scope), False
            if await self.store.get(scope.for_user(), new.id) is None:
                done = await self._keeper.write(scope, [new], keyed=True)
                is_new = not any(skip.reason == OTHER_TEXT for skip in done.skipped)
                if is_new and await self.store.epoch(scope) == epoch:
                    return done
                # Another process wrote under this key at the same moment: remove what was derived from its text.
                raced = True
            with suppress(NotFound):  # it may have been forgotten meanwhile
                return await self._edit(scope.for_user(), new.id, change, force=raced)
        raise UsageError(f"the record under key {key!r} was forgotten {TRIES} times while it was written; try again")

    @overload
    async def promote(self, id: str, /, *, user_id: str, to: Layer | None = None) -> Episode: ...

    @overload
    async def promote(
        self, id: str, other: str, /, *more: str, user_id: str, to: Layer | None = None
    ) -> tuple[Episode, ...]: ...

    async def promote(self, *ids: str, user_id: str, to: Layer | None = None) -> Episode | tuple[Episode, ...]:
        """Move episodes up one layer, or into `to`; returns the episode, or a tuple if several ids were given.

        Raises:
            NotFound: one of the ids is not an episode of the user; then none is moved.
        """
        scope = self._scope(user_id)
        if not ids:
            raise UsageError("promote() was given no id; recall() and list() give the ids")
        for id in ids if len(ids) > 1 else ():
            if not isinstance(await self.store.get(scope, id), Episode):
                raise NotFound(f"user {user_id!r} has no episode {id!r}, and none was moved; recall() gives the ids")
        moved = [await self._keeper.promote(scope, id, to) for id in dict.fromkeys(ids)]
        return moved[0] if len(ids) == 1 else tuple(moved)

    async def _edit(self, user: Scope, id: str, change: _EpisodeEdit, *, force: bool = False) -> Remembered:
        """Write an episode as changed; `force` removes what was derived from it even if its text stays the same."""

        async def attempt(epoch: str) -> tuple[Episode, bool]:
            old = _require_episode(await self.store.get(user, id), id, user.user_id)
            new = change(old)
            is_rewritten = force or new.text != old.text
            if is_rewritten:
                await self._rewrite(user, new, epoch)
            elif new != old:
                await self.store.write(user, put=[new], since=epoch)
            return new, is_rewritten

        async def second_pass(epoch: str) -> None:
            found = await self.store.get(user, id)
            if isinstance(found, Episode):
                await self._rewrite(user, found, epoch, is_second_pass=True)

        async with self._locks.of(user):
            record, is_rewritten = await retry_stale(self.store, user, attempt)
            if not is_rewritten:
                return Remembered(kept=(record,))
            await retry_stale(self.store, user, second_pass)
        if self._learning:
            self._learning.wake(user, [record])
        pending = await self.store.scrub() if isinstance(self.store, Scrubs) else ()
        return Remembered(kept=(record,), notes=(*await self._embed_current(user, record), *pending))

    async def _rewrite(self, user: Scope, new: Episode, epoch: str, *, is_second_pass: bool = False) -> None:
        for learning in self._learnings:
            learning.interrupt(user)
        jobs = self._keeper.jobs(user, [new])
        try:
            await self._forgetting.rewrite(user, new, jobs=jobs, epoch=epoch, is_second_pass=is_second_pass)
        finally:
            self._neighbours.forget(user)

    async def _embed_current(self, user: Scope, record: Episode) -> tuple[str, ...]:
        """Embed the current text of a record; repeats if another process changes the text meanwhile."""
        embedded: str | None = None
        while record.text != embedded and (not record.sources or record.layer is Layer.L4):
            if notes := await self._keeper.embed(user, [record]):
                return notes
            embedded = record.text
            found = await self.store.get(user, record.id)
            record = found if isinstance(found, Episode) else record
        return ()


def _replaced(old: Episode, *, new: Episode, is_dated: bool) -> Episode:
    """The stored episode with the content of the new one; id, layer and access count stay."""
    is_same = old.text == new.text
    return replace(
        old,
        text=new.text,
        at=old.at if is_same and not is_dated else new.at,
        recorded_at=old.recorded_at if is_same else new.recorded_at,
        provenance=new.provenance,
        speaker=new.speaker,
        importance=new.importance,
        archived_at=None,
        attributes={**old.attributes, **new.attributes},
    )


def _filter(
    kind: RecordKind | None, layer: Layer | Sequence[Layer] | None, where: Where | None, *, archived: bool
) -> Filter:
    if kind is not None and kind not in get_args(RecordKind):
        raise UsageError(f"kind={kind!r} is not a kind of record; use one of {', '.join(get_args(RecordKind))}")
    parts: list[Filter] = [] if archived else [Eq("archived_at", None), Eq("superseded_at", None), ARE_CURRENT]
    parts += [Eq("kind", kind)] if kind else []
    if layer is not None:
        parts.append(In("layer", tuple(map(int, layers_of(layer)))))
    wanted = as_filter(where)
    return And(*parts, *([wanted] if wanted else []))


def _clean(text: str) -> str:
    cleaned, skip = clean(text)
    if skip is not None:
        raise UsageError(f"the text {skip.text!r} cannot be stored: {skip.reason}")
    return cleaned


def _require_episode(record: Record | None, id: str, user_id: str) -> Episode:
    if isinstance(record, Episode):
        return record
    if record is None:
        raise NotFound(f"user {user_id!r} has no record {id!r}; recall() and list() give the ids")
    instead = "assert_fact() states another" if isinstance(record, Fact) else "set_block() writes it"
    raise UsageError(f"{id!r} is a {record.kind}, and only episodes can be updated; {instead}")
