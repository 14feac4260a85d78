"""The pages of the inspector, as a browser without scripts gets them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from loom import open_checkpoints, open_memory
from loom.core.log import Checkpoint, LoggedMessage, Recorded
from loom.core.message import Message
from loom.core.scope import Scope
from loom.server.http.app import create_app
from loom.server.tokens import TokenFile
from tests.server.filled import fill

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serving(url: str, **options: Any) -> AsyncGenerator[httpx.AsyncClient]:
    async with open_memory(url) as memory, aclosing(open_checkpoints(url)) as checkpoints:
        app = create_app(memory, checkpoints, **options)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client


async def page(client: httpx.AsyncClient, path: str, status: int = 200, **options: Any) -> str:
    response = await client.get(f"/inspect/{path}", **options)
    assert response.status_code == status, (path, response.status_code, response.text[:500])
    assert "script-src 'self'" in response.headers["content-security-policy"]
    check_markup(response.text)
    return response.text


class Checker(HTMLParser):
    """Collects what a page must not hold: scripts and styles of its own, handlers, and links that leave the server."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in {"iframe", "object", "embed", "base", "img", "style", "animate", "foreignobject"}:
            self.wrong.append(tag)
        if tag == "script" and given != {"src": "/inspect/static/inspector.js", "defer": None}:
            self.wrong.append(f"script {given}")
        for name, value in attrs:
            if name.startswith("on") or name in {"style", "srcdoc"}:
                self.wrong.append(f"{tag} {name}")
            if name in {"href", "action", "src"} and not (value or "").startswith(("/inspect", "#")):
                self.wrong.append(f"{tag} {name}={value}")
            if name == "id" and value:
                self.ids.append(value)


def check_markup(text: str) -> None:
    checker = Checker()
    checker.feed(text)
    assert checker.wrong == []
    assert len(checker.ids) == len(set(checker.ids)), "an id stands twice"


PAGES = (
    "users",
    "u/ann/memory",
    "u/ann/memory?q=Where+do+I+live%3F",
    "u/ann/facts",
    "u/ann/facts?history=1&k=1&at=2024-01-01&subject=Maria",
    "u/ann/shown",
    "u/ann/sessions",
    "u/ann/sessions/talk-0",
    "u/ann/requests",
    "u/ann/sessions/talk-0/requests",
    "u/ann/graph",
    "u/ann/jobs",
    "transcript",
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> str:
    import anyio

    url = f"sqlite:{tmp_path_factory.mktemp('filled')}/m.db"
    anyio.run(fill, url)
    return url


@pytest.fixture
def copy(filled: str, tmp_path: Path) -> str:
    """A store of its own for a test that changes it."""
    (tmp_path / "m.db").write_bytes(Path(filled.removeprefix("sqlite:")).read_bytes())
    return f"sqlite:{tmp_path}/m.db"


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_is_shown(filled: str, path: str) -> None:
    async with serving(filled) as client:
        text = await page(client, path)
    assert "<h1>" in text


async def test_recall_shows_its_signals_and_what_just_missed(filled: str) -> None:
    async with serving(filled) as client:
        text = await page(client, "u/ann/memory?q=window+seats&limit=2")
    assert "window seats" in text
    assert "Just missed" in text
    assert "bm25" in text


async def test_facts_as_they_were_known_earlier(filled: str) -> None:
    async with serving(filled) as client:
        now = await page(client, "u/ann/facts?subject=Maria")
        assert "Initech" in now
        assert "works at Acme" not in now.partition("<tbody>")[2]
        then = await page(client, "u/ann/facts?subject=Maria&at=2021-05-05")
        assert "works at Acme" in then
        first = await page(client, "u/ann/facts?k=0")
        assert "Initech" not in first


async def test_a_fact_leads_to_the_words_it_came_from(filled: str) -> None:
    async with serving(filled) as client, open_memory(filled) as memory:
        fact = next(f for f in await memory.facts(user_id="ann") if f.object == "Lisbon")
        text = await page(client, f"u/ann/records/{fact.id}")
        assert "I moved to Lisbon last month." in text
        await page(client, "u/ann/records/nothing", 404)


async def test_what_is_always_shown_is_shown_byte_for_byte(filled: str) -> None:
    async with serving(filled) as client, open_memory(filled) as memory:
        text = await page(client, "u/ann/shown")
        profile = str(await memory.profile(user_id="ann"))
    parser = _Text("pre")
    parser.feed(text)
    assert parser.found[0] == profile
    assert "<del>- Ship on Friday.</del>" in text
    assert "<ins>+ Ship on Monday.</ins>" in text
    assert "Never use tables." in text


class _Text(HTMLParser):
    """The texts inside a tag."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self.tag, self.inside, self.found = tag, False, list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == self.tag:
            self.inside = True
            self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != self.tag

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.found[-1] += data


async def test_a_waiting_wish_is_accepted_or_dropped(copy: str) -> None:
    async with serving(copy) as client, open_memory(copy) as memory:
        (waiting,) = (await memory.standing(user_id="ann")).unconfirmed
        await client.post(f"/inspect/u/ann/standing/{waiting.id}/confirm")
        standing = await memory.standing(user_id="ann")
        assert "Never use tables." in [item.text for item in standing.items]
        assert (await client.post(f"/inspect/u/ann/standing/{waiting.id}/reject")).status_code == 404


async def test_a_compaction_is_undone_and_a_conversation_forked_and_rewound(copy: str) -> None:
    async with serving(copy) as client, aclosing(open_checkpoints(copy)) as saved:
        scope = Scope("default", "ann", "talk-0")
        before = await page(client, "u/ann/sessions/talk-0")
        assert "covered by a compaction" in before
        last = await saved.load(scope)
        assert last is not None
        done = await client.post(
            "/inspect/u/ann/sessions/talk-0/undo", data={"compaction": last.compactions[0]}, follow_redirects=True
        )
        assert "the compaction was undone" in done.text
        assert "covered by a compaction" not in done.text
        point = (await saved.list(scope))[-1]
        forked = await client.post("/inspect/u/ann/sessions/talk-0/fork", data={"at": point.id}, follow_redirects=True)
        assert "was forked from talk-0" in forked.text
        assert len(await saved.sessions(Scope("default", "ann"))) == 3
        back = await client.post("/inspect/u/ann/sessions/talk-0/restore", data={"at": point.id}, follow_redirects=True)
        assert f"continues from turn {point.turn}" in back.text


async def test_a_user_is_forgotten_by_typing_the_name(copy: str) -> None:
    async with serving(copy) as client, open_memory(copy) as memory:
        wrong = await client.post("/inspect/u/ann/forget", data={"confirm": "Ann"})
        assert wrong.status_code == 422
        assert "nothing was forgotten" in wrong.text
        done = await client.post("/inspect/u/ann/forget", data={"confirm": "ann"})
        assert "ann was forgotten" in done.text
        assert "Nothing is left." in done.text
        assert re.search(r"<b>memory</b>: .*[1-9]\d* episode", done.text), "the receipt says what was removed"
        assert await memory.store.count(Scope("default", "ann")) == 0
        assert "/inspect/u/ann/memory" not in await page(client, "users")


def holds(url: str, text: bytes) -> bool:
    return text in Path(url.removeprefix("sqlite:")).read_bytes()


async def test_a_dropped_transcript_is_shown_and_not_stored(copy: str) -> None:
    lines = [
        {
            "type": "assistant",
            "uuid": f"u{n}",
            "parentUuid": f"u{n - 1}" if n else None,
            "sessionId": "s",
            "timestamp": f"2026-11-16T10:0{n}:00Z",
            "message": {
                "id": f"m{n}",
                "role": "assistant",
                "model": "claude-opus-5",
                "content": [{"type": "text", "text": f"<script>planted({n})</script>"}],
                "usage": {
                    "input_tokens": 10,
                    "output_tokens": 5,
                    "cache_read_input_tokens": 0 if n in {0, 3} else 40_000 + n * 1_000,
                    "cache_creation_input_tokens": 41_000 if n in {0, 3} else 1_000,
                },
            },
        }
        for n in range(6)
    ]
    body = "\n".join(map(json.dumps, lines)).encode()
    async with serving(copy) as client:
        name = '"><script>planted()</script>.jsonl'
        done = await client.post("/inspect/transcript", files={"file": (name, body)})
        assert done.status_code == 200, done.text[:500]
        check_markup(done.text)
        assert "<svg" in done.text
        assert "tokens lost" in done.text
        broken = await client.post("/inspect/transcript", files={"file": ("x.jsonl", b"not json")})
        assert broken.status_code == 422
        assert "uploaded" not in broken.text
    assert not holds(copy, b"planted")


async def test_a_server_with_tokens_asks_for_one(copy: str, tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    ann = tokens.add("ann", users=["ann"])
    reads = tokens.add("reads", users=["ann"], rights=["read"])
    async with serving(copy, tokens=tokens) as client:
        for path in PAGES:
            text = await page(client, path, 401)
            assert 'type="password"' in text
            assert "Madrid" not in text
        wrong = await client.post("/inspect/login", data={"token": "loom_wrong"})
        assert wrong.status_code == 401
        signed = await client.post("/inspect/login", data={"token": ann})
        cookie = signed.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        await page(client, "u/ann/memory")
        other = await page(client, f"u/{quote('Zoë')}/memory", 403)
        nobody = await page(client, "u/nobody/memory", 403)
        assert other == nobody
        assert "Zoë" not in await page(client, "users")
        api = await client.get("/v1/users/ann/facts")
        assert api.status_code == 401, "the cookie is for pages alone"
    async with serving(copy, tokens=tokens) as client:
        client.cookies.set("loom_token", reads, path="/inspect")
        await page(client, "u/ann/memory")
        assert (await client.post("/inspect/u/ann/forget", data={"confirm": "ann"})).status_code == 403


async def test_pages_of_other_sites_cannot_press_a_button(copy: str) -> None:
    async with serving(copy) as client, open_memory(copy) as memory:
        evil = {"Origin": "http://evil.example"}
        done = await client.post("/inspect/u/ann/forget", data={"confirm": "ann"}, headers=evil)
        assert done.status_code == 403
        assert await memory.store.count(Scope("default", "ann"))


# -- text of others in every field


HEADS = ["", '"', "'", '">', "'>", "</pre>", "</title>", "</textarea>", "-->", "]]>", "\\"]
BODIES = [
    "<script>planted()</script>",
    "<img src=x onerror=planted()>",
    "<svg onload=planted()>",
    "<a href=javascript:planted()>x</a>",
    "<iframe srcdoc='<script>parent.planted()</script>'>",
    "<style>@import 'http://evil'</style>",
    " onmouseover=planted() x=",
    " autofocus onfocus=planted() ",
    "{{ 7 * 123456789 }}{% for x in [] %}",
    "${planted()}",
    "<base href=//evil>",
    "<form action=//evil><button>x",
    "<details open ontoggle=planted()>",
    "javascript:planted()//",
    "&lt;script&gt;planted()&lt;/script&gt;",
    "%3Cscript%3Eplanted()%3C/script%3E",
    "<!--<script>planted()</script>",
    "<math><mi xlink:href=javascript:planted()>",
    "\u202eplanted\u2066",
]
CORPUS = [head + body for head in HEADS for body in BODIES]


async def plant(url: str, texts: list[str]) -> str:
    """Put texts into every field that a page can show; returns the user."""
    user = 'eve"><script>planted()</script>'
    async with open_memory(url) as memory, aclosing(open_checkpoints(url)) as saved:
        for number, text in enumerate(texts):
            await memory.remember(text, user_id=user, session_id=f"s{number % 3}{text}"[:100], speaker=text[:60])
            await memory.assert_fact(text[:100], text[:100], text[:100], user_id=user)
            await memory.set_block(f"{number % 5}{text}"[:100], text, user_id=user)
        for text in texts[:20]:
            await memory.instruct(f"Always say {text}"[:200], user_id=user, confirmed=False)
        for number, text in enumerate(texts[:40]):
            id = f"e{number}"
            scope = Scope("default", user, f"talk{text}"[:100])
            now = datetime.now(UTC)
            entries = (
                LoggedMessage(id, now, Message("user", text)),
                Recorded(f"r{number}", now, f"kind {text}"[:100], {"x": text}),
            )
            point = Checkpoint(id=f"c{number}", session_id=str(scope.session_id), at=now, position=len(entries), turn=1)
            await saved.save(scope, point, entries=entries, head=None)
    return user


async def test_text_of_others_is_text_in_every_field(tmp_path: Path) -> None:
    assert len(CORPUS) >= 200
    url = f"sqlite:{tmp_path}/m.db"
    user = await plant(url, CORPUS)
    base = f"u/{quote(user, safe='')}"
    async with serving(url) as client:
        await page(client, "users")
        for path in (
            "memory",
            "memory?q=planted",
            "facts",
            "facts?history=1",
            "shown",
            "sessions",
            "graph",
            "jobs",
            "requests",
        ):
            text = await page(client, f"{base}/{path}")
            assert "864197523" not in text
        for text in CORPUS[::7]:
            await page(client, f"{base}/memory?q={quote(text)}")
            await page(client, f"{base}/facts?subject={quote(text)}")
            await page(client, f"{base}/jobs?note={quote(text)}")
            await page(client, f"{base}/records/{quote(text, safe='')}", 404)
            await page(client, f"u/{quote(text, safe='') or 'x'}/memory")
        async with aclosing(open_checkpoints(url)) as saved:
            found = await saved.sessions(Scope("default", user))
        assert len(found) == 40
        for one in found[::4]:
            await page(client, f"{base}/sessions/{quote(one.session_id, safe='')}")
