"""The public names: what is exported, what signatures name, and what importing costs."""

import ast
import dataclasses
import importlib
import inspect
import subprocess
import sys
import typing
from collections import Counter
from functools import cache
from pathlib import Path
from types import FunctionType

import loom
import loom.compactor
from scripts import generate

SRC = Path(loom.__file__).parent
CALLED = {"__init__", "__call__", "__iter__", "__enter__", "__aenter__", "__getitem__", "__add__"}
DOORS = {
    "loom.memory": {
        "ChromaMemory", "CompositeMemory", "PostgresMemory", "QdrantMemory", "RedisMemory", "SqliteMemory",
    },
    "loom.memory.chroma": {"ChromaMemory"},
    "loom.memory.embedder": {
        "HashEmbedder", "MiniLmEmbedder", "OpenAIEmbedder", "StaticEmbedder", "WordLlamaEmbedder", "pick_embedder",
    },
    "loom.memory.qdrant": {"QdrantMemory"},
    "loom.memory.vector_store": {"InMemoryVectorStore"},
    "loom.providers.knowledge": {
        "Document", "GraphKnowledgeBase", "InMemoryKnowledgeBase", "KnowledgeItem", "VectorKnowledgeBase",
    },
}  # fmt: skip
"""The doors to other packages, by name: no other module may hide an import in a string."""


def exported():
    return {name: getattr(loom, name) for name in loom.__all__}


# -- exports ------------------------------------------------------------------------------------------------------


def test_every_name_can_be_had_and_is_listed():
    assert len(loom.__all__) > 250
    assert all(value is not None for value in exported().values())
    assert dir(loom) == loom.__all__ == sorted(loom.__all__)


def test_every_name_stands_in_the_table_once():
    lines = [line.strip().partition(": ")[2] for line in loom._TABLE.splitlines()]
    counted = Counter(name.partition("=")[0] for line in lines for name in line.split())
    assert [name for name, times in counted.items() if times > 1] == []


def test_the_names_of_the_seeds_are_there():
    seeds = (
        "Agent Context FileCheckpointStore FileEntry ImageEntry MemoryCheckpointStore PromptBuilder Session StringEntry "
        "create_active_skill_fragment create_context_fragment create_identity_fragment create_memory_fragment "
        "create_safety_fragment create_skills_fragment create_tools_fragment get_run_context tool"
    )
    assert set(seeds.split()) <= set(loom.__all__)
    assert loom.compactor.__all__ == ["Compactor", "Replacement", "Rewrite", "Shown", "StubCompactor"]


def test_a_name_that_does_not_exist_is_an_attribute_error():
    assert not hasattr(loom, "Kontext")


def test_generated_files_are_up_to_date(capsys):
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


# -- what signatures name -----------------------------------------------------------------------------------------


def test_every_class_that_a_public_signature_names_is_exported():
    names = exported()
    public = set(map(id, names.values()))
    missing = {}
    for name, thing in names.items():
        for where, kind in named_by(thing):
            is_ours = kind.__module__.split(".")[0] == "loom" and not kind.__name__.startswith("_")
            if is_ours and id(kind) not in public:
                missing.setdefault(f"{kind.__module__}.{kind.__name__}", f"{name}.{where}")
    assert missing == {}


def named_by(thing):
    """The classes that the annotations of something name, each with the place where."""
    if not isinstance(thing, type | FunctionType):
        yield from (("", kind) for kind in classes_in(thing))
        return
    for where, text, module in annotations(thing):
        for name in names_in(text):
            yield from ((where, kind) for kind in classes_in(resolved(name, module)))


def annotations(thing):
    if not isinstance(thing, type):
        yield from function_annotations("", thing)
        return
    for cls in (base for base in thing.__mro__ if base.__module__.startswith("loom")):
        fields = vars(cls).get("__annotations__", {})
        yield from ((name, text, cls.__module__) for name, text in fields.items() if not name.startswith("_"))
        for name, value in vars(cls).items():
            if name.startswith("_") and (name not in CALLED or (name == "__init__" and dataclasses.is_dataclass(cls))):
                continue
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, FunctionType):
                yield from function_annotations(name, inspect.unwrap(function))


def function_annotations(where, function):
    for one in (function, *typing.get_overloads(function)):
        yield from ((f"{where}({name})", text, one.__module__) for name, text in one.__annotations__.items())


def names_in(text):
    if not isinstance(text, str):
        return [getattr(text, "__name__", str(text))]
    return [node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)]


def resolved(name, module):
    """What a name in an annotation means, also where only a type checker imports it."""
    home = sys.modules[module]
    if hasattr(home, name):
        return getattr(home, name)
    found = imported(module).get(name)
    return getattr(importlib.import_module(found[0]), found[1]) if found else None


@cache
def imported(module):
    """What a module imports by name, also what only a type checker does."""
    nodes = ast.walk(ast.parse(inspect.getsource(sys.modules[module])))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.asname or alias.name: (node.module, alias.name) for node in froms for alias in node.names}


def classes_in(kind):
    """The classes that a type is made of: those of a union, of a generic, of the bound of a type variable."""
    if isinstance(kind, list | tuple):
        return [found for one in kind for found in classes_in(one)]
    if isinstance(kind, typing.TypeVar):
        return classes_in(kind.__bound__)
    found = [kind] if isinstance(kind, type) and not typing.get_args(kind) else []
    origin = typing.get_origin(kind)
    found += [origin] if isinstance(origin, type) else []
    return [*found, *classes_in(typing.get_args(kind))] if typing.get_args(kind) else found


def test_the_walk_finds_what_is_not_exported():
    class Hidden:
        pass

    Hidden.__module__ = "loom.hidden"

    def public(thing: Hidden | None) -> "loom.Memory": ...

    assert Hidden in classes_in(public.__annotations__["thing"])
    kinds = {kind for _, kind in named_by(loom.Agent)}
    assert {loom.Result, loom.Utterance, loom.SessionStart, loom.Layer} - kinds == {loom.Utterance, loom.Layer}


# -- imports ------------------------------------------------------------------------------------------------------


def test_importing_does_no_work():
    script = (
        "import sys, os, threading; before = set(os.listdir('.')); import loom;"
        "heavy = {'typer', 'rich', 'ruamel', 'pydantic', 'numpy', 'anthropic', 'openai', 'google', 'splintr', 'asyncio'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "assert not [m for m in sys.modules if m.startswith('loom.')], 'submodules are loaded when they are used';"
        "assert threading.active_count() == 1 and set(os.listdir('.')) == before"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_context_needs_no_optional_package_and_no_command_line():
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['splintr', 'anthropic', 'openai', 'google.genai', 'typer', 'rich']));"
        "from loom import Context, StringEntry, plan;"
        "c = Context('c'); c.foundation.add(StringEntry('hello')); c.to_messages();"
        "print(plan(c.compile(), 'openai', 'gpt-4o').error)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert float(done.stdout) > 0, "without the vocabulary the count is an estimate, and says so"


def calls_of(name):
    """Every call of a function in the source: the module, and the first argument."""
    for path in SRC.rglob("*.py"):
        text = path.read_text("utf-8")
        if name not in text:
            continue
        module = ".".join(("loom", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).rpartition(".")[2] == name:
                yield module, node


def test_no_module_hides_an_import_of_this_package_in_a_string():
    allowed = {"loom", "loom.core.doors"}
    hidden = [
        f"{module}: {ast.unparse(call)}"
        for module, call in calls_of("import_module")
        if module not in allowed and ("loom" in ast.unparse(call.args[0]) or isinstance(call.args[0], ast.JoinedStr))
    ]
    assert hidden == []


def test_doors_to_other_packages_are_listed_by_name():
    found = {}
    for module in {module for module, _ in calls_of("door")}:
        door = importlib.import_module(module)
        names = dir(door) if "__dir__" in vars(door) else door._HOMES
        package = ".".join(module.split(".")[:2])
        away = {name for name in names if not getattr(door, name).__module__.startswith(f"{package}.")}
        if away:
            found[module] = away
    assert found == DOORS


def test_errors_are_of_one_tree():
    errors = [value for value in exported().values() if isinstance(value, type) and issubclass(value, Exception)]
    errors.remove(loom.CacheWarning)
    assert len(errors) > 20
    assert [kind for kind in errors if not issubclass(kind, loom.LoomError)] == []
    assert issubclass(loom.UsageError, ValueError)
