"""Calling the four verbs of a key-value store, whether they are coroutines or block."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from inspect import Parameter, isawaitable, iscoroutinefunction, signature
from typing import Any, cast

import anyio.to_thread

from loom.core.message_codec import from_bytes
from loom.errors import LoomError, StoreUnavailable, UsageError
from loom.protocols.key_values import KeyValues

_ABSENT = (KeyError, FileNotFoundError)


class Verbs:
    """The verbs of a key-value store as coroutines, its errors as those of a store."""

    def __init__(self, values: KeyValues, *, text: bool) -> None:
        missing = [verb for verb in ("save", "load", "list", "delete") if not callable(getattr(values, verb, None))]
        if missing:
            raise UsageError(
                f"{type(values).__name__} has no {', '.join(missing)}; a key-value store needs save(key, value), "
                "load(key), list(prefix) and delete(key)"
            )
        self._values = values
        self._name = type(values).__name__
        self._text = text
        self._lists_all = not _takes_argument(values.list)

    async def save(self, key: str, value: bytes) -> None:
        """Keep a value."""
        given: Any = _as_text(value) if self._text else value
        await self._call(self._values.save, key, given)

    async def load(self, key: str) -> bytes | None:
        """The value of a key; None where there is none."""
        try:
            found = await self._call(self._values.load, key)
        except _ABSENT:
            return None
        if isinstance(found, str):
            return found.encode()
        if found is not None and not isinstance(found, bytes | bytearray | memoryview):
            raise UsageError(f"load() of {self._name} returned {type(found).__name__}; it has to return bytes or text")
        return None if found is None else bytes(cast("bytes", found))

    async def keys(self, prefix: str) -> list[str]:
        """The keys that start with a prefix."""
        found = await self._call(self._values.list, *(() if self._lists_all else (prefix,)))
        if isinstance(found, str | bytes) or not isinstance(found, Iterable):
            raise UsageError(f"list() of {self._name} returned {type(found).__name__}; it has to return keys")
        keys = cast("Iterable[object]", found)
        return [key for key in keys if isinstance(key, str) and key.startswith(prefix)]

    async def delete(self, key: str) -> None:
        """Remove a key."""
        try:
            await self._call(self._values.delete, key)
        except _ABSENT:
            return

    async def _call(self, verb: Callable[..., Any], *args: Any) -> Any:
        try:
            if iscoroutinefunction(verb):
                return await verb(*args)
            found = await anyio.to_thread.run_sync(partial(verb, *args))
            return await found if isawaitable(found) else found
        except (LoomError, *_ABSENT):
            raise
        except Exception as error:
            verb_name = getattr(verb, "__name__", "a call")
            raise StoreUnavailable(
                f"{verb_name}() of {self._name} failed: {type(error).__name__}: {error}; what was acknowledged before "
                "is kept, and the call can be made again"
            ) from error


def _as_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:  # half of a surrogate pair, which only its escape can say in text
        return json.dumps(from_bytes(value))


def _takes_argument(verb: Callable[..., Any]) -> bool:
    try:
        parameters = signature(verb).parameters.values()
    except (TypeError, ValueError):  # a builtin tells nothing; the protocol names a prefix
        return True
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)
    return any(parameter.kind in kinds for parameter in parameters)
