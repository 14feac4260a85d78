"""Any server that speaks the OpenAI Chat form: as Chat, but the system prompt keeps the older role."""

from __future__ import annotations

from functools import partial

from loom.context.render import openai_chat
from loom.context.render.openai_chat import dialect, may_mark

__all__ = ["dialect", "may_mark", "render"]

render = partial(openai_chat.render, system_role="system")
