"""The form of a conformance suite, and the sample records its laws use."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, TypeVar

import anyio
import pytest

from loom.core.filter import Filter
from loom.core.record import Episode, Fact, Layer, Provenance, Record, WorkingBlock
from loom.core.scope import Scope
from loom.protocols.memory_store import Job, MemoryStore, Query
from loom.testing.fakes import START, FakeClock

_T = TypeVar("_T", bound=Callable[..., Any])


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

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The clock of what is tested, which moves only when a law advances it."""
        return FakeClock()


def _is_excused(law: object) -> bool:
    marks: list[pytest.Mark] = getattr(law, "pytestmark", [])
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)


def needs(*powers: type) -> Callable[[_T], _T]:
    """A law of optional protocols, or a class of such laws: skipped for a `store` that lacks one of them."""

    def decorate(law: Any) -> Any:
        if isinstance(law, type):
            for name, each in [*vars(law).items()]:
                if name.startswith("test_"):
                    setattr(law, name, decorate(each))
            return law

        @wraps(law)
        async def checked(*args: Any, **fixtures: Any) -> None:
            missing = [power.__name__ for power in powers if not isinstance(fixtures["store"], power)]
            if missing:
                pytest.skip(f"{type(fixtures['store']).__name__} is not {' and '.join(missing)}")
            await law(*args, **fixtures)

        return checked

    return decorate


# Records, jobs and ids that the laws are tested with.

ALICE = Scope(user_id="alice")
BOB = Scope(user_id="bob")
USER = Provenance("user")
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


TWINS: tuple[tuple[str, str], ...] = (
    ("alice", "Alice"),
    ("alice", "alice "),
    ("alice", " alice"),
    ("alice", "alice:x"),
    ("al", "alice"),
    ("alice", "*"),
    ("alice", "%"),
    ("alice", "_lice"),
    ("alice", "[a]lice"),
    ("alice", "al?ce"),
    ("o'neil", "o''neil"),
    ('"alice"', "alice"),
    ("' OR '1'='1", "alice"),
    ("zo\u00eb", "zoe\u0308"),
    ("stra\u00dfe", "strasse"),
    ("alice", "al\u200bice"),
    ("1", "1.0"),
    ("a/b", "a\\b"),
    ("u" * 500, "u" * 499),
    ("u" * 500, "u" * 499 + "v"),
    ("\U0001f375", "\U0001f376"),
)
"""Pairs of different ids that a careless store takes for one, or for a pattern of the other."""


def an_episode(id: str = "e1", text: str = "we drank tea", **fields: Any) -> Episode:
    """An episode of the start of time; `fields` say otherwise."""
    given: dict[str, Any] = {"at": START, "recorded_at": START, "provenance": USER} | fields
    return Episode(id=id, text=text, **given)


def a_fact(id: str = "f1", object: str = "tea", **fields: Any) -> Fact:
    """What alice likes; `fields` say otherwise."""
    given: dict[str, Any] = {
        "subject": "alice",
        "predicate": "likes",
        "recorded_at": START,
        "provenance": USER,
    } | fields
    return Fact(id=id, object=object, **given)


def a_block(name: str = "persona", text: str = "likes tea", **fields: Any) -> WorkingBlock:
    """A working block in its first version; `fields` say otherwise."""
    given: dict[str, Any] = {"updated_at": START, "provenance": USER} | fields
    return WorkingBlock(name=name, text=text, **given)


def a_job(id: str = "j1", *, scope: Scope = ALICE, **fields: Any) -> Job:
    """A job that is due at the start; its key is its id unless `fields` say otherwise."""
    given: dict[str, Any] = {"kind": "digest", "key": id, "run_at": START} | fields
    return Job(id=id, scope=scope, **given)


def one_of_each() -> tuple[Record, ...]:
    """A record of each kind, every field set to something that is easily lost."""
    awkward = "caf\u00e9 cafe\u0301 \u202e \U0001f375 \"quoted\" 'single' % _ * \\ \r\n\t \u4e1c\u4eac"
    later = datetime(2027, 3, 4, 5, 6, 7, 891011, tzinfo=UTC)
    episode = an_episode(
        "e:\u00e9", awkward, at=later, recorded_at=later + HOUR, provenance=Provenance("tool", trusted=True),
        layer=Layer.EPISODIC, session_id="s 1", speaker="Zo\u00eb", importance=0.1 + 0.2, accesses=7,
        accessed_at=later + DAY, archived_at=later + 2 * DAY, sources=("b", "a", "b"),
        attributes={
            "text": awkward, "empty": "", "int": 2**53 - 1, "negative": -1, "float": 0.1, "whole": 1.0, "yes": True,
            "no": False, "none": None, "time": later, "looks like a time": later.isoformat(), "looks like 1": "1",
        },
    )  # fmt: skip
    fact = a_fact(
        "f:\u00e9", awkward, subject="Zo\u00eb", valid_from=later, valid_until=later + DAY, recorded_at=later,
        superseded_at=later + HOUR, superseded_by="f2", confidence=1 / 3, cardinality="multi", sources=("e1", "e0"),
    )  # fmt: skip
    block = a_block("Zo\u00eb's notes", awkward, updated_at=later, provenance=Provenance("operator", trusted=True))
    return (episode, fact, block)


async def ids_of(
    store: MemoryStore, scope: Scope, text: str = "", *, where: Filter | None = None, limit: int = 100, **more: Any
) -> list[str]:
    """The ids that a search finds, best first."""
    hits = await store.search(scope, Query(text=text, where=where, limit=limit, **more))
    return [hit.item.id for hit in hits]


async def at_once(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """What calls return that are made at the same moment, in the order in which they end."""
    ended: list[Any] = []

    async def wait_for(call: Coroutine[Any, Any, Any]) -> None:
        ended.append(await call)

    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(wait_for, call)
    return ended


async def listed(store: MemoryStore, scope: Scope, where: Filter | None = None) -> list[str]:
    """The ids that list() gives."""
    return [record.id for record in await store.list(scope, where=where, limit=10_000)]
