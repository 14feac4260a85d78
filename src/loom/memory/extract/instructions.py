"""Finds standing instructions by rules: what the assistant shall do always, never, or from now on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

INSTRUCTION: Final = "instruction"
"""The predicate of a claim whose object is an instruction, in the words of the text."""

_VERBS: Final = (
    "add address answer apologise apologize ask assume avoid be book bring buy call check cite comment confirm contact "
    "convert cut delete deploy discuss document double-check email end explain format give greet highlight include "
    "indent interrupt keep leave list make mention message notify number offer omit order phone ping print provide "
    "push quote read recommend refer remind repeat reply respond reveal round run schedule send share show sign skip "
    "sort speak spell start structure suggest summarise summarize talk tell text translate treat use wait wake write"
).replace(" ", "|")
_POLITE: Final = r"(?:(?:please|so|and|but|also|ok|okay|remember(?: to| that|:)?|note that),? )*+"
_TELLS: Final = r"(?:(?:you (?:should|must|need to|have to)|i(?:['\u2019]d| would)? (?:want|like|need) you to) )?"
_FROM_NOW: Final = r"(?:from now on|going forward|from here on|in (?:the )?future)"
_DONT: Final = r"(?:do not|don['\u2019]t)"
_INSTRUCTION: Final = re.compile(
    rf"^{_POLITE}(?:"
    rf"(?:{_FROM_NOW},? {_POLITE})?{_TELLS}(?:always|never) (?:ever )?(?:{_VERBS})\b"
    rf"|{_FROM_NOW},? {_POLITE}{_TELLS}(?:{_DONT} )?(?:{_VERBS})\b"
    rf"|{_DONT} ever (?:{_VERBS})\b"
    r"|no (?:[\w'-]+ ){1,5}(?:from now on|going forward|any ?more|ever again)$"
    rf"|(?:{_DONT} )?(?:{_VERBS})\b.+ (?:from now on|going forward|any ?more|ever again)$"
    r"|stop (?!it\b|that\b|this\b)\w+ing\b"
    r")",
    re.IGNORECASE,
)
_JOINED: Final = re.compile(
    rf" ?(?:;|,(?: and| but)?| and| but) (?=(?:please )?(?:always|never|{_DONT} ever|stop)\b)", re.IGNORECASE
)
_LIMITED: Final = re.compile(
    r"\?|[\"\u201c\u201d\u00ab\u00bb]|\b(?:say never|if|unless|today|tonight|tomorrow|for now|this time|once|"
    r"here|the following|below|above|next|this (?:one|text|email|message|function|file|question)|said|says"
    r"|told|wrote)\b|\b(?:that|this|it)\W*$",
    re.IGNORECASE,
)
"""A question, a quotation, a condition, or a one-time request: not standing, or not certain enough."""


_THANKS: Final = r"(?:many thanks|thanks|thank you|thx|cheers)(?: (?:a lot|so much|very much|again|in advance))?"
_WELL: Final = r"(?:ok|okay|great|perfect|good|nice|cool|alright|all right|sure|yes|yeah|sorry|got it|i see)"
_COURTESY: Final = rf"(?:(?:hi|hello|hey)(?: (?:there|again|assistant|bot))?|{_THANKS}|{_WELL}|please|by the way|btw)"
_IN_FRONT: Final = re.compile(rf"^(?:{_COURTESY}[,!.]? )++(?=\S)", re.IGNORECASE)
_BEHIND: Final = re.compile(rf",? {_THANKS}$|, please$", re.IGNORECASE)
_ONLY_COURTESY: Final = re.compile(rf"{_COURTESY}(?:,? {_COURTESY})*+", re.IGNORECASE)
_PICTURES: Final = re.compile("[\u2600-\u27bf\U0001f000-\U0001faff\ufe0f\u200d]+")
_ENDS: Final = " \t.!,;:()"


def instructions_in(sentence: str) -> Iterator[str]:
    """The standing instructions of one sentence, each in its own words."""
    return (clause for clause in clauses_in(sentence) if is_instruction(clause) and not is_limited(sentence))


def clauses_in(sentence: str) -> Iterator[str]:
    """The clauses of a sentence to the assistant, without courtesies."""
    bare = " ".join(_PICTURES.sub(" ", sentence).split()).strip(_ENDS)
    if _ONLY_COURTESY.fullmatch(bare):
        return
    bare = _BEHIND.sub("", bare)
    for clause in _JOINED.split(bare if _INSTRUCTION.match(bare) else _IN_FRONT.sub("", bare)):
        if plain := clause.strip(_ENDS):
            yield plain


def is_instruction(clause: str) -> bool:
    """Whether a clause is an instruction for always, never, or from now on."""
    return not is_limited(clause) and _INSTRUCTION.match(clause) is not None


def is_limited(sentence: str) -> bool:
    """Whether a sentence is a question, a quotation, a condition or a one-time request."""
    return _LIMITED.search(sentence) is not None
