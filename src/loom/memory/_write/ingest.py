"""Ingest: checked, clean episodes from what a caller passes in, and the keys that find them."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, TypeAlias, cast

from loom.core import checks
from loom.core.checks import (
    MAX_BLOCK,
    MAX_INSTRUCTION,
    MAX_OBJECT,
    MAX_PREDICATE,
    MAX_TEXT,
    REACH,
    check_attributes,
    check_id,
    check_length,
    check_name,
)
from loom.core.filter import Eq
from loom.core.message import Message, TextPart, ToolCallPart, ToolResultPart
from loom.core.record import Episode, Fact, Origin, Record, Scalar, with_attributes
from loom.core.scope import Scope
from loom.core.threads import Locks, off_loop
from loom.errors import UsageError
from loom.memory._facts.entities import USER, normalise
from loom.memory._facts.instructions import topic_of
from loom.memory._recall.rank import questions_in
from loom.memory._shared import POSITION, every, recorded_after
from loom.memory.results import Skip
from loom.protocols.memory_store import Around, KeepsKeys, MemoryStore, Store
from loom.text.fence import one_line

MAX_NAME = 120
"""Characters of a speaker's name; a longer one is cut."""
_ROLES = frozenset({"user", "assistant", "system", "developer", "tool", "function", "operator"})
_MISSPELT = 0.75
"""How much a role is like a known one that is meant: `usr` and `asistant` are, `customer` and `user2` are not.

`operator` is Loom's own: a log has none, but it may have a `moderator`.
"""
_UNNAMED = "someone"
_NAMES_OF_ROLES = _ROLES | {"ai", "bot", "model", "agent"}
_VERBS = frozenset(
    """
    add append ask build call check close copy create delete edit execute fetch find get install list load move open
    post put query read remove rename run save search send set start stop submit test update upload write
    """.split()  # noqa: SIM905
)
_ENDS = {"result": "Result", "error": "Error"}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\u2060\ufeff]")
"""Control characters, which break indexes; tabs and line ends stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """One utterance or event, as input of `Memory.remember`.

    `key` is an idempotency key of its own, in place of that of the call: it is stored once, wherever it comes in the
    content.
    """

    text: str
    speaker: str | None = None
    origin: Origin | None = None
    at: datetime | None = None
    attributes: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    key: str | None = None


MemoryInput: TypeAlias = str | Message | Utterance | Mapping[str, Any]


_ONE = (str, bytes, Message, Utterance, Mapping)


def turns_of(content: MemoryInput | Sequence[MemoryInput], *, user_id: str | None = None) -> list[Utterance]:
    """One or many inputs as turns; a name equal to `user_id` is the user."""
    items = content if isinstance(content, Iterable) and not isinstance(content, _ONE) else [content]
    return [
        turn for item in items for turn in (_of_message(item) if isinstance(item, Message) else [_turn(item, user_id)])
    ]


def speaker_name(speaker: str | None, *, user_id: str) -> str | None:
    """A speaker as it is stored: on one line; the user's own id becomes the role `user`."""
    if not isinstance(speaker, str) or not speaker.strip():
        return speaker
    name = one_line(speaker, MAX_NAME)
    if name.casefold() in _ROLES:  # only if given as such: a name that becomes a role by cleaning stays a name
        return name if name == " ".join(speaker.split()) else name_speaker(name)
    return USER if name.casefold() == user_id.casefold() else name or _UNNAMED


def name_speaker(name: str, *, user_id: str | None = None) -> str:
    """The speaker with a name: a person who is called like a role must not gain its authority."""
    line = one_line(name, MAX_NAME)
    if user_id is not None and line.casefold() == user_id.casefold():
        return USER
    is_role = normalise(line) == USER or line.casefold() in _NAMES_OF_ROLES
    return f"{_UNNAMED} named {line}" if is_role else line or _UNNAMED


def _of_message(message: Message) -> list[Utterance]:
    """The turns of a message: its text, its tool calls, and tool results, which are not the user's words."""
    texts = [Utterance(text=said_in(message), speaker=message.role, origin=_origin(message.role))]
    tools: list[Utterance] = []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            call = f"{part.name} {json.dumps(part.input, ensure_ascii=False)}"
            tools.append(Utterance(text=call, speaker=message.role, origin="assistant", attributes={"tool": part.name}))
        elif isinstance(part, ToolResultPart):
            answer = "\n".join(piece.text for piece in part.content if isinstance(piece, TextPart))
            tools.append(Utterance(text=answer, speaker="tool", origin="tool"))
    return [*texts, *tools] if message.text.strip() or not tools else tools


def said_in(message: Message) -> str:
    """The text of a message. The text parts of a user stay separate paragraphs: one may be a pasted document."""
    if message.role != USER:
        return message.text
    return "\n\n".join(part.text for part in message.parts if isinstance(part, TextPart) and part.text.strip())


def _turn(content: MemoryInput, user_id: str | None) -> Utterance:
    if isinstance(content, Utterance):
        return content
    if isinstance(content, str):
        return Utterance(text=content)
    if isinstance(content, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        return _from_mapping(content, user_id)
    raise UsageError(f"memory takes text, messages, turns and mappings, not {type(content).__name__}")


def _from_mapping(given: Mapping[str, Any], user_id: str | None) -> Utterance:
    text = given.get("text", given.get("content"))
    if text is None and "action" in given:
        return _of_task(given)
    if not isinstance(text, str):
        raise UsageError(f"a turn needs its text under 'text' or 'content'; it has {', '.join(given) or 'nothing'}")
    role = given.get("role")
    _check_role(role)
    at = _time(given.get("at", given.get("timestamp")))
    return Utterance(text=text, speaker=_speaker(given, role, user_id), origin=_origin(role), at=at)


def _check_role(role: object) -> None:
    """Refuse a role that is misspelt: it would be the name of a person, and the words would not be the user's."""
    if isinstance(role, str) and role.strip().isalpha() and role.strip().casefold() not in _ROLES:
        hint = checks.did_you_mean(role.strip(), sorted(_ROLES - {"operator"}), alike=_MISSPELT)
        if hint:
            raise UsageError(f"a turn has the role {role!r:.60}{hint} A person is named under 'speaker' or 'name'")


def _of_task(given: Mapping[str, Any]) -> Utterance:
    """A completed task: `task_id`, `action`, `parameters`, `result`, and `error` if it failed.

    It is stored as readable, searchable text; its id and action are attributes.
    """
    task_id, action = given.get("task_id", given.get("id")), given["action"]
    for name, value in (("task_id", task_id), ("action", action)):
        if not isinstance(value, str | None) or (name == "action" and not value):
            raise UsageError(f"the {name} of a task is {value!r}; give text")
    ends = [f"{label}: {_shown(given[name])}" for name, label in _ENDS.items() if given.get(name) not in (None, "")]
    attributes: dict[str, Scalar] = {"action": action, **({"task_id": task_id} if task_id else {})}
    return Utterance(
        text="\n".join([f"{_phrase(action)} {_inputs(given.get('parameters'))}".strip(), *ends]),
        speaker="tool",
        origin="tool",
        at=_time(given.get("at", given.get("timestamp", given.get("created_at")))),
        attributes=attributes,
    )


def _phrase(action: str) -> str:
    """An action in words: `file_read` is "Read file"."""
    words = action.replace("_", " ").replace(".", " ").replace("-", " ").split()
    if len(words) > 1 and words[-1].casefold() in _VERBS:
        words = [words[-1], *words[:-1]]
    phrase = " ".join(words) or action
    return phrase[:1].upper() + phrase[1:]


def _inputs(parameters: Any) -> str:
    """The parameters of a task: one value by itself, several with their names."""
    if isinstance(parameters, Mapping):
        values = {str(name): _shown(value) for name, value in cast("Mapping[Any, Any]", parameters).items()}
        return "".join(values.values()) if len(values) == 1 else ", ".join(f"{k}={v}" for k, v in values.items())
    return "" if parameters is None else _shown(parameters)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _time(at: Any) -> Any:
    if not isinstance(at, str):
        return at
    try:
        return datetime.fromisoformat(at)
    except ValueError as error:
        raise UsageError(f"a turn has the time {at!r}; write it like 2026-05-12T09:30:00+00:00") from error


def _speaker(given: Mapping[str, Any], role: Any, user_id: str | None) -> Any:
    """The speaker: `speaker`, else `name` if the role is a person's, else the role."""
    name = given.get("name")
    if not isinstance(name, str | None):
        raise UsageError(f"a turn has the name {name!r}, a {type(name).__name__}; give text")
    if given.get("speaker") is not None:
        return given["speaker"]
    is_person = not isinstance(role, str) or role.casefold() == USER or role.casefold() not in _ROLES
    return name_speaker(name, user_id=user_id) if is_person and name and name.strip() else role


def _origin(role: object) -> Origin | None:
    known: dict[str, Origin] = {"user": "user", "assistant": "assistant", "tool": "tool", "function": "tool"}
    known |= {"system": "operator", "developer": "operator"}
    return known.get(role) if isinstance(role, str) else None


def clean(text: str) -> tuple[str, Skip | None]:
    """The text without control characters, or the reason why it is skipped."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"memory takes text, not {type(text).__name__}")
    if len(text) > MAX_TEXT:
        return "", Skip(text[:80], f"too long: {len(text):,} characters, at most {MAX_TEXT:,}; split it")
    cleaned = _CONTROL.sub("", text.encode("utf-8", "replace").decode()).strip()
    if not cleaned:
        return "", Skip(text[:80], "empty: there is nothing to remember")
    return cleaned, None


def clean_instruction(text: str) -> str:
    """The clean text of an instruction; raises UsageError if it has no words, or is too long for every turn."""
    cleaned, skip = clean(text)
    if len(cleaned or text) > MAX_INSTRUCTION:  # before any rule reads it
        many = f"{len(cleaned or text):,} characters, at most {MAX_INSTRUCTION}"
        raise UsageError(f"the instruction has {many}; pin a longer text with set_block()")
    if skip or topic_of(cleaned) is None:
        raise UsageError(f"the instruction {text[:80]!r} has no words in it; say what is to be done")
    return cleaned


def keyed_id(scope: Scope, key: str, number: int) -> str:
    """The id of a record with an idempotency key: the same every time."""
    return "k:" + sha256(f"{scope.key()}\0{key}\0{number}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def turn_id(scope: Scope, turn: Utterance, key: str | None, number: int) -> str | None:
    """The id of a turn with a key of its own, or under that of the call; None if it has neither."""
    if turn.key:
        return keyed_id(scope, turn.key, 0)
    return keyed_id(scope, key, number) if key else None


# Checks the size of what callers pass to memory, before anything reads it.


def check_turns(
    turns: Sequence[Utterance], *, speaker: str | None, attributes: Mapping[str, Scalar] | None, key: str | None
) -> None:
    """Raise UsageError if a speaker, an attribute or the key is too long. Texts are checked by clean_turns()."""
    if key is not None:
        check_id(key, "the key of what is remembered")
    check_attributes(attributes or {}, "what is remembered")
    for name in (speaker, *(turn.speaker for turn in turns)):
        if isinstance(name, str):
            check_name(name, "the speaker")
    for turn in turns:
        if turn.attributes:
            check_attributes(turn.attributes, "a turn")
        if turn.key is not None:
            check_id(turn.key, "the key of a turn")


async def clean_turns(turns: Sequence[Utterance]) -> list[tuple[str, Skip | None]]:
    """The text of each turn without control characters, or the reason why it is skipped."""
    size = sum(len(turn.text) for turn in turns if isinstance(turn.text, str))  # pyright: ignore[reportUnnecessaryIsInstance]
    return await off_loop(size, lambda: [clean(turn.text) for turn in turns])


def check_fact(subject: str | None = None, predicate: str | None = None, object: str | None = None) -> None:
    """Raise UsageError if a subject, a predicate or an object is too long. Values that are not text fail elsewhere."""
    if isinstance(subject, str):
        check_name(subject, "the subject of a fact")
    if isinstance(predicate, str):
        check_length(predicate, "the predicate of a fact", MAX_PREDICATE, "say in a few words how the two are related")
    if isinstance(object, str):
        check_length(object, "the object of a fact", MAX_OBJECT, "remember() a longer text, or pin it with set_block()")


def check_block(name: str, text: str) -> None:
    """Raise UsageError if a block is too long to be pinned."""
    if isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        check_name(name, "the name of a block")
    if isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        check_length(text, f"the text of block {name!r}", MAX_BLOCK, "remember() it, or add it to a knowledge base")


def check_record(record: Record) -> Record:
    """An imported record, if it is within the limits of what can be remembered."""
    if isinstance(record, Episode):
        check_length(record.text, f"the text of episode {record.id}", MAX_TEXT, "split it")
        check_name(record.speaker or "", f"the speaker of episode {record.id}")
        check_attributes(record.attributes, f"episode {record.id}")
    elif isinstance(record, Fact):
        check_fact(record.subject, record.predicate, record.object)
    else:
        check_length(record.text, f"the text of block {record.name!r}", MAX_BLOCK, "split it")
    return record


# Context keys: an utterance is also found by its neighbours and the question it answers.

AROUND, ASKED = "around", "asked"

_SESSIONS = 1000
Keys = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class ConversationEnd:
    """The end of a conversation: the position of its next turn, and its last turns.

    It is valid while the user's epoch is `epoch`: after that, one of the turns may have been forgotten.
    """

    epoch: str
    place: int
    turns: tuple[Episode, ...]


class ContextKeys:
    """Caches the end of each conversation, so that a new turn and the turns before it become keys of each other.

    Without the cache every new turn would read its whole session again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keeps_keys = isinstance(store, KeepsKeys)
        self._ends: OrderedDict[str, ConversationEnd] = OrderedDict()
        self._locks = Locks()

    @asynccontextmanager
    async def appending(self, scope: Scope) -> AsyncGenerator[None]:
        """Lock a conversation while turns are added to it: from end() until extend()."""
        if scope.session_id is None:
            yield
            return
        async with self._locks.of(scope):
            try:
                yield
            except BaseException:  # unknown whether the write happened
                self._ends.pop(scope.key(), None)
                raise

    async def end(self, scope: Scope, *, epoch: str | None = None) -> ConversationEnd:
        """The end of a session, read again if `epoch` is not that of the cached one.

        A write that is based on it has to name its epoch, which may be later than the one given.
        """
        known = self._ends.get(scope.key())
        if known is None or epoch not in {None, known.epoch}:
            epoch = await self._store.epoch(scope)
            turns = await session_turns(self._store, scope)
            # The next position is not the number of turns: some may have been forgotten. Twice REACH turns are cached,
            # because the keys of the last REACH turns change with a new one, and each reaches back REACH further.
            used = [place for turn in turns if isinstance(place := turn.attributes.get(POSITION), int)]
            known = ConversationEnd(epoch, max([len(turns) - 1, *used]) + 1, tuple(turns[-2 * REACH :]))
            self._ends[scope.key()] = known
        return known

    def drop(self, scope: Scope) -> None:
        """Drop the cached end of this conversation."""
        self._ends.pop(scope.key(), None)

    def keys(self, end: ConversationEnd, new: Sequence[Episode]) -> Keys:
        """The keys that change with new turns of a session: their own, and those of the turns before them."""
        if not self._keeps_keys:
            return {}
        turns = [*end.turns, *new]
        return _keys(turns, range(max(0, len(turns) - len(new) - REACH), len(turns)))

    async def keys_among(
        self, episodes: Iterable[Episode], *, user: Scope, without: Collection[str] = (), instead: Episode | None = None
    ) -> Keys:
        """The keys of these episodes and of the turns around them, as if the turns in `without` did not exist.

        `instead` replaces the turn with its id.
        """
        keys: Keys = {}
        named = {e.id: e.session_id for e in episodes if e.session_id is not None}
        if self._keeps_keys:
            for session in dict.fromkeys(named.values()):
                turns = await session_turns(self._store, user.for_session(session))
                left = [instead if instead and t.id == instead.id else t for t in turns if t.id not in without]
                keys |= _keys(left, _around(turns, named, without))
        return keys

    def extend(self, scope: Scope, new: Sequence[Episode]) -> None:
        """Add turns that were written to the cached end."""
        known = self._ends.get(scope.key())
        if scope.session_id is None or known is None:
            return
        self._ends[scope.key()] = ConversationEnd(
            known.epoch, known.place + len(new), (*known.turns, *new)[-2 * REACH :]
        )
        self._ends.move_to_end(scope.key())
        while len(self._ends) > _SESSIONS:
            self._ends.popitem(last=False)

    def forget(self, scope: Scope) -> None:
        """Drop all cached turns of a user."""
        start = scope.for_user().key().removesuffix("-")
        for key in [key for key in self._ends if key.startswith(start)]:
            del self._ends[key]


def with_positions(end: ConversationEnd, new: Sequence[Episode]) -> list[Episode]:
    """New turns with their positions in the session."""
    return [with_attributes(e, {POSITION: end.place + n}) for n, e in enumerate(recorded_after(end.turns, new))]


async def session_turns(store: MemoryStore, session: Scope) -> list[Episode]:
    """The original turns of a session, in order."""
    found = every(store, session, Eq("kind", "episode"))
    turns = [r async for r in found if isinstance(r, Episode) and not r.sources and r.session_id == session.session_id]
    return sorted(turns, key=_order)


def _around(turns: Sequence[Episode], named: Collection[str], without: Collection[str]) -> list[int]:
    """The places, among the turns that are left, of the named ones and of all whose keys contain their words.

    `place` counts the turns that are left, so a forgotten turn marks its former neighbours on both sides.
    """
    places, place = set[int](), 0
    for turn in turns:
        if turn.id in named:
            places.update(range(place - REACH, place + REACH + 1))
        place += turn.id not in without
    return sorted(at for at in places if 0 <= at < place)


def _order(turn: Episode) -> tuple[datetime, int, str]:
    """Sort key. Turns of one exchange have the same time, and hashed ids if they have a key, so position decides."""
    place = turn.attributes.get(POSITION)
    return (turn.at, place if isinstance(place, int) else -1, turn.id)


def _keys(turns: Sequence[Episode], places: Iterable[int]) -> Keys:
    """The keys of the turns at these places."""
    keys: Keys = {}
    for at in places:
        own = turns[at]
        window = turns[max(0, at - REACH) : at + REACH + 1]
        around = "\n".join(e.text[: checks.RANKED if e is own else checks.AROUND] for e in window)
        asked = questions_in(turns[at - 1].text[-checks.AROUND :]) if at else ""
        keys[own.id] = {AROUND: Around(around, turns[at - 1].id if at else None), ASKED: asked}
    return keys
