"""A SQLite store whose statements forget whose rows they touch is caught: one planted leak each."""

import apsw
import pytest

from loom.core.scope import Scope
from loom.stores.sqlite import SqliteStore, file, index
from loom.stores.sqlite.connection import connect
from loom.stores.sqlite.index import SearchCache
from loom.testing.conformance import MemoryStoreSuite
from loom.testing.fakes import FakeClock
from tests.stores.test_sqlite_crash import USER, found_in, write_canaries
from tests.testing.laws import broken_laws

pytestmark = pytest.mark.anyio

NEVER_MEET = "test_scopes_never_meet"
NOBODY_ELSE = "test_forgetting_one_user_touches_nobody_else"
TWO_RECORDS = "test_the_same_id_of_two_users_is_two_records"
NON_INTERFERENCE = "test_a_user_cannot_tell_whether_others_exist"


def everybodys(sql):
    """What a statement says, and what it says when it forgets the user: `<> -?` holds for all, and takes the value."""
    return sql, sql.replace("user = ?", "user <> -?")


LEAKS = {
    "looks up ids of everybody": (everybodys("WHERE r.user = ? AND r.id = ?"), TWO_RECORDS),
    "lists everybody": (everybodys("WHERE r.user = ? AND 1 ORDER BY r.id"), NEVER_MEET),
    "counts everybody": (
        ("SELECT records FROM users WHERE user = ?", "SELECT sum(records) FROM users WHERE user <> -?"),
        NEVER_MEET,
    ),
    "reads everybody's words": (everybodys("user = ? AND run = runs.value"), NON_INTERFERENCE),
    "shares the average length": (
        (
            "texts, words FROM lengths WHERE user = ?",
            "sum(texts), sum(words) FROM lengths WHERE user <> -? GROUP BY signal",
        ),
        NON_INTERFERENCE,
    ),
    "loads everybody's vectors": (everybodys("FROM vectors WHERE user = ?"), NON_INTERFERENCE),
    "takes user ids for patterns": (("namespace = ? AND user_id = ?", "namespace = ? AND user_id LIKE ?"), NEVER_MEET),
    "takes user ids for prefixes": (
        ("FROM users WHERE namespace = ? AND user_id = ?", "FROM users WHERE namespace = ? AND instr(user_id, ?) = 1"),
        NEVER_MEET,
    ),
    "drops the namespace": (("WHERE namespace = ? AND", "WHERE namespace <> ? || '.' AND"), NEVER_MEET),
    "ignores the session": (
        ("(r.layer IS NULL OR r.session_id = ?)", "(r.layer IS NULL OR r.session_id <> ? || '.')"),
        "test_a_session_deletes_only_what_it_sees",
    ),
    "leases everybody's jobs": (
        ("u.namespace = ? AND u.user_id = ?", "u.namespace <> -? AND u.user_id <> -?"),
        NON_INTERFERENCE,
    ),
    "shares the keys of jobs": (everybodys("SELECT key, id FROM jobs WHERE user = ?"), NON_INTERFERENCE),
    "touches everybody's": (everybodys("coalesce(accessed_at, ?)) WHERE r.user = ?"), NON_INTERFERENCE),
    "prunes everybody's": (everybodys("FROM records AS r WHERE r.user = ? AND r.layer = ?"), NON_INTERFERENCE),
    "forgets those who came later": (
        ("DELETE FROM records WHERE user = ?", "DELETE FROM records WHERE user >= ?"),
        NOBODY_ELSE,
    ),
    "forgets everybody's words": (everybodys("DELETE FROM postings WHERE user = ?"), NOBODY_ELSE),
    "forgets everybody's jobs": (everybodys("DELETE FROM jobs WHERE user = ?"), NON_INTERFERENCE),
}
"""Each leak: what a statement says, what it says instead, and the law that breaks."""

LEFT_BEHIND = {
    "keys": ("row INTEGER NOT NULL REFERENCES records (row) ON DELETE CASCADE,", "row INTEGER NOT NULL,"),
    "words": ("DELETE FROM postings WHERE user = ?", "DELETE FROM postings WHERE user = -?"),
    "kinds of keys": ("DELETE FROM lengths WHERE user = ?", "DELETE FROM lengths WHERE user = -?"),
    "the user's name": ("DELETE FROM users WHERE user = ?", "DELETE FROM users WHERE user = -?"),
    "bytes of removed rows": ("BEGIN IMMEDIATE", "PRAGMA secure_delete=OFF; BEGIN IMMEDIATE"),
}


@pytest.fixture(autouse=True)
def _indexed_at_once(monkeypatch):
    """Everything is indexed when it is written, however little it is."""
    monkeypatch.setattr(index, "TAIL", 1)


class Leaky:
    """A connection that says something else than it was told."""

    def __init__(self, db, old, new):
        self._db, self._old, self._new = db, old, new
        self.changed = self.refused = 0

    def __getattr__(self, name):
        return getattr(self._db, name)

    def _run(self, run, sql, bindings):
        self.changed += self._old in sql
        try:
            return run(sql.replace(self._old, self._new), bindings)
        except apsw.SQLError:
            self.refused += 1
            raise

    def execute(self, sql, bindings=()):
        return self._run(self._db.execute, sql, bindings)

    def executemany(self, sql, bindings):
        return self._run(self._db.executemany, sql, bindings)


@pytest.fixture
def plant(monkeypatch):
    """Plants a leak into every connection that writes; gives those connections."""

    def planted(old, new):
        made = []

        def leaky(path, **rules):
            db = connect(path, **rules)
            made.append(Leaky(db, old, new))
            return made[-1]

        monkeypatch.setattr(file, "connect", leaky)
        return made

    return planted


def fixtures():
    clock = FakeClock()
    return {"clock": clock, "store": SqliteStore(":memory:", clock=clock)}


@pytest.mark.parametrize("law", sorted({law for _, law in LEAKS.values()}))
async def test_a_sound_store_keeps_the_law(law, plant):
    plant("what no statement says", "")
    assert await broken_laws(MemoryStoreSuite, fixtures, law) == set()


@pytest.mark.parametrize("leak", LEAKS)
async def test_a_planted_leak_breaks_its_law(leak, plant):
    (old, new), law = LEAKS[leak]
    made = plant(old, new)
    assert await broken_laws(MemoryStoreSuite, fixtures, law) == {law}
    assert sum(db.changed for db in made) > 0
    assert sum(db.refused for db in made) == 0


async def test_vectors_held_under_the_wrong_user_break_non_interference(monkeypatch):
    near, held = SearchCache.near, []

    def of_the_first(cache, db, user, vector, sizes):
        held.append(user)
        return near(cache, db, held[0], vector, sizes)

    monkeypatch.setattr(SearchCache, "near", of_the_first)
    assert await broken_laws(MemoryStoreSuite, fixtures, NON_INTERFERENCE) == {NON_INTERFERENCE}


@pytest.mark.parametrize("rest", LEFT_BEHIND)
async def test_a_planted_rest_of_a_forgotten_user_is_found(rest, plant, tmp_path):
    plant(*LEFT_BEHIND[rest])
    eve = Scope(user_id=USER)
    async with SqliteStore(tmp_path / "memory.db") as store:
        await store.bind("test:4", 4)
        await write_canaries(store, eve)
        assert (await store.forget(eve)).pending == ()
        assert found_in(tmp_path) != []
