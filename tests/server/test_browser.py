"""The pages in a real browser: what a person does with them, at two widths, in both colour schemes.

Chromium and axe come with `make test` (`python -m scripts.browser .venv/browser` fetches them alone). Pictures of every
page are left in `.venv/pictures`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.server.filled import fill
from tests.server.test_inspector import CORPUS, PAGES, plant

ROOT = Path(__file__).parents[2] / ".venv"
CHROMIUM = ROOT / "browser" / "chromium"
expect.set_options(timeout=120_000)  # a net against hanging on a busy machine
AXE = ROOT / "browser" / "node_modules" / "axe-core" / "axe.min.js"

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("CI") and not CHROMIUM.exists(), reason="needs a browser; `make test` fetches one"
    ),
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--headless=shell"])
        yield opened
        opened.close()


@contextmanager
def served(folder: Path) -> Generator[str]:
    """The address of a server over the store in a folder."""
    command = [sys.executable, "-m", "loom", "serve", "--url", f"sqlite:{folder}/m.db", "--port", "0", "--json"]
    alone = {**os.environ, "HOME": str(folder)}  # where no file of tokens is
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=alone) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.send_signal(signal.SIGINT)


def in_its_own_thread(work: Any, *args: Any) -> None:
    """Run a coroutine although Playwright keeps a loop in this thread."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        pool.submit(anyio.run, work, *args).result()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("served")
    in_its_own_thread(fill, f"sqlite:{folder}/m.db")
    with served(folder) as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Generator[Page]:
    """A page whose script errors and refused loads are failures."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(120_000)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    yield opened
    context.close()
    assert problems == []


def test_the_slider_goes_back_to_what_was_known(page: Page, address: str) -> None:
    page.goto(f"{address}/inspect/u/ann/facts?subject=Maria")
    body = page.locator("tbody")
    expect(body).to_contain_text("Initech")
    page.evaluate("document.body.dataset.kept = 'yes'")
    slider = page.locator("#known")
    slider.focus()
    slider.press("Home")
    expect(page.locator("main")).not_to_contain_text("Initech")
    assert page.evaluate("document.body.dataset.kept") == "yes", "the page was not loaded again"
    assert page.evaluate("document.activeElement.id") == "known", "the keyboard stays where it was"
    page.locator("#known").press("End")
    expect(page.locator("tbody")).to_contain_text("Initech")


def test_a_search_shows_why_each_hit_was_found(page: Page, address: str) -> None:
    page.goto(f"{address}/inspect/u/ann/memory")
    page.get_by_label("Search as the agent does").fill("window seats")
    page.get_by_role("button", name="Recall").click()
    first = page.locator("ol.cards > li").first
    expect(first).to_contain_text("window seats")
    first.get_by_text("score").click()
    expect(first).to_contain_text("bm25")
    page.go_back()
    expect(page.get_by_text("Newest records")).to_be_visible()


def test_a_compaction_is_undone_and_a_conversation_forked(page: Page, address: str) -> None:
    page.goto(f"{address}/inspect/u/ann/sessions")
    page.get_by_role("link", name="talk-0").click()
    expect(page.get_by_text("covered by a compaction").first).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("status")).to_contain_text("the compaction was undone")
    expect(page.get_by_text("covered by a compaction")).to_have_count(0)
    page.get_by_role("button", name="Fork").last.click()
    expect(page.get_by_role("status")).to_contain_text("was forked from talk-0")
    page.goto(f"{address}/inspect/u/ann/sessions/talk-0")
    page.get_by_role("button", name="Restore").last.click()
    expect(page.get_by_role("status")).to_contain_text("continues from turn")


def test_a_user_is_forgotten_and_the_receipt_stays(page: Page, address: str) -> None:
    page.goto(f"{address}/inspect/users")
    row = page.locator("tr", has=page.get_by_role("link", name="Zoë", exact=True))
    row.get_by_text("Forget…").click()
    row.get_by_role("textbox").fill("Zoë")
    row.get_by_role("button").click()
    expect(page.get_by_role("status")).to_contain_text("Zoë was forgotten")
    expect(page.get_by_role("status")).to_contain_text("Nothing is left.")
    expect(page.get_by_role("link", name="Zoë", exact=True)).to_have_count(0)


def test_a_transcript_that_is_chosen_is_drawn(page: Page, address: str, tmp_path: Path) -> None:
    call = {"role": "assistant", "model": "claude-opus-5", "content": [{"type": "text", "text": "<b>hi</b>"}]}
    lines = [
        {
            "type": "assistant",
            "uuid": f"u{n}",
            "parentUuid": f"u{n - 1}" if n else None,
            "sessionId": "s",
            "timestamp": f"2026-11-16T10:{n:02}:00Z",
            "message": {
                **call,
                "id": f"m{n}",
                "usage": {
                    "input_tokens": 9,
                    "output_tokens": 5,
                    "cache_read_input_tokens": 0 if n in {0, 9} else 40_000 + n * 900,
                    "cache_creation_input_tokens": 41_000 + n * 900 if n in {0, 9} else 900,
                },
            },
        }
        for n in range(16)
    ]
    file = tmp_path / "session.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    page.goto(f"{address}/inspect/transcript")
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_role("button", name="Show its requests").click()
    expect(page.locator("svg")).to_be_visible()
    expect(page.locator("main")).to_contain_text("unexplained")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_everybody_can_use_every_page(browser: Browser, address: str, scheme: Any, width: int) -> None:
    pictures = ROOT / "pictures"
    pictures.mkdir(exist_ok=True)
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    context.set_default_timeout(120_000)
    opened = context.new_page()
    for path in PAGES:
        opened.goto(f"{address}/inspect/{path}")
        name = path.partition("?")[0].replace("/", "-") + ("-asked" if "?" in path else "")
        opened.screenshot(path=pictures / f"{name}-{width}-{scheme}.png", full_page=True)
        assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1"), path
        opened.add_script_tag(path=AXE)
        found = opened.evaluate("axe.run().then(done => done.violations)")
        serious = [
            (one["id"], [node["target"] for node in one["nodes"]][:3])
            for one in found
            if one["impact"] in {"serious", "critical"}
        ]
        assert serious == [], path
    context.close()


def test_text_of_others_runs_nowhere(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/m.db"
    users: list[str] = []

    async def planted() -> None:
        users.append(await plant(url, CORPUS[::2]))

    in_its_own_thread(planted)
    base = f"u/{quote(users[0], safe='')}"
    context = browser.new_context()
    context.set_default_timeout(120_000)
    context.add_init_script(
        "window.ran = []; window.planted = (x) => window.ran.push(String(x));"
        "document.addEventListener('securitypolicyviolation', (e) => window.ran.push('policy ' + e.blockedURI));"
    )
    opened = context.new_page()
    with served(tmp_path) as address:
        pages = ["users", *(f"{base}/{name}" for name in ("memory", "memory?q=planted", "facts?history=1", "shown"))]
        pages += [f"{base}/{name}" for name in ("sessions", "graph", "jobs", "requests")]
        for path in pages:
            opened.goto(f"{address}/inspect/{path}")
            opened.mouse.move(200, 300)
            opened.keyboard.press("Tab")
            assert opened.evaluate("window.ran") == [], path
        opened.goto(f"{address}/inspect/{base}/sessions")
        links = opened.locator("tbody a").evaluate_all("all => all.map(one => one.href)")
        for link in links[:12]:
            opened.goto(link)
            assert opened.evaluate("window.ran") == [], link
    context.close()
