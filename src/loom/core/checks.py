"""Checks that values share, and the limits on how much text each call takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, cast

from loom.errors import UsageError

MAX_ID_BYTES = 512
"""The longest id of a user, a session or a record, in UTF-8 bytes: three of them fit any engine's index key."""


def check_text(value: str, what: str, *, max_bytes: int | None = None, may_be_empty: bool = False) -> None:
    """Refuse what is not text, is empty, or holds a character that no store keeps (NUL, lone surrogates)."""
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{what} is {value!r}, of type {type(value).__name__}; give text")
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


def read_time(text: str | None, what: str) -> datetime | None:
    """The time that a person wrote down; without a zone it is UTC, and a date is its first moment."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{what}={text!r:.60} is not a time; write it as 2026-11-15 or 2026-11-15T08:30Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def did_you_mean(word: str, known: Iterable[str], *, alike: float = 0.6) -> str:
    """A hint for the end of an error: the known name that is almost this word; empty where there is none."""
    found = nearest(word, known, alike=alike)
    return "" if found is None else f"; did you mean {found!r}?"


def nearest(word: str, known: Iterable[str], *, alike: float = 0.6) -> str | None:
    """The known name that is almost this word, if any."""
    from difflib import get_close_matches  # noqa: PLC0415  (only where something was misspelt)

    lower = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), lower, n=1, cutoff=alike)
    return lower[found[0]] if found else None


def is_plain(value: str) -> bool:
    """Whether a text has nothing that has to be looked at more closely: most have not, and this is quick."""
    return value.isascii() and value.isprintable()


def join_surrogates(text: str) -> str:
    """The text with the halves of a surrogate pair joined; a half alone, which has no UTF-8 form, is replaced."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def check_id(value: str, what: str) -> None:
    """Refuse an id that is empty, too long, or cannot be stored."""
    if type(value) is str and len(value) <= MAX_ID_BYTES and is_plain(value) and not value.isspace() and value:
        return  # as every id that is made here
    check_text(value, what, max_bytes=MAX_ID_BYTES)


def check_share(value: float, what: str) -> None:
    """Refuse a number outside 0 to 1, NaN included, and a number that stores do not know, as numpy's float32."""
    if not isinstance(value, float | int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{what} is {value!r}, of type {type(value).__name__}; give a float from 0 to 1")
    if not 0 <= value <= 1:
        raise UsageError(f"{what} is {value!r}; give a number from 0 to 1")


def as_utc(at: datetime, what: str) -> datetime:
    """The same moment in UTC; refuses a time without a zone."""
    if isinstance(at, datetime) and at.tzinfo is UTC:  # pyright: ignore[reportUnnecessaryIsInstance]
        return at
    if not isinstance(at, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = type(at).__name__
        raise UsageError(f"{what} is {at!r:.60}, of type {kind}; give a datetime: datetime(2026, 5, 1, tzinfo=UTC)")
    if at.utcoffset() is None:
        raise UsageError(f"{what} is {at!r}, a time without a zone; use datetime.now(UTC) or add tzinfo")
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise UsageError(
            f"{what} is {at.isoformat()}, which lies outside the years 1 to 9999 in UTC; give a time between them"
        ) from error


# Size limits of each call, in characters unless a name says otherwise, with their reasons.
#
# What is over a limit is refused in words before anything reads it, or cut where the call says so: see check_length()
# and shortened(). docs/reference/limits.md is the same list for people; a test compares the two.

# -- what comes in -------------------------------------------------------------------------------------------

MAX_TEXT: Final = 1_000_000
"""One text that is remembered, sent, answered or returned by a tool: a book of 170,000 words, more than the windows of
most models hold."""

MAX_ENTRY: Final = 4_000_000
"""One text of a context, instructions included: about a million tokens, the largest window there is."""

MAX_MEDIA: Final = 50_000_000
"""The base64 text of one picture or document: the largest request that a provider takes."""

MAX_RECORDED: Final = 50_000_000
"""The body of one entry that a program records in a log: characters of JSON, or bytes. As much as a picture."""

MAX_DOCUMENT: Final = 10_000_000
"""One document of a knowledge base: the longest novels there are. It is cut into passages, and shown by them."""

MAX_FILES: Final = 10_000
"""Files that one call of load_folder() reads: the documentation of a large project has a few thousand."""

MAX_FOLDER: Final = 100_000_000
"""What the files of one call of load_folder() have together: they are held in memory until they are added."""

MAX_QUERY: Final = 2_000
"""A question to memory or to a corpus. A question has a few sentences; of a longer message the beginning is
searched for, because every word costs a look into the index."""

MAX_NAME: Final = 200
"""A name: of a speaker, of the subject of a fact, of a block or an attribute. Names are compared with all others, shown
on one line and kept in caches."""

MAX_PREDICATE: Final = 600
"""The predicate of a fact; that of a standing instruction holds the words of the instruction."""

MAX_OBJECT: Final = 1_000
"""What a fact says of its subject: a statement of a few sentences, shown in every turn."""

MAX_VALUE: Final = 2_000
"""The text of one attribute, which is there to filter by."""

MAX_ATTRIBUTES: Final = 64
"""How many attributes a record or a document has, and how many values the metadata of a run."""

MAX_BLOCK: Final = 100_000
"""A pinned block, or a file of the memory tool: many times what is shown of it in a turn."""

KEPT_VERSIONS: Final = 20
"""Old texts of a pinned block that are kept, unless `MemoryConfig.block_versions` says otherwise: enough to see what
happened, and at most 21 times the room of the block."""

MAX_VERSIONS: Final = 1_000
"""The most old texts of a block that `MemoryConfig.block_versions` may ask for."""

MAX_INSTRUCTION: Final = 500
"""A standing instruction: what is shown in every turn has to be short."""

MAX_SKILL: Final = 200_000
"""The instructions of a skill; what is longer belongs into files that the skill names."""

MAX_TOOL_NAME: Final = 128
"""The name of a tool: no provider takes a longer one."""

MAX_TOOL_INPUT: Final = 1_000_000
"""The arguments of one tool call, as JSON: more than any model writes in one answer."""

# -- how much of it is looked at -----------------------------------------------------------------------------

RULES_READ: Final = 4_000
"""The longest message that rules extract facts from: what is longer is a document, not a plain statement."""

RULES_FIND: Final = 50
"""Facts that rules extract from one message at the most, as many as a model may list."""

RANKED: Final = 10_000
"""How much of a record the ranking compares with a question and upkeep judges it by. All of it is searched."""

AROUND: Final = 300
"""How much of a turn is a key of the turns around it: what they are about stands at its beginning, and the rest of an
answer of a page would drown their own words."""

REACH: Final = 2
"""How many turns on either side count as around."""

# -- where it is worked on -----------------------------------------------------------------------------------

ON_LOOP: Final = 20_000
"""Text that the event loop works on by itself: two or three milliseconds. More goes to a thread, so that no step of the
loop takes 20 ms."""


_NOTICE: Final = 120
"""Characters for the sentence that says what was left out."""


def check_length(text: str, what: str, most: int, instead: str) -> None:
    """Refuse a text that is too long, before anything reads it; `instead` says what to do."""
    if len(text) > most:
        raise UsageError(f"{what} has {len(text):,} characters; at most {most:,} are taken: {instead}")


def check_name(name: str, what: str) -> None:
    """Refuse a name that is too long to be one."""
    check_length(name, what, MAX_NAME, f"give a name of {MAX_NAME} characters or fewer")


def check_attributes(attributes: Mapping[str, object], what: str) -> None:
    """Refuse attributes that are too many, or have a name or a text that is too long."""
    if len(attributes) > MAX_ATTRIBUTES:
        raise UsageError(f"{what} has {len(attributes):,} attributes; at most {MAX_ATTRIBUTES} are taken: give fewer")
    for name, value in attributes.items():
        if isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            check_name(name, f"the name of an attribute of {what}")
        if isinstance(value, str):
            check_length(value, f"the attribute {name!r} of {what}", MAX_VALUE, "put long text into the text itself")


def chars_in(value: object, most: int) -> int:
    """How many characters the texts of a JSON value have, names included; counting ends above `most`."""
    total, open_ = 0, [value]
    while open_ and total <= most:
        one = open_.pop()
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, Mapping):
            open_ += [*cast("Mapping[str, object]", one), *cast("Mapping[str, object]", one).values()]
        elif isinstance(one, list | tuple):
            open_ += cast("Sequence[object]", one)
        else:
            total += 1
    return total


def shortened(text: str, most: int) -> str:
    """A text of at most `most` characters: both ends of a longer one, and between them how much was left out."""
    if len(text) <= most:
        return text
    kept = most - _NOTICE
    head, tail = kept - kept // 4, kept // 4
    left_out = f"{len(text) - kept:,} of {len(text):,} characters"
    return f"{text[:head]}\n\n[{left_out} were left out here: at most {most:,} are kept]\n\n{text[len(text) - tail :]}"
