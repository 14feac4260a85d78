"""Skills in a session: what the user's message activates, and what that allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loom.context.skill_match import SkillMatcher, tool_refusal
from loom.context.skills import Skill, create_active_skill_fragment
from loom.core.message import Message, ToolCallPart

_SURE = 0.6
"""Matches below this confidence activate nothing."""


class ActiveSkills:
    """The skills of a session. One is active in the turn whose message asks for it."""

    def __init__(self, skills: Iterable[Skill]) -> None:
        self._matcher = SkillMatcher(skills)
        self.active: tuple[Skill, ...] = ()

    def activate(self, said: str, shown: Sequence[Message]) -> list[Message]:
        """Activate what a message asks for; returns the instructions that are not in the conversation yet."""
        self.active = tuple(m.skill for m in self._matcher.match(said) if m.confidence >= _SURE)
        wanted = [Message.user(create_active_skill_fragment(skill).text()) for skill in self.active]
        return [message for message in wanted if message not in shown]

    def refused(self, calls: Sequence[ToolCallPart]) -> dict[str, str]:
        """Why calls may not run while the active skills are, by the id of the call."""
        reasons = {call.id: tool_refusal(call, self.active) for call in calls}
        return {id: reason for id, reason in reasons.items() if reason}
