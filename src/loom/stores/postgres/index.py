"""The word index: rows of postings, which the server keeps and hands over, and whose scores are computed here.

A search reads the rows of its words, 8 bytes for each text that holds one of them, and adds them up in arrays, which
takes far less than to have the server join and sum as many rows. Every statistic is of one user alone: what others
write changes no score.
"""

# ruff: noqa: S608 - only constants of this module stand in SQL; every value is bound

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from loom.core.heavy import off_loop
from loom.core.words import query_terms
from loom.stores.damage import reading
from loom.stores.postgres.connection import fetch, run
from loom.stores.postings import Part, Place, TextChange, check_numbers, joined_run, parts_of, runs_of, without

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

# One row after another is looked up by its key: left to itself, a planner that knows little may read all of them.
_PLACES = (
    "FROM unnest(%b::bigint[], %b::text[], %b::text[]) AS g (run, term, signal) "
    "CROSS JOIN LATERAL (SELECT p.ctid, p.entries FROM postings AS p "
    "WHERE p.owner = %s AND p.run = g.run AND p.term = g.term AND p.signal = g.signal OFFSET 0) AS h"
)
_READ = f"SELECT g.run, g.term, g.signal, h.entries {_PLACES}"
_DROP = f"DELETE FROM postings WHERE owner = %s AND ctid = ANY(ARRAY(SELECT h.ctid {_PLACES}))"
_WRITE = (
    "INSERT INTO postings (owner, run, term, signal, entries) "
    "SELECT %s, * FROM unnest(%b::bigint[], %b::text[], %b::text[], %b::bytea[]) "
    "ON CONFLICT (owner, run, term, signal) DO UPDATE SET entries = "
)
_AT_ONCE = 2_000
"""Rows that are handed to the driver at once, which turns them into bytes on the event loop."""
_WORD = 6
"""Characters of a word, about."""
_SET = f"{_WRITE} excluded.entries"
_APPEND = f"{_WRITE} postings.entries || excluded.entries"
_JOIN = (
    "WITH small AS (DELETE FROM postings WHERE owner = %s AND run >= %s RETURNING *) "
    "INSERT INTO postings (owner, run, term, signal, entries) "
    "SELECT owner, %s, term, signal, string_agg(entries, '') FROM small GROUP BY owner, term, signal"
)
_COUNT = (
    "INSERT INTO lengths (owner, signal, texts, words) "
    "SELECT %s, * FROM unnest(%s::text[], %s::bigint[], %s::bigint[]) ON CONFLICT (owner, signal) "
    "DO UPDATE SET texts = lengths.texts + excluded.texts, words = lengths.words + excluded.words"
)
_ASKED = (
    "SELECT h.term, h.signal, h.entries, l.texts, l.words FROM unnest(%s::bigint[]) AS g (run) CROSS JOIN LATERAL "
    "(SELECT p.term, p.signal, p.entries FROM postings AS p "
    "WHERE p.owner = %s AND p.run = g.run AND p.term = ANY(%s) OFFSET 0) AS h "
    "JOIN lengths AS l ON l.owner = %s AND l.signal = h.signal"
)


async def read(work: Callable[[], object], *texts: str) -> None:
    """Take texts into a change or out of it; where they are long, in a thread."""
    await off_loop(sum(map(len, texts)), work)


async def write(db: Database, owner: UUID, change: TextChange, *, before: int, size: int) -> None:
    """Write a change of a user who had `before` numbers and now has `size`."""
    start = joined_run(before, size)
    if start is not None:
        await run(db, _JOIN, owner, start, start)
    chars = sum(words for _, words in change.lengths.values()) * _WORD
    added, gone = await off_loop(chars, lambda: (change.entries(size), change.gone(size)))
    if gone:
        await _take_out(db, owner, gone, added)
    places = list(added)
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        await run(db, _APPEND, owner, *_columns(some), [added[place] for place in some])
    if change.lengths:
        signals = list(change.lengths)
        counts = ([grown[place] for grown in change.lengths.values()] for place in (0, 1))
        await run(db, _COUNT, owner, signals, *counts)
    if any(texts < 0 for texts, _ in change.lengths.values()):
        await run(db, "DELETE FROM lengths WHERE owner = %s AND texts = 0", owner)


async def _take_out(db: Database, owner: UUID, gone: Mapping[Place, set[int]], added: dict[Place, bytes]) -> None:
    """Take numbers out of places; what is added to such a place is written with it, and taken from `added`."""
    held = {(run, term, signal): data for run, term, signal, data in await fetch(db, _READ, *_columns(gone), owner)}
    with reading("the word index"):
        rest = without(held, gone)
    left = {place: data + added.pop(place, b"") for place, data in rest.items()}
    kept = {place: data for place, data in left.items() if data}
    if kept:
        await run(db, _SET, owner, *_columns(kept), list(kept.values()))
    if len(kept) < len(left):
        await run(db, _DROP, owner, *_columns(left.keys() - kept.keys()), owner)


def _columns(places: Collection[Place]) -> list[list[Any]]:
    return [list(column) for column in zip(*places, strict=True)]


async def parts(db: Database, owner: UUID, text: str, size: int) -> list[Part]:
    """What each term of a text adds to each signal, where the user has `size` numbers; every score is above 0."""
    spoken: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    lengths: dict[str, tuple[int, int]] = {}
    asked = (list(runs_of(size)), owner, list(query_terms(text)), owner)
    for term, signal, entries, texts, words in await fetch(db, _ASKED, *asked):
        spoken[term, signal].append(entries)
        lengths[signal] = texts, words
    with reading("the word index"):
        found = parts_of(spoken, lengths)
        check_numbers(found, size)
    return found
