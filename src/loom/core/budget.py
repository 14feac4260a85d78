"""A budget of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loom.errors import UsageError


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `limit` tokens, of which `reserve` are kept back (for the answer, say) and `spent` are gone."""

    limit: int
    reserve: int = 0
    spent: int = 0

    def __post_init__(self) -> None:
        for name, value in (("limit", self.limit), ("reserve", self.reserve), ("spent", self.spent)):
            _check_tokens(value, f"the {name} of a budget")
        if self.reserve + self.spent > self.limit:
            raise UsageError(
                f"a budget of {self.limit:,} tokens cannot keep {self.reserve:,} back with {self.spent:,} spent; "
                f"raise the limit or lower the reserve"
            )

    @property
    def left(self) -> int:
        """Tokens that may still be taken."""
        return self.limit - self.reserve - self.spent

    def fits(self, tokens: int) -> bool:
        """Whether so many tokens may still be taken."""
        return _check_tokens(tokens, "the tokens to fit") <= self.left

    def take(self, tokens: int) -> Budget:
        """The budget after spending so many tokens; raises UsageError if they do not fit."""
        if not self.fits(tokens):
            raise UsageError(
                f"{tokens:,} tokens do not fit: {self.left:,} of {self.limit:,} are left ({self.reserve:,} kept "
                f"back, {self.spent:,} spent); ask fits() first, or raise the limit"
            )
        return replace(self, spent=self.spent + tokens)


def _check_tokens(value: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{what} is {value!r}; give a whole number of tokens, 0 or more")
    return value
