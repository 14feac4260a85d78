"""Every pattern of the package: those that modules hold, and those that functions compile."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from types import ModuleType
from typing import Any

import loom
from loom.memory._write.phrases import LazyPattern

METHODS = frozenset({"search", "match", "fullmatch", "split", "sub", "subn", "findall", "finditer"})


@dataclass(slots=True)
class Found:
    """A pattern, where it stands, and the methods that are called on it."""

    where: str
    pattern: re.Pattern[Any]
    methods: set[str] = field(default_factory=set[str])


APART = ("loom.adapters.adk", "loom.adapters._adk_sessions")
"""Modules that cannot be imported beside the others: their framework needs an environment of its own."""


def every_module() -> list[ModuleType]:
    names = [info.name for info in pkgutil.walk_packages(loom.__path__, "loom.") if not info.name.endswith("__main__")]
    return [importlib.import_module(name) for name in ["loom", *sorted(names)] if name not in APART]


def _pattern(value: object) -> re.Pattern[Any] | None:
    """The pattern that a value is, compiled or not yet."""
    return value.compiled if isinstance(value, LazyPattern) else value if isinstance(value, re.Pattern) else None


def held(module: ModuleType) -> Iterator[tuple[str, re.Pattern[Any]]]:
    """The patterns that a module holds, in whatever they stand."""
    seen = set[int]()

    def walk(name: str, value: object) -> Iterator[tuple[str, re.Pattern[Any]]]:
        if (pattern := _pattern(value)) is not None:
            yield name, pattern
            return
        if id(value) in seen or isinstance(value, str | bytes | int | float | ModuleType):
            return
        seen.add(id(value))
        if isinstance(value, dict):
            for key, one in value.items():
                yield from walk(name, key)
                yield from walk(name, one)
        elif isinstance(value, tuple | list | set | frozenset):
            for one in value:
                yield from walk(name, one)
        elif is_dataclass(value) and not isinstance(value, type):
            for one in fields(value):
                yield from walk(name, getattr(value, one.name, None))
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for key, one in vars(value).items():
                yield from walk(f"{name}.{key}", one)

    for name, value in vars(module).items():
        yield from walk(name, value)


def used(module: ModuleType, tree: ast.AST) -> Iterator[tuple[re.Pattern[Any], str]]:
    """The methods that a module calls on the patterns it knows by name; an empty one where it hands a pattern on."""
    if not any(isinstance(value, re.Pattern | LazyPattern) for value in vars(module).values()):
        return
    nodes = list(ast.walk(tree))
    called = {node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr != "compiled"}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in METHODS:
            pattern = _pattern(vars(module).get(node.value.id))
            yield from () if pattern is None else ((pattern, node.attr),)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in called:
            pattern = _pattern(vars(module).get(node.id))
            yield from () if pattern is None else ((pattern, ""),)


def compiled_in_functions(module: ModuleType, tree: ast.AST) -> Iterator[tuple[str, str, re.Pattern[Any] | None]]:
    """Where a function compiles a pattern, by which function of `re`, and the pattern if its text is fixed."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "re"
                and node.func.attr in {*METHODS, "compile"}
            ):
                name = function.name if not isinstance(function, ast.Lambda) else "lambda"
                yield f"{module.__name__}.{name}", node.func.attr, _evaluated(module, node)


def _evaluated(module: ModuleType, call: ast.Call) -> re.Pattern[Any] | None:
    flags = [k.value for k in call.keywords if k.arg == "flags"] + (
        call.args[1:2] if call.func.attr == "compile" else []
    )
    try:
        text, flag = (_value(module, node) for node in (call.args[0], flags[0] if flags else ast.Constant(0)))
    except NameError:
        return None
    return re.compile(text, flag)


def _value(module: ModuleType, node: ast.expr) -> Any:
    whole = ast.fix_missing_locations(ast.Expression(node))
    return eval(compile(whole, module.__name__, "eval"), dict(vars(module)))
