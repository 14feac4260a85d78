"""The names of spans, attributes and metrics: the page that lists them, the registry, and older conventions."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from opentelemetry.semconv import schemas
from opentelemetry.semconv._incubating import attributes as registry
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

import loom
from loom import UsageError, configure_telemetry
from loom.telemetry.conventions import CURRENT, INSTRUMENTS, KNOWN, PROVIDERS
from tests.telemetry.conftest import Recorded
from tests.telemetry.scenes import SECRET, everything

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[2] / "docs/reference/telemetry.md"
NEWER = {
    "gen_ai.client.inference.duration",
    "gen_ai.client.inference.usage.cache_read.input_tokens",
    "gen_ai.client.inference.usage.cache_write.input_tokens",
    "gen_ai.client.inference.usage.input_tokens",
    "gen_ai.client.inference.usage.output_tokens",
    "gen_ai.conversation.compacted",
    "gen_ai.execute_tool.duration",
    "gen_ai.invoke_agent.duration",
    "gen_ai.memory.query.text",
    "gen_ai.memory.record.count",
    "gen_ai.memory.record.id",
    "gen_ai.memory.records",
    "gen_ai.memory.store.id",
    "gen_ai.token.modality",
    "gen_ai.usage.cache_write.input_tokens",
}
"""Names that the conventions got after they left the package that is installed."""


def registered() -> set[str]:
    """All attributes and GenAI metrics of the installed conventions."""
    modules = [import_module(f"{registry.__name__}.{found.name}") for found in iter_modules(registry.__path__)]
    return {value for module in (*modules, gen_ai_metrics) for value in vars(module).values() if isinstance(value, str)}


def table(title: str) -> set[str]:
    """The first cells of a table of the page."""
    _, _, part = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")
    return set(re.findall(r"^\| `([^`]+)` \|", part.partition("\n## ")[0], re.MULTILINE))


def section(name: str) -> str:
    return re.sub(r"^loom\.section\.\w+\.tokens$", "loom.section.<section>.tokens", name)


async def test_the_page_lists_what_is_emitted(recorded: Recorded) -> None:
    configure_telemetry(content=True)
    await everything()
    spans, points = recorded.spans(), recorded.points()
    shapes = {
        re.sub(r"^(invoke_agent|chat|execute_tool) (\S+)$", lambda m: f"{m[1]} <{_KINDS[m[1]]}>", s.name) for s in spans
    }
    assert shapes - {"invoke_agent"} == table("Spans")
    assert {section(name) for span in spans for name in span.attributes or {}} == table("Attributes")
    assert {point.name for point in points} == table("Metrics")
    page = PAGE.read_text(encoding="utf-8")
    for point in points:
        kind, unit, _, _ = INSTRUMENTS[point.name]
        assert unit == point.unit
        assert f"| `{point.name}` | {kind} | `{unit}` |" in page
    own = {name for point in points for name in point.attributes if name.startswith("loom.")}
    assert all(f"`{name}`" in page for name in own)


_KINDS = {"invoke_agent": "agent", "chat": "model", "execute_tool": "tool"}


@pytest.mark.parametrize("version", KNOWN)
async def test_every_name_is_of_the_registry_or_newer_than_it(recorded: Recorded, version: str) -> None:
    configure_telemetry(conventions=version, content=True)
    await everything()
    points = recorded.points()
    emitted = {name for span in recorded.spans() for name in span.attributes or {}}
    emitted |= {name for point in points for name in (point.name, *point.attributes)}
    foreign = {name for name in emitted if not name.startswith("loom.")} - registered()
    assert foreign == (NEWER if version == CURRENT.version else set())


def test_what_is_newer_is_not_in_the_registry_yet() -> None:
    assert not NEWER & registered(), "the installed conventions have caught up: take these out of NEWER"


def test_the_older_schema_is_a_published_one() -> None:
    assert KNOWN["1.41"].schema_url in {one.value for one in schemas.Schemas}


def test_providers_are_called_as_in_the_registry() -> None:
    names = import_module(f"{registry.__name__}.gen_ai_attributes").GenAiProviderNameValues
    known = {one.value for one in names} | {"moonshot_ai"}
    assert set(PROVIDERS.values()) <= known
    assert {"anthropic", "openai", "deepseek", "groq"} <= known - set(PROVIDERS)
    assert [PROVIDERS[name] for name in ("gemini", "bedrock", "xai")] == ["gcp.gemini", "aws.bedrock", "x_ai"]


async def test_version_and_schema_are_on_every_span(recorded: Recorded) -> None:
    await everything()
    scopes = {
        (s.instrumentation_scope.name, s.instrumentation_scope.version, s.instrumentation_scope.schema_url)
        for s in recorded.spans()
        if s.instrumentation_scope
    }
    assert scopes == {("loom", loom.__version__, CURRENT.schema_url)}


async def test_an_older_version_can_be_chosen(recorded: Recorded) -> None:
    configure_telemetry(conventions="1.41")
    await everything()
    spans, points = recorded.spans(), recorded.points()
    assert not [span for span in spans if span.name.endswith("_memory")]
    names = {name for span in spans for name in span.attributes or {}}
    assert "gen_ai.usage.cache_creation.input_tokens" in names
    assert "gen_ai.usage.cache_write.input_tokens" not in names
    assert {p.attributes["gen_ai.token.type"] for p in points if p.name == "gen_ai.client.token.usage"} == {
        "input",
        "output",
    }
    assert {span.instrumentation_scope.schema_url for span in spans if span.instrumentation_scope} == {
        KNOWN["1.41"].schema_url
    }
    with pytest.raises(UsageError, match=r"2026-11, 1\.41"):
        configure_telemetry(conventions="1.0")


async def test_texts_are_recorded_only_if_asked_for(recorded: Recorded) -> None:
    await everything()
    assert SECRET not in " ".join(span.to_json() for span in recorded.spans())
    assert SECRET not in repr(recorded.points())
    configure_telemetry(content=True)
    await everything()
    assert SECRET in " ".join(span.to_json() for span in recorded.spans("search_memory"))
