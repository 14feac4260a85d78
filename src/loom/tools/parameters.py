"""The parameters of a function: their JSON schema, and the validation of what a model sends."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python

from loom.core.message import JSON
from loom.errors import UsageError

_CONFIG = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class _Untitled(GenerateJsonSchema):
    """A schema without the titles that only repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  (as the base class asks)
        """Never."""
        return False


class Parameters:
    """The parameters of a function, as a model sees them.

    Values are read leniently where nothing is lost by it: "5" is a number, 5 a text, and JSON in a text is parsed where
    a text is not wanted.
    """

    def __init__(self, function: Callable[..., Any], called: str, documented: Mapping[str, str]) -> None:
        self._called = called
        found = list(_parameters(function, called))
        self.wants_instance = bool(found) and found[0].name == "self" and found[0].annotation is inspect.Parameter.empty
        self._names = {f"p{n}": p.name for n, p in enumerate(found[self.wants_instance :])}
        # Fields have names of their own, so that a parameter may be called `json` or `_x`.
        fields = {
            field: self._field(p, documented)
            for field, p in zip(self._names, found[self.wants_instance :], strict=True)
        }
        try:
            self._model: type[BaseModel] = create_model(f"{called}_input", __config__=_CONFIG, **fields)
            self._model.model_rebuild(force=True)
            self.schema = _schema(self._model)
        except PydanticUserError as error:
            raise UsageError(
                f"a model cannot be told of the types of {called}: {str(error).splitlines()[0]}. Use plain types, "
                f"dataclasses or pydantic models"
            ) from error

    def read(self, input: JSON) -> dict[str, Any]:
        """The arguments for the function; those that were not sent are left to its defaults.

        Raises:
            ValueError: the input does not fit; the message says where and why.
        """
        given = _object(input)
        try:
            checked = self._model.model_validate(given)
        except ValidationError as error:
            checked = self._read_again(given, error)
        return {self._names[field]: getattr(checked, field) for field in checked.model_fields_set}

    def _read_again(self, given: dict[str, Any], error: ValidationError) -> BaseModel:
        """Try once more, with texts that hold JSON parsed."""
        parsed = _parsed(given, {str(e["loc"][0]) for e in error.errors() if e["loc"]})
        if parsed is None:
            raise ValueError(self._describe(error)) from error
        try:
            return self._model.model_validate(parsed)
        except ValidationError:
            raise ValueError(self._describe(error)) from error

    def _describe(self, error: ValidationError) -> str:
        wrong = [f"{'.'.join(map(str, e['loc'])) or 'input'}: {e['msg']}" for e in error.errors()]
        if any(e["type"] == "extra_forbidden" for e in error.errors()):
            wrong.append(f"the parameters are {', '.join(self._names.values()) or 'none'}")
        return "; ".join(wrong)

    def _field(self, parameter: inspect.Parameter, documented: Mapping[str, str]) -> Any:
        name, hint, default = parameter.name, parameter.annotation, parameter.default
        if hint is parameter.empty:
            raise UsageError(f"parameter {name!r} of {self._called} has no type hint; a model needs to know it")
        options: dict[str, Any] = {"alias": name}
        if name in documented and not _is_described(hint):
            options["description"] = documented[name]
        if default is parameter.empty:
            return hint, Field(**options)
        if _is_plain(default):
            return hint, Field(default, **options)
        return hint, Field(default_factory=lambda: default, **options)


def _parameters(function: Callable[..., Any], called: str) -> list[inspect.Parameter]:
    """The parameters that a model may give; those that a partial has fixed are left out."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise UsageError(
            f"the type hints of {called} cannot be read: {error}; define the type in its module"
        ) from error
    except (TypeError, ValueError) as error:
        raise UsageError(f"{function!r} is not a function whose parameters can be read: {error}") from error
    fixed: set[str] = set()
    while isinstance(function, partial):
        fixed |= set(function.keywords)
        function = function.func
    found = [p for p in signature.parameters.values() if p.name not in fixed]
    for parameter in found:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"{called} takes {parameter}; a tool takes parameters with names")
    return found


def _schema(model: type[BaseModel]) -> JSON:
    schema = model.model_json_schema(schema_generator=_Untitled)
    schema.pop("title", None)
    return {**schema, "properties": schema.get("properties", {})}


def _object(input: JSON) -> dict[str, Any]:
    """The input as an object; some models send it as a text once more, or send nothing where nothing is needed."""
    if isinstance(input, str) and input:
        try:
            input = json.loads(input)
        except ValueError as error:
            raise ValueError(f"it is not valid JSON ({error}); send one JSON object") from error
    if not isinstance(input, dict | None) and input != "":
        raise ValueError("it is not a JSON object; send one, with a field for each parameter")
    return dict(input or {})  # pyright: ignore[reportUnknownArgumentType]


def _parsed(given: dict[str, Any], wrong: set[str]) -> dict[str, Any] | None:
    """The input with the texts under these names parsed as JSON; None where that changes nothing."""
    found: dict[str, Any] = {}
    for name in wrong & given.keys():
        if isinstance(given[name], str) and given[name].lstrip()[:1] in ("[", "{"):
            try:
                found[name] = json.loads(given[name])
            except ValueError:
                continue
    return {**given, **found} if found else None


def _is_described(hint: Any) -> bool:
    return any(getattr(extra, "description", None) for extra in getattr(hint, "__metadata__", ()))


def _is_plain(value: Any) -> bool:
    try:
        to_jsonable_python(value)
    except PydanticSerializationError:
        return False
    return True
