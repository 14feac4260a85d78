"""Tool calls of models that were not trained for them: the answer follows a JSON schema that has room for calls.

Small models answer a native tool prompt with anything; what a grammar does not allow they cannot write.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from loom.core.message import JSON, TextPart, ToolCallPart, ToolSpec
from loom.errors import BadResponse, UsageError

_HOW: Final = """You can call tools. Answer with one JSON object:
{forms}
The tools, one per line:
{tools}"""
_SAY: Final = '{"say": "your answer"} to answer the user'
_CALL: Final = (
    '{"call": [{"name": "...", "input": {...}}, ...]} to call one tool or several; their results are told to you'
)


def chosen_tools(tools: Sequence[ToolSpec], choice: str | None) -> tuple[ToolSpec, ...]:
    """The tools that a tool choice leaves."""
    if choice == "none":
        return ()
    if choice in {None, "auto", "any"}:
        return tuple(tools)
    named = tuple(tool for tool in tools if tool.name == choice)
    if not named:
        raise UsageError(f"tool_choice={choice!r} is not a tool of this request; use auto, none, any, or a tool's name")
    return named


def instruction(tools: Sequence[ToolSpec], *, must_call: bool) -> str:
    """The instruction that lists the tools."""
    forms_of_tools = [{"name": t.name, "description": t.description, "input": t.input_schema} for t in tools]
    forms = _CALL if must_call else f"{_SAY}\n{_CALL}"
    return _HOW.format(forms=forms, tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in forms_of_tools))


def schema(tools: Sequence[ToolSpec], *, must_call: bool, output: JSON = None) -> JSON:
    """The schema of an answer: something to say (after `output`, if given), or calls."""
    call = {
        "type": "array",
        "items": {"anyOf": [_object({"name": {"const": t.name}, "input": t.input_schema}) for t in tools]},
        "minItems": 1,
    }
    calls = _object({"call": call})
    return calls if must_call else {"anyOf": [_object({"say": output or {"type": "string"}}), calls]}


def read(text: str, answer_id: str | None) -> tuple[TextPart | ToolCallPart, ...]:
    """The parts of an answer that followed the schema.

    Raises:
        BadResponse: it did not; most often it was cut off.
    """
    try:
        answer: Any = json.loads(text)
        if "say" in answer:
            said = answer["say"] if isinstance(answer["say"], str) else json.dumps(answer["say"], ensure_ascii=False)
            return (TextPart(said),) if said else ()
        return tuple(
            ToolCallPart(f"call_{answer_id or 'answer'}_{place}", call["name"], call["input"])
            for place, call in enumerate(answer["call"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadResponse(f"the answer calls no tool and says nothing ({error!r}): {text:.200}") from error


def written(calls: Sequence[ToolCallPart]) -> str:
    """Calls that were made before, as the model wrote them."""
    return json.dumps({"call": [{"name": call.name, "input": call.input} for call in calls]}, ensure_ascii=False)


def _object(properties: dict[str, JSON]) -> JSON:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
