"""Replaces old tool results by one line each: the call, the size of its result, and its beginning."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from loom.core.checkpoint import Replacement, Shown
from loom.core.message import Part, TextPart, ToolCallPart, ToolResultPart, plain
from loom.errors import CannotCompact
from loom.protocols.compactor import Rewrite
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.config import ClearToolsOptions
from loom.session.compaction.cut import describe, is_within, one_line, rewritten, shown_tokens
from loom.session.history import current_request


class ClearTools:
    """Clears the results of old tool calls, all at once: every clearing costs the cached prefix behind it.

    A result is cleared where its line takes at most half of it. Calls, ids and error marks are untouched, and the
    model can call again. Asks no model.

    Args:
        options: which results stay.
        binds_thinking: whether the model refuses thinking whose past was edited.
    """

    name = "clear_tools"

    def __init__(self, options: ClearToolsOptions | None = None, *, binds_thinking: bool = True) -> None:
        self._options = options or ClearToolsOptions()
        self._binds_thinking = binds_thinking

    async def compact(
        self, shown: Sequence[Shown], *, target: int, counter: TokenCounter, keep: AbstractSet[str] = frozenset()
    ) -> Rewrite:
        """A rewrite that brings `shown` down to `target` tokens by clearing alone."""
        if is_within(shown, target, counter):
            return Rewrite(replacements=())
        request = current_request(shown)
        untouched = keep if request is None else {*keep, request.id}
        found = self._cleared(shown, counter, untouched)
        rewrite = rewritten(shown, found, keep=untouched, binds_thinking=self._binds_thinking)
        left = shown_tokens(shown, counter) - _saved(shown, rewrite, counter)
        if left > target:
            raise CannotCompact(
                f"clearing {len(found)} messages with tool results leaves {left:,} tokens and the target is "
                f"{target:,}; use a strategy that cuts, such as summarize"
            )
        return rewrite

    def _cleared(
        self, shown: Sequence[Shown], counter: TokenCounter, untouched: AbstractSet[str]
    ) -> dict[str, Replacement]:
        calls: dict[str, ToolCallPart] = {}
        spared = self._newest(shown)
        found: dict[str, Replacement] = {}
        for place, item in enumerate(shown):
            parts: list[Part] = []
            for number, part in enumerate(item.message.parts):
                if isinstance(part, ToolCallPart):
                    calls[part.id] = part
                if isinstance(part, ToolResultPart) and (place, number) not in spared:
                    parts.append(self._line(part, calls.get(part.call_id), counter))
                else:
                    parts.append(part)
            if tuple(parts) != item.message.parts and item.id not in untouched:
                found[item.id] = Replacement((item.id,), replace(item.message, parts=tuple(parts)))
        return found

    def _newest(self, shown: Sequence[Shown]) -> set[tuple[int, int]]:
        """The places of the newest results, and of all that the model has not seen yet."""
        places = [
            (place, number)
            for place, item in enumerate(shown)
            for number, part in enumerate(item.message.parts)
            if isinstance(part, ToolResultPart)
        ]
        answered = max((n for n, item in enumerate(shown) if item.message.role == "assistant"), default=-1)
        return {*places[max(0, len(places) - self._options.keep) :], *(at for at in places if at[0] > answered)}

    def _line(self, result: ToolResultPart, call: ToolCallPart | None, counter: TokenCounter) -> ToolResultPart:
        """The result as one line, or as it is where that would save too little."""
        size = counter.count_part(result)
        if call is None or call.name in self._options.exclude or size < self._options.min_tokens:
            return result
        text = "\n".join(plain(part) for part in result.content)
        line = (
            f"[The result of {describe(call)} was cleared: {len(text):,} characters, about {size:,} tokens. It began: "
            f"{one_line(text, 150)} Call again if it is needed.]"
        )
        cleared = replace(result, content=(TextPart(line),))
        return cleared if 2 * counter.count_part(cleared) <= size else result


def _saved(shown: Sequence[Shown], rewrite: Rewrite, counter: TokenCounter) -> int:
    covered = rewrite.covered
    before = sum(counter.count_part(p) for item in shown if item.id in covered for p in item.message.parts)
    after = sum(counter.count_part(p) for r in rewrite.replacements if r.message for p in r.message.parts)
    return before - after
