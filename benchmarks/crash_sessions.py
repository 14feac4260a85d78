"""Kills a saving process again and again and counts what is lost. Run: python -m benchmarks.crash_sessions [KILLS].

The child runs two sessions side by side, each going on from what the store last held, and now and then prunes; another
user saves, forks, deletes and forgets. It reports each acknowledgement on a pipe. After every kill the store must open
clean, and the last turns must restore to exactly the messages that were sent; before a store is left, every turn in it
must. Half of the kills hit the SQLite store, half the file store.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from loom.core.log import Checkpoint, LoggedMessage
from loom.core.message import Message
from loom.core.scope import Scope
from loom.protocols.model import ModelRequest
from loom.session.reply import Reply
from loom.session.session import Session
from loom.stores.files import FileCheckpointStore
from loom.stores.sqlite import SqliteCheckpointStore
from loom.stores.sqlite.connection import connect
from loom.testing import ScriptedModel

ALICE = Scope(user_id="alice")
AT = datetime(2026, 1, 1, tzinfo=UTC)
SESSIONS = ("one", "two")
LONGEST_SECONDS = 0.15
KILLS_PER_STORE = 20
KEPT = 30


def open_store(kind: str, folder: Path) -> Any:
    return (
        FileCheckpointStore(folder / "sessions") if kind == "files" else SqliteCheckpointStore(folder / "sessions.db")
    )


def say(*words: object) -> None:
    print(*words, flush=True)


def messages(session: str, turn: int) -> list[LoggedMessage]:
    """What a turn says: known from its number, so that the parent can tell what has to be there."""
    chance = random.Random(f"{session} {turn}")
    texts = [f"{role} {turn} " + chance.randbytes(chance.randrange(1_500)).hex() for role in ("user", "assistant")]
    said = (Message.user(texts[0]), Message.assistant(texts[1]))
    return [LoggedMessage(f"{session}-{turn}-{n}", AT, message) for n, message in enumerate(said)]


async def resumed(store: Any, name: str) -> Session:
    """A session that goes on from what the store holds, with a model that says what is due in each turn."""

    def answer(request: ModelRequest) -> str:
        turn = int(request.messages[-1].text.split()[1])
        return messages(name, turn)[1].message.text

    session = Session(model=ScriptedModel(answer), checkpoints=store, session_id=name, user_id=ALICE.user_id)
    if await store.load(session.scope) is not None:
        await session.restore()
    return session


async def take_turn(session: Session) -> Reply:
    """The next turn of a session."""
    return await session.send(messages(session.id, session.turn + 1)[0].message)


async def chat(store: Any, name: str, chance: random.Random) -> None:
    session = await resumed(store, name)
    while True:
        reply = await take_turn(session)
        say("saved", name, reply.turn)
        if chance.random() < 0.03:
            await store.prune(session.scope, keep=KEPT)
            say("pruned", name, max(0, reply.turn - KEPT))


async def disturb(store: Any, name: str) -> None:
    """Another user forks, deletes and forgets all the time; a forgotten session must not come back."""
    eve = Scope(user_id=f"eve-{name}", session_id="source")
    for n in range(1_000_000):
        checkpoint = Checkpoint(id=f"e{n}", session_id="source", at=AT, position=2, turn=1)
        await store.save(eve, checkpoint, entries=messages("eve", n), head=None)
        fork = await store.fork(eve, checkpoint.id, session_id=f"fork-{n}")
        await store.delete(eve, checkpoint.id)
        await store.forget(eve.for_session(fork.session_id))
        say("forgot", eve.user_id, n)


async def child(kind: str, folder: str, turn: int) -> None:
    chance = random.Random(turn)
    async with aclosing(open_store(kind, Path(folder))) as store, asyncio.TaskGroup() as group:
        for session in SESSIONS:
            group.create_task(chat(store, session, chance))
        group.create_task(disturb(store, str(turn)))


def run_and_kill(kind: str, folder: Path, turn: int, chance: random.Random) -> list[list[str]]:
    command = [sys.executable, "-m", "benchmarks.crash_sessions", "--child", kind, str(folder), str(turn)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()  # the moments are spread over saving, not over starting Python
    time.sleep(chance.random() * LONGEST_SECONDS)
    process.kill()
    rest, errors = process.communicate()
    if errors:
        raise SystemExit(f"the child failed by itself:\n{errors}")
    said = [line.split() for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]
    return [words for words in said if len(words) == 3]  # a line that the kill tore acknowledges nothing


def is_clean(kind: str, folder: Path) -> bool:
    """Whether the SQLite file is sound; the file store checks each record when it is read."""
    if kind == "files":
        return True
    db = connect(str(folder / "sessions.db"))
    found = db.execute("PRAGMA integrity_check").fetchall()
    db.close()
    return found == [("ok",)]


async def check(kind: str, folder: Path, acknowledged: list[list[str]], *, all_turns: bool) -> dict[str, int]:
    """Compare what the store restores with what was acknowledged: the last turns, or all that are there."""
    found = {"acknowledged": 0, "turns lost": 0, "turns restored wrong": 0, "forgotten but there": 0}
    async with aclosing(open_store(kind, folder)) as store:
        for session in SESSIONS:
            scope = ALICE.for_session(session)
            saved = {int(turn) for what, name, turn in acknowledged if (what, name) == ("saved", session)}
            found["acknowledged"] += len(saved)
            for checkpoint in await store.list(scope, limit=None if all_turns else 2):
                due = tuple(one for turn in range(1, checkpoint.turn + 1) for one in messages(session, turn))
                log = await store.history(scope, checkpoint.id)
                said = [entry.message for entry in log if isinstance(entry, LoggedMessage)]
                found["turns restored wrong"] += said != [one.message for one in due]
            # Nothing is pruned but what is older than the newest KEPT.
            there = {checkpoint.turn for checkpoint in await store.list(scope)}
            found["turns lost"] += sum(turn not in there for turn in saved if turn > max(there, default=0) - KEPT)
        for user in {name for what, name, _ in acknowledged if what == "forgot"}:
            left = await store.list(Scope(user_id=user))
            done = max(int(n) for what, name, n in acknowledged if (what, name) == ("forgot", user))
            found["forgotten but there"] += sum(
                one.id == f"e{done}" or one.session_id == f"fork-{done}" for one in left
            )
    return found


def main(kills: int) -> None:
    chance, total = random.Random(kills), {"kills": 0, "unclean": 0}
    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        acknowledged: dict[Path, list[list[str]]] = {}
        for turn in progress.track(range(kills), description="killing"):
            kind = ("sqlite", "files")[turn % 2]
            # A new store now and then, so that a kill also hits the very first saves.
            place = Path(folder) / f"{kind}{turn // (2 * KILLS_PER_STORE)}"
            place.mkdir(exist_ok=True)
            said = acknowledged.setdefault(place, [])
            said += run_and_kill(kind, place, turn, chance)
            total["kills"] += 1
            total["unclean"] += not is_clean(kind, place)
            is_last = (turn // 2 + 1) % KILLS_PER_STORE == 0 or turn >= kills - 2
            counts = asyncio.run(check(kind, place, said, all_turns=is_last))
            for name, count in counts.items():
                total[name] = total.get(name, 0) + (count if is_last or name != "acknowledged" else 0)
    Console().print(total)
    bad = {name: count for name, count in total.items() if count and name not in {"kills", "acknowledged"}}
    if bad:
        raise SystemExit(f"broken promises: {bad}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        asyncio.run(child(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
