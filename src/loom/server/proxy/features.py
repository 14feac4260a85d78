"""What the proxy may do to a request, each a choice of the user: markers, memory, shortened results, compaction.

What was done to a conversation once is done again in every later request of it, from what is stored: the program sends
its history as it knows it, and a prompt that moves is paid for again. Anything new is tried on the request, weighed in
the `ledger`, and left out where it would cost more than the program would have paid; the record of the request says so.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, Final, cast

import anyio

from loom.catalog import ModelInfo, find_model
from loom.core.clock import Clock, RecordIds
from loom.core.log import Recorded
from loom.core.message import JSON
from loom.core.scope import Scope
from loom.core.threads import off_loop
from loom.core.window import Block, PrefixChain
from loom.errors import LoomError, NotFound, UsageError
from loom.memory.memory import Memory
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.token_counter import TokenCounter
from loom.server.proxy.compaction import (
    CompactedPrefix,
    compaction_edit,
    is_sure_to_pay,
    message_number,
    new_compaction,
    stored_compaction,
)
from loom.server.proxy.edits import WIRES, NotEditable, RequestText, TextEdit
from loom.server.proxy.ledger import Books, CostLedger, Places, Weighed
from loom.server.proxy.markers import before_own, marker_record, place_markers, without_tokens
from loom.server.proxy.memory import ProxyMemory, Turn, final_answer, last_turn, memory_edits, message_keys
from loom.server.proxy.tool_results import (
    READ,
    ShortResult,
    is_result_id,
    new_results,
    result_edits,
    session_digest,
)
from loom.text.tokens import counter_for
from loom.traces.request import read_request

_log = logging.getLogger(__name__)

ADDED, RESULT, COMPACTED = "loom.proxy.added", "loom.proxy.result", "loom.proxy.compacted"
"""The kinds of what is stored in the log of a conversation."""
_CONVERSATIONS: Final = 300
_ACCOUNTS: Final = 300
_MADE: Final = 20_000
"""Counted blocks of a conversation that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What the proxy does beside passing calls on; nothing, as it comes."""

    markers: bool = False
    memory: Memory | None = None
    memory_budget: int = 1_000
    """Tokens that may be added to one message."""
    shorten_tools: bool = False
    compact: int | None = None
    """Tokens of a request from which on it is compacted."""
    advance: float = 0.0
    """Tokens at the plain input price that a conversation, or a user, may be behind; 0: never."""

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return self.markers or self.stores

    @property
    def stores(self) -> bool:
        """Whether there is one that has to keep something."""
        return self.memory is not None or self.shorten_tools or self.compact is not None


@dataclass(slots=True)
class Conversation:
    """What is known of one conversation: what was done to it, and its accounts."""

    scope: Scope
    results: dict[str, str] = field(default_factory=dict[str, str])
    """Short results by the key of the whole one."""
    added: dict[str, str] = field(default_factory=dict[str, str])
    """What was added to a message, by its key; nothing, where it was sent as it is."""
    compactions: list[CompactedPrefix] = field(default_factory=list[CompactedPrefix])
    left_whole: set[str] = field(default_factory=set[str])
    position: int = 0
    ledgers: dict[str, CostLedger] = field(default_factory=dict[str, CostLedger])
    last: dict[str, PrefixChain] = field(default_factory=dict[str, PrefixChain])
    """The last request as it came, by model."""
    made: dict[str, dict[tuple[str, ...], Block]] = field(default_factory=dict[str, dict[tuple[str, ...], Block]])
    """The blocks of its requests by model, as each counts otherwise: what comes again is not counted again."""
    turn: Turn | None = None
    """The last one that memory was asked for."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)


@dataclass(frozen=True, slots=True)
class _Draft:
    """What is done to a request."""

    results: Mapping[str, str]
    added: Mapping[str, str]
    compaction: CompactedPrefix | None = None

    def edits(self, request: RequestText, keys: Sequence[str]) -> list[TextEdit]:
        edits = [edit for _, edit in result_edits(request, self.results)] if self.results else []
        edits += memory_edits(request, keys, self.added) if any(self.added.values()) else []
        return compaction_edit(request, self.compaction, edits) if self.compaction else edits


@dataclass(frozen=True, slots=True)
class _Tried:
    """A request with a draft, and what that costs."""

    draft: _Draft
    text: RequestText
    chain: PrefixChain
    """What was added counts nothing in it."""
    marks: Mapping[int, str]
    """Markers that what was added needs."""
    places: Places
    weighed: tuple[Weighed, ...]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request as it came."""

    scope: Scope
    upstream: str
    path: str
    body: bytes
    at: datetime
    read: str = READ
    """The command that reads a stored result, with `{id}` and `{last}` in it."""


@dataclass(slots=True)
class Prepared:
    """A request as it is sent, and what has to be known when it is answered."""

    body: bytes
    scope: Scope
    record: dict[str, JSON] = field(default_factory=dict[str, JSON])
    headers: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    commit: Callable[[bool], None] = lambda _: None
    turn: Turn | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    """One request, read."""

    text: RequestText
    keys: Sequence[str]
    info: ModelInfo
    counter: TokenCounter
    books: Books
    provider: str | None
    read: str

    @property
    def model(self) -> str:
        return str(self.text.body.get("model", ""))


class RequestEditor:
    """Does to requests what the features say, and keeps what was done."""

    def __init__(self, features: Features, store: CheckpointStore | None, clock: Clock) -> None:
        if features.stores and store is None:
            raise UsageError("memory, shorten_tools and compact keep what they did: give a store to record in")
        self._features, self._store, self._clock = features, store, clock
        self._memory = ProxyMemory(features.memory, features.memory_budget) if features.memory else None
        self._ids = RecordIds()
        self._conversations: OrderedDict[Scope, Conversation] = OrderedDict()
        self._accounts: OrderedDict[tuple[str, ...], CostLedger] = OrderedDict()
        self._numbers = count()

    async def prepare(self, arrived: Arrived) -> Prepared:
        """The request as it is sent. Whatever goes wrong here, a request is sent."""
        try:
            return await self._prepare(arrived)
        except NotEditable:
            left_out: dict[str, JSON] = {"all": "it is not a request that holds its whole prompt"}
        except Exception as error:  # noqa: BLE001 - the call has to go on
            name = str(error) if isinstance(error, LoomError) else type(error).__name__
            _log.warning("a call to %s is passed on as it came: %s", arrived.upstream, name)
            left_out = {"all": f"{type(error).__name__}: it is passed on as it came"}
        return Prepared(arrived.body, arrived.scope, {"left_out": left_out})

    async def remember(self, prepared: Prepared, reply: bytes, *, is_stream: bool) -> None:
        """Remember a turn, if this answer ended one."""
        answer = final_answer(reply, is_stream=is_stream)
        if self._memory is not None and prepared.turn is not None and answer:
            await self._memory.remember(prepared.scope, prepared.turn, answer)

    async def _prepare(self, arrived: Arrived) -> Prepared:
        wire = WIRES.get(arrived.path)
        if wire is None:
            return Prepared(arrived.body, arrived.scope)
        text = await off_loop(len(arrived.body), lambda: RequestText.of(arrived.body, wire))
        conversation = self._conversation(arrived.scope)
        async with conversation.lock:
            await self._load(conversation)
            request = await self._read(conversation, text, arrived)
            left_out: dict[str, str] = {}
            now = await self._drafted(conversation, request, left_out)
            return await self._finished(conversation, request, now, left_out)

    async def _read(self, conversation: Conversation, text: RequestText, arrived: Arrived) -> _Request:
        known = arrived.upstream if arrived.upstream in {"anthropic", "openai"} else None
        model = text.body.get("model")
        if not isinstance(model, str):
            raise NotEditable
        info = find_model(model, known)
        counter = counter_for(info)
        if len(conversation.made.setdefault(model, {})) > _MADE:
            conversation.made[model].clear()
        at = arrived.at.timestamp()
        direct = await off_loop(len(text.text), lambda: self._chain(conversation, text, known, counter, at))
        ledger = conversation.ledgers.setdefault(model, CostLedger(info.cache, self._features.advance))
        account = self._account(conversation.scope, arrived.upstream, model, info)
        books = Books((ledger, account), at, direct)
        keys = await off_loop(len(text.text), lambda: message_keys(text))
        return _Request(text, keys, info, counter, books, known, arrived.read)

    def _chain(
        self, conversation: Conversation, text: RequestText, provider: str | None, counter: TokenCounter, at: float
    ) -> PrefixChain:
        made = conversation.made[text.body["model"]]
        prompt = read_request(text.body, provider=provider, counter=counter, at=at, made=made)
        return PrefixChain.of(prompt)

    # What is done: first what was done before, then each new thing that the law allows.

    async def _drafted(self, conversation: Conversation, request: _Request, left_out: dict[str, str]) -> _Tried:
        features = self._features
        compaction = stored_compaction(request.text.digests, request.model, conversation.compactions)
        now = await self._try(conversation, request, _Draft(conversation.results, conversation.added, compaction))
        if features.shorten_tools:
            now = await self._shorten(conversation, request, now, left_out)
        if self._memory is not None:
            now = await self._remind(conversation, request, now, left_out)
        if features.compact is not None and now.chain.tokens > features.compact:
            now = await self._compact(conversation, request, now, left_out)
        return now

    async def _try(self, conversation: Conversation, request: _Request, draft: _Draft) -> _Tried:
        direct = request.books.direct
        built = await off_loop(len(request.text.text), lambda: self._built(conversation, request, draft))
        if built is None:
            places = Places(range(len(direct.blocks)))
            return _Tried(draft, request.text, direct, {}, places, request.books.weigh(direct, places))
        text, chain, marks, places = built
        return _Tried(draft, text, chain, marks, places, request.books.weigh(chain, places))

    def _built(
        self, conversation: Conversation, request: _Request, draft: _Draft
    ) -> tuple[RequestText, PrefixChain, Mapping[int, str], Places] | None:
        """The request with a draft, as its cache sees it, the markers that needs, and where its blocks are then.

        None where nothing is changed.
        """
        edits = draft.edits(request.text, request.keys)
        if not edits:
            return None
        text = request.text.edited(edits)
        whole = self._chain(conversation, text, request.provider, request.counter, request.books.at)
        added = frozenset(json.dumps(t, ensure_ascii=False) for t in draft.added.values() if t)
        chain, own = without_tokens(whole, lambda block: block.kind == "text" and _text_in(block) in added)
        marks = before_own(chain, own, request.info.cache)
        chain = replace(chain, marks=dict(sorted({**chain.marks, **marks}.items())))
        return text, chain, marks, Places(_places(request.books.direct, chain, draft.compaction), own)

    async def _shorten(
        self, conversation: Conversation, request: _Request, now: _Tried, left_out: dict[str, str]
    ) -> _Tried:
        left_whole = frozenset(conversation.left_whole)
        session_id = conversation.scope.session_id or ""
        known = dict(conversation.results)
        found = await off_loop(
            len(request.text.text), lambda: new_results(request.text, known, left_whole, session_id, request.read)
        )
        if not found:
            return now
        shorter = {one.key: one.short for one in found}
        tried = await self._try(conversation, request, replace(now.draft, results={**now.draft.results, **shorter}))
        why = _why_not_shorter(request, tried) or (
            "" if request.books.allows(tried.weighed) else request.books.why_not(tried.weighed)
        )
        why = why or await self._stored(
            conversation, RESULT, request.text, lambda: [_result_record(one) for one in found]
        )
        if why:
            conversation.left_whole |= shorter.keys()
            left_out["shorten_tools"] = why
            return now
        conversation.results |= shorter
        return tried

    async def _remind(
        self, conversation: Conversation, request: _Request, now: _Tried, left_out: dict[str, str]
    ) -> _Tried:
        assert self._memory is not None
        if not self._memory.is_of(conversation.scope):
            left_out["memory"] = "this proxy has the memory of another namespace"
            return now
        turn = last_turn(request.text, request.keys)
        if turn is None or turn.message < request.text.new_from() or turn.key in conversation.added:
            return now
        conversation.added[turn.key] = ""  # sent as it is, unless something is added below
        rules = request.info.cache
        if rules.matching == "lookback" and len(request.books.direct.marks) >= rules.max_markers:
            left_out["memory"] = "all markers are used, and one may be needed to read across what is added"
            return now
        shown = [conversation.added[key] for key in request.keys if conversation.added.get(key)]
        users = [key for i, key in enumerate(request.keys) if request.text.is_users(i)]
        try:
            text, view = await self._memory.find(conversation.scope, turn, users, shown)
        except LoomError as error:
            left_out["memory"] = f"memory could not be read: {type(error).__name__}"
            return now
        conversation.turn = replace(turn, view=view)
        if not text:
            return now
        tried = await self._try(conversation, request, replace(now.draft, added={**now.draft.added, turn.key: text}))
        why = "" if request.books.allows(tried.weighed) else request.books.why_not(tried.weighed)
        why = why or await self._stored(
            conversation, ADDED, request.text, lambda: [{"message": turn.key, "text": text}]
        )
        if why:
            left_out["memory"] = why
            return now
        conversation.added[turn.key] = text
        return tried

    async def _compact(
        self, conversation: Conversation, request: _Request, now: _Tried, left_out: dict[str, str]
    ) -> _Tried:
        assert self._features.compact is not None
        compacted = partial(
            new_compaction,
            request.text,
            request.books.direct,
            model=request.model,
            session_id=conversation.scope.session_id or "",
            budget=self._features.compact,
            counter=request.counter,
        )
        made, why = await off_loop(len(request.text.text), compacted)
        if made is None:
            left_out["compact"] = why
            return now
        tried = await self._try(conversation, request, replace(now.draft, compaction=made))
        if not is_sure_to_pay(made, request.books.direct, tried.chain, request.info.cache):
            why = "the summary may cost more than what it covers costs from the cache"
        elif not request.books.allows(tried.weighed):
            why = request.books.why_not(tried.weighed)
        why = why or await self._stored(
            conversation, COMPACTED, request.text, lambda: [_compaction_record(made, request.text)]
        )
        if why:
            left_out["compact"] = why
            return now
        conversation.compactions.append(made)
        return tried

    async def _finished(
        self, conversation: Conversation, request: _Request, now: _Tried, left_out: dict[str, str]
    ) -> Prepared:
        """The request with its markers, its record, and what happens when it is answered."""
        books, chain, text = request.books, now.chain, now.text
        record: dict[str, JSON] = {}
        if text.wire == "messages" and request.info.cache.matching == "lookback":
            writes = self._features.markers
            placed = place_markers(chain, books, now.places, writes=writes, grown=self._is_new(conversation, request))
            if marks := {**now.marks, **placed.marks}:
                edits = [text.mark(chain.blocks[i].path, ttl) for i, ttl in marks.items()]
                text = await off_loop(len(text.text), partial(text.edited, edits))
                record["markers"] = marker_record(chain, marks)
            if writes and placed.why_not:
                left_out["markers"] = placed.why_not
            chain = placed.chain
        elif self._features.markers:
            left_out["markers"] = "this provider takes none of Anthropic's markers"
        record |= await off_loop(len(text.text), partial(self._counts, request, now, left_out))
        headers: list[tuple[bytes, bytes]] = []
        if now.draft.compaction is not None:
            done = now.draft.compaction
            headers.append((b"x-loom-compacted", f"{done.end - done.first} messages; id={done.id}".encode()))
        is_known = self._memory is not None and self._memory.is_of(conversation.scope)
        turn = last_turn(request.text, request.keys) if is_known else None
        if turn is not None and conversation.turn is not None and conversation.turn.key == turn.key:
            turn = conversation.turn
        number = next(self._numbers)
        for ledger, one in zip(books.ledgers, books.weigh(chain, now.places), strict=True):
            ledger.hold(number, one)

        def commit(is_billed: bool) -> None:
            for ledger in books.ledgers:
                ledger.release(number)
                if is_billed:
                    ledger.commit(books.direct, chain, now.places)
            if is_billed:
                conversation.last[request.model] = books.direct

        body = text.text.encode()
        return Prepared(body, conversation.scope, record, headers, commit, turn)

    def _counts(self, request: _Request, now: _Tried, left_out: Mapping[str, str]) -> dict[str, JSON]:
        texts = [now.draft.added[key] for key in request.keys if now.draft.added.get(key)]
        added = sum(request.counter.count(text) for text in texts)
        shorter = sum(1 for _ in result_edits(request.text, now.draft.results)) if now.draft.results else 0
        done = now.draft.compaction
        saved = request.books.direct.tokens - now.chain.tokens
        found: dict[str, JSON] = {"saved": saved} if saved else {}
        found |= {"added": added} if self._memory is not None else {}
        found |= {"shortened": shorter} if shorter else {}
        found |= {"compacted": {"id": done.id, "messages": done.end - done.first}} if done else {}
        return found | ({"left_out": dict(left_out)} if left_out else {})

    def _is_new(self, conversation: Conversation, request: _Request) -> str:
        """Why a conversation is not yet one that is known to grow while the cache is warm; empty where it is."""
        last, direct = conversation.last.get(request.model), request.books.direct
        if last is None or not last.nodes:
            return "it is the first request, and nothing shows that another one comes"
        if direct.nodes[len(last.nodes) - 1 : len(last.nodes)] != last.nodes[-1:]:
            return "it does not go on from the request before"
        kept = request.info.cache.ttls.get(request.info.cache.default_ttl or "", 0.0)
        if direct.at is not None and last.at is not None and direct.at - last.at >= kept:
            return "the requests are further apart than the cache lasts"
        return ""

    # What is kept.

    def _conversation(self, scope: Scope) -> Conversation:
        found = self._conversations.setdefault(scope, Conversation(scope))
        self._conversations.move_to_end(scope)
        if len(self._conversations) > _CONVERSATIONS:
            self._conversations.popitem(last=False)
        return found

    def _account(self, scope: Scope, upstream: str, model: str, info: ModelInfo) -> CostLedger:
        key = (scope.namespace, scope.user_id, upstream, model)
        found = self._accounts.setdefault(key, CostLedger(info.cache, self._features.advance))
        self._accounts.move_to_end(key)
        if len(self._accounts) > _ACCOUNTS:
            self._accounts.popitem(last=False)
        return found

    async def _load(self, conversation: Conversation) -> None:
        """Read what this process, or another one, stored since it was last looked."""
        if self._store is None or not self._features.stores:
            return
        try:
            head = await self._store.load(conversation.scope)
            if head is None or head.position <= conversation.position:
                return
            entries = await self._store.recorded(conversation.scope, head.id, after=conversation.position)
        except LoomError as error:
            _log.warning("what was done to a conversation could not be read again: %s", error)
            return  # what this process has done itself it knows
        for entry in entries:
            value = cast("dict[str, Any]", entry.body)
            if entry.kind == ADDED:
                conversation.added[value["message"]] = value["text"]
            elif entry.kind == RESULT:
                conversation.results[value["key"]] = value["short"]
            elif entry.kind == COMPACTED:
                made = CompactedPrefix(**{name: value[name] for name in CompactedPrefix.__dataclass_fields__})
                if made not in conversation.compactions:
                    conversation.compactions.append(made)
        conversation.position = head.position

    async def _stored(
        self, conversation: Conversation, kind: str, text: RequestText, records: Callable[[], Sequence[dict[str, JSON]]]
    ) -> str:
        """Keep what is about to be sent, first; the reason where that fails. The records are parts of this text."""
        assert self._store is not None
        now = self._clock.now()
        try:
            entries = await off_loop(
                len(text.text), lambda: [Recorded(self._ids.next_id(), now, kind, record) for record in records()]
            )
            await self._store.append(conversation.scope, entries)
        except LoomError as error:
            _log.warning("what was to be changed in a request could not be stored: %s", error)
            return f"it could not be stored: {type(error).__name__}"
        return ""


async def read_result(store: CheckpointStore, user: Scope, id: str) -> str:
    """The whole of what was shortened or compacted for a user.

    Raises:
        NotFound: this user has none with this id.
    """
    if is_result_id(id):
        for saved in await store.sessions(user):
            if session_digest(saved.session_id) == id[:6]:
                for entry in await store.recorded(user.for_session(saved.session_id)):
                    value = cast("dict[str, Any]", entry.body)
                    if entry.kind in {RESULT, COMPACTED} and value["id"] == id:
                        return value["whole"]
    raise NotFound(f"no result {id!r} is kept for user {user.user_id!r}; ids are in the shortened results")


def _result_record(one: ShortResult) -> dict[str, JSON]:
    return {"id": one.id, "key": one.key, "short": one.short, "whole": one.whole}


def _compaction_record(one: CompactedPrefix, request: RequestText) -> dict[str, JSON]:
    whole = "\n".join(request.slice(node.start, node.end) for node in request.messages[one.first : one.end])
    return {**{name: getattr(one, name) for name in CompactedPrefix.__dataclass_fields__}, "whole": whole}


def _why_not_shorter(request: _Request, tried: _Tried) -> str:
    """Why a shorter result could cost more in a later request; empty where it cannot."""
    info = request.info
    least = max(info.cache.min_prefix, find_model("", info.provider).cache.min_prefix)
    if info.cache.matching in {"lookback", "exact"}:
        first = next(
            (i for i, j in enumerate(tried.places.there) if j is not None and _differs(request, tried, i, j)), None
        )
        if first is not None and tried.chain.ends[tried.places.there[first] or 0] < least:
            return f"a prompt of under {least:,} tokens is not cached, and this one would be"
    rounding = (1 - info.cache.read) * info.cache.grid
    if info.cache.grid > 1 and (request.books.direct.tokens - tried.chain.tokens) * info.cache.read < rounding:
        return "it saves too little for a cache that counts in steps"
    return ""


def _differs(request: _Request, tried: _Tried, i: int, j: int) -> bool:
    return request.books.direct.blocks[i].content != tried.chain.blocks[j].content


def _text_in(block: Block) -> str:
    """The text of a block of text, as JSON."""
    return block.content.removeprefix('{"type":"text","text":').removesuffix("}")


def _places(direct: PrefixChain, ours: PrefixChain, compaction: CompactedPrefix | None) -> list[int | None]:
    """Where each block of a request is after it was changed; None where it is not sent any more."""
    there = {key: i for i, key in enumerate(_block_keys(ours))}
    return [there.get((_moved(message, compaction), n)) for message, n in _block_keys(direct)]


def _moved(message: int | None, compaction: CompactedPrefix | None) -> int | None:
    if message is None or compaction is None or message < compaction.first:
        return message
    if message < compaction.end:
        return compaction.first + 1 if message == compaction.request else -1
    return message - compaction.end + compaction.first + (1 if compaction.request is None else 2)


def _block_keys(chain: PrefixChain) -> list[tuple[int | None, int]]:
    """The message of each block, and its number in it."""
    seen: dict[int | None, int] = {}
    keys: list[tuple[int | None, int]] = []
    for block in chain.blocks:
        message = message_number(block.path)
        seen[message] = seen.get(message, 0) + 1
        keys.append((message, seen[message]))
    return keys
