"""A user's profile: standing instructions, facts and pinned blocks, as text for a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from loom.core.fence import fenced
from loom.core.plain import in_brackets, one_line, plain_text
from loom.core.record import Episode, Fact, WorkingBlock
from loom.memory.entities import Aliases, predicate_key
from loom.memory.standing import Standing, is_standing

STANDING = "Standing preferences and instructions of the user"
FACTS = "Known facts"
PINNED = "Pinned"
_NAME = 120
"""Maximum characters shown of a speaker, a subject, a predicate or a block name."""
GroupedFacts = Mapping[str, Mapping[str, tuple[Fact, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a prompt shows of a user in every turn.

    `facts` are the current facts by subject, then by predicate, standing ones included. `str()` is fenced text for a
    prompt: it contains no time, id or count, so it stays the same until its content changes, and no stored text can
    close its fence or begin a line of its own.
    """

    standing: Standing
    facts: GroupedFacts = field(default_factory=dict[str, Mapping[str, tuple[Fact, ...]]], hash=False)
    blocks: tuple[WorkingBlock, ...] = ()

    def __str__(self) -> str:
        body = "\n\n".join("\n".join([f"{title}:", *lines]) for title, lines in self.groups().items())
        return fenced("memory", body) if body else ""

    def groups(self) -> dict[str, list[str]]:
        """The lines of the text by title; a title without lines is left out."""
        pinned: dict[str, list[str]] = {}
        for block in self.blocks:
            pinned.setdefault(_title(block), []).extend(_indented(block.text))
        standing = [f"- {text}" for item in self.standing.items if (text := one_line(item.text))]
        found = {STANDING: standing, FACTS: self._fact_lines(), **pinned}
        return {title: lines for title, lines in found.items() if lines}

    def _fact_lines(self) -> list[str]:
        lines: list[str] = []
        for subject, predicates in self.facts.items():
            for predicate, facts in predicates.items():
                objects = [one_line(fact.object) for fact in facts if not is_standing(fact)]
                if objects := [object for object in objects if object]:
                    about = f"{one_line(subject, _NAME)} {one_line(predicate.replace('_', ' '), _NAME)}"
                    lines.append(f"- {about}: {', '.join(objects)}")
        return lines


def said_by(episode: Episode) -> str:
    """The speaker as a prompt names it; empty for the user, and for records derived from several."""
    if episode.speaker is None:
        origin = episode.provenance.origin
        return origin if origin in ("tool", "file", "web") else ""
    return "" if episode.speaker == "user" else in_brackets(episode.speaker, _NAME) or "someone"


def grouped(facts: Iterable[Fact]) -> dict[str, dict[str, tuple[Fact, ...]]]:
    """Facts by subject and predicate; all names of one entity are one subject, under the first spelling."""
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


def _title(block: WorkingBlock) -> str:
    """The title of a pinned block, with its author unless that is the user or the operator."""
    origin = block.provenance.origin
    writer = "" if origin in ("user", "operator") else f" by {'the assistant' if origin == 'assistant' else origin}"
    return f"{PINNED}{writer}: {one_line(block.name, _NAME)}"


def _indented(text: str) -> list[str]:
    plain = plain_text(text)
    return [f"  {line}" for line in plain.splitlines()] if plain.strip() else []
