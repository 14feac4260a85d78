"""The counts that may only fall, and the layout table of the contributors' guide."""

import json
import re
import textwrap
import tomllib

import pytest

from scripts.house import ROOT, diagram, main, measure, read_package, with_section

PROJECT = """
[[tool.importlinter.contracts]]
layers = ["loom.cli", "loom.stores | loom.memory", "loom.core"]
"""
FILES = {
    "src/loom/__init__.py": '"""Loom."""\nfrom importlib import import_module\nHOMES = {"Store": "loom.stores.main"}\n',
    "src/loom/core/__init__.py": '"""Values."""\n',
    "src/loom/core/names.py": '"""Names."""\nclass Found: ...\n',
    "src/loom/core/shared.py": '"""Shared."""\n',
    "src/loom/memory.py": '"""Memory."""\n',
    "src/loom/stores/__init__.py": '"""Stores of records.\n\nMore.\n"""\n',
    "src/loom/stores/main.py": '"""Main."""\nfrom loom.core import names\nfrom ..core.shared import x\nclass Found: ...\n',
    "src/loom/stores/other.py": (
        '"""Other."""\nimport loom.core.shared\nfrom importlib import import_module\n'
        'def f(name): return import_module(f"loom.engine.{name}"), import_module("numpy")\n'
    ),
    "CONTRIBUTING.md": "# Guide\n<!-- layout: by a tool -->\nold\n<!-- end of layout -->\nrest\n",
    "docs/explanation/architecture.md": "# House\n<!-- house: by a tool -->\n<!-- end of house -->\n",
    "pyproject.toml": PROJECT,
}


@pytest.fixture
def house(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    allow(tmp_path, 99)
    return tmp_path


def allow(root, limit, **limits):
    names = ("modules", "class names defined twice", "crumbs", "hidden imports", "import cycles")
    (root / "scripts").mkdir(exist_ok=True)
    settings = {"limits": {**dict.fromkeys(names, limit), **limits}, "doors": []}
    (root / "scripts/house.json").write_text(json.dumps(settings), encoding="utf-8")


def limits_of(root):
    return json.loads((root / "scripts/house.json").read_text())["limits"]


def test_what_is_counted(house):
    found = measure(read_package(house / "src"), doors=())
    assert len(found["modules"]) == 8
    assert found["class names defined twice"] == ["Found: loom.core.names, loom.stores.main"]
    assert found["crumbs"] == [
        "loom.core.names (2 lines): only loom.stores.main imports it",
        "loom.stores.main (4 lines): only loom imports it",
    ], "shared.py has two importers, other.py has none"
    assert found["hidden imports"] == ["loom.stores.other: 'loom.engine.'"], "a package may name its own modules"
    assert measure(read_package(house / "src"), doors=("loom.stores.other",))["hidden imports"] == []


def test_a_module_that_imports_its_own_package_in_a_circle_is_found(house):
    (house / "src/loom/stores/__init__.py").write_text('"""Stores."""\nfrom loom.stores.main import Found\n')
    assert measure(read_package(house / "src"), doors=())["import cycles"] == [], "the module does not import it back"
    (house / "src/loom/stores/main.py").write_text('"""Main."""\nfrom loom.stores import other\nclass Found: ...\n')
    found = measure(read_package(house / "src"), doors=())["import cycles"]
    assert len(found) == 1
    assert set(found[0].split(" > ")) == {"loom.stores", "loom.stores.main"}


def test_update_lowers_the_limits_and_writes_the_layout(house, capsys):
    assert main([], root=house) == 1, "the layout is old"
    assert main(["--update"], root=house) == 0
    found = {"modules": 8, "class names defined twice": 1, "crumbs": 2, "hidden imports": 1, "import cycles": 0}
    assert limits_of(house) == found
    guide = (house / "CONTRIBUTING.md").read_text()
    assert "| `stores/` | Stores of records | `main`, `other` |" in guide
    assert "`cli` >\n`stores`, `memory` >\n`core`." in guide
    assert guide.endswith("rest\n")
    house_page = (house / "docs/explanation/architecture.md").read_text()
    assert 'stores["stores<br/><small>Stores of records</small>"]' in house_page
    assert "beside_stores --> core" in house_page
    capsys.readouterr()
    assert main([], root=house) == 0
    assert capsys.readouterr().out == (
        "8 modules, 1 class names defined twice, 2 crumbs, 1 hidden imports, 0 import cycles\n"
    )


def test_a_figure_that_rises_fails_and_is_never_written(house, capsys):
    main(["--update"], root=house)
    (house / "src/loom/core/extra.py").write_text(textwrap.dedent('"""Extra."""\nclass Found: ...\n'))
    assert main(["--update"], root=house) == 1
    assert "modules: 9, and at most 8 are allowed" in capsys.readouterr().out
    assert limits_of(house)["modules"] == 8


def test_a_guide_without_the_marks_is_refused():
    with pytest.raises(SystemExit, match="put them back"):
        with_section("# Guide\n", "layout", "| a |")


def test_each_group_of_the_diagram_has_a_name_of_its_own():
    """Groups with one name would be drawn as one, with an arrow to itself."""
    drawn = diagram(read_package(ROOT / "src"), tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8")))
    groups = re.findall(r"subgraph (\w+)", drawn)
    assert len(groups) == len(set(groups)) > 1
    assert all(upper != lower for upper, lower in re.findall(r"(\w+) --> (\w+)", drawn))
