"""@tool: a function becomes something a model can call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from anyio import move_on_after, to_thread

from loom.core.message import JSON, ToolSpec
from loom.errors import LoomError, UsageError
from loom.protocols.tool import ToolOutput
from loom.tools.docstring import read_docstring
from loom.tools.output import as_output
from loom.tools.parameters import Parameters

DEFAULT_TIMEOUT = 60.0
"""Seconds a tool may take."""
CALLABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""The names that every provider takes."""


_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_R = TypeVar("_R")
_S = TypeVar("_S")


class ToolError(LoomError):
    """A tool could not do what was asked; the message goes to the model."""


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
        summary, documented = read_docstring(_inner(function).__doc__)
        called = name or _name(function)
        if not CALLABLE.fullmatch(called):
            raise UsageError(f"a tool cannot be called {called!r}; give name=, of at most 64 letters, digits, _ and -")
        self._parameters = Parameters(function, called, documented)
        self.spec = ToolSpec(called, description or summary or called, self._parameters.schema, native=native or {})
        self.__doc__ = _inner(function).__doc__
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
        if self._parameters.wants_instance:
            raise UsageError(f"{self.spec.name} is a method; give the tool of an instance, as in thing.{self.__name__}")
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


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a partial is made of; anything else is itself."""
    while isinstance(function, partial):
        function = function.func
    return function


def _name(function: Callable[..., Any]) -> str:
    inner = _inner(function)
    return getattr(inner, "__name__", type(inner).__name__)
