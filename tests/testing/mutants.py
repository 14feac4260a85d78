"""In-memory stores with one planted fault each, and the law that has to catch it."""

import itertools
import unicodedata
from dataclasses import replace

import anyio

from loom.core.record import Episode, Fact, Receipt, WorkingBlock
from loom.core.scope import Scope
from loom.stores._record_table import HeldJob, UserState
from loom.stores.inmemory import InMemoryStore


async def everybody(store, call):
    """What a call gives that forgot whose records it may see: those of all users."""
    scopes = [Scope(*owner) for owner in store._states]
    return [await call(scope) for scope in scopes]


def state_of(store, scope):
    """The state of a user, which is made if need be."""
    return store._states.setdefault((scope.namespace, scope.user_id), UserState())


def records_of(store, scope):
    """The records of a user, as the store holds them."""
    return state_of(store, scope).records


class SearchesEverybody(InMemoryStore):
    async def search(self, scope, query):
        found = await everybody(self, lambda s: InMemoryStore.search(self, s, query))
        return tuple(sorted(itertools.chain(*found), key=lambda hit: -hit.score))[: query.limit]


class ListsEverybody(InMemoryStore):
    async def list(self, scope, **more):
        found = await everybody(self, lambda s: InMemoryStore.list(self, s, **more))
        return tuple(itertools.chain(*found))


class CountsEverybody(InMemoryStore):
    async def count(self, scope, **more):
        return sum(await everybody(self, lambda s: InMemoryStore.count(self, s, **more)))


class GetsEverybodys(InMemoryStore):
    async def get(self, scope, id):
        found = await everybody(self, lambda s: InMemoryStore.get(self, s, id))
        return next((record for record in found if record), None)


class DeletesEverybodys(InMemoryStore):
    async def delete(self, scope, *ids):
        return sum(await everybody(self, lambda s: InMemoryStore.delete(self, s, *ids)))


class ForgetsEverybody(InMemoryStore):
    async def forget(self, scope):
        receipt = await super().forget(scope)
        self._states.clear()
        return receipt


class ForgetsPrefixes(InMemoryStore):
    async def forget(self, scope):
        receipt = await super().forget(scope)
        for owner in [o for o in self._states if o[1].startswith(scope.user_id) and o[0] == scope.namespace]:
            del self._states[owner]
        return receipt


class ForgetsTheWholeUser(InMemoryStore):
    async def forget(self, scope):
        return await super().forget(scope.for_user())


class _OtherOwner(InMemoryStore):
    """A store that takes different users for one."""

    def owner(self, scope):
        raise NotImplementedError

    async def _load(self, user):
        return await super()._load(self.owner(user))

    async def _save(self, user, state):
        await super()._save(self.owner(user), state)


class FoldsCase(_OtherOwner):
    def owner(self, scope):
        return Scope(scope.namespace, scope.user_id.lower(), scope.session_id)


class TrimsIds(_OtherOwner):
    def owner(self, scope):
        return Scope(scope.namespace, scope.user_id.strip(), scope.session_id)


class NormalisesIds(_OtherOwner):
    def owner(self, scope):
        return Scope(scope.namespace, unicodedata.normalize("NFC", scope.user_id), scope.session_id)


class CutsIds(_OtherOwner):
    def owner(self, scope):
        return Scope(scope.namespace, scope.user_id[:255], scope.session_id)


class DropsTheNamespace(_OtherOwner):
    def owner(self, scope):
        return Scope("default", scope.user_id, scope.session_id)


class SharesIds(InMemoryStore):
    async def put(self, scope, *records):
        for owner in [o for o in self._states if o != (scope.namespace, scope.user_id)]:
            await self.delete(Scope(*owner), *(record.id for record in records))
        await super().put(scope, *records)


class SharesStatistics(InMemoryStore):
    """Scores depend on how many records everybody has."""

    async def search(self, scope, query):
        total = sum(len(state.records.records) for state in self._states.values())
        hits = await super().search(scope, query)
        return tuple(
            replace(hit, score=hit.score * total, why={k: v * total for k, v in hit.why.items()}) for hit in hits
        )


class IgnoresSessions(InMemoryStore):
    async def search(self, scope, query):
        return await super().search(scope.for_user(), query)


class TakesOtherSessions(InMemoryStore):
    async def put(self, scope, *records):
        await super().put(scope.for_user(), *records)


class LimitsBeforeFiltering(InMemoryStore):
    async def search(self, scope, query):
        hits = await super().search(scope, replace(query, where=None))
        return tuple(hit for hit in hits if query.where is None or query.where.matches(hit.item))


class ReturnsArchived(InMemoryStore):
    async def search(self, scope, query):
        return await super().search(scope, replace(query, archived=True))


class ReturnsHistory(InMemoryStore):
    async def search(self, scope, query):
        return await super().search(scope, replace(query, history=True))


class IgnoresHistory(InMemoryStore):
    async def search(self, scope, query):
        return await super().search(scope, replace(query, history=False))


class IgnoresKnownAt(InMemoryStore):
    async def search(self, scope, query):
        return await super().search(scope, replace(query, known_at=None))


class OrdersByArrival(InMemoryStore):
    async def search(self, scope, query):
        hits = await super().search(scope, query)
        arrival = list(records_of(self, scope).records)
        return tuple(sorted(hits, key=lambda hit: (-hit.score, arrival.index(hit.item.id))))


class SaysNoWhy(InMemoryStore):
    async def search(self, scope, query):
        return tuple(replace(hit, why={}) for hit in await super().search(scope, query))


class PutsOneByOne(InMemoryStore):
    async def put(self, scope, *records):
        for record in records:
            await super().put(scope, record)


class KeepsTheOldest(InMemoryStore):
    async def put(self, scope, *records):
        old = [r.id for r in records if isinstance(r, Episode | Fact) and await self.get(scope, r.id)]
        await super().put(scope, *(record for record in records if record.id not in old))


class IgnoresVersions(InMemoryStore):
    async def put(self, scope, *records):
        await super().put(scope, *(r for r in records if not isinstance(r, WorkingBlock)))
        for block in records:
            if isinstance(block, WorkingBlock):
                records_of(self, scope).records[block.id] = block


class LosesMicroseconds(InMemoryStore):
    async def put(self, scope, *records):
        cut = [replace(r, at=r.at.replace(microsecond=0)) if isinstance(r, Episode) else r for r in records]
        await super().put(scope, *cut)


class HandsOutItsOwn(InMemoryStore):
    async def get(self, scope, id):
        await super().get(scope, id)
        return records_of(self, scope).records.get(id)


class PagesFromAfterOn(InMemoryStore):
    async def list(self, scope, *, where=None, after=None, limit=100):
        found = await super().list(scope, where=where, limit=10_000)
        return tuple(record for record in found if after is None or record.id >= after)[:limit]


class TouchesOnce(InMemoryStore):
    async def touch(self, scope, *ids, at):
        seen = [await self.get(scope, id) for id in ids]
        await anyio.lowlevel.checkpoint()
        for record in seen:
            if isinstance(record, Episode):
                await self.put(scope, replace(record, accesses=record.accesses + 1, accessed_at=at))


class PrunesByDeleting(InMemoryStore):
    async def prune(self, scope, **more):
        pruned = await super().prune(scope, **more)
        await self.delete(scope, *pruned)
        return pruned


class KeysSurviveDelete(InMemoryStore):
    async def delete(self, scope, *ids):
        keys = {id: dict(texts) for id, texts in records_of(self, scope).keys.items()}
        deleted = await super().delete(scope, *ids)
        for id, texts in keys.items():
            records_of(self, scope)._set_keys(id, texts)
        return deleted


class VectorsSurviveDelete(InMemoryStore):
    async def delete(self, scope, *ids):
        user = records_of(self, scope)
        self.left = {id: user.vectors.get(id) for id in user.records if id in user.vectors}
        return await super().delete(scope, *ids)

    async def put(self, scope, *records):
        await super().put(scope, *records)
        records_of(self, scope).vectors.set(getattr(self, "left", {}))


class TakesAnyEmbedder(InMemoryStore):
    async def bind(self, identity, dimension):
        self._set = replace(self._set, bound=(identity, dimension))


class KeepsOldVectors(InMemoryStore):
    async def rebind(self, identity, dimension):
        changed = self._set.bound != (identity, dimension)
        self._set = replace(self._set, bound=(identity, dimension))
        return changed


class StartsAnew(InMemoryStore):
    async def rebind(self, identity, dimension):
        self._set = replace(self._set, bound=None)
        return await super().rebind(identity, dimension)


class ContinuesByIdAlone(InMemoryStore):
    async def unembedded(self, *, where=None, after=None, limit=100):
        found = await super().unembedded(where=where, limit=limit * 100)
        return tuple((s, r) for s, r in found if after is None or r.id > after[1])[:limit]


class JobsSurviveForget(InMemoryStore):
    async def forget(self, scope):
        jobs = dict(state_of(self, scope).jobs)
        receipt = await super().forget(scope)
        state_of(self, scope).jobs = jobs
        return receipt


class ReceiptsSayNothing(InMemoryStore):
    async def forget(self, scope):
        await super().forget(scope)
        return Receipt(removed={"episode": 0})


class LeasesTwice(InMemoryStore):
    async def lease(self, **asked):
        for state in self._states.values():
            state.jobs = {id: replace(held, until=None) for id, held in state.jobs.items()}
        return await super().lease(**asked)


class TakesLateFinishes(InMemoryStore):
    async def finish(self, lease, **effects):
        held = state_of(self, lease.job.scope).jobs.get(lease.job.id)
        await super().finish(lease if held is None else replace(lease, token=held.token), **effects)


class WritesJobsFirst(InMemoryStore):
    async def write(self, scope, *, jobs=(), **more):
        new = await super().write(scope, jobs=jobs)
        await super().write(scope, **more)
        return new


class QueuesTwice(InMemoryStore):
    async def write(self, scope, *, jobs=(), **more):
        await super().write(scope, **more)
        state_of(self, scope).jobs |= {job.id: HeldJob(job) for job in jobs}
        return len(jobs)


CAUGHT_BY = {
    SearchesEverybody: "test_scopes_never_meet",
    ListsEverybody: "test_scopes_never_meet",
    CountsEverybody: "test_scopes_never_meet",
    GetsEverybodys: "test_scopes_never_meet",
    DeletesEverybodys: "test_scopes_never_meet",
    ForgetsEverybody: "test_forgetting_one_user_touches_nobody_else",
    ForgetsPrefixes: "test_forgetting_one_user_touches_nobody_else",
    ForgetsTheWholeUser: "test_forgetting_a_session_removes_its_episodes",
    FoldsCase: "test_scopes_never_meet",
    TrimsIds: "test_scopes_never_meet",
    NormalisesIds: "test_scopes_never_meet",
    CutsIds: "test_scopes_never_meet",
    DropsTheNamespace: "test_scopes_never_meet",
    SharesIds: "test_the_same_id_of_two_users_is_two_records",
    SharesStatistics: "test_a_user_cannot_tell_whether_others_exist",
    IgnoresSessions: "test_a_session_sees_its_episodes_and_the_users_facts",
    TakesOtherSessions: "test_an_episode_of_another_session_is_refused",
    LimitsBeforeFiltering: "test_filters_come_before_the_limit",
    ReturnsArchived: "test_archived_episodes_are_found_on_request",
    ReturnsHistory: "test_only_current_facts_are_found",
    IgnoresHistory: "test_only_current_facts_are_found",
    IgnoresKnownAt: "test_facts_are_found_as_of_both_axes",
    OrdersByArrival: "test_the_order_is_total_and_stable",
    SaysNoWhy: "test_every_hit_says_why",
    PutsOneByOne: "test_put_is_all_or_nothing",
    KeepsTheOldest: "test_the_newest_wins",
    IgnoresVersions: "test_a_block_rises_by_one_version",
    LosesMicroseconds: "test_what_is_put_comes_back_equal",
    HandsOutItsOwn: "test_what_the_caller_changes_later_changes_nothing",
    PagesFromAfterOn: "test_pages_neither_repeat_nor_skip",
    TouchesOnce: "test_concurrent_touches_all_count",
    PrunesByDeleting: "test_pruned_is_archived_and_not_deleted",
    KeysSurviveDelete: "test_keys_live_and_die_with_their_record",
    VectorsSurviveDelete: "test_a_vector_lives_and_dies_with_its_record",
    TakesAnyEmbedder: "test_another_embedder_is_refused",
    KeepsOldVectors: "test_vectors_of_the_same_size_are_not_mixed",
    StartsAnew: "test_the_same_embedder_again_changes_nothing",
    ContinuesByIdAlone: "test_unembedded_lists_all_users_page_by_page",
    JobsSurviveForget: "test_forget_removes_jobs_and_dead_letters",
    ReceiptsSayNothing: "test_forget_leaves_nothing",
    LeasesTwice: "test_a_job_has_one_holder_at_a_time",
    TakesLateFinishes: "test_a_holder_that_comes_late_changes_nothing",
    WritesJobsFirst: "test_a_write_is_all_or_nothing",
    QueuesTwice: "test_the_same_work_is_queued_once",
}
