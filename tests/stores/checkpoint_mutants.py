"""In-memory checkpoint stores with one planted fault each, and the law that has to catch it."""

from dataclasses import replace

from loom.core.message import Usage
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
    async def list(self, scope=None, *, limit=None, attributes=None, before=None):
        return (
            (await super().list(scope, attributes=attributes, before=before))[::-1][:limit]
            if limit is None or limit > 0
            else await super().list(scope, limit=limit, attributes=attributes, before=before)
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

    async def history(self, scope, id, *, after=0, bodies=True):
        held = self.__dict__.setdefault("held", {})
        key = (scope, id, await self.load(scope, id), after, bodies)
        if key not in held:
            held[key] = await super().history(scope, id, after=after, bodies=bodies)
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
    async def fork(self, scope, id, *, session_id, at=None):
        if await self.load(scope, id) is not None:
            await self.forget(scope.for_session(session_id)) if session_id and session_id != scope.session_id else None
        return await super().fork(scope, id, session_id=session_id, at=at)


class ForksFromTheNewest(MemoryCheckpointStore):
    async def fork(self, scope, id, *, session_id, at=None):
        found, newest = await self.load(scope, id), await self.load(scope) if scope.session_id else None
        return await super().fork(scope, newest.id if found and newest else id, session_id=session_id, at=at)


class ForksByItsOwnClock(MemoryCheckpointStore):
    async def fork(self, scope, id, *, session_id, at=None):
        return await super().fork(scope, id, session_id=session_id)


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


class AppendsWithoutTheView(MemoryCheckpointStore):
    async def append(self, scope, entries, **named):
        newest = await self.load(scope) if scope.session_id else None
        made = await super().append(scope, entries, **named)
        if newest is None or made.id == newest.id:
            return made
        await self.delete(scope, made.id)
        bare = replace(made, turn=0, usage=Usage(), pins=(), compactions=())
        await self.save(scope, bare, entries=entries, head=newest.id)
        return bare


class AppendsTwice(MemoryCheckpointStore):
    """`once` is not looked at."""

    async def append(self, scope, entries, *, once=False, **named):
        return await super().append(scope, entries, **named)


class LooksAtAllSessions(MemoryCheckpointStore):
    """An id that any session of the user holds is left out."""

    async def append(self, scope, entries, *, once=False, **named):
        for session in await self.sessions(scope.for_user()) if once and scope.session_id else ():
            other = scope.for_session(session.session_id)
            held = {entry.id for entry in await self.history(other, (await self.load(other)).id)}
            entries = [entry for entry in entries if entry.id not in held]
        return await super().append(scope, entries, once=once, **named)


class ReadsTheWholeLog(MemoryCheckpointStore):
    async def history(self, scope, id, *, after=0, bodies=True):
        return await super().history(scope, id, after=0 if after > 1 else after, bodies=bodies)


class FiltersAfterTheLimit(MemoryCheckpointStore):
    async def list(self, scope=None, *, limit=None, attributes=None, before=None):
        found = await super().list(scope, limit=limit, before=before)
        await super().list(scope, attributes=attributes)
        return tuple(one for one in found if (attributes or {}).items() <= one.attributes.items())


class IgnoresBefore(MemoryCheckpointStore):
    async def list(self, scope=None, *, limit=None, attributes=None, before=None):
        await super().list(scope, limit=limit, before=before)
        return await super().list(scope, limit=limit, attributes=attributes)


class KeepsBytesAsText(MemoryCheckpointStore):
    async def append(self, scope, entries, **named):
        bodies = [e.body.decode("latin-1") if type(getattr(e, "body", 0)) is bytes else None for e in entries]
        kept = [e if body is None else replace(e, body=body) for e, body in zip(entries, bodies, strict=True)]
        return await super().append(scope, kept, **named)


class CountsBranches(MemoryCheckpointStore):
    """The entries of a session are taken for the most that any of its checkpoints has."""

    async def sessions(self, scope=None, *, limit=None):
        found = await super().sessions(scope, limit=limit)
        most = {}
        for one in await self.list(scope):
            most[one.session_id] = max(most.get(one.session_id, 0), one.position)
        return tuple(replace(one, entries=most[one.session_id] + (one.checkpoints > 2)) for one in found)


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
    ForksByItsOwnClock: "test_a_fork_is_stamped_with_the_time_that_is_given",
    PrunesByName: "test_newest_means_last_saved",
    PrunesOneTooMany: "test_the_newest_stay_with_their_whole_history",
    AppendsWithoutTheView: "test_append_keeps_the_view",
    AppendsTwice: "test_once_leaves_out_what_is_held",
    LooksAtAllSessions: "test_once_is_about_the_log_that_is_continued",
    ReadsTheWholeLog: "test_a_log_is_read_from_a_position_on",
    FiltersAfterTheLimit: "test_a_limit_counts_what_fits",
    IgnoresBefore: "test_a_list_goes_on_before_a_checkpoint",
    KeepsBytesAsText: "test_what_is_recorded_comes_back",
    CountsBranches: "test_a_session_that_is_gone_is_not_listed",
    FoldsCase: "test_scopes_never_meet",
    NamesFiles: "test_scopes_never_meet",
    DropsTheNamespace: "test_scopes_never_meet",
}
FOUND_BY_THE_MODEL = [
    IgnoresTheHead, Overwrites, DropsTheRest, DeletesTheLogToo, ForgetsForks, ForksFromTheNewest, PrunesByName, FoldsCase,
]  # fmt: skip
