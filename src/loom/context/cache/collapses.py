"""Collapses of a prompt cache, found in the usage of recorded calls, each with its cause.

A call can read what the call before it had read and written, as long as the provider keeps it and the prompt still
begins with it. Where it read clearly less, the cache collapsed there; what the record says of the time between the two
calls names the cause.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from loom.catalog import ModelInfo, find_model
from loom.traces.transcript import RecordedCall, RecordedCompaction

CollapseCause: TypeAlias = Literal[
    "compaction", "model_changed", "idle", "tools_changed", "program_changed", "effort_changed", "unexplained",
]  # fmt: skip
COLLAPSE_CAUSES: Final[tuple[CollapseCause, ...]] = get_args(CollapseCause)
"""Every cause; where several hold, the first of them is named."""

LEAST_LOST: Final = 1024
"""A smaller loss is not a collapse: it is about the shortest prefix that providers cache at all."""
LEAST_LOST_UNWRITTEN: Final = 2048
"""The same where writes are not reported: then what was kept is only known up to the provider's own grid."""
SHARE_LOST: Final = 0.05
"""A loss of a smaller share is the edge of the conversation, where the last block may change from call to call."""
SIDE_CALL: Final = 0.5
"""A prompt below this share of the one before it is another prompt, if the next call finds the cache as it was."""
LOOKED_AHEAD: Final = 8
"""Calls after a small one that are looked at, to see whether the conversation goes on as if it had not been made."""
PARALLEL_SECONDS: Final = 2.0
"""Calls that come closer are taken as parallel: an entry can be read only once the answer to its writer begins."""
SIBLING_SECONDS: Final = 60.0
"""Where a record holds the time of the answer, parallel calls may be this far apart; their prompts do not grow then."""
UNPROMISED_SECONDS: Final = 300.0
"""How long a cache that promises no time is expected to keep an unused prefix: OpenAI names 5 to 10 minutes."""
STAYS: Final = 3
"""Calls in a row that stop at the same prefix before a cache that promises nothing is said to have lost it."""
GRID: Final = 128
"""The step in which OpenAI reports reads."""

ADVICE: Final[Mapping[CollapseCause, str]] = {
    "compaction": "compact seldom and before a pause, when the cache is about to expire anyway",
    "model_changed": "keep one model for a conversation: each has a cache of its own",
    "idle": "go on sooner, or ask for the longer lifetime where pauses are usual",
    "tools_changed": "connect tools and servers before the first call, and leave them as they are",
    "program_changed": "finish a conversation before you update the program: it brings another system prompt",
    "effort_changed": "choose the effort before the first call",
    "unexplained": "record the requests and run `loom cache explain` on the two calls: it names the byte that moved",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Collapse:
    """A call that read clearly less than the call before it had left in the cache."""

    cause: CollapseCause
    also: tuple[CollapseCause, ...] = ()
    """Further causes that hold."""
    message: str
    advice: str
    expected: int
    """Tokens that could have been read."""
    read: int
    lost: int
    """Tokens that were paid again: expected, less what was read."""
    extra_cost: float
    """What that cost more than reading them, in tokens at the plain input price."""
    usd: float | None
    """The same in US dollars; None where the price is not known."""
    pause: float | None = None
    """Seconds since the call before."""


class CacheRates:
    """What a model's cache promises and what its tokens cost."""

    def __init__(self, model: str) -> None:
        info = find_model(
            re.sub(r"\[[^\[\]]{1,40}\]$", "", model)
        )  # programs mark a larger window as in claude-opus-5[1m]
        rules = info.cache
        longest = max(rules.ttls, key=lambda ttl: rules.ttls[ttl], default="")
        self.info: ModelInfo = info
        self.read = rules.read
        self.short = rules.write.get(rules.default_ttl or "", 1.0)
        self.long = rules.write.get(longest, self.short)
        self.promises = bool(rules.ttls)
        self.short_seconds = rules.ttls.get(rules.default_ttl or "", UNPROMISED_SECONDS)
        self.long_seconds = rules.ttls.get(longest, UNPROMISED_SECONDS)
        self.least = rules.min_prefix if info.known else GRID
        self.grid = max(rules.grid, GRID)

    def cost(self, call: RecordedCall) -> float | None:
        """US dollars for a call."""
        if self.info.input_price is None or self.info.output_price is None:
            return None
        prompt = call.fresh + (call.read or 0) * self.read
        prompt += (call.written_short or 0) * self.short + (call.written_long or 0) * self.long
        return (prompt * self.info.input_price + call.output * self.info.output_price) / 1e6

    def extra_cost(self, call: RecordedCall, lost: int) -> float:
        """What lost tokens cost more than reading them. A longer lifetime stands before a shorter one in a prompt."""
        cost, left = 0.0, lost
        for tokens, price in ((call.written_long or 0, self.long), (call.written_short or 0, self.short)):
            part = min(left, tokens)
            cost += part * (price - self.read)
            left -= part
        return cost + left * (1.0 - self.read)


@dataclass(slots=True)
class _Left:
    """What the calls so far left in the cache of one session."""

    call: RecordedCall
    prompt: int
    kept: int
    """Tokens from the start that the next call can read."""
    lasting: int
    """Those of them that are kept for the long time."""
    is_written: bool
    """Whether the provider reports writes, so that `kept` is exact."""
    doubted: bool = False
    """Whether the call read more than was known to be kept: one answer of several passes reports their sum."""


class CollapseFinder:
    """The calls of one conversation, followed one after another. `rates` are shared between conversations."""

    def __init__(
        self, calls: Sequence[RecordedCall], compactions: Iterable[RecordedCompaction], rates: dict[str, CacheRates]
    ) -> None:
        self._calls = calls
        self._compactions = _compactions_by_call(calls, compactions)
        self._known_rates = rates
        self._left: _Left | None = None
        self._levels: list[tuple[int, int]] = []
        """Ends of prefixes that were kept, shortest first, each with the number of texts up to there."""
        self._reads_whole: set[str] = set()
        """Models that were seen to read whole prompts although they report no writes."""
        self._stopped_at = -1
        """Where the last call stopped to read, if that was a collapse without a cause."""
        self._was_parallel = False

    def __iter__(self) -> Iterator[tuple[RecordedCall, Collapse | None, int]]:
        """Each call with the collapse before it, if there is one, and the tokens that were missed without one."""
        for i, call in enumerate(self._calls):
            yield call, *self._follow(i, call)

    def rates(self, call: RecordedCall) -> CacheRates:
        """What the model of a call promises and costs."""
        if call.model not in self._known_rates:
            self._known_rates[call.model] = CacheRates(call.model)
        return self._known_rates[call.model]

    def _follow(self, i: int, call: RecordedCall) -> tuple[Collapse | None, int]:
        """The collapse before a call, if there is one, and tokens that were missed without one."""
        before = self._left
        if call.read is None:
            if before and before.call.model == call.model:  # whatever it did, it kept the entry alive
                before.call = replace(before.call, at=call.at)
            return None, 0
        if before is None:
            self._left = self._after(call, None)
            return None, 0
        if self._is_aside(i, call, before):
            return None, 0
        if i in self._compactions or call.model != before.call.model:
            self._levels.clear()
        found = self._lost(i, call, before)
        self._left = after = self._after(call, before)
        if self._was_parallel:
            # Which of several parallel calls the conversation goes on from is not known, so the least is expected.
            after.kept, after.lasting = min(before.kept, after.kept), min(before.lasting, after.lasting)
        return found

    def _after(self, call: RecordedCall, before: _Left | None) -> _Left:
        """What the cache holds after a call."""
        prompt, read = prompt_of(call), call.read or 0
        is_written = call.written_short is not None or call.written_long is not None
        long = call.written_long or 0
        same = before is not None and before.call.model == call.model
        if is_written:
            kept = read + long + (call.written_short or 0)
            lasting = read + long if long else min(before.lasting, read) if before and same else 0
        else:
            rates = self.rates(call)
            # One read may be a system prompt that is cached alone; a second that grew with the prompt is not.
            if before and same and read > (before.call.read or 0) > 0 and read >= 0.9 * before.prompt:
                self._reads_whole.add(call.model)
            kept = prompt - prompt % rates.grid if call.model in self._reads_whole else read
            lasting = 0
        doubted = bool(before and same and is_written and before.kept and read > before.kept * 1.5 + LEAST_LOST)
        if doubted and before and not before.doubted:
            kept = min(kept, before.kept + kept - read)
        if end := kept if is_written else prompt:
            insort(self._levels, (end, call.number))
        return _Left(call, prompt, kept, lasting, is_written, doubted)

    def _is_aside(self, i: int, call: RecordedCall, before: _Left) -> bool:
        """Whether this is another, smaller prompt beside the conversation, whose cache stays as it was."""
        if prompt_of(call) >= SIDE_CALL * before.prompt or i in self._compactions:
            return False
        left = (call.read or 0) + (call.written_short or 0) + (call.written_long or 0)
        following = self._calls[i + 1 : i + 1 + LOOKED_AHEAD]
        for later in following:
            if prompt_of(later) >= SIDE_CALL * before.prompt:
                could = min(before.kept, prompt_of(later))
                is_same = later.model == before.call.model and (later.read or 0) >= (1 - SHARE_LOST) * could
                return is_same and (later.read or 0) > left
        return len(following) < LOOKED_AHEAD and call.model != before.call.model

    def _lost(self, i: int, call: RecordedCall, before: _Left) -> tuple[Collapse | None, int]:
        read, prompt, rates = call.read or 0, prompt_of(call), self.rates(call)
        self._was_parallel = False
        expected = min(before.kept, prompt)
        lost = expected - read
        least = LEAST_LOST if before.is_written else LEAST_LOST_UNWRITTEN
        if lost < least or lost <= SHARE_LOST * expected or expected < rates.least:
            self._stopped_at = -1
            return None, 0
        causes: dict[CollapseCause, str] = dict(self._causes(i, call, before))
        if not causes:
            self._was_parallel = _is_parallel(call, before)
            if self._was_parallel or self._is_normal(call, before, lost):
                return None, 0
            if not rates.promises and not before.is_written and not self._stays(i, read):
                return None, lost
            self._stopped_at = read
            causes = {"unexplained": self._unexplained(call, before)}
        cause, *also = sorted(causes, key=COLLAPSE_CAUSES.index)
        extra = rates.extra_cost(call, lost)
        price = rates.info.input_price
        collapse = Collapse(
            cause=cause,
            also=tuple(also),
            message=causes[cause],
            advice=ADVICE[cause],
            expected=expected,
            read=read,
            lost=lost,
            extra_cost=extra,
            usd=None if price is None else extra * price / 1e6,
            pause=_pause(call, before),
        )
        return collapse, 0

    def _is_normal(self, call: RecordedCall, before: _Left, lost: int) -> bool:
        """Whether a conversation that was not changed reads like this."""
        read, last = call.read or 0, before.call
        written = before.kept - (last.read or 0)
        if before.is_written and read > (last.read or 0):
            # It grew, so only a part of the last write was not read: one that is not readable yet, or a tail that the
            # next request does not repeat. A first write has the system prompt in it, so most of it must be read.
            return bool(last.read) or lost * 2 <= written
        # It went back to an earlier point, whose entry ends at exactly this token.
        return prompt_of(call) < before.prompt and read > 0 and self._level_up_to(read)[0] == read

    def _level_up_to(self, read: int) -> tuple[int, int]:
        """The longest prefix that was kept and not longer than this, and the number of texts up to there."""
        at = bisect_right(self._levels, (read, sys.maxsize))
        return self._levels[at - 1] if at else (0, 0)

    def _stays(self, i: int, read: int) -> bool:
        """Whether calls go on to stop at the same prefix, which a cache that forgets at random would not do."""
        if read and self._stopped_at >= 0 and abs(read - self._stopped_at) <= GRID:
            return True
        following = self._calls[i : i + STAYS]
        return (
            read > 0
            and len(following) == STAYS
            and all(later.read is not None and abs(later.read - read) <= GRID for later in following)
        )

    def _causes(self, i: int, call: RecordedCall, before: _Left) -> Iterator[tuple[CollapseCause, str]]:
        last = before.call
        if i in self._compactions:
            yield "compaction", _compacted(self._compactions[i])
        if call.model != last.model:
            yield "model_changed", f"the model changed from {last.model} to {call.model}"
        idle = self._expired(call, before)
        if idle:
            yield "idle", idle
        if call.tools and last.tools and call.tools != last.tools:
            yield "tools_changed", "the tools changed"
        if call.program_version and last.program_version and call.program_version != last.program_version:
            versions = f"from {last.program_version} to {call.program_version}"
            yield "program_changed", f"the program changed {versions}, and may send another system prompt"
        if call.effort and last.effort and call.effort != last.effort:
            yield "effort_changed", f"the effort changed from {last.effort} to {call.effort}"

    def _expired(self, call: RecordedCall, before: _Left) -> str:
        """That the cache had expired, in words, if a pause explains at least half of what was lost."""
        pause = _pause(call, before)
        if pause is None:
            return ""
        rates = self.rates(before.call)
        short, long = _lifetimes(rates, before)
        alive = before.kept if pause <= short else before.lasting if pause <= long else 0
        expected = min(before.kept, prompt_of(call))
        lost, explained = expected - (call.read or 0), expected - min(alive, expected)
        if pause <= short or explained * 2 < lost:
            return ""
        kept_for = _words(long if pause > long and before.lasting * 2 > before.kept else short)
        if not rates.promises and not before.is_written:
            return f"{_words(pause)} passed, and this provider promises no time; unused prefixes are dropped in minutes"
        return f"{_words(pause)} passed, and what was written is kept for {kept_for}"

    def _unexplained(self, call: RecordedCall, before: _Left) -> str:
        read, last = call.read or 0, before.call.read or 0
        verb = "stayed at" if abs(read - last) <= GRID else "fell to" if read < last else "is"
        if not read:
            message = "nothing was read: tools or system prompt changed, or the provider dropped the entry"
        else:
            message = f"read {verb} {read:,}: the part before message {self._level_up_to(read)[1] + 1} is intact"
        pause, short = _pause(call, before), _lifetimes(self.rates(before.call), before)[0]
        if pause is not None and 0.9 * short < pause <= short:
            message += f"; the pause of {_words(pause)} is close to the kept time of {_words(short)}"
        if prompt_of(call) < SIDE_CALL * before.prompt:
            message += f"; the prompt became shorter, from {before.prompt:,} to {prompt_of(call):,} tokens"
        return message


def prompt_of(call: RecordedCall) -> int:
    """Tokens of the whole prompt of a call."""
    return call.fresh + (call.read or 0) + (call.written_short or 0) + (call.written_long or 0)


def _pause(call: RecordedCall, before: _Left) -> float | None:
    return None if call.at is None or before.call.at is None else call.at - before.call.at


def _is_parallel(call: RecordedCall, before: _Left) -> bool:
    """Whether a call was made before the last one had written what it wrote."""
    last, pause = before.call, _pause(call, before)
    if pause is None or (call.read or 0) < (last.read or 0):
        return False
    return pause <= PARALLEL_SECONDS or (pause <= SIBLING_SECONDS and prompt_of(call) <= before.prompt)


def _lifetimes(rates: CacheRates, before: _Left) -> tuple[float, float]:
    if before.lasting and not rates.promises:  # a model that is not listed, with writes for five minutes and an hour
        return 300.0, 3600.0
    return rates.short_seconds, rates.long_seconds


def _compactions_by_call(
    calls: Sequence[RecordedCall], compactions: Iterable[RecordedCompaction]
) -> dict[int, RecordedCompaction]:
    """The compaction before each call that is the first after one; lines say the order, else times, else texts."""
    found: dict[int, RecordedCompaction] = {}
    for compaction in compactions:
        for i, call in enumerate(calls):
            if compaction.line and call.line:
                is_after = call.line > compaction.line
            elif compaction.at is not None and call.at is not None:
                is_after = call.at >= compaction.at
            else:
                is_after = call.number > compaction.number
            if is_after:
                found[i] = compaction
                break
    return found


def _compacted(compaction: RecordedCompaction) -> str:
    how = f" ({compaction.trigger})" if compaction.trigger else ""
    size = ""
    if compaction.before is not None:
        after = "" if compaction.after is None else f" to {compaction.after:,}"
        size = f", from {compaction.before:,}{after} tokens"
    return f"the conversation was compacted{how}{size}"


_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def _words(seconds: float) -> str:
    """A time for people: 45 s, 12 min, 3.5 h."""
    for size, name in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {name}"
    return f"{seconds:.1f} s"
