"""Token counters: exact with a vocabulary, an estimate without one, calibrated by responses; and tokens of parts."""

from __future__ import annotations

import base64
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

from loom.core.message import (
    DocumentPart,
    ImagePart,
    Message,
    NativePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from loom.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from loom.catalog import ModelInfo
    from loom.protocols.model import ModelRequest
    from loom.protocols.token_counter import TokenCounter

# Tokens of messages, their parts, tools and images, given a way to count text.

# A bounded memory of counts, so that an unchanged text is counted once.


class Memo:
    """Counts by text, in two generations: what was not asked for since the last turnover is let go.

    The bounds hold for one generation; both together keep at most twice as much. Safe to share between
    threads without a lock: a lost entry is only counted again.
    """

    __slots__ = ("_chars", "_entries", "_max_chars", "_old", "_young")

    def __init__(self, *, entries: int = 16_384, chars: int = 16_000_000) -> None:
        self._entries, self._chars = entries, 0
        self._max_chars = chars
        self._young: dict[str, int] = {}
        self._old: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def count(self, text: str, measure: Callable[[str], int]) -> int:
        """The count of a text: as remembered, or measured now."""
        found = self._young.get(text)
        if found is None:
            found = self._old.get(text)
            found = measure(text) if found is None else found
            self._put(text, found)
        return found

    def _put(self, text: str, count: int) -> None:
        if len(text) > self._max_chars:
            return
        if len(self._young) >= self._entries or self._chars + len(text) > self._max_chars:
            self._old, self._young, self._chars = self._young, {}, 0
        self._young[text] = count
        self._chars += len(text)


MESSAGE_OVERHEAD: Final = 4
"""Tokens that frame a message: its role and its end."""
CALL_OVERHEAD: Final = 8
"""Tokens that frame a tool call or a tool result."""
TOOL_OVERHEAD: Final = 10
"""Tokens that frame a tool's definition."""

_SEALED = frozenset({"encrypted_content", "signature", "data"})
_PAGE = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")
_PAGE_COUNT = re.compile(rb"/Count\s+(\d{1,5})(?!\d)")
_BYTES_PER_PAGE: Final = 50_000
# A provider reads a page as text and as a picture; Gemini as a picture alone.
_TOKENS_PER_PAGE: Final = {"gemini": 560}
_TOKENS_PER_PAGE_ELSEWHERE: Final = 3000


class PartRules:
    """The rules of one model for everything that is not text; made once, kept by a counter."""

    def __init__(self, model: str = "", provider: str = "") -> None:
        self._model = model
        self._page = _TOKENS_PER_PAGE.get(provider, _TOKENS_PER_PAGE_ELSEWHERE)
        self._media = Memo(entries=1024, chars=64_000_000)

    def count(self, part: Part, count: Callable[[str], int]) -> int:
        """Tokens of a part; `count` counts its texts."""
        match part:
            case TextPart(text):
                return count(text)
            case ImagePart(data):
                return self._media.count(data, self._image)
            case DocumentPart(data, media_type):
                if media_type.startswith("text/"):
                    return count(base64.b64decode(data).decode("utf-8", "replace"))
                return self._media.count(data, self._document)
            case ToolCallPart(_, name, input):
                return CALL_OVERHEAD + count(name) + count(json.dumps(input, ensure_ascii=False))
            case ToolResultPart(_, content):
                return CALL_OVERHEAD + sum(self.count(item, count) for item in content)
            case ThinkingPart(text, signature, redacted):
                return count(text) if text else sealed_tokens(redacted or signature or "")
            case NativePart(_, body):
                open_parts, sealed = _without_seals(body)
                return count(json.dumps(open_parts, ensure_ascii=False)) + sealed_tokens(sealed)

    def _image(self, data: str) -> int:
        from loom.text.image_tokens import UNKNOWN_SIZE, image_rule, image_size  # noqa: PLC0415  (few texts have one)

        size = image_size(data)
        return image_rule(self._model).tokens(*size) if size else UNKNOWN_SIZE

    def _document(self, data: str) -> int:
        return self._page * pdf_pages(base64.b64decode(data))


class MemoCounter(ABC):
    """A counter that counts each text once, as long as it is remembered; a subclass measures."""

    def __init__(self, name: str, error: float, rules: PartRules | None) -> None:
        self.name = name
        self.error = error
        self._rules = rules or PartRules()
        self._memo = Memo()

    @abstractmethod
    def _measure(self, text: str) -> int:
        """Tokens of a text that is not empty."""

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return self._memo.count(text, self._measure) if text else 0

    def count_part(self, part: Part) -> int:
        """Tokens of any part."""
        return self._rules.count(part, self.count)


def pdf_pages(data: bytes) -> int:
    """Pages of a PDF; guessed from its size where they are compressed out of sight, and never 0."""
    counts = [int(found) for found in _PAGE_COUNT.findall(data)]
    seen = max(len(_PAGE.findall(data)), *counts, 0)
    return seen or max(1, len(data) // _BYTES_PER_PAGE)


def sealed_tokens(sealed: str) -> int:
    """Tokens behind a sealed text: base64 of about four bytes for each."""
    return len(sealed) * 3 // 16


def count_message(message: Message, counter: TokenCounter) -> int:
    """Tokens of a message with its frame."""
    return MESSAGE_OVERHEAD + sum(counter.count_part(part) for part in message.parts)


def count_messages(messages: Iterable[Message], counter: TokenCounter) -> int:
    """Tokens of a conversation."""
    return sum(count_message(message, counter) for message in messages)


def count_tool(tool: ToolSpec, counter: TokenCounter) -> int:
    """Tokens of a tool's definition: its name, its description and its schema."""
    schema = json.dumps(tool.input_schema, ensure_ascii=False)
    return TOOL_OVERHEAD + counter.count(tool.name) + counter.count(tool.description) + counter.count(schema)


def _without_seals(body: Any) -> tuple[Any, str]:
    """A provider's block without its sealed strings, and those strings."""
    if not isinstance(body, dict):
        return body, ""
    block = cast("dict[str, Any]", body)
    sealed = [value for key, value in block.items() if key in _SEALED and isinstance(value, str)]
    return {key: value for key, value in block.items() if key not in _SEALED}, "".join(sealed)


def count_request(request: ModelRequest, counter: TokenCounter) -> int:
    """Tokens of a whole prompt: system, tools and messages."""
    system = sum(counter.count(text) for text in request.system)
    tools = sum(count_tool(tool, counter) for tool in request.tools)
    return system + tools + count_messages(request.messages, counter)


# Estimating the tokens of a text from the classes of its characters, with no vocabulary.

ESTIMATE_ERROR: Final = 0.16
"""95 of 100 held-out texts of 4 KB (prose, code, data, and 21 languages) were within this share of the truth."""


def _class_of(byte: int) -> str:
    """The class of a character, from its first UTF-8 byte."""
    if byte < 0x80:
        char = chr(byte)
        if char in " \t":
            return " "
        if char in "\r\n":
            return "\n"
        if char.isalpha():
            return "a" if char.islower() else "A"
        return "0" if char.isdigit() else "."
    return next(name for last, name in _LEAD_BYTES if byte <= last)


_LEAD_BYTES: Final = (
    (0xBF, "?"),  # a continuation byte, deleted before anything is counted
    (0xC3, "x"),  # the marked letters of western Europe
    (0xCD, "y"),  # the marked letters of central Europe and Turkish
    (0xCF, "l"),  # Greek
    (0xD5, "r"),  # Cyrillic, Armenian
    (0xD7, "b"),  # Hebrew
    (0xDF, "h"),  # Arabic
    (0xE0, "t"),  # Indic scripts, Thai
    (0xE1, "v"),  # Georgian, Khmer; and Vietnamese, which is told apart below
    (0xE2, "s"),  # signs, dashes, quotes
    (0xE3, "k"),  # kana
    (0xE9, "j"),  # Chinese characters
    (0xED, "g"),  # Hangul
    (0xEF, "f"),  # full-width forms
    (0xFF, "e"),  # emoji and everything rare
)
_CLASSES: Final = "".join(_class_of(byte) for byte in range(256)).encode()
_CONTINUATION: Final = bytes(range(0x80, 0xC0))
_WORDS: Final = bytes(ord("a" if chr(b) in "aAxyv" else " " if chr(b) in " \n" else ".") for b in range(256))
_VIETNAMESE: Final = (b"\xe1\xba", b"\xe1\xbb")
_UKRAINIAN: Final = "\u0456".encode()  # a letter that Russian does not have

_START: Final = 0.9
_BLOCK: Final = 4096


def estimate_tokens(text: str) -> float:
    """How many o200k tokens a text takes, about; 0 for the empty text.

    Everything is counted in whole passes of `bytes.translate` and `bytes.count`, which run at the speed of C,
    over blocks that stay in the processor's cache. The weights were fitted on the first halves of corpora of the
    kinds that benchmarks/tokens.py lists, and on English and other everyday prose.
    """
    if not text:
        return 0.0
    return _START + sum(_count_block(text[at : at + _BLOCK]) for at in range(0, len(text), _BLOCK))


def _count_block(text: str) -> float:
    data = text.encode("utf-8", "surrogatepass")
    if text.isascii():
        return _count_ascii(data.translate(_CLASSES))
    classes = data.translate(_CLASSES, _CONTINUATION)
    return _count_ascii(classes) + _count_scripts(classes.count, data)


def _count_ascii(classes: bytes) -> float:
    n = classes.count
    word = classes.translate(_WORDS).count
    newlines = n(b"\n")
    return (
        0.98 * word(b" a")  # a word behind a space
        + 1.33 * word(b".a")  # a word behind anything else
        + 0.93 * n(b"aA")  # the humps of camelCase
        + 0.36 * word(b"aaaaa")  # long words
        + 0.09 * n(b"A")
        + 1.15 * (n(b"0") - n(b"00"))  # digits, in groups of up to three
        - 0.50 * n(b"000")
        + 1.49 * n(b" 0")
        + 0.60 * n(b"..")  # runs of punctuation
        + 0.95 * n(b" .")
        + 0.05 * newlines
        + 0.63 * (newlines - n(b".\n"))  # a newline joins the punctuation before it
        + 0.94 * n(b"\n  ")  # indentation
    )


def _count_scripts(n: Callable[[bytes], int], data: bytes) -> float:
    total = 0.41 * n(b"x") + 1.88 * n(b"y") + 0.41 * n(b"t") + 0.91 * n(b"s") + 0.67 * n(b"k")
    total += 0.84 * n(b"j") + 0.86 * n(b"g") + 0.50 * n(b"f") + 2.00 * n(b"e")
    # few texts hold all scripts, so the words of one are looked for only where it has letters
    if greek := n(b"l"):
        total += 0.28 * greek + 1.03 * n(b" l")
    if cyrillic := n(b"r"):
        total += 0.19 * cyrillic + 0.63 * n(b" r") + 0.15 * n(b"rrrrr") + 1.58 * data.count(_UKRAINIAN)
    if hebrew := n(b"b"):
        total += 0.46 * hebrew + 0.20 * n(b" b")
    if arabic := n(b"h"):
        total += 0.25 * arabic + 0.67 * n(b" h") + 0.09 * n(b"hhhh")
    if others := n(b"v"):
        vietnamese = sum(data.count(lead) for lead in _VIETNAMESE)
        total += 0.21 * (others - vietnamese) + 0.09 * vietnamese
    return total


class EstimateCounter(MemoCounter):
    """Counts by estimate; `scale` is what a model's own vocabulary makes of an o200k token."""

    def __init__(
        self,
        scale: float = 1.0,
        *,
        error: float = ESTIMATE_ERROR,
        name: str = "estimate",
        rules: PartRules | None = None,
    ) -> None:
        super().__init__(name, error, rules)
        self._scale = scale

    def _measure(self, text: str) -> int:
        return max(1, round(self._scale * estimate_tokens(text)))


# Counting tokens exactly, with a vocabulary that ships in a package.

VOCABULARIES: Final = {
    "o200k": "o200k_base", "cl100k": "cl100k_base", "llama3": "llama3", "qwen3": "qwen3",
    "deepseek_v3": "deepseek_v3", "gemma4": "gemma4", "glm4": "glm4", "kimi_k3": "kimi_k3",
    "mistral_v3": "mistral_v3", "gpt_oss": "gpt_oss",
}  # fmt: skip


def has_vocabularies() -> bool:
    """Whether the package with the vocabularies is installed."""
    return find_spec("splintr") is not None


class ExactCounter(MemoCounter):
    """Counts with one vocabulary, which is loaded at the first count.

    It is exact for text; pictures and documents follow the provider's published rules.
    """

    def __init__(self, vocabulary: str = "o200k", *, rules: PartRules | None = None) -> None:
        if vocabulary not in VOCABULARIES:
            raise UsageError(f"there is no vocabulary {vocabulary!r}; use one of {', '.join(VOCABULARIES)}")
        if not has_vocabularies():
            raise MissingExtra("exact token counts", "tokens")
        super().__init__(f"{vocabulary} (exact)", 0.0, rules)
        self._vocabulary = vocabulary
        self._encode: Callable[[str], list[int]] | None = None
        self._frame = 0

    def _measure(self, text: str) -> int:
        encode = self._encode or self._load()
        try:
            return len(encode(text)) - self._frame
        except UnicodeEncodeError:  # half of a surrogate pair, which no provider takes either
            return len(encode(text.encode("utf-8", "replace").decode())) - self._frame

    def _load(self) -> Callable[[str], list[int]]:
        encode = _encoder(self._vocabulary)
        self._frame = len(encode(""))
        self._encode = encode
        return encode


@cache
def _encoder(vocabulary: str) -> Callable[[str], list[int]]:
    """What splits a text by a vocabulary; loaded once for all counters, because that takes a tenth of a second."""
    from splintr import Tokenizer  # noqa: PLC0415  an optional package

    # "<|endoftext|>" in a text is seven ordinary tokens to a provider, not the control token it spells
    return Tokenizer.from_pretrained(VOCABULARIES[vocabulary]).encode_ordinary


# A counter that learns a model's own scale from what responses report.

_DECAY: Final = 0.85
"""What an observation still weighs when the next one comes."""
_PRIOR: Final = 300.0
"""Tokens that speak for the base counter before anything was observed."""
_FULL_WEIGHT: Final = 2000
"""A request of this size is a whole piece of evidence; a smaller one is less."""
_OUTLIER: Final = 1.5
"""Once something is known, one observation may differ from it by this factor at most."""
_DOUBT: Final = 2.0
"""Pieces of evidence that the base counter's own error weighs: a small text strays further than a whole prompt."""
_FLOOR: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The scale learned for one model; keep it, and give it to the next counter."""

    base_tokens: float = 0.0
    actual_tokens: float = 0.0
    evidence: float = 0.0
    variance: float = 0.0
    """Sum of the squared log errors, weighed like `evidence`."""
    observations: int = 0

    @property
    def scale(self) -> float:
        """What the base counter's tokens are multiplied with."""
        return (_PRIOR + self.actual_tokens) / (_PRIOR + self.base_tokens)

    def after(self, base_tokens: float, actual: float) -> Calibration:
        """This calibration and one more observation."""
        weight = min(1.0, base_tokens / _FULL_WEIGHT)
        if self.evidence >= 1.0:  # one odd response must not undo what many showed
            actual = min(max(actual, base_tokens * self.scale / _OUTLIER), base_tokens * self.scale * _OUTLIER)
        learned = replace(
            self,
            base_tokens=self.base_tokens * _DECAY + base_tokens,
            actual_tokens=self.actual_tokens * _DECAY + actual,
            observations=self.observations + 1,
        )
        miss = math.log(actual / base_tokens / learned.scale)
        return replace(
            learned, evidence=self.evidence * _DECAY + weight, variance=self.variance * _DECAY + weight * miss * miss
        )


class CalibratedCounter:
    """Counts as another counter does, times what responses have shown.

    One counter serves one model. Its counts move as it learns, so a plan and the trigger that follows it must
    ask the same counter.
    """

    def __init__(self, base: TokenCounter, calibration: Calibration | None = None) -> None:
        self._base = base
        self.calibration = calibration or Calibration()
        """What was learned so far."""

    @property
    def base(self) -> TokenCounter:
        """The counter underneath, which learns nothing."""
        return self._base

    @property
    def scale(self) -> float:
        """What the base counter's tokens are multiplied with now."""
        return self.calibration.scale

    @property
    def name(self) -> str:
        """What counts, for people."""
        seen = self.calibration.observations
        return (
            f"{self._base.name}, calibrated on {seen} response{'' if seen == 1 else 's'}" if seen else self._base.name
        )

    @property
    def error(self) -> float:
        """The base counter's error, replaced by the observed one as evidence comes in."""
        learned = self.calibration
        if not learned.observations:
            return self._base.error
        observed = 4 * learned.variance  # two standard deviations, squared
        return max(_FLOOR, math.sqrt((_DOUBT * self._base.error**2 + observed) / (_DOUBT + learned.evidence)))

    def count(self, text: str) -> int:
        """Tokens of a text."""
        base = self._base.count(text)
        return max(1, round(base * self.scale)) if base else 0

    def count_part(self, part: Part) -> int:
        """Tokens of any part."""
        base = self._base.count_part(part)
        return max(1, round(base * self.scale)) if base else 0

    def observe(self, predicted: int, actual: int, *, scale: float | None = None) -> None:
        """Learn from a response: this counter's count of the whole prompt, and the billed count.

        `scale` is the scale in force when the prompt was counted; without it, the present one.
        """
        if predicted < 0 or actual < 0:
            raise UsageError(f"observed {predicted} predicted and {actual} actual tokens; neither can be negative")
        if predicted and actual:
            self.calibration = self.calibration.after(predicted / (scale or self.scale), actual)


_UNKNOWN_VOCABULARY = 0.15
"""How far a model's scale may be off where its vocabulary is not public."""


def counter_for(model: ModelInfo | str) -> TokenCounter:
    """The best counter there is for a model: exact with its vocabulary, else an estimate that says how far off."""
    from loom.catalog import find_model  # noqa: PLC0415  (an estimate needs no catalog)

    info = find_model(model) if isinstance(model, str) else model
    rules = PartRules(info.model, info.provider)
    if info.tokenizer in VOCABULARIES:
        if has_vocabularies():
            return ExactCounter(info.tokenizer, rules=rules)
        error = ESTIMATE_ERROR
    else:
        error = round(math.hypot(ESTIMATE_ERROR, _UNKNOWN_VOCABULARY), 2)
    return EstimateCounter(info.token_scale, error=error, name=f"estimate for {info.model}", rules=rules)
