"""Private copies of the lists in LangGraph's channels: compared with what is put next, and copied for those who read.

What a graph does to an object it was given, or has given, changes nothing here. In a long conversation comparing and
copying is what a turn costs; both run over all items in C where those are messages, or dicts of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, cast

from loom.errors import MissingExtra

try:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from pydantic import BaseModel
except ImportError as error:
    raise MissingExtra("loom.adapters.langgraph", "langgraph") from error

_LEAVES = frozenset({str, int, float, bool, type(None), bytes})
_TEXTS = frozenset({str, bytes, type(None)})
"""Leaves that equal nothing of another type, as 1 equals True."""
_MESSAGES = frozenset({AIMessage, HumanMessage, SystemMessage, ToolMessage})
_EXTRA, _PRIVATE = attrgetter("__pydantic_extra__"), attrgetter("__pydantic_private__")
_PARTS = attrgetter("__class__", "__dict__", "__pydantic_extra__")
_SET_FIELDS, _SET_NAMED, _SET_EXTRA, _SET_PRIVATE = (
    BaseModel.__dict__[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


class Items:
    """The items of a list, of any kind; nobody else has them."""

    def __init__(self, values: list[Any], serde: SerializerProtocol) -> None:
        self._values, self._serde = values, serde

    def copies(self) -> list[Any]:
        """Equal items, which the caller may change."""
        return [_copied(self._serde, value) for value in self._values]

    def shared(self, given: list[Any]) -> int:
        """How many items a list has in common with this one from the start."""
        count, dumped = 0, self._serde.dumps_typed
        for one, other in zip(self._each(), given, strict=False):
            if not _same(one, other) and dumped(one) != dumped(other):
                break
            count += 1
        return count

    def then(self, start: int, more: list[Any]) -> Items:
        """The first `start` items, and those of another list that nobody else has."""
        return items_of([*self._each()[:start], *more], self._serde)

    def _each(self) -> list[Any]:
        return self._values


def items_of(values: list[Any], serde: SerializerProtocol) -> Items:
    """The items of a list that was just read back, and that nobody else has."""
    return (_Chat if _are_messages(values) else _Dicts if _are_texts(values) else Items)(values, serde)


class _Dicts(Items):
    """Dicts of texts: turns as `{"role": ..., "content": ...}`, say."""

    def copies(self) -> list[Any]:
        return [*map(dict[str, Any].copy, self._values)]

    def shared(self, given: list[Any]) -> int:
        begins, kept = given[: len(self._values)], self._values[: len(given)]
        return len(kept) if begins == kept and _are_texts(begins) else super().shared(given)

    def then(self, start: int, more: list[Any]) -> Items:
        return _Dicts([*self._values[:start], *more], self._serde) if _are_texts(more) else super().then(start, more)


def _are_texts(values: Sequence[Any]) -> bool:
    is_flat = all(type(value) is dict for value in values)
    return is_flat and _TEXTS.issuperset(map(type, chain.from_iterable(map(dict[str, Any].values, values))))


class _Making(NamedTuple):
    """How a message is made again. All copies share the names of what is set: each field is, and none can be added."""

    kind: type
    fields: dict[str, Any]
    named: set[str]
    containers: list[tuple[str, Callable[[Any], Any], Any]]
    """The fields that have to be copied, and how."""


class _Chat(Items):
    """Messages of the usual kinds, with nothing but their fields; they are never given away."""

    def __init__(self, values: list[Any], serde: SerializerProtocol) -> None:
        super().__init__([*map(_PARTS, values)], serde)
        self._making = [_making(value, serde) for value in values]

    def copies(self) -> list[Any]:
        made, new = list[Any](), cast("Callable[[type], Any]", object.__new__)
        for kind, fields, named, containers in self._making:
            own = fields.copy()
            for name, copy, value in containers:
                own[name] = copy(value)
            message = new(kind)
            _SET_FIELDS(message, own)
            _SET_NAMED(message, named)
            _SET_EXTRA(message, {})
            _SET_PRIVATE(message, None)
            made.append(message)
        return made

    def shared(self, given: list[Any]) -> int:
        begins, kept = given[: len(self._values)], self._values[: len(given)]
        # In a field, 1 and True count as the same.
        is_same = _MESSAGES.issuperset(map(type, begins)) and [*map(_PARTS, begins)] == kept
        return len(kept) if is_same else super().shared(given)

    def then(self, start: int, more: list[Any]) -> Items:
        if not _are_messages(more):
            return super().then(start, more)
        made = _Chat(more, self._serde)
        made._values[:0] = self._values[:start]
        made._making[:0] = self._making[:start]
        return made

    def _each(self) -> list[Any]:
        return self.copies()


def _are_messages(values: Sequence[Any]) -> bool:
    return _MESSAGES.issuperset(map(type, values)) and not any(map(_EXTRA, values)) and not any(map(_PRIVATE, values))


def _making(message: Any, serde: SerializerProtocol) -> _Making:
    fields: dict[str, Any] = message.__dict__
    held = [(name, value) for name, value in fields.items() if type(value) not in _LEAVES]
    return _Making(type(message), fields, {*fields}, [(name, _copying(value, serde), value) for name, value in held])


def _copying(value: Any, serde: SerializerProtocol) -> Callable[[Any], Any]:
    if _kind(value) is dict and _LEAVES.issuperset(map(_kind, value.values())):
        return dict[str, Any].copy
    if _kind(value) is list and _LEAVES.issuperset(map(_kind, value)):
        return list[Any].copy
    return partial(_copied, serde)


def _copied(serde: SerializerProtocol, value: Any) -> Any:
    kind = _kind(value)
    if kind in _LEAVES:
        return value
    if kind is list:
        return [_copied(serde, item) for item in cast("list[Any]", value)]
    if kind is dict:
        return {name: _copied(serde, item) for name, item in cast("dict[Any, Any]", value).items()}
    return serde.loads_typed(serde.dumps_typed(value))


def _same(one: Any, other: Any) -> bool:
    """Whether two values are surely alike; False says nothing yet."""
    kind = _kind(one)
    if kind is not _kind(other):
        return False  # True is not 1
    if kind in _LEAVES:
        return bool(one == other)
    if kind is dict:
        return list(one) == list(other) and all(_same(value, other[name]) for name, value in one.items())
    return kind is list and len(one) == len(other) and all(map(_same, one, other))


def _kind(value: object) -> type:
    return type(value)
