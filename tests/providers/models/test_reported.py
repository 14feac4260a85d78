"""What a provider says of its cache: a count that it did not name is not there, and not 0."""

import pytest

from loom.providers.models._answer import anthropic_cache, openai_cache


@pytest.mark.parametrize(("given", "due"), [
    ({"input_tokens": 5}, {}),
    ({"cache_read_input_tokens": 0, "cache_creation_input_tokens": None}, {"read": 0}),
    (
        {"cache_read_input_tokens": 7, "cache_creation_input_tokens": 9,
         "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 5}},
        {"read": 7, "write": 9, "5m": 4, "1h": 5},
    ),
])  # fmt: skip
def test_anthropic(given, due):
    assert anthropic_cache(given) == due


@pytest.mark.parametrize(("given", "due"), [
    ({"prompt_tokens": 5}, {}),
    ({"prompt_tokens": 5, "prompt_tokens_details": None}, {}),
    ({"prompt_tokens_details": {"cached_tokens": 0}}, {"read": 0}),
    ({"input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 2}}, {"read": 3, "write": 2}),
    ({"prompt_cache_hit_tokens": 4}, {"read": 4}),
])  # fmt: skip
def test_openai(given, due):
    assert openai_cache(given) == due
