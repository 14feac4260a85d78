"""Keep the package small: counts that may only fall, and the pages that show its layout.

`python -m scripts.house` checks both and names what is too much. `--update` lowers the limits in `scripts/house.json`
to what is there now, and writes the layout table and the diagram again. It never raises a limit.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
CRUMB_LINES: Final = 60
"""A module that one other imports is a crumb if it has fewer lines than this."""
_OURS: Final = re.compile(r"loom(\.\w+)*\.?")
_LOADERS: Final = ("import_module", "__import__", "door")
"""What imports a module by its name; `door` is Loom's own, for modules that only re-export."""


@dataclass(frozen=True)
class Module:
    """One module of the package: its name, its file and its source."""

    name: str
    path: Path
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed source."""
        return ast.parse(self.source)

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__` of a folder."""
        return self.path.name == "__init__.py"

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (ast.get_docstring(self.tree) or "").partition("\n")[0].rstrip(".")

    def strings(self) -> Iterator[str]:
        """Every string constant, and the constant beginning of every f-string; `{__name__}` counts as the name."""
        inside: set[int] = set()
        for node in ast.walk(self.tree):  # an f-string comes before its parts
            if isinstance(node, ast.JoinedStr):
                inside |= {id(value) for value in node.values}
                yield "".join(_begin(node, self.name))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                yield node.value

    def imports(self, known: Mapping[str, Module]) -> set[str]:
        """The modules of the package that this one imports, by statement or by name in a string."""
        found = {name for name in self.strings() if name in known}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names if alias.name in known}
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                inner = {f"{base}.{alias.name}" for alias in node.names} & known.keys()
                found |= inner or ({base} & known.keys())
        return found - {self.name}

    def executes(self, known: Mapping[str, Module]) -> set[str]:
        """The modules of the package that have to be loaded before this one: `from a import b` loads `a` as well."""
        found: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        return (found & known.keys()) - {self.name}

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        above = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*above, *([node.module] if node.module else [])])


def _begin(node: ast.JoinedStr, module: str) -> Iterator[str]:
    for value in node.values:
        if isinstance(value, ast.Constant):
            yield str(value.value)
        elif isinstance(value, ast.FormattedValue) and ast.unparse(value.value) == "__name__":
            yield module
        else:
            return


def read_package(source: Path) -> dict[str, Module]:
    """The modules under a source folder, by their dotted names."""
    found: dict[str, Module] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path, path.read_text(encoding="utf-8"))
    return found


def classes_defined_twice(modules: Mapping[str, Module]) -> list[str]:
    """Each class name that more than one module defines, with the modules."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module.name)
    return [f"{name}: {', '.join(where)}" for name, where in sorted(homes.items()) if len(where) > 1]


def crumbs(modules: Mapping[str, Module]) -> list[str]:
    """Each short module that exactly one other imports: it belongs into that one."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for name in module.imports(modules):
            importers[name].add(module.name)
    return [
        f"{name} ({lines} lines): only {next(iter(importers[name]))} imports it"
        for name, module in modules.items()
        if not module.is_package and len(importers[name]) == 1 and (lines := module.source.count("\n")) < CRUMB_LINES
    ]


def hidden_imports(modules: Mapping[str, Module], doors: Sequence[str]) -> list[str]:
    """Each import of one of our modules by a name in a string; the import linter cannot see its direction.

    The listed doors may do it, and a package may load its own modules when they are first used.
    """
    return [
        f"{module.name}: {text!r}"
        for module in modules.values()
        if module.name not in doors and _imports_by_name(module)
        for text in module.strings()
        if _OURS.fullmatch(text) and not (module.is_package and text.startswith(f"{module.name}."))
    ]


def import_cycles(modules: Mapping[str, Module]) -> list[str]:
    """Each circle of modules that load each other, by one way around it."""
    left = {name: module.executes(modules) for name, module in modules.items()}
    found: list[str] = []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1]
            found.append(" > ".join(reversed(circle)))
            left[circle[1]].discard(circle[0])
        else:
            return found


def _imports_by_name(module: Module) -> bool:
    names = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    return not names.isdisjoint(_LOADERS)


def measure(modules: Mapping[str, Module], doors: Sequence[str]) -> dict[str, list[str]]:
    """What is counted, by the name of its limit."""
    return {
        "modules": list(modules),
        "class names defined twice": classes_defined_twice(modules),
        "crumbs": crumbs(modules),
        "hidden imports": hidden_imports(modules, doors),
        "import cycles": import_cycles(modules),
    }


def over(limits: Mapping[str, int], found: Mapping[str, Sequence[str]]) -> list[str]:
    """What is above its limit, in words."""
    lines: list[str] = []
    for name, items in found.items():
        if len(items) > limits[name]:
            lines.append(f"{name}: {len(items)}, and at most {limits[name]} are allowed")
            lines += [f"  {item}" for item in items if name != "modules"]
    return lines


def layout(modules: Mapping[str, Module], project: Mapping[str, Any]) -> str:
    """The layout table and the import order, as Markdown."""
    rows = [
        f"| {_link(module)} | {module.summary} | {_members(module, modules)} |"
        for module in modules.values()
        if module.is_package or module.name.count(".") == 1
    ]
    order = " >\n".join(", ".join(f"`{name}`" for name in layer) for layer in layers_of(project))
    table = "\n".join(["| folder or module | holds | modules |", "|---|---|---|", *rows])
    return f"{table}\n\nImports point down, and packages on one line never import each other:\n\n{order}.\n"


def _link(module: Module) -> str:
    short = module.name.removeprefix("loom.").replace(".", "/")
    return f"`{short}/`" if module.is_package else f"`{short}.py`"


def _members(package: Module, modules: Mapping[str, Module]) -> str:
    if not package.is_package or package.name == "loom":
        return ""
    inside = [m.name for m in modules.values() if m.name.rpartition(".")[0] == package.name and not m.is_package]
    return ", ".join(f"`{name.rpartition('.')[2]}`" for name in inside)


def diagram(modules: Mapping[str, Module], project: Mapping[str, Any]) -> str:
    """The packages as a Mermaid diagram, from the top layer to the bottom one."""
    lines = ["```mermaid", "flowchart TD"]
    layers = [[name for name in layer if f"loom.{name}" in modules] for layer in layers_of(project)]
    ends: list[str] = []
    for layer in filter(None, layers):
        summaries = {name: modules[f"loom.{name}"].summary.replace("`", "") for name in layer}
        nodes = [f'    {name}["{name}<br/><small>{summary}</small>"]' for name, summary in summaries.items()]
        is_alone = len(layer) == 1
        group = f"beside_{layer[0]}"  # a name of its own: groups with one name would be drawn as one
        lines += nodes if is_alone else [f"    subgraph {group} [ ]", *(f"    {node}" for node in nodes), "    end"]
        ends.append(layer[0] if is_alone else group)
    lines += [f"    {upper} --> {lower}" for upper, lower in pairwise(ends)]
    return "\n".join([*lines, "```", ""])


def layers_of(project: Mapping[str, Any]) -> list[list[str]]:
    """The layers of the import contract, top first; the packages of one layer are siblings."""
    layers: list[str] = project["tool"]["importlinter"]["contracts"][0]["layers"]
    return [layer.replace("loom.", "").split(" | ") for layer in layers]


def with_section(page: str, mark: str, text: str) -> str:
    """A page with the text between the two comments that hold the mark."""
    found = re.search(rf"(<!-- {mark}: [^\n]*-->\n).*?(<!-- end of {mark} -->)", page, re.DOTALL)
    if found is None:
        raise SystemExit(
            f"a page has lost its comments `<!-- {mark}: ... -->` and `<!-- end of {mark} -->`; put them back"
        )
    return f"{page[: found.start()]}{found[1]}\n{text}\n{found[2]}{page[found.end() :]}"


def outdated(root: Path, modules: Mapping[str, Module]) -> dict[Path, str]:
    """The pages that do not show the package as it is, each with the text that it should have."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    sections = {
        root / "CONTRIBUTING.md": ("layout", layout(modules, project)),
        root / "docs/explanation/architecture.md": ("house", diagram(modules, project)),
    }
    pages = {path: path.read_text(encoding="utf-8") for path in sections}
    wanted = {path: with_section(pages[path], *section) for path, section in sections.items()}
    return {path: text for path, text in wanted.items() if text != pages[path]}


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Check, or update; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.house", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="lower the limits, and write the pages")
    update = parser.parse_args(arguments).update
    limits_file = root / "scripts/house.json"
    settings = json.loads(limits_file.read_text(encoding="utf-8"))
    modules = read_package(root / "src")
    found = measure(modules, settings["doors"])
    problems = over(settings["limits"], found)
    pages = outdated(root, modules)
    if update:
        for path, text in pages.items():
            path.write_text(text, encoding="utf-8")
        settings["limits"] = {name: min(settings["limits"][name], len(items)) for name, items in found.items()}
        limits_file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    else:
        problems += [f"{path.name} is out of date; run `python -m scripts.house --update`" for path in pages]
    for line in problems or [", ".join(f"{len(items)} {name}" for name, items in found.items())]:
        sys.stdout.write(f"{line}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
