"""Every pattern of the package takes time that grows with its text and no faster, whatever is repeated in it."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from time import thread_time
from typing import Any

import pytest

import loom
from loom.context.skills import Skill, SkillMatcher
from loom.memory._recall.rank import _name
from loom.memory._write.phrases import LazyPattern
from tests.limits.patterns import METHODS, Found, compiled_in_functions, every_module, held, used
from tests.limits.pumps import UNITS, pumps_of

PACKAGES = sorted(info.name for info in pkgutil.iter_modules(loom.__path__))
CHARS = 8_000
TIMES = 16
FAST = 0.6e-6
"""CPU seconds for a character below which nothing is compared: a pattern that fails at once takes a tenth of it."""
GROWTH = 40
"""A quadratic pattern grows by 256 here, a linear one by 16, one with a bounded run (`{12,400}`) by 26."""
CERTAIN = 120
"""Growth that other work on the machine does not fake."""
AGAIN = 5
"""How often growth is measured again before it is believed: a machine that does other work disturbs a figure, not all."""


def _made_of_names() -> list[re.Pattern[Any]]:
    return [_name("Anna van der Berg"), _name("Bob")]


def _made_of_skills() -> list[re.Pattern[Any]]:
    skill = Skill(name="tidy-up", description="Tidies.", content="Tidy.", triggers=("tidy up now", "clean"))
    rules = SkillMatcher([skill])._rules["tidy-up"]
    return [pattern for _, pattern in (*rules._commands, *rules._phrases)]


def _made_of_rules() -> list[re.Pattern[Any]]:
    return [re.compile(one.opening, one.flags) for one in LazyPattern.all if one.opening]


MADE: dict[str, Callable[[], list[re.Pattern[Any]]]] = {
    "loom.memory._recall.rank._name": _made_of_names,
    "loom.context.skills.__init__": _made_of_skills,
    "loom.context.skills._phrase": _made_of_skills,
    "loom.memory._write.phrases._opening": _made_of_rules,
    "loom.memory._write.phrases.compiled": list,  # patterns that are compiled at first use; modules hold them
}
"""Functions that make a pattern of their arguments, and patterns that they made."""


@cache
def found() -> tuple[list[Found], set[str]]:
    """All patterns, with the methods that are called on them, and the functions that make patterns as they go."""
    patterns: dict[tuple[Any, int], Found] = {}
    making: set[str] = set()

    def add(where: str, pattern: re.Pattern[Any], *methods: str) -> None:
        one = patterns.setdefault((pattern.pattern, pattern.flags), Found(where, pattern))
        one.methods.update(methods)

    for module in every_module():
        source = inspect.getsource(module)
        tree = ast.parse(source)
        for name, pattern in held(module):
            add(f"{module.__name__}.{name}", pattern)
        for pattern, method in used(module, tree):
            add(module.__name__, pattern, *([method] if method else METHODS))
        for where, method, pattern in compiled_in_functions(module, tree) if "re." in source else ():
            if pattern is None:
                making.add(where)
            else:
                add(where, pattern, *(METHODS if method == "compile" else [method]))
    for where in making & MADE.keys():
        for pattern in MADE[where]():
            add(where, pattern)
    return list(patterns.values()), making


def seconds(call: Callable[[Any], Any], text: str | bytes) -> float:
    began = thread_time()
    result = call(text)
    if inspect.isgenerator(result) or hasattr(result, "__next__"):
        for _ in result:
            pass
    return thread_time() - began


def growth(pattern: re.Pattern[Any], method: str, text: Callable[[int], str | bytes]) -> float:
    """How many times longer sixteen times the text takes; 0 where it is fast anyway."""
    call = getattr(pattern, method)
    large = text(CHARS)
    if seconds(call, large) < FAST * CHARS:
        return 0.0
    small = text(CHARS // TIMES)
    spent = min(seconds(call, large) for _ in range(3))
    return spent / max(min(seconds(call, small) for _ in range(9)), 1e-7) if spent >= FAST * CHARS else 0.0


def repeated(pattern: re.Pattern[Any], before: str, unit: str, end: str) -> Callable[[int], str | bytes]:
    def text(chars: int) -> str | bytes:
        made = before + unit * (chars // len(unit)) + end
        return made.encode() if isinstance(pattern.pattern, bytes) else made

    return text


def methods_of(one: Found) -> set[str]:
    """The methods that look for a text in different ways: the others go through it as finditer does."""
    walk = {"split", "sub", "subn", "findall"}
    return {"finditer" if name in walk else name for name in one.methods or METHODS}


def slow(one: Found) -> str:
    """What makes a pattern slow, in words; empty where nothing does."""
    for before, unit in [*(("", unit) for unit in UNITS), *pumps_of(one.pattern)]:
        for end in ("\x01", ""):
            for method in methods_of(one):
                text = repeated(one.pattern, before, unit, end)
                times = growth(one.pattern, method, text)
                for _ in range(AGAIN if GROWTH < times < CERTAIN else 0):
                    times = min(times, growth(one.pattern, method, text))
                if times > GROWTH:
                    return f"{method} of {before!r} + n x {unit!r} + {end!r} grows {times:.0f}-fold"
    return ""


def test_there_are_many_patterns_and_units():
    patterns, _ = found()
    assert len(patterns) > 150
    assert {one.where.split(".")[1] for one in patterns} <= set(PACKAGES)
    assert len(set(UNITS)) > 80
    assert sum(len(list(pumps_of(one.pattern))) for one in patterns) > 1000


def test_every_function_that_makes_a_pattern_as_it_goes_is_known():
    _, making = found()
    assert making == MADE.keys(), "add what such a function makes to MADE, or give the pattern a name in its module"
    assert all(make() for make in MADE.values() if make is not list)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_pattern_walks_a_run_more_than_once(package):
    patterns = [one for one in found()[0] if one.where.split(".")[1] == package]
    wrong = {f"{one.where} {one.pattern.pattern!r:.80}": slow(one) for one in patterns}
    assert {where: why for where, why in wrong.items() if why} == {}


@pytest.mark.parametrize(
    "pattern",
    [
        r"[.!?]+[\"')\]]*\s+(?![a-z])|\n",  # what recall had: a run of dots
        r"[,\s]+(?:please|again)$",  # what instructions had: a run of commas
        r"<(?=\s*/?\s*memory\b)",  # what the fence had: blanks behind a bracket
        r"<memory>\n(.*?)\n</memory>",  # what is opened and never closed
        r"\s*(?:;|,| and)\s+(?=always\b)",
        r"(?:a+)\s*(?:\([^)]*\))?\s*:",
        r"^(?:so |and )*(?:(?:so |and )*(?:always|never) \w+)",
    ],
)
def test_a_pattern_that_walks_runs_again_and_again_is_found_out(pattern):
    assert slow(Found("here", re.compile(pattern, re.DOTALL)))
