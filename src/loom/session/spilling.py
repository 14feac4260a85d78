"""Long tool results: the log keeps all of them, the model sees both ends and can read the rest."""

from __future__ import annotations

from typing import Any, Final

from loom.core.checkpoint import LoggedMessage, Replacement
from loom.core.heavy import off_loop
from loom.core.message import JSON, Message, Part, TextPart, ToolResultPart, ToolSpec
from loom.errors import NotFound, UsageError
from loom.protocols.token_counter import TokenCounter
from loom.session.config import SMALLEST_OUTPUT
from loom.session.history import SPILL, History

_NOTICE: Final = SMALLEST_OUTPUT // 2
"""Characters that are set aside for the notice."""
_TOOL: Final = "read_output"
_MATCHES: Final = 20
_LINE: Final = 200
"""Characters of a line that is shown for a match."""


class LongResults:
    """Shortens the results of one session that are longer than `limit` characters, and reads them again.

    Shortening is a rewrite of what is shown, like a compaction: the original stays in the log, is saved, restored and
    forked with it, and the rewrite can be undone.
    """

    def __init__(self, history: History, limit: int, counter: TokenCounter) -> None:
        self._history = history
        self._limit = limit
        self._counter = counter
        fields = {
            "id": {"type": "string", "description": "The id that the shortened result names."},
            "start": {"type": "integer", "minimum": 0, "description": "The first character to read; 0 if left out."},
            "length": {"type": "integer", "minimum": 1, "maximum": self._most, "description": "Characters to read."},
            "find": {"type": "string", "description": "Show where this text stands, instead of reading."},
        }
        schema = {"type": "object", "properties": fields, "required": ["id"], "additionalProperties": False}
        self.spec = ToolSpec(_TOOL, "Read, or search, a tool result that was too long to show whole.", schema)

    @property
    def _most(self) -> int:
        return self._limit - _NOTICE  # so that what it reads is never shortened itself

    async def shorten(self, logged: LoggedMessage) -> None:
        """Show a message of results with the long ones shortened."""
        parts = [self._shortened(part, f"{logged.id}-{n}") for n, part in enumerate(logged.message.parts)]
        short = Message(logged.message.role, tuple(parts))
        if short != logged.message:
            count, both = self._counter.count_part, (logged.message, short)
            chars = sum(len(_text(part)) for part in logged.message.parts)
            before, after = await off_loop(chars // 8, lambda: [sum(map(count, message.parts)) for message in both])
            self._history.rewrite(SPILL, [Replacement((logged.id,), short)], before=before, after=after)

    async def run(self, input: JSON) -> str:
        """A piece of a result, or the places where a text stands in it."""
        given: dict[str, Any] = dict(input) if isinstance(input, dict) else {}  # pyright: ignore[reportUnknownArgumentType]
        id, start, length = given.get("id"), given.get("start", 0), given.get("length", self._most)
        if not isinstance(id, str) or not _is_count(start, 0) or not _is_count(length, 1):
            raise UsageError(f"{_TOOL} takes id (a text), start (0 or more) and length (1 or more), or find (a text)")
        text = self._output(id)
        if given.get("find"):
            return _matches(text, str(given["find"]))
        piece = text[start : start + min(length, self._most)]
        if not piece:
            raise UsageError(f"the result has {len(text):,} characters; start={start} lies behind its end")
        end = start + len(piece)
        return piece + (f"\n[{len(text) - end:,} more characters; start={end} reads on]" if end < len(text) else "")

    def _output(self, id: str) -> str:
        """The whole text of a result of this session."""
        message_id, _, number = id.rpartition("-")
        for entry in self._history.log:
            if isinstance(entry, LoggedMessage) and entry.id == message_id and number.isdigit():
                part = entry.message.parts[int(number)] if int(number) < len(entry.message.parts) else None
                if isinstance(part, ToolResultPart):
                    return _text(part)
        raise NotFound(f"there is no result {id!r} in this conversation; a shortened result names its id")

    def _shortened(self, part: Part, id: str) -> Part:
        text = _text(part)
        if not isinstance(part, ToolResultPart) or len(text) <= self._limit:
            return part
        head = (self._limit - _NOTICE) * 3 // 4
        tail = self._limit - _NOTICE - head
        notice = (
            f"[{len(text) - head - tail:,} of {len(text):,} characters are not shown here. "
            f'{_TOOL}(id="{id}", start={head}) reads on; with find="..." it searches.]'
        )
        shown = TextPart(f"{text[:head]}\n\n{notice}\n\n{text[-tail:]}")
        rest = tuple(piece for piece in part.content if not isinstance(piece, TextPart))
        return ToolResultPart(part.call_id, (shown, *rest), is_error=part.is_error)


def _text(part: Part) -> str:
    """The text of a tool result; empty for any other part."""
    pieces = part.content if isinstance(part, ToolResultPart) else ()
    return "\n".join(piece.text for piece in pieces if isinstance(piece, TextPart))


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _matches(text: str, wanted: str) -> str:
    """The places of a text, letter case aside, each with its line."""
    folded, target = text.lower(), wanted.lower()
    found: list[str] = []
    place = folded.find(target)
    while place >= 0 and len(found) < _MATCHES:
        begin = max(text.rfind("\n", 0, place) + 1, place - _LINE // 2)
        line = text[begin : begin + _LINE].split("\n", maxsplit=1)[0]
        found.append(f"{place}: {line}")
        place = folded.find(target, place + len(target))
    if not found:
        return f"{wanted!r} does not stand in it."
    more = "\n[there are more]" if place >= 0 else ""
    return "\n".join(found) + more
