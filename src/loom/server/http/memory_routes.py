"""The routes of a memory: each is named as the call in Python is, and answers with the scope it read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from loom.core.checks import MAX_ID_BYTES, MAX_NAME, MAX_QUERY
from loom.core.filter import Eq
from loom.core.record import Layer, Record
from loom.errors import NotFound
from loom.memory._history import TextHistory
from loom.memory._write.ingest import Utterance
from loom.server.http import shapes
from loom.server.http.caller import Caller, Forgetter, Operator, Reader, Writer
from loom.server.http.shapes import record_out
from loom.text.fence import plain_text

router = APIRouter(prefix="/v1/users/{user:name}")

Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=MAX_NAME)]
At = Annotated[shapes.Time | None, Query(description="What was true then.")]
KnownAt = Annotated[shapes.Time | None, Query(description="What was believed then.")]


@router.post("/memories", tags=["memory"], status_code=201)
async def remember(caller: Writer, body: shapes.MemoriesIn, key: Key = None) -> shapes.RememberedOut:
    """Store memories, durably and in order; sent again under the same Idempotency-Key they are stored once."""
    turns = [
        Utterance(
            text=item.text,
            speaker=item.speaker,
            at=item.at,
            origin=item.origin,
            attributes=shapes.attributes_of(item.attributes),
        )
        for item in body.items
    ]
    done = await caller.memory.remember(
        turns, user_id=caller.user, session_id=body.session, importance=body.importance, key=key, learn=body.learn
    )
    return shapes.RememberedOut(
        scope=caller.echo(body.session),
        items=[record_out(record) for record in done.kept],
        facts=[record_out(fact) for fact in done.facts],
        skipped=[{"text": skip.text[:200], "reason": skip.reason} for skip in done.skipped],
        notes=list(done.notes),
    )


@router.get("/memories", tags=["memory"])
async def list_memories(
    caller: Reader,
    kind: Annotated[Literal["episode", "fact", "block"] | None, Query()] = None,
    cursor: shapes.Cursor = None,
    limit: shapes.Limit = 100,
) -> shapes.RecordsOut:
    """The records, by id; `next` continues."""
    where = None if kind is None else Eq("kind", kind)
    found = await caller.memory.store.list(caller.scope, where=where, after=cursor, limit=limit)
    following = found[-1].id if len(found) == limit else None
    return shapes.RecordsOut(scope=caller.echo(), items=[record_out(record) for record in found], next=following)


async def _record(caller: Caller, id: str) -> Record:
    found = await caller.memory.get(id, user_id=caller.user)
    if found is None:
        raise NotFound(f"the user has no record {id!r:.200}; GET memories lists them")
    return found


@router.get("/memories/{id:name}", tags=["memory"])
async def get_memory(caller: Reader, id: str) -> shapes.RecordAnswer:
    """One record."""
    return shapes.RecordAnswer(scope=caller.echo(), item=record_out(await _record(caller, id)))


@router.patch("/memories/{id:name}", tags=["memory"])
async def update(caller: Writer, id: str, body: shapes.MemoryUpdateIn) -> shapes.RecordAnswer:
    """Change the text, the importance or attributes of a memory; what was derived from an old text is removed."""
    attributes: Any = body.attributes  # None takes one away
    done = await caller.memory.update(
        id, user_id=caller.user, text=body.text, importance=body.importance, attributes=attributes
    )
    return shapes.RecordAnswer(scope=caller.echo(), item=record_out(done.kept[0]), notes=list(done.notes))


@router.post("/memories/upsert", tags=["memory"])
async def upsert(caller: Writer, body: shapes.UpsertIn) -> shapes.RecordAnswer:
    """Store one memory under a key, in place of the one that is stored under it."""
    item = Utterance(
        text=body.text,
        speaker=body.speaker,
        at=body.at,
        origin=body.origin,
        attributes=shapes.attributes_of(body.attributes),
    )
    done = await caller.memory.upsert(
        item, key=body.key, user_id=caller.user, session_id=body.session, importance=body.importance
    )
    return shapes.RecordAnswer(scope=caller.echo(body.session), item=record_out(done.kept[0]), notes=list(done.notes))


@router.post("/memories/{id:name}/promote", tags=["memory"])
async def promote(caller: Writer, id: str, body: shapes.PromoteIn) -> shapes.RecordAnswer:
    """Move a memory up one layer, or to another."""
    to = None if body.to is None else Layer[body.to]
    moved = await caller.memory.promote(id, user_id=caller.user, to=to)
    return shapes.RecordAnswer(scope=caller.echo(), item=record_out(moved))


@router.delete("/memories", tags=["memory"])
async def forget_before(
    caller: Forgetter,
    before: Annotated[shapes.Time, Query(description="Only what happened, or was stated or pinned, before that.")],
    session: Annotated[str | None, Query(min_length=1, max_length=MAX_ID_BYTES)] = None,
) -> shapes.ErasureOut:
    """Remove everything that is older than a moment, of a user or of one conversation."""
    receipt = await caller.memory.forget(user_id=caller.user, session_id=session, before=before)
    return shapes.ErasureOut(scope=caller.echo(session), stores=[shapes.receipt_out("memory", receipt)])


@router.delete("/memories/{id:name}", tags=["memory"])
async def forget(caller: Forgetter, id: str) -> shapes.ErasureOut:
    """Remove a record with everything derived from it alone."""
    receipt = await caller.memory.forget(id, user_id=caller.user)
    if not receipt.removed:
        raise NotFound(f"the user has no record {id!r:.200}; GET memories lists them")
    return shapes.ErasureOut(scope=caller.echo(), stores=[shapes.receipt_out("memory", receipt)])


@router.get("/memories/{id:name}/explain", tags=["memory"])
async def explain(caller: Reader, id: str) -> shapes.ExplainedOut:
    """Where a record comes from, down to the original turns, and what was derived from it."""
    found = await caller.memory.explain(id, user_id=caller.user)
    return shapes.ExplainedOut(
        scope=caller.echo(),
        item=record_out(found.record),
        sources=[record_out(record) for record in found.sources],
        made=[record_out(record) for record in found.made],
        history=[record_out(record) for record in found.history],
        missing=list(found.missing),
    )


@router.get("/timeline", tags=["memory"])
async def timeline(
    caller: Reader,
    *,
    session: Annotated[str | None, Query(min_length=1, max_length=MAX_ID_BYTES)] = None,
    about: Annotated[str | None, Query(max_length=MAX_QUERY, description="Records with all of these words.")] = None,
    kind: Annotated[Literal["episode", "fact", "both"], Query()] = "episode",
    start: Annotated[shapes.Time | None, Query(description="From this moment on.")] = None,
    end: Annotated[shapes.Time | None, Query(description="Up to this moment, which is not included.")] = None,
    limit: shapes.Limit = 100,
) -> shapes.TimelineOut:
    """Dated records in order, for exact answers: how often, the first, what came between."""
    wanted = None if kind == "both" else kind
    found = await caller.memory.timeline(user_id=caller.user, session_id=session, about=about, kind=wanted)
    found = found.between(start, end)
    items = [shapes.EventOut(at=one.at, record=record_out(one.record)) for one in found.events[:limit]]
    return shapes.TimelineOut(scope=caller.echo(session), count=found.count, items=items)


@router.post("/recall", tags=["memory"])
async def recall(caller: Reader, body: shapes.RecallIn) -> shapes.RecalledOut:
    """Search the memory: the best hits first, each with the signals of its score."""
    found = await caller.memory.recall(
        body.query,
        user_id=caller.user,
        session_id=body.session,
        limit=body.limit,
        budget=body.budget,
        layers=shapes.layers_of(list(body.layers) if body.layers is not None else None),
        where=shapes.attributes_of(body.where) if body.where else None,
        at=body.at,
        known_at=body.known_at,
        history=body.history,
        min_confidence=body.min_confidence,
    )
    searched = found.searched if found.searched is not None else await caller.memory.store.count(caller.scope)
    return shapes.RecalledOut(
        scope=caller.echo(body.session),
        hits=[shapes.hit_out(hit) for hit in found.hits],
        searched=searched,
        confidence=found.confidence,
        tokens=found.tokens,
        notes=list(found.notes),
    )


@router.get("/facts", tags=["facts"])
async def facts(
    caller: Reader,
    *,
    subject: Annotated[str | None, Query(min_length=1, max_length=MAX_NAME)] = None,
    predicate: Annotated[str | None, Query(min_length=1, max_length=MAX_NAME)] = None,
    at: At = None,
    known_at: KnownAt = None,
    history: Annotated[bool, Query(description="Retired ones too.")] = False,
    cursor: shapes.Cursor = None,
    limit: shapes.Limit = shapes.MOST_LISTED,
) -> shapes.RecordsOut:
    """The facts: true now or at a time, as believed now or then; `next` continues."""
    found = await caller.memory.facts(
        user_id=caller.user, subject=subject, predicate=predicate, at=at, known_at=known_at, history=history
    )
    shown, following = shapes.page_of(found, lambda fact: fact.id, cursor, limit)
    return shapes.RecordsOut(scope=caller.echo(), items=[record_out(fact) for fact in shown], next=following)


@router.post("/facts", tags=["facts"], status_code=201)
async def assert_fact(caller: Writer, body: shapes.FactIn) -> shapes.RecordsOut:
    """Assert a fact; the answer has it, and those that it retired."""
    done = await caller.memory.assert_fact(
        body.subject,
        body.predicate,
        body.object,
        user_id=caller.user,
        valid_from=body.valid_from,
        valid_until=body.valid_until,
    )
    return shapes.RecordsOut(scope=caller.echo(), items=[record_out(fact) for fact in done])


@router.get("/blocks", tags=["blocks"])
async def blocks(caller: Reader) -> shapes.RecordsOut:
    """The pinned texts."""
    found = await caller.memory.blocks(user_id=caller.user)
    return shapes.RecordsOut(scope=caller.echo(), items=[record_out(block) for block in found])


@router.get("/blocks/{name:name}/history", tags=["blocks"])
async def block_history(caller: Reader, name: str) -> shapes.HistoriesOut:
    """The texts that a block had, each with what it changed."""
    found = await caller.memory.block_history(name, user_id=caller.user)
    return shapes.HistoriesOut(scope=caller.echo(), items=[_history(found)])


def _history(found: TextHistory) -> shapes.HistoryOut:
    versions = [
        shapes.VersionOut(
            id=one.id,
            number=one.number,
            text=plain_text(one.text),
            since=one.since,
            until=one.until,
            origin=one.origin,
            trusted=one.trusted,
            sources=list(one.sources),
            diff=plain_text(found.diff(one.number)),
        )
        for one in found
    ]
    return shapes.HistoryOut(name=found.name, versions=versions)


@router.put("/blocks/{name:name}", tags=["blocks"])
async def set_block(caller: Writer, name: str, body: shapes.BlockIn) -> shapes.RecordAnswer:
    """Pin a text; with `version`, only if that is still the current one."""
    done = await caller.memory.set_block(name, body.text, user_id=caller.user, version=body.version)
    return shapes.RecordAnswer(scope=caller.echo(), item=record_out(done))


@router.delete("/blocks/{name:name}", tags=["blocks"])
async def forget_block(caller: Forgetter, name: str) -> shapes.ErasureOut:
    """Remove a pinned text."""
    return await forget(caller, f"block:{name}")


@router.get("/standing", tags=["standing"])
async def standing(caller: Reader) -> shapes.StandingOut:
    """The standing instructions, newest first, those left out for their length, and those that wait for the user."""
    found = await caller.memory.standing(user_id=caller.user)
    items = [_instruction(item.id, item.text, item.since, "stands") for item in found.items]
    items += [_instruction(item.id, item.text, item.since, "left_out") for item in found.left_out]
    items += [_instruction(item.id, item.text, item.since, "waits") for item in found.unconfirmed]
    return shapes.StandingOut(scope=caller.echo(), items=items)


def _instruction(id: str, text: str, since: datetime | None, state: str) -> shapes.InstructionOut:
    return shapes.InstructionOut.model_validate({"id": id, "text": text, "since": since, "state": state})


@router.post("/standing", tags=["standing"], status_code=201)
async def instruct(caller: Writer, body: shapes.InstructionIn) -> shapes.StandingOut:
    """Add a standing instruction in the user's own words; with `confirmed` false it waits for the user."""
    done = await caller.memory.instruct(
        body.text, user_id=caller.user, session_id=body.session, confirmed=body.confirmed
    )
    items = [_instruction(item.id, item.text, item.since, "stands") for item in done.kept]
    items += [_instruction(item.id, item.text, item.since, "waits") for item in done.waiting]
    items += [_instruction(item.id, item.text, item.since, "retired") for item in done.retired]
    return shapes.StandingOut(scope=caller.echo(body.session), items=items, notes=list(done.notes))


@router.get("/standing/history", tags=["standing"])
async def standing_history(caller: Reader) -> shapes.HistoriesOut:
    """The standing instructions that there were, each with the texts it had."""
    found = await caller.memory.standing_history(user_id=caller.user)
    return shapes.HistoriesOut(scope=caller.echo(), items=[_history(one) for one in found])


@router.post("/standing/{id:name}/confirm", tags=["standing"])
async def confirm(caller: Writer, id: str) -> shapes.StandingOut:
    """Let an instruction that waits stand."""
    done = await caller.memory.confirm(id, user_id=caller.user)
    items = [_instruction(item.id, item.text, item.since, "stands") for item in done.kept]
    items += [_instruction(item.id, item.text, item.since, "retired") for item in done.retired]
    return shapes.StandingOut(scope=caller.echo(), items=items, notes=list(done.notes))


@router.delete("/standing/{id:name}", tags=["standing"])
async def reject(caller: Forgetter, id: str) -> shapes.ErasureOut:
    """Drop an instruction that waits, or take back one that stands."""
    receipt = await caller.memory.reject(id, user_id=caller.user)
    return shapes.ErasureOut(scope=caller.echo(), stores=[shapes.receipt_out("memory", receipt)])


@router.get("/profile", tags=["memory"])
async def profile(caller: Reader) -> shapes.TextOut:
    """What is shown to an agent in every turn: standing instructions, facts and blocks, as fenced text."""
    return shapes.TextOut(scope=caller.echo(), text=str(await caller.memory.profile(user_id=caller.user)))


@router.get("/stats", tags=["memory"])
async def stats(caller: Reader) -> shapes.CountsOut:
    """Counts of records by layer and kind, and of jobs."""
    return shapes.CountsOut(scope=caller.echo(), counts=await caller.memory.stats(user_id=caller.user))


@router.get("/export", tags=["memory"], response_class=StreamingResponse)
async def export(caller: Reader) -> Response:
    """All records as JSON lines; `loom memory import` reads them."""

    async def lines() -> AsyncIterator[str]:
        async for line in caller.memory.export(user_id=caller.user):
            yield f"{line}\n"

    return StreamingResponse(lines(), media_type="application/jsonl")


@router.delete("", tags=["users"])
async def forget_user(caller: Forgetter) -> shapes.ErasureOut:
    """Erase a person: memory, conversations and jobs. Nothing is left if nothing is pending."""
    stores = [shapes.receipt_out(receipt.store, receipt) for receipt in await caller.erase()]
    return shapes.ErasureOut(scope=caller.echo(), stores=stores)


@router.get("/jobs", tags=["jobs"])
async def jobs(caller: Reader) -> shapes.JobsOut:
    """How many jobs wait, and those that failed for good."""
    counted = await caller.memory.stats(user_id=caller.user)
    dead = await caller.memory.store.dead_letters(caller.scope)
    return shapes.JobsOut(
        scope=caller.echo(),
        waiting=counted["jobs"],
        dead=[
            shapes.DeadLetterOut(id=one.job.id, kind=one.job.kind, attempts=one.job.attempts, reason=one.reason)
            for one in dead
        ],
    )


@router.post("/jobs/run", tags=["jobs"])
async def run_jobs(caller: Operator) -> shapes.CountsOut:
    """Run the jobs of a user that are due."""
    done = await caller.memory.metabolize(user_id=caller.user)
    notes = [*done.notes, *(f"failed: {reason}" for reason in done.failed)]
    return shapes.CountsOut(scope=caller.echo(), counts={"jobs": done.jobs, **done.counts}, notes=notes)


@router.post("/jobs/{id:name}/retry", tags=["jobs"])
async def retry_job(caller: Operator, id: str) -> shapes.CountsOut:
    """Queue a job that failed for good once more; 0 jobs if the same work is waiting already."""
    return shapes.CountsOut(scope=caller.echo(), counts={"jobs": await caller.retry_job(id)})
