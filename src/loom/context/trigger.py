"""Trigger patterns: the regular expressions of skills, matched in linear time whatever their author wrote.

A skill file may come with a project, and a pattern such as `(a+)+$` would stop the agent in Python's `re`, which tries
every way to match. Rust's `regex` never goes back. pydantic, on which Loom depends anyway, brings it for all platforms.
"""

from __future__ import annotations

import re

from loom.core.checks import join_surrogates
from loom.errors import UsageError

MAX_PATTERN = 500
MAX_SIZE = 1_000
"""Characters of a pattern when its counted repeats are written out. A search takes this times the text in steps, so
without a bound 40 characters such as `((a{99}){99}){99}` would take minutes."""

_COUNT = re.compile(r"\{(\d++)(?:,(\d*+))?\}")
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?|\((?:\?:)?|\{\d++(?:,\d*+)?\}|.", re.DOTALL)


class TriggerPattern:
    """A compiled pattern; upper and lower case are alike.

    The syntax is Python's, without lookaround, back references, named groups and flags. `$` is the very end of a text.
    """

    def __init__(self, pattern: str) -> None:
        from pydantic_core import SchemaError, SchemaValidator  # noqa: PLC0415  (only skills with patterns need it)

        if len(pattern) > MAX_PATTERN:
            raise UsageError(f"the trigger pattern has {len(pattern):,} characters; at most {MAX_PATTERN} are allowed")
        if re.search(r"\(\?(?!:)", pattern):
            raise UsageError(f"the trigger pattern {pattern!r} has lookaround, a named group or flags; leave them out")
        if _written_out(pattern) > MAX_SIZE:
            raise UsageError(f"the trigger pattern {pattern!r} repeats more than {MAX_SIZE:,} characters; repeat less")
        try:
            self._validator = SchemaValidator({"type": "str", "pattern": f"(?i){join_surrogates(pattern)}"})
        except SchemaError as error:
            why = str(error).rpartition("error: ")[2].rpartition("SchemaError: ")[2]
            raise UsageError(f"the trigger pattern {pattern!r} cannot be used: {why}") from error

    def search(self, text: str) -> bool:
        """Whether the pattern occurs anywhere in a text."""
        return self._validator.isinstance_python(join_surrogates(text))


def _written_out(pattern: str) -> int:
    """How many characters a pattern has when its counted repeats are written out."""
    sizes, last = [0], 0  # of the open groups, the outermost first; and of what a repeat would repeat
    for piece in _PIECE.findall(pattern):
        if piece in ("(", "(?:"):
            sizes.append(0)
        elif piece == ")" and len(sizes) > 1:
            last = max(1, sizes.pop())
            sizes[-1] += last
        elif count := _COUNT.fullmatch(piece):
            times = int(count[2] or count[1])
            sizes[-1] += last * (times - 1)
            last *= times
        elif piece not in ("*", "+", "?"):
            last = 1
            sizes[-1] += 1
    return sum(sizes)
