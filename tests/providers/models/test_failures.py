"""What a provider's failure means, from its status, its code and its words."""

import pytest

from loom.errors import ContextOverflow, ProviderError, ProviderUnavailable, RateLimited
from loom.providers._failures import Failure, as_error, unreachable

OVERFLOWS = [
    (400, {"error": {"type": "invalid_request_error", "message": "prompt is too long: 208310 tokens > 200000 maximum"}}, 200000, 208310),
    (400, "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length", 200000, 178959),
    (413, {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}, None, None),
    (400, {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}, None, None),
    (400, "This model's maximum context length is 128000 tokens. However, your messages resulted in 204308 tokens.", 128000, 204308),
    (400, "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the messages, 10000 in the completion).", 16384, 122946),
    (400, "This model's maximum context length is 512 tokens and your request has 500 input tokens", 512, 500),
    (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 4096, 5000),
    (400, "The input (5000 tokens) is longer than the model's context length (4096 tokens).", 4096, 5000),
    (400, "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5000 tokens", 4096, 5000),
    (500, {"error": {"type": "exceed_context_size_error", "message": "the request exceeds the available context size", "n_prompt_tokens": 1407, "n_ctx": 256}}, 256, 1407),
    (400, "request (1407 tokens) exceeds the available context size (256 tokens), try increasing it", 256, 1407),
    (400, "Requested tokens (2285) exceed context window of 2048", 2048, 2285),
    (400, "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens", 4096, 5000),
    (400, "This model's maximum prompt length is 131072 but the request contains 148000 tokens.", 131072, 148000),
    (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1048576, 1200000),
    (429, {"type": "tokens", "code": "rate_limit_exceeded", "message": "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000."}, 30000, 40000),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "limit", "size"), OVERFLOWS)
def test_a_prompt_that_is_too_long(status, body, limit, size):
    error = as_error("p:m", Failure.read(body, status=status))
    assert isinstance(error, ContextOverflow)
    assert (error.limit, error.size) == (limit, size)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, None, ProviderError),
        (400, "", ProviderError),
        (400, {}, ProviderError),
        (400, {"error": "no"}, ProviderError),
        (400, {"error": {"message": "max_tokens: must be at most 8192"}}, ProviderError),
        (404, {"error": {"message": "model not found"}}, ProviderError),
        (404, "prompt is too long", ProviderError),
        (408, None, ProviderUnavailable),
        (429, None, RateLimited),
        (None, {"type": "rate_limit_error", "message": "wait"}, RateLimited),
        (429, {"code": "insufficient_quota", "message": "You exceeded your current quota"}, ProviderError),
        (500, "prompts are long", ProviderUnavailable),
        (502, b"<html>", ProviderUnavailable),
        (529, {"error": {"type": "overloaded_error"}}, ProviderUnavailable),
        (200, {"type": "error", "error": {"type": "overloaded_error"}}, ProviderUnavailable),
        (200, {"type": "error", "error": {"type": "invalid_request_error"}}, ProviderError),
        (402, {"error": {"type": "billing_error", "message": "pay"}}, ProviderError),
        (None, {"error": {"code": 502, "message": "upstream"}}, ProviderUnavailable),
        (None, {"error": {"code": "429", "message": "wait"}}, RateLimited),
        (None, {"error": {"code": 7, "message": "no"}}, ProviderError),
    ],
)
def test_other_failures(status, body, kind):
    assert type(as_error("p:m", Failure.read(body, status=status))) is kind


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_not_accepted_is_named(status):
    assert "P_API_KEY" in str(as_error("p:m", Failure.read(None, status=status), key="P_API_KEY"))


def test_how_long_to_wait_is_told():
    error = as_error("p:m", Failure.read(None, status=429, retry_after=2.5))
    assert error.retry_after == 2.5
    assert "2.5 seconds" in str(error)


@pytest.mark.parametrize("status", [503, 529])
def test_how_long_a_provider_is_away_is_told(status):
    error = as_error("p:m", Failure.read(None, status=status, retry_after=20.0))
    assert isinstance(error, ProviderUnavailable)
    assert error.retry_after == 20.0


def test_a_server_of_ones_own_that_does_not_answer_is_named_by_its_address():
    error = unreachable("compatible:qwen3", OSError("refused"), "http://ann:hunter2@127.0.0.1:11434/v1?key=hunter2")
    assert "compatible:qwen3 at http://127.0.0.1:11434/v1 failed" in str(error)
    assert str(error).endswith("is the server running?")
    assert "hunter2" not in str(error)
    assert str(unreachable("openai:gpt-5.1", OSError("refused"))).endswith("check the network")
