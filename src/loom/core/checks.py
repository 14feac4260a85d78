"""The checks that values share: text that every store can hold, times with a zone, shares between 0 and 1."""

from __future__ import annotations

from datetime import UTC, datetime

from loom.errors import UsageError

MAX_ID_BYTES = 512
"""The longest id of a user, a session or a record, in UTF-8 bytes: three of them fit any engine's index key."""


def check_text(value: str, what: str, *, max_bytes: int | None = None, may_be_empty: bool = False) -> None:
    """Refuse what is not text, is empty, or holds a character that no store keeps (NUL, lone surrogates)."""
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{what} is {value!r}, a {type(value).__name__}; give text")
    if not value.strip() and not may_be_empty:
        raise UsageError(f"{what} is empty; give it some text")
    if "\0" in value:
        raise UsageError(f"{what} holds a NUL character at position {value.index(chr(0))}; remove it")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} holds half a surrogate pair at position {error.start}; remove it") from error
    if max_bytes is not None and size > max_bytes:
        raise UsageError(f"{what} takes {size:,} bytes; at most {max_bytes:,} are allowed: give a shorter one")


def join_surrogates(text: str) -> str:
    """The text with the halves of a surrogate pair joined; a half alone, which has no UTF-8 form, is replaced."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def check_id(value: str, what: str) -> None:
    """Refuse an id that is empty, too long, or cannot be stored."""
    check_text(value, what, max_bytes=MAX_ID_BYTES)


def check_share(value: float, what: str) -> None:
    """Refuse a number outside 0 to 1, NaN included, and a number that stores do not know, as numpy's float32."""
    if not isinstance(value, float | int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{what} is {value!r}, a {type(value).__name__}; give a float from 0 to 1")
    if not 0 <= value <= 1:
        raise UsageError(f"{what} is {value!r}; give a number from 0 to 1")


def as_utc(at: datetime, what: str) -> datetime:
    """The same moment in UTC; refuses a time without a zone."""
    if isinstance(at, datetime) and at.tzinfo is UTC:  # pyright: ignore[reportUnnecessaryIsInstance]
        return at
    if not isinstance(at, datetime) or at.utcoffset() is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{what} is {at!r}, a time without a zone; use datetime.now(UTC) or add tzinfo")
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise UsageError(f"{what} is {at!r}, which lies outside the years 1 to 9999 in UTC") from error
