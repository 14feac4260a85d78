"""The default local embedder: static word-piece vectors of the wordllama package, averaged, with no network."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from anyio import to_thread

from loom.core.forks import renew_lock_after_fork
from loom.errors import ProviderUnavailable
from loom.providers.embedding.checks import EmbedsBatches, checked_texts, cut_bytes

if TYPE_CHECKING:
    from loom.protocols.embedder import Purpose, Vector

_DIMENSION = 256
# A mean of more word pieces than this says little, and a megabyte of text would hold up the whole batch.
_MAX_BYTES = 16_384
_SPACE = "\u2581"
"""How the tokenizer writes a space."""
_WORDS = 20_000
_LONGEST_WORD = 64
"""So many words, of so many characters, are kept with their pieces."""
_FEW_CHARS = 500
"""A question is embedded sooner than a thread wakes up for it."""
_LOADING = Lock()
renew_lock_after_fork(sys.modules[__name__], "_LOADING")


@cache
def _version() -> str:
    return version("wordllama")


class _Model(NamedTuple):
    rows: Any
    """One row for each word piece."""
    tokenizer: Any


class WordLlamaEmbedder(EmbedsBatches):
    """Embeds with the static vectors inside the `wordllama` package: fast, deterministic, offline.

    Texts are cut after 16,384 bytes. Queries and documents are embedded alike. The vectors are loaded at
    the first use, in a thread, and shared by all instances of the process.
    """

    __slots__ = ()

    @property
    def identity(self) -> str:
        """`wordllama:VERSION:256`, where the version is that of the package with the vectors."""
        return f"wordllama:{_version()}:{_DIMENSION}"

    @property
    def dimension(self) -> int:
        """256."""
        return _DIMENSION

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> Sequence[Vector]:
        """One vector of length 1 for each text."""
        checked = checked_texts(texts, purpose)
        if not checked:
            return []
        if _load.cache_info().currsize and sum(map(len, checked)) <= _FEW_CHARS:
            return _embed(checked)
        return await to_thread.run_sync(_embed, checked)


def _embed(texts: Sequence[str]) -> Sequence[Vector]:
    import numpy as np  # noqa: PLC0415

    rows = _shared_model().rows
    vectors = np.empty((len(texts), _DIMENSION), dtype=np.float32)
    for place, text in enumerate(texts):
        # Each text is averaged by itself: padding a batch to its longest text would take gigabytes.
        pieces = _pieces(cut_bytes(text, _MAX_BYTES))
        mean = np.add.reduce(rows.take(pieces, axis=0)) / np.float32(len(pieces))
        vectors[place] = mean / np.sqrt(mean.dot(mean))
    return list(vectors)


def _pieces(text: str) -> list[int]:
    """The word pieces of a text. No piece goes on behind a space, so words that were met before are not cut again."""
    words = text.split(" ")
    # Spaces in a row may be one piece, and a special token, such as <s>, changes how the words beside it are cut.
    if "" in words or "<" in text or _SPACE in text or len(max(words, key=len)) > _LONGEST_WORD:
        return _cut(text)
    return [piece for word in words for piece in _cut_word(word)]


def _cut(text: str) -> list[int]:
    return _shared_model().tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


_cut_word = lru_cache(maxsize=_WORDS)(_cut)


def _shared_model() -> _Model:
    with _LOADING:
        return _load()


@lru_cache(maxsize=1)
def _load() -> _Model:
    with _root_logger_kept():
        import wordllama  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]

    home = os.path.dirname(wordllama.__file__)  # noqa: PTH120  (the package takes a text)
    try:
        # Its own search looks in a misspelt folder and then asks the network; naming the folder avoids both.
        loaded: Any = wordllama.WordLlama.load(cache_dir=home, disable_download=True)
    except (OSError, ValueError) as error:
        raise ProviderUnavailable(
            f"the vectors of wordllama could not be read from {home} ({error}); reinstall the package wordllama"
        ) from error
    loaded.tokenizer.no_padding()
    return _Model(rows=loaded.embedding, tokenizer=loaded.tokenizer)


@contextmanager
def _root_logger_kept() -> Generator[None]:
    """Undo what importing the package does to the logging of the whole process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
