"""The pages of the inspector, as a browser without scripts gets them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import httpx
import pytest
from fastapi.routing import APIRoute

from loom import open_checkpoints, open_memory
from loom.core.log import Checkpoint, Compaction, LoggedMessage, Recorded, Replacement
from loom.core.message import JSON, Message, TextPart, ToolCallPart, ToolResultPart
from loom.core.record import Fact, Provenance
from loom.core.scope import Scope
from loom.memory.memory import Memory
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.memory_store import Job
from loom.server.http.app import create_app
from loom.server.inspector import pages, requests, sessions
from loom.server.tokens import TokenFile
from scripts import picture
from tests.server.filled import fill
from tests.traces import rollouts

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


def hostile_transcript(texts: list[str]) -> bytes:
    """A transcript with a text in every field that a page could show; the cache is lost in the fourth of its calls."""
    lines: list[dict[str, Any]] = []
    for n, text in enumerate(texts):
        lost = n in {0, 3}
        usage = {
            "input_tokens": 10,
            "output_tokens": 5,
            "cache_read_input_tokens": 0 if lost else 40_000 + n * 1_000,
            "cache_creation_input_tokens": 41_000 + n * 1_000 if lost else 1_000,
        }
        message = {"id": f"m{n}", "role": "assistant", "model": "claude-opus-5", "usage": usage}
        line = {
            "type": "assistant",
            "uuid": f"u{n}",
            "parentUuid": f"u{n - 1}" if n else None,
            "sessionId": f"s{texts[0]}",
            "timestamp": f"2026-11-16T10:{n % 60:02}:{n // 60:02}Z",
            "version": text if n > 10 else "1",
            "cwd": text,
            "message": {**message, "content": [{"type": "text", "text": text}]},
        }
        if n > 12:
            line["message"] |= {"model": text or "none"}
        lines.append(line)
    lines.append({"type": "summary", "summary": texts[-1], "leafUuid": f"u{len(texts) - 1}"})
    return "\n".join(map(json.dumps, lines)).encode()


async def test_a_dropped_transcript_is_shown_and_not_stored(copy: str) -> None:
    body = hostile_transcript([f"<script>planted({n})</script>" for n in range(6)])
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


async def test_transcripts_of_codex_damaged_ones_and_large_ones_are_read(filled: str) -> None:
    lines = hostile_transcript(["words"] * 6).split(b"\n")
    damaged = b"\n".join([*lines[:2], lines[2][: len(lines[2]) // 2], *lines[3:], b"\x00\xff{"])
    large = hostile_transcript(["many words " * 300_000] * 4)
    assert len(large) > 12_000_000, "more than any other request may have"
    counted = rollouts.counted((1_000, 0, 5), (1_000, 0, 5))
    codex = rollouts.text_of(rollouts.meta("cx"), rollouts.turn(), *rollouts.said("Fix it."), counted)
    async with serving(filled) as client:

        async def drop(name: str, body: bytes) -> str:
            done = await client.post("/inspect/transcript", files={"file": (name, body)})
            assert done.status_code == 200, done.text[:500]
            check_markup(done.text)
            assert "<svg" in done.text
            return done.text

        assert re.findall(r"\d+ lines? left out: [^<]+", await drop("damaged.jsonl", damaged))
        assert "codex" in await drop("rollout.jsonl", codex.encode())
        assert len(await drop("large.jsonl", large)) < 100_000, "no text of it is repeated in full"
        for sent in ({"data": {"file": "words"}}, {"files": {"other": ("x", b"y")}}, {}):
            refused = await client.post("/inspect/transcript", **sent)
            assert refused.status_code == 422
            assert "choose a transcript" in refused.text


async def test_no_file_is_read_of_who_has_no_token(filled: str, tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    tokens.add("somebody")
    taken: list[int] = []

    async def parts() -> AsyncGenerator[bytes]:
        for number in range(3):
            taken.append(number)
            yield b"x" * 1_000

    async with serving(filled, tokens=tokens) as client:
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        answer = await client.post("/inspect/transcript", content=parts(), headers=headers)
        assert answer.status_code == 401
        assert taken == []


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


async def test_the_picture_of_the_readme_is_what_the_program_draws() -> None:
    text = await picture.main()
    assert text == picture.PLACE.read_text(encoding="utf-8"), "run python -m scripts.picture"
    assert ET.fromstring(text).tag.endswith("svg")
    assert "prefers-color-scheme: dark" in text


# -- pages in pages


async def walk(client: httpx.AsyncClient, path: str, label: str) -> list[str]:
    """A page and all that follow it by the link with this label."""
    found = [await page(client, path)]
    while link := re.search(rf'<a href="/inspect/([^"]+)">{re.escape(label)}', found[-1]):
        found.append(await page(client, unescape(link[1])))
        assert len(found) < 50
    return found


async def save_talk(url: str, session: str, texts: list[str]) -> None:
    """A conversation that was saved after each message."""
    async with aclosing(open_checkpoints(url)) as saved:
        head = None
        for n, text in enumerate(texts):
            at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n)
            point = Checkpoint(id=f"c{n:04}", session_id=session, at=at, position=n + 1, turn=n // 2, parent=head)
            entry = LoggedMessage(f"m{n}", at, Message("assistant" if n % 2 else "user", (TextPart(text),)))
            await saved.save(Scope("default", "ann", session), point, entries=[entry], head=head)
            head = point.id


async def test_a_long_conversation_is_paged_and_every_message_is_on_one_page(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/m.db"
    await save_talk(url, "long", [f"message <{n}>" for n in range(150)])
    async with serving(url) as client:
        found = await walk(client, "u/ann/sessions/long", "\N{LEFTWARDS ARROW} earlier")
        assert len(found) == 3
        for n in range(150):
            words = f'dir="auto">message &lt;{n}&gt;</p>'
            assert sum(words in text for text in found) == 1, n
        forward = await walk(client, "u/ann/sessions/long?before=40", "later")
        assert f'dir="auto">message &lt;{149}&gt;</p>' in forward[-1]
        points = await walk(client, "u/ann/sessions/long", "older checkpoints")
        for n in range(150):
            assert sum(f">c{n:04}</code>" in text for text in points) == 1, n


async def test_a_huge_message_is_cut_and_read_in_pieces(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/m.db"
    await save_talk(url, "wide", ["".join(f"{n:07} " for n in range(40_000))])
    async with serving(url) as client:
        text = await page(client, "u/ann/sessions/wide")
        assert len(text) < 20_000
        assert "318,800 more characters" in text
        pieces = await walk(client, "u/ann/sessions/wide/messages/m0", "next")
        assert len(pieces) == 4
        assert max(map(len, pieces)) < 150_000
        for n in (0, 12_499, 12_500, 39_999):
            assert sum(f"{n:07}" in piece for piece in pieces) == 1, n
        await page(client, "u/ann/sessions/wide/messages/nothing", 404)


async def test_a_record_with_a_huge_text_is_cut_and_read_in_pieces(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/m.db"
    async with open_memory(url) as memory:
        kept = await memory.remember("first " + "word " * 30_000 + "last", user_id="ann")
    async with serving(url) as client:
        assert len(await page(client, "u/ann/memory")) < 10_000
        pieces = await walk(client, f"u/ann/records/{kept.kept[0].id}/text", "next")
        assert "first" in pieces[0]
        assert "last</pre>" in pieces[-1]
        await page(client, "u/ann/records/nothing/text", 404)


async def test_many_facts_are_paged_and_the_slider_has_few_stops(tmp_path: Path) -> None:
    url, begun = f"sqlite:{tmp_path}/m.db", datetime(2026, 1, 1, tzinfo=UTC)
    async with open_memory(url) as memory:
        facts = (
            Fact(
                id=f"f{n:04}",
                subject=f"person {n:04}",
                predicate="knows",
                object="Ann",
                recorded_at=begun + timedelta(minutes=n),
                provenance=Provenance(origin="user"),
            )
            for n in range(1_000)
        )
        await memory.store.put(Scope("default", "ann"), *facts)
    async with serving(url) as client:
        found = await walk(client, "u/ann/facts", "next 40")
        assert len(found) == 25
        for n in range(1_000):
            assert sum(f"<bdi>person {n:04} knows Ann</bdi>" in text for text in found) == 1, n
        stops = re.search(r'data-stops="([^"]+)"', found[0])
        assert stops is not None
        assert len(stops[1].split()) <= 401
        first = await page(client, "u/ann/facts?k=0")
        assert "person 0999" not in first, "what was learned last was not known at the first stop"


async def test_facts_of_any_time_are_drawn(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/m.db"
    async with open_memory(url) as memory:
        ends = (datetime(1, 1, 1, tzinfo=UTC), None, datetime(9999, 12, 31, tzinfo=UTC))
        for n, (begin, end) in enumerate(((ends[0], ends[2]), (ends[1], ends[2]), (ends[0], ends[1]))):
            await memory.assert_fact("Ann", f"knows_{n}", "Bob", user_id="ann", valid_from=begin, valid_until=end)
    async with serving(url) as client:
        text = await page(client, "u/ann/facts")
        assert "true from 0001-01-01 to 9999-12-31" in text
        last = re.search(r'data-last="(\d+)"', text)
        assert last is not None
        assert int(last[1]) < datetime.now(UTC).timestamp() + 2 * 86_400, "the axis does not reach to the year 9999"
        for path in ("facts?k=-5", "facts?k=999&after=99999999999999", "facts?at=0001-01-01", "graph"):
            await page(client, f"u/ann/{path}")
        for path in ("facts?at=yesterday", "facts?k=x", "sessions/none", "requests?after=none"):
            answer = await client.get(f"/inspect/u/ann/{path}")
            assert answer.status_code in {200, 404, 422}, path


async def test_many_conversations_are_paged(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/m.db"
    for n in range(60):
        await save_talk(url, f"talk-{n:02}", ["hello"])
    async with serving(url) as client:
        found = await walk(client, "u/ann/sessions", "older")
        assert len(found) == 2
        for n in range(60):
            assert sum(f"<bdi>talk-{n:02}</bdi>" in text for text in found) == 1, n


async def plant_requests(url: str, records: list[dict[str, JSON]]) -> None:
    async with aclosing(open_checkpoints(url)) as saved:
        begun = datetime(2026, 1, 1, tzinfo=UTC)
        entries = [
            Recorded(f"q{n}", begun + timedelta(minutes=n), "loom.request", {"turn": 1, "purpose": "answer", **record})
            for n, record in enumerate(records)
        ]
        point = Checkpoint(id="c", session_id="talk", at=begun, position=len(entries), turn=1)
        await saved.save(Scope("default", "ann", "talk"), point, entries=entries, head=None)


def told(read: int, write: int) -> dict[str, JSON]:
    """A request whose provider reported what its cache did."""
    usage: JSON = [read + write, 10, read, write]
    return {
        "provider": "anthropic",
        "model": "claude-sonnet-4-5",
        "usage": usage,
        "reported": {"read": read, "write": write},
    }


async def test_many_requests_are_paged(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/m.db"
    await plant_requests(url, [told(0 if n == 0 else 1_000, 1_000) for n in range(250)])
    async with serving(url) as client:
        found = await walk(client, "u/ann/sessions/talk/requests", "\N{LEFTWARDS ARROW} earlier requests")
        assert len(found) == 3
        for n in range(250):
            assert sum(f'/requests/q{n}">{n + 1}</a>' in text for text in found) == 1, n


async def test_not_reported_is_not_zero_and_a_cache_that_nobody_missed_is_lost(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/m.db"
    silent: dict[str, JSON] = {"usage": [900, 10, 0, 0], "sections": {"tools": 100, "convo": 800}}
    plain: dict[str, JSON] = {**told(0, 2_000), "sections": {"tools": 500, "convo": 1_500}}
    await plant_requests(url, [silent, plain, told(2_000, 100), told(300, 1_900)])
    async with serving(url) as client:
        text = await page(client, "u/ann/sessions/talk/requests")
        rows = re.findall(r"<tr><td.*?</tr>", text, re.DOTALL)
        assert rows[0].count('<span class="silent">not reported</span>') == 4, "read, predicted, written, and the state"
        assert "0</td>" in rows[1]
        assert "unexplained" in rows[3], "1,800 of the 2,100 tokens that were left were not read"
        assert "unexplained" not in rows[1] + rows[2]
        assert ">1 \N{MULTIPLICATION SIGN}</b>cache lost" in text
        assert "1 of 4</b>cache not reported" in text
        first = await page(client, "u/ann/sessions/talk/requests/q0")
        assert "what the cache did was not reported" in first
        assert '<td class="n" data-label="read"><span class="silent">not reported</span></td>' in first
        second = await page(client, "u/ann/sessions/talk/requests/q1")
        assert "read 0 (0%), written 2,000 (100%), neither 0 (0%)" in second
        row = re.search(r"convo</td>(.*?)</tr>", second, re.DOTALL)
        assert row is not None
        assert re.findall(r">([\d,$.]+)<", row[1]) == ["1,500", "0", "1,500", "0", "$0.005625"]


ROUTES = [
    (method, route.path)
    for router in (pages.router, sessions.router, requests.router)
    for route in router.routes
    if isinstance(route, APIRoute) and "{user:name}" in route.path
    for method in route.methods or ()
]


async def test_no_page_of_another_user_says_whether_there_is_one(copy: str, tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    own = {"Authorization": f"Bearer {tokens.add('ann', users=['ann'])}"}
    reads = {"Authorization": f"Bearer {tokens.add('reads', users=['ann'], rights=['read'])}"}
    revoked = {"Authorization": f"Bearer {tokens.add('gone')}"}
    tokens.revoke("gone")
    form = {"confirm": "x", "compaction": "x", "at": "x"}
    assert len(ROUTES) >= 22
    async with serving(copy, tokens=tokens) as client:
        for method, template in ROUTES:
            paths = [
                template.replace("{user:name}", user).replace("{session:name}", "talk-0").replace("{id:name}", "x")
                for user in (quote("Zoë"), "nobody", "ann")
            ]
            paths = [path.replace("{verb}", "confirm") for path in paths]
            data = form if method == "POST" else None
            for headers in ({}, {"Authorization": "Bearer loom_wrong"}, revoked):
                answers = [await client.request(method, path, data=data, headers=headers) for path in paths]
                assert {one.status_code for one in answers} == {401}, (method, template)
            there, nobody = [await client.request(method, path, data=data, headers=own) for path in paths[:2]]
            assert (there.status_code, there.text) == (nobody.status_code, nobody.text), (method, template)
            assert there.status_code == 403, (method, template)
            if method == "POST":
                assert (await client.post(paths[2], data=form, headers=reads)).status_code == 403, template


async def test_pages_follow_only_what_their_token_may_read(copy: str, tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    ann = tokens.add("ann", users=["ann"])
    async with serving(copy, tokens=tokens) as client:
        assert (await client.get("/inspect/u/ann/events")).status_code == 401
        client.cookies.set("loom_token", ann, path="/inspect")
        for path in (f"u/{quote('Zoë')}/events", f"u/{quote('Zoë')}/sessions/talk-0/events", "u/nobody/events"):
            assert (await client.get(f"/inspect/{path}")).status_code == 403, path
        assert (await client.get("/inspect/u/ann/sessions/nothing/events")).status_code == 404


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
            await plant_conversation(saved, Scope("default", user, f"talk{text}"[:100]), number, text)
        await plant_dead_job(memory, Scope("default", user), texts[0])
    return user


async def plant_conversation(saved: CheckpointStore, scope: Scope, number: int, text: str) -> None:
    """A conversation with a text in everything that its pages show: messages, tools, a compaction, requests, bodies."""
    now, id = datetime.now(UTC), f"e{number}"
    call = Message("assistant", (ToolCallPart("call", f"tool {text}"[:60], {"given": text}),))
    result = Message("user", (ToolResultPart("call", (TextPart(text),), is_error=bool(number % 2)),))
    usage: JSON = [2_000, 40, 0, 1_900]
    record: dict[str, JSON] = {
        "turn": 1,
        "purpose": f"answer {text}",
        "provider": text,
        "model": text,
        "sections": {text or "none": 900, "tools": 100},
        "markers": [[text, text, 100, text]],
        "usage": usage,
        "reported": {"read": 0, "write": 1_900},
        "predicted": [1_000, 10],
        "loss": {"cause": f"cause {text}", "path": text, "entry": text, "byte": 3, "tokens": 7},
    }
    entries = (
        LoggedMessage(id, now, Message("user", (TextPart(text),))),
        LoggedMessage(f"{id}t", now, call),
        LoggedMessage(f"{id}r", now, result),
        Recorded(f"r{number}", now, f"kind {text}"[:100], {"x": text}),
        Recorded(f"q{number}", now, "loom.request", record),
        Recorded(f"b{number}", now, "loom.request.body", body_of(f"q{number}", f"a {text}")),
        Recorded(f"p{number}", now, "loom.request", {**record, "error": text}),
        Recorded(f"d{number}", now, "loom.request.body", body_of(f"p{number}", f"b {text}")),
        Compaction(
            id=f"z{number}",
            at=now,
            strategy=f"strategy {text}"[:100],
            replacements=(Replacement((id,), Message("user", (TextPart(f"summary {text}"),))),),
            tokens_before=90,
            tokens_after=9,
        ),
    )
    point = Checkpoint(
        id=f"c{number}",
        session_id=str(scope.session_id),
        at=now,
        position=len(entries),
        turn=1,
        compactions=(f"z{number}",),
    )
    await saved.save(scope, point, entries=entries, head=None)


def body_of(request: str, text: str) -> dict[str, JSON]:
    """The body of a request, as a journal keeps it."""
    block: JSON = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
    values: JSON = {
        "model": "claude-sonnet-4-5",
        "system": [block],
        "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
    }
    return {"request": request, "after": None, "same": [], "lists": {}, "values": values}


async def plant_dead_job(memory: Memory, scope: Scope, text: str) -> None:
    now = datetime.now(UTC)
    kind = f"kind {text}"[:100]
    await memory.store.write(scope, jobs=[Job(id="job", scope=scope, kind=kind, key="key", run_at=now)])
    (lease,) = await memory.store.lease(now=now, until=now + timedelta(minutes=1), scope=scope, kinds=[kind])
    await memory.store.fail(lease, reason=text, now=now, retry_at=None)


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
        for one in found:
            here = f"{base}/sessions/{quote(one.session_id, safe='')}"
            text = await page(client, here)
            number = re.search(r"/compactions/z(\d+)", text)
            assert number is not None
            await page(client, f"{here}/compactions/z{number[1]}")
            await page(client, f"{here}/messages/e{number[1]}")
            for by in ("cache", "sections"):
                await page(client, f"{here}/requests?by={by}")
            await page(client, f"{here}/requests/q{number[1]}")
            assert "<byte-diff" in await page(client, f"{here}/requests/p{number[1]}")
        dropped = await client.post("/inspect/transcript", files={"file": ("x.jsonl", hostile_transcript(CORPUS))})
        assert dropped.status_code == 200
        check_markup(dropped.text)
