"""Saved conversations, opened to be looked at, rewound, forked or compacted without the model that wrote them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

from loom.core.log import Checkpoint, LogEntry, LoggedMessage, end_of_turn
from loom.core.scope import Scope
from loom.errors import NotFound, UsageError
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.model import Chunk, ModelRequest, ModelResponse
from loom.session.session import Session

ASKING = ("summarize", "hierarchical")
"""Strategies of compaction that ask a model."""
NEEDS_MODEL = "a saved conversation has no model to write a summary with; use the strategy truncate or snapshot"


class _NoModel:
    """Placeholder for the model of a saved conversation: it has a name and a window, and gives no answers."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def complete(self, request: ModelRequest) -> ModelResponse:  # noqa: ARG002
        raise UsageError(NEEDS_MODEL)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        yield await self.complete(request)

    async def aclose(self) -> None:
        pass


async def find_checkpoint(store: CheckpointStore, scope: Scope, at: str | None) -> Checkpoint:
    """The checkpoint with this id, that at the end of the turn with this number, or the newest one."""
    if at is not None and at.isdecimal():
        found = end_of_turn(await store.list(scope), int(at))
    else:
        found = await store.load(scope, at)
    if found is not None:
        return found
    what = f"user {scope.user_id!r} has no conversation {scope.session_id!r}"
    if await store.load(scope) is None:
        raise NotFound(f"{what}; see `loom session list`")
    raise NotFound(f"{what} at {at!r}; see `loom session show {scope.session_id} --checkpoints`")


async def saved_session(store: CheckpointStore, scope: Scope, at: str | None = None, **options: Any) -> Session:
    """A conversation as it was at a checkpoint; `model` in the options names the one whose window applies."""
    found = await find_checkpoint(store, scope, at)
    model = _NoModel(options.pop("model", "compatible:unknown"))
    session = Session(
        model=model,
        checkpoints=store,
        session_id=scope.session_id,
        user_id=scope.user_id,
        namespace=scope.namespace,
        **options,
    )
    await session.restore(found)
    return session


class SessionLine(NamedTuple):
    """A saved conversation in a list."""

    id: str
    begins: str
    """The first message of the user."""
    checkpoints: int
    last: Checkpoint


async def recent_sessions(store: CheckpointStore, user: Scope, *, limit: int | None = None) -> list[SessionLine]:
    """The conversations of a user, last saved first."""
    found: list[SessionLine] = []
    for saved in await store.sessions(user, limit=limit):
        scope = user.for_session(saved.session_id)
        points = await store.list(scope)
        said = _texts_of_user(await store.history(scope, points[-1].id, bodies=False))
        found.append(SessionLine(saved.session_id, next(iter(said), ""), len(points), points[0]))
    return found


async def lines_of_user(store: CheckpointStore, user: Scope, *, limit: int) -> list[str]:
    """What a user said in the last conversations, oldest first."""
    lines: list[str] = []
    for saved in reversed(await store.sessions(user, limit=limit)):
        scope = user.for_session(saved.session_id)
        last = await store.load(scope)
        if last is not None:
            lines += _texts_of_user(await store.history(scope, last.id, bodies=False))
    return lines


def _texts_of_user(log: Iterable[LogEntry]) -> list[str]:
    said = (entry.message for entry in log if isinstance(entry, LoggedMessage) and entry.message.role == "user")
    return [message.text for message in said if message.text.strip()]


async def compact_saved(
    store: CheckpointStore,
    scope: Scope,
    *,
    strategy: str = "snapshot",
    retain: int = 6,
    model: str = "compatible:unknown",
    dry_run: bool = False,
) -> Any:
    """Compact a conversation: the Compaction, or a CompactionPlan where nothing was changed.

    Raises:
        UsageError: the strategy needs a model.
    """
    if strategy in ASKING:
        raise UsageError(NEEDS_MODEL)
    config = {"compaction": {"strategy": strategy, "retain": {"type": "messages", "count": retain}}}
    session = await saved_session(store, scope, model=model, config=config)
    done = None if dry_run else await session.compact()
    return done or await session.compact(dry_run=True)
