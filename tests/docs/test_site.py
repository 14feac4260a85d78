"""The site: every page is in its navigation, every link leads somewhere, and programs can read it as text."""

import ast
import inspect
import re
import tomllib

import pytest
from ruamel.yaml import YAML

import loom
from scripts import site
from tests.docs.pages import ROOT

CONFIG = (ROOT / "mkdocs.yml").read_text("utf-8")


@pytest.fixture
def project(tmp_path):
    """A small project with two pages, a text beside them, and one public class."""

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")

    write("docs/index.md", "# Start\n\nWhat it is. More.\n\n- [How](how-to/do.md#a--b)\n")
    write(
        "docs/how-to/do.md",
        "# Do it\n\n<!-- setup\nsecret = 1\n-->\n\nSo: [like](do.md) this. And so.\n\n## a -- b\n\nSee [`figures`](../../benchmarks/README.md), [the code](../../code.py),"
        " [`code.py`](../../code.py), [home](https://example.org/x.md) and `[not](a-link.md)`.\n\n"
        "```text\n[nor](this.md)\n```\n\n![a picture](../pictures/a.png)\n",
    )
    write("docs/pictures/a.png", "picture")
    write("benchmarks/README.md", "# Figures\n\nFast.\n\n[How](../docs/how-to/do.md)\n")
    write("code.py", "")
    write("mkdocs.yml", "site_name: x\n\nnav:\n  - index.md\n  - How-to:\n      - how-to/do.md\n")
    write("src/loom/__init__.pyi", "".join(f"from {package} import Thing as Thing\n" for package in packages()))
    for package in packages():
        write(f"src/{package.replace('.', '/')}.py", 'class Thing:\n    """What it is."""\n')
    return tmp_path


def packages():
    return [package for _, names in site.PARTS.values() for package in names]


def flat(pages):
    """The paths below a section of the navigation, in order."""
    if isinstance(pages, str):
        return [pages]
    parts = pages.values() if isinstance(pages, dict) else pages
    return [path for part in parts for path in flat(part)]


def page_of(pages, path):
    (page,) = [page for page in pages if page.path == path]
    return page


def test_every_page_is_in_the_navigation_once():
    listed = [path for paths in site.navigation(CONFIG).values() for path in paths]
    assert sorted(listed) == sorted(page.path for page in site.read_pages())


def test_the_navigation_is_read_as_yaml_reads_it():
    first, *sections = YAML(typ="safe").load(CONFIG)["nav"]
    read = {title: flat(pages) for section in sections for title, pages in section.items()}
    assert site.navigation(CONFIG) == {"": [first], **read}
    assert list(site.navigation(CONFIG)) == ["", "Tutorial", "How-to", "Reference", "Explanation", "Project"]


def test_every_public_name_is_on_one_page_of_signatures():
    named = [name for page in site.api_pages() for name in re.findall(r"^::: [\w.]+\.(\w+)$", page.text, re.MULTILINE)]
    assert sorted(named) == sorted(loom.__all__)


def test_every_page_has_a_title_and_a_sentence_for_the_list():
    for page in site.read_pages():
        assert page.title != page.path
        assert page.about, page.path
        assert "](" not in page.about, page.path


def test_links_fit_the_site(project):
    text = page_of(site.read_pages(project), "how-to/do.md").text
    assert "[`figures`](../project/benchmarks.md)" in text
    assert "the code (`code.py`), `code.py`, [home](https://example.org/x.md)" in text
    assert "`[not](a-link.md)`" in text
    assert "[nor](this.md)" in text
    assert "![a picture](../pictures/a.png)" in text
    assert "(how-to/do.md#a-b)" in page_of(site.read_pages(project), "index.md").text
    assert "[How](../how-to/do.md)" in page_of(site.read_pages(project), "project/benchmarks.md").text


@pytest.mark.parametrize("link", ["[gone](gone.md)", "![gone](gone.png)", "[out](../../../elsewhere.md)"])
def test_a_link_that_leads_nowhere_is_an_error(project, capsys, link):
    page = project / "docs/how-to/do.md"
    page.write_text(f"{page.read_text('utf-8')}\n{link}\n", encoding="utf-8")
    assert site.main(["prepare", str(project / "build")], root=project) == 1
    target = link.partition("(")[2].rstrip(")")
    assert capsys.readouterr().err == f"docs/how-to/do.md links to {target}, which is not there\n"
    assert not (project / "build").exists()


def test_what_was_prepared_before_is_gone(project):
    site.prepare(project, project / "build")
    (project / "docs/how-to/more.md").write_text("# More\n\nText.\n", encoding="utf-8")
    site.prepare(project, project / "build")
    (project / "docs/how-to/more.md").unlink()
    pages = site.prepare(project, project / "build")
    written = {file.relative_to(project / "build").as_posix() for file in (project / "build").rglob("*.*")}
    assert written == {page.path for page in pages} | {"pictures/a.png"}


def test_programs_read_every_page_as_text(project):
    """What zensical builds is stood in for by empty pages; the texts do not depend on it."""
    for page in site.read_pages(project):
        built = (project / "site" / page.path).with_suffix(".html")
        built.parent.mkdir(parents=True, exist_ok=True)
        built.touch()
    site.write_texts(project, project / "site")
    how = (project / "site/how-to/do.md").read_text("utf-8")
    assert "secret" not in how
    assert "```text" in how
    assert "### " not in (project / "site/reference/api/agent.md").read_text("utf-8")
    assert "## Thing\n\n`loom.agent.Thing`\n\nWhat it is." in (project / "site/reference/api/agent.md").read_text(
        "utf-8"
    )
    assert (project / "site/llms.txt").read_text("utf-8") == (
        f"# Loom\n\n> {site.SUMMARY}\n\n## Start\n\n- [Start](index.md): What it is.\n"
        "\n## How-to\n\n- [Do it](how-to/do.md): So\n"
    )
    full = (project / "site/llms-full.txt").read_text("utf-8")
    assert full.index("# Start") < full.index("# Do it")


def test_a_page_that_was_not_built_is_an_error(project, capsys):
    assert site.main(["texts", str(project / "site")], root=project) == 1
    assert "the site has no page for" in capsys.readouterr().err


def test_signatures_are_written_out():
    agent = site.described("loom.agent.agent.Agent")
    assert "### Agent.run\n\n```python\nasync def run(self, text: str | Message, *, user_id: str='default'" in agent
    assert "### Agent.__init__" in agent
    assert "### Agent._" not in agent.replace("### Agent.__init__", "")
    assert "- `kept: " in site.described("loom.memory.results.Remembered")
    assert "Literal[" in site.described("loom.core.message.Role")
    assert "def plan(" in site.described("loom.context.cache.plan.plan")
    for page in site.api_pages():
        assert ":::" not in site.as_text(page.text)


def test_what_builds_the_site_is_pinned_and_not_in_the_development_tools():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    assert all("==" in wanted for wanted in groups["docs"])
    locked = (ROOT / "requirements-docs.lock").read_text("utf-8")
    assert all(f"\n{wanted} " in f"\n{locked}" for wanted in groups["docs"])
    assert not {wanted.partition("==")[0] for wanted in groups["docs"]} & set(
        re.findall(r"^\S+?(?===)", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    )


def test_the_script_needs_the_standard_library_alone():
    tree = ast.parse((ROOT / "scripts/site.py").read_text("utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {
        "__future__",
        "collections",
        "collections.abc",
        "dataclasses",
        "functools",
        "itertools",
        "pathlib",
        "typing",
    }


def test_the_outcomes_on_the_first_screen_are_figures_of_the_benchmarks():
    outcomes = re.findall(
        r"^- \*\*(.*?)(?=^- |^```)", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )[:3]
    measured = " ".join((ROOT / "benchmarks/README.md").read_text("utf-8").split())
    for outcome in outcomes:
        said = " ".join(re.sub(r"\]\([^)]*\)", "", outcome).split())
        figures = re.findall(r"[\d.]+%|\d+ to \d+ points|0 of [\d,]+ \w+", said)
        assert figures, outcome
        assert "](benchmarks/README.md#" in outcome
        assert [figure for figure in figures if figure not in measured] == []


def test_the_methods_for_people_who_come_from_elsewhere_take_what_is_shown():
    rows = re.findall(r"`memory\.(\w+)\(([^`]*)\)`", (ROOT / "README.md").read_text("utf-8"))
    assert {name for name, _ in rows} >= {"remember", "recall", "list", "get", "update", "forget", "explain", "facts"}
    for name, given in rows:
        call = ast.parse(f"f({given})", mode="eval").body
        assert isinstance(call, ast.Call)
        named = {word.arg: None for word in call.keywords if word.arg}
        inspect.signature(getattr(loom.Memory, name)).bind(None, *call.args, **named)
