"""Files that earlier formats wrote load for ever, and go on."""

import shutil
from contextlib import aclosing
from pathlib import Path

import pytest

from loom.core.codec import from_bytes, log_from_dict
from loom.core.log import Recorded
from loom.stores.files import FileCheckpointStore
from loom.stores.sqlite import SqliteCheckpointStore
from loom.testing.conformance.checkpoint_store import CHAT, awkward_entries, save, texts_of
from loom.testing.fakes import START
from tests.stores.checkpoint_golden import ZOE, contents

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent / "golden_checkpoints"
every = pytest.mark.parametrize("kind", ["files", "sqlite"])
formats = pytest.mark.parametrize("format", sorted(folder.name for folder in GOLDEN.iterdir()))


def opened(kind, folder):
    return (
        FileCheckpointStore(folder / "sessions") if kind == "files" else SqliteCheckpointStore(folder / "sessions.db")
    )


@formats
@every
async def test_an_earlier_format_loads(kind, format, tmp_path):
    folder = tmp_path / format
    shutil.copytree(GOLDEN / format, folder)
    expected = from_bytes((folder / f"{kind}.json").read_bytes())
    async with aclosing(opened(kind, folder)) as store:
        found = await contents(store)
        assert [[log_from_dict(log) for log in scope] for scope in found] == [
            [log_from_dict(log) for log in scope] for scope in expected
        ]
        assert (await store.history(CHAT, "c4"))[: len(awkward_entries())] == awkward_entries()
        assert [one.id for one in await store.list(ZOE)] == ["c4", "c3"]
        if format != "format1":
            log = CHAT.for_session("recorded")
            assert [entry.body for entry in await store.recorded(log, kind="k")] == [b"late"]
            assert len(await store.list(log, attributes={"run": "r\u00e9"})) == 1
            newest = await store.load(log)
            assert await store.append(log, [Recorded("r0", START, "k", 1)], once=True) == newest
        last = await store.load(CHAT)
        await save(store, CHAT, "new", "goes on", after=last)
        assert (await texts_of(store, CHAT, "new"))[-2:] == ["on", "goes on"]


@formats
@every
def test_an_exported_log_of_an_earlier_format_loads(kind, format):
    documents = [log for scope in from_bytes((GOLDEN / format / f"{kind}.json").read_bytes()) for log in scope]
    assert documents
    for document in documents:
        checkpoint, entries = log_from_dict(document)
        assert checkpoint.position == len(entries) > 0
