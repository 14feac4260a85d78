import json

import anyio
import pytest

from loom.errors import BadResponse, ProviderError, ProviderUnavailable, RateLimited, UsageError
from loom.providers.embedding.openai import OpenAIEmbedder, OpenAIEmbeddingProvider
from loom.testing.conformance import EmbedderSuite
from loom.testing.fakes import FakeClock
from tests.providers.embeddings_server import Answer, embeddings_service, vector_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def service():
    with embeddings_service() as running:
        yield running


@pytest.fixture
async def embedder(service):
    made = OpenAIEmbeddingProvider(
        "test-model", api_key="k1", base_url=service.url, dimension=4, max_retries=0, clock=FakeClock()
    )
    yield made
    await made.aclose()


class TestLaws(EmbedderSuite):
    @pytest.fixture
    async def embedder(self, service):
        made = OpenAIEmbedder("m", base_url=service.url, dimension=4, max_retries=0)
        yield made
        await made.aclose()


def _error(message, code=None):
    return json.dumps({"error": {"message": message, "type": "error", "param": None, "code": code}}).encode()


async def test_vectors_come_back_in_the_order_of_the_texts(service, embedder):
    vectors = await embedder.embed(["a", "bbb", "cc"], purpose="document")
    assert [list(vector) for vector in vectors] == [vector_of(text, 4) for text in ("a", "bbb", "cc")]
    (asked,) = service.requests
    assert (asked["path"], asked["model"], asked["input"]) == ("/v1/embeddings", "test-model", ["a", "bbb", "cc"])
    assert asked["key"] == "Bearer k1"


async def test_no_texts_no_request(service, embedder):
    assert list(await embedder.embed([], purpose="query")) == []
    assert service.requests == []


async def test_texts_go_in_batches_and_long_ones_are_cut(service):
    made = OpenAIEmbedder("m", base_url=service.url, dimension=4, batch_size=2, max_retries=0)
    vectors = await made.embed(["a", "é" * 10_000, "c"], purpose="document")
    await made.aclose()
    assert [len(asked["input"]) for asked in service.requests] == [2, 1]
    assert service.requests[0]["input"][1] == "é" * 4095
    assert list(vectors[1]) == vector_of("é" * 4095, 4)


async def test_a_request_stays_under_the_size_the_service_takes(service, embedder):
    await embedder.embed(["x" * 8_000] * 100, purpose="document")
    assert [sum(map(len, asked["input"])) for asked in service.requests] == [288_000, 288_000, 224_000]


async def test_waiting_time_of_a_rate_limit_is_passed_on(service, embedder):
    for headers, seconds in [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}, 30.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ]:
        service.answers.append(Answer(429, headers, _error("slow down")))
        with pytest.raises(RateLimited) as caught:
            await embedder.embed(["a"], purpose="query")
        assert caught.value.retry_after == seconds
        assert caught.value.retryable


async def test_an_empty_account_is_not_worth_a_retry(service, embedder):
    service.answers.append(Answer(429, {}, _error("no money", "insufficient_quota")))
    with pytest.raises(ProviderError, match="no quota left") as caught:
        await embedder.embed(["a"], purpose="query")
    assert not caught.value.retryable


@pytest.mark.parametrize("status", [500, 503, 408])
async def test_a_service_in_trouble_is_unavailable(service, embedder, status):
    service.answers.append(Answer(status, {}, _error("oops")))
    with pytest.raises(ProviderUnavailable, match=str(status)):
        await embedder.embed(["a"], purpose="query")


@pytest.mark.parametrize(("status", "message"), [(400, "bad input"), (401, "wrong key"), (404, "no such model")])
async def test_a_refusal_says_what_the_service_said(service, embedder, status, message):
    service.answers.append(Answer(status, {}, _error(message)))
    with pytest.raises(ProviderError, match=message) as caught:
        await embedder.embed(["a"], purpose="query")
    assert not caught.value.retryable


def _rows(*vectors):
    rows = [{"object": "embedding", "index": place, "embedding": vector} for place, vector in enumerate(vectors)]
    return json.dumps({"object": "list", "data": rows, "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}})


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ("{not json", {}),
        ("<html>hello</html>", {"content-type": "text/html"}),
        ("[]", {}),
        ("{}", {}),
        (_rows(), {}),
        (_rows([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]), {}),
        (_rows([1.0, 2.0]), {}),
        (_rows([0.0, 0.0, 0.0, 0.0]), {}),
        (_rows([1.0, float("nan"), 0.0, 0.0]), {}),
        (_rows(["a", "b", "c", "d"]), {}),
        (_rows(None), {}),
    ],
)
async def test_what_is_not_an_answer_is_a_bad_response(service, embedder, body, headers):
    service.answers.append(Answer(200, headers, body.encode()))
    with pytest.raises(BadResponse):
        await embedder.embed(["a"], purpose="query")


async def test_nobody_listening_is_unavailable():
    with embeddings_service() as gone:
        url = gone.url
    embedder = OpenAIEmbedder("m", base_url=url, dimension=4, max_retries=0)
    with pytest.raises(ProviderUnavailable, match="cannot be reached"):
        await embedder.embed(["a"], purpose="query")
    await embedder.aclose()


async def test_retries_are_the_sdks_when_asked_for(service):
    service.answers.append(Answer(500, {"retry-after-ms": "1"}, _error("once")))
    embedder = OpenAIEmbedder("m", base_url=service.url, dimension=4, max_retries=1)
    assert len(await embedder.embed(["a"], purpose="query")) == 1
    await embedder.aclose()
    assert len(service.requests) == 2


async def test_shorter_vectors_are_asked_for_by_name(service):
    embedder = OpenAIEmbedder("text-embedding-3-small", base_url=service.url, dimension=8, max_retries=0)
    (vector,) = await embedder.embed(["a"], purpose="query")
    await embedder.aclose()
    assert (len(vector), service.requests[0]["dimensions"]) == (8, 8)
    assert embedder.identity == "openai:text-embedding-3-small:8"


async def test_the_users_key_does_not_go_to_another_service(service, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-private")  # the environment is what is tested
    embedder = OpenAIEmbedder("m", base_url=service.url, dimension=4, max_retries=0)
    await embedder.embed(["a"], purpose="query")
    await embedder.aclose()
    assert service.requests[0]["key"] == "Bearer none"


async def test_without_a_key_it_says_what_to_set(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UsageError, match="set OPENAI_API_KEY"):
        await OpenAIEmbedder().embed(["a"], purpose="query")


def test_one_embedder_serves_several_event_loops(service):
    embedder = OpenAIEmbedder("m", base_url=service.url, dimension=4, max_retries=0)
    for _ in range(2):
        vectors = anyio.run(lambda: embedder.embed(["ab"], purpose="query"))
        assert list(vectors[0]) == vector_of("ab", 4)
    anyio.run(embedder.aclose)
    anyio.run(embedder.aclose)


def test_two_names_are_one_class_and_the_models_are_known():
    assert OpenAIEmbedder is OpenAIEmbeddingProvider
    made = OpenAIEmbeddingProvider(api_key="your-api-key", model="text-embedding-3-small")
    assert (made.identity, made.dimension) == ("openai:text-embedding-3-small:1536", 1536)
    assert OpenAIEmbedder("text-embedding-3-large").dimension == 3072
    assert "your-api-key" not in repr(made)


@pytest.mark.parametrize("bad", [{"model": "mine"}, {"dimension": 0}, {"batch_size": 0}, {"batch_size": 2049}], ids=str)
def test_settings_that_cannot_work_are_refused(bad):
    with pytest.raises(UsageError):
        OpenAIEmbedder(**bad)
