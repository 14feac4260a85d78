"""Skill matching: the skills a message asks for, and the tools allowed while they are active."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

from loom.context.skills import Skill
from loom.context.trigger import TriggerPattern
from loom.core.message import ToolCallPart
from loom.core.words import query_terms, tokens
from loom.errors import UsageError

MAX_MESSAGE = 4_000
"""Characters of a message that are looked at: the request is at its beginning."""
MIN_SHARED = 3
"""Content words that a message must share with a description to match by it."""


@dataclass(frozen=True, slots=True)
class SkillMatch:
    """A skill that a message asks for."""

    skill: Skill
    confidence: float
    """1 is certain: the user wrote its name as a command."""
    why: str


class SkillMatcher:
    """Finds the skills that a message of the user asks for.

    In order of confidence: a command such as `/commit` (1.0 where the message starts with it, else 0.95), a
    message that is nothing but a trigger (1.0), a message that starts with one (0.9), a trigger anywhere as a
    word of its own (0.8), a regular expression (0.8), and a description that shares most of the content words of
    the message (at most 0.6). Where a skill has regular expressions, they alone decide: neither its name as a command
    nor its description activates it.
    """

    def __init__(self, skills: Iterable[Skill], *, min_overlap: float | None = 0.6) -> None:
        """Prepare the matching.

        Args:
            skills: the skills; a name may come once.
            min_overlap: the share of the content words of a message that a description must have; None does not
                look at descriptions.
        """
        if min_overlap is not None and not 0 < min_overlap <= 1:
            raise UsageError(f"min_overlap={min_overlap!r} is not a share; give a number above 0 and up to 1, or None")
        self._skills = sorted(skills, key=lambda skill: skill.name)
        repeated = [name for name, count in Counter(s.name for s in self._skills).items() if count > 1]
        if repeated:
            raise UsageError(f"two skills have the name {repeated[0]!r}; a command could mean either: rename one")
        self._min_overlap = min_overlap
        self._rules = {skill.name: _Rules(skill) for skill in self._skills}
        seen = Counter(term for rules in self._rules.values() for term in rules.terms)
        # A word that several skills use tells none of them apart.
        self._terms = {name: {t for t in r.terms if seen[t] == 1} for name, r in self._rules.items()}

    def match(self, message: str) -> list[SkillMatch]:
        """Every skill that a message asks for, the surest first; of equal ones by name."""
        text = message[:MAX_MESSAGE].strip()
        wanted = frozenset(query_terms(text))
        found: list[SkillMatch] = []
        for skill in self._skills:
            confidence, why = self._rules[skill.name].match(text)
            if not why and not skill.user_only and not _has_patterns(skill):
                confidence, why = self._overlap(skill, wanted)
            if why:
                found.append(SkillMatch(skill, confidence, why))
        return sorted(found, key=lambda match: -match.confidence)

    def best(self, message: str) -> SkillMatch | None:
        """The surest match, or None."""
        return next(iter(self.match(message)), None)

    def _overlap(self, skill: Skill, wanted: frozenset[str]) -> tuple[float, str]:
        if self._min_overlap is None or not wanted:
            return 0.0, ""
        shared = sorted(wanted & self._terms[skill.name])
        share = len(shared) / len(wanted)
        if len(shared) < MIN_SHARED or share < self._min_overlap:
            return 0.0, ""
        return round(0.6 * share, 3), f"its description shares {', '.join(shared)} with the message"


class _Rules:
    """The compiled activation rules of one skill."""

    def __init__(self, skill: Skill) -> None:
        phrases = () if skill.trigger_is_regex else skill.triggers
        self.terms = frozenset(query_terms(skill.description))
        commands = [] if _has_patterns(skill) else [skill.name, *(t for t in phrases if not re.search(r"\s", t))]
        self._commands = [(c, re.compile(rf"(?<!\S)/{re.escape(c)}(?![\w/-]|\.\w)", re.IGNORECASE)) for c in commands]
        self._phrases = () if skill.user_only else tuple((t, _phrase(t)) for t in phrases)
        regex = skill.triggers if skill.trigger_is_regex else ()
        self._patterns = [(trigger, TriggerPattern(trigger)) for trigger in regex]

    def match(self, text: str) -> tuple[float, str]:
        """How sure it is that the user names this skill, and how; an empty reason means no match."""
        for command, pattern in self._commands:
            if found := pattern.search(text):
                return (0.95 if found.start() else 1.0), f"the message says /{command}"
        sure = 0.0, ""
        for phrase, pattern in self._phrases:
            if found := pattern.search(text):
                share = 1.0 if found[0] == text else 0.8 if found.start() else 0.9
                sure = max(sure, (share, f"the message says {phrase!r}"), key=lambda rule: rule[0])
        if sure[1]:
            return sure
        hit = next((trigger for trigger, pattern in self._patterns if pattern.search(text)), None)
        return (0.8, f"the message fits the pattern {hit!r}") if hit is not None else (0.0, "")


def _has_patterns(skill: Skill) -> bool:
    return skill.trigger_is_regex and bool(skill.triggers)


def _phrase(trigger: str) -> re.Pattern[str]:
    """A trigger as words of their own, whatever the case and the spaces between them."""
    words = r"\s+".join(map(re.escape, trigger.split()))
    first, last = trigger.strip()[0], trigger.strip()[-1]
    before = "" if _is_unspaced(first) else r"(?<!\w)"
    after = "" if _is_unspaced(last) else r"(?!\w)"
    return re.compile(f"{before}{words}{after}", re.IGNORECASE)


def _is_unspaced(char: str) -> bool:
    """Whether a character is of a script without spaces: its runs are cut into pairs, so three make two."""
    return len(tokens(char * 3)) > 1


# -- tools ---------------------------------------------------------------------------------------------------


def tool_refusal(call: ToolCallPart, active: Sequence[Skill]) -> str | None:
    """Why a tool may not run while these skills are active, as a text for the model; None if it may.

    The tools that may run are those that any active skill names. A skill that names none neither allows nor
    forbids. The list of tools in the request stays as it is: changing it would cost the whole prefix.
    `Bash(git:*)` allows a call whose every text argument is `git` or starts with `git `; any other pattern in
    parentheses has to fit every text argument, `*` standing for anything. What joins shell commands or climbs out
    of a folder fits no pattern. This limits a model that means well; it is not a sandbox.
    """
    limits = [skill for skill in active if skill.allowed_tools is not None]
    rules = [rule for skill in limits for rule in skill.allowed_tools or ()]
    if not limits or any(_allows(rule, call) for rule in rules):
        return None
    names = ", ".join(skill.name for skill in limits)
    allowed = f"These are allowed: {', '.join(dict.fromkeys(rules))}" if rules else "No tool is allowed"
    return f"The tool {call.name} was not run: the active skill {names} does not allow this call. {allowed}."


_ESCAPES = re.compile(r"[;&|<>`\n\r]|\$[({]|(?:^|[/\\])\.\.(?:$|[/\\])")
"""What lets one shell command start or feed another, and what leads out of a folder."""


def _allows(rule: str, call: ToolCallPart) -> bool:
    name, _, pattern = rule.partition("(")
    if name != call.name:
        return False
    pattern = pattern.removesuffix(")")
    texts = _texts(call.arguments)
    return not pattern or (bool(texts) and all(_fits(text, pattern) for text in texts))


def _fits(text: str, pattern: str) -> bool:
    if _ESCAPES.search(text):
        return False
    if pattern.endswith(":*"):
        start = pattern.removesuffix(":*")
        return text == start or text.startswith(f"{start} ")
    return fnmatchcase(text, pattern)


def _texts(value: Any) -> list[str]:
    """Every text in an argument, however deep: leaving one out would let it pass unseen."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in cast("dict[str, Any]", value).values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in cast("list[Any]", value) for text in _texts(item)]
    return []
