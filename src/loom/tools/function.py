"""@tool: a function becomes a tool, with its schema, documentation and output."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from inspect import cleandoc
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from anyio import move_on_after, to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python

from loom.core.checks import MAX_TEXT, join_surrogates, shortened
from loom.core.message import JSON, DocumentPart, ImagePart, TextPart, ToolSpec
from loom.core.scope import RunContext, current_run
from loom.errors import UsageError
from loom.protocols.tool import CALLABLE, Tool, ToolError, ToolOutput

# Return values of tools, in the form a model reads.

_Part = TextPart | ImagePart | DocumentPart


def as_output(value: Any) -> ToolOutput:
    """Text as it is, parts as they are, nothing as "done", anything else as JSON; both ends of what is too long.

    Raises:
        TypeError: it has no such form; the message says what to return instead.
    """
    if value is None:
        return "done"
    if isinstance(value, str):
        return _sayable(shortened(value, MAX_TEXT))
    if isinstance(value, _Part):
        return (value,)
    parts: list[Any] = [*value] if isinstance(value, list | tuple) else []  # pyright: ignore[reportUnknownVariableType]
    if parts and all(isinstance(part, _Part) for part in parts):
        return tuple(parts)
    return _sayable(shortened(_as_json(value), MAX_TEXT))


def _as_json(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("returned bytes; return text, or an ImagePart or DocumentPart with base64 data")
    if isinstance(value, Iterator | AsyncIterator):  # a generator, say
        raise TypeError("returned something to go through; return a list, or text")
    try:
        return json.dumps(to_jsonable_python(value), ensure_ascii=False)
    except (PydanticSerializationError, ValueError, TypeError) as error:
        raise TypeError(f"returned a {type(value).__name__} that has no JSON form ({error}); return text") from error


def _sayable(text: str) -> str:
    """The text as every provider takes it: not empty, and no half of a surrogate pair."""
    return join_surrogates(text) if text.strip() else "(empty)"


# Reads docstrings: the summary of a function, and the text of each parameter.

_GOOGLE = re.compile(r"(?:Args|Arguments|Parameters|Params):")
_SECTION = re.compile(
    r"(?:Args|Arguments|Parameters|Params|Returns?|Raises|Yields?|Examples?|Notes?|Attributes|Warnings?|See Also):?"
)
_REST = re.compile(r":(?:param|parameter|arg|argument)\s(?:[^:]*\s)?(\w+)\s*:\s*(.*)")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\)\s*)?:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"(\w+)\s*(?::.*)?()")


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The text before the first section, each paragraph on one line, and the text of each parameter.

    Google (`Args:`), reST (`:param name:`) and numpy (`Parameters`, underlined) are understood. It is our own because
    docstring-parser finds fewer parameters: one line that does not fit a style makes it drop the whole section.
    """
    lines = cleandoc(text or "").splitlines()
    start = next((n for n in range(len(lines)) if _is_section(lines, n)), len(lines))
    paragraphs = "\n".join(lines[:start]).split("\n\n")
    summary = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())
    return summary, _joined(_google(lines)) or _joined(_numpy(lines)) or _joined(_rest(lines))


def _is_section(lines: list[str], n: int) -> bool:
    line = lines[n].rstrip()
    if line.startswith(":"):
        return re.match(r":\w[^:]*:", line) is not None
    return _SECTION.fullmatch(line) is not None and (line.endswith(":") or _is_underlined(lines, n))


def _is_underlined(lines: list[str], n: int) -> bool:
    return n + 1 < len(lines) and re.fullmatch(r"-{3,}\s*", lines[n + 1]) is not None


# Each style yields the lines of its parameters, and the match of those that begin a parameter.


def _google(lines: list[str]) -> Iterator[tuple[str, re.Match[str] | None]]:
    start = next((n for n, line in enumerate(lines, 1) if _GOOGLE.fullmatch(line.rstrip())), len(lines))
    depth = 0
    for line in filter(str.strip, lines[start:]):
        indent = len(line) - len(line.lstrip())
        if not indent:
            return
        depth = depth or indent
        yield line, _ENTRY.fullmatch(line.strip()) if indent == depth else None


def _numpy(lines: list[str]) -> Iterator[tuple[str, re.Match[str] | None]]:
    heads = (n for n, line in enumerate(lines) if line.rstrip() == "Parameters" and _is_underlined(lines, n))
    for n in range(next(heads, len(lines)) + 2, len(lines)):
        if _is_underlined(lines, n):
            return
        entry = _NUMPY_ENTRY.fullmatch(lines[n].rstrip())
        if entry or lines[n][:1].isspace():
            yield lines[n], entry


def _rest(lines: list[str]) -> Iterator[tuple[str, re.Match[str] | None]]:
    inside = False
    for line in lines:
        if line.startswith(":") or not line.strip():
            entry = _REST.fullmatch(line.rstrip())
            inside = entry is not None
            yield "", entry
        elif inside and line[0].isspace():
            yield line, None


def _joined(found: Iterable[tuple[str, re.Match[str] | None]]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    name = ""
    for line, entry in found:
        if entry is not None:
            name = entry[1]
            texts[name] = [entry[2]]
        elif name:
            texts[name].append(line)
    joined = {name: " ".join(" ".join(pieces).split()) for name, pieces in texts.items()}
    return {name: text for name, text in joined.items() if text}


# The parameters of a function: their JSON schema, and the validation of what a model sends.

_CONFIG = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class _Untitled(GenerateJsonSchema):
    """A schema without the titles that only repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  (as the base class asks)
        """Never."""
        return False


def _first_sentence(error: Exception) -> str:
    """What pydantic says, without its advice on its own settings."""
    return str(error).splitlines()[0].partition(". ")[0].rstrip(".")


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
            schema = self._model.model_json_schema(schema_generator=_Untitled)
        except PydanticUserError as error:
            raise UsageError(
                f"a model cannot be told of the types of {called}: {_first_sentence(error)}. Use plain types, "
                f"dataclasses or pydantic models"
            ) from error
        schema.pop("title", None)
        self.schema: JSON = {**schema, "properties": schema.get("properties", {})}

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
        parsed: dict[str, Any] = {}
        for name in {str(e["loc"][0]) for e in error.errors() if e["loc"]} & given.keys():
            if isinstance(given[name], str) and given[name].lstrip()[:1] in ("[", "{"):
                with suppress(ValueError):
                    parsed[name] = json.loads(given[name])
        try:
            if parsed:
                return self._model.model_validate({**given, **parsed})
        except ValidationError:
            pass  # the first error says what the model wrote
        raise ValueError(self._describe(error)) from error

    def _describe(self, error: ValidationError) -> str:
        wrong = [f"{'.'.join(map(str, e['loc'])) or 'input'}: {e['msg']}" for e in error.errors()]
        if any(e["type"] == "extra_forbidden" for e in error.errors()):
            wrong.append(f"the parameters are {', '.join(self._names.values()) or 'none'}")
        return "; ".join(wrong)

    def _field(self, parameter: inspect.Parameter, documented: Mapping[str, str]) -> Any:
        name, hint, default = parameter.name, parameter.annotation, parameter.default
        if hint is parameter.empty:
            guess = "str" if default is parameter.empty or default is None else type(default).__name__
            raise UsageError(
                f"parameter {name!r} of {self._called} has no type hint, so a model cannot be told what to send; "
                f"write `{name}: {guess}`, say"
            )
        if hint is RunContext:
            raise UsageError(
                f"parameter {name!r} of {self._called} is a RunContext, which no model can send; "
                f"leave it out, and call get_run_context() inside the function"
            )
        options: dict[str, Any] = {"alias": name}
        is_described = any(getattr(extra, "description", None) for extra in getattr(hint, "__metadata__", ()))
        if name in documented and not is_described:
            options["description"] = documented[name]
        if default is parameter.empty:
            return hint, Field(**options)
        try:
            to_jsonable_python(default)
        except PydanticSerializationError:
            return hint, Field(default_factory=lambda: default, **options)
        return hint, Field(default, **options)


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
            kind = "list[str]" if parameter.kind is parameter.VAR_POSITIONAL else "dict[str, str]"
            instead = (
                f"delete the `/` behind {parameter.name!r}"
                if parameter.kind is parameter.POSITIONAL_ONLY
                else f"write each parameter out, or take one: `{parameter.name}: {kind}`"
            )
            raise UsageError(f"{called} takes {parameter}; a tool takes parameters with names: {instead}")
    return found


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


DEFAULT_TIMEOUT = 60.0
"""Seconds a tool may take."""


_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_R = TypeVar("_R")
_S = TypeVar("_S")


class FunctionTool(Generic[_P, _R]):
    """A function as a tool: its schema comes from its type hints, its description from its docstring.

    It can still be called as the function it is. In a class it is a method: `instance.name` is the tool, which knows
    its instance.
    """

    def __init__(
        self,
        function: Callable[_P, _R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        native: Mapping[str, JSON] | None = None,
    ) -> None:
        """Make a tool; see `tool` for the arguments. `native` is how a provider knows it by itself."""
        if timeout is not None and not timeout > 0:
            raise UsageError(f"timeout={timeout}; give seconds above 0, or None for no limit")
        self._function = function
        self._options: dict[str, Any] = {"name": name, "description": description, "timeout": timeout}
        self._timeout = timeout
        inner: Callable[..., Any] = function
        while isinstance(inner, partial):
            inner = inner.func
        summary, documented = read_docstring(inner.__doc__)
        called = name or getattr(inner, "__name__", type(inner).__name__)
        if not CALLABLE.fullmatch(called):
            raise UsageError(
                f"a tool cannot be called {called!r}; name it with tool(name=...)(function): at most 64 letters, "
                f"digits, _ and -"
            )
        self._parameters = Parameters(function, called, documented)
        self.spec = ToolSpec(called, description or summary or called, self._parameters.schema, native=native or {})
        self.__doc__ = inner.__doc__
        self.__name__ = called

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """The function itself."""
        return self._function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(
        self: FunctionTool[Concatenate[_S, _Q], _R], instance: _S, owner: type | None = None
    ) -> FunctionTool[_Q, _R]: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> FunctionTool[..., Any]:
        """The tool of an instance, where the function is a method."""
        if instance is None or not self._parameters.wants_instance:
            return self
        function: Any = self._function
        return FunctionTool(function.__get__(instance, owner), **self._options)

    async def run(self, input: JSON) -> ToolOutput:
        """Check the input, run the function, and put its result into words."""
        self.check_is_bound()
        try:
            arguments = self._parameters.read(input)
        except ValueError as error:
            raise ToolError(
                f"the input of {self.spec.name} is wrong: {error}. Call it again with the right one."
            ) from error
        with move_on_after(self._timeout):
            result = await self._called(arguments)
            if not isinstance(result, list | dict | tuple | set):
                return self._worded(result)
            # It may hold anything, and its size is not known before it is written out.
            return await to_thread.run_sync(self._worded, cast("object", result), abandon_on_cancel=True)
        raise ToolError(f"{self.spec.name} took longer than {self._timeout:g} seconds and was stopped")

    def check_is_bound(self) -> None:
        """Refuse a method of no instance: nothing can be called then."""
        if self._parameters.wants_instance:
            raise UsageError(f"{self.spec.name} is a method; give the tool of an instance, as in thing.{self.__name__}")

    def _worded(self, result: Any) -> ToolOutput:
        try:
            return as_output(result)
        except TypeError as error:
            raise ToolError(f"{self.spec.name} {error}") from error

    async def _called(self, arguments: dict[str, Any]) -> Any:
        call = partial(cast("Callable[..., Any]", self._function), **arguments)
        if inspect.iscoroutinefunction(self._function):
            return await call()
        result = await to_thread.run_sync(call, abandon_on_cancel=True)
        return await result if inspect.isawaitable(result) else result


class ToolMaker(Protocol):
    """What `@tool(...)` gives: it makes a tool of a function, which keeps its signature."""

    def __call__(self, function: Callable[_P, _R], /) -> FunctionTool[_P, _R]:
        """The tool."""
        ...


@overload
def tool(function: Callable[_P, _R], /) -> FunctionTool[_P, _R]: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout: float | None = DEFAULT_TIMEOUT
) -> ToolMaker: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> FunctionTool[..., Any] | ToolMaker:
    """Make a tool of a function, sync or async: `@tool`, or `@tool(name=..., timeout=...)`.

    Args:
        function: its parameters need type hints; their descriptions come from `Annotated[..., Field(description=)]`
            or from the docstring, in the style of this one, of reST or of numpy.
        name: what the model calls it; the function's name if not given.
        description: what it does; the docstring up to its first section if not given.
        timeout: seconds it may take, None for no limit. A sync function that takes longer is left behind in its
            thread.
    """

    def make(function: Callable[_P, _R], /) -> FunctionTool[_P, _R]:
        return FunctionTool(function, name=name, description=description, timeout=timeout)

    return make(function) if function is not None else make


def as_tools(given: Iterable[Tool | Callable[..., Any]]) -> tuple[Tool, ...]:
    """Tools as they are, and functions as the tools that @tool would make of them."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"tools={given!r} is not a list of tools; write tools=[...]")
    return tuple(as_tool(one) for one in given)


def as_tool(given: Tool | Callable[..., Any]) -> Tool:
    """A tool as it is, and a function as the tool that @tool would make of it."""
    if isinstance(given, type):  # a class has what its instances have, so it would pass for a tool
        raise UsageError(f"{given.__name__} is a class, not a tool; give an instance of it, or a function")
    if isinstance(given, Tool):
        return given
    if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise UsageError(f"{given.__name__} is a generator, and a model reads one answer; return text or a list")
    if callable(given):
        made = FunctionTool(given)
        made.check_is_bound()
        return made
    maker = getattr(given, "as_tool", None)
    instead = (
        "give its as_tool()" if callable(maker) else "give a function with type hints, or an object with spec and run()"
    )
    raise UsageError(f"{given!r} is not a tool; {instead}")


# The run that a tool was called in, without passing it through every signature.


def get_run_context() -> RunContext:
    """The run of the tool that calls this, sync or async, however deep.

    Raises:
        UsageError: it was called outside a run.
    """
    context = current_run()
    if context is None:
        raise UsageError(
            "not inside a run; get_run_context() is for code that a tool runs (in a test: "
            "with loom.testing.run_context(user_id=...))"
        )
    return context
