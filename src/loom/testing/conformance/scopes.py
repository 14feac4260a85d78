"""Laws of scopes: users never see each other's records, and a session sees its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from loom.core.filter import Eq
from loom.core.record import Record
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.protocols.memory_store import MemoryStore, Query
from loom.testing.conformance.samples import ALICE, BOB, TWINS, a_block, a_fact, an_episode, ids_of, listed
from loom.testing.conformance.traces import check_non_interference

pairs = pytest.mark.parametrize(("mine", "theirs"), TWINS, ids=range(len(TWINS)))


class ScopeLaws:
    """The laws of scopes, for every memory store."""

    @pairs
    @pytest.mark.parametrize("part", ["user_id", "namespace", "session_id"])
    async def test_scopes_never_meet(self, store: MemoryStore, mine: str, theirs: str, part: str) -> None:
        """Two scopes whose ids look alike share nothing, in any call."""
        one, other = _scope(part, mine), _scope(part, theirs)
        await store.put(one, an_episode("e1", "my tea", session_id=one.session_id))
        await store.put(other, an_episode("e2", "their tea", session_id=other.session_id))
        for scope, id, foreign in ((one, "e1", "e2"), (other, "e2", "e1")):
            assert await store.get(scope, foreign) is None
            assert await listed(store, scope) == [id]
            assert await store.count(scope) == 1
            assert await ids_of(store, scope, "tea") == [id]
            assert await ids_of(store, scope) == [id]
            assert await store.delete(scope, foreign) == 0
        assert (await store.forget(one)).removed["episode"] == 1
        assert await listed(store, other) == ["e2"]
        assert await ids_of(store, other, "tea") == ["e2"]
        assert await store.count(one) == 0

    async def test_the_same_id_of_two_users_is_two_records(self, store: MemoryStore) -> None:
        """An id means something only inside its user."""
        for scope, text in ((ALICE, "alice tea"), (BOB, "bob tea")):
            await store.put(scope, an_episode(text=text), a_fact(object=text), a_block(text=text))
        for scope, text in ((ALICE, "alice tea"), (BOB, "bob tea")):
            assert await store.get(scope, "e1") == an_episode(text=text)
            assert await store.get(scope, "f1") == a_fact(object=text)
            assert await store.get(scope, "block:persona") == a_block(text=text)
        assert await store.delete(ALICE, "e1", "f1", "block:persona") == 3
        assert await store.get(BOB, "e1") == an_episode(text="bob tea")
        assert sorted(await ids_of(store, BOB, "bob")) == ["block:persona", "e1", "f1"]

    async def test_forgetting_one_user_touches_nobody_else(self, store: MemoryStore) -> None:
        """All records of other users are unchanged."""
        others = [Scope(user_id="bob"), Scope("other", "alice"), Scope(user_id="alic"), Scope(user_id="alice2")]
        for scope in (ALICE, *others):
            await store.put(scope, an_episode(), an_episode("e2", session_id="s"), a_fact(), a_block())
        before = [await _everything(store, scope) for scope in others]
        await store.forget(ALICE)
        assert [await _everything(store, scope) for scope in others] == before
        assert len(before[0][0]) == 4

    @pytest.mark.parametrize("id", sorted({id for pair in TWINS for id in pair}), ids=lambda id: ascii(id)[:20])
    async def test_record_ids_are_data(self, store: MemoryStore, id: str) -> None:
        """No character of an id has a meaning."""
        twin = id.swapcase() if id.swapcase() != id else f"{id} "
        await store.put(ALICE, an_episode(id, "mine", session_id=id, speaker=id), an_episode(twin[:500], "twin"))
        assert await store.get(ALICE, id) == an_episode(id, "mine", session_id=id, speaker=id)
        assert await listed(store, ALICE.for_session(id)) == [id]
        assert await store.delete(ALICE, id) == 1
        assert await listed(store, ALICE) == [twin[:500]]

    async def test_a_session_sees_its_episodes_and_the_users_facts(self, store: MemoryStore) -> None:
        """Facts and blocks belong to no session; episodes of other sessions, or of none, stay out."""
        records: list[Record] = [an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"), an_episode("e3")]
        await store.put(ALICE, *records, a_fact(), a_block())
        session = ALICE.for_session("s1")
        seen = ["block:persona", "e1", "f1"]
        assert await listed(store, session) == seen
        assert await store.count(session) == 3
        assert sorted(await ids_of(store, session, "tea")) == seen
        assert [await store.get(session, id) for id in ("e2", "e3")] == [None, None]
        assert await store.count(ALICE) == 5

    @pytest.mark.parametrize("session_id", ["s2", None])
    async def test_an_episode_of_another_session_is_refused(self, store: MemoryStore, session_id: str | None) -> None:
        """What the scope would not see, it cannot write; and nothing of the batch is written."""
        with pytest.raises(UsageError):
            await store.put(ALICE.for_session("s1"), a_fact(), an_episode(session_id=session_id))
        assert await store.count(ALICE) == 0

    async def test_a_session_deletes_only_what_it_sees(self, store: MemoryStore) -> None:
        """delete() with a session leaves other sessions alone."""
        await store.put(ALICE, an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"), an_episode("e3"))
        assert await store.delete(ALICE.for_session("s1"), "e1", "e2", "e3") == 1
        assert await listed(store, ALICE) == ["e2", "e3"]

    async def test_forgetting_a_session_removes_its_episodes(self, store: MemoryStore) -> None:
        """The user's facts, blocks and other sessions stay."""
        await store.put(ALICE, an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"), an_episode("e3"))
        await store.put(ALICE, a_fact(), a_block())
        receipt = await store.forget(ALICE.for_session("s1"))
        assert receipt.removed["episode"] == 1
        assert await listed(store, ALICE) == ["block:persona", "e2", "e3", "f1"]
        assert "e1" not in await ids_of(store, ALICE, "tea", archived=True)

    @pytest.mark.parametrize("seed", range(24))
    async def test_a_user_cannot_tell_whether_others_exist(self, store: MemoryStore, seed: int) -> None:
        """Non-interference: without the other's calls every observation of a user is the same."""
        await check_non_interference(store, seed)


def _scope(part: str, value: str) -> Scope:
    makers: dict[str, Callable[[], Scope]] = {
        "user_id": lambda: Scope(user_id=value),
        "namespace": lambda: Scope(value, "user"),
        "session_id": lambda: Scope("default", "user", value),
    }
    return makers[part]()


async def _everything(store: MemoryStore, scope: Scope) -> tuple[Any, ...]:
    hits = [(hit.item, hit.score) for hit in await store.search(scope, Query(text="tea"))]
    counts = [await store.count(scope, where=where) for where in (None, Eq("kind", "episode"))]
    return await store.list(scope), counts, hits
