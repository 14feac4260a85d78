"""A turn is found by the turns around it, and SQLite, which writes no copy of their words, ranks as one that does."""

import random

import pytest

from loom import open_memory
from loom.core.checks import AROUND
from loom.core.scope import Scope
from loom.protocols.memory_store import Around, Query
from loom.stores.inmemory import InMemoryStore
from loom.stores.sqlite import SqliteStore, index
from loom.testing.conformance.suite import an_episode
from loom.testing.fakes import FakeClock
from tests.stores.sqlite_files import TO_FORMAT_3, execute

pytestmark = pytest.mark.anyio

USER = Scope(user_id="u")
WORDS = ["tea", "milk", "jam", "bread", "salt", "pepper", "rice", "beans"]


def a_text(chance):
    """Short, with line ends, as a question, or longer than its neighbours quote."""
    words = chance.choices(WORDS, k=chance.choice([1, 3, 8, AROUND // 3]))
    return chance.choice([" ", " ", "\n"]).join(words) + chance.choice(["", ".", "?"])


async def act(memory, step, chance, said):
    """One random change; ids follow from keys, so that they are the same in every store."""
    match chance.randrange(8):
        case 0 if said:
            gone = chance.choice(sorted(said))
            said.discard(gone)
            await memory.forget(gone, user_id="u")
        case 1 if said:
            await memory.update(chance.choice(sorted(said)), text=a_text(chance), user_id="u")
        case _:
            turns = [a_text(chance) for _ in range(chance.choice([1, 1, 2, 9]))]
            session = f"s{chance.randrange(3)}"
            done = await memory.remember(turns, user_id="u", session_id=session, key=f"k{step}")
            said.update(record.id for record in done.kept)


async def seen_in(store, seed):
    """What a random history leaves to be found, for which reasons, and by which keys."""
    chance, said = random.Random(seed), set()
    async with open_memory(store, clock=FakeClock(), with_facts=False) as memory:
        for step in range(25):
            await act(memory, step, chance, said)
        asked = [Query(text=text, limit=500) for text in (*WORDS, "tea jam salt")]
        hits = [hit for query in asked for hit in await store.search(USER, query)]
        keys = await store.search_keys(USER, *said)
        if isinstance(store, SqliteStore):
            assert (await store.verify()).is_equal
    return [(hit.item.id, {kind: round(score, 9) for kind, score in hit.why.items()}) for hit in hits], keys


@pytest.mark.parametrize("tail", [1, 3, 10_000])
@pytest.mark.parametrize("seed", range(8))
async def test_the_same_history_ranks_the_same_in_sqlite_and_in_memory(seed, tail, monkeypatch, small_blocks):
    monkeypatch.setattr(index, "TAIL", tail)
    hits, keys = await seen_in(SqliteStore(":memory:", clock=FakeClock()), seed)
    expected, expected_keys = await seen_in(InMemoryStore(clock=FakeClock()), seed)
    assert keys == expected_keys
    assert hits == expected
    assert any("bm25.around" in why for _, why in hits)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(index, "BLOCK", 5)
    monkeypatch.setattr(index, "SKETCHES", (index.SKETCH_WORDS * 8 + 1) * 5)


class PlainKeys(SqliteStore):
    """Writes keys as an older Loom did."""

    async def write(self, scope, **change):
        return await super().write(scope, **plain(change))

    async def write_embedded(self, scope, vectors, **change):
        return await super().write_embedded(scope, vectors, **plain(change))


def plain(change):
    keys = {id: {kind: str(text) for kind, text in texts.items()} for id, texts in change.pop("keys", {}).items()}
    return {**change, "keys": keys}


async def test_a_file_of_the_format_before_is_read_and_goes_on(tmp_path, monkeypatch):
    path, said = tmp_path / "memory.db", [f"{word} number{n}" for n, word in enumerate(WORDS * 3)]
    with monkeypatch.context() as patch:
        patch.setattr(index, "TAIL", 1)
        async with open_memory(PlainKeys(path), embedder="hash", with_facts=False) as memory:
            for text in said:
                await memory.remember(text, user_id="u", session_id="s")
            before = await memory.store.search(USER, Query(text="tea jam", limit=50))
    assert any("bm25.around" in hit.why for hit in before)
    assert execute(path, "SELECT count(*) FROM keys WHERE kind = 'around'") == [(len(said),)]
    execute(path, TO_FORMAT_3)
    async with open_memory(f"sqlite:{path}", embedder="hash", with_facts=False) as memory:
        assert await memory.store.search(USER, Query(text="tea jam", limit=50)) == before
        assert (await memory.store.verify()).is_equal
        for text in said:
            await memory.remember(f"{text} again", user_id="u", session_id="s")
        assert (await memory.store.verify()).is_equal
        hits = await memory.store.search(USER, Query(text="again", limit=500))
        assert len(hits) == len(said) + 2  # the last two of before have the first new one around them
        repaired = await memory.store.verify(repair=True)
        assert repaired.is_equal
    assert execute(path, "SELECT count(*) FROM keys WHERE kind = 'around'") == [(len(said) - 2,)]


async def test_a_turn_behind_an_unknown_one_keeps_its_text(tmp_path):
    async with SqliteStore(tmp_path / "memory.db") as store:
        await store.put(USER, an_episode("e1", "tea"))
        await store.put_keys(USER, {"e1": {"around": Around("milk\ntea", before="gone")}})
        assert [hit.item.id for hit in await store.search(USER, Query(text="milk"))] == ["e1"]
        assert (await store.search_keys(USER, "e1"))["e1"].keys == {"around": "milk\ntea"}
        await store.put_keys(USER, {"e1": {"around": Around("tea", before=None)}})
        assert await store.search(USER, Query(text="milk")) == ()
        assert (await store.search_keys(USER, "e1"))["e1"].keys == {"around": "tea"}


async def test_the_words_of_neighbours_are_not_written_again(tmp_path):
    path = tmp_path / "memory.db"
    async with open_memory(f"sqlite:{path}", embedder="hash", with_facts=False) as memory:
        for n in range(80):
            await memory.remember(f"turn {n} about zeppelins", user_id="u", session_id="s")
    assert execute(path, "SELECT count(*) FROM keys") == [(0,)]
    assert execute(path, "SELECT DISTINCT signal FROM postings") == [("bm25",)]
