"""In-memory checkpoint stores with one planted fault each, and the law that has to catch it."""

from dataclasses import replace

from loom.core.scope import Scope
from loom.errors import StoreConflict, UsageError
from loom.stores.inmemory import MemoryCheckpointStore


class IgnoresTheHead(MemoryCheckpointStore):
    async def save(self, scope, checkpoint, *, entries, head):
        newest = await self.load(scope)
        await super().save(scope, checkpoint, entries=entries, head=newest and newest.id)


class ChecksTheHeadFirst(MemoryCheckpointStore):
    """A retry of what was saved is refused."""

    async def save(self, scope, checkpoint, *, entries, head):
        newest = await self.load(scope)
        if head != (newest and newest.id):
            raise StoreConflict("planted")
        await super().save(scope, checkpoint, entries=entries, head=head)


class TakesAnyPosition(MemoryCheckpointStore):
    async def save(self, scope, checkpoint, *, entries, head):
        try:
            await super().save(scope, checkpoint, entries=entries, head=head)
        except UsageError:
            parent = await self.load(scope, checkpoint.parent) if checkpoint.parent else None
            if scope.session_id is None or scope.session_id != checkpoint.session_id:
                raise
            position = (parent.position if parent else 0) + len(entries)
            fixed = replace(checkpoint, position=position, parent=parent and parent.id)
            await super().save(scope, fixed, entries=entries, head=head)


class Overwrites(MemoryCheckpointStore):
    """The last one to use an id wins."""

    async def save(self, scope, checkpoint, *, entries, head):
        try:
            await super().save(scope, checkpoint, entries=entries, head=head)
        except StoreConflict:
            if await self.load(scope, checkpoint.id) is None:
                raise
            await self.delete(scope, checkpoint.id)
            newest = await self.load(scope)
            await super().save(scope, checkpoint, entries=entries, head=newest and newest.id)


class IgnoresOtherEntries(MemoryCheckpointStore):
    """The same checkpoint with other entries counts as the same."""

    async def save(self, scope, checkpoint, *, entries, head):
        if await self.load(scope, checkpoint.id) != checkpoint:
            await super().save(scope, checkpoint, entries=entries, head=head)


class DropsTheRest(MemoryCheckpointStore):
    """Going on from an older checkpoint removes what was saved after it."""

    async def save(self, scope, checkpoint, *, entries, head):
        is_new = await self.load(scope, checkpoint.id) is None
        await super().save(scope, checkpoint, entries=entries, head=head)
        if is_new and checkpoint.parent not in {None, head}:
            await self.delete(scope, head)


class LoadsTheFurthest(MemoryCheckpointStore):
    """The newest is taken for the one with the highest position."""

    async def load(self, scope, id=None):
        if id is not None:
            return await super().load(scope, id)
        found = await self.list(scope) if scope.session_id else [await super().load(scope)]
        return max(found, key=lambda one: one.position, default=None)


class ListsTheOldestFirst(MemoryCheckpointStore):
    async def list(self, scope=None, *, limit=None):
        return (
            (await super().list(scope))[::-1][:limit]
            if limit is None or limit > 0
            else await super().list(scope, limit=limit)
        )


class DeletesTheLogToo(MemoryCheckpointStore):
    """A checkpoint goes with its entries, though others continue them."""

    async def delete(self, scope, id=None):
        async def empty(saves):
            (found,) = await saves.find(scope.session_id, id)
            if found is not None:
                saves.nodes[found.key].content = (b"[]", ())

        if scope.session_id is not None:
            await self._step(scope, empty, writes=True)
        return await super().delete(scope, id)


class SharesItsValues(MemoryCheckpointStore):
    """History gives the same objects to everybody."""

    async def history(self, scope, id):
        held = self.__dict__.setdefault("held", {})
        key = (scope, id, await self.load(scope, id))
        if key not in held:
            held[key] = await super().history(scope, id)
        return held[key]


class ForgetsForks(MemoryCheckpointStore):
    """Forgetting a session takes what was forked from it."""

    async def forget(self, scope):
        async def forks(saves):
            own = await saves.keys(scope.session_id)
            return [node.checkpoint for node in saves.nodes.values() if node.checkpoint and node.parent in own]

        lost = await self._step(scope, forks, writes=False)
        receipt = await super().forget(scope)
        for checkpoint in lost:
            await self.delete(scope.for_session(checkpoint.session_id), checkpoint.id)
        return receipt


class ForgetsTheUser(MemoryCheckpointStore):
    async def forget(self, scope):
        return await super().forget(scope.for_user())


class SaysNothingIsLeft(MemoryCheckpointStore):
    async def forget(self, scope):
        return replace(await super().forget(scope), pending=())


class ForksIntoWhatExists(MemoryCheckpointStore):
    async def fork(self, scope, id, *, session_id):
        if await self.load(scope, id) is not None:
            await self.forget(scope.for_session(session_id)) if session_id and session_id != scope.session_id else None
        return await super().fork(scope, id, session_id=session_id)


class ForksFromTheNewest(MemoryCheckpointStore):
    async def fork(self, scope, id, *, session_id):
        found, newest = await self.load(scope, id), await self.load(scope) if scope.session_id else None
        return await super().fork(scope, newest.id if found and newest else id, session_id=session_id)


class PrunesByName(MemoryCheckpointStore):
    """The newest is taken for the one with the largest id."""

    async def prune(self, scope, *, keep):
        await super().prune(scope, keep=10**6 if keep > 0 else keep)
        gone = sorted([one.id for one in await self.list(scope)], reverse=True)[keep:]
        for id in gone:
            await self.delete(scope, id)
        return tuple(gone)


class PrunesOneTooMany(MemoryCheckpointStore):
    async def prune(self, scope, *, keep):
        return await super().prune(scope, keep=max(1, keep - 1) if keep > 0 else keep)


class _OtherName(MemoryCheckpointStore):
    """A store that takes different scopes for one."""

    def named(self, scope):
        raise NotImplementedError

    async def _step(self, scope, action, *, writes):
        return await super()._step(self.named(scope), action, writes=writes)


class FoldsCase(_OtherName):
    def named(self, scope):
        return Scope(scope.namespace, scope.user_id.lower(), scope.session_id)


class NamesFiles(_OtherName):
    """A store that makes a file name of an id by replacing what is not a letter or digit."""

    def named(self, scope):
        safe = "".join(c if c.isalnum() else "_" for c in scope.user_id)
        return Scope(scope.namespace, safe, scope.session_id)


class DropsTheNamespace(_OtherName):
    def named(self, scope):
        return Scope("default", scope.user_id, scope.session_id)


CAUGHT_BY = {
    IgnoresTheHead: "test_a_writer_who_missed_a_save_is_refused",
    ChecksTheHeadFirst: "test_saving_the_same_again_is_a_no_op",
    TakesAnyPosition: "test_entries_continue_their_parent",
    Overwrites: "test_an_id_with_other_content_is_a_conflict",
    IgnoresOtherEntries: "test_an_id_with_other_content_is_a_conflict",
    DropsTheRest: "test_going_on_from_an_older_checkpoint_overwrites_nothing",
    LoadsTheFurthest: "test_going_on_from_an_older_checkpoint_overwrites_nothing",
    ListsTheOldestFirst: "test_the_last_saved_comes_first",
    DeletesTheLogToo: "test_deleting_one_leaves_the_others_whole",
    SharesItsValues: "test_what_was_saved_does_not_change_from_outside",
    ForgetsForks: "test_forgetting_the_source_leaves_the_fork_whole",
    ForgetsTheUser: "test_forgetting_a_session_leaves_the_others",
    SaysNothingIsLeft: "test_forgetting_the_source_leaves_the_fork_whole",
    ForksIntoWhatExists: "test_a_fork_goes_into_a_new_session",
    ForksFromTheNewest: "test_a_fork_begins_where_it_was_taken",
    PrunesByName: "test_newest_means_last_saved",
    PrunesOneTooMany: "test_the_newest_stay_with_their_whole_history",
    FoldsCase: "test_scopes_never_meet",
    NamesFiles: "test_scopes_never_meet",
    DropsTheNamespace: "test_scopes_never_meet",
}
FOUND_BY_THE_MODEL = [
    IgnoresTheHead, Overwrites, DropsTheRest, DeletesTheLogToo, ForgetsForks, ForksFromTheNewest, PrunesByName, FoldsCase,
]  # fmt: skip
