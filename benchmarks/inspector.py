"""What a page of the inspector costs. Run: python -m benchmarks.inspector [--store FOLDER] [--json].

Two stores are made through the public API, or taken from the folder if they are there: a plain one with 3 users, 50
conversations, 5,000 records and 2,000 requests, and an ugly one: a conversation of 5,000 turns, a message of 2 MB, a
user with 20,000 facts, a graph of 3,000 names. Then every page is asked for, in this process, through the whole server:
CPU of all threads, the middle of several tries, and the size of the HTML.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import process_time
from typing import Any
from urllib.parse import quote

import httpx
from rich.console import Console
from rich.progress import track
from rich.table import Table

from loom import Agent, Fact, Provenance, open_checkpoints, open_memory
from loom.context.cache.simulate import common_length
from loom.core.log import Checkpoint, LoggedMessage
from loom.core.message import Message, TextPart, Usage
from loom.core.scope import Scope
from loom.protocols.model import ModelRequest, ModelResponse
from loom.server.http.app import create_app
from loom.testing import ScriptedModel

USERS = ("ann", "ben", "cleo")
SESSIONS = 50
REQUESTS = 2_000
RECORDS = 5_000
TRIES = 3
PLAIN_LIMIT, UGLY_LIMIT = 0.3, 1.0
"""Seconds of CPU for a page of each store."""
MOST_HTML = 1_500_000

_WORDS = [
    "harbour",
    "garden",
    "library",
    "railway",
    "bakery",
    "orchestra",
    "vineyard",
    "observatory",
    "market",
    "mill",
    "bridge",
    "tower",
]
_INSTRUCTIONS = "You help the people who run a small town. " + " ".join(
    f"Rule {n}: answer questions about the {_WORDS[n % 12]} with care." for n in range(60)
)


class CachingModel(ScriptedModel):
    """Answers at once, and reports what a provider with a prefix cache would read and write of each prompt."""

    def __init__(self) -> None:
        super().__init__(self._answer, name="anthropic:claude-sonnet-4-5", context_window=10_000_000)
        self._last = ""

    def _answer(self, request: ModelRequest) -> ModelResponse:
        assert request.rendered is not None
        body: Any = request.rendered.body
        text = json.dumps([body.get("system"), body["messages"]])
        same = common_length(text, self._last) // 4
        self._last = text
        size = len(text) // 4
        usage = Usage(input=size, output=40, cache_read=same, cache_write=size - same)
        self.requests.clear()
        answer = f"The {_WORDS[size % 12]} is open from {size % 12} to {size % 24}, and the {_WORDS[same % 12]} too."
        return ModelResponse(
            parts=(TextPart(answer),),
            stop="end",
            usage=usage,
            model=self.name,
            reported={"read": same, "write": size - same},
        )


async def make_plain(url: str) -> None:
    """The plain store."""
    config = {"keep_requests": True}
    async with Agent(_INSTRUCTIONS, model=CachingModel(), memory=url, config=config, facts="rules") as agent:
        for number in track(range(SESSIONS), "conversations"):
            user, name = USERS[number % 3], f"talk-{number:02}"
            for turn in range(REQUESTS // SESSIONS):
                text = f"Question {turn}: when does the {_WORDS[(number + turn) % 12]} open, and who has the key?"
                await agent.run(text, user_id=user, session_id=name)
    async with open_memory(url) as memory:
        for user in USERS:
            for n in track(range(300), f"facts of {user}"):
                await memory.assert_fact(f"{_WORDS[n % 12]} {n // 2}", "keeper", f"person {n % 40}", user_id=user)
            here = await memory.store.count(Scope("default", user))
            for n in track(range(here, RECORDS // 3 + 1), f"notes of {user}"):
                text = f"Note {n}: the {_WORDS[n % 12]} needs a new {_WORDS[n * 7 % 12]} key, says {_WORDS[n % 5]}."
                await memory.remember(text, user_id=user, session_id=f"notes-{n // 100}")
            for n in range(8):
                await memory.set_block("plan", f"Step {n}: rebuild the {_WORDS[n]}.", user_id=user)
            await memory.instruct("Always answer in short sentences.", user_id=user)


async def make_ugly(url: str) -> None:
    """The ugly store; what a program would write one by one is written to the stores in batches."""
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    async with aclosing(open_checkpoints(url)) as saved:
        scope, head = Scope("default", "long", "five-thousand"), None
        for start in track(range(0, 10_000, 100), "a long conversation"):
            entries = [
                LoggedMessage(
                    f"m{n}",
                    begun + timedelta(minutes=n),
                    Message(
                        "assistant" if n % 2 else "user", (TextPart(f"Line {n} about the {_WORDS[n % 12]}. " * 6),)
                    ),
                )
                for n in range(start, start + 100)
            ]
            point = Checkpoint(
                id=f"c{start}",
                session_id="five-thousand",
                at=begun + timedelta(minutes=start),
                position=start + 100,
                turn=(start + 100) // 2,
                parent=head,
            )
            await saved.save(scope, point, entries=entries, head=head)
            head = point.id
        wide = Scope("default", "long", "two-megabytes")
        message = LoggedMessage("m", begun, Message("user", (TextPart("a long line of words " * 100_000),)))
        await saved.save(
            wide,
            Checkpoint(id="c", session_id="two-megabytes", at=begun, position=1, turn=1),
            entries=[message],
            head=None,
        )
    async with open_memory(url) as memory:
        await memory.remember("a long note " * 5_000, user_id="long")
        for user, count in (("factual", 20_000), ("graph", 3_000)):
            for start in track(range(0, count, 500), f"facts of {user}"):
                await memory.store.put(Scope("default", user), *_facts(begun, start, 500, is_graph=user == "graph"))


def _facts(begun: datetime, start: int, count: int, *, is_graph: bool) -> Iterable[Fact]:
    for n in range(start, start + count):
        at = begun + timedelta(minutes=n)
        yield Fact(
            id=f"f{n:06}",
            subject=f"person {n // 2}" if is_graph else f"{_WORDS[n % 12]} {n % 400}",
            predicate="knows",
            object=f"person {n * 7 % 3000}" if is_graph else f"keeper {n}",
            recorded_at=at,
            valid_from=at - timedelta(days=n % 300),
            superseded_at=at + timedelta(days=9) if n % 9 == 0 else None,
            provenance=Provenance(origin="user"),
        )


@asynccontextmanager
async def serving(url: str) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a server over a store, in this process."""
    async with open_memory(url) as memory, aclosing(open_checkpoints(url)) as saved:
        transport = httpx.ASGITransport(app=create_app(memory, saved))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client


async def measure(url: str, pages: Sequence[str], limit: float) -> list[dict[str, Any]]:
    """CPU and size of each page."""
    rows: list[dict[str, Any]] = []
    async with serving(url) as client:
        await client.get("/inspect/users")  # what is loaded once is not the cost of a page
        for path in pages:
            spent, size = list[float](), 0
            for _ in range(TRIES):
                before = process_time()
                answer = await client.get(f"/inspect/{path}")
                spent.append(process_time() - before)
                assert answer.status_code == 200, (path, answer.status_code, answer.text[:300])
                size = len(answer.content)
            cpu = statistics.median(spent)
            good = cpu <= limit and size <= MOST_HTML
            rows.append({"page": path, "cpu": cpu, "bytes": size, "limit": limit, "good": good})
    return rows


async def _request_page(url: str) -> str:
    """A request in the middle of a conversation."""
    async with serving(url) as client:
        text = (await client.get("/inspect/u/ann/sessions/talk-00/requests")).text
    ids = [part.partition('"')[0] for part in text.split("/sessions/talk-00/requests/")[1:]]
    return f"u/ann/sessions/talk-00/requests/{ids[len(ids) // 2]}"


async def main(folder: Path) -> list[dict[str, Any]]:
    """Make the stores where they are missing, and measure."""
    for name, make in (("plain", make_plain), ("ugly", make_ugly)):
        if not (folder / f"{name}.made").exists():
            (folder / f"{name}.db").unlink(missing_ok=True)
            await make(f"sqlite:{folder}/{name}.db")
            (folder / f"{name}.made").touch()
    plain, ugly = (f"sqlite:{folder}/{name}.db" for name in ("plain", "ugly"))
    pages = ["users", "transcript"]
    pages += [f"u/ann/{name}" for name in ("requests", "sessions", "memory", "facts", "shown", "graph", "jobs")]
    pages += ["u/ann/facts?history=1&k=3", f"u/ann/memory?q={quote('Who has the key of the mill?')}"]
    pages += ["u/ann/sessions/talk-00", "u/ann/sessions/talk-00/requests", await _request_page(plain)]
    rows = await measure(plain, pages, PLAIN_LIMIT)
    pages = ["users", "u/long/sessions", "u/long/sessions/five-thousand", "u/long/sessions/two-megabytes"]
    pages += ["u/long/memory", "u/factual/memory", "u/factual/facts", "u/factual/facts?history=1", "u/factual/shown"]
    pages += ["u/factual/graph", "u/graph/graph", "u/graph/facts", "u/graph/jobs"]
    return rows + await measure(ugly, pages, UGLY_LIMIT)


def _print(rows: Sequence[dict[str, Any]]) -> None:
    table = Table("page", "CPU ms", "limit", "KB of HTML", "")
    for row in rows:
        state = "" if row["good"] else "over"
        table.add_row(
            row["page"],
            f"{row['cpu'] * 1000:,.0f}",
            f"{row['limit'] * 1000:,.0f}",
            f"{row['bytes'] / 1000:,.0f}",
            state,
        )
    Console().print(table)


if __name__ == "__main__":
    chosen = sys.argv[sys.argv.index("--store") + 1] if "--store" in sys.argv else None
    with tempfile.TemporaryDirectory() as made:
        place = Path(chosen or made)
        place.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(main(place))
    print(json.dumps(found, indent=2)) if "--json" in sys.argv else _print(found)
    sys.exit(0 if all(row["good"] for row in found) else 1)
