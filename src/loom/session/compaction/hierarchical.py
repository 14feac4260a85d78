"""Keeping the end of a history, and a model's summary of the rest by topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from loom.core.words import query_terms
from loom.errors import ContextOverflow
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.cut import Cut
from loom.session.compaction.summarize import Summarize
from loom.session.compaction.writing import ROLL_UP, SUMMARY, TOPICS, SummaryWriter
from loom.session.rounds import Round, Unit, rounds_of

MAX_TOPICS: Final = 8
_SHARED: Final = 0.2
"""The share of a request's words from which on it goes on with the topic before it."""


class Hierarchical(Summarize):
    """Shows an overall summary of what goes, and below it what each topic came to.

    One request writes both. Where that is too large, it asks about fewer topics at a time and then for a roll-up of
    the answers. Arguments as for Summarize.
    """

    name = "hierarchical"

    async def _summary(self, writer: SummaryWriter, choice: Cut, counter: TokenCounter) -> dict[str, tuple[str, ...]]:
        groups = topics_of(choice.prefix)
        texts = await self._write_topics(writer, groups, counter)
        if len(texts) == 1:
            return {"summary": tuple(texts[0][0].split("\n"))}
        parts = [writer.as_message(text, [item for unit in units for item in unit.items]) for text, units in texts]
        overall = await writer.write(parts, ROLL_UP)
        return {
            "summary": tuple(overall.split("\n")),
            "topics": tuple("\n".join(text for text, _ in texts).split("\n")),
        }

    async def _write_topics(
        self, writer: SummaryWriter, groups: Sequence[Sequence[Unit]], counter: TokenCounter
    ) -> list[tuple[str, Sequence[Unit]]]:
        """Texts about consecutive topics, as few as the requests take, each with what it is about."""
        units = [unit for group in groups for unit in group]
        try:
            history = [item for unit in units for item in unit.items]
            return [(await writer.write(history, TOPICS, topics=len(groups)), units)]
        except ContextOverflow:
            if len(groups) == 1:
                return [(await writer.write_in_steps(units, SUMMARY, counter), units)]
        half = (len(groups) + 1) // 2
        return [
            *await self._write_topics(writer, groups[:half], counter),
            *await self._write_topics(writer, groups[half:], counter),
        ]


def topics_of(units: Sequence[Unit]) -> list[list[Unit]]:
    """Consecutive rounds about the same thing, in at most MAX_TOPICS groups.

    A round goes on with a topic when its request shares words with those before it. Where there are more topics
    than that, the shortest neighbours are joined.
    """
    groups: list[list[Unit]] = []
    known: set[str] = set()
    for found in rounds_of(units):
        terms = _terms(found)
        if not groups or (terms and len(terms & known) < _SHARED * len(terms)):
            groups.append([])
            known = set()
        groups[-1] += found.units
        known |= terms
    while len(groups) > MAX_TOPICS:
        at = min(range(len(groups) - 1), key=lambda n: len(groups[n]) + len(groups[n + 1]))
        groups[at : at + 2] = [groups[at] + groups[at + 1]]
    return groups


def _terms(found: Round) -> set[str]:
    return set(query_terms(found.request.message.text[:2000])) if found.request else set()
