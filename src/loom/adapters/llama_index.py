"""Loom as a memory block of LlamaIndex: what leaves its short-term memory is remembered, what fits is recalled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from loom.adapters._shared import Home, Owner, home_of_memory
from loom.adapters._turns import Turns
from loom.core.scope import Scope
from loom.errors import MissingExtra
from loom.memory._write.ingest import Utterance
from loom.memory.memory import Memory
from loom.session.memory import TAG
from loom.text.fence import without_tag

try:
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.llms import ChatMessage, MessageRole
    from llama_index.core.memory import BaseMemoryBlock
except ImportError as error:
    raise MissingExtra("loom.adapters.llama_index", "llama-index") from error

_SPEAKERS: dict[MessageRole, Literal["user", "assistant"]] = {
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
}


class LoomBlock(Owner, BaseMemoryBlock[str]):
    """The memory of one user, as a block of `llama_index.core.memory.Memory`.

    The text that it gives is found for the last message of the user, and fenced as data; where nothing is found it is
    empty, and LlamaIndex adds nothing. Of what is put into it the words of the user and of the assistant are
    remembered; calls and results of tools are not.
    """

    user_id: str
    session_id: str

    _home: Home[Memory] = PrivateAttr()
    _turns: Turns = PrivateAttr()

    def __init__(
        self,
        memory: str | Mapping[str, Any] | Memory,
        *,
        user_id: str,
        session_id: str,
        limit: int = 8,
        budget: int = 500,
        standing_budget: int = 600,
        name: str = "loom",
        **options: Any,
    ) -> None:
        """Make a block.

        Args:
            memory: a memory, which stays open, or what open_memory() takes, which is closed with this block.
            user_id: whose memory it is.
            session_id: the conversation that what is put in belongs to.
            limit: the most hits that are shown.
            budget: tokens of what is found for a message.
            standing_budget: tokens of standing instructions, pinned texts, facts and what was said a moment ago in
                other conversations.
            name: the name of the block in the prompt.
            options: those of every memory block, such as `priority`.
        """
        Scope(user_id=user_id, session_id=session_id)  # refuses what names nobody
        fields: dict[str, Any] = {"name": name, "user_id": user_id, "session_id": session_id, **options}
        super().__init__(**fields)
        self._home = home_of_memory(memory)
        self._turns = Turns(self._home, limit=limit, budget=budget, standing_budget=standing_budget)

    async def _aget(self, messages: Sequence[ChatMessage] | None = None, **block_kwargs: Any) -> str:  # noqa: ARG002
        """What memory holds for the last message of the user."""
        said = [message.content or "" for message in messages or () if message.role == MessageRole.USER]
        view = await self._turns.view(said[-1] if said else "", user_id=self.user_id, session_id=self.session_id)
        text = view.text()
        # LlamaIndex writes the name of the block as a tag around it; Loom's own fence is safe from its text already.
        return text if self.name.casefold() == TAG else without_tag(self.name, text)

    async def _aput(self, messages: Sequence[ChatMessage]) -> None:
        """Remember what was said, in one step."""
        turns = [
            Utterance(text=text, speaker=_SPEAKERS[message.role], origin=_SPEAKERS[message.role])
            for message in messages
            if message.role in _SPEAKERS and (text := message.content or "").strip()
        ]
        await self._turns.keep(turns, user_id=self.user_id, session_id=self.session_id)
