"""Strategies that ask no model, and several strategies as one chain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Unpack

from loom.core.log import Compaction, Replacement, Shown
from loom.core.message import Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage, plain
from loom.core.threads import off_loop
from loom.errors import CannotCompact, UsageError
from loom.protocols.compactor import Compactor, Rewrite
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.coverage import chars_of, decisions_in, leaves, paths_in
from loom.session.compaction.cut import (
    OVERLAP,
    Cut,
    CutOptions,
    Cutter,
    describe,
    earlier_lines,
    is_within,
    one_line,
    rewritten,
    shown_tokens,
)
from loom.session.compaction.summary_message import SummaryMessage, fit, originals_in, read_record, records_in
from loom.session.config import ClearToolsOptions
from loom.session.history import current_request, is_request, units_of


class SlidingWindow(Cutter):
    """Drops what does not stay and shows `preview` characters of the last `overlap` dropped messages. Asks no model."""

    name = "sliding_window"

    def __init__(self, *, overlap: int = 2, preview: int = 200, **options: Unpack[CutOptions]) -> None:
        if overlap < 0 or preview < 1:
            raise UsageError(f"overlap={overlap}, preview={preview}; give 0 or more messages, 1 or more characters")
        super().__init__(**options)
        self._overlap, self._preview = overlap, preview

    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[SummaryMessage | None, Usage]:
        dropped = choice.dropped
        messages = [item for item in dropped if read_record(item.message) is None]
        overlap = tuple(self._line(item) for item in messages[max(0, len(messages) - self._overlap) :])
        parts = {OVERLAP: overlap, "earlier": earlier_lines(records_in(dropped))}
        return fit(SummaryMessage(self.name, originals_in(dropped), parts), choice.room, counter), Usage()

    def _line(self, item: Shown) -> str:
        parts = (part for part in item.message.parts if not isinstance(part, ThinkingPart))
        return f"{item.message.role}: " + one_line(" ".join(map(plain, parts)), self._preview)


class Truncate(Cutter):
    """Drops what does not stay. Asks no model and succeeds whenever anything can.

    An earlier record is all that is left of older messages, so its lines are carried on as far as they fit. Where not
    even one line fits, nothing is written.
    """

    name = "truncate"

    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[SummaryMessage | None, Usage]:
        lines = earlier_lines(records_in(choice.dropped))
        record = SummaryMessage(self.name, originals_in(choice.dropped), {"earlier": lines} if lines else {})
        return fit(record, choice.room, counter), Usage()


class ClearTools:
    """Clears the results of old tool calls, all at once: every clearing costs the cached prefix behind it.

    A result is cleared where its line takes at most half of it. Calls, ids and error marks are untouched, and the
    model can call again. Asks no model.
    """

    name = "clear_tools"

    def __init__(self, options: ClearToolsOptions | None = None, *, binds_thinking: bool = True) -> None:
        self._options = options or ClearToolsOptions()
        self._binds_thinking = binds_thinking

    async def compact(
        self, shown: Sequence[Shown], *, target: int, counter: TokenCounter, keep: AbstractSet[str] = frozenset()
    ) -> Rewrite:
        """A rewrite that brings `shown` down to `target` tokens by clearing alone."""
        if is_within(shown, target, counter):
            return Rewrite(replacements=())
        request = current_request(shown)
        untouched = keep if request is None else {*keep, request.id}
        found = self._cleared(shown, counter, untouched)
        rewrite = rewritten(shown, found, keep=untouched, binds_thinking=self._binds_thinking)
        left = shown_tokens(shown, counter) - _saved(shown, rewrite, counter)
        if left > target:
            raise CannotCompact(
                f"clearing {len(found)} messages with tool results leaves {left:,} tokens and the target is "
                f"{target:,}; use a strategy that cuts, such as summarize"
            )
        return rewrite

    def _cleared(
        self, shown: Sequence[Shown], counter: TokenCounter, untouched: AbstractSet[str]
    ) -> dict[str, Replacement]:
        calls: dict[str, ToolCallPart] = {}
        spared = self._newest(shown)
        found: dict[str, Replacement] = {}
        for place, item in enumerate(shown):
            parts: list[Part] = []
            for number, part in enumerate(item.message.parts):
                if isinstance(part, ToolCallPart):
                    calls[part.id] = part
                if isinstance(part, ToolResultPart) and (place, number) not in spared:
                    parts.append(self._line(part, calls.get(part.call_id), counter))
                else:
                    parts.append(part)
            if tuple(parts) != item.message.parts and item.id not in untouched:
                found[item.id] = Replacement((item.id,), replace(item.message, parts=tuple(parts)))
        return found

    def _newest(self, shown: Sequence[Shown]) -> set[tuple[int, int]]:
        """The places of the newest results, and of all that the model has not seen yet."""
        places = [
            (place, number)
            for place, item in enumerate(shown)
            for number, part in enumerate(item.message.parts)
            if isinstance(part, ToolResultPart)
        ]
        answered = max((n for n, item in enumerate(shown) if item.message.role == "assistant"), default=-1)
        return {*places[max(0, len(places) - self._options.keep) :], *(at for at in places if at[0] > answered)}

    def _line(self, result: ToolResultPart, call: ToolCallPart | None, counter: TokenCounter) -> ToolResultPart:
        """The result as one line, or as it is where that would save too little."""
        size = counter.count_part(result)
        if call is None or call.name in self._options.exclude or size < self._options.min_tokens:
            return result
        text = "\n".join(plain(part) for part in result.content)
        line = (
            f"[The result of {describe(call)} was cleared: {len(text):,} characters, about {size:,} tokens. It began: "
            f"{one_line(text, 150)} Call again if it is needed.]"
        )
        cleared = replace(result, content=(TextPart(line),))
        return cleared if 2 * counter.count_part(cleared) <= size else result


def _saved(shown: Sequence[Shown], rewrite: Rewrite, counter: TokenCounter) -> int:
    covered = rewrite.covered
    before = sum(counter.count_part(p) for item in shown if item.id in covered for p in item.message.parts)
    after = sum(counter.count_part(p) for r in rewrite.replacements if r.message for p in r.message.parts)
    return before - after


# A structured extract of what goes.

_TIMES: Final = re.compile(r"^(.+) x(\d{1,9})")


class Snapshot(Cutter):
    """Shows what was asked, decided, touched, called and what failed, of the part that goes. Asks no model.

    There is one snapshot, of at most `max_tokens`: an earlier one is folded into the new one.
    """

    name = "snapshot"

    def __init__(self, *, max_tokens: int = 1000, **options: Unpack[CutOptions]) -> None:
        if max_tokens < 1:
            raise UsageError(f"max_tokens={max_tokens}; a snapshot needs at least 1")
        super().__init__(**options)
        self._max_tokens = max_tokens

    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[SummaryMessage | None, Usage]:
        limit = min(choice.room, self._max_tokens)
        dropped = choice.dropped
        record = await off_loop(chars_of(dropped), lambda: fit(snapshot_of(dropped), limit, counter))
        if record is None:
            raise CannotCompact(f"{limit} tokens are left for a snapshot, which is less than its frame takes")
        return record, Usage()


def snapshot_of(dropped: Sequence[Shown]) -> SummaryMessage:
    """The extract, most important part first: what does not fit is left off at the end."""
    messages = [item for item in dropped if read_record(item.message) is None]
    records = records_in(dropped)
    earlier = [record.parts for record in records if record.strategy == Snapshot.name]
    parts = {
        name: _newest((*(line for old in earlier for line in old.get(name, ())), *find(messages)), most)
        for name, (most, find) in _PARTS.items()
    }
    parts["counts"] = _added((*(line for old in earlier for line in old.get("counts", ())), *_counts(messages)))
    others = (record for record in records if record.strategy != Snapshot.name)
    parts["earlier"] = (
        *(line for old in earlier for line in old.get("earlier", ())),
        *earlier_lines(others),
    )
    return SummaryMessage(Snapshot.name, originals_in(dropped), parts)


def _requests(messages: Sequence[Shown]) -> Iterable[str]:
    for item in messages:
        if is_request(item.message):
            others = (plain(part) for part in item.message.parts if not isinstance(part, ToolResultPart))
            yield one_line(item.message.text or " ".join(others), 400)


def _decisions(messages: Sequence[Shown]) -> Iterable[str]:
    # Only the messages' own text: a page that a tool fetched decides nothing.
    return (one_line(found, 240) for item in messages for found in decisions_in(item.message.text))


def _errors(messages: Sequence[Shown]) -> Iterable[str]:
    for item in messages:
        for part in item.message.parts:
            if isinstance(part, ToolResultPart) and part.is_error:
                yield one_line(" ".join(map(plain, part.content)), 300)


def _files(messages: Sequence[Shown]) -> Iterable[str]:
    """Every path in the input of any tool, newest mention last."""
    found: dict[str, None] = {}
    for call in _calls_in(messages):
        for path in paths_in("\n".join(leaves(call.input))):
            found.pop(path, None)
            found[path] = None
    return found


def _calls(messages: Sequence[Shown]) -> Iterable[str]:
    return (describe(call) for call in _calls_in(messages))


def _answer(messages: Sequence[Shown]) -> Iterable[str]:
    return (one_line(i.message.text, 240) for i in messages if i.message.role == "assistant" and i.message.text.strip())


def _counts(messages: Sequence[Shown]) -> Iterable[str]:
    counts = Counter(f"calls of {call.name}" for call in _calls_in(messages))
    counts["requests"] = sum(is_request(item.message) for item in messages)
    counts["errors"] = sum(
        isinstance(p, ToolResultPart) and p.is_error for item in messages for p in item.message.parts
    )
    return (f"{one_line(name, 80)} x{count}" for name, count in sorted(counts.items()) if count)


_PARTS: Final[dict[str, tuple[int, Callable[[Sequence[Shown]], Iterable[str]]]]] = {
    "requests": (3, _requests),
    "decisions": (6, _decisions),
    "errors": (2, _errors),
    "files": (20, _files),
    "calls": (5, _calls),
    "answer": (1, _answer),
}
"""How many lines of each kind stay, and where they come from."""


def _calls_in(messages: Sequence[Shown]) -> Iterable[ToolCallPart]:
    return (part for item in messages for part in item.message.parts if isinstance(part, ToolCallPart))


def _newest(lines: Iterable[str], most: int) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for line in lines:
        if line:
            found.pop(line, None)
            found[line] = None
    return tuple(found)[-most:]


def _added(lines: Iterable[str]) -> tuple[str, ...]:
    """Counts of the same thing as one."""
    counts: Counter[str] = Counter()
    for line in lines:
        if found := _TIMES.fullmatch(line):
            counts[found[1]] += int(found[2])
    return tuple(f"{name} x{count}" for name, count in counts.items())


# Several strategies as one: the cheap pass first, then each in order, truncation last.

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

    A strategy that fails other than by CannotCompact three times in a row rests for a few passes. When all of them
    failed, `last` is tried.
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
