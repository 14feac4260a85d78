"""Links, anchors and the names of tests in the documentation lead somewhere."""

import re

import pytest

from tests.docs.pages import OTHERS, PAGES, ROOT, name_of

_FENCE = re.compile(r"^```.*?^```$|<!--.*?-->", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_PATH = re.compile(r"`((?:src|tests|docs|benchmarks)/[\w./-]*\w)`")
LAWS = ROOT / "docs/explanation/laws.md"


def prose(page):
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_links_and_anchors_exist(page):
    for target in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{name_of(page)} links to {target}, which is not there"
        assert not anchor or anchor in anchors(linked), f"{name_of(page)} links to {target}, which has no such heading"


# test_coming_from.py looks at the tests that its page names.
@pytest.mark.parametrize("page", [page for page in (*PAGES, *OTHERS) if page.name != "coming-from.md"], ids=name_of)
def test_named_files_and_tests_exist(page):
    text = prose(page)
    for path in _PATH.findall(text):
        assert (ROOT / path).exists(), f"{name_of(page)} names {path}, which is not there"
    for path, test in _TEST.findall(text):
        assert (ROOT / path).is_file(), f"{name_of(page)} names {path}, which is not there"
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"\b{test}\b", source), f"{name_of(page)} names {test}, which is not in {path}"


def test_every_law_names_a_test():
    laws = re.split(r"^## ", LAWS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    numbered = [law for law in laws if re.match(r"\d\. ", law)]
    assert [law[0] for law in numbered] == list("123456789")
    for law in numbered:
        assert _TEST.search(law), f"law {law.splitlines()[0]} names no test"


def test_every_page_can_be_reached_from_the_index():
    index = ROOT / "docs/index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in _LINK.findall(prose(index))}
    assert {page.resolve() for page in PAGES[1:]} - {index} <= linked
