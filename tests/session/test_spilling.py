"""Tool results too large to show: both ends are shown, the log keeps the whole, and the model can read the rest."""

from __future__ import annotations

import re
from typing import Any

import pytest

from loom.core.message import JSON, ImagePart, TextPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.errors import NotFound, UsageError
from loom.session.config import SessionConfig
from loom.session.session import Session
from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio

LIMIT = 2_000
LONG = "\n".join(f"line {n}: {'x' * 40}" for n in range(1_000)) + "\nthe needle\nend"


class Dump:
    """A tool that answers what it was made with."""

    spec = ToolSpec("dump", "Dumps.", {"type": "object"})

    def __init__(self, output: Any = LONG) -> None:
        self.output = output

    async def run(self, input: JSON) -> Any:
        if isinstance(self.output, Exception):
            raise self.output
        return self.output


def shown(session: Session) -> ToolResultPart:
    (found,) = [p for m in session.messages for p in m.parts if isinstance(p, ToolResultPart)][:1]
    return found


def text(part: ToolResultPart) -> str:
    return "".join(p.text for p in part.content if isinstance(p, TextPart))


async def dumped(output: Any = LONG, **options: Any) -> Session:
    model = ScriptedModel([ToolCallPart("c", "dump", {}), "Done."])
    session = Session(model=model, tools=[Dump(output)], config={"tool_output_limit": LIMIT}, **options)
    await session.send("Dump it.")
    return session


async def read(session: Session, **input: Any) -> str:
    """What the model gets when it calls read_output in its next turn."""
    model: Any = session._given["model"]
    model._replies = iter([ToolCallPart("r", "read_output", input), "Read."])
    await session.send("Read on.")
    return text([p for m in session.messages for p in m.parts if isinstance(p, ToolResultPart)][-1])


def named(session: Session) -> tuple[str, int]:
    """The id and the place that the notice names."""
    found = re.search(r'read_output\(id="([^"]+)", start=(\d+)\)', text(shown(session)))
    assert found
    return found[1], int(found[2])


async def test_a_long_result_shows_both_ends_and_where_the_rest_is() -> None:
    session = await dumped()
    result = text(shown(session))
    assert len(result) <= LIMIT
    assert result.startswith("line 0: ")
    assert result.endswith("the needle\nend")
    assert f"of {len(LONG):,} characters are not shown" in result
    requests = session._given["model"].requests
    assert max(len(str(request)) for request in requests) < len(LONG), "no request holds the whole"
    assert "read_output" in [tool.name for tool in requests[0].tools]


async def test_the_log_keeps_the_whole() -> None:
    session = await dumped()
    logged = [p for m in session.log for p in m.message.parts if isinstance(p, ToolResultPart)]
    assert [text(part) for part in logged] == [LONG]


async def test_the_pieces_that_the_model_reads_make_up_the_whole() -> None:
    session = await dumped()
    id, _ = named(session)
    pieces, start = [], 0
    while start < len(LONG):
        piece = re.sub(
            r"\n\[[\d,]+ more characters; start=\d+ reads on\]$", "", await read(session, id=id, start=start)
        )
        assert piece
        pieces.append(piece)
        start += len(piece)
    assert "".join(pieces) == LONG
    assert (await read(session, id=id, start=3, length=5)).startswith(LONG[3:8] + "\n[")


async def test_the_notice_continues_where_the_head_ends() -> None:
    session = await dumped()
    id, start = named(session)
    assert text(shown(session)).startswith(LONG[:start] + "\n\n[")
    assert (await read(session, id=id, start=start)).startswith(LONG[start : start + 100])


async def test_it_can_be_searched() -> None:
    session = await dumped()
    id, _ = named(session)
    found = await read(session, id=id, find="NEEDLE")
    place, line = found.split(": ", 1)
    assert LONG[int(place) :].startswith("needle")
    assert line == "the needle"
    assert await read(session, id=id, find="camel") == "'camel' does not stand in it."
    many = await read(session, id=id, find="line")
    assert many.count("\n") == 20
    assert many.endswith("[there are more]")


@pytest.mark.parametrize(
    "wrong",
    [{}, {"id": 5}, {"id": "x", "start": -1}, {"id": "x", "length": 0}, {"id": "x", "start": "1"}, {"id": "x-0"}],
)
async def test_a_wrong_call_is_told(wrong: dict[str, Any]) -> None:
    session = await dumped()
    assert await read(session, **wrong) != ""
    last = [p for m in session.messages for p in m.parts if isinstance(p, ToolResultPart)][-1]
    assert last.is_error


async def test_reading_behind_the_end_says_how_long_it_is() -> None:
    session = await dumped()
    id, _ = named(session)
    assert f"{len(LONG):,} characters" in await read(session, id=id, start=10**9)


async def test_it_survives_a_restore_and_a_fork() -> None:
    store = MemoryCheckpointStore()
    first = await dumped(checkpoints=store, session_id="s", user_id="ann")
    id, _ = named(first)
    options: dict[str, Any] = {"tools": [Dump()], "config": {"tool_output_limit": LIMIT}, "checkpoint": store}
    again = Session(model=ScriptedModel([]), session_id="s", user_id="ann", **options)
    await again.restore()
    assert again.messages == first.messages
    assert (await read(again, id=id, length=20)).startswith(LONG[:20])
    fork = await again.fork()
    assert (await read(fork, id=id, length=20)).startswith(LONG[:20])
    stranger = Session(model=ScriptedModel([]), session_id="s", user_id="bob", **options)
    assert "there is no result" in await read(stranger, id=id)


async def test_an_undo_means_a_compaction_unless_the_shortening_is_named() -> None:
    session = await dumped()
    with pytest.raises(NotFound, match="nothing was compacted"):
        await session.undo()
    (spill,) = session.compactions
    assert spill.strategy == "spill"
    assert spill.tokens_before > spill.tokens_after > 0
    await session.undo(spill.id)
    assert text(shown(session)) == LONG


async def test_what_fits_is_left_alone_and_pictures_stay() -> None:
    exact = "x" * LIMIT
    assert text(shown(await dumped(exact))) == exact
    picture = ImagePart("aGk=", "image/png")
    assert shown(await dumped((TextPart(LONG), picture))).content[1] == picture
    error = shown(await dumped(ValueError(LONG)))
    assert error.is_error
    assert len(text(error)) <= LIMIT


async def test_without_a_limit_or_without_tools_there_is_no_reader() -> None:
    model = ScriptedModel([ToolCallPart("c", "dump", {}), "Done."])
    session = Session(model=model, tools=[Dump()])
    await session.send("Dump it.")
    assert text(shown(session)) == LONG
    alone = ScriptedModel(["Hi."])
    await Session(model=alone, config={"tool_output_limit": LIMIT}).send("Hi.")
    assert [model.requests[0].tools[0].name, len(model.requests[0].tools), alone.requests[0].tools] == ["dump", 1, ()]
    with pytest.raises(UsageError, match="1,000 characters or more"):
        SessionConfig(tool_output_limit=10)
