"""TriggerPattern: regular expressions that take linear time, whatever their author wrote.

A skill file may come with a project, and a pattern such as `(a+)+$` would stop the agent in Python's own `re`,
which tries every way to match. Here all ways are followed at once, so a message of n characters takes n steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn, TypeAlias

from loom.errors import UsageError

MAX_PATTERN = 500
MAX_STATES = 500
"""How large a pattern may get when its repeats are written out."""
_MAX_REPEAT = 100
_MAX_DEPTH = 20

_ATOM = re.compile(r"\\[dDsSwW]|\\[^\w\s]|\\[tn]|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[\](){}|*+?^$]")
_COUNT = re.compile(r"\{(\d++)(,?)(\d*+)\}")
_UNSUPPORTED = "lookaround, back references, flags and \\A, \\Z are not supported"

Test: TypeAlias = Callable[[str, int], bool]
"""Whether a state may be passed at a place of a text."""


class TriggerPattern:
    r"""A compiled pattern; upper and lower case are alike.

    It knows literals, classes, `.`, `\d \w \s \b` and their opposites, `^ $`, groups, `|` and `* + ? {m,n}`.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise UsageError(f"the trigger pattern has {len(pattern):,} characters; at most {MAX_PATTERN} are allowed")
        self._machine = _Machine()
        self._start = _Parser(pattern, self._machine).start

    def search(self, text: str) -> bool:
        """Whether the pattern occurs anywhere in a text."""
        machine, states = self._machine, set[int]()
        for at in range(len(text) + 1):
            states = machine.closure({*states, self._start}, text, at)
            if machine.end in states:
                return True
            if at < len(text):
                states = machine.step(states, text, at)
        return False


class _Machine:
    """States with edges: some read a character, some hold a condition on the place, some lead on freely."""

    def __init__(self) -> None:
        self.reads: dict[int, tuple[Test, int]] = {}
        self.holds: dict[int, tuple[Test, int]] = {}
        self.leads: dict[int, tuple[int, ...]] = {}
        self._count = 0
        self.end = self.state()

    def state(self) -> int:
        self._count += 1
        if self._count > MAX_STATES:
            raise UsageError(f"the trigger pattern needs more than {MAX_STATES:,} states; repeat less")
        return self._count - 1

    def step(self, states: set[int], text: str, at: int) -> set[int]:
        """Where the states lead that read the character at a place."""
        edges = (self.reads[s] for s in states if s in self.reads)
        return {target for test, target in edges if test(text, at)}

    def closure(self, states: set[int], text: str, at: int) -> set[int]:
        """The states, and all that can be reached from them without reading."""
        reached, open_ = set(states), list(states)
        while open_:
            state = open_.pop()
            targets = self.leads.get(state, ())
            if state in self.holds and self.holds[state][0](text, at):
                targets = (self.holds[state][1],)
            fresh = [t for t in targets if t not in reached]
            reached.update(fresh)
            open_ += fresh
        return reached


Piece: TypeAlias = Callable[[int], int]
"""Builds the states of a piece of a pattern in front of a given state; returns its first state."""


class _Parser:
    """Reads a pattern into a machine, from left to right; the states are made from right to left."""

    def __init__(self, pattern: str, machine: _Machine) -> None:
        self._pattern, self._machine, self._at, self._depth = pattern, machine, 0, 0
        piece = self._choice()
        if self._at < len(pattern):
            self._fail(f"{pattern[self._at]!r} has no partner")
        self.start = piece(machine.end)

    def _choice(self) -> Piece:
        ways = [self._sequence()]
        while self._take("|"):
            ways.append(self._sequence())
        return lambda to: self._fork(*(way(to) for way in ways))

    def _sequence(self) -> Piece:
        pieces: list[Piece] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            pieces.append(self._repeated(self._single()))

        def build(to: int) -> int:
            for piece in reversed(pieces):
                to = piece(to)
            return to

        return build

    def _single(self) -> Piece:
        if self._take("("):
            if self._take("?") and not self._take(":"):
                self._fail(_UNSUPPORTED)
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                self._fail(f"groups stand in groups more than {_MAX_DEPTH} deep")
            inside = self._choice()
            self._depth -= 1
            if not self._take(")"):
                self._fail("a group is not closed")
            return inside
        for spelling, test in _CONDITIONS.items():
            if self._take(spelling):
                return lambda to: self._edge(self._machine.holds, test, to)
        found = _ATOM.match(self._pattern, self._at)
        if found is None:
            self._fail(f"{self._pattern[self._at]!r} is not understood here; {_UNSUPPORTED}")
        self._at = found.end()
        test = _reads(found[0])
        return lambda to: self._edge(self._machine.reads, test, to)

    def _repeated(self, piece: Piece) -> Piece:
        low, high = self._bounds()
        if (low, high) == (1, 1):
            return piece
        self._take("?")  # lazy or greedy is the same question here: does it occur
        if self._at < len(self._pattern) and self._pattern[self._at] in "*+?{":
            self._fail("a repeat is repeated")

        def build(to: int) -> int:
            if high is None:
                to = self._loop(piece, to)
            else:
                for _ in range(high - low):
                    to = self._fork(piece(to), to)
            for _ in range(low):
                to = self._fork(piece(to))  # a state of its own, so that copies of nothing have their limit too
            return to

        return build

    def _bounds(self) -> tuple[int, int | None]:
        """How often the piece before may come; None is without end."""
        for spelling, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(spelling):
                return bounds
        found = _COUNT.match(self._pattern, self._at)
        if found is None:
            return 1, 1
        self._at = found.end()
        low = int(found[1])
        high = int(found[3]) if found[3] else None if found[2] else low
        if max(low, high or 0) > _MAX_REPEAT or (high is not None and high < low):
            self._fail(f"{found[0]} is not a repeat from 0 to {_MAX_REPEAT}")
        return low, high

    def _loop(self, piece: Piece, to: int) -> int:
        state = self._machine.state()
        self._machine.leads[state] = (piece(state), to)
        return state

    def _fork(self, *targets: int) -> int:
        state = self._machine.state()
        self._machine.leads[state] = targets
        return state

    def _edge(self, edges: dict[int, tuple[Test, int]], test: Test, to: int) -> int:
        state = self._machine.state()
        edges[state] = (test, to)
        return state

    def _take(self, spelling: str) -> bool:
        if self._pattern.startswith(spelling, self._at):
            self._at += len(spelling)
            return True
        return False

    def _fail(self, why: str) -> NoReturn:
        raise UsageError(f"the trigger pattern {self._pattern!r} cannot be used: {why} (character {self._at + 1})")


def _reads(atom: str) -> Test:
    """Whether the character at a place fits an atom; Python's own `re` knows the classes."""
    try:
        one = re.compile(atom, re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"the trigger pattern has a bad class {atom!r}: {error}") from error
    return lambda text, at: one.match(text, at) is not None


_END, _EDGE, _INSIDE = re.compile("$"), re.compile(r"\b"), re.compile(r"\B")
_CONDITIONS: dict[str, Test] = {
    "^": lambda _text, at: at == 0,
    "$": lambda text, at: _END.match(text, at) is not None,
    r"\b": lambda text, at: _EDGE.match(text, at) is not None,
    r"\B": lambda text, at: _INSIDE.match(text, at) is not None,
}
