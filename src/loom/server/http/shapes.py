"""What goes over the wire: the bodies that the server takes, and those that it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar, cast

from fastapi import Query
from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    StrictBool,
    model_validator,
)

from loom.core.checks import (
    MAX_ATTRIBUTES,
    MAX_BLOCK,
    MAX_DOCUMENT,
    MAX_ID_BYTES,
    MAX_INSTRUCTION,
    MAX_NAME,
    MAX_OBJECT,
    MAX_PREDICATE,
    MAX_QUERY,
    MAX_TEXT,
    MAX_VALUE,
)
from loom.core.codec import attributes_to_json
from loom.core.record import (
    Episode,
    Fact,
    Hit,
    Layer,
    Passage,
    Receipt,
    Record,
    Scalar,
    StoreReceipt,
    WorkingBlock,
)
from loom.core.scope import Scope
from loom.errors import NotFound
from loom.text.fence import plain_text

MOST_ITEMS = 1_000
"""Memories in one batch."""
MOST_LISTED = 500
"""Items on one page."""
Limit = Annotated[int, Query(ge=1, le=MOST_LISTED)]
Cursor = Annotated[
    str | None, Query(max_length=MAX_ID_BYTES, description="`next` of the page before; left out for the first one.")
]

_Item = TypeVar("_Item")


def page_of(
    found: Sequence[_Item], id_of: Callable[[_Item], str], cursor: str | None, limit: int
) -> tuple[Sequence[_Item], str | None]:
    """The items behind the one that a cursor names, and the cursor of the page after them."""
    start = 0
    if cursor is not None:
        start = next((place for place, one in enumerate(found, 1) if id_of(one) == cursor), 0)
        if not start:
            raise NotFound("what this cursor names is no longer there; begin again without it")
    items = found[start : start + limit]
    return items, id_of(items[-1]) if start + limit < len(found) else None


def _iso(value: object) -> datetime:
    """A time as it is written in JSON; numbers, which could be seconds or anything else, are refused."""
    if not isinstance(value, str) or len(value) < len("2026-11-15T08:30Z"):
        raise ValueError("write a time as 2026-11-15T08:30:00Z")
    return datetime.fromisoformat(value)


Time = Annotated[AwareDatetime, BeforeValidator(_iso)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


# An error of a validation costs far more than reading its value: of a list, the first item that is wrong is named,
# and of an object with too many members, only that.


def _few(value: object) -> object:
    """Attributes that are not too many, before each of them is looked at."""
    if isinstance(value, dict) and (count := len(cast("dict[str, object]", value))) > MAX_ATTRIBUTES:
        raise ValueError(f"{count:,} are given, and at most {MAX_ATTRIBUTES} are taken")
    return cast("object", value)


_FEW: Final = (Field(max_length=MAX_ATTRIBUTES), BeforeValidator(_few))
Attributes = Annotated[dict[str, str | int | float | bool], *_FEW]


class Body(BaseModel):
    """A body that a client sends: a field that is not known is an error, not ignored."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: object) -> object:
        if isinstance(given, dict) and len(cast("dict[str, object]", given)) > len(cls.model_fields):
            extra = [name for name in cast("dict[str, object]", given) if name not in cls.model_fields]
            raise ValueError(f"{len(extra):,} fields are not known, as {extra[0]!r:.60}")
        return cast("object", given)


class UserBody(Body):
    """A body for a route of one user, which stands in the path; one that names another user is refused."""

    user: Annotated[Name | None, Field(description="The user of the path, or left out.")] = None


class MemoryIn(Body):
    """One memory."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    speaker: Name | None = None
    at: Time | None = None
    origin: Literal["user", "assistant", "tool", "file", "web", "import"] = "user"
    attributes: Attributes = Field(default_factory=dict)


class MemoriesIn(UserBody):
    """A batch of memories, in order."""

    items: Annotated[list[MemoryIn], Field(min_length=1, max_length=MOST_ITEMS), FailFast()]
    session: Name | None = None
    importance: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.0
    learn: StrictBool = True


class MemoryUpdateIn(UserBody):
    """What to change of a memory; an attribute that is null is removed."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)] | None = None
    importance: Annotated[float, Field(ge=0, le=1, strict=True)] | None = None
    attributes: Annotated[dict[str, str | int | float | bool | None], *_FEW] | None = None


class UpsertIn(MemoryIn, UserBody):
    """One memory that replaces the one stored under the same key."""

    key: Name
    session: Name | None = None
    importance: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.0


class PromoteIn(UserBody):
    """The layer to move a memory to; without it, the next one."""

    to: Literal["L1", "L2", "L3", "L4"] | None = None


class RecallIn(UserBody):
    """A question."""

    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY)]
    session: Name | None = None
    limit: Annotated[int, Field(ge=1, le=100, strict=True)] = 8
    budget: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] | None = None
    layers: Annotated[list[Literal["L1", "L2", "L3", "L4"]], Field(max_length=len(Layer))] | None = None
    where: Attributes | None = None
    at: Time | None = None
    known_at: Time | None = None
    history: StrictBool = False
    min_confidence: Annotated[float, Field(ge=0, le=1, strict=True)] | None = None


class FactIn(UserBody):
    """A fact to assert."""

    subject: Name
    predicate: Annotated[str, Field(min_length=1, max_length=MAX_PREDICATE)]
    object: Annotated[str, Field(min_length=1, max_length=MAX_OBJECT)]
    valid_from: Time | None = None
    valid_until: Time | None = None


class InstructionIn(UserBody):
    """A standing wish of the user."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_INSTRUCTION)]
    session: Name | None = None
    confirmed: StrictBool = True


class BlockIn(UserBody):
    """The text of a block; with `version`, only if that is still the current one."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_BLOCK)]
    version: Annotated[int, Field(ge=0, strict=True)] | None = None


class CompactIn(UserBody):
    """How to compact a conversation."""

    strategy: Literal["snapshot", "truncate", "sliding_window"] = "snapshot"
    retain: Annotated[int, Field(ge=0, le=10_000, strict=True)] = 6
    dry_run: StrictBool = False


class DocumentIn(Body):
    """A document of the knowledge base."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_ID_BYTES)]
    text: Annotated[str, Field(min_length=1, max_length=MAX_DOCUMENT)]
    source: Annotated[str, Field(max_length=MAX_VALUE)] = ""
    attributes: Attributes = Field(default_factory=dict)


class DocumentsIn(Body):
    """Documents to add."""

    documents: Annotated[list[DocumentIn], Field(min_length=1, max_length=MOST_ITEMS), FailFast()]


class KnowledgeIn(Body):
    """A question to the knowledge base."""

    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY)]
    limit: Annotated[int, Field(ge=1, le=100, strict=True)] = 5
    where: Attributes | None = None


class GraphIn(Body):
    """A question to a knowledge base that follows relations."""

    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY)]
    mode: Literal["vector", "graph", "hybrid"] = "hybrid"
    max_hops: Annotated[int, Field(ge=1, le=10, strict=True)] = 2
    limit: Annotated[int, Field(ge=1, le=100, strict=True)] = 5


class PointIn(UserBody):
    """A point of a conversation: a checkpoint id, or the number of a turn."""

    at: Name


class ForkIn(UserBody):
    """A new conversation that begins at a point of another."""

    at: Name | None = None
    session: Name | None = None


class UndoIn(UserBody):
    """The compaction to take back; without it, the last one."""

    compaction: Name | None = None


class ScopeOut(BaseModel):
    """Whose data an answer is about."""

    namespace: str
    user: str
    session: str | None = None


class RecordOut(BaseModel):
    """A record: an episode, a fact or a block. What a kind does not have is null."""

    id: str
    kind: Literal["episode", "fact", "block"]
    text: str
    origin: str
    trusted: bool
    at: datetime | None = None
    recorded_at: datetime | None = None
    session: str | None = None
    speaker: str | None = None
    layer: str | None = None
    archived_at: datetime | None = None
    accesses: int | None = None
    importance: float | None = None
    attributes: dict[str, Any] | None = None
    subject: str | None = None
    predicate: str | None = None
    object: str | None = None
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    superseded_at: datetime | None = None
    superseded_by: str | None = None
    sources: list[str] = Field(default_factory=list)
    name: str | None = None
    version: int | None = None


class HitOut(BaseModel):
    """A hit of a recall, with the signals of its score."""

    id: str
    kind: str
    text: str
    score: float
    why: dict[str, float]
    record: RecordOut | None = None


class ScopedAnswer(BaseModel):
    """What every answer has: the scope that was read or written, and notes."""

    scope: ScopeOut
    notes: list[str] = Field(default_factory=list)


class RecordsOut(ScopedAnswer):
    """Records; `next` is the cursor of the next page, null on the last one."""

    items: list[RecordOut]
    next: str | None = None


class RecordAnswer(ScopedAnswer):
    """One record."""

    item: RecordOut


class RememberedOut(ScopedAnswer):
    """What was stored, what was skipped and why, and the facts that were learned."""

    items: list[RecordOut]
    facts: list[RecordOut]
    skipped: list[dict[str, str]]


class RecalledOut(ScopedAnswer):
    """The hits, best first."""

    hits: list[HitOut]
    searched: int
    confidence: float
    tokens: int


class ReceiptOut(BaseModel):
    """What a store removed, and what is still pending in it."""

    store: str
    removed: dict[str, int]
    pending: list[str]


class ErasureOut(ScopedAnswer):
    """The receipts of an erasure. Nothing is left if nothing is pending."""

    stores: list[ReceiptOut]


class ExplainedOut(ScopedAnswer):
    """Where a record comes from."""

    item: RecordOut
    sources: list[RecordOut]
    made: list[RecordOut]
    history: list[RecordOut]
    missing: list[str]


class InstructionOut(BaseModel):
    """A standing instruction, or one that waits for the user."""

    id: str
    text: str
    since: datetime | None
    state: Literal["stands", "left_out", "waits", "retired"]


class StandingOut(ScopedAnswer):
    """The standing instructions, newest first, and those that wait."""

    items: list[InstructionOut]


class TextOut(ScopedAnswer):
    """A text."""

    text: str


class CountsOut(ScopedAnswer):
    """Counts by name."""

    counts: dict[str, int]


class VersionOut(BaseModel):
    """One text that a block or an instruction had."""

    id: str
    number: int
    text: str
    since: datetime | None
    until: datetime | None
    origin: str
    trusted: bool
    sources: list[str]
    diff: str


class HistoryOut(BaseModel):
    """The texts of one block or instruction, oldest first."""

    name: str
    versions: list[VersionOut]


class HistoriesOut(ScopedAnswer):
    """Old and current texts."""

    items: list[HistoryOut]


class EventOut(BaseModel):
    """A record and when it happened, or since when it is true."""

    at: datetime
    record: RecordOut


class TimelineOut(ScopedAnswer):
    """Dated records, earliest first; `count` is exact, and `items` may be its beginning."""

    count: int
    items: list[EventOut]


class EndedOut(ScopedAnswer):
    """The episode of a conversation that ended; null if it has no turns."""

    item: RecordOut | None


class SessionOut(BaseModel):
    """A conversation."""

    session: str
    turns: int
    checkpoints: int
    last_at: datetime
    tokens: int


class SessionsOut(ScopedAnswer):
    """The conversations of a user, the most recent first; `next` is the cursor of the next page."""

    items: list[SessionOut]
    next: str | None = None


class MessageOut(BaseModel):
    """A message as the model is shown it."""

    id: str
    role: str
    text: str


class CompactionOut(BaseModel):
    """A compaction, with the handle that undoes it."""

    id: str | None
    strategy: str
    tokens_before: int
    tokens_after: int
    covers: list[str]


class ConversationOut(ScopedAnswer):
    """A conversation: what the model is shown, the compactions that apply, and the cursor of the next page."""

    turn: int
    messages: list[MessageOut]
    compactions: list[CompactionOut]
    next: str | None = None


class CheckpointOut(BaseModel):
    """A checkpoint."""

    id: str
    session: str
    turn: int
    at: datetime
    parent: str | None


class CheckpointsOut(ScopedAnswer):
    """Checkpoints, last saved first; `next` is the cursor of the next page."""

    items: list[CheckpointOut]
    next: str | None = None


class CheckpointAnswer(ScopedAnswer):
    """One checkpoint."""

    item: CheckpointOut


class CompactedOut(ScopedAnswer):
    """The result of a compaction; `item.id` is null where nothing was changed."""

    item: CompactionOut


class MarkerOut(BaseModel):
    """A marker of a request: where it is, for how long, and the tokens of the prefix up to it."""

    path: str
    ttl: str
    tokens: int
    digest: str


class LossOut(BaseModel):
    """Why less came from the cache than was expected."""

    cause: str
    path: str
    entry: str
    byte: int | None
    tokens: int


class RequestOut(BaseModel):
    """One call of a model. A count that the provider did not report is null, and not 0."""

    id: str
    at: datetime
    turn: int
    purpose: str
    provider: str
    model: str
    sections: dict[str, int]
    markers: list[MarkerOut]
    prefix: str
    predicted_read: int | None
    predicted_write: int | None
    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    cost: float | None
    loss: LossOut | None
    error: str | None
    requests: int


class RequestsOut(ScopedAnswer):
    """The calls of a model in a conversation, oldest first; `next` is the cursor of the next page."""

    items: list[RequestOut]
    next: str | None = None


class RequestBodyOut(ScopedAnswer):
    """What was sent to the model, of a session that keeps bodies."""

    body: dict[str, Any]


class KnowledgeCount(BaseModel):
    """How many documents were added, changed or removed."""

    documents: int


class DocumentOut(BaseModel):
    """A document, or a passage of one."""

    id: str
    text: str
    source: str
    attributes: dict[str, Any]


class PassageOut(BaseModel):
    """A passage that answers a question: the characters of its document from `start` to `end`."""

    id: str
    document: str
    text: str
    start: int
    end: int
    source: str
    attributes: dict[str, Any]
    score: float
    why: dict[str, float]


class PassagesOut(BaseModel):
    """The best passages, best first."""

    hits: list[PassageOut]


class DeadLetterOut(BaseModel):
    """A job that failed for good."""

    id: str
    kind: str
    attempts: int
    reason: str


class JobsOut(ScopedAnswer):
    """The jobs of a user: how many are waiting, and those that failed for good."""

    waiting: int
    dead: list[DeadLetterOut]


class ErrorOut(BaseModel):
    """Every error: its kind, what happened, and what to do."""

    error: str
    message: str
    advice: str


def scope_out(scope: Scope) -> ScopeOut:
    """The scope that an answer echoes."""
    return ScopeOut(namespace=scope.namespace, user=scope.user_id, session=scope.session_id)


def record_out(record: Record) -> RecordOut:
    """A record as it goes over the wire."""
    common: dict[str, Any] = {
        "id": record.id,
        "kind": record.kind,
        "text": record.text,
        "origin": record.provenance.origin,
        "trusted": record.provenance.trusted,
    }
    match record:
        case Episode():
            common |= {
                "at": record.at,
                "recorded_at": record.recorded_at,
                "session": record.session_id,
                "speaker": record.speaker,
                "layer": record.layer.label,
                "archived_at": record.archived_at,
                "accesses": record.accesses,
                "importance": record.importance,
                "attributes": attributes_to_json(record.attributes),
                "sources": list(record.sources),
            }
        case Fact():
            common |= {
                "recorded_at": record.recorded_at,
                "subject": record.subject,
                "predicate": record.predicate,
                "object": record.object,
                "valid_from": record.valid_from,
                "valid_until": record.valid_until,
                "superseded_at": record.superseded_at,
                "superseded_by": record.superseded_by,
                "sources": list(record.sources),
            }
        case WorkingBlock():
            common |= {"at": record.updated_at, "name": record.name, "version": record.version}
    return RecordOut.model_construct(**common)


def receipt_out(store: str, receipt: Receipt | StoreReceipt) -> ReceiptOut:
    """A receipt as it goes over the wire."""
    return ReceiptOut(store=store, removed=dict(receipt.removed), pending=list(receipt.pending))


def hit_out(hit: Hit) -> HitOut:
    """A hit as it goes over the wire."""
    item = hit.item
    record = None if isinstance(item, Passage) else record_out(item)
    kind = "passage" if isinstance(item, Passage) else item.kind
    return HitOut(id=item.id, kind=kind, text=plain_text(hit.text), score=hit.score, why=dict(hit.why), record=record)


def layers_of(labels: list[str] | None) -> list[Layer] | None:
    """The layers with these labels."""
    return None if labels is None else [Layer[label] for label in labels]


def attributes_of(given: Attributes) -> dict[str, Scalar]:
    """Attributes as memory takes them."""
    return dict(given)
