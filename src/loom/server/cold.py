"""One user's memory in a SQLite file, read without the engine: the profile, and recall by words alone.

A host waits for its hooks, and to load the engine takes longer than all they do. The rules are the engine's own: which
records are shown, how a row is read, how a profile is made. Recall is a part of the engine's: the words of each record
by BM25, without vectors, turns around a record, names and times, so it finds less where a question has other words.
"""

# ruff: noqa: S608 - only names of columns stand in SQL; every value is bound
from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from math import log
from struct import iter_unpack
from typing import Final, NamedTuple

import apsw

from loom.core.checks import MAX_QUERY, RANKED
from loom.core.filter import And, Eq, Filter, Not, Range
from loom.core.record import Episode, Record
from loom.core.scope import Scope
from loom.memory._shared import is_candidate
from loom.protocols.memory_store import Query
from loom.stores._sql import Condition
from loom.stores.sqlite.connection import (
    SELECTED,
    SQLITE,
    Database,
    condition,
    find_user,
    from_row,
    number_of,
    one,
    row_of,
    rows,
    seen,
    sizes_of,
    translate_errors,
)
from loom.text.passages import best_passage, most_together
from loom.text.words import content_terms, query_terms, terms

FORMAT: Final = 5
"""The version of a file that is read here; the engine reads older ones too, and brings them to this one."""
ARE_SEARCHED: Final = And(Not(Eq("kind", "block")), Not(Range("id", low="ep:", high="ep;")))
"""Turns and facts; the episodes of whole sessions repeat their turns."""
LEAST_SHARE: Final = 0.35
"""The share of a question's words that one passage must have: at it the engine without vectors is as sure as a hook
has to be."""
_SURE_OF: Final = 5
"""Best hits whose words are compared with the question."""
_LOOKED_AT: Final = 60
"""Records that are read: the best by words."""
_MOST_ENTRIES: Final = 50_000
"""Entries of the word index that are counted, the rarest words first: those of a common word say little."""
_OWN: Final = "bm25"
_ENTRY: Final = "<IHH"
_ENTRY_BYTES: Final = 8
_K1, _B = 1.2, 0.75


class WordHit(NamedTuple):
    """A record that has words of a question, and the part of its text that has most of them."""

    record: Record
    score: float
    text: str


class ColdMemory:
    """One user's memory, open for reading; close() it."""

    def __init__(self, path: str, namespace: str, user_id: str) -> None:
        self._path, self._scope = path, Scope(namespace, user_id)
        with translate_errors(path):
            self._db: Database = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)  # pyright: ignore[reportAttributeAccessIssue]
        self._now = datetime.now(UTC)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def is_readable(self) -> bool:
        """Whether the file has the format that is read here."""
        with translate_errors(self._path):
            return one(self._db, "PRAGMA user_version") == (FORMAT,)

    def records(self, where: Filter) -> list[Record]:
        """The user's records that fit, by id."""
        with translate_errors(self._path):
            user, fits = find_user(self._db, self._scope), condition(where)
            sql = f"SELECT {SELECTED} FROM records AS r WHERE r.user = ? AND {fits.sql} ORDER BY r.id"
            found = [] if user is None else [from_row(row) for row in rows(self._db, sql, user, *fits.values)]
        return [record for record in found if fits.exact or where.matches(record)]

    def profile(self) -> dict[str, list[str]]:
        """The lines of the profile by title, as the engine makes them."""
        from loom.memory._facts.instructions import OF_PROFILE, profile_of  # noqa: PLC0415
        from loom.memory.config import MemoryConfig  # noqa: PLC0415

        budget = MemoryConfig().standing_tokens
        return profile_of(self.records(OF_PROFILE), standing_tokens=budget, now=self._now).groups()

    def said(self, session_id: str, speaker: str) -> list[str]:
        """What a speaker said in a conversation, in order."""
        own = Eq("kind", "episode"), Eq("sources", None), Eq("session_id", session_id), Eq("speaker", speaker)
        turns = [record for record in self.records(And(*own)) if isinstance(record, Episode)]
        return [turn.text for turn in sorted(turns, key=lambda turn: (turn.at, turn.id))]

    def recall(self, question: str) -> list[WordHit]:
        """What has the words of a question, best first; nothing where no record has enough of them."""
        if len(question) > MAX_QUERY:
            question = question.lstrip()[:MAX_QUERY]
        with translate_errors(self._path):
            user = find_user(self._db, self._scope)
            scores = {} if user is None else self._scores(user, query_terms(question))
            found = {} if user is None else self._shown(user, sorted(scores, key=lambda n: (-scores[n], -n)))
        stems, known = content_terms(question), set(query_terms(question))
        told = [(number, record) for number, record in found.items() if not _only_asks(record.text, known)]
        share = max((most_together(record.text, stems) for _, record in told[:_SURE_OF]), default=0)
        if share < LEAST_SHARE * len(stems):
            return []
        return [WordHit(record, scores[number], _passage(record.text, stems)) for number, record in told]

    def _shown(self, user: int, best: Sequence[int]) -> dict[int, Record]:
        """Those of the best that recall may return, by number, in their order."""
        query = Query(archived=True)
        shown, fits = SQLITE.shown(Condition(*seen(user, self._scope)), query, self._now), condition(ARE_SEARCHED)
        given = json.dumps([row_of(user, number) for number in best[:_LOOKED_AT]])
        sql = f"SELECT {SELECTED}, r.row FROM json_each(?) AS given CROSS JOIN records AS r ON r.row = given.value"
        found = rows(self._db, f"{sql} WHERE {shown.sql} AND {fits.sql}", given, *shown.values, *fits.values)
        records = {number_of(row[-1]): from_row(row) for row in found}
        told = {n: record for n, record in records.items() if ARE_SEARCHED.matches(record) and not is_candidate(record)}
        return {number: told[number] for number in best if number in told}

    def _scores(self, user: int, wanted: Sequence[str]) -> dict[int, float]:
        """BM25 of each number of the user that has one of the terms: what is indexed, and the newest texts."""
        sizes = sizes_of(self._db, user)
        lengths = "SELECT texts, words FROM lengths WHERE user = ? AND signal = ?"
        texts, words = one(self._db, lengths, user, _OWN) or (0, 0)
        held = self._indexed(user, wanted)
        for number, text in self._newest(user, sizes.indexed, sizes.size):
            times = Counter(terms(text))
            texts, words = texts + 1, words + times.total()
            for term in wanted:
                if term in times:
                    held[term].append((number, times[term], times.total()))
        scores: defaultdict[int, float] = defaultdict(float)
        left = _MOST_ENTRIES
        for term in sorted(held, key=lambda term: len(held[term])):
            entries, left = held[term], left - len(held[term])
            if left < 0 and scores:
                break
            idf = log(1 + (texts - len(entries) + 0.5) / (len(entries) + 0.5))
            for number, often, length in entries:
                scores[number] += idf * often * (_K1 + 1) / (often + _K1 * (1 - _B + _B * length * texts / words))
        return scores

    def _indexed(self, user: int, wanted: Sequence[str]) -> defaultdict[str, list[tuple[int, int, int]]]:
        """The entries of each term: a number, how often it has the term, and how many words in all."""
        blobs: defaultdict[str, list[bytes]] = defaultdict(list)
        run: int | None = -1
        named = json.dumps(wanted)
        while (run := self._next_run(user, run)) is not None:
            sql = (
                "SELECT term, entries FROM json_each(?) AS terms CROSS JOIN postings "
                "WHERE user = ? AND run = ? AND term = terms.value AND signal = ?"
            )
            for term, entries in rows(self._db, sql, named, user, run, _OWN):
                blobs[term].append(entries)
        held: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
        left = _MOST_ENTRIES * _ENTRY_BYTES
        for term, parts in sorted(blobs.items(), key=lambda item: sum(map(len, item[1]))):
            left -= sum(map(len, parts))
            if left < 0 and held:
                break
            held[term] = [entry for part in parts for entry in iter_unpack(_ENTRY, part)]
        return held

    def _next_run(self, user: int, run: int) -> int | None:
        found = one(self._db, "SELECT min(run) FROM postings WHERE user = ? AND run > ?", user, run)
        return None if found is None else found[0]

    def _newest(self, user: int, start: int, end: int) -> list[tuple[int, str]]:
        """The texts that are not indexed yet; of a long one, its beginning."""
        sql = f"SELECT {SELECTED}, r.row FROM records AS r WHERE r.row >= ? AND r.row < ?"
        found = rows(self._db, sql, row_of(user, start), row_of(user, end))
        return [(number_of(row[-1]), from_row(row).text[:RANKED]) for row in found]


def _only_asks(text: str, known: set[str]) -> bool:
    """Whether a text is a question that adds no word to the one that is asked."""
    return text.rstrip().endswith("?") and known.issuperset(query_terms(text))


def _passage(text: str, stems: Sequence[str]) -> str:
    span = best_passage(text, stems)
    return text if span is None else text[span.start : span.end]
