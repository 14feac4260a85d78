"""What memory costs the prompt cache: one agent conversation with memory on and off, replayed through `simulate`.

    python benchmarks/agent_cache.py [--turns N] [--json]

The user has talked to the agent before: facts, wishes, a pinned text and about a hundred turns are in their memory. The
model is scripted and poses as the provider, so the bodies are the ones that would be sent; every fifth turn calls a
tool. `share` is the part of all prompt tokens that the provider reads from its cache by its own rules, `cost` is all
prompts together in tokens at the plain price.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import anyio

from loom import Agent, simulate, tool
from loom.core.message import ToolCallPart, ToolResultPart
from loom.memory.memory import Memory
from loom.protocols.model import ModelRequest
from loom.testing import FakeClock, ScriptedModel

MODELS = ("anthropic:claude-sonnet-4-5", "anthropic:claude-opus-5-5", "openai:gpt-5.1", "openai_chat:gpt-5.1")
TOPICS = ("harbour", "garden", "library", "railway", "bakery", "orchestra", "vineyard", "observatory", "market", "mill")
DETAILS = ("the opening hours", "the budget", "who is in charge", "the plan for spring", "what broke last week")
INSTRUCTIONS = "You help the people who run a small town. " + " ".join(
    f"Rule {n}: answer questions about the {TOPICS[n % 10]} with care, and say when you are not sure."
    for n in range(40)
)


@tool
def look_up(topic: str) -> str:
    """Look a topic up in the files of the town."""
    return " ".join(f"Entry {n} about the {topic}: it was checked and found in order." for n in range(20))


async def fill(memory: Memory, user: str) -> None:
    """A user who has been here before."""
    for n in range(120):
        text = f"About {DETAILS[n % 5]} of the {TOPICS[n % 10]}: note number {n}, which we agreed on."
        await memory.remember(text, user_id=user, session_id=f"earlier-{n // 10}", speaker="user")
    await memory.remember("My name is Ann and I live in Lisbon. I am a vegan.", user_id=user)
    await memory.instruct("Always answer in short sentences.", user_id=user)
    await memory.set_block("project", "The harbour is rebuilt until May. Ann leads it.", user_id=user)
    await memory.metabolize(user_id=user)


def questions(turns: int) -> Iterator[str]:
    """What the user says, one message to a turn."""
    for n in range(turns):
        yield f"Message {n}: what do we know about {DETAILS[n % 5]} of the {TOPICS[n * 7 % 10]}, and what comes next?"


def answer(request: ModelRequest) -> Any:
    """A tool call in every fifth turn, an answer of some sentences in all of them."""
    last = request.messages[-1].parts
    asked = sum("and what comes next?" in m.text for m in request.messages)
    if asked % 5 == 0 and request.tools and not any(isinstance(part, ToolResultPart) for part in last):
        return ToolCallPart(f"call-{asked}", "look_up", {"topic": TOPICS[asked % 10]})
    return " ".join(f"Sentence {n} of answer {asked} says something useful about it." for n in range(12))


async def conversation(model_name: str, *, turns: int, with_memory: bool, with_tools: bool) -> list[Any]:
    """The bodies of all requests of a conversation."""
    clock = FakeClock()
    model = ScriptedModel(answer, name=model_name, context_window=1_000_000)
    tools = [look_up] if with_tools else []
    memory: Any = {"backend": "inmemory", "embedder": "hash"} if with_memory else None
    async with Agent(INSTRUCTIONS, model=model, memory=memory, tools=tools, clock=clock) as agent:
        if agent.memory is not None:
            await fill(agent.memory, "ann")
        clock.advance(7200)
        for text in questions(turns):
            await agent.run(text, user_id="ann", session_id="s")
            clock.advance(30)
    return [request.rendered.body for request in model.requests if request.rendered]


async def measure(model_name: str, *, turns: int, with_tools: bool) -> dict[str, Any]:
    """Both conversations, as the provider's cache would serve them."""
    rows: dict[str, Any] = {"model": model_name, "tools": with_tools, "turns": turns}
    for name, with_memory in (("off", False), ("on", True)):
        bodies = await conversation(model_name, turns=turns, with_memory=with_memory, with_tools=with_tools)
        done = simulate(bodies, model_name.partition(":")[0], model_name.partition(":")[2])
        rows[name] = {
            "share": done.read_share,
            "cost": round(done.cost),
            "tokens": done.tokens,
            "requests": len(bodies),
        }
    rows["points"] = 100 * (rows["off"]["share"] - rows["on"]["share"])
    return rows


async def main(turns: int) -> list[dict[str, Any]]:
    """Every model, with and without tools."""
    return [await measure(name, turns=turns, with_tools=tools) for name in MODELS for tools in (False, True)]


def _print(rows: list[dict[str, Any]]) -> None:
    print(f"{'model':32} {'tools':5} {'share off':>9} {'share on':>9} {'points':>7} {'cost off':>10} {'cost on':>10}")
    for row in rows:
        off, on = row["off"], row["on"]
        print(
            f"{row['model']:32} {'yes' if row['tools'] else 'no':5} {off['share']:9.1%} {on['share']:9.1%} "
            f"{row['points']:7.1f} {off['cost']:10,} {on['cost']:10,}"
        )


if __name__ == "__main__":
    asked = int(sys.argv[sys.argv.index("--turns") + 1]) if "--turns" in sys.argv else 100
    found = anyio.run(main, asked)
    print(json.dumps(found, indent=2)) if "--json" in sys.argv else _print(found)
