"""The six named sections of a context: their order, how visitors join them, and how stable they are."""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias, get_args

from loom.core.message import Role
from loom.errors import UnknownSection

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
