"""Topics of instructions, and which instructions contradict each other: pure rules over their words.

Two instructions on one topic compete, and the later one wins. A topic with one value at a time (the language of
answers, their length) is its own name, so any two values compete; a prohibition has the value in its name too, because
forbidding one language says nothing about another. For every other instruction all words except `always` and `never`
are the topic, so only its own negation competes with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from loom.core.words import query_terms
from loom.memory.extract.phrases import LANGUAGE

PREFIX: Final = "instruction_"
"""Prefix of the predicates of instructions; the topic follows."""

_LEAD: Final = re.compile(
    r"(?:(?P<no>never|do not|don['\u2019]t|stop|no longer|no more|avoid|not|refrain from"
    r"|(?:you )?(?:must not|mustn['\u2019]t|should not|shouldn['\u2019]t))"
    r"|please|always|ever|kindly|just|so|and|but|also|from now on|going forward|from here on|in (?:the )?future"
    r"|remember(?: to| that)?|note that|make sure (?:to|that you|you)|be sure to"
    r"|you (?:should|must|need to|have to|can|may)|i(?:['\u2019]d| would)? (?:want|like|need) you to)\b[,:]?\s*",
    re.IGNORECASE,
)
_TRAIL: Final = re.compile(
    r"[,\s](?:please|any ?more|again|ever|at all|from now on|going forward|in (?:the )?future)$", re.IGNORECASE
)
_LONGEST_TRAIL: Final = len(" in the future")
_SAYS: Final = r"(?:answer|reply|respond|speak|talk|write|communicate)(?:ing)?"
_SAID: Final = r"(?:it|them|(?:your |the |all )*(?:answers|replies|responses|messages|explanations))"
_MAKES: Final = rf"(?:be|keep {_SAID}|make {_SAID}|give me|give|write|use|{_SAYS})"
_SHORT: Final = r"(?:short|brief|concise|terse|succinct|to the point)"
_LONG: Final = r"(?:long|detailed|thorough|verbose|in-depth|lengthy)"
_VALUED: Final = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("language", rf"(?:{_SAYS}\b(?: \w+){{0,3}} in|use|speak) (?P<value>{LANGUAGE})"),
        ("length", rf"{_MAKES}(?: \w+)? (?:(?P<short>{_SHORT})|(?P<long>{_LONG}))(?: {_SAID})?"),
        ("units", r"use (?:the )?(?P<value>metric|imperial)(?: \w+)?"),
        ("temperature", r"(?:use|give \w+ in|show \w+ in|convert \w+ to) (?:degrees )?(?P<value>celsius|fahrenheit)"),
        ("tone", r"(?:be (?:more )?|use an? )(?P<value>formal|informal|casual)(?: (?:tone|language|style))?"),
        ("name", r"(?:call|address) me (?:as )?(?-i:(?P<value>[A-Z][\w'-]*(?: [A-Z][\w'-]*)*))"),
    )
)
_BOUND: Final = re.compile(r"^(?=.+\Z)(?P<what>.+ (?:before|after|until|later than|earlier than)) \d.*", re.IGNORECASE)
"""An instruction with a time or number as bound: another bound replaces it."""
_CHOICE: Final = re.compile(r"^(?=.+\Z)(?P<this>.+?) (?:over|to|rather than|instead of) (?P<that>.+)", re.IGNORECASE)
_ALTERNATIVES: Final = tuple(
    frozenset(query_terms(group))
    for group in (
        "dark light",
        "tea coffee espresso cappuccino latte matcha cocoa decaf",
        "beer wine cider",
        "red white rose",
        "window aisle middle",
        "email emails mail phone call calls text texts sms chat slack video letter",
        "metric imperial",
        "celsius fahrenheit",
        "tabs spaces",
        "vim neovim emacs nano vscode code pycharm intellij sublime zed",
        "chrome firefox safari edge brave",
        "mac macos windows linux",
        "android iphone ios",
        "morning mornings afternoon afternoons evening evenings night nights",
        "train trains plane planes flying car driving bus buses bike cycling",
        "short long brief detailed concise verbose",
        "formal informal casual",
        "summer winter spring autumn fall",
        "hot cold iced warm",
        "sweet savoury savory salty",
        "cat cats dog dogs",
        "paper digital ebook ebooks",
        "card cash",
    )
)
"""Groups of which people prefer one. Words that can both be preferred are not listed."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The topic of an instruction. `value` is set if the topic takes one value at a time."""

    name: str
    value: str | None
    is_forbidden: bool

    @property
    def predicate(self) -> str:
        """The predicate under which the instruction competes with others."""
        return f"{PREFIX}{self.name}" + (f"_not_{self.value}" if self.value and self.is_forbidden else "")


def topic_of(text: str) -> Topic | None:
    """The topic of an instruction; None if it has no words."""
    action, is_forbidden = " ".join(text.split()).strip(" .!,;:"), False
    start, end = 0, len(action)
    while lead := _LEAD.match(action, start):
        is_forbidden ^= lead["no"] is not None
        start = lead.end()
    while trail := _TRAIL.search(action, max(start, end - _LONGEST_TRAIL), end):
        end = trail.start()
        while end > start and action[end - 1] in " ,":
            end -= 1
    action = action[start:end]
    for name, pattern in _VALUED:
        if found := pattern.fullmatch(action):
            groups = {key: value for key, value in found.groupdict().items() if value}
            ((key, value),) = groups.items()
            return Topic(name, value.casefold() if key == "value" else key, is_forbidden)
    bound = _BOUND.fullmatch(action)
    words = (*query_terms(bound["what"]), bound["what"].split()[-1].lower()) if bound else query_terms(action)
    return Topic("_".join(words), None, is_forbidden) if words else None


def contradict(one: str, other: str) -> bool:
    """Whether two instructions with different predicates conflict: one forbids what the other demands."""
    first, second = topic_of(one), topic_of(other)
    return (
        first is not None
        and second is not None
        and first.value is not None
        and (first.name, first.value) == (second.name, second.value)
        and first.is_forbidden != second.is_forbidden
    )


def compete(one: str, other: str, *, changed: bool = False) -> bool:
    """Whether two preferences, or two things in use, exclude each other, so that the later one replaces the other.

    They do if they are alternatives, or two versions of one thing. If the text says that something changed, being of
    one kind is enough: dark mode and sepia mode.
    """
    (first, beside), (second, besides) = _choice(one), _choice(other)
    if first == second:
        return False
    if first == besides or beside == second:
        return True
    only, only_other = set(first) - set(second), set(second) - set(first)
    if not only or not only_other:
        return False
    if any(only <= group and only_other <= group for group in _ALTERNATIVES):
        return True
    is_version = all(word.isdigit() for word in only | only_other)
    is_kind = changed and first[-1:] == second[-1:] and max(len(only), len(only_other)) <= 2
    return is_kind or (is_version and first[:1] == second[:1])


def _choice(text: str) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """The terms of what is preferred, and of what it is preferred to."""
    found = _CHOICE.fullmatch(text)
    return (query_terms(found["this"]), query_terms(found["that"])) if found else (query_terms(text), None)
