"""The word index: BM25 over each user's own texts, computed by the server.

A posting is one text that holds a term: how often, and how long the text is. Every statistic is of one user alone:
what others write changes no score.
"""

# ruff: noqa: S608 - only constants of this module stand in SQL; every value is bound

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from loom.core.words import terms
from loom.stores.postgres.connection import rows, run

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

OWN = "bm25"
"""The signal of a record's own text; that of a key is `bm25.KIND`."""
K1 = 1.2
B = 0.75

Texts: TypeAlias = Mapping[tuple[int, str], str]
"""Texts by record number and signal."""

_INSERT = (
    "INSERT INTO postings (owner, number, signal, term, times, length) "
    "SELECT %s, * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::int[], %s::int[])"
)
_COUNT = (
    "INSERT INTO lengths (owner, signal, texts, words) VALUES (%s, %s, %s, %s) ON CONFLICT (owner, signal) "
    "DO UPDATE SET texts = lengths.texts + excluded.texts, words = lengths.words + excluded.words"
)
_REMOVE = (
    "WITH gone AS (DELETE FROM postings WHERE owner = %s AND number = ANY(%s) AND (signal = %s OR %s::text IS NULL) "
    "RETURNING signal, number, times) SELECT signal, count(DISTINCT number), sum(times) FROM gone GROUP BY signal"
)


async def add(db: Database, owner: UUID, texts: Texts) -> None:
    """Index texts. What they replace must have been removed before."""
    entries: list[tuple[int, str, str, int, int]] = []
    totals: dict[str, list[int]] = {}
    for (number, signal), text in texts.items():
        counted = Counter(terms(text))
        if counted:
            length = counted.total()
            entries += [(number, signal, term, times, length) for term, times in counted.items()]
            total = totals.setdefault(signal, [0, 0])
            total[0] += 1
            total[1] += length
    if entries:
        await run(db, _INSERT, owner, *(list(column) for column in zip(*entries, strict=True)))
    for signal, (amount, words) in totals.items():
        await run(db, _COUNT, owner, signal, amount, words)


async def remove(db: Database, owner: UUID, numbers: Sequence[int], signal: str | None = None) -> None:
    """Take the texts of these records out, those of one signal or all."""
    if not numbers:
        return
    for gone, amount, words in await rows(db, _REMOVE, owner, list(numbers), signal, signal):
        await run(db, _COUNT, owner, gone, -amount, -words)
    await run(db, "DELETE FROM lengths WHERE owner = %s AND texts = 0", owner)


def scores(owner: UUID, words: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
    """A query for what each of the words adds to the score of each record and signal; every score is above 0."""
    return _SCORES, (owner, list(words), owner)


_LENGTH = f"{1 - B}::float8 + {B}::float8 * h.length * l.texts / l.words"
_WEIGHT = f"h.times * {K1 + 1}::float8 / (h.times + {K1}::float8 * ({_LENGTH}))"
_SCORES = f"""
SELECT h.number, h.signal, h.term,
    ln(1 + (l.texts - h.holding + 0.5::float8) / (h.holding + 0.5::float8)) * {_WEIGHT} AS score
FROM (
    SELECT p.number, p.signal, p.term, p.times::float8 AS times, p.length,
        count(*) OVER (PARTITION BY p.signal, p.term) AS holding
    FROM postings AS p WHERE p.owner = %s AND p.term = ANY(%s)
) AS h JOIN lengths AS l ON l.owner = %s AND l.signal = h.signal
"""
