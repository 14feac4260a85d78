"""Several strategies as one: the cheap pass first, then each in order, truncation last."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from loom.core.checkpoint import Compaction, Shown
from loom.errors import CannotCompact, UsageError
from loom.protocols.compactor import Compactor, Rewrite
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.cut import shown_tokens
from loom.session.compaction.windows import Truncate
from loom.session.history import current_request, units_of

FAILURES: Final = 3
"""Failures in a row after which a strategy rests: a model that is down should not delay every pass by its timeout."""
REST: Final = 5
"""Passes that it rests before it is tried again; one failure more and it rests again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(Rewrite):
    """A rewrite, the strategy that made it, and why others did not."""

    strategy: str
    failures: tuple[str, ...] = ()


class Chain:
    """Tries strategies in order until one reaches the target by all laws of a Compactor. The result is one rewrite.

    A cheap compactor comes first. Where it is not enough its work is dropped, and the next strategy starts from the
    history as it was: a summary should be made of the real messages, from a prefix that is still cached.

    A strategy that fails other than by CannotCompact three times in a row rests for a few passes.

    Args:
        strategies: tried in order.
        cheap: tried before them.
        last: tried when all of them failed.
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
        """The strategies in order, without the cheap pass and the last resort."""
        return tuple(breaker.compactor for breaker in self._strategies)

    def after(self, strategy: str) -> str | None:
        """The strategy that is tried where this one fails; None after the last."""
        names = [*(one.name for one in self.strategies), self._last.name]
        later = names[names.index(strategy) + 1 :]
        return later[0] if later else None

    async def compact(
        self, shown: Sequence[Shown], *, target: int, counter: TokenCounter, keep: AbstractSet[str] = frozenset()
    ) -> Pass:
        """A rewrite that brings `shown` down to `target` tokens; raises CannotCompact with every reason."""
        failures: list[str] = []
        cheap = [_Breaker(self._cheap)] if self._cheap else []
        for breaker in (*cheap, *self._strategies, _Breaker(self._last)):
            compactor = breaker.compactor
            if breaker.rests():
                failures.append(f"{compactor.name} rests after {breaker.failures} failures in a row")
                continue
            try:
                rewrite = await compactor.compact(shown, target=target, counter=counter, keep=keep)
                if reason := broken_law(shown, rewrite, target=target, counter=counter, keep=keep):
                    raise CannotCompact(reason)  # noqa: TRY301  (it is one more reason why a strategy cannot)
            except CannotCompact as error:
                failures.append(f"{compactor.name}: {error.reason}")
            except Exception as error:  # noqa: BLE001  whatever a strategy does wrong, the session goes on
                breaker.count_failure()
                failures.append(f"{compactor.name}: {type(error).__name__}: {error}")
            else:
                breaker.failures = 0
                return Pass(
                    replacements=rewrite.replacements,
                    dropped_thinking=rewrite.dropped_thinking,
                    usage=rewrite.usage,
                    strategy=compactor.name,
                    failures=tuple(failures),
                )
        raise CannotCompact("; ".join(dict.fromkeys(failures)))


class _Breaker:
    """Whether a strategy may be tried now."""

    def __init__(self, compactor: Compactor) -> None:
        self.compactor = compactor
        self.failures = 0
        self._rest = 0

    def rests(self) -> bool:
        """Whether it may not; every time it may not brings it closer."""
        self._rest -= 1
        return self._rest >= 0

    def count_failure(self) -> None:
        self.failures += 1
        self._rest = REST if self.failures >= FAILURES else 0


def apply_rewrite(shown: Sequence[Shown], rewrite: Rewrite) -> tuple[Shown, ...]:
    """What is shown when a rewrite applies; raises UsageError where it does not fit."""
    if not rewrite.replacements:
        return tuple(shown)
    compaction = Compaction(
        id="rewrite",
        at=datetime.min.replace(tzinfo=UTC),
        strategy="",
        replacements=rewrite.replacements,
        tokens_before=0,
        tokens_after=0,
    )
    return compaction.apply(shown)


def broken_law(
    shown: Sequence[Shown], rewrite: Rewrite, *, target: int, counter: TokenCounter, keep: AbstractSet[str]
) -> str | None:
    """Which law of a Compactor a rewrite breaks, in words; None where it keeps them all."""
    try:
        left = apply_rewrite(shown, rewrite)
    except UsageError as error:
        return f"the rewrite does not fit the history: {error}"
    size = shown_tokens(left, counter)
    if size > target:
        return f"the rewrite leaves {size:,} tokens and the target is {target:,}"
    request = current_request(shown)
    needed = keep if request is None else {*keep, request.id}
    if lost := sorted(needed & rewrite.covered):
        return f"the rewrite covers {', '.join(lost)}, which must stay as it is"
    if _halves(left) > _halves(shown):
        return "the rewrite leaves a tool call without its result, or a result without its call"
    return None


def _halves(shown: Sequence[Shown]) -> int:
    return sum(unit.open or unit.stray for unit in units_of(shown))
