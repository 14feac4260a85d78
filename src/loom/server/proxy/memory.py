"""What memory has on the last message of the user, behind it; and the turn, remembered when it is over.

The text is added once, to the message that it was found for. The program does not know of it and sends its history
without it, so it is put back into every later request, byte by byte, or the cached prompt would be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loom.core.log import Shown
from loom.core.message import Message
from loom.core.scope import Scope
from loom.memory.memory import Memory
from loom.server.proxy.edits import RequestText, TextEdit, json_object, table, tables
from loom.session.config import SessionConfig
from loom.session.memory import MemoryView, SessionMemory, ShownMemory, turn_key
from loom.text.tokens import EstimateCounter

_TEXTS = {"text", "output_text"}


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user said last, under the key of that message."""

    key: str
    message: int
    words: str
    view: MemoryView | None = None


def message_keys(request: RequestText) -> list[str]:
    """A key for each message: its digest, and how often the same one came before it."""
    seen: Counter[str] = Counter()
    keys: list[str] = []
    for digest in request.digests:
        seen[digest] += 1
        keys.append(f"{digest}.{seen[digest]}")
    return keys


def memory_edits(request: RequestText, keys: Sequence[str], known: Mapping[str, str]) -> list[TextEdit]:
    """The changes that bring back what was added to the messages before."""
    return [request.append_text(i, known[key]) for i, key in enumerate(keys) if known.get(key)]


def last_turn(request: RequestText, keys: Sequence[str]) -> Turn | None:
    """The last message of the user."""
    for i in range(len(request.messages) - 1, -1, -1):
        if request.is_users(i) and (words := request.words(i)):
            return Turn(keys[i], i, words)
    return None


class ProxyMemory:
    """The memory of all users, as the proxy reads and writes it."""

    def __init__(self, memory: Memory, budget: int) -> None:
        self._memory, self._budget = memory, budget
        frame = min(80, budget // 4)  # the note, the tags and the titles
        self._config = SessionConfig(recall_budget=(budget - frame) // 2, standing_budget=(budget - frame) // 2)
        self._counter = EstimateCounter()

    def is_of(self, scope: Scope) -> bool:
        """Whether this is the memory of a namespace; a user of the same name in another one is another user."""
        return scope.namespace == self._memory.namespace

    def _of(self, scope: Scope) -> SessionMemory:
        return SessionMemory(self._memory, scope, self._config)

    async def find(
        self, scope: Scope, turn: Turn, keys: Sequence[str], shown: Sequence[str]
    ) -> tuple[str, MemoryView | None]:
        """The text for a turn, within the budget, without what earlier messages show; empty where there is nothing."""
        view = await self._of(scope).view(turn.words, keys)
        earlier = ShownMemory().read([Shown(str(n), Message.user(text)) for n, text in enumerate(shown)])
        text = view.text(earlier)
        return (text, view) if text and self._counter.count(text) <= self._budget else ("", view)

    async def remember(self, scope: Scope, turn: Turn, answer: str) -> None:
        """Keep a turn that is over."""
        await self._of(scope).remember(turn_key(turn.key), turn.words, answer, view=turn.view)


# The answer of the model, from the bytes that went back to the program.


def final_answer(body: bytes, *, is_stream: bool) -> str | None:
    """The text of an answer that ends a turn; None where it calls a tool of the program, or is not one."""
    if is_stream:
        events = [json_object(line[5:]) for line in body.splitlines() if line.startswith(b"data:")]
        return _of_events(events)
    return _of_answer(json_object(body))


def _of_answer(answer: dict[str, Any]) -> str | None:
    choice = _first(answer.get("choices"))
    if choice:
        message = table(choice.get("message"))
        content = message.get("content")
        return content if isinstance(content, str) and content and not message.get("tool_calls") else None
    blocks = tables(answer.get("content"))
    for item in tables(answer.get("output")):
        blocks += tables(item.get("content")) if item.get("type") == "message" else [item]
    if any(block.get("type") in {"tool_use", "function_call", "custom_tool_call"} for block in blocks):
        return None
    texts = [block["text"] for block in blocks if block.get("type") in _TEXTS and isinstance(block.get("text"), str)]
    return "".join(texts) or None


def _of_events(events: Sequence[dict[str, Any]]) -> str | None:
    pieces: list[str] = []
    for event in events:
        kind = event.get("type")
        if kind == "response.completed":
            return _of_answer(table(event.get("response")))
        if kind == "content_block_start" and table(event.get("content_block")).get("type") == "tool_use":
            return None
        delta = table(event.get("delta"))
        choice = _first(event.get("choices"))
        if choice:
            delta = table(choice.get("delta"))
            if delta.get("tool_calls"):
                return None
        piece = delta.get("content") if choice else delta.get("text")
        pieces += [piece] if isinstance(piece, str) else []
    return "".join(pieces) or None


def _first(value: object) -> dict[str, Any]:
    return next(iter(tables(value)), table(None))
