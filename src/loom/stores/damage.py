"""Stored data that cannot be read: how a store notices, and what it says."""

from __future__ import annotations

import json
import struct
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from loom.errors import StoreError


class DamagedData(Exception):
    """What was stored is not what is there. The store that reads it knows its place, and makes a StoreError of it."""


UNREADABLE: Final = (
    DamagedData,
    UnicodeDecodeError,
    json.JSONDecodeError,
    LookupError,
    struct.error,
    RecursionError,
    MemoryError,
)
"""What reading damaged data ends in, once errors of Loom itself are let through, some of which are LookupErrors.

Errors that a wrong call ends in as well are not among them: see reading().
"""


@contextmanager
def reading(what: str, *, but: tuple[type[Exception], ...] = ()) -> Generator[None]:
    """Take every error of the block, which only decodes, for damage of `what`; `but` are errors of a driver."""
    try:
        yield
    except (StoreError, DamagedData, *but):
        raise
    except Exception as error:
        raise DamagedData(f"{what} cannot be read ({described(error)})") from error


def described(error: Exception) -> str:
    """An error in a few words."""
    if isinstance(error, DamagedData):
        return str(error)
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    return f"{type(error).__name__}: {error}"


def damage_error(place: str, error: Exception, *, verify: str | None = None) -> StoreError:
    """The error that names the place, what is damaged, and what to do; `verify` is the URL of what can be verified."""
    to_do = (
        f"run `loom store verify {verify} --repair`, or restore it from a copy" if verify else "restore it from a copy"
    )
    return StoreError(f"{place} is damaged: {described(error)}; {to_do}")
