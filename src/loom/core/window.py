"""The window: what the model sees on one call, its six sections, and the blocks that a prompt cache sees."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from hashlib import blake2b, sha256
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

from loom.core.message import Part, Role, ToolSpec, content_hash, plain
from loom.errors import UnknownSection, UsageError

# The six named sections of a context: their order, how visitors join them, and how stable they are.

SectionName: TypeAlias = Literal["foundation", "focus", "topic", "convo", "step", "attention"]
SECTIONS: tuple[SectionName, ...] = get_args(SectionName)

STATIC: tuple[SectionName, ...] = ("foundation", "focus", "topic")
"""The sections that make the system prompt."""
DEDUPED: tuple[SectionName, ...] = ("foundation", "focus", "topic", "attention")
"""The sections in which equal content is shown once. A conversation may repeat itself."""
VISITORS_FIRST: tuple[SectionName, ...] = ("focus", "convo", "attention")
"""The sections in which visitors come before the host; `step` has no visitors at all."""
VOLATILE: tuple[SectionName, ...] = ("step", "attention")
"""The sections that may change with every request; they never reach the cached prefix."""


class Stability(Enum):
    """The expected lifetime of a part's bytes at their position."""

    STATIC = "static"
    """The same in every request of a session."""
    APPEND = "append"
    """Written once, followed by more of its kind."""
    VOLATILE = "volatile"
    """Gone or different in the next request."""


STABILITY: dict[SectionName, Stability] = {
    **dict.fromkeys(STATIC, Stability.STATIC), "convo": Stability.APPEND, **dict.fromkeys(VOLATILE, Stability.VOLATILE),
}  # fmt: skip


def default_role(section: SectionName) -> Role:
    """Who speaks in a section where an entry does not say."""
    return "system" if section in STATIC else "user"


def section_name(name: str) -> SectionName:
    """The section called `name`, in any case; raises UnknownSection."""
    lowered = name.lower() if isinstance(name, str) else name  # pyright: ignore[reportUnnecessaryIsInstance]
    for known in SECTIONS:
        if known == lowered:
            return known
    raise UnknownSection(name, SECTIONS)


class View(Protocol):
    """One entry as a window shows it: values only, already read from wherever they live."""

    @property
    def id(self) -> str:
        """The id of the entry; it never reaches the wire."""
        ...

    @property
    def name(self) -> str | None:
        """The entry's heading, if it has one."""
        ...

    @property
    def role(self) -> Role | None:
        """Who says it; None means the section's own role."""
        ...

    @property
    def text(self) -> str:
        """The plain-text form."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts a provider gets."""
        ...


class Run:
    """A link of a section's chain: the entries one compile added, and the link before.

    Runs form a chain: a later window that only grew holds the earlier run itself, not a copy.
    `sources` are the entries as they were added, `items` what is shown of them (a conversation is put
    into a legal order first); mostly the two are the same tuple.
    """

    __slots__ = ("chars", "context", "count", "counted", "items", "joined", "parent", "section", "sources", "texts")

    def __init__(
        self,
        parent: Run | None,
        section: SectionName,
        context: str,
        sources: tuple[View, ...],
        items: tuple[View, ...],
        *,
        joined: bool = False,
    ) -> None:
        self.parent = parent
        self.joined = joined
        """Whether it was put in order together with the run before it: a call there may have its result here."""
        self.section: SectionName = section
        self.context = context
        self.sources = sources
        self.items = items
        self.counted: tuple[object, int] | None = None
        """Tokens of the whole chain, and who counted them: the meter of the session whose context this is."""
        self.texts = [item.text for item in items]
        self.count = len(items)
        self.chars = sum(map(len, self.texts))
        if parent is not None:  # sums of the whole chain, so that a long conversation is never counted again
            self.count += parent.count
            self.chars += parent.chars

    def chain(self) -> list[Run]:
        """This run and all before it, oldest first."""
        runs: list[Run] = []
        run: Run | None = self
        while run is not None:
            runs.append(run)
            run = run.parent
        runs.reverse()
        return runs


def runs_since(before: Run | None, now: Run | None) -> list[Run] | None:
    """The runs added after `before`, oldest first; None if `now` did not grow out of it."""
    runs: list[Run] = []
    run = now
    while run is not None and run is not before:
        runs.append(run)
        run = run.parent
    return runs[::-1] if run is before else None


@dataclass(frozen=True, slots=True)
class Notice:
    """A note for people about this window. `entry` names the entry it is about."""

    code: str
    message: str
    entry: str | None = None


@dataclass(frozen=True, slots=True)
class WindowPart:
    """One part of a window, with where it came from and how long its bytes will stay."""

    section: SectionName
    context: str
    entry: str
    label: str | None
    role: Role
    part: Part
    stability: Stability

    @property
    def content_hash(self) -> str:
        """SHA-256 of the content."""
        return content_hash(self.part)

    @property
    def text(self) -> str:
        """The part as a person reads it."""
        return plain(self.part)


class Past(NamedTuple):
    """A window that went out, as far as later ones need to know it."""

    heads: tuple[Run | None, ...]
    tools: tuple[ToolSpec, ...]
    void: frozenset[str]
    made: dict[Any, Any]
    """What was made of it for each target; see Window.made."""


class Window:
    """The content a model sees on one call.

    Immutable: nothing that happens to the context afterwards reaches it. `str()` is the plain text.
    """

    def __init__(
        self,
        context: str,
        heads: tuple[Run | None, ...],
        *,
        tools: tuple[ToolSpec, ...] = (),
        notices: tuple[Notice, ...] = (),
        past: tuple[Past, ...] = (),
        void: frozenset[str] = frozenset(),
        draft: object = None,
        made: dict[Any, Any] | None = None,
    ) -> None:
        self.context = context
        self.heads = heads
        self.tools = tools
        self.notices = notices
        self._past = past
        self.draft = draft
        """What the context that made the window has to know to commit it."""
        self.void = void
        """Entries whose thinking was produced after a prefix that has changed since."""
        self.made: dict[Any, Any] = {} if made is None else made
        """Layouts and prompts by target, which renderers keep here. A later window goes on from them, as long as this
        one is among the last few that went out; then they are let go."""

    @property
    def past(self) -> tuple[Past, ...]:
        """The last few windows that were sent before this one, as far as it needs to know them, oldest first."""
        return self._past

    @property
    def history(self) -> tuple[Window, ...]:
        """The last few windows that were sent before this one, oldest first."""
        return tuple(
            Window(self.context, past.heads, tools=past.tools, void=past.void, made=past.made) for past in self._past
        )

    @property
    def sent(self) -> int:
        """How many items of the conversation an earlier window of this context already showed."""
        if not self._past:
            return 0
        convo = SECTIONS.index("convo")
        head, run = self._past[-1].heads[convo], self.heads[convo]
        while run is not None and run is not head:  # a rewritten conversation did not grow out of the earlier one
            run = run.parent
        return run.count if run else 0

    @property
    def chars(self) -> int:
        """Length of the plain text, headings not counted."""
        return sum(head.chars for head in self.heads if head)

    def items(self, section: SectionName) -> Iterator[tuple[Run, View]]:
        """What one section shows, in order, each with the run it belongs to."""
        head = self.heads[SECTIONS.index(section)]
        for run in head.chain() if head else ():
            for item in run.items:
                yield run, item

    @cached_property
    def parts(self) -> tuple[WindowPart, ...]:
        """Every part, in the order of the wire."""
        return tuple(
            WindowPart(
                section, run.context, item.id, item.name, item.role or default_role(section), part, STABILITY[section]
            )
            for section in SECTIONS
            for run, item in self.items(section)
            for part in item.parts
        )

    def only(self, sections: Sequence[str] | None) -> Window:
        """This window with some of its sections; their order stays the wire's own."""
        if sections is None:
            return self
        wanted = {section_name(name) for name in ([sections] if isinstance(sections, str) else sections)}

        def chosen(heads: tuple[Run | None, ...]) -> tuple[Run | None, ...]:
            return tuple(h if s in wanted else None for s, h in zip(SECTIONS, heads, strict=True))

        past = tuple(p._replace(heads=chosen(p.heads), made={}) for p in self._past)
        return self._with(chosen(self.heads), past, self.void)

    def with_items(self, section: SectionName, items: Sequence[View], *, void: frozenset[str]) -> Window:
        """This window with other items in one section; `void` joins what is void already."""
        at = SECTIONS.index(section)
        run = Run(None, section, self.context, tuple(items), tuple(items)) if items else None
        heads = (*self.heads[:at], run, *self.heads[at + 1 :])
        return self._with(heads, self._past, self.void | void)

    def _with(self, heads: tuple[Run | None, ...], past: tuple[Past, ...], void: frozenset[str]) -> Window:
        return Window(self.context, heads, tools=self.tools, notices=self.notices, past=past, void=void)

    def __str__(self) -> str:
        groups: list[str] = []
        for name, head in zip(SECTIONS, self.heads, strict=True):
            if head is not None:
                chain = head.chain()
                texts = chain[0].texts if len(chain) == 1 else [t for run in chain for t in run.texts]
                groups.append(f"> {name.upper()}")
                groups.extend(texts)
        return "\n\n".join(groups)

    def __contains__(self, what: object) -> bool:
        """Whether the plain text holds a text, or the window shows an entry."""
        if isinstance(what, str):
            return what in str(self)
        id = getattr(what, "id", None)
        if not isinstance(id, str):
            raise UsageError(f"a window holds text and entries, not {type(what).__name__}; ask for one of these")
        return any(item.id == id for section in SECTIONS for _, item in self.items(section))

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{name} {sum(len(r.items) for r in head.chain())}"
            for name, head in zip(SECTIONS, self.heads, strict=True)
            if head
        )
        return f"<Window of {self.context!r}: {sizes or 'empty'}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Window):
            return NotImplemented
        return self.tools == other.tools and self._content == other._content

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def _content(self) -> tuple[tuple[str, Role, Part], ...]:
        return tuple((p.section, p.role, p.part) for p in self.parts)


# A request as a prompt cache sees it: a sequence of blocks, some of them marked.

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
        return self.at(self.path, tokens=self.tokens, marker=ttl)

    def at(self, path: str, *, tokens: int, marker: str | None) -> Block:
        """The same content, counted and marked otherwise or in another place; it is not hashed again."""
        if (self.path, self.tokens, self.marker) == (path, tokens, marker):
            return self
        made = object.__new__(Block)
        for name in Block.__slots__:
            object.__setattr__(made, name, getattr(self, name))
        for name, value in (("path", path), ("tokens", tokens), ("marker", marker)):
            object.__setattr__(made, name, value)
        return made

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
    def marks(self) -> dict[int, str]:
        """The explicit markers: the lifetime of each, by position, earliest first."""
        return {i: b.marker for i, b in enumerate(self.blocks) if b.marker}

    @property
    def markers(self) -> tuple[int, ...]:
        """Positions of the blocks that carry an explicit marker."""
        return tuple(self.marks)

    @property
    def stable(self) -> int:
        """How many blocks come before the first volatile one."""
        return next((i for i, b in enumerate(self.blocks) if b.volatile), len(self.blocks))

    def tokens_of(self, blocks: int) -> int:
        """Tokens of so many leading blocks."""
        return sum(b.tokens for b in self.blocks[:blocks])


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixChain:
    """One request with the hash of each of its prefixes; equal prefixes have equal hashes.

    A request that goes on from another shares its blocks and hashes, so that only what is new is read. Blocks carry no
    markers here: `marks` and `ends` are of this request alone.
    """

    provider: str
    model: str
    blocks: tuple[Block, ...]
    nodes: tuple[bytes, ...]
    """The hash of the prefix up to the end of each block."""
    ends: Sequence[int]
    """Tokens up to the end of each block."""
    marks: Mapping[int, str] = field(default_factory=dict[int, str])
    """The explicit markers: the lifetime of each, by position, earliest first."""
    automatic: str | None = None
    settings: Mapping[Level, str] = field(default_factory=dict[Level, str])
    at: float | None = None
    stable: int
    """How many blocks come before the first volatile one."""

    @classmethod
    def of(cls, prompt: RequestBlocks, before: PrefixChain | None = None) -> PrefixChain:
        """A request as a chain, which takes over the hashes that it shares with the request before."""
        known = before.nodes[: _shared(before, prompt)] if before is not None else ()
        return cls(
            provider=prompt.provider,
            model=prompt.model,
            blocks=prompt.blocks,
            nodes=hash_prefixes(prompt.provider, prompt.model, prompt.settings, prompt.blocks, known),
            ends=tuple(accumulate(b.tokens for b in prompt.blocks)),
            marks=prompt.marks,
            automatic=prompt.automatic,
            settings=prompt.settings,
            at=prompt.at,
            stable=prompt.stable,
        )

    @property
    def tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.ends[-1] if self.ends else 0

    def tokens_of(self, blocks: int) -> int:
        """Tokens of so many leading blocks."""
        return self.ends[blocks - 1] if blocks else 0

    def before(self, at: int) -> bytes:
        """The hash that a block continues: the prefix before it, salted with the settings of its level."""
        node, depth = _start(self.provider, self.model, self.blocks, self.nodes, at)
        return _salted(node, depth, self.blocks[at].level, self.settings)[0]

    @property
    def prompt(self) -> RequestBlocks:
        """The request with all its blocks, counted and marked."""
        sizes = (end - start for start, end in pairwise((0, *self.ends)))
        placed = enumerate(zip(self.blocks, sizes, strict=True))
        blocks = tuple(b.at(b.path, tokens=size, marker=self.marks.get(i)) for i, (b, size) in placed)
        return RequestBlocks(self.provider, self.model, blocks, self.automatic, self.settings, self.at)


def hash_prefixes(
    provider: str, model: str, settings: Mapping[Level, str], blocks: Sequence[Block], known: Sequence[bytes] = ()
) -> tuple[bytes, ...]:
    """The hash of each prefix of a prompt, going on from those of its first blocks.

    The model and the settings of a level salt all that follows. A setting counts from its level on: it goes into the
    hash once, before the first block of that level, also where the levels before have no block.
    """
    nodes = list(known)
    node, depth = _start(provider, model, blocks, nodes, len(nodes))
    for block in blocks[len(nodes) :]:
        node, depth = _salted(node, depth, block.level, settings)
        node = _digest(node, block.key)
        nodes.append(node)
    return tuple(nodes)


def _start(provider: str, model: str, blocks: Sequence[Block], nodes: Sequence[bytes], at: int) -> tuple[bytes, int]:
    """The hash of what comes before a position, and how many levels it has salted already."""
    if not at:
        return _digest(b"", f"{provider}\0{model}".encode("utf-8", "surrogatepass")), 0
    return nodes[at - 1], LEVELS.index(blocks[at - 1].level) + 1


def _salted(node: bytes, depth: int, level: Level, settings: Mapping[Level, str]) -> tuple[bytes, int]:
    while depth <= LEVELS.index(level):
        node = _digest(node, settings.get(LEVELS[depth], "").encode("utf-8", "surrogatepass"))
        depth += 1
    return node, depth


def _shared(before: PrefixChain, prompt: RequestBlocks) -> int:
    """How many leading blocks of a request are those of the one before it."""
    if (before.provider, before.model) != (prompt.provider, prompt.model):
        return 0
    if dict(before.settings) != dict(prompt.settings):
        return 0
    pairs = zip(before.blocks, prompt.blocks, strict=False)
    differ = (n for n, (old, new) in enumerate(pairs) if old.key != new.key)
    return next(differ, min(len(before.blocks), len(prompt.blocks)))


def _digest(node: bytes, step: bytes) -> bytes:
    return blake2b(node + step, digest_size=16).digest()


def positions(kinds: Sequence[str], *, collapse_runs: bool) -> list[int]:
    """The position of each block as a lookback counts them, from 1: a run of one kind ("" has none) may count once."""
    pairs = zip(kinds, ("", *kinds), strict=False)
    return list(accumulate(not (collapse_runs and kind and kind == before) for kind, before in pairs))
