"""A user's profile: what stands, what is known and what is pinned, in a form fit for a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from loom.core.fence import fenced
from loom.core.record import Fact, WorkingBlock
from loom.memory.entities import Aliases, predicate_key
from loom.memory.standing import Standing, is_standing

STANDING = "Standing preferences and instructions of the user"
FACTS = "Known facts"
PINNED = "Pinned"
Grouped = Mapping[str, Mapping[str, tuple[Fact, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is to be shown of a user in every turn.

    `facts` holds the current facts by subject, then by predicate; those that stand are among them. `str()` is fenced
    text for a prompt: it holds no time, id or count, so it is the same until something in it changes, and no stored
    text can close its fence or begin a line of its own.
    """

    standing: Standing
    facts: Grouped = field(default_factory=dict[str, Mapping[str, tuple[Fact, ...]]], hash=False)
    blocks: tuple[WorkingBlock, ...] = ()

    def __str__(self) -> str:
        body = "\n\n".join("\n".join([f"{title}:", *lines]) for title, lines in self.groups().items())
        return fenced("memory", body) if body else ""

    def groups(self) -> dict[str, list[str]]:
        """The lines of the text under their titles; a title without lines is left out."""
        pinned = {f"{PINNED}: {_one_line(b.name)}": _indented(b.text) for b in self.blocks if b.text.strip()}
        found = {STANDING: self._standing_lines(), FACTS: self._fact_lines(), **pinned}
        return {title: lines for title, lines in found.items() if lines}

    def _standing_lines(self) -> list[str]:
        return [f"- {_one_line(item.text)}" for item in self.standing.items]

    def _fact_lines(self) -> list[str]:
        lines: list[str] = []
        for subject, predicates in self.facts.items():
            for predicate, facts in predicates.items():
                objects = [_one_line(fact.object) for fact in facts if not is_standing(fact)]
                if objects:
                    lines.append(f"- {_one_line(subject)} {predicate.replace('_', ' ')}: {', '.join(objects)}")
        return lines


def grouped(facts: Iterable[Fact]) -> dict[str, dict[str, tuple[Fact, ...]]]:
    """Facts by subject and predicate; names of one entity are one subject, under the first of its spellings."""
    current = sorted(facts, key=lambda f: f.id)
    aliases = Aliases.of(current)
    spelled: dict[str, str] = {}
    found: dict[str, dict[str, tuple[Fact, ...]]] = {}
    for fact in current:
        subject = spelled.setdefault(aliases.key(fact.subject), fact.subject)
        predicates = found.setdefault(subject, {})
        predicate = predicate_key(fact.predicate)
        predicates[predicate] = (*predicates.get(predicate, ()), fact)
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
