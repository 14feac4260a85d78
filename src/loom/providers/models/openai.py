"""The base of the models on OpenAI's SDK."""

from __future__ import annotations

import os
from typing import Any, cast

from loom.core.message import JSON
from loom.providers.models.sdk import SdkModel


class OpenAIBase(SdkModel):
    """A model behind OpenAI's SDK."""

    sdk = "openai"
    key = "OPENAI_API_KEY"

    def _connect(self, sdk: Any) -> Any:
        key = self._api_key or self._found_key()
        if not key:
            raise self._no_key()
        return sdk.AsyncOpenAI(api_key=key, base_url=self._base_url, timeout=self._timeouts(sdk), max_retries=0)

    def _found_key(self) -> str | None:
        # The user's own key is not for a server at another address.
        return "none" if self._base_url is not None else os.environ.get(self.key)


def schema_form(schema: JSON) -> dict[str, JSON]:
    """The fields that say which schema an answer must follow."""
    return {"name": "answer", "schema": schema, "strict": _is_closed(schema)}


def _is_closed(schema: JSON) -> bool:
    """Whether OpenAI can hold an answer to a schema exactly: every object lists all its fields and wants them all."""
    if isinstance(schema, list):
        return all(_is_closed(item) for item in schema)  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(schema, dict):
        return True
    known = cast("dict[str, Any]", schema)
    if known.get("type") == "object":
        wanted: set[str] = set(known.get("required", ()))
        if known.get("additionalProperties") is not False or wanted != set(known.get("properties", {})):
            return False
    return all(_is_closed(value) for value in known.values())
