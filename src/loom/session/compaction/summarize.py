"""Keeping the end of a history, and a model's summary of the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Unpack

from loom.core.heavy import off_loop
from loom.core.message import Usage
from loom.errors import BadResponse, CannotCompact, UsageError
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.ask import Ask
from loom.session.compaction.coverage import facts_lines
from loom.session.compaction.cut import Cut, CutOptions, Cutter, message_tokens, shown_tokens
from loom.session.compaction.facts import chars_of
from loom.session.compaction.record import Record, fit, originals_in
from loom.session.compaction.writing import SUMMARY, SummaryWriter

_MIN_OUTPUT: Final = 64
"""Tokens below which a summary would say nothing."""


class Summarize(Cutter):
    """Shows one summary of what goes; an earlier summary is part of what is summarised, so they never stack.

    The paths and numbers that the summary leaves out are listed below it, as far as they fit.

    Args:
        ask: asks the model that writes it.
        max_output: the most tokens a summary takes.
        facts: the most tokens the list of paths and numbers takes.
        options: see CutOptions.
    """

    name = "summarize"
    reserve = 4096

    def __init__(self, ask: Ask, *, max_output: int = 4096, facts: int = 800, **options: Unpack[CutOptions]) -> None:
        if max_output < _MIN_OUTPUT or facts < 0:
            raise UsageError(f"max_output={max_output}, facts={facts}; give at least {_MIN_OUTPUT} and 0 tokens")
        super().__init__(**options)
        self._ask, self._max_output, self._facts = ask, max_output, facts

    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[Record | None, Usage]:
        dropped = choice.dropped
        bare = Record(self.name, originals_in(dropped), {})
        limit = min(choice.room, shown_tokens(dropped, counter) - 1)
        # The provider counts the answer by its own rules: what our counter may be off is left free.
        output = int((limit - message_tokens(bare.message, counter)) / (1 + counter.error))
        if output < _MIN_OUTPUT:
            raise CannotCompact(
                f"{max(0, output)} tokens are left for a summary, at least {_MIN_OUTPUT} are needed; retain less, or "
                f"use truncate"
            )
        writer = SummaryWriter(self._ask, max_output=min(output, self._max_output), strategy=self.name)
        parts = await self._summary(writer, choice, counter)
        summary = Record(self.name, bare.messages, {"summary": parts["summary"]})
        size = message_tokens(summary.message, counter)
        if size > limit:
            raise BadResponse(
                f"the summary of {bare.messages} messages has {size:,} tokens; {limit:,} is what it may have to be "
                f"shorter than what it replaces, and to fit"
            )
        text = "\n".join(parts["summary"])
        facts = await off_loop(chars_of(dropped), lambda: facts_lines([item.message for item in dropped], text))
        with_facts = replace(summary, parts={**summary.parts, **facts})
        listed = fit(with_facts, min(limit, size + self._facts), counter) or summary
        return fit(replace(listed, parts={**listed.parts, **parts}), limit, counter), writer.usage

    async def _summary(self, writer: SummaryWriter, choice: Cut, counter: TokenCounter) -> dict[str, tuple[str, ...]]:
        """The texts of the record, by part; `summary` is always there."""
        text = await writer.write_in_steps(choice.prefix, SUMMARY, counter)
        return {"summary": tuple(text.split("\n"))}
