"""Makes the golden files of the checkpoint stores. Run: python -m tests.stores.checkpoint_golden FOLDER.

The files of each format are written once, by the Loom that had it, and then never again: what they hold must load for
ever. A new format gets a new folder.
"""

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path

from loom.core.codec import log_to_dict, to_bytes
from loom.core.log import Recorded
from loom.core.scope import Scope
from loom.stores.files import FileCheckpointStore
from loom.stores.sqlite import SqliteCheckpointStore
from loom.testing import FakeClock
from loom.testing.conformance.checkpoint_log import BODIES
from loom.testing.conformance.checkpoint_store import (
    CHAT,
    awkward_checkpoint,
    awkward_entries,
    everything,
    save,
    save_turns,
)
from loom.testing.fakes import START

ZOE = Scope("n\u00e9", "zo\u00eb", "../up")
SCOPES = (CHAT.for_user(), ZOE.for_user())


async def fill(store):
    """Every kind of entry, a branch, a fork, a deleted checkpoint that others continue, and a pruned session."""
    entries = awkward_entries()
    first = awkward_checkpoint(len(entries))
    await store.save(CHAT, first, entries=entries, head=None)
    second = await save(store, CHAT, "c2", "tea", "tea", after=first)
    await save(store, CHAT, "c3", "branch", after=first)
    await save(store, CHAT, "c4", "on", after=second)
    await store.fork(CHAT, "c2", session_id="fork")
    await store.delete(CHAT, "c2")
    await save_turns(store, ZOE, "c1", "c2", "c3", "c4")
    await store.prune(ZOE, keep=2)
    recorded = [Recorded(f"r{n}", START, f"kind {n}", body) for n, body in enumerate(BODIES) if len(str(body)) < 10_000]
    await store.append(CHAT.for_session("recorded"), recorded, attributes={"run": "r\u00e9"})
    await store.append(CHAT.for_session("recorded"), [recorded[0], Recorded("late", START, "k", b"late")], once=True)


async def contents(store):
    """What the store holds, as JSON text."""
    return [[log_to_dict(checkpoint, log) for checkpoint, log in await everything(store, scope)] for scope in SCOPES]


async def make(folder):
    clock = FakeClock()
    async with aclosing(FileCheckpointStore(folder / "sessions", clock=clock)) as store:
        await fill(store)
        expected = await contents(store)
    (folder / "sessions" / "lock").unlink()
    (folder / "files.json").write_bytes(to_bytes(expected))
    async with SqliteCheckpointStore(folder / "sessions.db", clock=clock) as store:
        await fill(store)
        (folder / "sqlite.json").write_bytes(to_bytes(await contents(store)))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    asyncio.run(make(target))
