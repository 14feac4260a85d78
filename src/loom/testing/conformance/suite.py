"""The form of a conformance suite: laws that a backend inherits and cannot rewrite."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeAlias

import pytest

Law: TypeAlias = Callable[..., Coroutine[Any, Any, None]]


class Suite:
    """Base of the suites. The laws are the test methods of a direct subclass.

    A backend's test class subclasses a suite and says how to open what is tested. It may add tests of its own.
    It may repeat a law only under `pytest.mark.xfail(reason=...)`, so that what it does not keep stays visible.
    """

    pytestmark = pytest.mark.anyio

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        suite = next((base for base in cls.__mro__[1:] if Suite in base.__bases__), None)
        if suite is None:
            return
        for name, law in vars(cls).items():
            if name.startswith("test_") and hasattr(suite, name) and not _is_excused(law):
                raise TypeError(f"{cls.__name__}.{name} rewrites a law; keep it, or mark it xfail(reason=...)")

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop that the laws run on."""
        return "asyncio"


def _is_excused(law: object) -> bool:
    marks: list[pytest.Mark] = getattr(law, "pytestmark", [])
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)


def needs(*powers: type) -> Callable[[Law], Law]:
    """A law of optional protocols: skipped for a `store` that lacks one of them."""

    def decorate(law: Law) -> Law:
        @wraps(law)
        async def checked(*args: Any, **fixtures: Any) -> None:
            missing = [power.__name__ for power in powers if not isinstance(fixtures["store"], power)]
            if missing:
                pytest.skip(f"{type(fixtures['store']).__name__} is not {' and '.join(missing)}")
            await law(*args, **fixtures)

        return checked

    return decorate
