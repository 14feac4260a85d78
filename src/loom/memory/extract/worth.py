"""Decides whether turns are worth reading by a model: courtesies and short questions are not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from loom.core.record import Episode
from loom.memory.extract.rules import sentences

_READ_ANYWAY: Final = 600
"""Characters; a longer text is always read."""
_LONG_QUESTION: Final = 15
"""Words; a longer question states something as well: what to cook for a sister who is allergic to nuts."""
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)?")
_ASKS: Final = ("?", "\uff1f", "\u061f")

# "Yes" and "no" are not among them: they may answer a question of the assistant.
_WORDS: Final = """
    a afternoon again ah all alright amazing and appreciate appreciated are at awesome bye care cheers cool day
    dear done evening everyone excellent fantastic fine for go going good goodbye got great ha haha have hello
    help helped helpful helping hey hi hm hmm how it it's just kind later lol lot lots lovely luck makes many me
    moment morning much nice night noted now of oh ok okay perfect please point really right see sense so soon
    sorry sounds splendid sure take talk thank thanks that that's the there thx time to today tomorrow too
    understood very wait was weekend welcome well wonderful wow you you're your
"""
_COURTESY: Final = frozenset(_WORDS.split())


def worth_reading(episodes: Iterable[Episode]) -> bool:
    """Whether a speaker other than the assistant probably stated something."""
    return any(states_something(e.text) for e in episodes if e.provenance.origin != "assistant")


def states_something(text: str) -> bool:
    """False for courtesies ("Thanks a lot!"), short questions, and text without words; True in doubt."""
    return len(text) > _READ_ANYWAY or any(_states(sentence) for sentence in sentences(text))


def _states(sentence: str) -> bool:
    words = _WORD.findall(sentence.casefold().replace("\u2019", "'"))
    asks = sentence.rstrip(" \t\n\"')]\u201d\u2019!").endswith(_ASKS)
    if asks and len(words) <= _LONG_QUESTION:
        return False
    return any(word not in _COURTESY for word in words)
