"""Prepare the documentation for the site, and write what programs read of it.

`python -m scripts.site prepare FOLDER` writes the pages as the site shows them: those of `docs`, the texts beside it
(benchmarks, changelog, ...), and one page of signatures for each part of the package. A link that leads nowhere is an
error. `python -m scripts.site texts FOLDER` writes into a built site: a `.md` beside every page, `llms.txt` (what there
is) and `llms-full.txt` (all of it). Standard library alone, since it runs where the site is built.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
BESIDE: Final = {
    "benchmarks/README.md": "project/benchmarks.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "VERSIONING.md": "project/versioning.md",
}
"""Texts outside `docs`, and where the site has them."""
PARTS: Final = {
    "agent": ("Agents and tools", ("loom.agent", "loom.api", "loom.tools")),
    "context": ("Contexts and the cache", ("loom.context", "loom.text", "loom.traces")),
    "memory": ("Memory", ("loom.memory", "loom.engine")),
    "session": ("Sessions", ("loom.session",)),
    "knowledge": ("Knowledge bases", ("loom.knowledge",)),
    "models": ("Models and embedders", ("loom.providers", "loom.catalog")),
    "stores": ("Stores", ("loom.stores",)),
    "values": ("Values that calls take and give", ("loom.core",)),
    "protocols": ("Protocols to implement", ("loom.protocols",)),
    "telemetry": ("Telemetry", ("loom.telemetry",)),
    "errors": ("Errors", ("loom.errors",)),
}
"""Pages of signatures: a name, a title, and the packages whose public names are on it."""
SUMMARY: Final = "A context and memory engine for LLM agents, in Python: what the model sees, and what it remembers."

_LINK: Final = re.compile(r"(?P<image>!?)\[(?P<label>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_CODE_OR_LINK: Final = re.compile(rf"^```.*?^```$|<!--.*?-->|{_LINK.pattern}|`[^`\n]+`", re.MULTILINE | re.DOTALL)
"""What comes first is taken: a link may have code as its label, and code may look like a link."""
_COMMENT: Final = re.compile(r"^<!--.*?-->\n+", re.MULTILINE | re.DOTALL)
_DIRECTIVE: Final = re.compile(r"^::: (?P<name>[\w.]+)$", re.MULTILINE)
_NAV_SECTION: Final = re.compile(r"^  - (?P<title>[^:\n]+):$")
_NAV_PAGE: Final = re.compile(r"^ +- (?:[^:\n]+: )?(?P<path>[\w./-]+\.md)$")


class BrokenLinksError(Exception):
    """Links that lead nowhere, one in each line."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the site."""

    path: str
    """Where the site has it, such as `how-to/use-files.md`."""
    text: str

    @property
    def title(self) -> str:
        """Its first heading."""
        found = re.search(r"^# (.+)$", self.text, re.MULTILINE)
        return found[1] if found else self.path

    @property
    def about(self) -> str:
        """The first sentence below its title, without links."""
        body = _COMMENT.sub("", self.text.partition(f"# {self.title}\n")[2]).strip()
        paragraph = " ".join(body.partition("\n\n")[0].split())
        return re.split(r"(?<=[.:]) ", _LINK.sub(r"\g<label>", paragraph), maxsplit=1)[0].rstrip(":")


def read_pages(root: Path = ROOT) -> list[Page]:
    """Every page, its links changed to fit the site; raises BrokenLinksError with all that lead nowhere."""
    places = {path.relative_to(root).as_posix(): path.relative_to(root / "docs").as_posix() for path in _written(root)}
    places |= {source: place for source, place in BESIDE.items() if (root / source).exists()}
    broken: list[str] = []
    pages = [
        Page(place, _with_links(root, source, (root / source).read_text("utf-8"), places, broken))
        for source, place in places.items()
    ]
    if broken:
        raise BrokenLinksError("\n".join(broken))
    return [*pages, *api_pages(root)]


def prepare(root: Path, folder: Path) -> list[Page]:
    """Write the pages and the pictures that they show into a new folder."""
    pages = read_pages(root)
    shutil.rmtree(folder, ignore_errors=True)
    for page in pages:
        _write(folder / page.path, page.text)
    for picture in (root / "docs").rglob("*.png"):
        _copy(picture, folder / picture.relative_to(root / "docs"))
    for source, place in BESIDE.items():
        for picture in (root / source).parent.glob("*.png"):
            _copy(picture, folder / place.rpartition("/")[0] / picture.name)
    return pages


def write_texts(root: Path, site: Path) -> list[Page]:
    """Write what programs read beside the pages of a built site; raises FileNotFoundError where one was not built."""
    pages = [Page(page.path, as_text(page.text, root)) for page in read_pages(root)]
    for page in pages:
        if not (site / page.path).with_suffix(".html").exists():
            raise FileNotFoundError(f"the site has no page for {page.path}; is it in the navigation of mkdocs.yml?")
        _write(site / page.path, page.text)
    sections = navigation((root / "mkdocs.yml").read_text("utf-8"))
    _write(site / "llms.txt", summary_of(sections, pages))
    by_path = {page.path: page for page in pages}
    ordered = [by_path[path] for paths in sections.values() for path in paths]
    _write(site / "llms-full.txt", "\n".join(f"<!-- {page.path} -->\n\n{page.text}" for page in ordered))
    return pages


def navigation(config: str) -> dict[str, list[str]]:
    """The sections of `mkdocs.yml`, each with the paths of its pages; read line by line, as it is kept plain."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in config.partition("\nnav:\n")[2].splitlines():
        if line and not line.startswith(" "):
            break
        title, page = _NAV_SECTION.match(line), _NAV_PAGE.match(line)
        if title:
            section = title["title"]
        elif page:
            found.setdefault(section if line.startswith("   ") else "", []).append(page["path"])
    return found


def summary_of(sections: Mapping[str, list[str]], pages: list[Page]) -> str:
    """The text of `llms.txt`: the sections of the site, and a line for each page."""
    by_path = {page.path: page for page in pages}
    lines = ["# Loom", "", f"> {SUMMARY}"]
    for section, paths in sections.items():
        lines += ["", f"## {section or 'Start'}", ""]
        lines += [f"- [{by_path[path].title}]({path}): {by_path[path].about}" for path in paths]
    return "\n".join(lines) + "\n"


def as_text(text: str, root: Path = ROOT) -> str:
    """A page for programs: without hidden set-up code, and with the signatures that the site fills in."""
    return _DIRECTIVE.sub(lambda found: described(found["name"], root), _COMMENT.sub("", text))


def api_pages(root: Path = ROOT) -> list[Page]:
    """One page for each part of the package; every name that is imported from `loom` is on one of them."""
    by_package: dict[str, list[str]] = defaultdict(list)
    for name in _public(root):
        by_package[".".join(name.split(".")[:2])].append(name)
    pages: list[Page] = []
    for part, (title, packages) in PARTS.items():
        names = sorted((name for package in packages for name in by_package.pop(package, [])), key=_by_last)
        names.sort(key=lambda name: _by_last(name) != part)  # what the page is named after comes first
        said = f"Every public name of this part, imported as `from loom import {names[0].rpartition('.')[2]}`."
        pages.append(Page(f"reference/api/{part}.md", "\n\n".join((f"# {title}: signatures", said, *_fill(names)))))
    if by_package:
        raise ValueError(f"no page of signatures has the names of {', '.join(by_package)}; add them to PARTS")
    return pages


def described(name: str, root: Path = ROOT) -> str:
    """A public name as Markdown: its signature and what its docstring says, with public methods."""
    node = _find(name, root)
    short = name.rpartition(".")[2]
    lines = [f"## {short}", "", f"`{name}`", ""]
    if isinstance(node, ast.ClassDef):
        lines += [ast.get_docstring(node) or "", "", *_fields(node)]
        for member in node.body:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and _is_shown(member.name):
                lines += [f"### {short}.{member.name}", "", *_function(member)]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        lines += _function(node)
    elif node is not None:
        lines += ["```python", ast.unparse(node), "```"]
    return "\n".join(lines).rstrip() + "\n"


def _is_shown(name: str) -> bool:
    return name == "__init__" or not name.startswith("_")


def _fields(node: ast.ClassDef) -> list[str]:
    """A line for each public field, with the text below it, which is how the package describes fields."""
    lines: list[str] = []
    for member, after in zip_longest(node.body, node.body[1:]):
        if isinstance(member, ast.AnnAssign) and _is_shown(ast.unparse(member.target)):
            said = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                said = " ".join(str(after.value.value).split())
            lines.append(f"- `{ast.unparse(member)}`{': ' if said else ''}{said}")
    return [*lines, ""] if lines else []


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    gives = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    signature = f"{kind} {node.name}({ast.unparse(node.args)}){gives}"
    return ["```python", signature, "```", "", ast.get_docstring(node) or "", ""]


def _find(name: str, root: Path) -> ast.stmt | None:
    """The statement that defines a name; of overloads the last, which is the function itself."""
    module, _, short = name.rpartition(".")
    found = [node for node in _statements(root, module) if short in _defined(node)]
    return found[-1] if found else None


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets]
    return [ast.unparse(node.target)] if isinstance(node, ast.AnnAssign) else []


@cache
def _statements(root: Path, module: str) -> tuple[ast.stmt, ...]:
    path = root / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return tuple(ast.parse(file.read_text("utf-8")).body)


def _public(root: Path) -> Iterator[str]:
    """Where each name that `loom` exports is defined."""
    for node in ast.parse((root / "src/loom/__init__.pyi").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _fill(names: list[str]) -> Iterator[str]:
    yield from (f"::: {name}" for name in names)


def _by_last(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _written(root: Path) -> list[Path]:
    return sorted((root / "docs").rglob("*.md"))


def _with_links(root: Path, source: str, text: str, places: Mapping[str, str], broken: list[str]) -> str:
    """The text with links that fit the site. What is not a page of it is named by its path instead."""

    def change(link: re.Match[str]) -> str:
        target, _, anchor = link["target"].partition("#")
        if re.match(r"[a-z]+:", target):
            return link[0]
        anchor = f"#{re.sub(r'-{2,}', '-', anchor)}" if anchor else ""  # as MkDocs names headings
        if not target:
            return f"[{link['label']}]({anchor})"
        path = Path(os.path.normpath(root / Path(source).parent / target))
        if not path.exists() or not path.is_relative_to(root):
            broken.append(f"{source} links to {link['target']}, which is not there")
            return link[0]
        name = path.relative_to(root).as_posix()
        if link["image"]:
            return link[0]
        if name not in places:
            label = link["label"].strip("`")
            return f"`{name}`" if label in name else f"{link['label']} (`{name}`)"
        to = os.path.relpath(places[name], Path(places[source]).parent).replace(os.sep, "/")
        return f"[{link['label']}]({to}{anchor})"

    return _CODE_OR_LINK.sub(lambda found: change(found) if found["target"] else found[0], text)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def main(arguments: list[str] | None = None, *, root: Path = ROOT) -> int:
    """Do one of the two steps; 1 if a link leads nowhere or a page was not built."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=["prepare", "texts"])
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    try:
        (prepare if given.step == "prepare" else write_texts)(root, given.folder)
    except (BrokenLinksError, FileNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
