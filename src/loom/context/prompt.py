"""PromptBuilder: fragments in, one prompt out, and a context that shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from loom.context.context import Context
from loom.context.entry import StringEntry, check_encodable
from loom.context.fragments import (
    DEFAULT_PRIORITY,
    PLACES,
    SLOTS,
    Fragment,
    FragmentContent,
    FragmentPlace,
    Slot,
    check_slot,
    create_context_fragment,
    create_identity_fragment,
    create_memory_fragment,
    create_safety_fragment,
    create_tools_fragment,
)
from loom.context.section import Section
from loom.core.limits import MAX_ENTRY, check_length
from loom.errors import UsageError

if TYPE_CHECKING:
    from loom.context.skills import Skill

_IDENTITY = "You are a helpful assistant."

END = "\n\n"
"""What every block ends with. Joined without anything between them, blocks are the text, whatever a provider does."""


@dataclass(frozen=True, slots=True)
class PromptBlock:
    """A fragment and the bytes it is shown with; they depend on no other fragment."""

    fragment: Fragment
    text: str


@dataclass(frozen=True, slots=True)
class PromptChange:
    """The effect of applying a prompt: slots of the fragments that were added, changed, removed and kept."""

    added: tuple[Slot, ...] = ()
    changed: tuple[Slot, ...] = ()
    removed: tuple[Slot, ...] = ()
    kept: tuple[Slot, ...] = ()

    def __add__(self, other: PromptChange) -> PromptChange:
        return PromptChange(
            self.added + other.added, self.changed + other.changed, self.removed + other.removed, self.kept + other.kept
        )


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as it was built: what stays first, what changes last."""

    blocks: tuple[PromptBlock, ...]

    @property
    def text(self) -> str:
        """The whole prompt: its blocks, joined."""
        return "".join(block.text for block in self.blocks)

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments that are shown, in order."""
        return tuple(block.fragment for block in self.blocks)

    def apply(self, context: Context) -> PromptChange:
        """Make a context show this prompt in place of the one it showed before.

        What did not change stays the very same entry. What changed is replaced where it stands; `plan` and
        `explain` say what that costs. In a context that was sent already, new fragments follow the sent ones.
        """
        by_place = {place: [b for b in self.blocks if b.fragment.section == place] for place in PLACES}
        return (
            _fill_foundation(context.foundation, by_place["foundation"])
            + _extend_convo(context.convo, by_place["convo"])
            + _fill_attention(context.attention, by_place["attention"])
        )


class PromptBuilder:
    """Collects fragments and builds the prompt they make.

    The order of a prompt is: what goes into the prefix, what is appended to the conversation, what is shown last;
    inside that by slot, then by priority. So nothing that changes ever stands before something that stays.
    """

    def __init__(self, fragments: Iterable[Fragment] = ()) -> None:
        self._fragments: list[Fragment] = []
        for fragment in fragments:
            self.add_fragment(fragment)

    @classmethod
    def default(
        cls,
        identity: str | None = None,
        *,
        tools: Iterable[Any] = (),
        skills: Iterable[Skill] = (),
        memory: str | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> PromptBuilder:
        """A builder with a fragment in each slot that every agent needs; replace() and remove() change single ones.

        Args:
            identity: who the agent is, such as the text of your SOUL.md; a helpful assistant if not given.
            tools: what it may call; a list is read anew by every build.
            skills: instructions for kinds of tasks; a list is read anew by every build.
            memory: instructions of the project, such as the text of your AGENTS.md.
            context: where and when it runs, as for create_context_fragment.
        """
        from loom.context.skills import create_skills_fragment  # noqa: PLC0415  (skills are read only where there are some)

        return cls(
            (
                create_identity_fragment(identity or _IDENTITY),
                create_safety_fragment(),
                create_tools_fragment(tools),
                create_skills_fragment(skills),
                create_memory_fragment(memory),
                create_context_fragment(context),
            )
        )

    def add_fragment(self, fragment: Fragment) -> PromptBuilder:
        """Add a fragment; returns the builder."""
        if not isinstance(fragment, Fragment):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"add_fragment takes a Fragment, not {type(fragment).__name__}; use add(slot, text)")
        self._fragments.append(fragment)
        return self

    def add(
        self,
        slot: Slot,
        content: FragmentContent,
        *,
        priority: int = DEFAULT_PRIORITY,
        label: str | None = None,
        section: FragmentPlace | None = None,
    ) -> PromptBuilder:
        """Add a fragment of text, or of a function that gives it; see Fragment for the rest."""
        return self.add_fragment(Fragment(slot, content, priority, label, section))

    def replace(self, fragment: Fragment) -> PromptBuilder:
        """Put a fragment in place of every one of its slot; returns the builder."""
        kept = [f for f in self._fragments if f.slot != getattr(fragment, "slot", None)]
        self.add_fragment(fragment)
        self._fragments = [*kept, fragment]
        return self

    def remove(self, slot: Slot) -> PromptBuilder:
        """Take every fragment of a slot out."""
        check_slot(slot)
        self._fragments = [f for f in self._fragments if f.slot != slot]
        return self

    def clear(self) -> PromptBuilder:
        """Take every fragment out."""
        self._fragments = []
        return self

    def has(self, slot: Slot) -> bool:
        """Whether a fragment of this slot was added."""
        check_slot(slot)
        return any(f.slot == slot for f in self._fragments)

    def __len__(self) -> int:
        return len(self._fragments)

    def build(self) -> Prompt:
        """The prompt as it is now: blank fragments are left out, and of two that say the same the first stays."""
        blocks: dict[str, PromptBlock] = {}
        for fragment in sorted(self._fragments, key=_rank):
            content = fragment.text()
            if content:
                heading = f"# {fragment.label}\n" if fragment.label else ""
                text = f"{heading}{content}{END}"
                check_length(text, f"a {fragment.slot} fragment", MAX_ENTRY, "no model reads more: say less")
                check_encodable(text)
                blocks.setdefault(text, PromptBlock(fragment, text))
        return Prompt(tuple(blocks.values()))

    def build_text(self) -> str:
        """The text of the prompt."""
        return self.build().text


def _rank(fragment: Fragment) -> tuple[int, int, int]:
    return PLACES.index(cast("FragmentPlace", fragment.section)), SLOTS.index(fragment.slot), -fragment.priority


FragmentKey: TypeAlias = tuple[str, str | None, int]


class FragmentEntry(StringEntry):
    """A fragment as a context shows it; the context itself remembers by it which entries are a prompt's."""

    __slots__ = ("key", "slot")

    def __init__(self, block: PromptBlock, key: FragmentKey | None = None) -> None:
        # `repeat`: a prompt is shown as it was built, even where another entry happens to say the same.
        super().__init__(block.text, repeat=True)
        self.name = block.fragment.label
        self.slot: Slot = block.fragment.slot
        self.key = key


def _fill_foundation(section: Section, blocks: list[PromptBlock]) -> PromptChange:
    """Keep what is the same, replace what changed in its place, add what is new, remove the rest."""
    before = _own(section)
    same = {entry.text: entry for entry in before}
    texts = {block.text for block in blocks}
    spare = [entry for entry in before if entry.text not in texts]
    now: list[FragmentEntry] = []
    added, changed, kept = list[Slot](), list[Slot](), list[Slot]()
    for block in blocks:
        entry = same.get(block.text) or FragmentEntry(block)
        old = next((e for e in spare if e.slot == entry.slot), None)
        if entry in section:
            kept.append(entry.slot)
        elif old is None:
            section.add(entry)
            added.append(entry.slot)
        else:
            spare.remove(old)
            section.replace(old, entry)
            changed.append(entry.slot)
        now.append(entry)
    section.drop(spare)
    if _own(section) != now:  # what was sent keeps its place whatever the order here; this is for what was not
        section.drop(now)
        for entry in now:
            section.add(entry)
    return PromptChange(tuple(added), tuple(changed), tuple(e.slot for e in spare), tuple(kept))


def _fill_attention(section: Section, blocks: list[PromptBlock]) -> PromptChange:
    """Show these blocks and no others. Nothing here is in any cache, so there is no place to keep."""
    before = _own(section)
    old: list[Slot] = [entry.slot for entry in before]
    new: list[Slot] = [block.fragment.slot for block in blocks]
    if [e.text for e in before] == [block.text for block in blocks]:
        return PromptChange(kept=tuple(new))
    section.drop(before)
    for block in blocks:
        section.add(FragmentEntry(block))
    return PromptChange(
        added=tuple(s for s in new if s not in old),
        changed=tuple(s for s in new if s in old),
        removed=tuple(s for s in old if s not in new),
    )


def _extend_convo(section: Section, blocks: list[PromptBlock]) -> PromptChange:
    """Append what the conversation does not say yet. Earlier text stays: a conversation only grows."""
    wanted = dict(zip(_keys(blocks), blocks, strict=True))
    last_texts: dict[FragmentKey, str] = {}
    for entry in reversed(section.entries):
        if len(last_texts) == len(wanted):
            break
        if isinstance(entry, FragmentEntry) and entry.key in wanted:
            last_texts.setdefault(entry.key, entry.text)
    added, changed, kept = list[Slot](), list[Slot](), list[Slot]()
    for key, block in wanted.items():
        slot, last = block.fragment.slot, last_texts.get(key)
        if last == block.text:
            kept.append(slot)
        else:
            section.add(FragmentEntry(block, key))
            (added if last is None else changed).append(slot)
    return PromptChange(tuple(added), tuple(changed), (), tuple(kept))


def _keys(blocks: list[PromptBlock]) -> list[FragmentKey]:
    """What makes each block the successor of an earlier one: its slot, its label, its number among those."""
    seen = Counter[tuple[str, str | None]]()
    keys: list[FragmentKey] = []
    for fragment in (block.fragment for block in blocks):
        keys.append((fragment.slot, fragment.label, seen[fragment.slot, fragment.label]))
        seen[fragment.slot, fragment.label] += 1
    return keys


def _own(section: Section) -> list[FragmentEntry]:
    return [entry for entry in section.entries if isinstance(entry, FragmentEntry)]
