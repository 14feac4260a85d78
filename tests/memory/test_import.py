"""Reading an export: batch by batch, and what is said when a line cannot be read."""

import json

import pytest

from loom.engine import open_memory
from loom.errors import UsageError
from loom.memory._upkeep import portable

pytestmark = pytest.mark.anyio

DEEP = '{"kind": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(portable, "_PAGE", 10)
    return open_memory("inmemory", embedder="hash")


async def exported(memory, amount=25):
    await memory.remember([f"note {n}" for n in range(amount)], user_id="alice", session_id="s")
    return [line async for line in memory.export(user_id="alice")]


async def test_batches_give_what_one_would(memory):
    lines = await exported(memory)
    done = await memory.import_(iter(lines), user_id="bob")
    assert len(done.kept) == 25
    assert [line async for line in memory.export(user_id="bob")] == lines
    ids = [record.id for record in done.kept]
    alice, bob = [await memory.store.search_keys(memory._scope(user), *ids) for user in ("alice", "bob")]
    assert len(alice) == 25
    assert bob == alice  # the keys and the vectors too
    again = await memory.import_(lines, user_id="bob")
    assert len(again.skipped) == 25


async def test_a_line_that_cannot_be_read_is_named_with_what_is_imported(memory):
    lines = await exported(memory)
    broken = [*lines[:15], '{"kind": }', *lines[15:]]
    with pytest.raises(UsageError, match=r"line 16 is not JSON .*; lines 1 to 10 are imported; correct it and"):
        await memory.import_(broken, user_id="bob")
    assert (await memory.stats(user_id="bob"))["L1"] == 9  # the first line says the format
    done = await memory.import_(lines, user_id="bob")
    assert (len(done.kept), len(done.skipped)) == (25, 9)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (DEEP, "is nested too deeply to be read"),
        ("[]", "is not a JSON object"),
        ('{"kind": "dream"}', "kind='dream'"),
        ('{"loom": "memory", "format": 99}', "has format 99"),
        ("{", "is not JSON"),
    ],
)
async def test_in_the_first_batch_nothing_is_imported(memory, line, said):
    with pytest.raises(UsageError, match=rf"{said}.*; nothing was imported$"):
        await memory.import_([*(await exported(memory))[:5], line], user_id="bob")
    assert set((await memory.stats(user_id="bob")).values()) == {0}


async def test_a_file_can_be_read_in_pieces(memory):
    lines = await exported(memory)
    await memory.import_(lines[:20], user_id="bob")
    with pytest.raises(UsageError, match=r"line 22 is not JSON .*; lines 1 to 20 are imported"):
        await memory.import_([lines[20], "{"], user_id="bob", start=20)


@pytest.mark.parametrize("form", ["jq -c", "byte order mark"])
async def test_what_other_programs_do_to_an_export_is_read(memory, form):
    lines = await exported(memory)
    changed = {
        "jq -c": [json.dumps(json.loads(line), separators=(",", ":")) for line in lines],
        "byte order mark": ["\ufeff" + lines[0], *lines[1:]],
    }
    assert len((await memory.import_(changed[form], user_id="bob")).kept) == 25


async def test_each_batch_is_written_before_the_next_is_read(memory):
    lines, taken, seen = await exported(memory), [], []

    def watched():
        for line in lines:
            taken.append(line)
            yield line

    await memory.import_(watched(), user_id="bob", progress=lambda done, total: seen.append((done, total, len(taken))))
    assert seen == [(9, 9, 10), (19, 19, 20), (25, 25, 26)]
