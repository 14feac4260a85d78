"""Many short messages: most of their tokens are the overhead of a message."""

import pytest

from loom.context.context import Context
from loom.context.entry import MessageEntry
from loom.core.message import Message
from loom.session.session import Session
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("target", [0.9, 0.5])
async def test_a_mild_target_is_reached(target):
    context = Context("short")
    for number in range(40):
        context.convo.add(MessageEntry(Message.user(f"yes {number}")))
        context.convo.add(MessageEntry(Message.assistant("ok")))
    config = {
        "trigger": {"type": "disabled"},
        "retain": {"type": "messages", "count": 2},
        "strategy": "truncate",
        "target": target,
    }
    session = Session(model=ScriptedModel(lambda _: "ok"), context=context, config={"compaction": config})
    done = await session.compact()
    assert done.tokens_after <= target * done.tokens_before
