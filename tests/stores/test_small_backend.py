"""A new memory backend, written against `loom.stores.base` alone: it keeps every law of a memory store.

The backend is a dict of JSON documents, one for each user. Everything else is derived by `SimpleMemoryStore`.
"""

import json
from contextlib import aclosing, asynccontextmanager
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import settings

from loom.core.scope import Scope
from loom.errors import UsageError
from loom.protocols.memory_store import (
    AdminStore,
    Describes,
    ExportsKeys,
    HasNotes,
    HasParts,
    HybridSearch,
    KeepsJobs,
    KeepsKeys,
    KeepsVectors,
    MemoryStore,
    Prunes,
    Query,
    Reembeds,
    Scrubs,
    SeesSessions,
    Sweeps,
    Touches,
)
from loom.stores._record_table import UserState
from loom.stores.base import Settings, SimpleMemoryStore
from loom.testing.conformance import MemoryStoreMachine, MemoryStoreSuite
from loom.testing.conformance.suite import ALICE, BOB, a_fact, a_job, an_episode


class DictStore(SimpleMemoryStore):
    """Keeps each user as one JSON document in a dict, which may be shared and outlives the store."""

    def __init__(self, documents: dict[str, str], *, clock=None) -> None:
        super().__init__(clock=clock)
        self.documents = documents

    async def _load(self, user: Scope) -> UserState | None:
        found = self.documents.get(json.dumps([user.namespace, user.user_id]))
        return None if found is None else UserState.from_dict(json.loads(found))

    async def _save(self, user: Scope, state: UserState | None) -> None:
        name = json.dumps([user.namespace, user.user_id])
        if state is None:
            self.documents.pop(name, None)
        else:
            self.documents[name] = json.dumps(state.to_dict())

    async def _owners(self) -> list[Scope]:
        return [Scope(*json.loads(name)) for name in self.documents if name]

    async def _settings(self) -> Settings:
        bound, *counts = json.loads(self.documents.get("", "[null, 0, 0]"))
        return Settings(bound and tuple(bound), *counts)

    async def _save_settings(self, settings: Settings) -> None:
        self.documents[""] = json.dumps(astuple(settings))


class TestSmallBackend(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(DictStore({}, clock=clock)) as store:
            yield store

    async def test_it_claims_every_power_of_a_store_and_no_other(self, store):
        powers = (MemoryStore, Prunes, Touches, KeepsVectors, HybridSearch, Reembeds, KeepsKeys, ExportsKeys, KeepsJobs)
        assert all(isinstance(store, power) for power in (*powers, AdminStore, Describes))
        assert not any(isinstance(store, power) for power in (Scrubs, Sweeps, SeesSessions, HasNotes, HasParts))

    async def test_another_store_on_the_same_documents_goes_on(self, store, clock):
        await store.bind("m:1:2", 2)
        await store.put(ALICE, an_episode(), a_fact())
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        await store.write(ALICE, keys={"e1": {"around": "zeppelin"}}, jobs=[a_job()])
        other = DictStore(store.documents, clock=clock)
        assert await other.list(ALICE) == await store.list(ALICE)
        for query in (Query(text="zeppelin"), Query(vector=[1.0, 0.0])):
            assert [hit.item.id for hit in await other.search(ALICE, query)] == ["e1"]
        assert await other.open_jobs(ALICE) == (a_job(),)
        assert await other.epoch(ALICE) == await store.epoch(ALICE)

    async def test_nothing_of_a_user_is_kept_after_the_last_record(self, store):
        await store.put(ALICE, an_episode(text="a secret"))
        await store.put(BOB, an_episode())
        await store.delete(ALICE, "e1")
        assert sorted(store.documents) == ["", '["default", "bob"]']
        assert "secret" not in str(store.documents)

    async def test_what_makes_no_sense_is_refused_before_a_hook_is_called(self, store, clock):
        now = clock.now()
        with pytest.raises(UsageError, match="limit=0"):
            await store.list(ALICE, limit=0)
        with pytest.raises(UsageError, match="ends before it starts"):
            await store.lease(now=now, until=now)
        with pytest.raises(UsageError, match="keep=-1"):
            await store.prune(ALICE, layer=1, keep=-1)
        with pytest.raises(UsageError, match="time without a zone"):
            await store.touch(ALICE, "e1", at=now.replace(tzinfo=None))

    async def test_it_says_what_it_is(self, store):
        assert await store.describe() == {"server": "DictStore", "embedder": "none yet: nothing was embedded"}
        await store.bind("m:1:2", 2)
        assert (await store.describe())["embedder"] == "m:1:2 (2 numbers)"


class SmallMachine(MemoryStoreMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        async with aclosing(DictStore({}, clock=clock)) as store:
            yield store


TestSmallModel = SmallMachine.TestCase
TestSmallModel.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)


def test_the_backend_needs_less_than_250_lines():
    assert len(Path(__file__).read_text().splitlines()) < 250
