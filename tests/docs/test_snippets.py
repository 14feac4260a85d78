"""Every example of the documentation runs and prints what the page says.

`LOOM_REWRITE_DOCS=1 pytest tests/docs` writes what is printed now into the pages; read the diff then.
"""

import os

import pytest

from tests.docs.pages import GUIDE, PAGES, REWRITE, blocks, name_of, run, same, shown


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOOM_MODELS", "")  # a page may set it; it is put back afterwards
    return tmp_path


@pytest.mark.parametrize("page", [*PAGES, GUIDE], ids=name_of)
def test_a_page_prints_what_it_says(page, folder):
    text = page.read_text(encoding="utf-8")
    wrong = []
    for block, printed in run(page, folder):
        said = block.expects
        if said and not same(printed, said.code):
            wrong.append((said, printed))
    if wrong and os.environ.get(REWRITE):
        for said, printed in reversed(wrong):
            text = text[: said.start] + shown(printed) + text[said.start + len(said.code) :]
        page.write_text(text, encoding="utf-8")
        return
    for said, printed in wrong:
        assert shown(printed) == said.code, f"{name_of(page)}, line {said.line}: the output is another one now"


def test_the_pages_have_examples():
    with_code = [page for page in PAGES if any(b.language == "python" for b in blocks(page.read_text("utf-8")))]
    assert len(with_code) >= 10
    readme = blocks(PAGES[0].read_text("utf-8"))
    assert any(b.language == "python" and b.expects for b in readme)
    assert any(b.language == "bash" and b.expects for b in readme)


def test_a_wrong_output_is_noticed(folder):
    page = folder / "page.md"
    page.write_text("```python\nprint('entry k4n moved')\n```\n\n```text\nentry zzz moved\n```\n", encoding="utf-8")
    ((block, printed),) = run(page, folder)
    assert block.expects
    assert same(printed, block.expects.code)
    assert not same(printed, "entry zzz stayed\n")


def test_a_command_that_fails_is_noticed(folder):
    page = folder / "page.md"
    page.write_text("```bash\nloom cache plan nowhere.json\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"exit code 2\nloom: nowhere.json cannot be read"):
        list(run(page, folder))
