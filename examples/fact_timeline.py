"""Facts on two time axes: when something was true, and when we knew it.

It prints:

    true in 2025: Acme
    true in June 2026: Globex
    true in June 2026, as known before: Acme
    Acme: 2024-01-01 to ..., retired
    Acme: 2024-01-01 to 2026-03-01, believed
    Globex: 2026-03-01 to ..., believed
"""

from datetime import UTC, datetime

from loom import open_memory_sync


def day(text: str) -> datetime:
    """Midnight of a day."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


with open_memory_sync("inmemory") as memory:
    memory.assert_fact("user", "works_at", "Acme", user_id="ann", valid_from=day("2024-01-01"))
    then = datetime.now(UTC)  # before we were told of the new job
    memory.assert_fact("user", "works_at", "Globex", user_id="ann", valid_from=day("2026-03-01"))

    def employer(at: datetime, known_at: datetime | None = None) -> str:
        """Where Ann worked at a time, as known at a time."""
        facts = memory.facts(user_id="ann", predicate="works_at", at=at, known_at=known_at)
        return ", ".join(fact.object for fact in facts)

    print("true in 2025:", employer(at=day("2025-06-01")))
    print("true in June 2026:", employer(at=day("2026-06-01")))
    print("true in June 2026, as known before:", employer(at=day("2026-06-01"), known_at=then))
    for fact in memory.facts(user_id="ann", predicate="works_at", history=True):
        end = f"{fact.valid_until:%Y-%m-%d}" if fact.valid_until else "..."
        print(f"{fact.object}: {fact.valid_from:%Y-%m-%d} to {end}, {'retired' if fact.superseded_at else 'believed'}")
