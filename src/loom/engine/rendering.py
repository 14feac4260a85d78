"""Rendering a request that comes without a body, for models that are called outside a session."""

from __future__ import annotations

from loom.context.context import Context
from loom.context.entry import MessageEntry, StringEntry
from loom.context.render.request import prepare
from loom.protocols.model import ModelRequest, Rendered


def render_request(request: ModelRequest, provider: str, model: str) -> Rendered:
    """The body of a request for a provider: the one it brings along, or one made of its neutral fields."""
    if request.rendered is not None and request.rendered.provider == provider:
        return request.rendered
    context = Context("request", tools=request.tools)
    for text in request.system:
        context.foundation.add(StringEntry(text, repeat=True))
    for message in request.messages:
        context.convo.add(MessageEntry(message))
    return Rendered(provider, prepare(context.compile(), provider, model).body)
