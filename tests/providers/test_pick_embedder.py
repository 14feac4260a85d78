import pytest

from loom.errors import MissingExtra, UsageError
from loom.providers.embedding.choose import BUILT_IN, local_embedder, pick_embedder
from loom.providers.embedding.local import HashEmbedder


@pytest.mark.parametrize("setting", [None, "auto"])
@pytest.mark.parametrize("key", ["", "sk-test"])
def test_where_none_is_named_texts_stay_on_this_machine_whatever_keys_there_are(monkeypatch, setting, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    embedder, why = pick_embedder(setting)
    assert embedder.identity.startswith("static:")
    assert why == f"embedding with {embedder.identity} on this machine, because no other was named"


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("openai", "openai:text-embedding-3-small:1536"),
        ("openai-large", "openai:text-embedding-3-large:3072"),
        ("static", "static:4:256"),
        ("wordllama", "wordllama:"),
        ("hash", "hash:1:256"),
    ],
)
def test_a_name_is_taken_and_where_texts_leave_it_is_said(name, identity):
    embedder, why = pick_embedder(name)
    assert embedder.identity.startswith(identity)
    assert f"embedder={name!r} was configured" in why
    assert ("texts go to OpenAI" in why) == name.startswith("openai")


def test_minilm_is_found_or_named_as_missing():
    try:
        assert pick_embedder("minilm").embedder.dimension == 384
    except MissingExtra as error:
        assert error.extra == "minilm"  # noqa: PT017


def test_an_instance_is_taken_as_it_is():
    mine = HashEmbedder(7)
    assert pick_embedder(mine).embedder is mine


@pytest.mark.parametrize("bad", ["word2vec", "", 3, object()])
def test_an_unknown_embedder_is_refused_with_the_names(bad):
    with pytest.raises(UsageError, match=", ".join(BUILT_IN)):
        pick_embedder(bad)


@pytest.mark.parametrize("name", ["static", "wordllama", "hash"])
def test_the_local_embedder_of_an_identity(name):
    identity = pick_embedder(name).embedder.identity
    assert local_embedder(identity).identity == identity
    assert local_embedder(f"{identity} (256 numbers)").identity == identity, "as stores say it in their errors"
    assert local_embedder("hash:1:7").dimension == 7


@pytest.mark.parametrize(
    "identity",
    ["openai:text-embedding-3-small:1536", "wordllama:0.0.1:256", "static:0:256", "hash:9:64", "hash:", "mine:1:2", ""],
)
def test_an_embedder_that_is_not_local_or_not_here_is_refused(monkeypatch, identity):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    assert local_embedder(identity) is None
