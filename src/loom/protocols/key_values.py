"""The protocol of key-value stores: the four verbs of a bucket or a key-value server."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Protocol, runtime_checkable


@runtime_checkable
class KeyValues(Protocol):
    """Four verbs, each a coroutine or a plain function; a plain one runs in a thread, so it may block.

    Laws:
    - save() is atomic and durable: a reader sees the whole value or none, and what was acknowledged is there;
    - load() gives what was saved last under the key, as bytes or as text; None, or a KeyError, where there is nothing;
    - list() gives every key that starts with the prefix, in any order, a key that was just saved included; one that
      takes no argument gives every key there is;
    - delete() removes a key; one that is not there does not matter.
    """

    def save(self, key: str, value: bytes) -> Awaitable[object] | object:
        """Keep a value, in place of any that the key has."""
        ...

    def load(self, key: str) -> Awaitable[bytes | str | None] | bytes | str | None:
        """The value of a key."""
        ...

    def list(self, prefix: str) -> Awaitable[Iterable[str]] | Iterable[str]:
        """The keys that start with a prefix."""
        ...

    def delete(self, key: str) -> Awaitable[object] | object:
        """Remove a key."""
        ...
