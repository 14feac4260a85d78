"""Passages of a text: chunks that begin and end with a sentence, and the one that answers a question best."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from math import log
from typing import NamedTuple

from loom.errors import UsageError
from loom.text.words import folded

SIZE = 800
"""Default maximum characters of a chunk."""
OVERLAP = 120
"""Default maximum characters of a chunk that the next one repeats."""

# Only the last sign of a run is matched, so that a run without a space behind it is walked once.
_SENTENCE_END = re.compile(r"[.!?\u2026][\"'\u2019\u201d)\]]*+\s+|[\u3002\uff01\uff1f]+\s*|\n\s*\n\s*")


class Span(NamedTuple):
    """From character `start` up to, and not including, `end`."""

    start: int
    end: int


def chunks(text: str, *, size: int = SIZE, overlap: int = OVERLAP) -> list[Span]:
    """The spans of the chunks of a text, in order: they cover every non-space character, none is longer than `size`."""
    if not 0 <= overlap < size:
        raise UsageError(f"chunks of {size} characters cannot overlap by {overlap}; give 0 <= overlap < size")
    units = _units(text, size)
    found: list[Span] = []
    first = 0
    while first < len(units):
        last = first
        while last + 1 < len(units) and units[last + 1].end - units[first].start <= size:
            last += 1
        if (span := _trimmed(text, units[first].start, units[last].end)) is not None:
            found.append(span)
        if last + 1 == len(units):
            break
        first = _next_start(units, first, last, size, overlap)
    return found


def sentences(text: str) -> list[Span]:
    """The spans of the sentences of a text, without the spaces around them."""
    return [span for start, end in _cuts(text) if (span := _trimmed(text, start, end)) is not None]


def _cuts(text: str) -> list[Span]:
    edges = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    return [Span(start, end) for start, end in pairwise(edges) if start < end]


def _units(text: str, size: int) -> list[Span]:
    """Sentences, and parts of those that are too long for one chunk."""
    units: list[Span] = []
    for start, end in _cuts(text):
        at = start
        while end - at > size:
            space = max(text.rfind(" ", at + 1, at + size), text.rfind("\n", at + 1, at + size))
            cut = space + 1 if space > at else at + size
            units.append(Span(at, cut))
            at = cut
        units.append(Span(at, end))
    return units


def _next_start(units: list[Span], first: int, last: int, size: int, overlap: int) -> int:
    """The unit that the next chunk begins with: it repeats some of this one, if the next unit still fits."""
    start = last + 1
    while (
        start - 1 > first
        and units[last].end - units[start - 1].start <= overlap
        and units[last + 1].end - units[start - 1].start <= size
    ):
        start -= 1
    return start


def _trimmed(text: str, start: int, end: int) -> Span | None:
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    end -= len(piece) - len(piece.rstrip())
    return Span(start, end) if start < end else None


# The part of a long text that matches a question.

PASSAGE = 420
"""Characters of a passage: some 70 words."""
WHOLE = 600
"""Characters up to which a text is shown whole: a passage of it would save little, and lose what is around."""


READ = 120_000
"""Characters of a text among which a passage is looked for: of a longer one, those around the likeliest place."""
_STEMS = 250
"""How many stems are looked for in an ASCII text in the time in which its words are stemmed."""
_LEAST_STEMS = 30
_MOST_PLACES = 1_000
"""Places of a stem that are looked at in a very long text: a stem with more tells little."""


def looking_cost(text: str, wanted: Sequence[str]) -> int:
    """What best_passage() or most_together() costs, in characters of a text whose words are stemmed in that time.

    A text that is not ASCII is folded, all of it, which takes most of the time.
    """
    looked = len(text) * max(_LEAST_STEMS, len(wanted)) // _STEMS
    return looked if text.isascii() else looked + len(text) * 3 // 4


def best_passage(text: str, wanted: Sequence[str]) -> Span | None:
    """The passage of a long text that has most of the wanted stems; None for a text short enough to be shown whole.

    A stem that is in few passages tells more than one that is in all of them. At equal weight the first passage wins.
    """
    if len(text) <= WHOLE:
        return None
    start = _likeliest_part(text, wanted)
    part = text[start : start + READ]
    spans = chunks(part, size=PASSAGE, overlap=0) or [Span(0, PASSAGE)]  # of nothing but spaces
    weights = _weighed([stems_in(part[span.start : span.end], wanted) for span in spans])
    best = spans[max(range(len(spans)), key=lambda place: weights[place])]
    return Span(start + best.start, start + best.end)


def _weighed(found: Sequence[Collection[str]]) -> list[float]:
    """How much the stems that were found in each of some places tell."""
    often = Counter(stem for stems in found for stem in stems)
    return [sum(log(1 + len(found) / often[stem]) for stem in stems) for stems in found]


def _likeliest_part(text: str, wanted: Sequence[str]) -> int:
    """Where the READ characters begin in which a passage is looked for: around the place with most of the stems."""
    if len(text) <= READ:
        return 0
    words, ends = _folded_slices(text)
    found = [set[str]() for _ in ends]
    for stem in wanted:
        for place in islice(_places(words, stem), _MOST_PLACES):
            found[bisect(ends, place)].add(stem)
    weights = _weighed(found)
    pairs = [here + after for here, after in zip(weights, [*weights[1:], 0.0], strict=True)]
    best = max(range(len(pairs)), key=lambda place: pairs[place])
    return max(0, min(best * PASSAGE - READ // 2, len(text) - READ))


def _folded_slices(text: str) -> tuple[str, Sequence[int]]:
    """The folded text, and where in it each slice of PASSAGE characters of the text ends.

    Folding changes the length of a text, and of one part more than of another: all of it can be marks, which go.
    """
    ends = range(PASSAGE, len(text) + PASSAGE, PASSAGE)
    if text.isascii():
        return folded(text), ends
    slices = [folded(text[end - PASSAGE : end]) for end in ends]
    return "".join(slices), [*accumulate(map(len, slices))]


def stems_in(text: str, wanted: Sequence[str]) -> set[str]:
    """Those of the wanted stems that a word of the text begins with: many times cheaper than stemming the text."""
    words = folded(text)
    # Most stems are not there at all, which a plain search tells first.
    return {stem for stem in wanted if stem[:-1] in words and _next_place(words, stem) >= 0}


def most_together(text: str, wanted: Sequence[str]) -> int:
    """The largest number of the wanted stems that stand together in one passage of a text."""
    start = _likeliest_part(text, wanted)
    words = folded(text[start : start + READ])
    if len(words) <= WHOLE:
        return len(stems_in(words, wanted))
    places = sorted((place, stem) for stem in wanted for place in _places(words, stem))
    inside, first, most = Counter[str](), 0, 0
    for place, stem in places:
        inside[stem] += 1
        while place - places[first][0] > PASSAGE:
            inside[places[first][1]] -= 1
            first += 1
        most = max(most, sum(count > 0 for count in inside.values()))
    return most


def _places(words: str, stem: str) -> Iterator[int]:
    """Where words of a folded text begin with a stem; in scripts without spaces, where it is at all."""
    place = _next_place(words, stem)
    while place >= 0:
        yield place
        place = _next_place(words, stem, place + 1)


def _next_place(words: str, stem: str, start: int = 0) -> int:
    """The first of these places from `start` on; -1 where there is none."""
    # Porter's rules make `happi` of `happy`.
    form, is_y = (stem[:-1], True) if len(stem) > 1 and stem.endswith("i") else (stem, False)
    place = words.find(form, start)
    while place >= 0:
        is_whole = not is_y or words[place + len(form) : place + len(stem)] in ("i", "y")
        if is_whole and (not place or not words[place - 1].isalnum() or not stem.isascii()):
            return place
        place = words.find(form, place + 1)
    return -1
