"""Several strategies as one: the cheap pass first, then each in order, truncation last."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from loom.core.checkpoint import Shown
from loom.errors import CannotCompact
from loom.protocols.compactor import Compactor, Rewrite
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.laws import broken_law
from loom.session.compaction.truncate import Truncate

FAILURES: Final = 3
"""Failures in a row after which a strategy rests."""
REST: Final = 5
"""Passes that it rests before it is tried again; one failure more and it rests again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(Rewrite):
    """A rewrite, who made it, and why others did not."""

    strategy: str
    failures: tuple[str, ...] = ()


class Chain:
    """Tries strategies in order until one reaches the target by all laws of a Compactor. The result is one rewrite.

    A cheap compactor comes first: where it is enough, nothing else runs; where it is not, its work is left
    alone and the next strategy starts from the history as it was, because a summary should be made of what
    was really said, from a prefix that is still cached.

    A strategy that fails other than by CannotCompact three times in a row rests for a few passes; then it is
    tried again.

    Args:
        strategies: who is tried, in order.
        cheap: who is tried before them, if anybody.
        last: who is tried when all of them failed.
    """

    def __init__(
        self, strategies: Sequence[Compactor], *, cheap: Compactor | None = None, last: Compactor | None = None
    ) -> None:
        self._cheap = cheap
        self._strategies = [_Breaker(strategy) for strategy in strategies]
        self._last = last or Truncate()

    @property
    def name(self) -> str:
        """The first strategy, which is the one that was asked for."""
        return self._strategies[0].compactor.name if self._strategies else self._last.name

    @property
    def strategies(self) -> tuple[Compactor, ...]:
        """Who is tried, in order, without the cheap pass and the last resort."""
        return tuple(breaker.compactor for breaker in self._strategies)

    def after(self, strategy: str) -> str | None:
        """Who is tried where a strategy fails; None after the last."""
        names = [*(one.name for one in self.strategies), self._last.name]
        later = names[names.index(strategy) + 1 :]
        return later[0] if later else None

    async def compact(
        self,
        shown: Sequence[Shown],
        *,
        target: int,
        counter: TokenCounter,
        keep: AbstractSet[str] = frozenset(),
    ) -> Pass:
        """A rewrite that brings `shown` down to `target` tokens; raises CannotCompact with every reason."""
        failures: list[str] = []
        breakers = [*self._strategies, _Breaker(self._last)]
        if self._cheap is not None:
            breakers.insert(0, _Breaker(self._cheap))
        for breaker in breakers:
            compactor = breaker.compactor
            if not breaker.ready():
                failures.append(f"{compactor.name} rests after {breaker.failures} failures in a row")
                continue
            try:
                rewrite = await _lawful(compactor, shown, target=target, counter=counter, keep=keep)
            except CannotCompact as error:
                failures.append(f"{compactor.name}: {error.reason}")
            except Exception as error:  # noqa: BLE001  whatever a strategy does wrong, the session goes on
                breaker.failed()
                failures.append(f"{compactor.name}: {type(error).__name__}: {error}")
            else:
                breaker.worked()
                return Pass(
                    replacements=rewrite.replacements,
                    dropped_thinking=rewrite.dropped_thinking,
                    usage=rewrite.usage,
                    strategy=compactor.name,
                    failures=tuple(failures),
                )
        raise CannotCompact("; ".join(dict.fromkeys(failures)))


async def _lawful(
    compactor: Compactor, shown: Sequence[Shown], *, target: int, counter: TokenCounter, keep: AbstractSet[str]
) -> Rewrite:
    """What a strategy proposes, if it keeps the laws: it may be anybody's."""
    rewrite = await compactor.compact(shown, target=target, counter=counter, keep=keep)
    if reason := broken_law(shown, rewrite, target=target, counter=counter, keep=keep):
        raise CannotCompact(reason)
    return rewrite


class _Breaker:
    """Whether a strategy may be tried now."""

    def __init__(self, compactor: Compactor) -> None:
        self.compactor = compactor
        self.failures = 0
        self._rest = 0

    def ready(self) -> bool:
        """Whether it may; every time it may not brings it closer."""
        if not self._rest:
            return True
        self._rest -= 1
        return False

    def failed(self) -> None:
        self.failures += 1
        if self.failures >= FAILURES:
            self._rest = REST

    def worked(self) -> None:
        self.failures = 0
