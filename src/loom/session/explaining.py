"""SessionExplanation: what the next request would hold, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loom.context.cache.plan import CachePlan
from loom.core.checkpoint import Compaction, Shown
from loom.core.message import Usage, plain
from loom.session.build import Parts


@dataclass(frozen=True, slots=True)
class ShownLine:
    """One message as the model is shown it."""

    id: str
    role: str
    tokens: int
    start: str
    """Its first characters."""
    stands_for: int
    """How many original messages; more than one for a summary."""
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionExplanation:
    """What the next request would hold, what of it is cached, and what was compacted."""

    session_id: str
    turn: int
    tokens: int
    window: int
    trigger: int
    sections: Mapping[str, int]
    """Tokens by section, by estimate."""
    messages: tuple[ShownLine, ...]
    compactions: tuple[Compaction, ...]
    usage: Usage
    cache: CachePlan = field(repr=False)

    def __str__(self) -> str:
        share = self.tokens / self.window if self.window else 0.0
        size = f"{self.tokens:,} of {self.window:,} tokens ({share:.0%})"
        lines = [
            f"session {self.session_id}, turn {self.turn}: {size}; compaction comes at {self.trigger:,}",
            "  " + ", ".join(f"{name} {count:,}" for name, count in self.sections.items() if count),
            f"  cache: {self.cache.read:,} read, {self.cache.write:,} written, {self.cache.uncached:,} uncached",
        ]
        for line in self.messages:
            marks = f" (stands for {line.stands_for})" if line.stands_for > 1 else ""
            marks += " (pinned)" if line.pinned else ""
            lines.append(f"  {line.id} {line.role:9} {line.tokens:6,}  {line.start}{marks}")
        for done in self.compactions:
            saved = f"{done.tokens_before:,} -> {done.tokens_after:,} tokens"
            lines.append(f"  compaction {done.id}: {done.strategy}, {saved}; undo({done.id!r}) takes it back")
        return "\n".join(lines)


def explain_session(parts: Parts) -> SessionExplanation:
    """Look at a session; nothing is sent or changed."""
    history, counter = parts.history, parts.model.meter.counter
    window = parts.context.compile(clear_volatile=False)
    load, decision = parts.compaction.load(window)

    def line(item: Shown) -> ShownLine:
        text = " ".join(" ".join(map(plain, item.message.parts)).split())
        return ShownLine(
            id=item.id,
            role=item.message.role,
            tokens=sum(map(counter.count_part, item.message.parts)),
            start=text[:60],
            stands_for=len(history.expand(item.id)),
            pinned=item.id in history.pins,
        )

    return SessionExplanation(
        session_id=parts.saver.scope.session_id or "",
        turn=history.turn,
        tokens=load.tokens,
        window=load.window,
        trigger=decision.trigger,
        sections=parts.model.meter.sections(window),
        messages=tuple(map(line, history.shown)),
        compactions=tuple(map(history.compaction, history.applied)),
        usage=history.usage,
        cache=parts.model.plan(window),
    )
