"""The result of comparing an index with its records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from loom.core.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDifference:
    """How the index of one user differs; `what` is what it is an index of: `vectors` or `words`."""

    user: Scope
    what: str
    missing: int = 0
    extra: int = 0
    wrong: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether the two agree."""
        return not (self.missing or self.extra or self.wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDifference:
    """How an index differs from the truth, in entries: `missing` from the index, `extra` in it, or `wrong` there.

    `users` and `vectors` say how much was looked at, `by_user` where the differences are. `is_repaired` says that they
    were there and are no longer. `damaged` are records and jobs that cannot be read, each in words; a repair removes
    them. `problems` are damages of the file itself, which nothing here can repair.
    """

    users: int = 0
    vectors: int = 0
    missing: int = 0
    extra: int = 0
    wrong: int = 0
    is_repaired: bool = False
    by_user: tuple[UserDifference, ...] = field(default=(), compare=False)
    problems: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether there was no difference."""
        return not (self.missing or self.extra or self.wrong or self.problems or self.damaged)


def summed(
    found: Iterable[UserDifference],
    *,
    users: int,
    vectors: int,
    repair: bool,
    problems: Iterable[str] = (),
    damaged: Sequence[str] = (),
) -> IndexDifference:
    """The differences of all users as one; `repair` says that they were repaired."""
    differing = tuple(one for one in found if not one.is_equal)
    return IndexDifference(
        users=users,
        vectors=vectors,
        missing=sum(one.missing for one in differing),
        extra=sum(one.extra for one in differing),
        wrong=sum(one.wrong for one in differing),
        is_repaired=repair and bool(differing or damaged),
        by_user=differing,
        problems=tuple(problems),
        damaged=tuple(damaged),
    )
