"""A store as agents leave one behind, for the tests of the pages."""

from __future__ import annotations

from datetime import UTC, datetime

from loom import Agent, CompactionConfig, Retain, open_memory

TALK = (
    "I live in Madrid.",
    "My sister is called Maria.",
    "I prefer window seats when I fly.",
    "Always answer in short sentences.",
    "I moved to Lisbon last month.",
    "What do you know about me?",
)


async def fill(url: str, *, users: tuple[str, ...] = ("ann", "Zoë"), sessions: int = 2) -> None:
    """Conversations with facts that change, a compaction, blocks with versions, and a wish that waits."""
    compaction = CompactionConfig(strategy="truncate", retain=Retain(type="messages", count=4))
    async with Agent("offline", memory=url, compaction=compaction) as agent:
        for user in users:
            for number in range(sessions):
                for text in TALK:
                    await agent.run(text, user_id=user, session_id=f"talk-{number}")
            session = await agent.session(user_id=user, session_id="talk-0")
            assert await session.compact() is not None
    async with open_memory(url) as memory:
        user = users[0]
        await memory.set_block("plan", "Ship on Friday.\nTell Bob.", user_id=user)
        await memory.set_block("plan", "Ship on Monday.\nTell Bob.", user_id=user)
        for company, year in (("Acme", 2020), ("Initech", 2023)):
            begun = datetime(year, 1, 1, tzinfo=UTC)
            await memory.assert_fact("Maria", "works_at", company, user_id=user, valid_from=begun)
        await memory.instruct("Never use tables.", user_id=user, confirmed=False)
