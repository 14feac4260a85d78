"""The routes of saved conversations: show, rewind, fork, compact, undo, forget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query

from loom.admin.sessions import compact_saved, find_checkpoint, saved_session
from loom.core.checks import MAX_ID_BYTES
from loom.core.log import Checkpoint, Compaction, LoggedMessage, Shown
from loom.core.message import plain
from loom.errors import NotFound
from loom.server.http import shapes
from loom.server.http.caller import Forgetter, Reader, Writer
from loom.session.journal import RequestRecord, request_body, requests_of
from loom.text.fence import plain_text

router = APIRouter(prefix="/v1/users/{user:name}/sessions", tags=["sessions"])

Session = Annotated[str, Path(min_length=1, max_length=MAX_ID_BYTES)]
At = Annotated[str | None, Query(max_length=MAX_ID_BYTES, description="A checkpoint id, or the number of a turn.")]


@router.get("")
async def sessions(caller: Reader, cursor: shapes.Cursor = None, limit: shapes.Limit = 100) -> shapes.SessionsOut:
    """The conversations, the most recent first; `next` continues."""
    store = caller.place.checkpoints
    found, following = shapes.page_of(await store.sessions(caller.scope), lambda one: one.session_id, cursor, limit)
    items: list[shapes.SessionOut] = []
    for one in found:
        last = await store.load(caller.session(one.session_id))
        if last is not None:  # it was not removed meanwhile
            tokens = last.usage.input + last.usage.output
            items.append(
                shapes.SessionOut(
                    session=one.session_id,
                    turns=last.turn,
                    checkpoints=one.checkpoints,
                    last_at=last.at,
                    tokens=tokens,
                )
            )
    return shapes.SessionsOut(scope=caller.echo(), items=items, next=following)


@router.get("/{session:name}")
async def show(
    caller: Reader,
    session: Session,
    *,
    at: At = None,
    whole: Annotated[bool, Query()] = False,
    cursor: shapes.Cursor = None,
    limit: shapes.Limit = shapes.MOST_LISTED,
) -> shapes.ConversationOut:
    """A conversation as the model is shown it; with `whole`, all original messages; `next` continues."""
    opened = await saved_session(caller.place.checkpoints, caller.session(session), at)
    found: Sequence[LoggedMessage | Shown] = opened.log if whole else opened.shown
    shown, following = shapes.page_of(found, lambda one: one.id, cursor, limit)
    return shapes.ConversationOut(
        scope=caller.echo(session),
        turn=opened.turn,
        messages=[
            shapes.MessageOut(
                id=one.id, role=one.message.role, text=plain_text("\n".join(map(plain, one.message.parts)))
            )
            for one in shown
        ],
        compactions=[_compaction(done) for done in opened.compactions],
        next=following,
    )


def _compaction(done: Compaction) -> shapes.CompactionOut:
    return shapes.CompactionOut(
        id=done.id,
        strategy=done.strategy,
        tokens_before=done.tokens_before,
        tokens_after=done.tokens_after,
        covers=list(done.covered),
    )


@router.get("/{session:name}/checkpoints")
async def checkpoints(
    caller: Reader, session: Session, cursor: shapes.Cursor = None, limit: shapes.Limit = 100
) -> shapes.CheckpointsOut:
    """The points that a conversation can go back to, last saved first; `next` continues."""
    scope = caller.session(session)
    await find_checkpoint(caller.place.checkpoints, scope, None)
    found = await caller.place.checkpoints.list(scope, limit=limit + 1, before=cursor)
    following = found[limit - 1].id if len(found) > limit else None
    items = [_checkpoint(one) for one in found[:limit]]
    return shapes.CheckpointsOut(scope=caller.echo(session), items=items, next=following)


def _checkpoint(one: Checkpoint) -> shapes.CheckpointOut:
    return shapes.CheckpointOut(id=one.id, session=one.session_id, turn=one.turn, at=one.at, parent=one.parent)


@router.delete("/{session:name}/checkpoints/{id:name}")
async def delete_checkpoint(caller: Forgetter, session: Session, id: str) -> shapes.ErasureOut:
    """Remove one checkpoint; what others need of the conversation stays."""
    if not await caller.place.checkpoints.delete(caller.session(session), id):
        raise NotFound(f"the conversation has no checkpoint {id!r:.200}; GET checkpoints lists them")
    receipt = shapes.ReceiptOut(store="sessions", removed={"checkpoint": 1}, pending=[])
    return shapes.ErasureOut(scope=caller.echo(session), stores=[receipt])


@router.get("/{session:name}/requests")
async def requests(
    caller: Reader, session: Session, cursor: shapes.Cursor = None, limit: shapes.Limit = shapes.MOST_LISTED
) -> shapes.RequestsOut:
    """Every call of a model in a conversation: tokens by section, what the cache did, and what it cost."""
    scope = caller.session(session)
    await find_checkpoint(caller.place.checkpoints, scope, None)
    found = await requests_of(caller.place.checkpoints, scope)
    shown, following = shapes.page_of(found, lambda one: one.id, cursor, limit)
    return shapes.RequestsOut(scope=caller.echo(session), items=[_request(one) for one in shown], next=following)


def _request(one: RequestRecord) -> shapes.RequestOut:
    counted = one.usage
    return shapes.RequestOut(
        id=one.id,
        at=one.at,
        turn=one.turn,
        purpose=one.purpose,
        provider=one.provider,
        model=one.model,
        sections=dict(one.sections),
        markers=[shapes.MarkerOut(**asdict(marker)) for marker in one.markers],
        prefix=one.prefix,
        predicted_read=one.predicted_read,
        predicted_write=one.predicted_write,
        input=None if counted is None else counted.input,
        output=None if counted is None else counted.output,
        cache_read=one.cache_read,
        cache_write=one.cache_write,
        cost=one.cost,
        loss=None if one.loss is None else shapes.LossOut(**asdict(one.loss)),
        error=None if one.error is None else plain_text(one.error),
        requests=one.requests,
    )


@router.get("/{session:name}/requests/{id:name}/body")
async def body(caller: Reader, session: Session, id: str) -> shapes.RequestBodyOut:
    """What was sent to the model, of a session that keeps bodies (`keep_requests=True`)."""
    scope = caller.session(session)
    await find_checkpoint(caller.place.checkpoints, scope, None)
    sent = await request_body(caller.place.checkpoints, scope, id)
    return shapes.RequestBodyOut(scope=caller.echo(session), body=sent)


@router.post("/{session:name}/end")
async def end(caller: Writer, session: Session) -> shapes.EndedOut:
    """Write the episode of a conversation into L3 now, and not after an idle hour."""
    done = await caller.memory.end_session(user_id=caller.user, session_id=session)
    item = None if done is None else shapes.record_out(done)
    return shapes.EndedOut(scope=caller.echo(session), item=item)


@router.post("/{session:name}/restore")
async def restore(caller: Writer, session: Session, body: shapes.PointIn) -> shapes.CheckpointAnswer:
    """Go back to an earlier point; later checkpoints stay available."""
    opened = await saved_session(caller.place.checkpoints, caller.session(session), body.at)
    return shapes.CheckpointAnswer(scope=caller.echo(session), item=_checkpoint(await opened.checkpoint()))


@router.post("/{session:name}/fork", status_code=201)
async def fork(caller: Writer, session: Session, body: shapes.ForkIn) -> shapes.CheckpointAnswer:
    """Begin a new conversation at a point of this one; both continue separately."""
    scope = caller.session(session)
    opened = await saved_session(caller.place.checkpoints, scope, body.at)
    found = await find_checkpoint(caller.place.checkpoints, scope, body.at)
    forked = await opened.fork(found.id, session_id=body.session)
    first = await find_checkpoint(caller.place.checkpoints, caller.session(forked.id), None)
    return shapes.CheckpointAnswer(scope=caller.echo(forked.id), item=_checkpoint(first))


@router.post("/{session:name}/compact")
async def compact(caller: Writer, session: Session, body: shapes.CompactIn) -> shapes.CompactedOut:
    """Compact a conversation with a strategy that needs no model; `item.id` undoes it."""
    done = await compact_saved(
        caller.place.checkpoints,
        caller.session(session),
        strategy=body.strategy,
        retain=body.retain,
        dry_run=body.dry_run,
    )
    if isinstance(done, Compaction):
        return shapes.CompactedOut(scope=caller.echo(session), item=_compaction(done))
    plan = shapes.CompactionOut(
        id=None,
        strategy=done.strategy,
        tokens_before=done.tokens_before,
        tokens_after=done.tokens_after,
        covers=[shown.id for shown in done.goes],
    )
    return shapes.CompactedOut(scope=caller.echo(session), item=plan, notes=[str(done)])


@router.post("/{session:name}/undo")
async def undo(caller: Writer, session: Session, body: shapes.UndoIn) -> shapes.CheckpointAnswer:
    """Show again what a compaction replaced."""
    opened = await saved_session(caller.place.checkpoints, caller.session(session))
    await opened.undo(body.compaction)
    return shapes.CheckpointAnswer(scope=caller.echo(session), item=_checkpoint(await opened.checkpoint()))


@router.delete("/{session:name}")
async def forget(caller: Forgetter, session: Session) -> shapes.ErasureOut:
    """Remove a conversation, with what was remembered of it."""
    saved = await caller.place.checkpoints.forget(caller.session(session))  # first: a memory reports what is saved
    memory = await caller.memory.forget(user_id=caller.user, session_id=session)
    if not memory.removed and not saved.removed:
        raise NotFound(f"the user has no conversation {session!r:.200}; GET sessions lists them")
    stores = [shapes.receipt_out("memory", memory), shapes.receipt_out("sessions", saved)]
    return shapes.ErasureOut(scope=caller.echo(session), stores=stores)
