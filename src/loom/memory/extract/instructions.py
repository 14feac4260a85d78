"""Finding standing instructions by rules: what the assistant is told to do always, never, or from now on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

INSTRUCTION: Final = "instruction"
"""The predicate of a claim whose object is an instruction, in the words of the text."""

_VERBS: Final = (
    "add address answer ask assume avoid be book bring buy call check cite confirm contact convert cut delete deploy "
    "discuss email end explain format give greet include interrupt keep leave list make mention message notify offer "
    "omit order phone ping provide push quote read recommend refer remind reply respond reveal round run schedule send "
    "share show sign skip speak spell start suggest summarise summarize talk tell text translate use wait wake write"
).replace(" ", "|")
_POLITE: Final = r"(?:(?:please|so|and|but|also|ok|okay|remember(?: to| that|:)?|note that),? )*"
_TELLS: Final = r"(?:(?:you (?:should|must|need to|have to)|i(?:['\u2019]d| would)? (?:want|like|need) you to) )?"
_FROM_NOW: Final = r"(?:from now on|going forward|from here on|in (?:the )?future)"
_DONT: Final = r"(?:do not|don['\u2019]t)"
_INSTRUCTION: Final = re.compile(
    rf"^{_POLITE}(?:"
    rf"(?:{_FROM_NOW},? {_POLITE})?{_TELLS}(?:always|never) (?:ever )?(?:{_VERBS})\b"
    rf"|{_FROM_NOW},? {_POLITE}{_TELLS}(?:{_DONT} )?(?:{_VERBS})\b"
    rf"|{_DONT} ever (?:{_VERBS})\b"
    rf"|(?:{_DONT} )?(?:{_VERBS})\b.+ (?:from now on|going forward|any ?more|ever again)$"
    r"|stop (?!it\b|that\b|this\b)\w+ing\b"
    r")",
    re.IGNORECASE,
)
_JOINED: Final = re.compile(
    rf"(?<!\s)\s*(?:;|,(?: and| but)?| and| but)\s+(?=(?:please )?(?:always|never|{_DONT} ever|stop)\b)", re.IGNORECASE
)
_LIMITED: Final = re.compile(
    r"\?|[\"\u201c\u201d\u00ab\u00bb]|\b(?:say never|if|unless|today|tonight|tomorrow|for now|this time|once|"
    r"here|the following|below|above|next|this (?:one|text|email|message|function|file|question)|said|says"
    r"|told|wrote)\b|\b(?:that|this|it)\W*$",
    re.IGNORECASE,
)
"""A question, a quotation, a condition, or something for this once: not standing, or not plain enough to be sure."""


def instructions_in(sentence: str) -> Iterator[str]:
    """The standing instructions of one sentence, each in its own words."""
    if _LIMITED.search(sentence):
        return
    for clause in _JOINED.split(sentence):
        plain = clause.strip(" \t.!,;:()")
        if _INSTRUCTION.match(plain):
            yield plain
