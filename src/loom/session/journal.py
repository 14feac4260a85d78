"""The journal of requests: one small record for every call of a model, kept in the log of its session.

A record is a recorded entry of the kind `loom.request`. It is saved with the turn that it belongs to, and follows the
log through restoring, forks, copies and erasure. Where bodies are kept, each is an entry of its own, written as what
differs from the body before it: a prefix that comes again is not stored again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from loom.core.log import LogEntry, Recorded
from loom.core.message import JSON, Usage
from loom.errors import NotFound

if TYPE_CHECKING:
    from loom.core.scope import Scope
    from loom.core.window import PrefixChain
    from loom.protocols.checkpoint_store import CheckpointStore
    from loom.session.history import History
    from loom.telemetry import Bill

REQUEST: Final = "loom.request"
"""The kind of a record."""
BODY: Final = "loom.request.body"
"""The kind of an entry that holds the body of a request."""

Purpose: TypeAlias = Literal["answer", "repair", "summary", "nested"]

_COUNTED: Final = ("input", "output", "cache_read", "cache_write")
"""The counts of a usage, in the order in which a record has them; others may only be added at the end."""
_MARKERS: Final = 4
"""How many markers are kept of a request, the last ones: one provider takes dozens, and a record has to stay small."""
_WORDS: Final = 160
"""Characters of an error or of a name: the beginning and the end say what it is."""
_DIGITS: Final = 16
"""Hexadecimal digits of a digest: enough to tell the prefixes of one session apart."""
_NOT_LESS: Final = 0.8
"""The share of the predicted reads from which on a cache counts as having done what was predicted: tokens are estimated
before a request and counted by the provider afterwards."""


@dataclass(frozen=True, slots=True)
class CacheMarker:
    """A marker of a request: where it is, for how long, and the prefix up to it, in tokens and as a digest."""

    path: str
    ttl: str
    tokens: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLoss:
    """Why less came from the cache than the request before had left there, or than was predicted.

    `cause` is one of explain() where the prompt changed: `path`, `entry` and `byte` say where. It is `expired` where
    the last request was longer ago than the cache keeps a prefix, and `unexplained` where neither is so.
    """

    cause: str
    path: str = ""
    entry: str = ""
    byte: int | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One call of a model: what was sent, what was expected of the cache, and what the provider said.

    `purpose` is `answer`; `repair`, where the answer before did not have the wanted form; `summary`, for a compaction;
    or `nested`, for what a run inside a tool spent, which has neither sections nor markers here. A count that the
    provider did not report is None, and not 0. `usage` is None where the call failed, and `error` says how.
    """

    id: str
    at: datetime
    turn: int
    purpose: str
    provider: str
    model: str
    sections: Mapping[str, int] = field(default_factory=dict[str, int])
    """Tokens of each section that has any, by estimate."""
    markers: tuple[CacheMarker, ...] = ()
    prefix: str = ""
    """The digest of the whole prompt."""
    predicted_read: int | None = None
    predicted_write: int | None = None
    usage: Usage | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    write_5m: int | None = None
    write_1h: int | None = None
    cost: float | None = None
    """In US dollars; None where the price is not known, or the call failed."""
    loss: CacheLoss | None = None
    error: str | None = None
    requests: int = 1
    """How many calls it stands for: more than one only for `nested`."""
    proxy: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """What a proxy did to the request, in tokens where it counts, and what it left out and why."""

    @classmethod
    def of(cls, entry: Recorded) -> RequestRecord:
        """The record in an entry of a log."""
        body = cast("Mapping[str, Any]", entry.body)
        usage, reported, loss = body.get("usage"), body.get("reported", {}), body.get("loss")
        predicted: Sequence[int | None] = body.get("predicted", (None, None))
        return cls(
            id=entry.id,
            at=entry.at,
            turn=body["turn"],
            purpose=body["purpose"],
            provider=body.get("provider", ""),
            model=body.get("model", ""),
            sections=body.get("sections", {}),
            markers=tuple(CacheMarker(*marker) for marker in body.get("markers", ())),
            prefix=body.get("prefix", ""),
            predicted_read=predicted[0],
            predicted_write=predicted[1],
            usage=None if usage is None else Usage(**dict(zip(_COUNTED, usage, strict=False))),
            cache_read=reported.get("read"),
            cache_write=reported.get("write"),
            write_5m=reported.get("5m"),
            write_1h=reported.get("1h"),
            cost=body.get("cost"),
            loss=None if loss is None else CacheLoss(**loss),
            error=body.get("error"),
            requests=body.get("requests", 1),
            proxy=body.get("proxy", {}),
        )


async def requests_of(
    store: CheckpointStore, scope: Scope, id: str | None = None, *, after: int = 0
) -> tuple[RequestRecord, ...]:
    """The records of a session, oldest first, up to a checkpoint or to the last; no message is read.

    Args:
        store: the store of the session.
        scope: the session.
        id: a checkpoint; the last one if not given.
        after: a position of the log: only what was recorded behind it.
    """
    return tuple(map(RequestRecord.of, await store.recorded(scope, id, kind=REQUEST, after=after)))


async def request_body(store: CheckpointStore, scope: Scope, request_id: str) -> dict[str, JSON]:
    """The body of a request, of a session that kept them.

    Raises:
        NotFound: there is no such request, or its body was not kept.
    """
    return body_in(await store.recorded(scope, kind=BODY), request_id)


def body_in(entries: Iterable[Recorded], request_id: str) -> dict[str, JSON]:
    """The body of a request, from the entries of bodies."""
    steps_by_id: dict[str, Any] = {}
    for entry in entries:
        step: Any = entry.body
        steps_by_id[step["request"]] = step
    steps: list[Any] = []
    wanted: str | None = request_id
    while wanted is not None:
        if wanted not in steps_by_id:
            raise NotFound(f"the body of request {wanted!r} was not kept; a session with keep_requests=True keeps them")
        steps.append(steps_by_id[wanted])
        wanted = steps[-1]["after"]
    body: dict[str, JSON] = {}
    for step in reversed(steps):
        same = {name: body[name] for name in step["same"]}
        lists = {name: [*body.get(name, [])[:kept], *more] for name, (kept, more) in step["lists"].items()}
        body = {**same, **lists, **step["values"]}
    return body


class Journal:
    """Writes records into the history of a session."""

    def __init__(self, history: History, *, keeps_bodies: bool) -> None:
        self._history = history
        self._keeps_bodies = keeps_bodies
        self._last: tuple[list[LogEntry], str, dict[str, JSON]] | None = None

    def now(self) -> datetime:
        """The time, as the history has it."""
        return self._history.now()

    def begin(
        self,
        purpose: Purpose,
        *,
        provider: str,
        model: str,
        sections: Mapping[str, int] | None = None,
        chain: PrefixChain | None = None,
        body: Mapping[str, JSON] | None = None,
    ) -> PendingRequest:
        """A request that is about to be sent, once or several times."""
        return PendingRequest(self, purpose, provider, model, sections or {}, chain, body)

    def nested(self, bill: Bill) -> None:
        """Record what a run inside a tool spent; its own session has the records of its requests."""
        if bill.requests or bill.usage != Usage():
            body: dict[str, JSON] = {"requests": bill.requests, "usage": _counts(bill.usage)}
            self.write("nested", body | ({} if bill.cost is None else {"cost": bill.cost}))

    def write(self, purpose: Purpose, values: dict[str, JSON], sent: Mapping[str, JSON] | None = None) -> None:
        """Append a record to the log, and the body where bodies are kept."""
        history = self._history
        turn = history.turn + 1 if history.unfinished else history.turn
        id = history.record(REQUEST, {"turn": turn, "purpose": purpose, **values}).id
        if self._keeps_bodies and sent is not None:
            history.record(BODY, {"request": id, **self._difference(id, dict(sent))})

    def _difference(self, id: str, body: dict[str, JSON]) -> dict[str, JSON]:
        """A body as what differs from the one before it, which this process has sent."""
        log, after, before = self._last or (None, None, {})
        if log is not self._history.log:  # a log that was loaded may not have the body before
            after, before = None, {}
        self._last = (self._history.log, id, body)
        same = [name for name, value in body.items() if before.get(name, self) is value or before.get(name) == value]
        lists: dict[str, JSON] = {}
        for name, value in body.items():
            if name not in same and isinstance(value, list):
                items = cast("list[JSON]", value)
                kept = _shared(before.get(name), items)
                lists[name] = [kept, items[kept:]]
        values = {name: value for name, value in body.items() if name not in same and name not in lists}
        return {"after": after, "same": same, "lists": lists, "values": values}


def _shared(before: object, after: list[JSON]) -> int:
    """How many leading items are the same; those of an earlier request are the very same objects."""
    shared = 0
    for one, other in zip(cast("list[JSON]", before) if isinstance(before, list) else [], after, strict=False):
        if one is not other and one != other:
            break
        shared += 1
    return shared


@dataclass(slots=True)
class PendingRequest:
    """A request as it is sent; each time it is sent leaves one record."""

    _journal: Journal
    _purpose: Purpose
    _provider: str
    _model: str
    _sections: Mapping[str, int]
    _chain: PrefixChain | None
    _body: Mapping[str, JSON] | None

    def failed(self, error: BaseException) -> None:
        """The call ended in an error, or was given up."""
        text = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else "given up before it answered"
        self._journal.write(self._purpose, {**self._sent(), "error": shortened_words(text)}, self._body)

    def answered(
        self,
        usage: Usage,
        cost: float | None,
        *,
        reported: Mapping[str, int] | None = None,
        predicted: tuple[int, int] | None = None,
        loss: CacheLoss | None = None,
        model: str | None = None,
    ) -> None:
        """The model answered; `model` is what it calls itself, where that is another name."""
        body = self._sent()
        if model and model != self._model:
            body["model"] = shortened_words(model)
        body["usage"] = _counts(usage)
        if counts := counts_reported(usage, reported):
            body["reported"] = counts
        if predicted is not None:
            body["predicted"] = [*predicted]
        if cost is not None:
            body["cost"] = cost
        if loss is not None:
            body["loss"] = _loss(loss)
        self._journal.write(self._purpose, body, self._body)

    def _sent(self) -> dict[str, JSON]:
        found: dict[str, JSON] = {
            "provider": shortened_words(self._provider),
            "model": shortened_words(self._model),
            "sections": {name: count for name, count in self._sections.items() if count},
        }
        chain = self._chain
        if chain is not None and chain.nodes:
            found["prefix"] = chain.nodes[-1].hex()[:_DIGITS]
            found["markers"] = [
                [shortened_words(chain.blocks[at].path), ttl, chain.ends[at], chain.nodes[at].hex()[:_DIGITS]]
                for at, ttl in [*chain.marks.items()][-_MARKERS:]
            ]
        return found


def shortened_words(text: str) -> str:
    """A name or an error, short enough for a record."""
    return text if len(text) <= _WORDS else f"{text[: _WORDS // 2]} ... {text[-_WORDS // 2 + 5 :]}"


def _counts(usage: Usage) -> list[JSON]:
    return [getattr(usage, name) for name in _COUNTED]


def counts_reported(usage: Usage, reported: Mapping[str, int] | None) -> dict[str, int]:
    """The counts of the cache that a provider named. Of one that does not say which it named, those that are not 0."""
    if reported is not None:
        return dict(reported)
    return {name: count for name, count in (("read", usage.cache_read), ("write", usage.cache_write)) if count}


def read_less(usage: Usage, reported: Mapping[str, int] | None, predicted: int) -> bool:
    """Whether clearly less was read than predicted; not where the provider says nothing of it."""
    read = counts_reported(usage, reported).get("read")
    return read is not None and read < predicted * _NOT_LESS


def _loss(loss: CacheLoss) -> dict[str, JSON]:
    found: dict[str, JSON] = {"cause": loss.cause}
    found |= {name: shortened_words(text) for name, text in (("path", loss.path), ("entry", loss.entry)) if text}
    found |= {} if loss.byte is None else {"byte": loss.byte}
    return found | ({"tokens": loss.tokens} if loss.tokens else {})
