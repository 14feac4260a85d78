"""Forgets beside everything else and looks for what comes back.

Run: python -m benchmarks.erasure [sqlite|postgres|redis] [RUNS].

In every run a user says a word that occurs nowhere else. Then one thing is done (remember, metabolize, import, a turn
of an agent with a compaction and its saves) and at a random moment of it the record, its session or the whole user is
forgotten: by the same memory, by another one in the process, or by another process. Afterwards no record, key or
session may hold the word, and no turn may be lost that was not forgotten. At the end all files are searched for the
bytes of all words: those of SQLite as they are, those of a server after the sweep that the receipts name.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from loom import Agent, open_memory
from loom.admin.maintenance import erase_user, sweep_store
from loom.core.scope import Scope
from loom.errors import NotFound
from loom.stores.postgres import init_schema
from loom.testing import ScriptedModel
from loom.testing.servers import postgres, redis

MARK = "zxcanary"
SESSION = "talk"
LONGEST = 0.03
"""Seconds after which the forget comes at the latest."""
COMPACTION = {"trigger": {"type": "messages", "threshold": 4}, "retain": {"type": "messages", "count": 2}}
RUNS = {"sqlite": 2000, "postgres": 300, "redis": 300}


@dataclass
class Outcome:
    """What was seen."""

    runs: Counter[str] = field(default_factory=Counter[str])
    left: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])


@dataclass
class Scene:
    """One run: a user, the word, the id of what was said, and who is at work."""

    url: str
    user: str
    word: str
    said: str
    one: Any
    agent: Agent


class OtherProcess:
    """A process of its own that forgets when it is told to."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def started(cls, url: str) -> OtherProcess:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "benchmarks.erasure", "--child", url)
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))

    async def forget(self, *ids: str, user_id: str, session_id: str | None = None, whole: bool = False) -> None:
        order = {"ids": ids, "user_id": user_id, "session_id": session_id, "whole": whole}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        answer = await self._process.stdout.readline()
        if answer.strip() != b"done":
            raise RuntimeError(f"the other process said {answer!r}")

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


async def child(url: str) -> None:
    """Forget what the lines of standard input name."""
    loop = asyncio.get_running_loop()
    async with open_memory(url, embedder="hash") as memory:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            order = json.loads(line)
            if order.pop("whole"):
                await erase_user(url, order["user_id"])
            else:
                await memory.forget(*order.pop("ids"), **order)
            print("done", flush=True)


async def remember(scene: Scene) -> str | None:
    done = await scene.one.remember("Shall we go on?", user_id=scene.user, session_id=SESSION)
    return done.kept[0].id


async def metabolize(scene: Scene) -> None:
    await scene.one.metabolize(user_id=scene.user)


async def import_(scene: Scene) -> None:
    lines = [line async for line in scene.one.export(user_id=scene.user)]
    await scene.one.import_([line for line in lines if scene.word not in line], user_id=scene.user)


async def turn(scene: Scene) -> None:
    with suppress(NotFound):  # it was forgotten while it ran
        await scene.agent.run("Go on.", user_id=scene.user, session_id=SESSION)


CALLS: dict[str, Callable[[Scene], Awaitable[str | None]]] = {
    "remember": remember,
    "metabolize": metabolize,
    "import": import_,
    "turn": turn,
}


async def run(outcome: Outcome, scene: Scene, who: Any, *, how: str, what: str, call: str) -> None:
    """Do the call, forget at a random moment of it, and look."""

    async def forget() -> None:
        await asyncio.sleep(random.random() * LONGEST)
        if call == "turn" and isinstance(who, OtherProcess):
            await who.forget(user_id=scene.user, whole=True)
        elif call == "turn":
            await scene.agent.forget(scene.user)
        elif what == "record":
            await who.forget(scene.said, user_id=scene.user)
        else:
            await who.forget(user_id=scene.user, session_id=SESSION if what == "session" else None)

    name = f"{call} / {'person' if call == 'turn' else what} / {how}"
    outcome.runs[name] += 1
    try:
        kept, _ = await asyncio.gather(CALLS[call](scene), forget())
    except Exception as error:  # noqa: BLE001 - whatever it was, it is counted
        outcome.errors.append(f"{name}: {type(error).__name__}: {error}")
        return
    await scene.one.metabolize(user_id=scene.user)
    if found := await left_of(scene):
        outcome.left.append(f"{name}: {found}")
    if what == "record" and kept and await scene.one.store.get(Scope("default", scene.user), kept) is None:
        outcome.lost.append(name)


async def left_of(scene: Scene) -> list[str]:
    """What still holds the word, as far as anybody can ask."""
    user = Scope("default", scene.user)
    records = await scene.one.store.list(user, limit=10_000)
    left = [record.id for record in records if scene.word in record.text]
    found = await scene.one.store.search_keys(user, *(record.id for record in records))
    left += [f"{id}.{kind}" for id, how in found.items() for kind, text in how.keys.items() if scene.word in text]
    session = await scene.agent.session(user_id=scene.user, session_id=SESSION)
    return [*left, *(["session"] if scene.word in f"{session.log}" else [])]


@asynccontextmanager
async def staged(url: str, number: int, call: str, one: Any) -> AsyncGenerator[Scene]:
    """A user who has said the word, two turns before the end of the session."""
    user, word = f"user{number}", f"{MARK}{number:06d}"
    async with Agent(model=ScriptedModel(lambda _: "Noted."), memory=url, compaction=COMPACTION) as agent:
        if call == "turn":
            for text in (f"My PIN is {word}.", "Nice weather.", "Yes."):
                await agent.run(text, user_id=user, session_id=SESSION)
            said = ""
        else:
            await one.remember("I live in Oslo.", user_id=user, session_id="earlier")
            said = (await one.remember(f"I live in {word.capitalize()}.", user_id=user, session_id=SESSION)).kept[0].id
            word = word.capitalize()
            for text in ("Nice weather.", "Yes."):
                await one.remember(text, user_id=user, session_id=SESSION)
        yield Scene(url, user, word, said, one, agent)


async def campaign(url: str, runs: int) -> Outcome:
    """So many runs, one after the other."""
    outcome = Outcome()
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(open_memory(url, embedder="hash"))
        second = await stack.enter_async_context(open_memory(url, embedder="hash"))
        other = await OtherProcess.started(url)
        who = {"same object": one, "second object": second, "second process": other}
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("forgetting", total=runs)
            for number in range(runs):
                how, call = random.choice(list(who)), random.choice(list(CALLS))
                what = random.choice(("record", "session", "user"))
                async with staged(url, number, call, one) as scene:
                    await run(outcome, scene, who[how], how=how, what=what, call=call)
                bar.advance(task)
        await other.stop()
    return outcome


def bytes_left(folder: Path) -> dict[str, int]:
    """How often a word stands in the files of a folder, in whatever case."""
    counts = {
        str(path.relative_to(folder)): path.read_bytes().lower().count(MARK.encode())
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".log")
    }
    return {name: count for name, count in counts.items() if count}


@contextmanager
def place(backend: str) -> Any:
    """The URL of an empty store, that of its administrator, and the folder of its files."""
    if backend == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:{folder}/memory.db", f"sqlite:{folder}/memory.db", Path(folder)
    elif backend == "postgres":
        with postgres() as server:
            asyncio.run(init_schema(server.url()))
            yield server.url("loom_app"), server.url(), server.folder
    else:
        with redis(appendfsync="everysec") as server:
            yield server.url(), server.url(), server.folder


def main(backend: str, runs: int) -> int:
    """Run the campaign and print what was seen."""
    random.seed(4711)
    with place(backend) as (url, admin, folder):
        outcome = asyncio.run(campaign(url, runs))
        pending = asyncio.run(sweep_store(admin))
        left = bytes_left(folder)
    out = Console()
    for name, count in sorted(outcome.runs.items()):
        out.print(f"{count:6}  {name}")
    out.print(
        f"{backend}: {runs} runs, {len(outcome.left)} with something left, {len(outcome.lost)} turns lost, "
        f"{len(outcome.errors)} errors; canary bytes in files after the sweep: {left or 0}; pending: {pending}"
    )
    for line in (*outcome.left, *outcome.lost, *outcome.errors)[:20]:
        out.print(f"  {line}", markup=False)
    return bool(outcome.left or outcome.lost or outcome.errors or left)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        asyncio.run(child(sys.argv[2]))
    else:
        chosen = sys.argv[1] if len(sys.argv) > 1 else "sqlite"
        sys.exit(main(chosen, int(sys.argv[2]) if len(sys.argv) > 2 else RUNS[chosen]))
