"""What `loom proxy` records of the calls that it passes on: the same records that a session leaves in its log.

A call is recorded behind its answer, by one task that works through a queue. Whatever goes wrong here is logged, and
neither delays nor changes an answer.
"""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, Protocol

import anyio
import httpx2

from loom.catalog import ModelInfo, find_model
from loom.context.cache.explain import compare
from loom.context.cache.simulate import has_moved, replay
from loom.core.clock import RecordIds
from loom.core.log import Recorded
from loom.core.message import JSON, Usage
from loom.core.scope import Scope
from loom.core.window import Block, PrefixChain
from loom.errors import LoomError
from loom.protocols.checkpoint_store import CheckpointStore
from loom.server.proxy.edits import json_object, table, tables
from loom.server.proxy.features import Prepared
from loom.session.journal import REQUEST, CacheLoss, Journal, PendingRequest, Purpose, read_less
from loom.text.tokens import counter_for
from loom.traces.request import read_request, read_usage

_log = logging.getLogger(__name__)

_REPLY_BYTES: Final = 32_000_000
"""Bytes of an answer that are kept until it is recorded; of a longer one the usage is not read."""
_DECODED_BYTES: Final = 64_000_000
"""Bytes of a body without its encoding: a megabyte of zip may hold a gigabyte."""
_WAITING_CALLS: Final = 1_000
_WAITING_BYTES: Final = 256_000_000
"""How much may wait to be recorded. What comes on top is passed on, and not recorded."""
_CONVERSATIONS: Final = 200
"""Conversations whose last requests are kept, so that the next one can be compared with them."""
_REMEMBERED: Final = 4
"""Requests of a conversation that a prediction replays, as in a session."""
_SPARE: Final = 4
"""Times the blocks of a request that are kept of a conversation: those of requests beside it, and rewritten ones."""
_END_SECONDS: Final = 30.0
"""How long the end of the proxy waits for what is not recorded yet."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}")
"""An error of a provider is recorded by its name alone: its text may quote a key."""
_SECTIONS: Final = {"tools": "tools", "system": "foundation", "messages": "convo"}
"""The section of a window that a level of a foreign request is closest to."""
_ENCODINGS: Final = "install brotli or zstandard, or let the client accept gzip"
_SESSION_DIGITS: Final = 16
_SESSION: Final = re.compile(r"_session_([0-9a-fA-F-]{36})$")
"""How older versions of Claude Code name their session, at the end of an id of the user."""


@dataclass(slots=True)
class Call:
    """One call as it passed the proxy. None of its headers is here but those of the answer."""

    owner: Scope
    upstream: str
    path: str
    at: datetime
    body: bytes
    encoding: bytes = b""
    status: int | None = None
    reply_headers: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    reply: list[bytes] = field(default_factory=list[bytes])
    is_whole: bool = False
    error: str | None = None
    size: int = 0
    prepared: Prepared | None = None
    """What the features did to the request."""

    def add(self, chunk: bytes) -> None:
        """One more piece of the answer."""
        self.size += len(chunk)
        if self.size <= _REPLY_BYTES:
            self.reply.append(chunk)


@dataclass(slots=True)
class _Answer:
    """What the answer to a call says of itself."""

    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    model: str = ""
    error: str | None = None


@dataclass(slots=True)
class _Prompt:
    """What is known of a request that was answered."""

    answer: _Answer
    info: ModelInfo
    chain: PrefixChain | None


@dataclass(slots=True)
class _Past:
    """The requests of a conversation so far, the newest ones."""

    sent: list[PrefixChain] = field(default_factory=list[PrefixChain])
    at: datetime | None = None
    made: dict[tuple[str, ...], Block] = field(default_factory=dict[tuple[str, ...], Block])
    """The blocks of the requests, so that what comes again is not counted again."""


class Behind(Protocol):
    """What is done with an answer when the program has it."""

    def __call__(self, prepared: Prepared, reply: bytes, *, is_stream: bool) -> Awaitable[None]:
        """Read the answer to a request."""
        ...


class _OneRecord(Journal):
    """Takes the record of one call, for a log that other processes may be writing too."""

    def __init__(self) -> None:
        self.values: dict[str, JSON] = {}

    def write(self, purpose: Purpose, values: dict[str, JSON], sent: Mapping[str, JSON] | None = None) -> None:
        """Keep the record."""
        del sent
        self.values = {"purpose": purpose, **values}


class ProxyJournal:
    """Records calls in the logs of their conversations."""

    def __init__(self, store: CheckpointStore, behind: Behind | None = None) -> None:
        """`behind` is called with each answer that came whole, when it is recorded."""
        self._store = store
        self._behind = behind
        self._ids = RecordIds()
        self._past: OrderedDict[Scope, _Past] = OrderedDict()
        self._queue, self._calls = anyio.create_memory_object_stream[Call](_WAITING_CALLS)
        self._bytes = 0
        self._done = anyio.Event()
        self._scope = anyio.CancelScope(shield=True)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[ProxyJournal]:
        """Record while this is open; at its end, what waits is recorded first."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._work)
            try:
                yield self
            finally:
                self._queue.close()
                with anyio.move_on_after(_END_SECONDS, shield=True):
                    await self._finished()
                self._scope.cancel()

    async def _finished(self) -> None:
        try:
            await self._done.wait()
        except anyio.get_cancelled_exc_class():  # Ctrl-C, which asyncio delivers once and through any shield
            await self._done.wait()
            raise

    def put(self, call: Call) -> None:
        """Hand over a call that has ended; it is recorded later."""
        size = len(call.body) + call.size
        if self._bytes + size <= _WAITING_BYTES:
            with suppress(anyio.WouldBlock, anyio.ClosedResourceError):
                self._queue.send_nowait(call)
                self._bytes += size
                return
        _log.warning("a call to %s is not recorded: too many wait already", call.upstream)

    async def _work(self) -> None:
        with self._scope:
            async with self._calls:
                async for call in self._calls:
                    await self._record(call)
                    self._bytes -= len(call.body) + call.size
        self._done.set()

    async def _record(self, call: Call) -> None:
        try:
            scope, values = await anyio.to_thread.run_sync(self._read, call)
            await self._store.append(scope, [Recorded(self._ids.next_id(), call.at, REQUEST, values)])
            if self._behind is not None and call.prepared is not None and call.is_whole and call.status == 200:
                await self._behind(call.prepared, _reply_of(call), is_stream=_is_stream(call))
        except Exception as error:  # noqa: BLE001 - a call was answered already; its record must not end the proxy
            text = str(error) if isinstance(error, LoomError) else type(error).__name__
            _log.warning("a call to %s could not be recorded: %s", call.upstream, text)

    def _read(self, call: Call) -> tuple[Scope, dict[str, JSON]]:
        """The conversation of a call, and its record."""
        body = json_object(_decoded(call.body, [(b"content-encoding", call.encoding)] if call.encoding else []))
        scope = call.owner if call.owner.session_id else call.owner.for_session(_session_of(body))
        answer = _read_answer(call)
        model = _text(body.get("model"))
        known = call.upstream if call.upstream in {"anthropic", "openai"} else None
        info = find_model(model or answer.model, known)
        past = self._remembered(scope)
        chain = _chain(body, known, info, past)
        record = _OneRecord()
        provider = chain.provider if chain is not None else info.provider
        pending = record.begin(
            "answer", provider=provider, model=model or answer.model, sections=_sections(chain), chain=chain
        )
        usage = read_usage({"usage": answer.usage}) if answer.usage else None
        error = _error_of(call, answer)
        if usage is None:
            pending.failed(Exception())
            del record.values["error"]
        else:
            _answered(pending, usage, call.at, _Prompt(answer, info, chain), past)
        if error is not None:
            record.values["error"] = error
        if call.prepared is not None and call.prepared.record:
            record.values["proxy"] = call.prepared.record
        return scope, {"turn": _turn(body), **record.values}

    def _remembered(self, scope: Scope) -> _Past:
        past = self._past.setdefault(scope, _Past())
        self._past.move_to_end(scope)
        if len(self._past) > _CONVERSATIONS:
            self._past.popitem(last=False)
        return past


def _answered(pending: PendingRequest, usage: Usage, at: datetime, prompt: _Prompt, past: _Past) -> None:
    """Record an answer, beside what a warm cache does with the request after those before it."""
    answer, info, chain = prompt.answer, prompt.info, prompt.chain
    reported = _reported(answer.usage)
    predicted, loss = None, None
    if chain is not None:
        before = past.sent[-1] if past.sent else None
        idle = (at - past.at).total_seconds() if past.at is not None else 0.0
        sent = [*past.sent, chain]
        past.sent, past.at = sent[-_REMEMBERED:], at
        # Tokens are estimated here and counted by the provider: its count of the whole prompt is the measure.
        scale = usage.input / chain.tokens if chain.tokens and usage.input else 1.0
        try:
            step = replay(sent, info.cache).steps[-1]
            predicted = (round(step.read * scale), round(step.write * scale))
            loss = None if before is None else _moved(before, chain, info, scale)
            if before is not None and loss is None and read_less(usage, reported, predicted[0]):
                cause = "expired" if _is_cold(before, idle, info) else "unexplained"
                loss = CacheLoss(cause=cause, tokens=predicted[0] - usage.cache_read)
        except LoomError as error:  # a request that the provider takes and the rules here do not
            _log.info("a request could not be compared with the one before: %s", error)
    cost = info.cost(usage)
    pending.answered(usage, cost, reported=reported, predicted=predicted, loss=loss, model=answer.model)


def _moved(before: PrefixChain, after: PrefixChain, info: ModelInfo, scale: float) -> CacheLoss | None:
    """What changed in the prefix that the request before left in the cache, if anything did."""
    if not has_moved(before, after, info.cache):
        return None
    moved = compare(before.prompt, after.prompt, info)
    tokens = round(moved.lost_tokens * scale)
    return CacheLoss(cause=moved.cause, path=moved.path, byte=moved.byte, tokens=tokens) if moved.moved else None


def _is_cold(before: PrefixChain, idle: float, info: ModelInfo) -> bool:
    """Whether the last request was longer ago than the cache keeps a prefix."""
    rules = info.cache
    kept = max((rules.ttls.get(ttl, 0.0) for ttl in (*before.marks.values(), rules.default_ttl or "")), default=0.0)
    return bool(kept) and idle > kept


def _chain(body: dict[str, Any], provider: str | None, info: ModelInfo, past: _Past) -> PrefixChain | None:
    """The prompt of a request; None where the request does not hold it whole, or is not one."""
    before = past.sent[-1] if past.sent else None
    if before is not None and (before.model != body.get("model") or len(past.made) > _SPARE * len(before.blocks)):
        past.made.clear()  # another model counts otherwise, and what was rewritten does not come again
    try:
        prompt = read_request(body, provider=provider, counter=counter_for(info), made=past.made)
    except LoomError:
        return None
    return PrefixChain.of(prompt, before)


def _sections(chain: PrefixChain | None) -> dict[str, int]:
    found: dict[str, int] = {}
    if chain is not None:
        start = 0
        for block, end in zip(chain.blocks, chain.ends, strict=True):
            name = _SECTIONS.get(block.level, block.level)
            found[name] = found.get(name, 0) + end - start
            start = end
    return found


def _error_of(call: Call, answer: _Answer) -> str | None:
    if call.error is not None:
        return call.error
    if call.status is not None and call.status >= 400:
        return f"status {call.status}: {answer.error}" if answer.error else f"status {call.status}"
    if not call.is_whole:
        return "given up before it answered" if call.status is None else "given up in the middle of the answer"
    return answer.error


# What is in the bodies: objects, events, usage, and the first words of a conversation.


def _decoded(data: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """A body without its content encoding; empty where it cannot be decoded here, or would fill the memory."""
    kept = [(name, value) for name, value in headers if name.lower() == b"content-encoding"]
    if not kept:
        return data
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in httpx2.Response(200, headers=kept, stream=httpx2.ByteStream(data)).iter_bytes():
            size += len(piece)
            if size > _DECODED_BYTES:
                return b""
            pieces.append(piece)
    except httpx2.DecodingError:
        return b""
    return b"".join(pieces)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _read_answer(call: Call) -> _Answer:
    answer = _Answer()
    if call.size > _REPLY_BYTES:
        answer.error = "the answer is too long to read its usage"
        return answer
    raw = b"".join(call.reply)
    data = _decoded(raw, call.reply_headers)
    encoding = {name.lower(): value for name, value in call.reply_headers}.get(b"content-encoding", b"identity")
    if raw and data in {raw, b""} and encoding != b"identity":
        _log.warning("the usage of an answer in %s cannot be read; %s", encoding.decode("latin-1"), _ENCODINGS)
    for found in _events(data) if _is_stream(call) else [json_object(data)]:
        _take(answer, found)
    return answer


def _is_stream(call: Call) -> bool:
    kind = {name.lower(): value for name, value in call.reply_headers}.get(b"content-type", b"")
    return kind.startswith(b"text/event-stream")


def _reply_of(call: Call) -> bytes:
    """The answer, without its encoding; empty where it is too long to be kept."""
    return _decoded(b"".join(call.reply), call.reply_headers) if call.size <= _REPLY_BYTES else b""


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    """The events of a stream that may say something of usage, of the model or of an error."""
    for line in data.splitlines():
        if line.startswith(b"data:") and (b'"usage"' in line or b'"error"' in line or b'"model"' in line):
            yield json_object(line.removeprefix(b"data:"))


def _take(answer: _Answer, found: dict[str, Any]) -> None:
    """Add what one event, or a whole answer, says. A later count replaces an earlier one."""
    for part in (found, table(found.get("message")), table(found.get("response"))):
        answer.usage |= {name: count for name, count in table(part.get("usage")).items() if count is not None}
        answer.model = answer.model or _text(part.get("model"))
        error = table(part.get("error"))
        if error:
            name = next((n for n in (error.get("type"), error.get("code")) if isinstance(n, str) and n), "")
            answer.error = name if _NAME.fullmatch(name) else "an error"


def _reported(usage: Mapping[str, Any]) -> dict[str, int]:
    """What a provider said of its cache, without what it did not name."""
    details = table(usage.get("input_tokens_details")) or table(usage.get("prompt_tokens_details"))
    split = table(usage.get("cache_creation"))
    read = (usage.get("cache_read_input_tokens"), details.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"))
    write = (usage.get("cache_creation_input_tokens"), details.get("cache_write_tokens"))
    found = {
        "read": next((n for n in read if n is not None), None),
        "write": next((n for n in write if n is not None), None),
        "5m": split.get("ephemeral_5m_input_tokens"),
        "1h": split.get("ephemeral_1h_input_tokens"),
    }
    return {name: max(0, n) for name, n in found.items() if isinstance(n, int) and not isinstance(n, bool)}


def _items(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a request, in whichever format."""
    given = body.get("messages", body.get("input"))
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return tables(given)


def session_of_body(body: bytes) -> str:
    """The conversation of a request that names none."""
    return _session_of(json_object(body))


def _session_of(body: Mapping[str, Any]) -> str:
    """A conversation of its own for each first message of a user, which every later request repeats."""
    first = next((item.get("content") for item in _items(body) if item.get("role") == "user"), None)
    if isinstance(first, str):
        first = [{"text": first}]
    # Markers move from request to request, and a text may stand alone or in a block.
    plain = [{k: v for k, v in part.items() if k not in {"cache_control", "type"}} for part in tables(first)]
    # Claude Code names its session here; a subagent has the same one, and other first words.
    user = _text(table(body.get("metadata")).get("user_id"))
    named = json_object(user).get("session_id") or (found[1] if (found := _SESSION.search(user)) else None)
    text = json.dumps([plain, named] if named else plain, sort_keys=True, ensure_ascii=True)
    return f"proxy-{sha256(text.encode()).hexdigest()[:_SESSION_DIGITS]}"


def _turn(body: Mapping[str, Any]) -> int:
    """How many times the user spoke; the result of a tool is not the user."""
    said = 0
    for item in _items(body):
        parts = tables(item.get("content"))
        results = bool(parts) and all(part.get("type") == "tool_result" for part in parts)
        said += item.get("role") == "user" and not results
    return said
