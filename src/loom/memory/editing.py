"""Looking after single records: read one, list them, change one in its place, replace what is kept under a key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, cast, get_args, overload

from loom.core.filter import And, Eq, Filter, In, Where, as_filter
from loom.core.limits import check_attributes
from loom.core.record import Episode, Fact, Layer, Origin, Provenance, Record, Scalar
from loom.core.scope import Scope
from loom.errors import NotFound, UsageError
from loom.memory.candidates import is_candidate
from loom.memory.checked import check_turns
from loom.memory.forgetting import rewrite
from loom.memory.guarded import TRIES, retry_stale
from loom.memory.ingest import MemoryInput, Turn, clean, keyed_id, speaker_name, turns_of
from loom.memory.listing import every
from loom.memory.parts import MemoryParts
from loom.memory.values import OTHER_TEXT, Remembered
from loom.protocols.memory_store import Scrubs

RecordKind: TypeAlias = Literal["episode", "fact", "block"]
"""What list() can be asked for."""

_EpisodeEdit: TypeAlias = Callable[[Episode], Episode]


class _Remembers(Protocol):
    async def remember(self, content: MemoryInput, *, user_id: str, key: str, **fields: Any) -> Remembered: ...


class MemoryEdits(MemoryParts):
    """The calls of a memory that name one record, or list them."""

    async def get(self, id: str, *, user_id: str) -> Record | None:
        """The record of a user with this id: an episode, a fact or a block; None where there is none."""
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
        """The records of a user, in the order of their ids, read page by page: `async for record in memory.list(...)`.

        Args:
            user_id: whose memory it is.
            session_id: episodes of one conversation only, beside the facts and blocks of the user.
            kind: `episode`, `fact` or `block`; None for all.
            layer: episodes of this layer, or of these.
            where: a further filter, or a mapping: `{"topic": "drinks"}`.
            archived: archived episodes and facts that are no longer believed, too.
            limit: so many at the most.
        """
        if limit is not None and limit < 1:
            raise UsageError(f"limit must be at least 1, or None for all; got {limit}")
        fits, left = _filter(kind, layer, where, archived=archived), limit
        async for record in every(self.store, self._scope(user_id, session_id), fits):
            if is_candidate(record):  # no fact yet: standing() lists it
                continue
            yield record
            left = None if left is None else left - 1
            if left == 0:
                return

    async def update(
        self,
        id: str,
        *,
        user_id: str,
        text: str | None = None,
        importance: float | None = None,
        attributes: Mapping[str, Scalar] | None = None,
    ) -> Remembered:
        """Change an episode in its place: it keeps its id, time, speaker and layer.

        With another text, its keys and vector are those of the new text from then on, and whatever was made from the
        old one (statements, summaries, facts that nothing else taught) is removed, as forget() would; facts are found
        in the new text like in any other. Attributes are added to those it has; None takes one away.

        Raises:
            NotFound: the user has no episode of this id.
            UsageError: nothing is to be changed, or the record is a fact (state() asserts another) or a block
                (set_block() writes it).
        """
        if text is None and importance is None and attributes is None:
            raise UsageError("update() was given nothing to change; give text=, importance= or attributes=")
        said = None if text is None else _cleaned(text)
        check_attributes(attributes or {}, "what is updated")
        more = attributes or {}

        def change(old: Episode) -> Episode:
            merged = {**old.attributes, **more}
            return replace(
                old,
                text=old.text if said is None else said,
                importance=old.importance if importance is None else importance,
                attributes={name: value for name, value in merged.items() if more.get(name, value) is not None},
            )

        return await self._edit(self._scope(user_id), id, change)

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
        """Keep one thing under a key, in place of what was kept under it.

        It is what remember() does with `key=`, but another text replaces the old one, in one step, with whatever was
        made from it. The id stays, and so do layer and accesses. The arguments are those of remember().
        """
        scope = self._scope(user_id, session_id)
        turn, said = _one_turn(content, user_id=user_id, speaker=speaker, attributes=attributes, key=key)
        fields: dict[str, Any] = {
            "session_id": session_id, "speaker": speaker, "at": at, "importance": importance, "origin": origin,
            "trusted": trusted, "attributes": attributes,
        }  # fmt: skip
        now = await self._times.now(scope)
        said_now = Episode(
            id=keyed_id(scope, key, 0),
            text=said,
            at=turn.at or at or now,
            recorded_at=now,
            provenance=Provenance(turn.origin or origin, trusted=trusted),
            session_id=session_id,
            speaker=speaker_name(turn.speaker or speaker, user_id=user_id),
            importance=importance,
            attributes={**(attributes or {}), **turn.attributes},
        )
        change = partial(_restated, new=said_now, is_dated=bool(turn.at or at))
        for _ in range(TRIES):
            epoch, raced = await self.store.epoch(scope), False
            if await self.store.get(scope.for_user(), said_now.id) is None:
                done = await cast("_Remembers", self).remember(content, user_id=user_id, key=key, **fields)
                is_new = not any(skip.reason == OTHER_TEXT for skip in done.skipped)
                if is_new and await self.store.epoch(scope) == epoch:
                    return done
                # Somebody else wrote under this key at the same moment: what was made from their text has to go.
                raced = True
            with suppress(NotFound):  # it may be forgotten meanwhile
                return await self._edit(scope.for_user(), said_now.id, change, anew=raced)
        raise UsageError(f"what is kept under the key {key!r} is forgotten as fast as it is written; try again later")

    @overload
    async def promote(self, id: str, /, *, user_id: str, to: Layer | None = None) -> Episode: ...

    @overload
    async def promote(
        self, id: str, other: str, /, *more: str, user_id: str, to: Layer | None = None
    ) -> tuple[Episode, ...]: ...

    async def promote(self, *ids: str, user_id: str, to: Layer | None = None) -> Episode | tuple[Episode, ...]:
        """Move episodes up a layer, or into the layer named; of one id the episode is returned, of several a tuple.

        Raises:
            NotFound: the user has no episode of one of these ids; then none is moved.
        """
        scope = self._scope(user_id)
        if not ids:
            raise UsageError("promote() was given no id; recall() and list() give the ids")
        for id in ids if len(ids) > 1 else ():
            if not isinstance(await self.store.get(scope, id), Episode):
                raise NotFound(f"user {user_id!r} has no episode {id!r}, and none was moved; recall() gives the ids")
        moved = [await self._keeper.promote(scope, id, to) for id in dict.fromkeys(ids)]
        return moved[0] if len(ids) == 1 else tuple(moved)

    async def _edit(self, user: Scope, id: str, change: _EpisodeEdit, *, anew: bool = False) -> Remembered:
        """Write an episode as `change` makes it; with `anew`, whatever was made from it goes also if its text stays."""

        async def attempt(epoch: str) -> tuple[Episode, bool]:
            old = _episode(await self.store.get(user, id), id, user.user_id)
            new = change(old)
            is_other = anew or new.text != old.text
            if is_other:
                await self._rewrite(user, new, epoch)
            elif new != old:
                await self.store.write(user, put=[new], since=epoch)
            return new, is_other

        async def look_again(epoch: str) -> None:
            found = await self.store.get(user, id)
            if isinstance(found, Episode):
                await self._rewrite(user, found, epoch, is_again=True)

        async with self._locks.of(user):
            record, is_other = await retry_stale(self.store, user, attempt)
            if not is_other:
                return Remembered(kept=(record,))
            await retry_stale(self.store, user, look_again)
        if self._learning:
            self._learning.wake(user, [record])
        pending = await self.store.scrub() if isinstance(self.store, Scrubs) else ()
        return Remembered(kept=(record,), notes=(*await self._embed_current(user, record), *pending))

    async def _rewrite(self, user: Scope, new: Episode, epoch: str, *, is_again: bool = False) -> None:
        for learning in self._learnings:
            learning.interrupt(user)
        jobs, now = self._keeper.jobs(user, [new]), self._clock.now()
        try:
            await rewrite(
                self.store, user, new, neighbours=self._neighbours, now=now, jobs=jobs, epoch=epoch, is_again=is_again
            )
        finally:
            self._neighbours.forget(user)

    async def _embed_current(self, user: Scope, record: Episode) -> tuple[str, ...]:
        """Give a record the vector of the text that it has, also where another process changes that meanwhile."""
        embedded: str | None = None
        while record.text != embedded and (not record.sources or record.layer is Layer.L4):
            if notes := await self._keeper.embed(user, [record]):
                return notes
            embedded = record.text
            found = await self.store.get(user, record.id)
            record = found if isinstance(found, Episode) else record
        return ()


def _restated(old: Episode, *, new: Episode, is_dated: bool) -> Episode:
    """What is kept under a key as it is said now: in its place, layer and count of accesses."""
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
        raise UsageError(f"there is no kind {kind!r} of records; use one of {', '.join(get_args(RecordKind))}")
    parts: list[Filter] = [] if archived else [Eq("archived_at", None), Eq("superseded_at", None)]
    parts += [Eq("kind", kind)] if kind else []
    if layer is not None:
        layers = layer if isinstance(layer, Sequence) else (layer,)
        parts.append(In("layer", tuple(int(Layer(one)) for one in layers)))
    wanted = as_filter(where)
    return And(*parts, *([wanted] if wanted else []))


def _cleaned(text: str) -> str:
    said, skip = clean(text)
    if skip is not None:
        raise UsageError(f"the text {skip.text!r} cannot be kept: {skip.reason}")
    return said


def _one_turn(
    content: MemoryInput, *, user_id: str, speaker: str | None, attributes: Mapping[str, Scalar] | None, key: str
) -> tuple[Turn, str]:
    """The one turn that is kept under a key, and its text."""
    turns = check_turns(turns_of(content, user_id=user_id), speaker=speaker, attributes=attributes, key=key)
    if len(turns) != 1:
        raise UsageError(f"upsert() keeps one thing under its key and was given {len(turns)}; call it for each")
    return turns[0], _cleaned(turns[0].text)


def _episode(record: Record | None, id: str, user_id: str) -> Episode:
    if isinstance(record, Episode):
        return record
    if record is None:
        raise NotFound(f"user {user_id!r} has no record {id!r}; recall() and list() give the ids")
    instead = "state() asserts another" if isinstance(record, Fact) else "set_block() writes it"
    raise UsageError(f"{id!r} is a {record.kind}, and only episodes can be updated; {instead}")
