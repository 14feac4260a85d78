"""Questions about earlier conversations, such as `What did we talk about last time?`, and the episodes that answer."""

from __future__ import annotations

import re
from typing import Final

from loom.core.filter import And, Eq, Filter, Range
from loom.core.record import Episode
from loom.core.scope import Scope
from loom.memory.episodes import ARE_EPISODES, is_session_episode
from loom.memory.listing import every
from loom.memory.timewords import TimeHint
from loom.protocols.memory_store import MemoryStore

FIRST: Final = 3
"""Episodes that rank first if a question asks about earlier conversations."""
_LONGEST: Final = 200
"""Characters; a longer question names a topic."""
_WORD: Final = re.compile(r"[a-z']+|\d+")

_OTHER: Final = re.compile(r"[^\W\d_a-zA-Z]")
"""A non-Latin letter: the word lists below contain none."""
_TALK_WORDS: Final = """
    chat chats chatted chatting conversation conversations cover covered discuss discussed discussing discussion
    discussions leave left said say session sessions speak speaking spoke talk talked talking talks
"""
_ASK_WORDS: Final = """
    catch happened recap remember remind summarise summarize summary tell what what's when where which
"""
_NAME_WORDS: Final = """
    chat chats conversation conversations discussion last latest most my our previous recent session sessions the time
"""
_TIME_WORDS: Final = """
    a ago an and apr april at aug august before between day days dec december during eight evening feb february few five
    four friday from in jan january jul july jun june lately mar march may monday month months morning nd night nine nov
    november oct october of on one other past rd recently saturday sep sept september seven several since six st sunday
    ten th this three thursday to today tonight tuesday two wednesday week weekend weeks year years yesterday
"""
_FILLERS: Final = """
    about again all any anything can could did do for hey hi i is it just know me off ok okay please quick quickly so
    stop stopped that things think topic topics up was were with would you your
"""
_US: Final = frozenset(["our", "us", "we"])
_LATEST: Final = frozenset(["last", "latest", "previous", "recent"])
_TALK, _ASKS, _NAMES = (frozenset(words.split()) for words in (_TALK_WORDS, _ASK_WORDS, _NAME_WORDS))
_ALL: Final = _TALK | _US | _ASKS | _NAMES | frozenset((_TIME_WORDS + _FILLERS).split())


def asks_about_last_time(question: str) -> bool:
    """Whether a question asks about an earlier conversation and names no topic.

    All of its words have to be in the lists above: any other word is a topic, and turns about that answer it.
    """
    if len(question) > _LONGEST:
        return False
    words = {word for word in _WORD.findall(question.lower().replace("\u2019", "'")) if not word.isdigit()}
    if not words or not words <= _ALL or _OTHER.search(question):
        return False
    if words <= _NAMES:
        return bool(words & _TALK)
    asks = bool(words & _ASKS) or question.rstrip().endswith("?")
    means_it = words & _TALK and words & (_US | _LATEST)
    return asks and bool(means_it or "recap" in words or {"catch", "up"} <= words or {"last", "time"} <= words)


async def latest_episodes(
    store: MemoryStore, scope: Scope, fits: Filter, when: TimeHint | None, *, archived: bool
) -> tuple[Episode, ...]:
    """The episodes of the latest sessions, newest first; only of the time that the question names, if it names one."""
    parts: list[Filter] = [fits, ARE_EPISODES]
    parts += [] if archived else [Eq("archived_at", None)]
    if when is not None and (when.start is not None or when.end is not None):
        parts.append(Range("at", low=when.start, high=when.end))
    found = [r async for r in every(store, scope, And(*parts)) if isinstance(r, Episode) and is_session_episode(r)]
    return tuple(sorted(found, key=lambda episode: (episode.at, episode.id), reverse=True)[:FIRST])
