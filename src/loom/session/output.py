"""Typed answers: the tool `final_answer` that a model gives its answer with, and the validation of its input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast, get_type_hints, is_typeddict

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError

from loom.core.checks import MAX_TOOL_INPUT, MAX_VALUE, chars_in, shortened
from loom.core.message import JSON, Message, ToolCallPart, ToolResultPart, ToolSpec
from loom.errors import BadOutput, UsageError
from loom.protocols.model import ModelResponse
from loom.session.history import NOT_USABLE

FINAL_ANSWER: Final = "final_answer"

_DESCRIPTION = "Give the final answer. Call this once, as the last thing you do; nothing else reaches the user."
_CUT = "the call was cut off before it was complete; give a shorter answer"
_VALUE = "value"


class Output:
    """The typed answer that one turn has to give."""

    def __init__(self, kind: Any, *, retries: int = 1, taken: Sequence[str] = ()) -> None:
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"output_retries={retries!r}; give a whole number, 0 or more")
        if FINAL_ANSWER in taken:
            raise UsageError(f"a tool is called {FINAL_ANSWER!r}, which output_type needs; rename it")
        self._form = _Form(kind)
        self._left = retries
        self._tries = 0
        self.spec = ToolSpec(FINAL_ANSWER, _DESCRIPTION, self._form.schema)
        self.value: Any = None
        self.text = ""
        """The answer as JSON."""
        self.problem: str | None = None
        """What is wrong with the last answer."""
        self.is_given = False
        self.has_failed = False

    def is_over(self, response: ModelResponse) -> bool:
        """Whether this response ends the turn: the answer is there, or the retries are used up."""
        self.problem = None
        call = next((call for call in response.tool_calls if call.name == FINAL_ANSWER), None)
        if call is None and (response.tool_calls or response.stop == "pause"):
            return False
        self._tries += 1
        try:
            self.value = self._form.read(_answer_in(response, call, is_text=self._form.is_text))
        except ValueError as error:
            self.problem = shortened(str(error), MAX_VALUE)
            self._left -= 1
            self.has_failed = self._left < 0
            return self.has_failed
        self.text = json.dumps(call.input, ensure_ascii=False) if call else response.text
        self.is_given = True
        return True

    def refused(self, calls: Sequence[ToolCallPart]) -> dict[str, str]:
        """What is wrong with a final answer, by the id of its call."""
        wrong = f"{self.problem}. Call {FINAL_ANSWER} again, with the right input."
        return {call.id: wrong for call in calls if call.name == FINAL_ANSWER} if self.problem else {}

    def closing(self, calls: Sequence[ToolCallPart]) -> Message | None:
        """Results for the calls of the last response, none of which is run any more."""
        results = [
            ToolResultPart(call.id, "accepted")  # pyright: ignore[reportArgumentType]
            if call.name == FINAL_ANSWER and self.is_given
            else ToolResultPart(call.id, self.problem or "not made: the final answer was given", is_error=True)  # pyright: ignore[reportArgumentType]
            for call in calls
        ]
        return Message("user", tuple(results)) if results else None

    def again(self) -> list[Message]:
        """What to tell a model that answered in words of the wrong form."""
        text = f"{NOT_USABLE}{self.problem}. Give it by calling {FINAL_ANSWER}."
        return [Message.user(text)] if self.problem else []

    def check(self) -> None:
        """Raise if the retries are used up without a usable answer."""
        if self.has_failed:
            raise BadOutput(self._form.name, self._tries, self.problem or "")


def _answer_in(response: ModelResponse, call: ToolCallPart | None, *, is_text: bool) -> JSON:
    """The input of the call, or an answer in words: for a type that is written as text, the words are the value."""
    if response.stop == "length":
        raise ValueError(_CUT)
    if call:
        return call.input
    try:
        parsed: Any = _parsed(response.text)
    except ValueError:
        if not is_text or not response.text.strip():
            raise
        parsed = None
    if not is_text or (isinstance(parsed, Mapping) and _VALUE in parsed):
        return cast("JSON", parsed)
    return {_VALUE: parsed if isinstance(parsed, str) else response.text}


class _Form:
    """A type as a JSON schema, and the validation of what a model sends for it."""

    def __init__(self, kind: Any) -> None:
        self.name: str = getattr(kind, "__name__", str(kind))
        self._is_mapping = is_typeddict(kind)
        try:
            # pydantic refuses typing.TypedDict before Python 3.12, so one becomes a model for the time of reading.
            self._adapter: TypeAdapter[Any] = TypeAdapter(_model_of(kind) if self._is_mapping else kind)
            schema = self._adapter.json_schema()
        except (PydanticUserError, NameError) as error:
            raise UsageError(
                f"output_type={self.name} has no JSON schema: {str(error).splitlines()[0]}. Give a pydantic model, a "
                "dataclass, a TypedDict, or a type that is made of plain ones"
            ) from error
        self._is_wrapped = schema.get("type") != "object"
        self.is_text = schema.get("type") == "string"
        self.schema: JSON = _wrapped(schema) if self._is_wrapped else schema

    def read(self, input: JSON) -> Any:
        """The value.

        Raises:
            ValueError: the input does not fit; the message says where and why.
        """
        given: Any = _parsed(input) if isinstance(input, str) else input
        if (size := chars_in(given, MAX_TOOL_INPUT)) > MAX_TOOL_INPUT:
            raise ValueError(f"the answer has over {MAX_TOOL_INPUT:,} characters ({size:,}); give a shorter one")
        if self._is_wrapped and isinstance(given, Mapping):
            mapping = cast("Mapping[str, Any]", given)
            given = mapping[_VALUE] if set(mapping) == {_VALUE} else mapping
        try:
            value = self._adapter.validate_json(json.dumps(given))
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, e['loc'])) or 'the answer'}: {e['msg']}" for e in error.errors()]
            raise ValueError("; ".join(wrong)) from error
        except Exception as error:  # a validator of the user's own
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if isinstance(value, BaseModel) and self._is_mapping:
            fields = type(value).model_fields
            return {fields[name].alias or name: getattr(value, name) for name in value.model_fields_set}
        return value


def _model_of(kind: Any) -> type[BaseModel]:
    """A model with the keys of a TypedDict; its fields have names of their own, so that a key may be any name."""
    fields: dict[str, Any] = {}
    for number, (key, hint) in enumerate(get_type_hints(kind).items()):
        is_needed = key in kind.__required_keys__
        fields[f"k{number}"] = (hint, Field(alias=key) if is_needed else Field(None, alias=key))
    return create_model(kind.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def _wrapped(schema: JSON) -> JSON:
    """A schema for an object that holds the value: the input of a tool is an object."""
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    defs = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "object", "properties": {_VALUE: inner}, "required": [_VALUE], **defs}


def _parsed(text: str) -> JSON:
    """The JSON in an answer, without a Markdown fence around it."""
    body = text.strip()
    if body.startswith("```") and body.endswith("```") and "\n" in body:
        body = body[body.index("\n") : -3]
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from error
