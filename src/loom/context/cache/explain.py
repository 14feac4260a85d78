"""Explain: the first byte that moved between two requests, who moved it, what it costs, and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from loom.catalog import ModelInfo
from loom.context.cache.simulate import (
    Analysis,
    AnyRequest,
    cached_blocks,
    common_length,
    first_difference,
    write_price,
)
from loom.core.window import LEVELS, Block, BlockOrigin, Level, RequestBlocks, Window
from loom.protocols.token_counter import TokenCounter

MoveCause: TypeAlias = Literal[
    "nothing_moved", "model_changed", "settings_changed", "tools_reordered", "tools_changed", "block_edited",
    "block_inserted", "block_removed",
]  # fmt: skip

_EXCERPT = 32
CLOCK = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\b\d\d:\d\d:\d\d\b|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
)
"""What looks like a time of day or a random id: text that is seldom the same in the next request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why the next request reads less than the last one left in the cache, or that it does not."""

    cause: MoveCause
    message: str
    advice: str = ""
    path: str = ""
    origin: BlockOrigin | None = None
    """The entry that moved, its section and the context that brought it; None for a foreign request."""
    byte: int = 0
    """How many bytes of the prompt stayed the same."""
    byte_in_block: int = 0
    """Where in the block the first different byte stands."""
    before: str = ""
    after: str = ""
    kept_tokens: int = 0
    """Tokens of the cached prefix that stay readable."""
    lost_tokens: int = 0
    """Tokens that were in the cache and have to be sent as new ones."""
    extra_cost: float = 0.0
    """What that costs, once, in tokens at the plain price: written again, where they would have been read."""
    extra_usd: float | None = None

    @property
    def moved(self) -> bool:
        """Whether anything in the cached prefix changed."""
        return self.cause != "nothing_moved"

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".strip()


def explain(
    previous: AnyRequest,
    next: AnyRequest,
    provider: str | None = None,
    model: str | None = None,
    *,
    counter: TokenCounter | None = None,
) -> Explanation:
    """Compare two requests: windows, recorded request bodies, or prompts.

    What was sent behind the last cache marker of `previous` was never cached, so it may change freely.
    A window is compared as what the other request is: two of them as Anthropic requests, unless a provider is named.
    """
    named = previous if isinstance(next, Window) else next
    if isinstance(named, Window) and provider is None:
        provider, model = "anthropic", model or "claude"
    analysis = Analysis(named if provider is None else next, provider, model, counter=counter)
    return compare(analysis.prompt(previous), analysis.prompt(next), analysis.target.info)


def compare(before: RequestBlocks, after: RequestBlocks, model: ModelInfo) -> Explanation:
    """Compare two prompts for a model."""
    cached = before.blocks[: cached_blocks(before, model.cache)]
    if not cached:
        whole = [b for b in before.blocks if not b.volatile]
        found = _found(before, after, whole)
        why = "it is below the minimum" if before.markers or before.automatic else "no stable block of it was marked"
        note = f"The previous request left nothing in the cache: {why}."
        return replace(found, message=f"{note} {found.message}", kept_tokens=0)
    found = _found(before, after, cached)
    kept = cached[: _kept(found, cached)]
    lost = sum(b.tokens for b in cached) - sum(b.tokens for b in kept)
    rules, price = model.cache, model.input_price
    ttl = max((b.marker for b in cached if b.marker), key=lambda t: rules.ttls.get(t, 0), default=rules.default_ttl)
    extra = lost * (write_price(ttl or "", rules) - rules.read)
    return replace(
        found,
        kept_tokens=sum(b.tokens for b in kept),
        lost_tokens=lost,
        extra_cost=extra,
        extra_usd=None if price is None else extra * price / 1e6,
    )


def _found(before: RequestBlocks, after: RequestBlocks, cached: Sequence[Block]) -> Explanation:
    if before.model != after.model:
        return Explanation(
            cause="model_changed",
            message=f"The model changed from {before.model} to {after.model}.",
            advice="Keep one model per conversation: each has a cache of its own.",
            path="model",
        )
    at = first_difference(cached, after.blocks)
    levels: list[Level] = [v for v in LEVELS if before.settings.get(v, "") != after.settings.get(v, "")]
    level = levels[0] if levels else None
    if level and (at is None or LEVELS.index(level) <= LEVELS.index(cached[at].level)):
        return _settings_changed(before, after, cached, level)
    if at is None:
        kept = sum(b.tokens for b in cached)
        message = f"Nothing moved: the {kept:,} cached tokens are still the start of the next request."
        return Explanation(cause="nothing_moved", message=message, byte=_size(cached))
    if "tools" in (cached[at].level, after.blocks[at].level if at < len(after.blocks) else ""):
        return _tools_moved(cached, after.blocks, at)
    return _block_moved(cached, after.blocks, at)


def _settings_changed(
    before: RequestBlocks, after: RequestBlocks, cached: Sequence[Block], level: Level
) -> Explanation:
    was, now = before.settings.get(level) or "not set", after.settings.get(level) or "not set"
    at = _start(cached, level)
    return Explanation(
        cause="settings_changed",
        message=f"A request setting that counts from {level} on changed: {was} became {now}.",
        advice="Keep such settings the same for a whole conversation.",
        path=cached[at].path if at < len(cached) else level,
        byte=_size(cached[:at]),
        before=was,
        after=now,
    )


def _tools_moved(cached: Sequence[Block], after: Sequence[Block], at: int) -> Explanation:
    was = [b for b in cached if b.level == "tools"]
    now = [b for b in after if b.level == "tools"]
    names = [b.tool_name for b in was], [b.tool_name for b in now]
    if sorted(b.key for b in was) == sorted(b.key for b in now):
        cause, message = "tools_reordered", "The same tools were sent in another order."
        advice = "Send tools in one fixed order; Context.tools keeps the order they were first sent in."
    else:
        gone, new = [n for n in names[0] if n not in names[1]], [n for n in names[1] if n not in names[0]]
        changes = [f"{', '.join(new)} added"] * bool(new) + [f"{', '.join(gone)} removed"] * bool(gone)
        cause, message = "tools_changed", f"The tools changed: {'; '.join(changes) or 'a definition was edited'}."
        advice = "Fix the set of tools before the first call; tools come first, so a change costs everything."
    return Explanation(
        cause=cause,
        message=message,
        advice=advice,
        path=next(side[at].path for side in (after, cached) if at < len(side) and side[at].level == "tools"),
        byte=_size(cached[:at]),
        before=", ".join(names[0]),
        after=", ".join(names[1]),
    )


def _block_moved(cached: Sequence[Block], after: Sequence[Block], at: int) -> Explanation:
    old, new = cached[at], after[at] if at < len(after) else None
    cause, blamed = _what_happened(cached, after, at)
    was, now = _body(old), _body(new) if new else ""
    if new and was == now:  # the words are the same, and what is beside them is not
        was, now = old.content, new.content
    offset = common_length(was, now) if cause == "block_edited" else 0
    bytes_in = len(was[:offset].encode("utf-8", "surrogatepass"))
    verb = {"block_edited": "changed", "block_inserted": "was inserted", "block_removed": "was removed"}[cause]
    where = f" at byte {bytes_in}" if cause == "block_edited" else ""
    subject = str(blamed.origin) if blamed.origin else f"the {blamed.role} {blamed.kind} block"
    return Explanation(
        cause=cause,
        message=f"{subject[0].upper()}{subject[1:]} {verb}{where} ({blamed.path}).",
        advice=_advice(cause, blamed, _excerpt(now, offset)),
        path=blamed.path,
        origin=blamed.origin,
        byte=_size(cached[:at]) + bytes_in,
        byte_in_block=bytes_in,
        before=_excerpt(was, offset) if cause != "block_inserted" else "",
        after=_excerpt(now, offset) if cause != "block_removed" else "",
    )


def _what_happened(cached: Sequence[Block], after: Sequence[Block], at: int) -> tuple[MoveCause, Block]:
    """Whether the first different block was edited, pushed back by a new one, or taken out; and which one to blame."""
    old, new = cached[at], after[at] if at < len(after) else None
    if new is None:
        return "block_removed", old
    if old.origin and new.origin:
        cause = _what_happened_to_entries(cached, after, old.origin.entry, new.origin.entry)
        return cause, old if cause == "block_removed" else new
    if any(b.key == old.key for b in after[at + 1 :]):
        return "block_inserted", new
    if any(b.key == new.key for b in cached[at + 1 :]):
        return "block_removed", old
    if (old.level, old.role, old.kind) == (new.level, new.role, new.kind):
        return "block_edited", new
    return "block_removed", old


def _what_happened_to_entries(cached: Sequence[Block], after: Sequence[Block], old: str, new: str) -> MoveCause:
    was, now = ({block.origin.entry for block in blocks if block.origin} for blocks in (cached, after))
    if old != new and old in now:
        return "block_inserted"
    return "block_removed" if old != new and new in was else "block_edited"


def _advice(cause: MoveCause, block: Block, changed: str) -> str:
    if cause == "block_inserted":
        return "Put what is new at the end of the conversation, or include it before the first call."
    if cause == "block_removed":
        return "Leave it where it is, or remove many things at once: each edit costs the rest of the prefix."
    if CLOCK.search(changed):
        where = "into attention or step" if block.origin else "after the last cache marker"
        return f"Move what changes with time behind the conversation: {where}."
    if block.origin and block.origin.file:
        return "FileEntry(..., pin=True) keeps the text that was sent and appends the change to the conversation."
    return "Append a correction to the conversation in place of editing what was sent."


def _kept(found: Explanation, cached: Sequence[Block]) -> int:
    if found.cause == "nothing_moved":
        return len(cached)
    total = 0
    for number, block in enumerate(cached):
        total += len(block.content.encode("utf-8", "surrogatepass"))
        if total > found.byte:
            return number
    return len(cached)


def _start(blocks: Sequence[Block], level: Level) -> int:
    return next((i for i, b in enumerate(blocks) if LEVELS.index(b.level) >= LEVELS.index(level)), len(blocks))


def _size(blocks: Sequence[Block]) -> int:
    return sum(len(b.content.encode("utf-8", "surrogatepass")) for b in blocks)


def _body(block: Block) -> str:
    """What a person would call the text of a block."""
    if block.kind not in ("text", "tool_result"):
        return block.content
    try:
        given = json.loads(block.content)
        # OpenAI has a block for each part of a result, and the place of the block is that of the part.
        part = given if block.kind == "text" else given.get("output", given.get("content"))
        return str(part["text"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return block.content


def _excerpt(text: str, at: int) -> str:
    start, end = max(0, at - _EXCERPT), at + _EXCERPT
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
