"""Copying from one URL to another: the memory there, and the sessions beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from loom.engine.checkpoints import open_checkpoints
from loom.engine.copy import Copied, Sessions, copy_store
from loom.engine.places import Opening, check_is_there, sessions_place, store_at
from loom.errors import UsageError
from loom.protocols.checkpoint_store import CheckpointStore
from loom.stores.sqlite.checkpoint_schema import has_checkpoints

NO_PLACE = "sessions were not copied: the target has no place for them that lasts"


async def copy_places(
    source: str,
    target: str,
    *,
    namespace: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Copied:
    """Copy everything at one URL to another; see copy_store."""
    if source == target:
        raise UsageError("the source and the target are the same URL; give two")
    check_is_there(source)
    async with AsyncExitStack() as stack:
        stores = [store_at(source, Opening(makes=False)), store_at(target, Opening())]
        for store in stores:
            stack.push_async_callback(store.aclose)
        here, place = _sessions(source), sessions_place(target)
        sessions = None
        if here is not None:
            stack.push_async_callback(here.aclose)
            if place is not None:
                sessions = Sessions(here, open_checkpoints(place))
                stack.push_async_callback(sessions.target.aclose)
        done = await copy_store(*stores, sessions=sessions, namespace=namespace, progress=progress)
    return replace(done, notes=(*done.notes, NO_PLACE)) if here is not None and place is None else done


def _sessions(source: str) -> CheckpointStore | None:
    """The checkpoints beside a memory; None where there are none."""
    place = sessions_place(source)
    if place is None:
        return None
    backend, _, path = place.partition(":")
    path = path.removeprefix("//")
    if backend == "sqlite" and (path == ":memory:" or not has_checkpoints(path)):
        return None
    return open_checkpoints(place)
