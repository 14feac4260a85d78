"""What the people of `loom demo` say, and what the model is scripted to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from loom.core.message import Part, ToolCallPart


@dataclass(frozen=True, slots=True)
class Line:
    """One message of a user, and the answers of the model: a tool call takes one more."""

    day: int
    """Days after the story begins."""
    user: str
    session: str
    said: str
    answers: tuple[str | Part, ...]


def _asks(day: int, session: str, said: str, route: str, answer: str) -> Line:
    """A line of Alice that the model looks up a timetable for."""
    call = ToolCallPart(f"call_{route.replace('-', '_')}", "timetable", {"route": route})
    return Line(day, "alice", session, said, (call, answer))


MEETING: Final = (
    Line(0, "alice", "hello", "Hi, I'm Alice. I live in Tokyo and I work as a nurse.", ("Welcome, Alice.",)),
    Line(0, "alice", "hello", "My sister Anna keeps a sailing boat in Yokohama.", ("A boat in the family!",)),
    Line(0, "alice", "hello", "Please always answer in short sentences.", ("I will.",)),
    Line(0, "bob", "first", "I'm Bob. I live in Oslo.", ("Welcome, Bob.",)),
    Line(14, "alice", "news", "I moved to Berlin.", ("Berlin it is.",)),
)
ASKING: Final = (
    Line(18, "alice", "visit", "Where does my sister keep her boat?", ("In Yokohama.",)),
    Line(18, "bob", "second", "Where does my sister keep her boat?", ("You have not told me of a sister.",)),
)
TRIP: Final = (
    _asks(20, "trip", "Find me a train to Vienna for Friday.", "Berlin-Vienna", "At 08:02, 89 EUR, no change."),
    _asks(20, "trip", "And from Vienna to Trieste on Sunday?", "Vienna-Trieste", "At 07:58, 49 EUR, one change."),
    _asks(20, "trip", "How do I get from Trieste to Venice?", "Trieste-Venice", "At 10:14, 19 EUR, no change."),
    Line(20, "alice", "trip", "Book all three, window seats.", ("Noted: three trains, window seats, 157 EUR.",)),
    Line(20, "alice", "trip", "What is still open?", ("A bed in Vienna for two nights.",)),
)
OTHERWISE: Final = Line(20, "alice", "trip", "Can I see Graz on the way?", ("Yes: the train stops there at 10:36.",))
SUMMARY: Final = (
    "Alice travels from Berlin: Vienna on Friday at 08:02 for 89 EUR, Trieste on Sunday at 07:58 for 49 EUR, "
    "Venice at 10:14 for 19 EUR; window seats, 157 EUR in all."
)


def timetable(route: str) -> str:
    """What the timetable tool answers: long, as tools do."""
    start, _, end = route.partition("-")
    hours = (f"{hour:02}:{(hour * 7 + past) % 60:02}" for hour in range(5, 23) for past in (0, 24, 48))
    return "\n".join(f"{at} {start} Central, platform {n % 9 + 1}, to {end}, daily" for n, at in enumerate(hours))


def handbook() -> str:
    """The agent's instructions: longer than the shortest prefix that a provider caches."""
    areas = ("trains", "ferries", "visas", "hotels", "luggage", "refunds", "delays", "insurance", "maps", "tickets")
    rules = (
        "Before you advise on {}, say which day and which place you mean, so that a mistake is seen at once.",
        "Quote the source for anything about {} that costs money, with the date on which you looked it up.",
        "If two sources on {} disagree, show both and say which one you would follow, and why.",
        "Never book {} without a clear yes; a question about a price is not a yes.",
        "What a traveller told you of {} once, do not ask again: it is in your memory, or in the conversation.",
    )
    lines = [f"{n}. {rule.format(area)}" for n, (area, rule) in enumerate(((a, r) for a in areas for r in rules), 1)]
    return "\n".join(["You are the travel desk of a small company. These are the rules of the desk:", *lines])
