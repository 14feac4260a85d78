"""The provider-neutral conversation: messages, their parts and usage; also read from what providers write."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, TypeAlias, cast

from loom.core.checks import MAX_MEDIA, check_length
from loom.errors import UsageError

Role: TypeAlias = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant")
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")

JSON: TypeAlias = Any
"""A JSON value. Any, because a JSON document nests without end and every reader narrows it anyway."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Plain text. `phase` is what OpenAI calls a text of its model, `commentary` or `final_answer`, and wants back."""

    text: str
    phase: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture, as base64 text and its media type."""

    data: str = field(repr=False)
    media_type: str
    name: str | None = None

    def __post_init__(self) -> None:
        if self.media_type not in IMAGE_TYPES:
            raise UsageError(
                f"media_type={self.media_type!r} is not a picture every provider reads; use one of "
                f"{', '.join(IMAGE_TYPES)}"
            )
        _check_base64(self.data, "image")


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A document such as a PDF, as base64 text and its media type."""

    data: str = field(repr=False)
    media_type: str = "application/pdf"
    name: str | None = None

    def __post_init__(self) -> None:
        _check_base64(self.data, "document")


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """The model asks for a tool; `id` pairs it with its result."""

    id: str
    name: str
    input: JSON = field(default_factory=dict[str, JSON])

    def __post_init__(self) -> None:
        object.__setattr__(self, "input", _copied(self.input, f"the input of tool call {self.id!r}"))

    @property
    def arguments(self) -> dict[str, JSON]:
        """The input as an object, which is all that some providers take; a model may have sent something else."""
        return deepcopy(self.input) if isinstance(self.input, dict) else {"input": self.input}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]


ContentPart: TypeAlias = TextPart | ImagePart | DocumentPart
"""What a person or a tool can show a model."""


@dataclass(frozen=True, slots=True)
class ToolResultPart:
    """A tool's answer; `content` is text, pictures and documents. Plain text is taken for one text part."""

    call_id: str
    content: tuple[ContentPart, ...]
    is_error: bool = False

    def __post_init__(self) -> None:
        content = _parts_of(self.content, (TextPart, ImagePart, DocumentPart), f"the result of {self.call_id!r}")
        object.__setattr__(self, "content", content)


@dataclass(frozen=True, slots=True)
class ThinkingPart:
    """A model's own reasoning, replayed exactly or not at all.

    `signature` is the provider's seal over `text`; `redacted` is the sealed form a provider sends
    in place of text. `provider` says whose seal it is: another provider never sees the part.
    """

    text: str = ""
    signature: str | None = None
    redacted: str | None = None
    provider: str = "anthropic"


@dataclass(frozen=True, slots=True)
class NativePart:
    """A provider's own block that must come back verbatim (a server-side compaction, say)."""

    provider: str
    body: JSON

    def __post_init__(self) -> None:
        if not isinstance(self.body, dict):
            raise UsageError(f"the body of a native part is {type(self.body).__name__}; give the provider's own block")
        object.__setattr__(self, "body", _copied(self.body, "the body of a native part"))  # pyright: ignore[reportUnknownMemberType]


Part: TypeAlias = TextPart | ImagePart | DocumentPart | ToolCallPart | ToolResultPart | ThinkingPart | NativePart

PARTS: dict[str, type[Part]] = {
    "text": TextPart, "image": ImagePart, "document": DocumentPart, "tool_call": ToolCallPart,
    "tool_result": ToolResultPart, "thinking": ThinkingPart, "native": NativePart,
}  # fmt: skip
"""The kinds of parts, by the names that they are stored under."""

_PART_TYPES = tuple(PARTS.values())
_OF_ONE_ROLE = (ToolCallPart, ThinkingPart, ToolResultPart)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. Plain text is taken for one text part.

    Tool results travel in a user message, whatever a provider calls that role on the wire.
    """

    role: Role
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UsageError(f"a message has the role {self.role!r}; use one of {', '.join(ROLES)}")
        if not self.parts:
            raise UsageError(f"a {self.role} message has no parts; give it at least one")
        if not (type(self.parts) is tuple and len(self.parts) == 1 and type(self.parts[0]) is TextPart):
            self._check_parts()

    def _check_parts(self) -> None:
        """Take what is given for parts, each of the sender that may say it; one text needs no check."""
        object.__setattr__(self, "parts", _parts_of(self.parts, _PART_TYPES, f"a {self.role} message"))
        for part in self.parts:
            if not isinstance(part, _OF_ONE_ROLE):
                continue
            sender = "user" if isinstance(part, ToolResultPart) else "assistant"
            if self.role != sender:
                raise UsageError(f"a {type(part).__name__} goes into an {sender} message, not into a {self.role} one")

    @classmethod
    def user(cls, text: str) -> Message:
        """A user message of plain text."""
        return cls("user", (TextPart(text),))

    @classmethod
    def assistant(cls, text: str) -> Message:
        """An assistant message of plain text."""
        return cls("assistant", (TextPart(text),))

    @classmethod
    def from_anthropic(cls, given: Mapping[str, JSON]) -> Message:
        """A message as Anthropic's Messages API writes it, with tool calls, results, pictures and thinking."""
        role = _text(given, "role", "a message")
        if role not in {"user", "assistant", "system"}:
            raise UsageError(f"an Anthropic message has the role {role!r}; use user, assistant or system")
        content = given.get("content")
        if isinstance(content, str):
            return Message(cast("Role", role), (TextPart(content),) if content else ())
        return Message(cast("Role", role), tuple(_anthropic_part(block) for block in _blocks(content, "a message")))

    @classmethod
    def from_openai(cls, given: Mapping[str, JSON]) -> Message:
        """A message of OpenAI's Chat Completions, or an item of its Responses API; results of tools are the user's.

        `developer` becomes system. A `name` has no place in a message, and is left out.
        """
        if given.get("type") in _RESPONSES_ITEMS - {"message"}:
            return _openai_item(given)
        role = _text(given, "role", "a message")
        if role not in _OPENAI_ROLES:
            raise UsageError(f"an OpenAI message has the role {role!r}; use one of {', '.join(_OPENAI_ROLES)}")
        if role in {"tool", "function"}:
            call_id = _text(given, "tool_call_id" if role == "tool" else "name", f"a {role} message")
            return Message("user", (_openai_result(call_id, given.get("content")),))
        parts: list[Part] = []
        if isinstance(given.get("reasoning_content"), str) and given["reasoning_content"]:
            parts.append(ThinkingPart(given["reasoning_content"], provider="openai_chat"))
        parts += _openai_parts(given.get("content"))
        if isinstance(given.get("refusal"), str) and given["refusal"]:
            parts.append(TextPart(given["refusal"]))
        parts += [_openai_call(call) for call in _blocks(given.get("tool_calls") or [], "the tool_calls of a message")]
        return Message(_OPENAI_ROLES[role], tuple(parts))

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(p.text for p in self.parts if isinstance(p, TextPart))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it: a name, what it does, and the JSON schema of its input.

    `native` holds the provider's own form of it, by provider, where a provider knows the tool by itself; the others
    get the schema.
    """

    name: str
    description: str = ""
    input_schema: JSON = field(default_factory=lambda: dict[str, JSON](type="object", properties={}))
    native: Mapping[str, JSON] = field(default_factory=dict[str, JSON])

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError("a tool needs a name")
        object.__setattr__(self, "input_schema", _copied(self.input_schema, f"the input schema of tool {self.name!r}"))
        object.__setattr__(self, "native", _copied(dict(self.native), f"the native forms of tool {self.name!r}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one call or of many, with one meaning for every provider.

    `input` is the whole prompt; `cache_read` and `cache_write` are the parts of it that were read
    from and written to the prompt cache, so `uncached` is what was billed at the plain price.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def uncached(self) -> int:
        """Prompt tokens that neither came from the cache nor went into it."""
        return self.input - self.cache_read - self.cache_write

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
        )


def canonical(part: Part) -> str:
    """The one text form of a part that identity and byte comparison are made from."""
    match part:
        case TextPart(text, phase):
            return f"text:{phase}\0{text}" if phase else f"text\0{text}"
        case ImagePart(data, media_type, name):
            return f"image\0{media_type}\0{name or ''}\0{data}"
        case DocumentPart(data, media_type, name):
            return f"document\0{media_type}\0{name or ''}\0{data}"
        case ToolCallPart(id, name, input):
            return f"tool_call\0{id}\0{name}\0{json.dumps(input, ensure_ascii=False)}"
        case ToolResultPart(call_id, content, is_error):
            return f"tool_result\0{call_id}\0{is_error:d}\0" + "\0".join(canonical(c) for c in content)
        case ThinkingPart(text, signature, redacted, provider):
            return f"thinking\0{provider}\0{signature or ''}\0{redacted or ''}\0{text}"
        case NativePart(provider, body):
            return f"native\0{provider}\0{json.dumps(body, ensure_ascii=False)}"


def plain(part: Part) -> str:
    """A part as a person reads it."""
    match part:
        case TextPart(text):
            return text
        case ImagePart(_, _, name):
            return f"[Image: {name or 'unnamed'}]"
        case DocumentPart(_, _, name):
            return f"[Document: {name or 'unnamed'}]"
        case ToolCallPart(id, name, input):
            return f"[calls {name} as {id}: {json.dumps(input, ensure_ascii=False)}]"
        case ToolResultPart(call_id, content, is_error):
            state = "error" if is_error else "result"
            return f"[{state} of {call_id}] " + "\n".join(map(plain, content))
        case ThinkingPart(text):
            return f"[thinks] {text}" if text else ""
        case NativePart(provider):
            return f"[{provider} block]"


def content_hash(part: Part) -> str:
    """SHA-256 of a part's content."""
    return sha256(canonical(part).encode("utf-8", "surrogatepass")).hexdigest()


def _parts_of(given: object, kinds: tuple[type, ...], where: str) -> tuple[Any, ...]:
    """Parts as a tuple; text becomes one part, anything else that is not a part is refused."""
    if isinstance(given, str):
        return (TextPart(given),) if given else ()
    parts = tuple(given) if isinstance(given, list | tuple) else (given,)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    for part in parts:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(part, kinds):
            names = ", ".join(kind.__name__ for kind in kinds)
            raise UsageError(f"{where} holds {type(part).__name__}; give text, or parts of {names}")  # pyright: ignore[reportUnknownArgumentType]
    return parts  # pyright: ignore[reportUnknownVariableType]


def _copied(value: JSON, what: str) -> JSON:
    """A private copy: what is edited later must not move bytes that were already sent."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} is not JSON: {error}") from error


def _check_base64(data: str, what: str) -> None:
    if isinstance(data, bytes | bytearray):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"the {what} data is bytes; pass base64.b64encode(raw).decode()")
    if isinstance(data, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        check_length(data, f"the base64 text of the {what}", MAX_MEDIA, "no provider takes more: make it smaller")
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise UsageError(f"the {what} data is not base64 ({error}); pass base64.b64encode(raw).decode()") from error
    if not decoded:
        raise UsageError(f"the {what} data is empty")


# Messages as providers write them, read into the neutral form: Anthropic's, and both of OpenAI's.
#
# Cache markers are left out: a plan places them anew. A block that has no neutral form, such as a picture that only a
# URL names, is kept as a NativePart, which goes back to that provider as it is.

FAILED = "[The call failed.]"
"""How a tool result that is an error begins where a provider has no field for it."""

_Body: TypeAlias = Mapping[str, Any]
_MARKERS = frozenset({"cache_control", "prompt_cache_breakpoint"})
_OPENAI_ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "user",
    "function": "user",
}  # fmt: skip
_OPENAI_FIELDS = frozenset({"tool_calls", "tool_call_id", "function_call"})
_OPENAI_TYPES = frozenset({"image_url", "input_text", "output_text", "input_image", "input_file", "file", "refusal",
                           "input_audio"})  # fmt: skip
_RESPONSES_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning"})
_TEXTS = frozenset({"text", "input_text", "output_text"})


def from_mapping(given: _Body) -> Message:
    """A message that a mapping writes in any of these forms; what it holds says in which."""
    blocks = given.get("content")
    types = {_type_of(block) for block in cast("Sequence[Any]", blocks)} if isinstance(blocks, list) else set[str]()
    is_openai = given.get("role") not in {"user", "assistant"} or given.get("type") in _RESPONSES_ITEMS
    is_openai = is_openai or bool(_OPENAI_FIELDS & given.keys() or _OPENAI_TYPES & types)
    return Message.from_openai(given) if is_openai else Message.from_anthropic(given)


# -- Anthropic -----------------------------------------------------------------------------------------------


def _anthropic_part(block: _Body) -> Part:
    match block.get("type"):
        case "tool_use":
            where = "a tool_use block"
            return ToolCallPart(_text(block, "id", where), _text(block, "name", where), block.get("input", {}))
        case "tool_result":
            call_id = _text(block, "tool_use_id", "a tool_result block")
            content = _result_parts(block.get("content"), "a tool_result block", _anthropic_shown)
            return ToolResultPart(call_id, tuple(content), block.get("is_error") is True)
        case "thinking":
            return ThinkingPart(_text(block, "thinking", "a thinking block", may_be_empty=True), block.get("signature"))
        case "redacted_thinking":
            return ThinkingPart(redacted=_text(block, "data", "a redacted_thinking block"))
        case _:
            return _anthropic_shown(block) or _native("anthropic", block)


def _anthropic_shown(block: _Body) -> ContentPart | None:
    """Text, a picture or a document; None where it is something else, or lies elsewhere."""
    type, source = block.get("type"), cast("_Body", block.get("source") or {})
    if type == "text":
        return TextPart(_text(block, "text", "a text block", may_be_empty=True))
    if type == "image" and source.get("type") == "base64" and source.get("media_type") in IMAGE_TYPES:
        return ImagePart(_text(source, "data", "an image block"), source["media_type"])
    if type == "document" and source.get("type") == "base64":
        media_type = _text(source, "media_type", "a document block")
        return DocumentPart(_text(source, "data", "a document block"), media_type, block.get("title"))
    if type == "document" and source.get("type") == "text":
        data = base64.b64encode(_text(source, "data", "a document block").encode()).decode()
        return DocumentPart(data, "text/plain", block.get("title"))
    return None


# -- OpenAI --------------------------------------------------------------------------------------------------


def _openai_item(given: _Body) -> Message:
    where = f"a {given['type']} item"
    if given["type"] == "function_call":
        call_id, arguments = _text(given, "call_id", where), given.get("arguments", "")
        return Message("assistant", (ToolCallPart(call_id, _text(given, "name", where), _arguments(arguments)),))
    if given["type"] == "function_call_output":
        return Message("user", (_openai_result(_text(given, "call_id", where), given.get("output")),))
    summary = "\n".join(_text(one, "text", where) for one in _blocks(given.get("summary") or [], where))
    sealed = given.get("encrypted_content")
    return Message("assistant", (ThinkingPart(summary, _text(given, "id", where), sealed, provider="openai"),))


def _openai_parts(content: Any) -> list[Part]:
    if content is None or isinstance(content, str):
        return [TextPart(content)] if content else []
    return [_openai_shown(part) or _native(_dialect(part), part) for part in _blocks(content, "a message")]


def _openai_result(call_id: str, content: Any) -> ToolResultPart:
    shown = _result_parts(content, "the result of a tool", _openai_shown)
    text = shown[0].text if shown and isinstance(shown[0], TextPart) else ""
    is_error = text == FAILED or text.startswith(f"{FAILED}\n")
    if is_error:
        rest = text.removeprefix(FAILED).removeprefix("\n")
        shown[:1] = [TextPart(rest)] if rest else []
    return ToolResultPart(call_id, tuple(shown), is_error)


def _openai_call(call: _Body) -> ToolCallPart:
    where = "a tool call"
    made = call.get("function") or call.get("custom")
    if not isinstance(made, Mapping):
        raise UsageError(f"{where} has neither `function` nor `custom`: {dict(call)!r:.200}")
    body = cast("_Body", made)
    given = _arguments(body.get("arguments", "")) if "function" in call else body.get("input", "")
    return ToolCallPart(_text(call, "id", where), _text(body, "name", where), given)


def _arguments(given: Any) -> JSON:
    """The arguments of a call; what a model wrote that is not JSON stays as it wrote it."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given) if given.strip() else {}
    except ValueError:
        return given


def _openai_shown(part: _Body) -> ContentPart | None:
    """Text, a picture or a document; None where it is something else, or lies elsewhere."""
    type = part.get("type")
    if type in _TEXTS:
        return TextPart(_text(part, "text", "a text part", may_be_empty=True))
    if type == "refusal":
        return TextPart(_text(part, "refusal", "a refusal"))
    if type in {"image_url", "input_image"}:
        url = part.get("image_url")
        media_type, data = _of_data_url(cast("_Body", url).get("url") if isinstance(url, Mapping) else url)
        return ImagePart(data, media_type) if media_type in IMAGE_TYPES else None
    if type in {"file", "input_file"}:
        file = cast("_Body", part.get("file") or {}) if type == "file" else part
        media_type, data = _of_data_url(file.get("file_data"))
        return DocumentPart(data, media_type, file.get("filename")) if media_type else None
    return None


def _of_data_url(url: Any) -> tuple[str, str]:
    """The media type and the base64 text of a data: URL; both empty where it is another."""
    if not isinstance(url, str) or not url.startswith("data:"):
        return "", ""
    head, comma, data = url.removeprefix("data:").partition(",")
    media_type, base64_, _ = head.partition(";base64")
    return (media_type, data) if comma and base64_ else ("", "")


def _dialect(part: _Body) -> str:
    return "openai" if str(part.get("type", "")).startswith(("input_", "output_")) else "openai_chat"


# -- both ----------------------------------------------------------------------------------------------------


def _result_parts(content: Any, where: str, read: Callable[[_Body], ContentPart | None]) -> list[ContentPart]:
    """The parts of a tool's result. It holds no provider's own block: what has no neutral form is shown as JSON."""
    if content is None or isinstance(content, str):
        return [TextPart(content)] if content else []
    blocks = _blocks(content, where)
    return [read(block) or TextPart(json.dumps(_plain(block), ensure_ascii=False)) for block in blocks]


def _native(provider: str, block: _Body) -> NativePart:
    if not isinstance(block.get("type"), str):
        raise UsageError(f'a block of a message has no "type": {dict(block)!r:.200}; give one such as "text"')
    return NativePart(provider, _plain(block))


def _plain(block: _Body) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name not in _MARKERS}


def _type_of(block: Any) -> str:
    return str(cast("_Body", block).get("type")) if isinstance(block, Mapping) else ""


def _blocks(given: Any, where: str) -> list[_Body]:
    if not isinstance(given, list | tuple):
        raise UsageError(f"{where} has the content {given!r:.200}; give text or a list of blocks")
    for block in cast("Sequence[Any]", given):
        if not isinstance(block, Mapping):
            raise UsageError(f"{where} holds {block!r:.200}; a block is a mapping with a type")
    return list(cast("Sequence[_Body]", given))


def _text(given: _Body, name: str, where: str, *, may_be_empty: bool = False) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise UsageError(f"{where} has {name}={value!r:.200}; give text")
    return value
