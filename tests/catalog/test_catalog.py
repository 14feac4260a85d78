"""The catalogue: every row, every way to write an id, and a user's own file over it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loom.catalog import Catalog, find_model
from loom.errors import UsageError

SHIPPED = Catalog.load()
PROVIDERS = ("anthropic", "bedrock", "openai", "gemini", "deepseek", "xai", "vllm", "sglang")


@pytest.mark.parametrize("id", SHIPPED.models)
def test_every_row_loads_and_is_consistent(id: str) -> None:
    info = find_model(id)
    rules = info.cache
    assert info.known
    assert info.model == id
    assert info.context_window >= 32_768
    assert info.max_output is None or info.max_output < info.context_window
    assert (info.input_price is None) == (info.output_price is None)
    assert 0 < rules.read < 1
    assert info.as_of == SHIPPED.as_of
    assert info.sources


@pytest.mark.parametrize("id", SHIPPED.models)
def test_every_default_lifetime_is_one_the_provider_takes(id: str) -> None:
    rules = find_model(id).cache
    if rules.max_markers:
        assert rules.default_ttl in rules.ttls
        assert set(rules.write) == set(rules.ttls)
        assert min(rules.write.values()) >= 1.25
    else:
        assert rules.default_ttl is None
        assert not rules.ttls


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_has_a_safe_default(provider: str) -> None:
    info = find_model("something-nobody-listed", provider)
    assert info.provider == provider
    assert not info.known
    assert info.input_price is None


@pytest.mark.parametrize(
    ("id", "minimum", "read"),
    [
        ("claude-fable-5", 512, 0.1),
        ("claude-fable-5-1", 512, 0.025),
        ("claude-mythos-5-1", 512, 0.025),
        ("claude-mythos-preview", 2048, 0.1),
        ("claude-opus-5-5", 512, 0.05),
        ("claude-opus-5", 512, 0.1),
        ("claude-opus-4-8", 1024, 0.1),
        ("claude-opus-4-7", 2048, 0.1),
        ("claude-opus-4-6", 4096, 0.1),
        ("claude-opus-4-5", 4096, 0.1),
        ("claude-opus-4-1", 1024, 0.1),
        ("claude-opus-4", 1024, 0.1),
        ("claude-sonnet-5-5", 512, 0.05),
        ("claude-sonnet-5", 1024, 0.1),
        ("claude-sonnet-4-6", 1024, 0.1),
        ("claude-haiku-5-5", 4096, 0.1),
        ("claude-haiku-4-5", 4096, 0.1),
        ("claude-3-5-haiku", 2048, 0.1),
        ("gpt-6.1-sol", 1024, 0.05),
        ("gpt-6-sol", 1024, 0.1),
        ("gpt-4o", 1024, 0.5),
        ("gpt-4.1", 1024, 0.25),
        ("gemini-3.8-flash", 4096, 0.1),
        ("gemini-2.5-pro", 2048, 0.1),
    ],
)
def test_minimum_prefix_and_read_price(id: str, minimum: int, read: float) -> None:
    rules = find_model(id).cache
    assert (rules.min_prefix, rules.read) == (minimum, read)


def test_the_four_ways_of_matching() -> None:
    assert find_model("claude-sonnet-5").cache.matching == "lookback"
    assert find_model("gpt-5.6").cache.matching == "exact"
    assert find_model("gpt-5.5").cache.matching == "grid"
    assert find_model("gpt-5.5").cache.grid == 2048
    assert find_model("deepseek-v4-pro").cache.matching == "units"
    assert find_model("any", "vllm").cache.grid == 16
    assert find_model("any", "sglang").cache.grid == 1


def test_anthropic_flags() -> None:
    system = {id for id in SHIPPED.models if id.startswith("claude") and find_model(id).system_messages}
    assert system == {
        "claude-fable-5",
        "claude-fable-5-1",
        "claude-mythos-5",
        "claude-mythos-5-1",
        "claude-opus-4-8",
        "claude-opus-5",
        "claude-opus-5-5",
        "claude-sonnet-5-5",
    }
    binding = {id for id in SHIPPED.models if find_model(id).binds_thinking}
    assert binding == {"claude-fable-5-1", "claude-mythos-5-1", "claude-opus-5-5", "claude-sonnet-5-5"}
    assert find_model("claude-sonnet-4-5").prefill
    assert not find_model("claude-sonnet-4-6").prefill


@pytest.mark.parametrize(
    ("written", "provider", "like"),
    [
        ("claude-sonnet-4-5-20250929", "anthropic", "claude-sonnet-4-5"),
        ("anthropic:claude-sonnet-5", "anthropic", "claude-sonnet-5"),
        ("Anthropic:Claude-Sonnet-5", "anthropic", "claude-sonnet-5"),
        ("anthropic/claude-opus-4.8", "anthropic", "claude-opus-4-8"),
        ("openrouter/anthropic/claude-sonnet-4.5", "anthropic", "claude-sonnet-4-5"),
        ("claude-opus-4-1@20250805", "anthropic", "claude-opus-4-1"),
        ("claude-opus-4-0", "anthropic", "claude-opus-4"),
        ("models/gemini-2.5-flash-lite", "gemini", "gemini-2.5-flash-lite"),
        ("openai/gpt-6.1-sol-2026-09-29", "openai", "gpt-6.1-sol"),
        ("gpt-4o-2024-08-06", "openai", "gpt-4o"),
        ("x-ai/grok-4.6", "xai", "grok-4.6"),
        ("deepseek-v4-flash", "deepseek", "deepseek-flash"),
    ],
)
def test_ids_resolve_however_they_are_written(written: str, provider: str, like: str) -> None:
    info, listed = find_model(written), find_model(like)
    assert info.known
    assert info.provider == provider
    assert info.cache == listed.cache
    assert info.context_window == listed.context_window
    assert info.input_price == listed.input_price


@pytest.mark.parametrize("id", ["us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic.claude-sonnet-4-5"])
def test_bedrock_ids_are_bedrock_and_do_not_collapse_runs(id: str) -> None:
    info = find_model(id)
    assert info.provider == "bedrock"
    assert info.cache.min_prefix == 1024
    assert not info.cache.collapse_runs
    assert find_model(id, "anthropic").cache.collapse_runs


def test_a_variant_keeps_the_rules_but_not_the_price() -> None:
    info = find_model("gpt-5.6-mini-2026-09-01")
    assert info.known
    assert info.cache == find_model("gpt-5.6").cache
    assert info.input_price is None
    assert find_model("gpt-5.6-2026-09-01").input_price == 4.0


def test_the_longest_id_wins() -> None:
    assert find_model("gpt-5.4-mini-2026-03-01").context_window == 400_000
    assert find_model("gpt-5.4-2026-03-01").context_window == 1_050_000


def test_another_version_is_not_taken_for_the_one_listed() -> None:
    assert not find_model("claude-opus-5-9").known
    assert not find_model("gpt-5.7").known
    assert not find_model("claude-opus-50").known


@pytest.mark.parametrize(
    ("id", "matching"),
    [("gpt-5.7", "exact"), ("gpt-7", "exact"), ("gpt-6.2-luna", "exact"), ("gpt-4-turbo", "grid"), ("o9", "grid")],
)
def test_an_unknown_openai_model_takes_the_new_fields_only_from_its_version_on(id: str, matching: str) -> None:
    info = find_model(id, "openai")
    assert not info.known
    assert info.cache.matching == matching
    assert bool(info.cache.max_markers) == (matching == "exact")


def test_an_unknown_claude_gets_the_largest_minimum() -> None:
    info = find_model("claude-next")
    assert (info.provider, info.known) == ("anthropic", False)
    assert (info.cache.min_prefix, info.context_window) == (4096, 200_000)
    assert info.binds_thinking


def test_an_unknown_provider_is_a_plain_compatible_server() -> None:
    info = find_model("claude-sonnet-5", "acme")
    assert (info.provider, info.known) == ("acme", False)
    assert (info.cache.matching, info.cache.grid, info.cache.max_markers) == ("grid", 16, 0)


@pytest.mark.parametrize(
    ("id", "provider"),
    [
        ("grok-9", "xai"),
        ("gemini-9-pro", "gemini"),
        ("deepseek-v9", "deepseek"),
        ("o4-large", "openai"),
        ("llama3:8b", "generic"),
        ("gpt-oss-120b", "generic"),
    ],
)
def test_the_provider_is_inferred_from_the_name(id: str, provider: str) -> None:
    assert find_model(id).provider == provider


def test_open_weights_keep_their_vocabulary_on_a_local_server() -> None:
    info = find_model("openai/gpt-oss-20b", "vllm")
    assert (info.provider, info.tokenizer, info.cache.grid) == ("vllm", "o200k", 16)


def test_a_users_file_is_laid_over_the_shipped_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        """
        as_of = "2027-01-01"
        [models."gpt-6-sol"]
        input_price = 1.5
        cache = { read = 0.2 }
        [models."house-model"]
        provider = "vllm"
        context_window = 64_000
        """
    )
    catalog = Catalog.load(file)
    sol = find_model("gpt-6-sol", catalog=catalog)
    assert (sol.input_price, sol.output_price, sol.cache.read, sol.cache.max_markers) == (1.5, 10.0, 0.2, 4)
    assert sol.as_of == "2027-01-01"
    house = find_model("house-model-2026", catalog=catalog)
    assert (house.provider, house.known, house.context_window, house.cache.grid) == ("vllm", True, 64_000, 16)
    assert find_model("gpt-6-sol").input_price == 2.0


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[models."gpt-6-sol"]\ninput_prize = 1', "models.gpt-6-sol.input_prize"),
        ('[models."gpt-6-sol"]\ninput_price = "cheap"', "models.gpt-6-sol.input_price"),
        ('[models."gpt-6-sol"]\ncontext_window = -1', "models.gpt-6-sol.context_window"),
        ('[models."gpt-6-sol"]\nprefill = 1', "models.gpt-6-sol.prefill"),
        ('[models."gpt-6-sol"]\ncache = { grid = true }', "models.gpt-6-sol.cache.grid"),
        ('[models."gpt-6-sol"]\nrules = "none"', "models.gpt-6-sol.rules"),
        ('[models."gpt-6-sol"]\nprovider = "none"', "models.gpt-6-sol.provider"),
        ("[models.new]\ncontext_window = 1000", "models.new"),
        ('[cache.anthropic]\nmatching = "magic"', "cache.anthropic.matching"),
        ('[cache.anthropic]\ndefault_ttl = "3h"', "cache.anthropic.default_ttl"),
        ('[cache.anthropic]\nttls = { "5m" = 300, "1d" = 86400 }', "cache.anthropic.write"),
        ('[cache.new]\nread = 0.1\n[models.x]\nprovider = "openai"\nrules = "new"', "cache.new.matching"),
        ('[providers.new]\nrules = "generic"', "providers.new"),
        ('[providers.openai]\nlike = "none"', "providers.openai.like"),
        ('[providers.openai.since]\nversion = "next"', "providers.openai.since.version"),
        ("[providers]\nopenai = 1", "providers.openai"),
        ("colour = 1", "colour"),
        ("as_of = 1", "as_of"),
    ],
)
def test_a_broken_file_is_refused_by_file_and_key(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        Catalog.load(file)
    assert str(file) in str(caught.value)
    assert key in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.toml cannot be read"):
        Catalog.load(tmp_path / "missing.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("not toml at all")
    with pytest.raises(UsageError, match=r"bad\.toml is not TOML"):
        Catalog.load(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"bad\.toml is not UTF-8"):
        Catalog.load(bad)


def test_loom_models_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[models."gpt-6-sol"]\ninput_price = 9.0\n')
    monkeypatch.setenv("LOOM_MODELS", str(file))
    assert find_model("gpt-6-sol").input_price == 9.0
    monkeypatch.delenv("LOOM_MODELS")
    assert find_model("gpt-6-sol").input_price == 2.0


def test_loom_models_is_not_read_on_import() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "import loom.catalog, sys; print('tomllib' in sys.modules)"],
        env={"LOOM_MODELS": "/nowhere.toml"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "False"
