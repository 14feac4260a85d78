"""Damaged data: noticed when it is read, said in words with what to do, found by verify, and never a raw error."""

import struct

import anyio
import pytest
from typer.testing import CliRunner

from loom.agent.agent import Agent
from loom.cli.app import app
from loom.core.scope import Scope
from loom.engine import open_memory
from loom.engine.open import open_checkpoints
from loom.errors import LoomError, StoreError
from loom.providers.embedding.local import HashEmbedder
from loom.stores.sqlite import SqliteStore, index
from loom.testing import ScriptedModel
from loom.testing.conformance.checkpoint_store import CHAT, save_turns
from loom.testing.conformance.suite import ALICE, BOB, a_block, a_fact, an_episode
from tests.engine import damaging
from tests.stores.sqlite_files import TO_FORMAT_3, execute

pytestmark = pytest.mark.anyio
RECORDS = [an_episode(), a_fact(), a_block()]


# -- campaigns --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _indexed_at_once():
    """Everything is indexed when it is written, so that the damage finds an index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "TAIL", 1)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "bot.db"
    anyio.run(damaging.make, path)
    return path


@pytest.mark.parametrize("seeds", [range(n, n + 12) for n in range(0, 72, 12)], ids=str)
async def test_flipped_bits_never_end_in_a_raw_error(whole, tmp_path, seeds):
    for seed in seeds:
        path = tmp_path / f"{seed}.db"
        damaging.flip_bits(whole, path, seed)
        raw, outcomes = await damaging.ask_everything(path)
        assert raw == [], f"seed {seed}"
        assert outcomes


@pytest.mark.parametrize("seeds", [range(n, n + 12) for n in range(0, 48, 12)], ids=str)
async def test_a_replaced_page_never_ends_in_a_raw_error(whole, tmp_path, seeds):
    for seed in seeds:
        path = tmp_path / f"{seed}.db"
        damaging.replace_page(whole, path, seed)
        raw, outcomes = await damaging.ask_everything(path)
        assert raw == [], f"seed {seed}"
        assert outcomes


async def test_the_same_calls_are_all_answered_where_nothing_is_damaged(whole, tmp_path):
    damaging.flip_bits(whole, tmp_path / "sound.db", 0, bits=0)
    raw, outcomes = await damaging.ask_everything(tmp_path / "sound.db")
    assert raw == []
    assert [name for name, outcome in outcomes if isinstance(outcome, LoomError)] == []
    assert all(part.is_right for name, found in outcomes if name.startswith("verify") for part in found)


# -- records ----------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    """A file with three records of one user and one of another."""

    async def fill():
        async with SqliteStore(tmp_path / "m.db") as store:
            await store.put(ALICE, *RECORDS)
            await store.put(BOB, an_episode("theirs"))

    anyio.run(fill)
    return tmp_path / "m.db"


@pytest.mark.parametrize(
    ("id", "change"),
    [
        ("e1", "text = 'We drank milk.'"),
        ("e1", "trusted = 1"),
        ("e1", "origin = 'operator'"),
        ("e1", "recorded_at = recorded_at + 1"),
        ("e1", "attributes = '{'"),
        ("e1", "text = CAST(x'ff41' AS TEXT)"),
        ("e1", "accesses = 'many'"),
        ("e1", "layer = 9"),
        ("e1", "user = (SELECT user FROM users WHERE user_id = 'bob')"),
        ("f1", "object = 'milk'"),
        ("f1", "superseded_at = 9"),
        ("f1", "confidence = 0.5"),
        ("block:persona", "text = 'other'"),
        ("block:persona", "version = version + 1"),
    ],
)
async def test_a_record_that_changed_on_the_disk_is_refused_found_and_removed(path, id, change):
    execute(path, f"UPDATE records SET {change} WHERE id = '{id}'")
    async with SqliteStore(path) as store:
        with pytest.raises(StoreError, match=r"m\.db is damaged: .*; run `loom store verify sqlite:.*m\.db --repair`"):
            await store.list(BOB if change.startswith("user") else ALICE)
        found = await store.verify()
        assert (len(found.damaged), found.is_equal) == (1, False)
        assert id in found.damaged[0]
        repaired = await store.verify(repair=True)
        assert repaired.is_repaired
        assert (await store.verify()).is_equal
        left = {record.id for record in await store.list(ALICE)}
        assert left == {record.id for record in RECORDS} - {id}
        assert [record.id for record in await store.list(BOB)] == ["theirs"]
        await store.put(ALICE, *[record for record in RECORDS if record.id == id])
        assert len(await store.list(ALICE)) == len(RECORDS)


async def test_records_of_an_older_loom_have_no_checksum_and_are_read(path):
    execute(path, f"{TO_FORMAT_3}; ALTER TABLE records DROP COLUMN checksum; PRAGMA user_version=2")
    async with SqliteStore(path) as store:
        assert {record.id: record for record in await store.list(ALICE)} == {record.id: record for record in RECORDS}
        assert (await store.verify()).is_equal
        await store.put(ALICE, an_episode(text="about coffee"))
    execute(path, "UPDATE records SET text = 'about milk' WHERE id = 'e1'")
    async with SqliteStore(path) as store:
        with pytest.raises(StoreError, match="record 'e1' is not what was written"):
            await store.get(ALICE, "e1")


async def test_an_access_an_archive_and_a_move_leave_the_checksum_alone(path):
    async with SqliteStore(path) as store:
        episode = await store.get(ALICE, "e1")
        await store.touch(ALICE, "e1", at=episode.at)
        await store.prune(ALICE, layer=episode.layer, keep=0)
        assert (await store.get(ALICE, "e1")).archived_at is not None
        assert (await store.verify()).is_equal


async def test_an_index_that_names_a_record_nobody_has_asks_for_no_memory(path):
    execute(path, f"UPDATE postings SET entries = x'{struct.pack('<IHH', 2**32 - 1, 1, 3).hex()}'")
    async with open_memory(f"sqlite:{path}") as memory:
        with pytest.raises(StoreError, match=r"the word index .* 4,294,967,295|it has a record 4,294,967,295"):
            await memory.recall("tea", user_id="alice")
        assert (await memory.store.verify(repair=True)).is_repaired
        assert (await memory.recall("tea", user_id="alice")).hits


@pytest.mark.parametrize("number", [2**40, -1, "'x'"])
async def test_an_absurd_count_of_records_asks_for_no_memory(path, number):
    execute(path, f"UPDATE users SET next_number = {number} WHERE user_id = 'alice'")
    async with open_memory(f"sqlite:{path}") as memory:
        with pytest.raises(StoreError, match="is damaged: user number 1 has"):
            await memory.recall("tea", user_id="alice")
        assert (await memory.store.verify(repair=True)).is_repaired
        assert (await memory.recall("tea", user_id="alice")).hits


@pytest.mark.parametrize("count", ["revision", "relinked", "vectors_gone", "removed"])
async def test_a_damaged_count_is_found_and_set_anew(path, count):
    async with open_memory(f"sqlite:{path}") as before:
        await before.recall("tea", user_id="alice")
        execute(path, f"UPDATE users SET {count} = 'x' WHERE user_id = 'alice'")
        async with open_memory(f"sqlite:{path}") as memory:
            assert not (await memory.store.verify()).is_equal
            assert (await memory.store.verify(repair=True)).is_repaired
            assert (await memory.store.verify()).is_equal
            await memory.remember("We drank tea in Oslo.", user_id="alice")
        (counted,) = execute(path, f"SELECT {count} FROM users WHERE user_id = 'alice'")[0]
        assert counted > 1e15, "what a process held from before the damage is not taken for the latest"
        assert {hit.item.text for hit in await before.recall("tea", user_id="alice")} >= {"We drank tea in Oslo."}


@pytest.mark.parametrize("data", ["x'00'", "zeroblob(1024)", "'text'"])
async def test_a_damaged_vector_leaves_words_to_search_by(tmp_path, data):
    async with open_memory(f"sqlite:{tmp_path}/m.db", embedder=HashEmbedder()) as memory:
        await memory.remember("We drank tea in Oslo.", user_id="alice")
    execute(tmp_path / "m.db", f"UPDATE vectors SET data = {data}")
    async with open_memory(f"sqlite:{tmp_path}/m.db", embedder=HashEmbedder()) as memory:
        found = await memory.recall("tea", user_id="alice")
        assert [hit.item.text for hit in found] == ["We drank tea in Oslo."]
        assert any("searched by words only" in note and "is damaged" in note for note in found.notes)


def test_the_command_says_which_record_is_damaged_and_that_it_was_removed(path):
    execute(path, "UPDATE records SET text = 'We drank milk.' WHERE id = 'e1'")
    run = CliRunner().invoke
    found = run(app, ["store", "verify", f"sqlite:{path}"])
    assert found.exit_code == 1
    assert "! record 'e1' is not what was written, of user 'alice'; --repair removes it" in found.stdout
    repaired = run(app, ["store", "verify", f"sqlite:{path}", "--repair"])
    assert (repaired.exit_code, "it was removed" in repaired.stdout) == (0, True)
    assert "no difference" in run(app, ["store", "verify", f"sqlite:{path}"]).stdout


# -- an agent, conversations, other stores ----------------------------------------------------------------


async def test_a_turn_goes_on_without_a_damaged_memory_and_says_so(tmp_path):
    url = f"sqlite:{tmp_path}/m.db"
    async with open_memory(url, embedder=HashEmbedder()) as memory:
        await memory.remember("My boat is green.", user_id="ann")
        await memory.assert_fact("user", "lives_in", "Oslo", user_id="ann")
    execute(tmp_path / "m.db", "UPDATE records SET text = 'My boat is red.'; UPDATE records SET object = 'Rome'")
    model = ScriptedModel(["I do not know."])
    async with Agent(model=model, memory=url, checkpoints=f"files:{tmp_path}/talks", facts="rules") as agent:
        result = await agent.run("Which colour is my boat?", user_id="ann")
    assert result.text == "I do not know."
    said = [note for note in result.notes if "nothing was recalled" in note]
    assert said
    assert "loom store verify" in said[0]


@pytest.fixture(params=["sqlite", "files", "postgres", "redis"])
def talks(request, tmp_path):
    """What kind of store conversations are kept in, and where."""
    here = {"sqlite": f"sqlite:{tmp_path}/c.db", "files": f"files:{tmp_path}/c"}
    return request.param, here.get(request.param) or request.getfixturevalue(f"{request.param}_url")


async def test_a_conversation_that_cannot_be_read_is_a_store_error(request, tmp_path, talks):
    kind, url = talks
    store = open_checkpoints(url)
    last = await save_turns(store, CHAT, "c1", "c2", "c3")
    await store.aclose()
    spoil(request, kind, tmp_path)
    store = open_checkpoints(url)
    with pytest.raises(StoreError, match=r"damaged|cannot be read|is not what was written"):
        await store.history(CHAT, last.id)
    await store.aclose()


async def test_flipped_bits_in_files_of_conversations_never_end_in_a_raw_error(tmp_path):
    whole = open_checkpoints(f"files:{tmp_path}/whole")
    last = await save_turns(whole, CHAT, *(f"c{n}" for n in range(8)))
    await whole.aclose()
    (log,) = (tmp_path / "whole").glob("*.log")
    refused = 0
    for seed in range(60):
        folder = tmp_path / str(seed)
        folder.mkdir()
        damaging.flip_bits(log, folder / log.name, seed)
        store = open_checkpoints(f"files:{folder}")
        for call, *more in ((store.load,), (store.list,), (store.history, last.id), (store.forget,)):
            try:
                await call(CHAT, *more)
            except LoomError:
                refused += 1
        await store.aclose()
    assert refused


def spoil(request, kind, tmp_path):
    """Change the stored parts of all conversations behind the store's back."""
    if kind == "sqlite":
        execute(tmp_path / "c.db", "UPDATE checkpoint_parts SET body = x'7b'")
    elif kind == "files":
        (log,) = (tmp_path / "c").glob("*.log")
        data = bytearray(log.read_bytes())
        data[len(data) // 3] ^= 1
        log.write_bytes(data)
    elif kind == "postgres":
        sql(request, "UPDATE loom.checkpoint_parts SET body = '{'")
    else:
        for key, field in hashes(request):
            if len(field) == 32:
                redis_client(request).hset(key, field, b"{")


async def test_a_row_of_postgres_that_cannot_be_read_is_a_store_error(request, postgres_url):
    async with open_memory(postgres_url) as memory:
        await memory.remember("We drank tea.", user_id="alice", attributes={"n": 1})
        sql(request, "UPDATE loom.records SET attributes = '{'")
        for call in (memory.recall("tea", user_id="alice"), memory.stats(user_id="alice")):
            with pytest.raises(
                StoreError, match=r"postgresql://.* is damaged: record '.*' cannot be read \(JSONDecode"
            ):
                await call


@pytest.mark.parametrize("value", [b"{", b"\xff\xfe", b'{"kind": "episode"}', b"[1]", b'{"kind": "song", "id": "x"}'])
async def test_a_value_of_redis_that_cannot_be_read_is_a_store_error(request, redis_url, value):
    async with open_memory(redis_url) as memory:
        kept = await memory.remember("We drank tea.", user_id="alice")
        id = kept.kept[0].id
        for key, field in hashes(request):
            if field == id.encode():
                redis_client(request).hset(key, field, value)
    async with open_memory(redis_url) as memory:
        for call in (memory.recall("tea", user_id="alice"), memory.stats(user_id="alice")):
            with pytest.raises(StoreError, match=rf"the Redis store at .* is damaged: .*{id}"):
                await call
        with pytest.raises(StoreError, match="cannot be read"):
            await memory.store.get(Scope(user_id="alice"), id)


def sql(request, statement):
    import psycopg

    with psycopg.connect(request.getfixturevalue("postgres_server").url(), autocommit=True) as db:
        db.execute(statement)


def redis_client(request):
    from redis import Redis

    return Redis.from_url(request.getfixturevalue("redis_server").url())


def hashes(request):
    """Every field of every hash on the server."""
    with redis_client(request) as client:
        return [(key, field) for key in client.keys("*") if client.type(key) == b"hash" for field in client.hkeys(key)]
