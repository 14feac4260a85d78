"""`loom store` and `loom doctor`, through the installed command."""

import json
import subprocess
import sys

import anyio
import apsw
import pytest

from loom.engine.urls import Opening, store_at
from loom.stores.sqlite import index
from loom.testing.conformance.suite import ALICE, BOB, a_block, a_fact, a_job, an_episode
from loom.testing.servers import free_port, postgres
from tests.commands import LOOM, run_loom


@pytest.fixture
def loom(tmp_path):
    def run(*args, code=0, **environ):
        done = run_loom(
            [LOOM, *args],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "COLUMNS": "200", **environ},
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def fill(where):
    """Two users, with vectors and a job."""

    async def work():
        store = store_at(where, Opening())
        await store.bind("cli:1:2", 2)
        await store.put(ALICE, an_episode(), a_fact(), a_block())
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        await store.write(BOB, put=[an_episode("b", "coffee")], jobs=[a_job(scope=BOB)])
        await store.aclose()

    anyio.run(work)


def test_sweep_leaves_no_bytes_of_what_was_forgotten(loom, tmp_path):
    where = f"sqlite:{tmp_path}/m.db"
    fill(where)
    loom("memory", "forget", "--url", where, "--user", "alice", "--yes")
    assert json.loads(loom("store", "sweep", where, "--json").stdout) == {"pending": []}
    assert "there is nothing at" in loom("store", "sweep", "sqlite:other.db", code=2).stderr
    with postgres() as server:
        loom("store", "init", server.url())
        fill(server.url("loom_app"))
        assert "no bytes" in loom("store", "sweep", server.url()).stdout
        assert "connect as an administrator" in loom("store", "sweep", server.url("loom_app"), code=2).stderr


def harm(path):
    db = apsw.Connection(str(path))
    db.execute("DELETE FROM postings WHERE user = 1")
    db.close()


def test_verify_says_what_differs_and_repairs_it(loom, tmp_path, monkeypatch):
    monkeypatch.setattr(index, "TAIL", 1)  # so that there is an index to harm
    fill(f"sqlite:{tmp_path}/m.db")
    assert "no difference" in loom("store", "verify", "sqlite:m.db").stdout
    harm(tmp_path / "m.db")
    said = loom("store", "verify", "sqlite:m.db", code=1).stdout
    assert "alice" in said
    assert "bob" not in said
    assert "--repair" in said
    found = json.loads(loom("store", "verify", "sqlite:m.db", "--json", code=1).stdout)
    assert not found["is_right"]
    assert found["parts"][0]["difference"]["by_user"][0]["missing"] > 0
    assert found["parts"][0]["difference"]["by_user"][0]["what"] == "words"
    assert "everything was repaired" in loom("store", "verify", "sqlite:m.db", "--repair").stdout
    assert json.loads(loom("store", "verify", "sqlite:m.db", "--json").stdout)["is_right"]


def test_the_store_may_be_given_with_url_as_everywhere_else(loom, tmp_path):
    loom("store", "init", "--url", "sqlite:m.db")
    fill(f"sqlite:{tmp_path}/m.db")
    for command, *more in (("verify", "--repair"), ("sweep",)):
        as_word = loom("store", command, "sqlite:m.db", *more).stdout
        assert loom("store", command, "--url", "sqlite:m.db", *more).stdout == as_word
    assert loom("doctor", "--url", "sqlite:m.db").stdout == loom("doctor", "sqlite:m.db").stdout
    for command in ("init", "verify", "sweep"):
        assert "no store is given; name it" in loom("store", command, code=2).stderr
    for command in (("store", "init"), ("store", "verify"), ("store", "sweep"), ("doctor",)):
        assert "given twice" in loom(*command, "sqlite:m.db", "--url", "sqlite:m.db", code=2).stderr


def test_verify_of_an_index(loom, tmp_path):
    fill(f"qdrant:{tmp_path}/v")
    import shutil

    found = json.loads(loom("store", "verify", "qdrant:v", "--json").stdout)
    assert [part["part"] for part in found["parts"]] == ["primary", "store"]
    shutil.rmtree(tmp_path / "v" / "collection")
    (tmp_path / "v" / "meta.json").unlink()
    said = loom("store", "verify", "qdrant:v", code=1).stdout
    assert "vectors" in said
    loom("store", "verify", "qdrant:v", "--repair")
    loom("store", "verify", "qdrant:v")
    assert "nothing to verify" in loom("store", "verify", "inmemory").stdout


def test_what_is_not_there_is_not_made(loom, tmp_path):
    for place in ("sqlite:no.db", "qdrant:no", "composite:?primary=sqlite:no.db", "chroma:no"):
        for command in (("store", "verify"), ("doctor",), ("store", "copy")):
            more = ("inmemory",) if "copy" in command else ()
            assert "there is nothing at" in loom(*command, place, *more, code=2).stderr
    assert list(tmp_path.iterdir()) == []


def test_copy_counts_both_sides(loom, tmp_path):
    fill(f"sqlite:{tmp_path}/m.db")
    said = loom("store", "copy", "sqlite:m.db", "sqlite:copy.db").stdout
    assert "2 users; 4 records and checkpoints written" in said
    assert said.count("same") == 5  # a line for each kind, however many users there are
    assert "alice" not in said
    found = json.loads(loom("store", "copy", "sqlite:m.db", "sqlite:copy.db", "--json").stdout)
    assert (found["is_equal"], found["written"], found["users"]) == (True, 0, 2)
    assert {kind["kind"] for kind in found["kinds"]} == {"episode", "fact", "block", "vector", "job"}

    async def add():
        store = store_at(f"sqlite:{tmp_path}/copy.db", Opening())
        await store.put(ALICE, an_episode("more"))
        await store.aclose()

    anyio.run(add)
    said = loom("store", "copy", "sqlite:m.db", "sqlite:copy.db", code=1).stdout
    assert f"! {ALICE.user_id}: episode differs" in said
    assert "0 users" in loom("store", "copy", "sqlite:m.db", "sqlite:none.db", "--namespace", "other").stdout
    assert "same URL" in loom("store", "copy", "sqlite:m.db", "sqlite:m.db", code=2).stderr


HALTING = """
import sys
from loom.cli import main
from loom.stores.sqlite import SqliteStore

write, written = SqliteStore.write, 0

async def write_and_halt(store, scope, **changes):
    global written
    done = await write(store, scope, **changes)
    written += len(changes.get("put", ()))
    if written >= 400:
        print("halted", flush=True)
        sys.stdin.readline()
    return done

SqliteStore.write = write_and_halt
main()
"""
"""`loom`, which halts when it has written some of many records, so that it can be killed there."""


def test_a_copy_that_was_killed_goes_on(tmp_path, loom):
    async def many():
        store = store_at(f"sqlite:{tmp_path}/m.db", Opening())
        for start in range(0, 4000, 500):
            await store.put(ALICE, *(an_episode(f"{start + number:05}") for number in range(500)))
        await store.aclose()

    anyio.run(many)
    command = [sys.executable, "-c", HALTING, "store", "copy", "sqlite:m.db", "sqlite:copy.db"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        halted = running.stdout.readline()
        running.kill()
    assert halted == b"halted\n"
    there = count(tmp_path / "copy.db")
    assert 400 <= there < 4000
    found = json.loads(loom("store", "copy", "sqlite:m.db", "sqlite:copy.db", "--json").stdout)
    assert found["is_equal"]
    assert found["written"] == 4000 - there
    assert count(tmp_path / "copy.db") == 4000


def count(path):
    """How many records a file has."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return db.execute("SELECT count(*) FROM records").fetchone()[0]
    finally:
        db.close()


def test_init_then_doctor_of_postgres(loom):
    with postgres(passwords=True) as server:
        admin, app = server.url(), server.url("loom_app", password="s3cret")
        assert "loom store init" in loom("doctor", server.url("postgres"), code=1).stdout
        made = loom("store", "init", admin, LOOM_APP_PASSWORD="s3cret")
        assert "postgresql://loom_app@127.0.0.1" in made.stdout
        assert "s3cret" not in made.stdout
        assert "store" in json.loads(loom("store", "init", admin, "--password", "s3cret", "--json").stdout)
        fill(app)
        found = json.loads(loom("doctor", app, "--json").stdout)
        assert found[0]["failure"] is None
        assert "s3cret" not in str(found)
        assert "nothing to verify" in loom("store", "verify", app).stdout
        assert "hunter2" not in loom("doctor", server.url("loom_app", password="hunter2"), code=1).stdout


def test_init_of_postgres_for_one_role(loom):
    import psycopg

    with postgres() as server:
        with psycopg.connect(server.url(), autocommit=True) as db:
            db.execute("CREATE ROLE jeeves LOGIN")
            db.execute("CREATE DATABASE jeeves OWNER jeeves")
        url = server.url("jeeves", database="jeeves")
        assert "--one-role" in loom("store", "init", url, code=2).stderr
        assert "belongs to the role of this URL" in loom("store", "init", url, "--one-role").stdout
        fill(url)
        (found,) = json.loads(loom("doctor", url, "--json").stdout)
        assert "could switch it off" in found["labels"]["isolation"]
        assert "could switch that off" in found["labels"]["notes"]


def test_init_of_postgres_with_partitions_and_moving_to_more(loom):
    with postgres() as server:
        admin, app = server.url(), server.url("loom_app")
        assert "spread over 2 partitions" in loom("store", "init", admin, "--partitions", "2").stdout
        fill(app)
        assert "spread over 5 partitions" in loom("store", "init", admin, "--partitions", "5").stdout
        assert "spread over 5 partitions" in loom("store", "init", admin).stdout
        (found,) = json.loads(loom("doctor", app, "--json").stdout)
        assert found["labels"]["schema"].endswith(", 5 partitions")
        assert "partitions" in loom("store", "init", admin, "--partitions", "0", code=2).stderr


def test_doctor_of_a_file_and_of_nothing(loom, tmp_path):
    fill(f"sqlite:{tmp_path}/m.db")
    said = loom("doctor", "sqlite:m.db").stdout
    for word in ("answers", "durability", "isolation", "index", "embedder", "cli:1:2", "schema", "apsw"):
        assert word in said
    said = loom("doctor", f"redis://127.0.0.1:{free_port()}/0", code=1).stdout
    assert "does not answer" in said
    assert "the backends are" in loom("doctor", "cassandra://x", code=2).stderr


def test_doctor_of_a_model_that_cannot_be_used(loom):
    said = loom("doctor", LOOM_MODEL="bad", code=1).stdout
    assert "cannot be used: 'bad' names no model; write provider:model" in said
    assert json.loads(loom("doctor", "--json", LOOM_MODEL="bad", code=1).stdout)["model_failure"]


def test_doctor_of_the_installation(loom):
    said = loom("doctor").stdout
    assert "LOOM_MODEL is not set" in said
    assert "extra postgres" in said
    found = json.loads(loom("doctor", "--json", LOOM_MODEL="openai:x").stdout)
    assert found["model"] == "openai:x"
    assert found.keys() == {"python", "loom", "extras", "embedder", "model", "model_failure"}
