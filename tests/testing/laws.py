"""Runs the laws of a suite one by one, outside pytest's own loop, and says which are broken."""

import inspect
import itertools

import pytest


def laws_of(suite):
    """Every law with every choice of its parameters, as (name, law, arguments)."""
    for name, law in inspect.getmembers(suite, inspect.isfunction):
        if not name.startswith("test_"):
            continue
        choices = [_choices(mark) for mark in getattr(law, "pytestmark", []) if mark.name == "parametrize"]
        for chosen in itertools.product(*choices):
            yield name, law, dict(itertools.chain.from_iterable(pairs.items() for pairs in chosen))


def _choices(mark):
    names, values = mark.args
    return [dict(zip(names, v, strict=True)) if isinstance(names, tuple) else {names: v} for v in values]


async def broken_laws(suite, fixtures, only=None):
    """The names of the laws that fail; `fixtures` makes new ones for each law."""
    broken = set()
    for name, law, arguments in laws_of(suite):
        if name in broken or (only and name != only):
            continue
        given = {k: v for k, v in fixtures().items() if k in inspect.signature(law).parameters}
        try:
            await law(suite(), **given, **arguments)
        except pytest.skip.Exception:
            continue
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - a fault may break a law in any way
            broken.add(name)
        finally:
            if "store" in given:
                await given["store"].aclose()
    return broken
