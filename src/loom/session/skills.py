"""Skills of a session: activated by the user's message or loaded by the model, and the tools they allow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from loom.context.context import Context
from loom.context.entry import StringEntry
from loom.context.skill_match import SkillMatcher, tool_refusal
from loom.context.skills import CATALOG_RULE, Skill, create_active_skill_fragment, create_skills_fragment
from loom.core.message import JSON, Message, ToolCallPart, ToolSpec
from loom.errors import NotFound, UsageError
from loom.protocols.tool import Tool

LOAD: Final = "load_skill"
"""The tool by which a model loads a skill."""
_SURE = 0.6
"""Matches below this confidence activate nothing; a description alone reaches it at best."""


class ActiveSkills:
    """The skills of a session. One is active in the turn whose message asks for it, or in which the model loads it."""

    def __init__(self, skills: Iterable[Skill]) -> None:
        self._skills = tuple(skills)
        self._matcher = SkillMatcher(self._skills)
        self.active: tuple[Skill, ...] = ()
        self.loaded: tuple[Skill, ...] = ()

    @property
    def loadable(self) -> dict[str, Skill]:
        """Those that the model may load, by name."""
        return {skill.name: skill for skill in self._skills if not skill.user_only}

    def activate(self, text: str, shown: Sequence[Message]) -> list[Message]:
        """Activate what a message asks for; returns the instructions that are not in the conversation yet."""
        self.loaded = ()
        self.active = tuple(m.skill for m in self._matcher.match(text) if m.confidence >= _SURE)
        wanted = [Message.user(create_active_skill_fragment(skill).text()) for skill in self.active]
        return [message for message in wanted if message not in shown]

    def load(self, name: str) -> str:
        """Activate a skill by its name; returns its instructions."""
        skill = self.loadable.get(name)
        if skill is None:
            raise NotFound(f"there is no skill {name[:80]!r}; the skills are: {', '.join(sorted(self.loadable))}")
        if skill not in (*self.active, *self.loaded):
            self.loaded = (*self.loaded, skill)
        return create_active_skill_fragment(skill).text()

    def refused(self, calls: Sequence[ToolCallPart]) -> dict[str, str]:
        """Why calls may not run while the active skills are, by the id of the call.

        A skill that the model loaded can take tools away, but not give back those that the user's skills took.
        """
        asked = [call for call in calls if call.name != LOAD or not self.loadable]
        reasons = {call.id: tool_refusal(call, self.active) or tool_refusal(call, self.loaded) for call in asked}
        return {id: reason for id, reason in reasons.items() if reason}

    def tools(self, given: Iterable[Tool]) -> tuple[Tool, ...]:
        """The tool by which the model loads a skill, unless there is nothing to load or one of that name is given."""
        taken = any(isinstance(tool, Tool) and tool.spec.name == LOAD for tool in given)  # pyright: ignore[reportUnnecessaryIsInstance]
        return (LoadSkill(self),) if self.loadable and not taken else ()

    def show(self, context: Context) -> None:
        """List the skills in the prefix, unless a prompt there does already."""
        catalog = create_skills_fragment(self._skills)
        listed = any(isinstance(entry, StringEntry) and CATALOG_RULE in entry.text for entry in context.foundation)
        if self.loadable and not listed:
            context.foundation.add(StringEntry(f"# {catalog.label}\n{catalog.text()}"))


class LoadSkill:
    """The tool by which a model loads a skill."""

    def __init__(self, skills: ActiveSkills) -> None:
        self._skills = skills
        name = {"type": "string", "enum": sorted(skills.loadable), "description": "The skill."}
        schema = {"type": "object", "properties": {"name": name}, "required": ["name"], "additionalProperties": False}
        self.spec = ToolSpec(LOAD, "Load the instructions of a skill, before you do what it is for.", schema)

    async def run(self, input: JSON) -> str:
        """The instructions of a skill, which is active from now on until the turn is over."""
        given: dict[str, Any] = dict(input) if isinstance(input, dict) else {}  # pyright: ignore[reportUnknownArgumentType]
        name = given.get("name")
        if not isinstance(name, str):
            raise UsageError(f"{LOAD} takes the name of a skill: {', '.join(sorted(self._skills.loadable))}")
        return self._skills.load(name)
