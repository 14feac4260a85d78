"""Packages that add a URL scheme, a model provider and an embedder by entry points."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from loom import UsageError, open_memory, open_model
from loom.engine.open import EMBEDDERS, MODELS
from loom.engine.urls import STORES, Opening, Registry
from tests.docs.pages import blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/write-a-plug-in.md"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the package of the documentation was built for and installed in."""
    folder = tmp_path_factory.mktemp("plug-in")
    source = folder / "source"
    source.mkdir()
    config, module, *_ = blocks(PAGE.read_text("utf-8"))
    (source / "pyproject.toml").write_text(config.code)
    (source / "loom_shelf.py").write_text(module.code)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    uv = Path(sys.executable).parent / "uv"
    target = folder / "target"
    subprocess.run([uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--target", target, wheel], check=True)
    return target


def run(script, installed, cwd):
    path = os.pathsep.join([str(installed), str(ROOT / "src")])
    env = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_installed_package_is_opened_by_url_by_name_and_by_embedder(installed, tmp_path):
    script = (
        "from loom import Agent, open_memory_sync, open_model\n"
        "with open_memory_sync('shelf:notes', embedder='letters') as memory:\n"
        "    memory.remember('I live in Oslo.', user_id='ann')\n"
        "    print(memory.recall('Oslo', user_id='ann').text)\n"
        "    print(type(memory.store).__name__, memory.embedder_note)\n"
        "print(open_model('parrot:grey').name)\n"
        "with Agent(model='parrot:grey', memory={'backend': 'shelf', 'path': 'notes'}) as agent:\n"
        "    print(agent.run_sync('Polly?').text)\n"
        "    print(agent.notes)\n"
    )
    lines = run(script, installed, tmp_path)
    assert lines[0] == "I live in Oslo."
    assert lines[1].startswith("ShelfStore embedding with letters:26")
    assert lines[2] == "parrot:grey"
    assert lines[3] == "Polly?"
    assert "shelf does not save them; give checkpoints=" in lines[4]


def test_errors_list_what_packages_add(installed, tmp_path):
    script = (
        "from loom import UsageError, open_memory, open_model\n"
        "for open in (lambda: open_memory('self:x'), lambda: open_model('parot:grey'),"
        " lambda: open_memory('inmemory', embedder='leters')):\n"
        "    try: open()\n"
        "    except UsageError as error: print(error)\n"
    )
    stores, models, embedders = run(script, installed, tmp_path)
    known = "the backends are inmemory, sqlite, postgres, redis, chroma, qdrant, composite, shelf"
    assert stores.endswith(f"{known}; did you mean 'shelf'?")
    assert "parrot" in models
    assert "letters" in embedders


# -- the registry -------------------------------------------------------------------------------------------------


@pytest.fixture
def points(monkeypatch):
    """Entry points that are there for a test, by group, name and value."""
    found = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **by: EntryPoints(found).select(**by))
    return lambda group, name, value: found.append(EntryPoint(name, value, group))


def test_built_in_names_go_through_the_same_table_and_cannot_be_replaced(points):
    points("loom.stores", "sqlite", "builtins:print")
    assert STORES["sqlite"] is STORES.built_in["sqlite"]
    assert STORES.added == ()
    for registry, name in ((STORES, "redis"), (MODELS, "ollama"), (EMBEDDERS, "static")):
        assert name in registry
        assert name in list(registry)
        assert len(registry) == len(registry.built_in)


def test_a_name_that_two_packages_add_is_refused(points):
    points("loom.stores", "shelf", "one:open")
    points("loom.stores", "shelf", "two:open")
    with pytest.raises(UsageError, match=r"several packages register 'shelf' in loom\.stores: one:open, two:open"):
        open_memory("shelf:x")


def test_an_entry_point_that_cannot_be_loaded_says_why(points):
    points("loom.models", "parrot", "no_such_module:Parrot")
    with pytest.raises(UsageError, match="registers 'parrot' as no_such_module:Parrot, which cannot be loaded: No mod"):
        open_model("parrot:grey")


def test_entry_points_are_not_read_for_what_is_built_in(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: pytest.fail("entry points were read"))
    assert STORES["inmemory"]("inmemory", Opening())
    assert open_model("offline:memory").name == "offline:memory"
    registry = Registry("loom.things", {"one": 1})
    assert registry["one"] == 1
    with pytest.raises(BaseException, match="were read"):
        registry.get("two")
