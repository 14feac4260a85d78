"""What tests of adapters share."""

from loom import Episode, Memory


async def episodes(memory: Memory, user_id: str) -> list[Episode]:
    """The turns that were remembered of a user, archived ones too, oldest first; copies in higher layers are left out."""
    held = [record async for record in memory.list(user_id=user_id, kind="episode", archived=True)]
    return sorted(
        (record for record in held if isinstance(record, Episode) and not record.sources), key=lambda record: record.id
    )
