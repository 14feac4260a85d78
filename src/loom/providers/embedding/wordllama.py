"""The default local embedder: static word-piece vectors of the wordllama package, averaged, with no network."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from struct import unpack
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
        found = rows.take(pieces, axis=0).astype(np.float32)
        mean = np.add.reduce(found) / np.float32(len(pieces))
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
    """Read the vectors and the tokenizer that lie in the package.

    The package itself is not imported: that takes longer than all the rest, looks for the files in a misspelt folder,
    may ask the network for them, and changes the logging of the whole process.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415

    spec = find_spec("wordllama")
    home = Path(spec.origin).parent if spec is not None and spec.origin else Path("wordllama")
    try:
        rows = _rows(home / "weights" / f"l2_supercat_{_DIMENSION}.safetensors")
        tokenizer = Tokenizer.from_str((home / "tokenizers/l2_supercat_tokenizer_config.json").read_text("utf-8"))
    except Exception as error:  # the tokenizer raises Exception itself
        raise ProviderUnavailable(
            f"the vectors of wordllama could not be read from {home} ({error}); reinstall the package wordllama"
        ) from error
    return _Model(rows=rows, tokenizer=tokenizer)


def _rows(path: Path) -> Any:
    """The table in a file of the safetensors format: the length of a header, the header as JSON, and the numbers.

    It is mapped, not read: processes share it, and the pages that no word needs are never loaded.
    """
    import numpy as np  # noqa: PLC0415

    with path.open("rb") as file:
        (length,) = unpack("<Q", file.read(8))
        table = json.loads(file.read(length))["embedding.weight"]
    if table["dtype"] != "F16" or table["shape"][1] != _DIMENSION:
        raise ValueError(f"it holds {table['dtype']} of shape {table['shape']}")
    start = 8 + length + table["data_offsets"][0]
    return np.memmap(path, dtype="<f2", mode="r", offset=start, shape=tuple(table["shape"]))
