"""A request as a prompt cache sees it: a sequence of blocks, some of them marked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import accumulate
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["tools", "system", "messages"]
LEVELS: tuple[Level, ...] = ("tools", "system", "messages")
_TOOL_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')


@dataclass(frozen=True, slots=True)
class BlockOrigin:
    """The entry of a context that a block came from. It never reaches the wire."""

    section: str
    entry: str
    context: str
    label: str | None = None
    file: bool = False

    def __str__(self) -> str:
        named = f" ({self.label})" if self.label else ""
        return f"entry {self.entry}{named} in {self.section} of context {self.context!r}"


@dataclass(frozen=True, slots=True)
class Block:
    """One cacheable position of a request.

    `content` is everything the provider hashes here (role, kind and body; never a cache marker), so
    two blocks are the same to a cache exactly when their `key` is the same.
    """

    level: Level
    role: str
    kind: str
    content: str = field(repr=False)
    tokens: int
    path: str = ""
    marker: str | None = None
    """The lifetime of an explicit cache marker on this block, as the provider writes it ("5m")."""
    origin: BlockOrigin | None = None
    volatile: bool = False
    """The author says that this block changes with every request."""
    key: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        head = f"{self.level}\0{self.role}\0{self.kind}\0"
        object.__setattr__(self, "key", sha256((head + self.content).encode("utf-8", "surrogatepass")).digest())

    def marked(self, ttl: str | None) -> Block:
        """This block with another marker, or with none."""
        return self if self.marker == ttl else replace(self, marker=ttl)

    @property
    def tool_name(self) -> str:
        """The name of the tool that this block defines; its path where it has none."""
        named = _TOOL_NAME.search(self.content)
        return named[1] if named else self.path

    @property
    def where(self) -> str:
        """The block's place in words a reader can follow."""
        return f"{self.path}, {self.origin}" if self.origin else self.path


@dataclass(frozen=True, slots=True)
class RequestBlocks:
    """One request, reduced to what decides whether its prefix is found in the cache."""

    provider: str
    model: str
    blocks: tuple[Block, ...]
    automatic: str | None = None
    """The lifetime of the breakpoint that the provider places itself on the last eligible block, if it does."""
    settings: Mapping[Level, str] = field(default_factory=dict[Level, str])
    """Request parameters that invalidate the cache from a level on (tool choice, thinking, effort), as text."""
    at: float | None = None
    """When the request started, in seconds; None where the trace does not say (everything stays warm)."""

    @property
    def tokens(self) -> int:
        """Tokens of the whole prompt."""
        return sum(b.tokens for b in self.blocks)

    @property
    def markers(self) -> tuple[int, ...]:
        """Positions of the blocks that carry an explicit marker."""
        return tuple(i for i, b in enumerate(self.blocks) if b.marker)


def positions(kinds: Sequence[str], *, collapse_runs: bool) -> list[int]:
    """The position of each block as a lookback counts them, from 1: a run of one kind ("" has none) may count once."""
    pairs = zip(kinds, ("", *kinds), strict=False)
    return list(accumulate(not (collapse_runs and kind and kind == before) for kind, before in pairs))
