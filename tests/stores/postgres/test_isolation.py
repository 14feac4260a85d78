"""Users are kept apart twice: by every statement, and by the server. Each belt holds without the other."""

import re
from hashlib import sha256

import pytest

from loom.core.scope import Scope
from loom.errors import StoreError
from loom.stores.postgres import PostgresStore, connection, init_schema
from loom.stores.postgres import connection as owners
from loom.stores.postgres.connection import owner_of
from loom.stores.postgres.schema import TABLES
from loom.testing.conformance import MemoryStoreSuite, check_non_interference
from loom.testing.conformance.suite import ALICE, BOB, a_block, a_fact, a_job, an_episode, ids_of, listed
from loom.testing.fakes import FakeClock
from tests.testing.laws import broken_laws

psycopg = pytest.importorskip("psycopg")  # without it CI fails in the other files of this folder
pytestmark = pytest.mark.anyio

NEVER_MEET = "test_scopes_never_meet"
NOBODY_ELSE = "test_forgetting_one_user_touches_nobody_else"
TWO_RECORDS = "test_the_same_id_of_two_users_is_two_records"
NON_INTERFERENCE = "test_a_user_cannot_tell_whether_others_exist"


async def write_everything(store, scope, word="zeppelin"):
    """A row in every table."""
    await store.bind("test:3", 3)
    await store.put(scope, an_episode("e1", f"a {word}", session_id="s1"), a_fact(object=word), a_block(text=word))
    await store.put_keys(scope, {"e1": {"around": word}})
    await store.put_vectors(scope, {"e1": [1.0, 0.0, 0.0]})
    await store.write(scope, jobs=[a_job("j1", scope=scope), a_job("j2", scope=scope, payload={"word": word})])
    (lease,) = await store.lease(now=a_job().run_at, until=FakeClock().now().replace(year=2100), scope=scope)
    await store.fail(lease, reason=word, now=lease.until, retry_at=None)


class TestWithoutRowSecurity(MemoryStoreSuite):
    """As a superuser, whom row-level security does not bind: the statements alone keep every law."""

    @pytest.fixture
    async def store(self, clock, server):
        async with PostgresStore(server.admin, clock=clock, allow_owner=True) as store:
            yield store


@pytest.mark.parametrize("seed", range(100, 140))
async def test_a_user_cannot_tell_whether_others_exist(seed, server):
    async with PostgresStore(server.app, clock=FakeClock()) as store:
        await check_non_interference(store, seed, steps=60)


async def test_forget_leaves_no_row(server):
    async with PostgresStore(server.app, clock=FakeClock()) as store:
        await write_everything(store, BOB)
        only_bob = server.rows()
        of_sessions = {
            "checkpoint_nodes",
            "checkpoint_parts",
            "checkpoint_indexed",
            "checkpoint_entry_ids",
            "checkpoint_users",
        }
        assert {table for table, rows in only_bob.items() if not rows} == of_sessions
        await write_everything(store, ALICE)
        receipt = await store.forget(ALICE)
        assert receipt.removed == {"episode": 1, "fact": 1, "block": 1, "job": 1, "dead_letter": 1}
        assert "loom store sweep" in receipt.pending[0]
        assert server.rows() == only_bob
        assert server.execute("SELECT DISTINCT owner FROM loom.postings") == [(owner_of(BOB),)]
        await store.forget(BOB)
        assert set(server.rows().values()) == {0}


async def test_without_a_scope_nothing_is_seen_and_nothing_is_written(server):
    async with PostgresStore(server.app) as store:
        await write_everything(store, ALICE)
    with psycopg.connect(server.app, autocommit=True) as db:
        for table in TABLES:
            assert db.execute(f"SELECT count(*) FROM loom.{table}").fetchone() == (0,)
            assert db.execute(f"DELETE FROM loom.{table}").rowcount == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            db.execute("INSERT INTO loom.lengths VALUES (gen_random_uuid(), 'bm25', 1, 1)")
        for statement in ("UPDATE loom.meta SET value = '9'", "ALTER TABLE loom.records DISABLE ROW LEVEL SECURITY"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                db.execute(statement)


async def test_for_everybody_only_four_tables_open(server):
    """Leasing and exchanging vectors need them; words, keys and counts of others stay closed."""
    async with PostgresStore(server.app) as store:
        await write_everything(store, ALICE)
    with psycopg.connect(server.app) as db:
        db.execute("SELECT set_config('loom.everybody', 'on', true)")
        seen = {table for table in TABLES if db.execute(f"SELECT 1 FROM loom.{table}").fetchall()}
        assert seen == {"users", "records", "vectors", "jobs"}
        assert db.execute("DELETE FROM loom.records").rowcount == 0


async def scopes_left(store):
    """The scope and the search path that pooled connections carry outside of any call."""
    pool = await store._server.open()
    async with pool.connection() as db:
        asked = "SELECT coalesce(current_setting('loom.owner', true), '') || current_setting('search_path')"
        found = await db.execute(asked)
        return (await found.fetchone())[0]


async def test_no_scope_outlives_its_transaction(server):
    async with PostgresStore(server.app, pool_size=1) as store:
        await store.put(ALICE, an_episode())
        assert await scopes_left(store) == '"$user", public'


async def test_a_planted_scope_of_the_session_is_caught(server, monkeypatch):
    monkeypatch.setattr(connection, "BEGIN", connection.BEGIN.replace("', true)", "', false)"))
    async with PostgresStore(server.app, pool_size=1) as store:
        await store.put(ALICE, an_episode())
        assert str(owner_of(ALICE)) in await scopes_left(store)


UNSAFE = {
    "row security off": (
        "ALTER TABLE loom.records DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE loom.records ENABLE ROW LEVEL SECURITY",
        "does not force row-level security on records",
    ),
    "row security not forced": (
        "ALTER TABLE loom.vectors NO FORCE ROW LEVEL SECURITY",
        "ALTER TABLE loom.vectors FORCE ROW LEVEL SECURITY",
        "does not force row-level security on vectors",
    ),
    "one policy more": (
        "CREATE POLICY mine ON loom.keys USING (true)",
        "DROP POLICY mine ON loom.keys",
        "other policies than Loom's: keys.mine",
    ),
    "a policy that lets all through": (
        "ALTER POLICY scope ON loom.jobs USING (true)",
        "ALTER POLICY scope ON loom.jobs USING (owner = nullif(current_setting('loom.owner', true), '')::uuid)",
        "shows rows of jobs",
    ),
    "a scope for every connection": (
        f"ALTER ROLE loom_app SET loom.owner = '{owner_of(ALICE)}'",
        "ALTER ROLE loom_app RESET loom.owner",
        "shows rows of users to a transaction that names no user",
    ),
    "everybody for every connection": (
        "ALTER ROLE loom_app SET loom.everybody = 'on'",
        "ALTER ROLE loom_app RESET loom.everybody",
        "shows rows of users to a transaction that names no user",
    ),
    "a superuser": ("ALTER ROLE loom_app SUPERUSER", "ALTER ROLE loom_app NOSUPERUSER", "a superuser"),
    "a role that bypasses": ("ALTER ROLE loom_app BYPASSRLS", "ALTER ROLE loom_app NOBYPASSRLS", "bypass row-level"),
    "a member of the owner": ("GRANT loom_owner TO loom_app", "REVOKE loom_owner FROM loom_app", "an owner"),
}


@pytest.mark.parametrize("how", UNSAFE)
async def test_an_unsafe_server_is_refused(how, server):
    sql, back, said = UNSAFE[how]
    async with PostgresStore(server.app) as store:
        await write_everything(store, ALICE)
    with server.changed(sql, back), pytest.raises(StoreError, match=said):
        await PostgresStore(server.app).get(ALICE, "e1")
    async with PostgresStore(server.app) as store:
        assert await listed(store, ALICE) == ["block:persona", "e1", "f1"]


async def test_an_owner_is_let_in_only_if_told(server):
    with pytest.raises(StoreError, match="allow_owner=True"):
        await PostgresStore(server.admin).count(ALICE)
    async with PostgresStore(server.admin, allow_owner=True) as store:
        assert await store.count(ALICE) == 0


async def test_init_again_restores_what_was_loosened(server):
    async with PostgresStore(server.app) as store:
        await store.put(ALICE, an_episode())
    server.execute("ALTER TABLE loom.records DISABLE ROW LEVEL SECURITY")
    await init_schema(server.admin)
    async with PostgresStore(server.app) as store:
        assert await ids_of(store, ALICE, "tea") == ["e1"]


async def test_the_planner_keeps_no_sample_of_content(server):
    async with PostgresStore(server.app) as store:
        for number in range(30):
            await write_everything(store, Scope(user_id=f"user {number}"), word=f"zeppelin{number}")
    server.execute("ANALYZE")
    kept = server.execute("SELECT tablename, attname FROM pg_stats WHERE schemaname = 'loom'")
    assert ("records", "owner") in kept
    content = server.execute(
        "SELECT c.relname, a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid "
        "WHERE c.relnamespace = 'loom'::regnamespace AND a.atttypid IN ('text'::regtype, 'bytea'::regtype, 'bytea[]'::regtype, 'vector'::regtype)"
    )
    assert ("records", "text") in content
    assert set(kept) & set(content) == set()


LEAKS = {
    "looks up ids of everybody": (r"WHERE r\.owner = %s AND r\.id = g\.id", TWO_RECORDS),
    "reads the record of everybody": (r"WHERE r\.owner = %s AND r\.id = %s", TWO_RECORDS),
    "lists everybody": (r"WHERE r\.owner = %s AND r\.id > %s", NEVER_MEET),
    "counts everybody": (r"SELECT records FROM users WHERE owner = '[^']*'", NEVER_MEET),
    "counts everybody that fit": (r"count\(\*\) FROM records AS r WHERE r\.owner = %s", NOBODY_ELSE),
    "reads everybody's words": (r"WHERE p\.owner = %s AND p\.run = g\.run AND p\.term = ANY", NON_INTERFERENCE),
    "shares the average length": (r"l\.owner = %s", NON_INTERFERENCE),
    "compares everybody's vectors": (r"WHERE v\.owner = %s", NON_INTERFERENCE),
    "shows everybody's hits": (r"t\.number AND r\.owner = %s", NON_INTERFERENCE),
    "unindexes everybody": (r"WHERE p\.owner = %s AND p\.run = g\.run AND p\.term = g\.term", NON_INTERFERENCE),
    "touches everybody's": (r"WHERE r\.owner = %s AND r\.id = ANY\(%s\) AND r\.kind", NON_INTERFERENCE),
    "prunes everybody's": (r"WHERE owner = %s AND number = ANY", NON_INTERFERENCE),
    "shares the keys of jobs": (r"FROM jobs WHERE owner = %s", NON_INTERFERENCE),
    "counts everybody's jobs": (
        r"count\(\*\) FROM jobs AS j WHERE j\.dead_at IS NULL AND j\.owner = %s",
        NON_INTERFERENCE,
    ),
    "leases everybody's jobs": (r"j\.until <= %s\) AND j\.owner = %s", "test_jobs_are_leased_oldest_first"),
    "forgets everybody's jobs": (r"DELETE FROM jobs AS j WHERE j\.owner = %s", NON_INTERFERENCE),
    "forgets everybody's words": (r"DELETE FROM postings WHERE owner = %s$", NOBODY_ELSE),
    "forgets everybody's records": (r"DELETE FROM records WHERE owner = %s$", NOBODY_ELSE),
    "forgets everybody's lengths": (r"DELETE FROM lengths WHERE owner = %s$", NOBODY_ELSE),
}
"""Each leak: where a statement names the user and then forgets him, and the law that breaks."""


@pytest.fixture
def plant(monkeypatch):
    """Makes every statement that fits a pattern forget whose rows it touches; gives those statements."""

    def planted(pattern):
        met = []
        execute, executemany = psycopg.AsyncConnection.execute, psycopg.AsyncCursor.executemany

        def forgetful(sql):
            if not isinstance(sql, bytes):
                return sql
            # The digest of nobody: the condition takes the value and holds for all.
            changed = re.sub(
                pattern,
                lambda found: re.sub(r"owner = (%s|'[^']*')", r"owner::text <> 'x' || \1", found[0]),
                sql.decode(),
            )
            met.extend([changed] if changed != sql.decode() else [])
            return changed.encode()

        monkeypatch.setattr(
            psycopg.AsyncConnection, "execute", lambda db, sql, *a, **k: execute(db, forgetful(sql), *a, **k)
        )
        monkeypatch.setattr(
            psycopg.AsyncCursor, "executemany", lambda db, sql, *a, **k: executemany(db, forgetful(sql), *a, **k)
        )
        return met

    return planted


def fixtures(url, server):
    def made():
        server.empty()
        clock = FakeClock()
        return {"clock": clock, "store": PostgresStore(url, clock=clock, allow_owner=True)}

    return made


@pytest.mark.parametrize("leak", LEAKS)
async def test_a_planted_leak_breaks_its_law(leak, plant, server):
    """Where row-level security does not bind, as for a superuser, the laws notice."""
    pattern, law = LEAKS[leak]
    met = plant(pattern)
    assert await broken_laws(MemoryStoreSuite, fixtures(server.admin, server), law) == {law}
    assert met


MIXED_UP = {
    "drops the namespace": lambda scope: scope.user_id,
    "drops the user": lambda scope: scope.namespace,
    "folds case": lambda scope: scope.for_user().key().casefold(),
    "trims": lambda scope: f"{len(scope.namespace)}:{scope.namespace}{scope.user_id.strip()}",
}
"""Users told apart by less than their whole name: then the statements and the server are wrong alike."""


def mix_up(monkeypatch, name):
    monkeypatch.setattr(owners, "_digest", lambda scope: sha256(name(scope).encode()).digest())


@pytest.mark.parametrize("how", MIXED_UP)
async def test_users_that_are_mixed_up_break_the_law(how, monkeypatch, server):
    mix_up(monkeypatch, MIXED_UP[how])
    assert await broken_laws(MemoryStoreSuite, fixtures(server.app, server), NEVER_MEET) == {NEVER_MEET}


async def meetings(server):
    """Users who read what another wrote, of two whose names put together look the same."""
    server.empty()
    scopes = [Scope("a", "b:c"), Scope("a:b", "c")]
    async with PostgresStore(server.app) as store:
        for number, scope in enumerate(scopes):
            await store.put(scope, an_episode(f"e{number}"))
        return [scope for number, scope in enumerate(scopes) if await listed(store, scope) != [f"e{number}"]]


async def test_names_joined_without_their_lengths_meet(monkeypatch, server):
    assert await meetings(server) == []
    mix_up(monkeypatch, lambda scope: f"{scope.namespace}:{scope.user_id}")
    assert len(await meetings(server)) == 2


async def test_a_scope_left_on_a_pooled_connection_shows_nothing(plant, server):
    """Also to statements that forget whose rows they touch: every transaction sets its own."""
    async with PostgresStore(server.app, pool_size=1) as store:
        await write_everything(store, ALICE)
        met = plant("|".join(pattern for pattern, _ in LEAKS.values()))
        pool = await store._server.open()
        async with pool.connection() as db:
            await db.execute(f"SET loom.owner = '{owner_of(ALICE)}'".encode())
            await db.execute(b"SET loom.everybody = 'on'")
        assert str(owner_of(ALICE)) in await scopes_left(store)
        assert await listed(store, BOB) == []
        assert await ids_of(store, BOB, "zeppelin") == []
        assert (await store.get(BOB, "e1"), await store.count(BOB)) == (None, 0)
        assert met


@pytest.mark.parametrize("law", sorted({law for _, law in LEAKS.values()}))
async def test_the_server_stops_every_planted_leak(law, plant, server):
    """All of them at once: with row-level security, nothing leaks."""
    met = plant("|".join(pattern for pattern, _ in LEAKS.values()))
    assert await broken_laws(MemoryStoreSuite, fixtures(server.app, server), law) == set()
    assert met
