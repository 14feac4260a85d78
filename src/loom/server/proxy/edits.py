"""A request as JSON text in which single values can be changed: whatever is not touched stays as it was sent.

A body is never read and written again as a whole: numbers, escapes, blanks, the order of names and fields that nobody
here knows would change. Its text is cut at the values that an edit replaces, and put together again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final, Literal, TypeAlias, cast

Wire: TypeAlias = Literal["messages", "chat", "responses"]

WIRES: Final[Mapping[str, Wire]] = {
    "/v1/messages": "messages",
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
}
"""The format of the requests at each path that can be edited."""
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = JSONDecoder()
_MOST_PARTS: Final = 100_000
"""Of a list or an object whose parts are looked for in the text. Anthropic takes so many messages."""
_ELSEWHERE: Final = ("previous_response_id", "conversation", "prompt")
"""Fields of a request that goes on from what only the provider has."""
_MARKERS: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})
REMINDER: Final = "<system-reminder>"
"""How a text begins that a coding agent, not the user, put into a message of the user."""


class NotEditable(Exception):
    """The text is not a request of a known form; it is passed on as it is."""


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value, and where its text is."""

    start: int
    end: int
    value: Any


@dataclass(frozen=True, slots=True)
class TextEdit:
    """A stretch of the text, and what replaces it."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class ResultText:
    """One text in the result of a tool: `key` names it for the whole conversation."""

    message: int
    call_id: str
    key: str
    node: Node

    @property
    def text(self) -> str:
        """The text itself."""
        return self.node.value


class RequestText:
    """The body of a request as text, with the places of its messages."""

    wire: Wire

    def __init__(self, text: str, wire: Wire) -> None:
        """Find the messages.

        Raises:
            NotEditable: it is not a request of this form.
        """
        self.text, self.wire = text, wire
        start = _skip(text, 0)
        top = _value(text, start)
        value: object = top.value
        if not isinstance(value, dict) or _skip(text, top.end) != len(text):
            raise NotEditable
        self.body = cast("dict[str, Any]", value)
        self.fields = self.members(top)
        if any(self.body.get(name) for name in _ELSEWHERE):
            raise NotEditable
        self.list = self.fields.get("input" if wire == "responses" else "messages")
        if self.list is None:
            raise NotEditable
        if isinstance(self.list.value, str) and wire == "responses":
            self.messages = [Node(self.list.start, self.list.end, {"role": "user", "content": self.list.value})]
        elif isinstance(self.list.value, list):
            self.messages = self.items(self.list)
        else:
            raise NotEditable
        if not all(isinstance(message.value, dict) for message in self.messages):
            raise NotEditable

    @classmethod
    def of(cls, body: bytes, wire: Wire) -> RequestText:
        """The text of a body.

        Raises:
            NotEditable: it is not UTF-8, not JSON, or not a request of this form.
        """
        try:
            return cls(body.decode("utf-8"), wire)
        except (ValueError, RecursionError) as error:  # also a number that is too long to be read
            raise NotEditable from error

    # The values in the text.

    def members(self, node: Node) -> dict[str, Node]:
        """The values of an object, by name.

        Raises:
            NotEditable: a name comes twice, so that nobody knows which one counts; or there are too many.
        """
        _check_count(node)
        found: dict[str, Node] = {}
        at = _skip(self.text, node.start + 1)
        while self.text[at] != "}":
            name = _value(self.text, at)
            at = _skip(self.text, _skip(self.text, name.end) + 1)
            if name.value in found:
                raise NotEditable
            found[name.value] = _value(self.text, at)
            at = _skip(self.text, found[name.value].end)
            if self.text[at] == ",":
                at = _skip(self.text, at + 1)
        return found

    def items(self, node: Node) -> list[Node]:
        """The values of a list.

        Raises:
            NotEditable: there are too many.
        """
        _check_count(node)
        found: list[Node] = []
        at = _skip(self.text, node.start + 1)
        while self.text[at] != "]":
            found.append(_value(self.text, at))
            at = _skip(self.text, found[-1].end)
            if self.text[at] == ",":
                at = _skip(self.text, at + 1)
        return found

    def edited(self, edits: Iterable[TextEdit]) -> RequestText:
        """The text with these changes, which do not overlap."""
        return RequestText(self.slice(0, len(self.text), edits), self.wire)

    def slice(self, start: int, end: int, edits: Iterable[TextEdit] = ()) -> str:
        """A stretch of the text, with the changes that lie inside it."""
        pieces: list[str] = []
        at = start
        for edit in sorted(edits, key=lambda one: (one.start, one.end)):
            if start <= edit.start and edit.end <= end:
                pieces += [self.text[at : edit.start], edit.text]
                at = edit.end
        return "".join([*pieces, self.text[at:end]])

    # What can be changed.

    def append_text(self, message: int, text: str) -> TextEdit:
        """One more block of text at the end of a message of the user."""
        kind = "input_text" if self.wire == "responses" else "text"
        block = f'{{"type":"{kind}","text":{quoted(text)}}}'
        node = self.messages[message]
        if isinstance(self.list and self.list.value, str):  # the whole input of a request of Responses
            first = f'{{"type":"{kind}","text":{self.text[node.start : node.end]}}}'
            return TextEdit(node.start, node.end, f'[{{"role":"user","content":[{first},{block}]}}]')
        content = self.members(node)["content"]
        if isinstance(content.value, str):
            first = f'{{"type":"{kind}","text":{self.text[content.start : content.end]}}}'
            return TextEdit(content.start, content.end, f"[{first},{block}]")
        return TextEdit(content.end - 1, content.end - 1, f",{block}" if content.value else block)

    def mark(self, path: str, ttl: str | None = None) -> TextEdit:
        """A cache marker of Anthropic's on the block at a path such as `messages[3].content[1]` or `system`."""
        lifetime = f',"ttl":{quoted(ttl)}' if ttl and ttl != "5m" else ""  # which is what it is if not said
        marker = f'"cache_control":{{"type":"ephemeral"{lifetime}}}'
        node = self._at(path)
        if isinstance(node.value, str):
            return TextEdit(
                node.start, node.end, f'[{{"type":"text","text":{self.text[node.start : node.end]},{marker}}}]'
            )
        if "cache_control" in node.value:  # null, which marks nothing
            old = self.members(node)["cache_control"]
            return TextEdit(old.start, old.end, marker.removeprefix('"cache_control":'))
        return TextEdit(node.end - 1, node.end - 1, f",{marker}")

    def _at(self, path: str) -> Node:
        node: Node | None = None
        for name, number in re.findall(r"(\w+)|\[(\d+)\]", path):
            if name:
                node = (self.members(node) if node else self.fields)[name]
            else:
                assert node is not None
                node = self.items(node)[int(number)]
        assert node is not None
        return node

    def replace_messages(self, first: int, end: int, messages: Sequence[str]) -> TextEdit:
        """Other messages, as JSON, in place of some; at least one stands behind them."""
        return TextEdit(self.messages[first].start, self.messages[end].start, "".join(f"{one}," for one in messages))

    # What the messages are.

    def is_answer(self, message: int) -> bool:
        """Whether the model wrote it: its words, or its calls of tools."""
        value = self.messages[message].value
        kind = value.get("type", "message")
        if self.wire == "responses" and kind != "message":
            return not str(kind).endswith("_output")
        return value.get("role") == "assistant"

    def new_from(self) -> int:
        """The first message behind the last answer: what was not sent before."""
        answers = (i for i in range(len(self.messages) - 1, -1, -1) if self.is_answer(i))
        return next(answers, -1) + 1

    def is_users(self, message: int) -> bool:
        """Whether the user wrote it: not the result of a tool."""
        value = self.messages[message].value
        if value.get("role") != "user" or (self.wire == "responses" and value.get("type", "message") != "message"):
            return False
        content = value.get("content")
        if isinstance(content, str):
            return bool(content.strip())
        return isinstance(content, list) and not any(
            _type(part) == "tool_result" for part in cast("list[Any]", content)
        )

    def words(self, message: int) -> str:
        """The text of a message, without what a coding agent added to it."""
        content = self.messages[message].value.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        kinds = {"text", "input_text", "output_text"}
        parts = [part for part in tables(content) if part.get("type") in kinds]
        texts = [text for part in parts if isinstance(text := part.get("text"), str)]
        return "\n".join(text for text in texts if not text.lstrip().startswith(REMINDER)).strip()

    @cached_property
    def digests(self) -> list[str]:
        """A digest of each message. Markers, which move, do not count; a text may be alone or in a block."""
        return [
            sha256(plain_json(message.value).encode("utf-8", "surrogatepass")).hexdigest()[:32]
            for message in self.messages
        ]

    def result_texts(self) -> Iterator[ResultText]:
        """The texts in the results of tools, in order."""
        for number, message in enumerate(self.messages):
            value = message.value
            if self.wire == "messages" and value.get("role") == "user" and isinstance(value.get("content"), list):
                for block in self.items(self.members(message)["content"]):
                    if _type(block.value) == "tool_result":
                        yield from self._texts(number, block, "content", block.value.get("tool_use_id"))
            elif self.wire == "chat" and value.get("role") == "tool":
                yield from self._texts(number, message, "content", value.get("tool_call_id"))
            elif self.wire == "responses" and str(value.get("type")).endswith("_output"):
                yield from self._texts(number, message, "output", value.get("call_id"))

    def _texts(self, message: int, item: Node, name: str, call_id: object) -> Iterator[ResultText]:
        content = self.members(item).get(name)
        if content is None or not isinstance(call_id, str):
            return
        nodes = [content]
        if isinstance(content.value, list):
            parts = (part for part in self.items(content) if isinstance(part.value, dict))
            nodes = [self.members(part)["text"] for part in parts if "text" in part.value]
        for number, node in enumerate(nodes):
            if isinstance(node.value, str):
                digest = sha256(node.value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
                yield ResultText(message, call_id, f"{call_id}#{number}:{digest}", node)

    def calls(self) -> dict[str, str]:
        """The calls of tools, by id, each as the JSON text of what was given to the tool."""
        found: dict[str, str] = {}
        for message in self.messages:
            value: dict[str, Any] = message.value
            for block in (value, *tables(value.get("content")), *tables(value.get("tool_calls"))):
                id = block.get("call_id") or block.get("id")
                if isinstance(id, str) and (_type(block) in {"tool_use", "function"} or _type(block).endswith("_call")):
                    found[id] = json.dumps([block.get(n) for n in ("input", "arguments", "function", "action")])
        return found


def plain_json(value: object) -> str:
    """The JSON of a message as a cache sees it: without markers, and a text always in a block."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def quoted(text: str) -> str:
    """A text as JSON. Half a surrogate pair, which has no UTF-8, stays an escape."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _plain(value: object) -> object:
    if isinstance(value, dict):
        kept = {k: v for k, v in cast("dict[str, object]", value).items() if k not in _MARKERS}
        content = kept.get("content")
        if "role" in kept and isinstance(content, str):
            kept["content"] = [{"type": "text", "text": content}]
        return {k: _plain(v) for k, v in kept.items()}
    return [_plain(one) for one in cast("list[object]", value)] if isinstance(value, list) else value


def json_object(data: bytes | str) -> dict[str, Any]:
    """The JSON object in a text; an empty one where there is none."""
    try:
        text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
        value, end = _read(text, _skip(text, 0))
    except (ValueError, RecursionError):
        return {}
    return table(value) if _skip(text, end) == len(text) else {}


def table(value: object) -> dict[str, Any]:
    """A JSON object, or an empty one in place of anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def tables(value: object) -> list[dict[str, Any]]:
    """The objects of a list; none of anything else."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def _type(part: object) -> str:
    found = cast("dict[str, object]", part).get("type") if isinstance(part, dict) else None
    return found if isinstance(found, str) else ""


def _check_count(node: Node) -> None:
    if len(node.value) > _MOST_PARTS:
        raise NotEditable


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _value(text: str, at: int) -> Node:
    value, end = _read(text, at)
    return Node(at, end, value)


# The reader of the standard library lets no other thread run until it is done: what is long is read piece by piece.

_PIECE: Final = 1 << 16
"""Characters of a list or an object that are read at once: two milliseconds at the most."""
_DEEP: Final = 8
"""From how many levels on a value is read at once, however long it is; requests have their texts above that."""
_CLOSING: Final = {"{": "}", "[": "]"}
_STOP: Final = re.compile(r"[^][{},]*+([][{},])")
_BRACKET: Final = re.compile(r"[^][{}]*+(?:[]}][^][{}]*+[{\[][^][{}]*+)*+([][{}])")
"""Backwards, the next bracket but for pairs with no other inside."""


def _read(text: str, at: int) -> tuple[Any, int]:
    """The value at a place, and where it ends."""
    if text[at : at + 1] not in _CLOSING:
        return _DECODER.raw_decode(text, at)
    for size in (_PIECE // 16, _PIECE):
        if len(text) - at <= size:
            return _DECODER.raw_decode(text, at)
        try:
            value, length = _DECODER.raw_decode(text[at : at + size])
        except JSONDecodeError:  # it is longer, or not JSON, which shows in its parts
            continue
        return value, at + length
    return _read_long(text, at, 0)


def _read_long(text: str, at: int, depth: int) -> tuple[Any, int]:
    """A list or an object: as many of its parts at once as a piece holds, and those that are longer in pieces too."""
    kind = text[at]
    found: Any = [] if kind == "[" else {}
    add, at, is_first, is_over = found.extend if kind == "[" else found.update, at + 1, True, False
    while not is_over:
        part, end, is_over = _parts_at(text, at, kind) or _long_part(text, at, kind, depth)
        if not part and not (is_first and is_over):
            raise JSONDecodeError("Expecting value", text, at)
        add(part)
        at, is_first = end, False
    return found, at


def _parts_at(text: str, at: int, kind: str) -> tuple[Any, int, bool] | None:
    """The parts of a list or an object that end in the next piece, if any; where it goes on, and whether it is over."""
    window = text[at : at + _PIECE - 2]
    cut = _last_comma(window)
    # What a list is cut at does not matter: only whole parts are JSON again with the brackets around them.
    for ending in ([window[:cut] + _CLOSING[kind]] if cut else []) + [window]:
        try:
            part, length = _DECODER.raw_decode(kind + ending)
        except JSONDecodeError:
            continue
        is_over = ending is window or length <= cut + 1
        return part, at + (length - 1 if is_over else cut + 1), is_over
    return None


def _last_comma(window: str) -> int:
    """Where the last comma between two parts of a list or an object is, if the window begins with a part of it."""
    strings = window.replace("\\\\", "__").replace('\\"', "__").split('"')
    strings[1::2] = ["_" * len(one) for one in strings[1::2]]
    flat = '"'.join(strings)
    depth = flat.count("[") + flat.count("{") - flat.count("]") - flat.count("}")
    backwards, at = flat[::-1], 0
    while found := _BRACKET.match(backwards, at) if depth else _STOP.match(backwards, at):
        at = found.end()
        if found[1] == ",":
            return len(flat) - at
        depth += 1 if found[1] in "]}" else -1
    return 0


def _long_part(text: str, at: int, kind: str, depth: int) -> tuple[Any, int, bool]:
    """One part of a list or an object, where the next one begins, and whether there is none."""
    at, name = _skip(text, at), None
    if kind == "{":
        if not text.startswith('"', at):
            raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _behind(text, _skip(text, at), ":"))
    is_deep = depth + 1 == _DEEP or text[at : at + 1] not in _CLOSING
    value, at = _DECODER.raw_decode(text, at) if is_deep else _read_long(text, at, depth + 1)
    at = _skip(text, at)
    is_over = text.startswith(_CLOSING[kind], at)
    return ([value] if kind == "[" else {name: value}), at + 1 if is_over else _behind(text, at, ","), is_over


def _behind(text: str, at: int, sign: str) -> int:
    if not text.startswith(sign, at):
        raise JSONDecodeError(f"Expecting {sign!r} delimiter", text, at)
    return at + 1
