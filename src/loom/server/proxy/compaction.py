"""Old turns of a long conversation, replaced by a summary that says so. No model is asked.

The summary is Loom's own snapshot: what was asked, decided, touched, called, and what failed. It is made once and
stays the same, byte by byte, until the next one, which covers it too. A call of a tool and its result go or stay
together, the current request stays as the user wrote it, and the messages that go are stored before the summary is
sent. Each model has its own cache, so a compaction counts for the model that it was made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, cast

from loom.catalog import CacheRules
from loom.core.log import Shown
from loom.core.message import Message
from loom.core.window import PrefixChain
from loom.errors import LoomError
from loom.protocols.token_counter import TokenCounter
from loom.server.proxy.edits import RequestText, TextEdit, quoted
from loom.server.proxy.tool_results import session_digest
from loom.session.compaction.strategies import snapshot_of
from loom.session.compaction.summary_message import fit

_SUMMARY_TOKENS: Final = 1_000
_THINKING: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})
_KEPT: Final = 0.25
"""The share of the budget that the newest messages may keep."""


@dataclass(frozen=True, slots=True)
class CompactedPrefix:
    """The first messages of a conversation, and the text that is sent in their place."""

    id: str
    model: str
    first: int
    """The first message that it replaces: those of the system, where they are messages, stay."""
    end: int
    """The first message behind it."""
    digest: str
    """Of the messages that it replaces."""
    request: int | None
    """The one among them that stays, as it is the current request."""
    text: str


def prefix_digest(digests: Sequence[str]) -> str:
    """The digest of messages in order."""
    return sha256("".join(digests).encode()).hexdigest()[:32]


def stored_compaction(digests: Sequence[str], model: str, known: Sequence[CompactedPrefix]) -> CompactedPrefix | None:
    """The newest compaction of this model whose messages the request begins with."""
    for one in reversed(known):
        fits = one.model == model and one.end < len(digests)
        if fits and prefix_digest(digests[one.first : one.end]) == one.digest:
            return one
    return None


def compaction_edit(request: RequestText, one: CompactedPrefix, edits: Sequence[TextEdit]) -> list[TextEdit]:
    """The edits of a request whose first messages are replaced; those inside them go with them."""
    kind = "input_text" if request.wire == "responses" else "text"
    messages = [f'{{"role":"user","content":[{{"type":"{kind}","text":{quoted(one.text)}}}]}}']
    if one.request is not None:
        node = request.messages[one.request]
        messages.append(request.slice(node.start, node.end, edits))
    edit = request.replace_messages(one.first, one.end, messages)
    return [edit, *(other for other in edits if other.start >= edit.end or other.end <= edit.start)]


def new_compaction(
    request: RequestText, chain: PrefixChain, *, model: str, session_id: str, budget: int, counter: TokenCounter
) -> tuple[CompactedPrefix | None, str]:
    """A compaction of a request that is over its budget, or why there can be none."""
    first = next((i for i in range(len(request.messages)) if not _is_opening(request, i)), 0)
    cut = _cut_of(request, first, message_sizes(chain, len(request.messages)), int(budget * _KEPT))
    if cut is None:
        return None, "there is no place to cut: calls stay with their results, and reasoning with what came before it"
    if any(_is_opening(request, i) for i in range(first, cut)):
        return None, "instructions of the program stand among the old messages"
    current = max((i for i in range(len(request.messages)) if request.is_users(i)), default=None)
    kept_request = current if current is not None and first <= current < cut else None
    shown = [_shown(request, i) for i in range(first, cut) if i != kept_request]
    record = fit(snapshot_of([one for one in shown if one]), _SUMMARY_TOKENS, counter)
    if record is None:
        return None, "not even the frame of a summary fits"
    text, digest = record.message.text, prefix_digest(request.digests[first:cut])
    id = sha256(f"{digest}{model}{text}".encode()).hexdigest()[:12]
    return CompactedPrefix(session_digest(session_id) + id, model, first, cut, digest, kept_request, text), ""


def is_sure_to_pay(one: CompactedPrefix, direct: PrefixChain, ours: PrefixChain, rules: CacheRules) -> bool:
    """Whether the summary costs less than the messages it replaces in every later request, whatever is cached then."""
    covered = sum(message_sizes(direct, one.end)[one.first :])
    last = one.first + (1 if one.request is None else 2)
    summary = sum(message_sizes(ours, last)[one.first :])
    behind = max((i + 1 for i, b in enumerate(ours.blocks) if (message_number(b.path) or 0) < last), default=0)
    short = 0 if ours.tokens_of(behind) >= rules.min_prefix else rules.min_prefix
    most = max(rules.write.values(), default=1.0)
    return summary * most + short + (1 - rules.read) * rules.grid <= covered * rules.read


def message_sizes(chain: PrefixChain, count: int) -> list[int]:
    """Tokens of each message of a request."""
    sizes = [0] * count
    before = 0
    for block, end in zip(chain.blocks, chain.ends, strict=True):
        number = message_number(block.path)
        if number is not None and number < count:
            sizes[number] += end - before
        before = end
    return sizes


def message_number(path: str) -> int | None:
    """The number of the message that a block is in; None for tools, system and instructions."""
    name, _, rest = path.partition("[")
    if name in {"messages", "input"}:
        return int(rest.partition("]")[0]) if rest else 0
    return None


def _cut_of(request: RequestText, first: int, sizes: Sequence[int], most: int) -> int | None:
    """The first message that stays: as many of the newest as `most` tokens hold, and a place where nothing is split."""
    parts = _parted_calls(request)
    best: int | None = None
    kept = 0
    for i in range(len(request.messages) - 1, first, -1):
        kept += sizes[i]
        if _thinks(request, i) or (kept > most and best is not None):
            break
        if not parts[i]:
            best = i
    return best


def _is_opening(request: RequestText, i: int) -> bool:
    return request.messages[i].value.get("role") in {"system", "developer"}


def _parted_calls(request: RequestText) -> list[bool]:
    """For each message, whether a cut before it would part a call from its result."""
    blocks = [_blocks(message.value) for message in request.messages]
    results = [{id for block in found if (id := _result_of(block))} for found in blocks]
    answered = set[str]().union(*results)
    open_calls: set[str] = set()
    parts: list[bool] = []
    for found, done in zip(blocks, results, strict=True):
        parts.append(bool(open_calls))
        open_calls |= {id for b in found for id in (b.get("call_id"), b.get("id")) if isinstance(id, str)} & answered
        open_calls -= done
    return parts


def _result_of(block: dict[str, Any]) -> str:
    """The id of the call that a block is the result of; empty where it is not one."""
    is_output = str(block.get("type")).endswith("_output")
    id = block.get("tool_use_id") or block.get("tool_call_id") or (block.get("call_id") if is_output else None)
    return id if isinstance(id, str) else ""


def _blocks(value: dict[str, Any]) -> list[dict[str, Any]]:
    content, calls = value.get("content"), value.get("tool_calls")
    blocks = [*(cast("list[Any]", content) if isinstance(content, list) else [])]
    blocks += cast("list[Any]", calls) if isinstance(calls, list) else []
    return [value, *(block for block in blocks if isinstance(block, dict))]


def _thinks(request: RequestText, i: int) -> bool:
    return any(block.get("type") in _THINKING for block in _blocks(request.messages[i].value))


def _shown(request: RequestText, i: int) -> Shown | None:
    """A message as Loom reads it; None where it has a form that no summary needs."""
    value = request.messages[i].value
    try:
        read = Message.from_anthropic if request.wire == "messages" else Message.from_openai
        return Shown(str(i), read(value))
    except LoomError:
        return None
