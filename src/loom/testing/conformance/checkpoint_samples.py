"""Checkpoints, log entries and ids that the laws are tried on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from loom.core.checkpoint import Checkpoint, Compaction, LogEntry, LoggedMessage, Replacement
from loom.core.message import (
    DocumentPart,
    ImagePart,
    Message,
    NativePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.protocols.checkpoint_store import CheckpointStore, Forks, PrunesCheckpoints
from loom.testing.clock import START
from loom.testing.conformance.samples import ALICE, TWINS

CHAT = ALICE.for_session("chat")
"""The session that most laws are tried on."""

NAMES: tuple[tuple[str, str], ...] = (
    *TWINS,
    ("a:b", "a_b"),
    ("a/b", "a_b"),
    ("../up", "up"),
    ("../../etc/passwd", "/etc/passwd"),
    (".", ".."),
    ("a.log", "a"),
    ("lock", "LOCK"),
    ("CON", "con"),
    ("NUL", "nul.log"),
    ("a\nb", "a b"),
    ("C:\\x", "C:/x"),
    ("~", "$HOME"),
    ("x" * 512, "x" * 511),
)
"""Pairs of different ids that a careless store takes for one, for a pattern, or for the name of a file."""


class ForkingCheckpointStore(CheckpointStore, Forks, Protocol):
    """A checkpoint store that forks."""


class PruningCheckpointStore(CheckpointStore, PrunesCheckpoints, Protocol):
    """A checkpoint store that prunes."""


class ForkingPruningStore(CheckpointStore, Forks, PrunesCheckpoints, Protocol):
    """A checkpoint store that forks and prunes."""


def staying(receipt: Receipt) -> list[str]:
    """The lines of a receipt about log entries that stay.

    Other lines may be about bytes that the files of a store keep until they are swept.
    """
    return [words for words in receipt.pending if "log entries stay" in words]


def a_message(id: str = "m1", text: str = "we drank tea", **fields: Any) -> LoggedMessage:
    """A user's message of the start of time; `message` says otherwise."""
    given: dict[str, Any] = {"at": START, "message": Message.user(text)} | fields
    return LoggedMessage(id, **given)


def a_checkpoint(id: str = "c1", *, session_id: str = "chat", **fields: Any) -> Checkpoint:
    """A checkpoint of the start of time, of an empty log unless `fields` say otherwise."""
    given: dict[str, Any] = {"at": START, "position": 0, "turn": 0} | fields
    return Checkpoint(id=id, session_id=session_id, **given)


async def save(
    store: CheckpointStore,
    scope: Scope,
    id: str,
    *texts: str,
    after: Checkpoint | None = None,
    entries: Sequence[LogEntry] | None = None,
) -> Checkpoint:
    """Save a checkpoint that continues `after` with one message for each text; the head is what the store says."""
    added = tuple(a_message(f"{id}.{n}", text) for n, text in enumerate(texts)) if entries is None else tuple(entries)
    before = 0 if after is None else after.position
    checkpoint = a_checkpoint(
        id,
        session_id=scope.session_id or "",
        position=before + len(added),
        turn=0 if after is None else after.turn + 1,
        parent=None if after is None else after.id,
    )
    newest = await store.load(scope)
    await store.save(scope, checkpoint, entries=added, head=None if newest is None else newest.id)
    return checkpoint


async def save_turns(store: CheckpointStore, scope: Scope, *ids: str, after: Checkpoint | None = None) -> Checkpoint:
    """Save one turn for each id, each continuing the one before; returns the last."""
    assert ids
    for id in ids:
        after = await save(store, scope, id, f"question {id}", f"answer {id}", after=after)
    assert after is not None
    return after


async def texts_of(store: CheckpointStore, scope: Scope, id: str) -> list[str]:
    """The texts of the log up to a checkpoint."""
    return [entry.message.text for entry in await store.history(scope, id) if isinstance(entry, LoggedMessage)]


async def ids_in(store: CheckpointStore, scope: Scope) -> list[str]:
    """The ids that list() gives."""
    return [checkpoint.id for checkpoint in await store.list(scope)]


async def everything(store: CheckpointStore, scope: Scope) -> list[tuple[Checkpoint, tuple[LogEntry, ...]]]:
    """All checkpoints of a scope, with their logs."""
    found = await store.list(scope)
    return [(one, await store.history(scope.for_session(one.session_id), one.id)) for one in found]


def awkward_entries() -> tuple[LogEntry, ...]:
    """An entry of each kind, with a part of each kind, every field set to something that is easily lost."""
    text = (
        "caf\u00e9 cafe\u0301 \u202e \U0001f375 \"quoted\" 'single' % _ * \\ \r\n\t \0 \u4e1c\u4eac \u2028 \xff \ud83d"
    )
    later = datetime(2027, 3, 4, 5, 6, 7, 891011, tzinfo=UTC)
    picture = ImagePart("iVBORw0KGgo=", "image/png", "a \u00e9.png")
    nested: dict[str, Any] = {
        "n": [1, 1.0, 0.1, -0.0, 2**70, True, None, "", {"b": {"a": []}, "a": "\u00e9"}],
        "": text,
    }
    call = Message("assistant", (
        ThinkingPart(text, "seal=="), ThinkingPart(redacted="xx", provider="other"), TextPart(""), TextPart(text),
        ToolCallPart("t1", "look", nested), ToolCallPart("t2", "look", ["no object"]), ToolCallPart("t3", "look", None),
        NativePart("anthropic", {"type": "compaction", **nested}),
    ))  # fmt: skip
    result = Message("user", (
        ToolResultPart("t1", (TextPart(text), picture, DocumentPart("JVBERi0=", name=None))),
        ToolResultPart("t2", (), is_error=True), ToolResultPart("t3", (TextPart(""),)),
        picture, ImagePart("iVBORw0KGgo=", "image/png"), DocumentPart("JVBERi0=", "text/plain", "\U0001f375"),
    ))  # fmt: skip
    compaction = Compaction(
        id="k \u00e9", at=later + timedelta(microseconds=1), strategy="summarize", tokens_before=10**12, tokens_after=0,
        replacements=(
            Replacement(("m1",), Message("user", (TextPart(text), picture))), Replacement(("m2", "m3"), None),
        ),
    )  # fmt: skip
    zone = timedelta(hours=5, minutes=30)
    return (
        LoggedMessage("m1", later, Message("system", (TextPart(text),))),
        LoggedMessage("m2", (later + zone).astimezone(), call),
        LoggedMessage("m3", later, result),
        compaction,
    )


def awkward_checkpoint(position: int) -> Checkpoint:
    """A checkpoint with every field set."""
    return a_checkpoint(
        "c \u00e9 \U0001f375", at=datetime(2027, 3, 4, 5, 6, 7, 1, tzinfo=UTC), position=position, turn=10**9,
        compactions=("k \u00e9", "'", "k,k"), pins=("m1", "\u00e9"),
        usage=Usage(input=2**53, output=3, cache_read=2, cache_write=1),
    )  # fmt: skip
