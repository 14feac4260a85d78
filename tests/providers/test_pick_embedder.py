import pytest

from loom.errors import MissingExtra, UsageError
from loom.providers.embedding.auto import NAMES, pick_embedder
from loom.providers.embedding.hashing import HashEmbedder

KEY = {"OPENAI_API_KEY": "sk-test"}


def test_without_a_key_it_stays_on_this_machine():
    for environ in ({}, {"OPENAI_API_KEY": " "}):
        embedder, why = pick_embedder(environ=environ)
        assert embedder.identity.startswith("wordllama:")
        assert why == f"embedding with {embedder.identity} on this machine, because OPENAI_API_KEY is not set"


def test_with_a_key_it_is_openai_and_says_that_texts_leave():
    embedder, why = pick_embedder("auto", environ=KEY)
    assert embedder.identity == "openai:text-embedding-3-small:1536"
    assert why == f"embedding with {embedder.identity}, because OPENAI_API_KEY is set; texts go to OpenAI"


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("openai", "openai:text-embedding-3-small:1536"),
        ("openai-large", "openai:text-embedding-3-large:3072"),
        ("wordllama", "wordllama:"),
        ("hash", "hash:1:256"),
    ],
)
def test_a_name_beats_the_key(name, identity):
    embedder, why = pick_embedder(name, environ=KEY)
    assert embedder.identity.startswith(identity)
    assert f"embedder={name!r} was configured" in why


def test_minilm_is_found_or_named_as_missing():
    try:
        assert pick_embedder("minilm").embedder.dimension == 384
    except MissingExtra as error:
        assert error.extra == "minilm"  # noqa: PT017


def test_an_instance_is_taken_as_it_is():
    mine = HashEmbedder(7)
    assert pick_embedder(mine, environ=KEY).embedder is mine


@pytest.mark.parametrize("bad", ["word2vec", "", 3, object()])
def test_what_is_no_embedder_is_refused_with_the_names(bad):
    with pytest.raises(UsageError, match=", ".join(NAMES)):
        pick_embedder(bad)
