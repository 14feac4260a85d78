"""The pages in a real browser: what a person does with them, at two widths, in both colour schemes.

Chromium and axe come with `make test` (`python -m scripts.browser .venv/browser` fetches them alone). Pictures of every
page are left in `.venv/pictures`; those in `docs/pictures` are copies of them (`docs-*.png`).
"""

from __future__ import annotations

import json
import os
import shutil
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
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from tests.server.filled import JOURNEY, TRAVELLER, fill_rich
from tests.server.test_inspector import CORPUS, hostile_transcript, plant

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


def take_picture(page: Page, path: Path, **part: Any) -> None:
    """Leave a picture of a page. On a busy machine Chromium may draw none in its time, and does when it is asked again."""
    for again in (True, True, False):
        try:
            page.screenshot(path=path, full_page=True, **part)
        except Error as error:
            if not again or "Unable to capture screenshot" not in str(error):
                raise
        else:
            return


@contextmanager
def served(folder: Path) -> Generator[str]:
    """The address of a server over the store in a folder."""
    command = [sys.executable, "-m", "loom", "serve", "--url", "sqlite:./bot.db", "--port", "0", "--json"]
    alone = {**os.environ, "HOME": str(folder)}  # where no file of tokens is
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=alone, cwd=folder) as process:
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


SESSION = f"u/{TRAVELLER}/sessions/train-to-lisbon"
PAGES = {
    "users": "users",
    "requests": f"u/{TRAVELLER}/requests",
    "requests-by-section": f"u/{TRAVELLER}/requests?by=sections",
    "session-requests": f"{SESSION}/requests",
    "sessions": f"u/{TRAVELLER}/sessions",
    "session": SESSION,
    "memory": f"u/{TRAVELLER}/memory",
    "search": f"u/{TRAVELLER}/memory?q=Where+do+I+live%3F&limit=3",
    "facts": f"u/{TRAVELLER}/facts",
    "facts-all": f"u/{TRAVELLER}/facts?history=1",
    "shown": f"u/{TRAVELLER}/shown",
    "graph": f"u/{TRAVELLER}/graph",
    "jobs": f"u/{TRAVELLER}/jobs",
    "transcript": "transcript",
    "not-there": f"u/{TRAVELLER}/records/nothing",
}
SIDEWAYS = """[...document.querySelectorAll(".wide, window-bar")]
    .filter(one => one.scrollWidth > one.clientWidth + 1)
    .map(one => one.outerHTML.slice(0, 100))"""
"""Tables and pictures that have to be moved sideways to be read."""
IN_DOCS = {"requests": 800, "request": 1240, "session": 960, "facts-all": 960, "search": 860}
"""Pages whose pictures are in the documentation, each with its height there."""


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that nobody changes."""
    folder = tmp_path_factory.mktemp("rich")
    in_its_own_thread(fill_rich, f"sqlite:{folder}/bot.db")
    return folder


def copied(rich: Path, folder: Path) -> Path:
    shutil.copytree(rich, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def address(rich: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A server whose store is only looked at."""
    with served(copied(rich, tmp_path_factory.mktemp("looked"))) as found:
        yield found


@pytest.fixture(scope="module")
def changed(rich: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that tests change, each another part of it."""
    return copied(rich, tmp_path_factory.mktemp("changed"))


@pytest.fixture(scope="module")
def changing(changed: Path) -> Generator[str]:
    """A server over the store that tests change."""
    with served(changed) as found:
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


def request_links(page: Page, address: str) -> list[str]:
    """The pages of the requests of the longest conversation, in their order."""
    page.goto(f"{address}/inspect/{SESSION}/requests")
    return page.locator("table.requests tbody td:first-child a").evaluate_all("all => all.map(one => one.href)")


# -- every page, at two widths, in both schemes


def pages_of(page: Page, address: str) -> dict[str, str]:
    """The address of every page; one of a request whose prefix moved, and that of the compaction, are looked up."""
    found = {name: f"{address}/inspect/{path}" for name, path in PAGES.items()}
    found["request"] = request_links(page, address)[-1]
    page.goto(found["session"])
    found["compaction"] = str(page.locator("li.compaction a").evaluate("one => one.href"))
    page.goto(found["facts"])
    found["record"] = str(page.locator("tbody a").first.evaluate("one => one.href"))
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_everybody_can_use_every_page(browser: Browser, address: str, scheme: Any, width: int) -> None:
    pictures = ROOT / "pictures"
    pictures.mkdir(exist_ok=True)
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    context.set_default_timeout(120_000)
    opened = context.new_page()
    for name, url in pages_of(opened, address).items():
        opened.goto(url)
        take_picture(opened, pictures / f"{name}-{width}-{scheme}.png")
        if name in IN_DOCS and (width, scheme) == (1280, "light"):
            part: Any = {"x": 0, "y": 0, "width": width, "height": IN_DOCS[name]}
            take_picture(opened, pictures / f"docs-{name}.png", clip=part)
        assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1"), name
        assert opened.evaluate(SIDEWAYS) == [], name
        opened.add_script_tag(path=AXE)
        found = opened.evaluate("axe.run().then(done => done.violations)")
        serious = [
            (one["id"], [node["target"] for node in one["nodes"]][:3])
            for one in found
            if one["impact"] in {"serious", "critical"}
        ]
        assert serious == [], name
    context.close()


def test_pages_are_read_without_a_script(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(120_000)
    opened = context.new_page()
    for url in (f"{address}/inspect/{path}" for path in PAGES.values()):
        opened.goto(url)
        expect(opened.locator("h1")).to_be_visible()
    opened.goto(f"{address}/inspect/u/{TRAVELLER}/facts?subject=user")
    expect(opened.locator("tbody")).to_contain_text("Initech")
    for _ in range(3):
        opened.get_by_role("link", name="The change before").click()
    expect(opened.locator("tbody")).not_to_contain_text("Initech")
    opened.goto(f"{address}/inspect/{SESSION}/requests")
    opened.locator("window-bar a").last.click()
    expect(opened.get_by_role("heading", name="Request 17")).to_be_visible()
    expect(opened.locator("byte-diff ins")).to_contain_text("Today is")
    text = opened.locator("byte-diff").inner_text()
    opened.get_by_role("link", name="More context").click()
    assert len(opened.locator("byte-diff").inner_text()) > len(text)
    context.close()


# -- what a person does


def test_the_slider_goes_back_to_what_was_known(page: Page, address: str) -> None:
    page.goto(f"{address}/inspect/u/{TRAVELLER}/facts?subject=user")
    expect(page.locator("tbody")).to_contain_text("Initech")
    page.evaluate("document.body.dataset.kept = 'yes'")
    slider = page.locator("#known")
    slider.focus()
    slider.press("Home")
    expect(page.locator("tbody")).not_to_contain_text("Initech")
    expect(page.locator("tbody")).to_contain_text("lives in Madrid")
    assert page.evaluate("document.body.dataset.kept") == "yes", "the page was not loaded again"
    assert page.evaluate("document.activeElement.id") == "known", "the keyboard stays where it was"
    page.locator("#known").press("End")
    expect(page.locator("tbody")).to_contain_text("Initech")


def test_the_line_in_the_picture_is_dragged_to_an_earlier_day(page: Page, address: str) -> None:
    page.goto(f"{address}/inspect/u/{TRAVELLER}/facts?subject=user")
    expect(page.locator("tbody")).to_contain_text("Initech")
    picture = page.locator("svg.lives:visible").bounding_box()
    line = page.locator("svg.lives:visible .known path").bounding_box()
    assert picture is not None
    assert line is not None
    page.mouse.move(line["x"] + line["width"] / 2, line["y"] + line["height"] / 2)
    page.mouse.down()
    page.mouse.move(picture["x"] + picture["width"] * 0.6, line["y"], steps=4)
    expect(page.locator("tbody")).not_to_contain_text("Initech")
    page.mouse.move(picture["x"] + picture["width"] - 1, line["y"], steps=4)
    expect(page.locator("tbody")).to_contain_text("Initech")
    page.mouse.move(picture["x"] + picture["width"] * 0.4, line["y"], steps=4)
    expect(page.locator("tbody")).to_contain_text("lives in Madrid")
    page.mouse.up()
    page.mouse.move(picture["x"] + picture["width"] - 1, line["y"])
    expect(page.locator("tbody")).to_contain_text("lives in Madrid")


def test_a_fact_leads_to_the_words_it_came_from(page: Page, address: str) -> None:
    page.goto(f"{address}/inspect/u/{TRAVELLER}/facts?subject=user")
    page.locator("svg.lives:visible a", has_text="lives in Lisbon").locator("text").click()
    expect(page.get_by_role("heading", name="Made from")).to_be_visible()
    expect(page.locator("main")).to_contain_text("I moved to Lisbon last week")


def test_a_search_shows_its_signals_and_what_just_missed(page: Page, changing: str) -> None:
    page.goto(f"{changing}/inspect/u/{TRAVELLER}/memory")
    page.get_by_label("Search as the agent does").fill("window seats")
    page.get_by_label("Hits").fill("2")
    page.get_by_role("button", name="Recall").click()
    hits = page.locator("ol.cards > li:not(.missed)")
    expect(hits).to_have_count(2)
    expect(hits.first).to_contain_text("window seats")
    expect(hits.first.locator(".signals")).to_contain_text("bm25")
    expect(hits.first.locator(".signals")).to_contain_text("score")
    expect(page.locator("ol.cards > li.missed")).to_have_count(5)
    page.go_back()
    expect(page.get_by_text("Newest records")).to_be_visible()


def test_a_compaction_is_opened_and_undone(page: Page, changing: str) -> None:
    page.goto(f"{changing}/inspect/u/{TRAVELLER}/sessions")
    page.get_by_role("link", name="train-to-lisbon").click()
    expect(page.get_by_text("covered by a compaction").first).to_be_visible()
    page.get_by_role("link", name="Before, after, and what is gone").click()
    expect(page.get_by_role("heading", name="Still there")).to_be_visible()
    expect(page.locator(".chips.gone")).to_contain_text(["Lisboa Oriente Madrid", "13:11"])
    expect(page.locator("main")).to_contain_text("earlier messages of this conversation are no longer shown")
    expect(page.locator("main")).to_contain_text(JOURNEY[0][0])
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".notes")).to_contain_text("the compaction was undone")
    expect(page.get_by_text("covered by a compaction")).to_have_count(0)
    expect(page.locator("li.compaction")).to_contain_text("undone")


def test_a_conversation_is_forked_and_rewound(page: Page, changing: str) -> None:
    here = f"{changing}/inspect/u/{TRAVELLER}/sessions/hotel-near-oriente"
    page.goto(here)
    page.get_by_role("button", name="Fork").last.click()
    expect(page.locator(".notes")).to_contain_text("was forked from hotel-near-oriente")
    expect(page.locator("main")).not_to_contain_text("What about Moscavide?")
    page.get_by_role("link", name="hotel-near-oriente").click()
    expect(page.locator("svg.line:visible a:has(.branch)")).to_have_count(1)
    page.get_by_role("button", name="Restore").last.click()
    expect(page.locator(".notes")).to_contain_text("continues from turn")
    expect(page.locator(".talk").last).not_to_contain_text("What about Moscavide?")


def test_a_user_is_forgotten_and_the_receipt_stays(page: Page, changing: str) -> None:
    page.goto(f"{changing}/inspect/users")
    row = page.locator("tr", has=page.get_by_role("link", name="ben@harbour.example", exact=True))
    row.get_by_text("Forget…").click()
    row.get_by_role("textbox").fill("ben@harbour.example")
    row.get_by_role("button").click()
    expect(page.get_by_role("status")).to_contain_text("ben@harbour.example was forgotten")
    expect(page.get_by_role("status")).to_contain_text("Nothing is left.")
    expect(page.get_by_role("link", name="ben@harbour.example", exact=True)).to_have_count(0)


def test_a_job_that_failed_is_tried_again(page: Page, changing: str) -> None:
    page.goto(f"{changing}/inspect/u/{TRAVELLER}/jobs")
    expect(page.locator(".health")).to_contain_text("1 job failed for good")
    page.get_by_role("button", name="Try mail again").click()
    expect(page.locator(".notes")).to_contain_text("it is queued again")
    expect(page.locator(".health")).to_contain_text("mail 1")


def test_a_transcript_that_is_dropped_is_drawn_and_not_stored(
    page: Page, changing: str, changed: Path, tmp_path: Path
) -> None:
    word = "canary-of-a-transcript"
    file = tmp_path / "session.jsonl"
    file.write_bytes(hostile_transcript([f"<b>{word}</b>"] * 16))
    page.goto(f"{changing}/inspect/transcript")
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_role("button", name="Show its requests").click()
    expect(page.locator("svg:visible")).to_be_visible()
    expect(page.locator("main")).to_contain_text("unexplained")
    page.goto(f"{changing}/inspect/transcript")
    page.evaluate(
        """text => { const moved = new DataTransfer(); moved.items.add(new File([text], "dropped.jsonl"));
        document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: moved, bubbles: true, cancelable: true})); }""",
        file.read_text(),
    )
    expect(page.locator("main")).to_contain_text("dropped.jsonl")
    expect(page.locator("svg:visible")).to_be_visible()
    kept = [path for path in changed.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]
    assert kept == [], "the store has something of it"


def test_the_parts_of_a_window_are_told_by_mouse_and_keyboard(page: Page, address: str) -> None:
    page.goto(request_links(page, address)[8])
    detail = page.locator("window-bar .detail")
    page.locator("window-bar g", has_text="foundation").locator("rect").hover()
    expect(detail).to_contain_text("foundation: ")
    expect(detail).to_contain_text("read ")
    expect(detail).to_contain_text("$0.")
    page.locator("window-bar g").first.focus()
    expect(detail).to_contain_text("tools: ")
    page.keyboard.press("ArrowRight")
    expect(detail).to_contain_text("foundation: ")
    page.keyboard.press("End")
    expect(detail).to_contain_text("neither ")


def test_the_byte_that_moved_is_shown_with_what_is_around_it(page: Page, address: str) -> None:
    page.goto(request_links(page, address)[-1])
    expect(page.locator(".health")).to_contain_text("The cache was lost")
    expect(page.locator("byte-diff ins")).to_contain_text("Today is")
    expect(page.locator("byte-diff h3 code").last).to_contain_text("54 6f 64 61 79")
    left_out = page.locator("byte-diff .cut").last
    before = left_out.inner_text()
    page.get_by_role("button", name="More context").click()
    expect(left_out).not_to_have_text(before)
    page.get_by_role("button", name="Show spaces").click()
    expect(page.locator("byte-diff ins")).to_contain_text("Today·is")
    page.get_by_role("button", name="Show spaces").click()
    expect(page.locator("byte-diff ins")).to_contain_text("Today is")
    page.get_by_role("button", name="Jump to byte").click()
    assert page.evaluate("document.activeElement.tagName") == "PRE"


def press_until(page: Page, selector: str) -> None:
    """Press Tab until something is focused that fits."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")


def enter(page: Page, title: str) -> None:
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(title)


@pytest.mark.parametrize("width", [1280, 400])
def test_the_keyboard_is_enough(page: Page, address: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{address}/inspect/users")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    press_until(page, f"a[href='/inspect/u/{TRAVELLER}/memory']")
    enter(page, "Memory")
    press_until(page, f"nav a[href='/inspect/u/{TRAVELLER}/sessions']")
    enter(page, "Sessions")
    press_until(page, f"a[href='/inspect/{SESSION}/requests']")
    enter(page, "Requests of train-to-lisbon")
    press_until(page, "window-bar svg a")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".detail")).to_contain_text("request 2")
    page.keyboard.press("End")
    expect(page.locator(".detail")).to_contain_text("tokens lost")
    enter(page, "Request 17")
    press_until(page, "byte-diff button")
    page.keyboard.press("Enter")
    press_until(page, "pre.bytes")
    press_until(page, "a, button, pre")  # and out of it again


def test_a_conversation_is_followed_while_it_goes_on(page: Page, changing: str, changed: Path) -> None:
    page.goto(f"{changing}/inspect/u/{TRAVELLER}/sessions/phrases-in-portuguese")
    sign = page.locator(".live")
    expect(sign).to_contain_text("Live")
    elsewhere = (
        "import sys; from loom import Agent; agent = Agent('Help.', memory=sys.argv[1]);"
        "agent.run_sync(sys.argv[2], user_id=sys.argv[3], session_id='phrases-in-portuguese'); agent.close()"
    )

    def say(text: str) -> None:
        subprocess.run([sys.executable, "-c", elsewhere, f"sqlite:{changed}/bot.db", text, TRAVELLER], check=True)

    say("How do I say window seat?")
    expect(page.locator(".talk .text", has_text="How do I say window seat?").first).to_be_visible()
    sign.get_by_role("button", name="Pause").click()
    expect(sign).to_contain_text("Paused")
    sign.get_by_role("button", name="Follow").click()
    expect(sign).to_contain_text("Live")
    page.goto(f"{changing}/inspect/u/{TRAVELLER}/requests")
    expect(page.locator("section", has_text="phrases-in-portuguese").locator("window-bar a:visible")).to_have_count(3)
    expect(page.locator(".live")).to_contain_text("Live")
    say("And an aisle seat?")
    expect(page.locator("section", has_text="phrases-in-portuguese").locator("window-bar a:visible")).to_have_count(4)


# -- text of others


def test_text_of_others_runs_nowhere(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    users: list[str] = []

    async def planted() -> None:
        users.append(await plant(url, CORPUS))

    in_its_own_thread(planted)
    base = f"u/{quote(users[0], safe='')}"
    context = browser.new_context()
    context.set_default_timeout(120_000)
    context.add_init_script(
        "window.ran = []; window.planted = (x) => window.ran.push(String(x));"
        "document.addEventListener('securitypolicyviolation', (e) => window.ran.push('policy ' + e.blockedURI));"
    )
    opened = context.new_page()

    def look(link: str) -> None:
        opened.goto(link)
        opened.mouse.move(200, 300)
        opened.keyboard.press("Tab")
        opened.evaluate(
            """() => { for (const one of document.querySelectorAll('window-bar a, window-bar g'))
            { one.dispatchEvent(new PointerEvent('pointerover', {bubbles: true})); }
            for (const one of document.querySelectorAll('byte-diff button, details > summary')) one.click(); }"""
        )
        assert opened.evaluate("window.ran") == [], link

    def links(selector: str) -> list[str]:
        return list(
            dict.fromkeys(opened.locator(selector).evaluate_all("all => all.map(one => one.href.baseVal || one.href)"))
        )

    with served(tmp_path) as address:
        names = ("memory", "memory?q=planted", "facts?history=1", "shown", "sessions", "graph", "jobs", "requests")
        for path in ["users", *(f"{base}/{name}" for name in names), f"{base}/requests?by=sections"]:
            look(f"{address}/inspect/{path}")
        opened.goto(f"{address}/inspect/{base}/sessions")
        for link in links("tbody td:first-child a")[:30]:
            look(link)
            for other in links("li.compaction a"):
                look(other)
        opened.goto(f"{address}/inspect/{base}/requests")
        for link in links("h2 a")[:6]:
            look(link)
            look(f"{link}?by=sections")
            for other in links("table.requests td:first-child a"):
                look(other)
        opened.goto(f"{address}/inspect/transcript")
        dropped = tmp_path / 'x"><img src=x onerror=planted()>.jsonl'
        dropped.write_bytes(hostile_transcript(CORPUS))
        opened.locator("input[type=file]").set_input_files(dropped)
        opened.get_by_role("button", name="Show its requests").click()
        expect(opened.locator("svg:visible").first).to_be_visible()
        opened.mouse.move(200, 300)
        assert opened.evaluate("window.ran") == []
    context.close()
