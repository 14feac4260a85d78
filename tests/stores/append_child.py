"""A process that appends entries to one session, in pieces, some of them twice; its arguments say where and whose."""

import asyncio
import sys
from datetime import UTC, datetime

from loom.core.log import LoggedMessage, Recorded
from loom.core.message import Message
from loom.core.scope import Scope
from loom.engine import open_checkpoints

SHARED = Scope("default", "alice", "shared")
AT = datetime(2026, 1, 1, tzinfo=UTC)
PIECE = 4


def entry(id):
    """A message, or every third time something recorded."""
    number = int(id.partition("-")[2])
    return Recorded(id, AT, "test.state", {"n": number}) if number % 3 == 0 else LoggedMessage(id, AT, Message.user(id))


async def append(url, name, entries, once):
    """Append entries in pieces; with `once` each piece comes with the one before it, as after a lost answer."""
    store = open_checkpoints(url)
    try:
        for start in range(0, entries, PIECE):
            again = max(0, start - PIECE) if once else start
            await store.append(SHARED, [entry(f"{name}-{n}") for n in range(again, start + PIECE)], once=once)
    finally:
        await store.aclose()


if __name__ == "__main__":
    asyncio.run(append(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "once"))
