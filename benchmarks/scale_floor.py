"""The least that a search of words and vectors costs: plain numpy and plain FTS5 over what a Loom file holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loom.stores.sqlite.connection import Database, connect
from loom.text.words import query_terms

POOL = 200
"""As many candidates as Loom takes from each search."""

Vectors = NDArray[np.float32]


def milliseconds(action: Callable[[Any], object], asked: Sequence[Any]) -> list[float]:
    """The CPU time of each question, after one that does not count."""
    action(asked[0])
    found: list[float] = []
    for one in asked:
        start = time.process_time()
        action(one)
        found.append((time.process_time() - start) * 1000)
    return found


def read_vectors(path: Path, size: int) -> Vectors:
    """The first vectors of a file."""
    db = connect(str(path))
    matrix = np.empty((size, 256), np.float32)
    for place, (data,) in enumerate(db.execute("SELECT data FROM vectors ORDER BY number LIMIT ?", (size,))):
        matrix[place] = np.frombuffer(data, "<f4")
    db.close()
    return matrix


def numpy_floor(matrix: Vectors, asked: Vectors) -> list[float]:
    """The product of each row and the query, and the best; `matrix @ query` would start threads, and cost more."""
    return milliseconds(lambda query: np.argpartition(np.vecdot(matrix, query), -POOL)[-POOL:], list(asked))


def usearch_floor(matrix: Vectors, asked: Vectors) -> list[float] | None:
    """The exact search of usearch, if that is installed."""
    if find_spec("usearch") is None:
        return None
    module: Any = import_module("usearch.index")
    return milliseconds(lambda q: module.search(matrix, q, POOL, module.MetricKind.IP, exact=True), list(asked))


def make_fts(path: Path) -> Database:
    """An empty FTS5 table with stems."""
    db = connect(str(path), synchronous="OFF")
    db.execute("CREATE VIRTUAL TABLE said USING fts5(text, tokenize='porter unicode61')")
    return db


def fill_fts(db: Database, texts: Sequence[str]) -> None:
    """Add texts in one transaction."""
    db.execute("BEGIN")
    db.executemany("INSERT INTO said VALUES (?)", ((text,) for text in texts))
    db.execute("COMMIT")


def fts_floor(db: Database, asked: Sequence[str]) -> list[float]:
    """The best by BM25 that hold any of the words that Loom would look for."""
    sql = "SELECT rowid, text FROM said WHERE said MATCH ? ORDER BY rank LIMIT ?"
    queries = [" OR ".join(f'"{term}"' for term in query_terms(question)) for question in asked]
    return milliseconds(lambda query: db.execute(sql, (query, POOL)).fetchall(), queries)
