"""Tools with which a model searches and changes the memory of its user."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from loom.core.record import Episode, Hit, Layer, Passage
from loom.errors import NotFound
from loom.memory._facts.instructions import said_by
from loom.memory._shared import FILE
from loom.memory.memory import Memory
from loom.protocols.tool import ToolError
from loom.text.fence import in_brackets, one_line, plain_text
from loom.tools.function import FunctionTool, get_run_context, tool

Query = Annotated[str, Field(description="What to look for, in plain words.", min_length=1)]
Limit = Annotated[int, Field(description="Results at the most.", ge=1, le=50)]

_NAME = 200
"""Characters of a name that are shown."""
_LAYERS = {
    Layer.L2: "Search this user's session memory: important events of the last day.",
    Layer.L3: "Search this user's episodic memory: events of earlier conversations.",
    Layer.L4: "Search this user's long-term knowledge: lasting facts and what was learned.",
}


def memory_tools(memory: Memory) -> tuple[FunctionTool[..., Any], ...]:
    """`search_l2_memory`, `search_l3_memory`, `search_l4_memory`, `remember`, `forget`, and working blocks.

    Each works for the user of the run that calls it, whatever the model writes: no tool takes a user.
    """
    return (*(_search(memory, layer, text) for layer, text in _LAYERS.items()), *_changes(memory), *_blocks(memory))


def _search(memory: Memory, layer: Layer, description: str) -> FunctionTool[..., Any]:
    @tool(name=f"search_{layer.label.lower()}_memory", description=description)
    async def search(query: Query, limit: Limit = 5) -> str:
        found = await memory.recall(query, user_id=get_run_context().user_id, limit=limit, layers=[layer])
        return "\n".join(_line(hit) for hit in found.hits) or "Nothing was found."

    return search


def _changes(memory: Memory) -> tuple[FunctionTool[..., Any], ...]:
    @tool
    async def remember(
        text: Annotated[str, Field(description="One statement, whole by itself.", min_length=1)],
        importance: Annotated[float, Field(description="From 0 to 1; 0.8 if it matters a lot.", ge=0, le=1)] = 0.0,
    ) -> str:
        """Keep a statement about this user for later conversations."""
        run = get_run_context()
        done = await memory.remember(
            text,
            user_id=run.user_id,
            session_id=run.session_id,
            speaker="assistant",
            origin="assistant",
            importance=importance,
        )
        return f"Kept as {done.kept[0].id}." if done.kept else f"Not kept: {done.skipped[0].reason}"

    @tool
    async def forget(id: Annotated[str, Field(description="The id that a search showed in brackets.")]) -> str:
        """Remove one memory of this user, and what was made from it."""
        receipt = await memory.forget(id, user_id=get_run_context().user_id)
        if not receipt.removed:
            raise NotFound(f"this user has no memory {id!r}; a search shows the ids in brackets")
        return "Forgotten."

    return remember, forget


def _blocks(memory: Memory) -> tuple[FunctionTool[..., Any], ...]:
    @tool
    async def read_block(name: Annotated[str, Field(description="The name of the block.")]) -> str:
        """Read a named working block of this user."""
        blocks = {block.name: block.text for block in await memory.blocks(user_id=get_run_context().user_id)}
        if name not in blocks:
            names = ", ".join(one_line(other, _NAME) for other in blocks)
            raise ToolError(f"there is no block {name!r}; the blocks are: {names or 'none'}")
        return plain_text(blocks[name])

    @tool
    async def write_block(
        name: Annotated[str, Field(description="The name of the block.", min_length=1)],
        text: Annotated[str, Field(description="All of its new text.", min_length=1)],
    ) -> str:
        """Write a named working block of this user; it is shown in every turn."""
        if name.startswith(FILE):
            raise ToolError(f"a block cannot be called {name!r}; use another name")
        block = await memory.set_block(name, text, user_id=get_run_context().user_id, origin="assistant")
        return f"Block {name} has version {block.version} now."

    return read_block, write_block


def _line(hit: Hit) -> str:
    item, about = hit.item, list[str]()
    if isinstance(item, Episode):
        about = [f"{item.at:%Y-%m-%d}", said_by(item)]
    elif isinstance(item, Passage):
        about = [in_brackets(item.source, _NAME)]
    named = "".join(f"{name}, " for name in about if name)
    return f"- ({named}[{one_line(item.id)}]) {one_line(hit.text)}"
