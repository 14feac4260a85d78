"""Compaction in a session: when it runs, what it costs, and how it is undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from anyio import fail_after

from loom.context.context import Context
from loom.context.entry import MessageEntry
from loom.core.log import Compaction, CompactionEnd, CompactionStart, ContextPressure, Replacement, Shown
from loom.core.message import Message, TextPart, ThinkingPart, Usage, plain
from loom.core.window import View, Window
from loom.errors import (
    CannotCompact,
    CompactionError,
    ContextOverflow,
    LoomError,
    NotFound,
    ProviderUnavailable,
    UsageError,
)
from loom.protocols.compactor import Compactor, Rewrite
from loom.protocols.model import Model, ModelResponse
from loom.session.compaction.coverage import Coverage, coverage
from loom.session.compaction.cut import CutOptions, cut, shown_tokens
from loom.session.compaction.strategies import Chain, ClearTools, Pass, SlidingWindow, Snapshot, Truncate, apply_rewrite
from loom.session.compaction.summarize import Ask, Hierarchical, Summarize, ask_model
from loom.session.compaction.summary_message import is_left_over
from loom.session.config import CompactionConfig
from loom.session.history import History, current_request, has_content
from loom.session.model_call import ModelCaller, named_model
from loom.session.reply import Emitter
from loom.telemetry import Bill, info_of
from loom.text.tokens import MESSAGE_OVERHEAD

# When to compact and down to what, decided from plain numbers.

PRESSURE: Final = (0.75, 0.875, 1.0)
"""Shares of the trigger at which the pressure rises by one level: 60, 70 and 80% of a window with the default
trigger. The last is the trigger itself, so that pressure is never reported after a compaction began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The size of the next request, and the window of the model."""

    tokens: int
    """The whole prompt: system, tools and history."""
    history: int
    """The part of it that a compactor can work on."""
    messages: int
    """Messages of the history."""
    window: int
    reserved_output: int = 0
    """Tokens of the window that are set aside for the answer."""

    def __post_init__(self) -> None:
        if min(self.tokens, self.history, self.messages, self.reserved_output) < 0:
            raise UsageError(f"{self!r} cannot be: none of these is negative")
        if self.window <= self.reserved_output:
            raise UsageError(
                f"the window has {self.window:,} tokens and {self.reserved_output:,} are set aside for the answer; "
                f"ask for a shorter answer, or give the model's true window"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows from a load."""

    compact: bool
    trigger: int
    """The size of the whole prompt, in tokens, from which on a compaction is due."""
    target: int
    """What the history may have after one, in tokens."""
    pressure: int
    """0 to 3: how many of the PRESSURE levels are reached. Report it where it rose."""


def decide(config: CompactionConfig, load: Load) -> Decision:
    """Whether to compact now, and down to what.

    The target is the configured share of the room that the history has before the trigger. Where the number of
    messages set it off, it is that share of the present history if that is less: a pass then always has
    something to do.
    """
    ceiling = load.window - load.reserved_output
    kind, threshold = config.trigger.type, config.trigger.threshold or 0
    at = {"tokens": int(threshold), "fraction": int(threshold * load.window)}.get(kind, ceiling)
    trigger = max(1, min(at, ceiling))
    filled = load.tokens / trigger
    room = max(0, trigger - max(0, load.tokens - load.history))  # a part may be estimated above a measured whole
    if kind == "messages":
        filled = max(filled, load.messages / threshold)
        room = min(room, load.history)
    return Decision(
        compact=kind != "disabled" and filled >= 1,
        trigger=trigger,
        target=int(room * config.target),
        pressure=sum(filled >= level for level in PRESSURE),
    )


# From a configuration to the compactor it describes.

_PLAIN = {"truncate": Truncate, "sliding_window": SlidingWindow, "snapshot": Snapshot}
_ASKING = {"summarize": Summarize, "hierarchical": Hierarchical}


def build(config: CompactionConfig, *, ask: Ask | None = None, binds_thinking: bool = True) -> Chain:
    """The compactor of a configuration: its strategies in a chain, clearing first, truncation last.

    `ask` asks for summaries, unless the configuration names a model for that.
    """
    by_count = config.trigger.type == "messages"
    common = CutOptions(
        retain=config.retain,
        binds_thinking=binds_thinking,
        max_messages=max(2, int((config.trigger.threshold or 0) * config.target)) if by_count else None,
    )
    if isinstance(config.summary_model, str):
        raise UsageError(f"summary_model is the name {config.summary_model!r}; open it first, with open_model()")
    asked = ask if config.summary_model is None else ask_model(config.summary_model)
    clear = ClearTools(config.clear_tools, binds_thinking=binds_thinking)
    # Clearing leaves the number of messages as it is, so it cannot answer a trigger that counts them.
    cheap = clear if config.clear_tools.enabled and not by_count else None
    made: list[Compactor] = []
    for strategy in config.strategies:
        if not isinstance(strategy, str):
            made.append(strategy)
        elif strategy == "clear_tools":
            made.append(clear)
        elif strategy in _PLAIN:
            made.append(_PLAIN[strategy](**common))
        elif asked is None:
            raise UsageError(f"the strategy {strategy} needs a model; give ask=, or summary_model in the configuration")
        else:
            made.append(_ASKING[strategy](asked, **common))
    return Chain(made, cheap=cheap, last=Truncate(**common))


Spend: TypeAlias = Callable[[Bill], None]
"""Takes what a compaction cost, also where it failed."""

_SMALLER = 0.9
"""After a refusal the next request has at most this share of the refused one: providers count differently from us, and
a request just below the limit might be refused once more."""
_RECORD = (200, 1_000)
"""Tokens for the record of a compaction on demand: at least and at most; in between, half of what goes."""
_FILLER = "word "
_WORTH_A_TRY = 1.1
"""Where a pass could not reach its target, the next one waits until the prompt has grown by this factor: every pass may
ask a model, and the same history fails the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What a compaction would do. Nothing has been changed.

    The length of a summary is not known before a model writes it: `tokens_after` assumes the longest one allowed.
    """

    strategy: str
    """The strategy that would run."""
    fallback: str | None
    """The strategy that would run if the summary fails or is too long; None where no model is asked."""
    tokens_before: int
    tokens_after: int
    goes: tuple[Shown, ...]
    """What would no longer be shown as it is."""
    stays: tuple[Shown, ...]
    calls: int
    """How often a model would be asked."""
    call_tokens: int
    """Prompt tokens of those calls; most of them are read from the cache where it is warm."""
    rewritten_tokens: int
    """Tokens behind the first change: they leave the cache, and the next request writes them again."""

    @property
    def saves(self) -> int:
        """Tokens that every later request is smaller by."""
        return self.tokens_before - self.tokens_after

    def __str__(self) -> str:
        otherwise = f"; {self.fallback} instead, if the summary fails or is too long" if self.fallback else ""
        asks = f", asking the model {self.calls}x ({self.call_tokens:,} tokens of prompt)" if self.calls else ""
        return (
            f"{self.strategy}: {len(self.goes)} of {len(self.goes) + len(self.stays)} messages would go{asks}; "
            f"{self.tokens_before:,} tokens would become {self.tokens_after:,}, and {self.rewritten_tokens:,} of them "
            f"would be written to the cache again{otherwise}"
        )


@dataclass(frozen=True, slots=True)
class _Demand:
    """What a compaction on demand has to keep and reach. Tokens are those of a compactor."""

    keep: frozenset[str]
    target: int
    keeps_newest: bool
    """Whether the history ends with an answer, which then stays."""


class CompactionDriver:
    """Keeps one session's history inside the window of its model."""

    def __init__(
        self,
        config: CompactionConfig,
        *,
        caller: ModelCaller,
        context: Context,
        history: History,
        emitter: Emitter,
    ) -> None:
        self._config = config
        self._caller = caller
        self._context = context
        self._history = history
        self._emitter = emitter
        self._pressure = 0
        self._gave_up_at: int | None = None
        self._spent = Bill()
        """The cost of the pass in progress."""
        self._summaries = named_model(config.summary_model) if config.summary_model else None
        self._asks: Ask = self._other(self._summaries) if self._summaries else self._own
        self._compactor = self._built(self._ask)

    def reset(self) -> None:
        """Start afresh: the history has become another one."""
        self._pressure, self._gave_up_at = 0, None
        self._caller.meter.forget()

    def rebuild(self) -> None:
        """Start afresh with another model."""
        self._compactor = self._built(self._ask)
        self.reset()

    # -- when ---------------------------------------------------------------------------------------------

    async def if_needed(self, spend: Spend) -> None:
        """Compact if it is time. Where that cannot be done the turn goes on: the provider has the last word."""
        window = self._context.compile(clear_volatile=False)
        await self._caller.meter.count_ahead(window)
        load, decision = self.load(window, counts_history=False)  # only a compaction asks what the history has of it
        if decision.pressure > self._pressure:
            values = {"tokens": load.tokens, "window": load.window, "trigger": decision.trigger}
            await self._emitter.emit(ContextPressure, **values)
        self._pressure = decision.pressure
        waits = self._gave_up_at is not None and load.tokens < self._gave_up_at * _WORTH_A_TRY
        if not decision.compact or waits:
            return
        load, decision = self.load(window)
        try:
            await self._run(f"{load.tokens:,} tokens of {decision.trigger:,}", window, decision.target, spend)
        except CompactionError:
            self._gave_up_at = load.tokens

    async def after_overflow(self, window: Window, error: ContextOverflow, spend: Spend) -> None:
        """The provider refused a request as too large: make the next one smaller, whatever the trigger says."""
        load, decision = self.load(window)
        size = error.size or load.tokens
        limit = min(size * _SMALLER, error.limit or size)
        # The provider's count and ours may differ: the share of the refused size is what matters.
        total = load.tokens * limit / size
        target = min(decision.target, int(total - (load.tokens - load.history)))
        try:
            await self._run(f"the provider refused the request: {error}", window, max(0, target), spend)
        except CompactionError as failure:
            message = f"{error}; and the request cannot be made smaller: {failure}"
            raise ContextOverflow(message, limit=error.limit, size=error.size) from failure

    async def on_demand(self, spend: Spend) -> Compaction | None:
        """Compact now; None where all is within `retain`: then there is nothing to do, and no event."""
        window = self._context.compile(clear_volatile=False)
        await self._caller.meter.count_ahead(window)
        demand = self._demand(window)
        return await self._run("asked for", window, demand.target, spend, demand) if demand else None

    def _demand(self, window: Window) -> _Demand | None:
        """What compacting now has to keep and reach, so that all that `retain` names stays; None where nothing else is.

        Where what `retain` names would trigger the next compaction at once, it gives way.
        """
        load, decision = self.load(window)
        shown, counter, keep = self._history.shown, self._caller.meter.counter, self._keep()
        retain = replace(self._config.retain, firm=True)
        total = shown_tokens(shown, counter)
        choice = cut(shown, target=total, counter=counter, keep=keep, retain=retain, reserve=0)
        if all(is_left_over(item.message) for item in choice.dropped):
            return None
        gone = {item.id for item in choice.dropped} | choice.bridges
        stays = [item for item in shown if item.id not in gone]
        newest = shown[-1] if shown[-1].message.role == "assistant" else None
        size = shown_tokens(stays, counter)
        spare = total - size
        least, most = _RECORD
        target = self._inside(min(decision.target, int(load.history * self._config.target)))
        wanted = min(total - 1, max(target, size + min(spare, max(least, min(spare // 2, most)))))
        if wanted > self._inside(decision.trigger - max(0, load.tokens - load.history)):
            stays, wanted = [newest] if newest else [], min(target, total - 1)
        # Thinking that is bound to what stood before it goes with the edit, so its message cannot stay as it is.
        binds = self._caller.binds_thinking
        unchanged = (item.id for item in stays if not (binds and _thinks(item)))
        return _Demand(frozenset(unchanged) | keep, wanted, newest is not None)

    def _inside(self, target: int) -> int:
        """A target of ours in tokens of a compactor: ours count the overhead of each message, too."""
        shown = self._history.shown
        return target * shown_tokens(shown, self._caller.meter.counter) // max(1, self._count(shown))

    def _keep(self) -> set[str]:
        shown = self._history.shown
        keep = {*self._history.pins} & {item.id for item in shown}
        if (request := current_request(shown)) is not None:
            keep.add(request.id)
        return keep

    def load(self, window: Window, *, counts_history: bool = True) -> tuple[Load, Decision]:
        """How full a window is, and what follows from it; without its history counted, the target is not known."""
        total = self._caller.meter.tokens(window)
        history = min(total, self._count(self._history.shown)) if counts_history else 0
        size = self._caller.window_size
        reserve = self._caller.reserved_output
        load = Load(
            tokens=total, history=history, messages=len(self._history.shown), window=size, reserved_output=reserve
        )
        return load, decide(self._config, load)

    # -- how ----------------------------------------------------------------------------------------------

    async def _run(
        self, reason: str, window: Window, target: int, spend: Spend, demand: _Demand | None = None
    ) -> Compaction:
        """Rewrite what is shown down to a target; raises CompactionError where that fails, and nothing changed."""
        compactor = self._built(self._ask, firm=True) if demand else self._compactor
        before = self._caller.meter.tokens(window)
        await self._emitter.emit(CompactionStart, reason=reason, strategy=compactor.name, tokens=before, target=target)
        self._spent = Bill()
        done, failure = None, None
        outcome: dict[str, Any] = {"strategy": compactor.name, "tokens_after": before, "undo": None}
        outcome |= {"covered": 0, "dropped_thinking": 0}
        try:
            rewrite = await self._rewrite(compactor, demand.target if demand else self._inside(target), demand)
            shown = self._history.shown
            left = max(0, before - self._count(shown) + self._count(apply_rewrite(shown, rewrite)))
            done = self._history.rewrite(rewrite.strategy, rewrite.replacements, before=before, after=left)
            outcome = {"strategy": done.strategy, "tokens_after": done.tokens_after, "undo": done.id}
            outcome |= {"covered": len(rewrite.covered), "dropped_thinking": rewrite.dropped_thinking}
        except LoomError as error:
            failure, outcome["error"] = error, str(error)
        spend(self._spent)
        await self._emitter.emit(CompactionEnd, tokens_before=before, usage=self._spent.usage, **outcome)
        if done is None:
            raise failure if isinstance(failure, CompactionError) else CompactionError(str(failure)) from failure
        self._pressure, self._gave_up_at = 0, None
        return done

    async def plan(self) -> CompactionPlan:
        """What a compaction now would do. No model is asked: summaries are taken to be as long as they may be."""
        window = self._context.compile(clear_volatile=False)
        await self._caller.meter.count_ahead(window)
        calls: list[int] = []
        beside = self._caller.meter.tokens(window) - self._count(self._history.shown)

        async def guess(history: Sequence[Shown], instruction: str, *, max_output: int) -> ModelResponse:
            counter = self._caller.meter.counter
            size = self._count(history)
            calls.append(beside + size + counter.count(instruction))
            text = _FILLER * max(1, min(max_output, size // 4) // counter.count(_FILLER * 8) * 8)
            return ModelResponse(parts=(TextPart(text),), stop="end", usage=Usage(), model="guess")

        compactor, demand = self._built(guess, firm=True), self._demand(window)
        if demand is None:
            return self._planned(Pass(replacements=(), strategy=compactor.name), window, (), None)
        rewrite = await self._rewrite(compactor, demand.target, demand)
        fallback = compactor.after(rewrite.strategy) if calls else None
        return self._planned(rewrite, window, calls, fallback)

    def coverage(self, handle: str | None) -> Coverage:
        """What a compaction kept of what it replaced."""
        handle = handle or self._history.last_compaction
        if handle is None:
            raise NotFound("nothing was compacted yet")
        compaction = self._history.compaction(handle)
        originals = [Shown(m.id, m.message) for m in self._history.expand(compaction.id)]
        text = "\n".join(plain(part) for r in compaction.replacements if r.message for part in r.message.parts)
        replacement = Replacement(tuple(item.id for item in originals), Message.user(text) if text else None)
        return coverage(originals, Rewrite(replacements=(replacement,)))

    def _planned(self, rewrite: Pass, window: Window, calls: Sequence[int], fallback: str | None) -> CompactionPlan:
        before = self._caller.meter.tokens(window)
        shown = self._history.shown
        left = apply_rewrite(shown, rewrite)
        kept = {item.id for item in left}
        first = next((n for n, (a, b) in enumerate(zip(shown, left, strict=False)) if a.id != b.id), len(left))
        return CompactionPlan(
            strategy=rewrite.strategy,
            fallback=fallback,
            tokens_before=before,
            tokens_after=max(0, before - self._count(shown) + self._count(left)),
            goes=tuple(item for item in shown if item.id not in kept),
            stays=tuple(item for item in shown if item.id in kept),
            calls=len(calls),
            call_tokens=sum(calls),
            rewritten_tokens=self._count(left[first:]),
        )

    async def _rewrite(self, compactor: Chain, target: int, demand: _Demand | None) -> Pass:
        """A rewrite that does something; the chain has checked that it keeps the laws."""
        shown = tuple(self._history.shown)
        keep = self._keep().union(demand.keep if demand else ())
        rewrite = await compactor.compact(shown, target=target, counter=self._caller.meter.counter, keep=keep)
        if not rewrite.replacements:
            raise CannotCompact(f"{compactor.name} found nothing to replace")
        left = apply_rewrite(shown, rewrite)
        if demand and demand.keeps_newest and (not left or left[-1].message.text != shown[-1].message.text):
            raise CannotCompact(f"{compactor.name} leaves no room for the newest answer; use a larger window")
        return rewrite

    def _count(self, shown: Sequence[Shown]) -> int:
        counter = self._caller.meter.counter
        return sum(MESSAGE_OVERHEAD + sum(map(counter.count_part, item.message.parts)) for item in shown)

    # -- asking for a summary -----------------------------------------------------------------------------

    def _built(self, ask: Ask, *, firm: bool = False) -> Chain:
        """The compactor of the configuration, every request of which goes through `ask`."""
        retain = replace(self._config.retain, firm=firm or self._config.retain.firm)
        config = replace(self._config, summary_model=None, retain=retain)
        return build(config, ask=ask, binds_thinking=self._caller.binds_thinking)

    def _other(self, model: Model) -> Ask:
        """Ask another model than the session's own."""
        plainly = ask_model(model)

        async def ask(history: Sequence[Shown], instruction: str, *, max_output: int) -> ModelResponse:
            call = self._caller.record_other(model)
            try:
                with self._caller.span_of(model) as span:
                    response = await plainly(history, instruction, max_output=max_output)
                    span.answered(response)
            except BaseException as error:
                call.failed(error)
                raise
            cost = info_of(model.name).cost(response.usage)
            call.answered(response.usage, cost, reported=response.reported, model=response.model)
            return response

        return ask

    async def _ask(self, history: Sequence[Shown], instruction: str, *, max_output: int) -> ModelResponse:
        """Ask for a summary; what it costs counts, whatever becomes of it."""
        try:
            with fail_after(self._config.timeout):
                response = await self._asks(history, instruction, max_output=max_output)
        except TimeoutError as error:
            raise ProviderUnavailable(f"a summary took longer than {self._config.timeout:g} seconds") from error
        other = self._summaries
        cost = info_of(other.name).cost(response.usage) if other else self._caller.cost(response.usage)
        self._spent += Bill(requests=1, usage=response.usage, cost=cost)
        return response

    async def _own(self, history: Sequence[Shown], instruction: str, *, max_output: int) -> ModelResponse:
        """Ask the session's own model about a part of the history.

        The request is the one the model saw before, byte for byte up to the end of that part, with the instruction
        behind it: the provider reads it from its cache.
        """
        window = self._context.compile(clear_volatile=False)
        items: list[View] = []
        last = self._history.entry(history[-1].id)
        if last is not None and list(history) == self._history.shown[: len(history)]:
            for _, item in window.items("convo"):  # visitors and updates included, as the model saw them
                items.append(item)
                if item.id == last.id:
                    break
        else:
            items += [MessageEntry(item.message) for item in history if has_content(item.message)]
        items.append(MessageEntry(Message.user(instruction)))
        asked = window.only(("foundation", "focus", "topic", "convo")).with_items("convo", items, void=frozenset())
        return await self._caller.complete(asked, max_output=max_output)


def _thinks(item: Shown) -> bool:
    return any(isinstance(part, ThinkingPart) for part in item.message.parts)
