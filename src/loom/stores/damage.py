"""Errors of stored data that cannot be read."""

from __future__ import annotations

import json
import struct
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from loom.errors import LoomError, StoreError


class DamagedData(StoreError):
    """Stored data was damaged. The store that reads it knows its place: see damage_error()."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; restore it from a copy")
        self.what = what


UNREADABLE: Final = (
    DamagedData,
    UnicodeDecodeError,
    json.JSONDecodeError,
    LookupError,
    struct.error,
    RecursionError,
    MemoryError,
)
"""What reading damaged data ends in, once other errors of Loom are let through, some of which are LookupErrors.

Errors that a wrong call ends in as well are not among them: see reading().
"""


@contextmanager
def reading(what: str, *, but: tuple[type[Exception], ...] = ()) -> Generator[None]:
    """Take every error of the block, which only decodes, for damage of `what`; `but` are errors of a driver."""
    try:
        yield
    except (StoreError, *but):
        raise
    except Exception as error:
        raise unreadable(what, error) from error


def unreadable(what: str, error: Exception) -> DamagedData:
    """The damage of `what`, which reading ended in this error."""
    return DamagedData(f"{what} cannot be read ({described(error)})")


def described(error: Exception) -> str:
    """An error in a few words."""
    if isinstance(error, DamagedData):
        return error.what
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    return f"{type(error).__name__}: {error}"


def damage_error(place: str, error: Exception, *, verify: str | None = None) -> StoreError:
    """The error that names the place, what is damaged, and what to do; `verify` is the URL of what can be verified."""
    to_do = f"run `loom store verify {verify} --repair`, or " if verify else ""
    return StoreError(f"{place} is damaged: {described(error)}; {to_do}restore it from a copy")


@contextmanager
def damage_at(place: str) -> Generator[None]:
    """Name the place in errors of unreadable data."""
    try:
        yield
    except DamagedData as error:
        raise damage_error(place, error) from error
    except LoomError:
        raise
    except UNREADABLE as error:
        raise damage_error(place, error) from error
