"""Counting tokens exactly, with a vocabulary that ships in a package."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

from loom.errors import MissingExtra, UsageError
from loom.tokens.parts import MemoCounter, PartRules

VOCABULARIES: Final = {
    "o200k": "o200k_base", "cl100k": "cl100k_base", "llama3": "llama3", "qwen3": "qwen3",
    "deepseek_v3": "deepseek_v3", "gemma4": "gemma4", "glm4": "glm4", "kimi_k3": "kimi_k3",
    "mistral_v3": "mistral_v3", "gpt_oss": "gpt_oss",
}  # fmt: skip


def has_vocabularies() -> bool:
    """Whether the package with the vocabularies is installed."""
    return find_spec("splintr") is not None


class ExactCounter(MemoCounter):
    """Counts with one vocabulary, which is loaded at the first count."""

    def __init__(self, vocabulary: str = "o200k", *, rules: PartRules | None = None) -> None:
        if vocabulary not in VOCABULARIES:
            raise UsageError(f"there is no vocabulary {vocabulary!r}; use one of {', '.join(VOCABULARIES)}")
        if not has_vocabularies():
            raise MissingExtra("exact token counts", "tokens")
        super().__init__(rules)
        self._vocabulary = vocabulary
        self._encode: Callable[[str], list[int]] | None = None
        self._frame = 0

    @property
    def name(self) -> str:
        """What counts, for people."""
        return f"{self._vocabulary} (exact)"

    @property
    def error(self) -> float:
        """Exact for text; pictures and documents follow the provider's published rules."""
        return 0.0

    def _measure(self, text: str) -> int:
        encode = self._encode or self._load()
        try:
            return len(encode(text)) - self._frame
        except UnicodeEncodeError:  # half of a surrogate pair, which no provider takes either
            return len(encode(text.encode("utf-8", "replace").decode())) - self._frame

    def _load(self) -> Callable[[str], list[int]]:
        from splintr import Tokenizer  # noqa: PLC0415  an optional package

        tokenizer = Tokenizer.from_pretrained(VOCABULARIES[self._vocabulary])
        # "<|endoftext|>" in a text is seven ordinary tokens to a provider, not the control token it spells
        encode: Callable[[str], list[int]] = tokenizer.encode_ordinary
        self._frame = len(encode(""))
        self._encode = encode
        return encode
