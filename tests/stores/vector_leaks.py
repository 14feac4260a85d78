"""Whether a planted leak of a vector engine is found: the laws that a broken engine is held against."""

import random
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from loom.core.scope import Scope
from loom.protocols.vector_store import VectorItem
from loom.stores.inmemory.store import InMemoryStore
from loom.testing.conformance import VectorStoreSuite, check_non_interference
from loom.testing.conformance.suite import ALICE, BOB
from loom.testing.fakes import FakeClock
from loom.wrappers.indexed import IndexedStore
from tests.testing.laws import broken_laws

NEVER_MEET, SESSIONS = "test_scopes_never_meet", "test_a_user_sees_their_sessions"
X, Y = [1.0, 0.0], [0.0, 1.0]
SEEDS = 40
SCOPES = [
    Scope(namespace, user)
    for namespace in ("a", "A", "a:", "b")
    for user in ("a", "A", "a ", ":a", "a:b", "é", "e\u0301", "*", "a%")
]


def named_by(text: Callable[[Scope], str]) -> Callable[[Scope], str]:
    """Users told apart by less than their whole scope."""
    return lambda scope: sha256(text(scope).encode()).hexdigest()


NAMES = {
    "drops the namespace": named_by(lambda scope: scope.user_id),
    "drops the user": named_by(lambda scope: scope.namespace),
    "folds case": named_by(lambda scope: scope.for_user().key().casefold()),
    "trims names": named_by(lambda scope: f"{len(scope.namespace)}:{scope.namespace}{scope.user_id.strip()}"),
    "joins names without their lengths": named_by(lambda scope: f"{scope.namespace}:{scope.user_id}"),
}
"""What a user may be called by mistake, in place of tenant_of()."""


async def first_broken_by(open_index) -> str | None:
    """The first law that this engine breaks: of a vector store, of an index, and of what users see of each other."""
    for law in (NEVER_MEET, SESSIONS):
        if await broken_laws(VectorStoreSuite, lambda: {"store": open_index()}, law):
            return law
    for check in (names_that_look_alike_never_meet, what_an_index_says_is_of_one_user, nobody_can_tell_of_others):
        index = open_index()
        try:
            await check(index)
        except Exception:  # noqa: BLE001 - a leak may show itself in any way
            return check.__name__
        finally:
            await index.aclose()
    return None


async def names_that_look_alike_never_meet(index):
    """Scopes whose parts look the same when they are put together, or to a reader."""
    for number, scope in enumerate(SCOPES):
        await index.upsert(scope, [VectorItem(f"v{number}", X)])
    assert [await index.ids(scope) for scope in SCOPES] == [(f"v{number}",) for number in range(len(SCOPES))]
    assert set(await index.users()) == set(SCOPES)


async def what_an_index_says_is_of_one_user(index):
    """Ids, vectors and counts, after every kind of change by another."""
    session = BOB.for_session("s")
    await index.upsert(BOB, [VectorItem("same", X), VectorItem("his", X)])
    await index.upsert(session, [VectorItem("in session", X)])
    for change in (
        lambda: index.upsert(ALICE, [VectorItem("same", Y), VectorItem("in session", Y), VectorItem("hers", Y)]),
        lambda: index.delete(ALICE, "same", "his", "in session"),
        lambda: index.forget(ALICE.for_session("s")),
        lambda: index.forget(ALICE),
    ):
        await change()
        assert sorted(await index.ids(BOB)) == ["his", "in session", "same"]
        assert await index.ids(session) == ("in session",)
        assert dict(await index.vectors(BOB, "same", "hers")) == {"same": X}
        assert await index.count(BOB) == 3
        assert await index.count(session) == 1
    assert await index.users() == (BOB,)


async def nobody_can_tell_of_others(index):
    """Random traces of two users, with and without the second."""
    clock = FakeClock()
    store = IndexedStore(InMemoryStore(clock=clock), index, clock=clock)
    for seed in random.Random(5).sample(range(10_000), SEEDS):
        await check_non_interference(store, seed)
    assert store.failure is None
    assert (await store.verify()).is_equal


class LeakLaws:
    """Subclass it with `open_index` and the leaks by name: what is replaced where, by what."""

    leaks: dict[str, tuple[Any, ...]]

    def open_index(self, folder):
        raise NotImplementedError

    def __init_subclass__(cls):
        params = [pytest.param(leak, id=name) for name, leak in cls.leaks.items()]
        cls.leak = pytest.fixture(params=params)(lambda self, request: request.param)

    @pytest.fixture
    def opened(self, tmp_path):
        names = iter(range(1000))
        return lambda: self.open_index(tmp_path / str(next(names)))

    async def test_a_sound_engine_breaks_no_law(self, opened):
        assert await first_broken_by(opened) is None

    async def test_a_planted_leak_is_found(self, leak, opened, monkeypatch):
        monkeypatch.setattr(*leak)
        assert await first_broken_by(opened) is not None
