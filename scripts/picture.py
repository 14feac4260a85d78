"""The picture of the README: the window of a request beside the lives of facts, drawn as the inspector draws them.

`python -m scripts.picture` writes `docs/pictures/first.svg`. The conversation is a real one with a model that follows a
script and a clock that stands still, so the picture is the same each time; a test compares it.
"""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from loom import Agent, tool
from loom.core.message import TextPart, Usage
from loom.core.record import Fact
from loom.protocols.model import ModelRequest, ModelResponse
from loom.server.inspector.charts import LivesFrame, TimeSpan, lives_chart, window_bar
from loom.server.inspector.requests import cache_use, section_uses
from loom.session.journal import RequestRecord
from loom.testing import FakeClock, ScriptedModel

PLACE: Final = Path(__file__).parents[1] / "docs" / "pictures" / "first.svg"
_BEGUN: Final = datetime(2026, 3, 2, 9, tzinfo=UTC)
_TALK: Final = (
    (0, "Hi, I'm Alice. I live in Tokyo and I work at Acme."),
    (12, "My sister is called Anna."),
    (20, "I moved to Berlin."),
    (11, "I left Acme and work at Initech now."),
)
_RULES: Final = " ".join(f"Rule {n}: name the station, the day and the price of each train." for n in range(30))
_ANSWER: Final = (
    "Noted. " + "The 08:07 from Oriente arrives at 13:11 and costs 43 euro, with a seat at the window. " * 4
)
_FRAME: Final = LivesFrame(width=500, left=170, row=24, letters=22, top=14, ticks=2)
_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1b1f24; } .title { font-weight: 600; font-size: 14px; }
.note { font-weight: 400; font-size: 13px; }
.dim, .tick { fill: #59636e; } .tick { font-size: 12px; } text.ended, text.retired { fill: #59636e; }
text.retired { text-decoration: line-through; } .in { fill: #000; } .axis { stroke: #d5dae0; }
.s0 { fill: #9d90d3; } .s1 { fill: #6aa5d3; } .s4 { fill: #aab3bd; } .s5 { fill: #e5a341; } .s6 { fill: #dd8cac; }
.read { fill: #2f7d5b; } .written { fill: #d98a1f; } .fresh { fill: #9aa4af; }
.life.true { fill: #2f7d5b; } .life.ended { fill: #8b95a1; }
.life.retired { fill: #fff; stroke: #8b95a1; stroke-dasharray: 4 3; }
.learned { fill: #fff; stroke: #1b1f24; stroke-width: 1.5; } .given-up { fill: none; stroke: #c62b2b; stroke-width: 2; }
.known line { stroke: #1f5fa8; stroke-width: 1.5; } .known path { fill: #1f5fa8; }
@media (prefers-color-scheme: dark) { text { fill: #e6e9ed; } .dim, .tick, text.ended, text.retired { fill: #a3adb8; }
.in { fill: #000; } .axis { stroke: #343b43; } .read, .life.true { fill: #4fb58a; } .written { fill: #f0ad4e; }
.fresh { fill: #6b7580; } .life.ended { fill: #7b8590; } .life.retired { fill: #0d1117; stroke: #7b8590; }
.learned { fill: #0d1117; stroke: #e6e9ed; } .given-up { stroke: #ff8080; } .known line { stroke: #7db4f0; }
.known path { fill: #7db4f0; } }
"""


@tool
def search_trains(origin: str, destination: str) -> str:
    """Search the timetable for trains between two stations."""
    return f"{origin} to {destination}: 08:07, 43 euro"


async def conversation(url: str) -> tuple[RequestRecord, tuple[Fact, ...], datetime]:
    """The last request of a conversation, every fact that was ever believed, and when it ended."""
    clock = FakeClock(_BEGUN)
    left = [0]

    def answer(request: ModelRequest) -> ModelResponse:
        size, read = 100 * len(request.messages) + 1_900, left[0]
        left[0] = size - 60
        usage = Usage(input=size, output=20, cache_read=read, cache_write=left[0] - read)
        told = {"read": read, "write": left[0] - read}
        return ModelResponse(parts=(TextPart(_ANSWER),), stop="end", usage=usage, model="claude", reported=told)

    model = ScriptedModel(answer, name="anthropic:claude-sonnet-4-5")
    async with Agent(_RULES, model=model, memory=url, tools=[search_trains], facts="rules", clock=clock) as agent:
        for days, text in _TALK:
            clock.advance(timedelta(days=days))
            await agent.run(text, user_id="alice", session_id="trip")
        clock.advance(timedelta(minutes=1))
        await agent.run("Which train do I take to my sister?", user_id="alice", session_id="trip")
        session = await agent.session(user_id="alice", session_id="trip")
        records = await session.requests()
        assert agent.memory is not None
        facts = await agent.memory.facts(user_id="alice", history=True)
    return records[-1], facts, clock.now() + timedelta(days=9)


def drawn_from(record: RequestRecord, facts: tuple[Fact, ...], now: datetime) -> str:
    """The picture as an SVG file that needs nothing else, light and dark."""
    homes = [fact for fact in facts if fact.predicate == "lives_in"]
    chosen = [*homes, *(fact for fact in facts if fact.predicate == "works_at" and not fact.superseded_at)]
    chosen = sorted(chosen, key=lambda fact: (fact.predicate, fact.valid_from, fact.recorded_at, fact.id))
    window = window_bar(section_uses(record), cache_use(record), width=400)
    lives = lives_chart(chosen, now=now, span=TimeSpan.of(chosen, now), frame=_FRAME)
    height = 34 + 28 + len(chosen) * _FRAME.row
    about = "The window of a request by section, most of it read from the cache; beside it, facts over time"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {height}" role="img" aria-label="{about}">'
        f"<style>{_STYLE}</style>"
        '<text class="title" x="0" y="14">What the model saw, and what the cache did</text>'
        f"{_placed(window, 0, 30, 400, 84)}"
        f'<text class="dim" x="0" y="{height - 34}">Above, the prompt by section: recalled memory comes last.</text>'
        f'<text class="dim" x="0" y="{height - 16}">Below, what the cache gave, at a tenth of the price.</text>'
        '<text class="title" x="450" y="14">Facts have a history'
        '<tspan class="dim note" dx="20">◇ learned</tspan>'
        '<tspan class="dim note" dx="14">&#215; no longer believed</tspan>'
        "</text>"
        f"{_placed(lives, 450, 26, 500, height - 30)}</svg>\n"
    )


def _placed(picture: str, x: int, y: int, width: int, height: int) -> str:
    """A picture as a part of another one."""
    return picture.replace("<svg ", f'<svg x="{x}" y="{y}" width="{width}" height="{height}" ', 1)


async def main() -> str:
    """Hold the conversation and draw it."""
    with tempfile.TemporaryDirectory() as folder:
        return drawn_from(*await conversation(f"sqlite:{folder}/m.db"))


if __name__ == "__main__":
    PLACE.write_text(asyncio.run(main()), encoding="utf-8")
