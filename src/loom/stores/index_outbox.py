"""The outbox of an index: what is about to change is written down in the truth first, and crossed out afterwards.

A mark says which vectors may differ between the truth and the index. It is written before the change, so that whatever
dies in between leaves a mark, and nothing but looking there is needed to put the index right. Marks are records of a
scope of their own; those that are done go with the next mark, so that a change costs one more commit and not two.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from loom.core.clock import Clock
from loom.core.ids import RecordIds
from loom.core.record import Episode, Provenance
from loom.core.scope import Scope
from loom.stores.delegating import Truth

OUTBOX = Scope(namespace="loom.index", user_id="outbox")
_SUBJECT = "mark"
_PAGE = 100


@dataclass(frozen=True, slots=True)
class Mark:
    """What may differ: these vectors of a user, all of theirs without ids, or those of all users without a user."""

    id: str
    at: datetime
    user: Scope | None = None
    ids: tuple[str, ...] | None = None


class Outbox:
    """The marks of one index, of this process and of others."""

    def __init__(self, truth: Truth, clock: Clock) -> None:
        self._truth = truth
        self._clock = clock
        self._ids = RecordIds(clock)
        self._done: list[str] = []

    async def write(self, user: Scope | None = None, ids: Sequence[str] | None = None) -> Mark:
        """Write down what is about to change."""
        mark = Mark(self._ids.next_id(), self._clock.now(), user, None if ids is None else tuple(ids))
        done = tuple(self._done)
        await self._truth.write(OUTBOX, put=[_record(mark)], delete=done)
        self._done = [id for id in self._done if id not in done]
        return mark

    def cross_out(self, mark: Mark) -> None:
        """Truth and index agree on this; the mark goes at the next occasion."""
        self._done.append(mark.id)

    async def flush(self) -> None:
        """Let the marks go that are crossed out."""
        done, self._done = self._done, []
        if done:
            await self._truth.delete(OUTBOX, *done)

    async def marks(self) -> tuple[Mark, ...]:
        """The marks that are not crossed out, the oldest first."""
        found: list[Mark] = []
        after: str | None = None
        while page := await self._truth.list(OUTBOX, after=after, limit=_PAGE):
            found += [_mark(record) for record in page if isinstance(record, Episode)]
            after = page[-1].id
        return tuple(mark for mark in found if mark.id not in self._done)


def _record(mark: Mark) -> Episode:
    user = None if mark.user is None else [mark.user.namespace, mark.user.user_id]
    stored = json.dumps({"user": user, "ids": mark.ids})
    source = Provenance("derived")
    return Episode(
        id=mark.id, text=_SUBJECT, at=mark.at, recorded_at=mark.at, provenance=source, attributes={_SUBJECT: stored}
    )


def _mark(record: Episode) -> Mark:
    stored = json.loads(str(record.attributes[_SUBJECT]))
    user = None if stored["user"] is None else Scope(*stored["user"])
    return Mark(record.id, record.at, user, None if stored["ids"] is None else tuple(stored["ids"]))
