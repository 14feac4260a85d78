"""The provider-neutral conversation: messages, their parts, and usage."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, TypeAlias

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


@dataclass(frozen=True, slots=True)
class ToolResultPart:
    """A tool's answer; `content` is text, pictures and documents. Plain text is taken for one text part."""

    call_id: str
    content: tuple[TextPart | ImagePart | DocumentPart, ...]
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

_PART_TYPES = (TextPart, ImagePart, DocumentPart, ToolCallPart, ToolResultPart, ThinkingPart, NativePart)


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
        object.__setattr__(self, "parts", _parts_of(self.parts, _PART_TYPES, f"a {self.role} message"))
        for part in self.parts:
            sender = "user" if isinstance(part, ToolResultPart) else "assistant"
            if isinstance(part, ToolCallPart | ThinkingPart | ToolResultPart) and self.role != sender:
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
        from loom.core.message_wire import from_anthropic  # noqa: PLC0415  (what is read is a message, not the reverse)

        return from_anthropic(given)

    @classmethod
    def from_openai(cls, given: Mapping[str, JSON]) -> Message:
        """A message of OpenAI's Chat Completions, or an item of its Responses API; results of tools are the user's."""
        from loom.core.message_wire import from_openai  # noqa: PLC0415  (what is read is a message, not the reverse)

        return from_openai(given)

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
