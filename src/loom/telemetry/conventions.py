"""The names of OpenTelemetry's GenAI conventions that Loom uses, and the version they are of.

The conventions are in development, in a repository of their own (semantic-conventions-genai), and have no release yet;
names change. What changed between the versions that Loom knows is all in this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from loom.errors import UsageError

Instrument: TypeAlias = Literal["counter", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """One version of the conventions, as far as versions differ."""

    version: str
    schema_url: str
    cache_write: str
    """The attribute with the tokens that were written to a cache; part of the input tokens, as those read are."""
    chat_duration: str
    """The metric of how long a model took."""
    has_cache_counters: bool
    """Tokens are counters, each cache state apart; before that, they were one histogram of input and output."""
    has_memory: bool
    """Operations of a memory, compacted conversations, and the durations of agents and tools are part of it."""


CURRENT: Final = Conventions(
    version="2026-11",
    schema_url="https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev",
    cache_write="gen_ai.usage.cache_write.input_tokens",
    chat_duration="gen_ai.client.inference.duration",
    has_cache_counters=True,
    has_memory=True,
)
"""semantic-conventions-genai as it is in November 2026."""

KNOWN: Final = {
    CURRENT.version: CURRENT,
    "1.41": Conventions(
        version="1.41",
        schema_url="https://opentelemetry.io/schemas/1.41.0",
        cache_write="gen_ai.usage.cache_creation.input_tokens",
        chat_duration="gen_ai.client.operation.duration",
        has_cache_counters=False,
        has_memory=False,
    ),
}
"""The versions to choose from; 1.41 is one of the last in which GenAI was part of the common conventions."""


def conventions_of(version: str) -> Conventions:
    """The conventions of a version."""
    if version not in KNOWN:
        raise UsageError(f"conventions={version!r} are not known; use one of {', '.join(KNOWN)}")
    return KNOWN[version]


# Provider names, where the registry has another one than Loom.

PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "google": "gcp.gemini",
    "grok": "x_ai",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "vertex": "gcp.vertex_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}

"""Any other provider has the same name in both."""

# Attributes.

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
CONVERSATION: Final = "gen_ai.conversation.id"
COMPACTED: Final = "gen_ai.conversation.compacted"
AGENT: Final = "gen_ai.agent.name"
TOOL: Final = "gen_ai.tool.name"
TOOL_CALL: Final = "gen_ai.tool.call.id"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105
MODALITY: Final = "gen_ai.token.modality"
STORE: Final = "gen_ai.memory.store.id"
RECORD: Final = "gen_ai.memory.record.id"
RECORD_COUNT: Final = "gen_ai.memory.record.count"
QUERY_TEXT: Final = "gen_ai.memory.query.text"
RECORDS: Final = "gen_ai.memory.records"
ERROR: Final = "error.type"

OWN_FINISH: Final = "loom.finish_reason"
RUN: Final = "loom.run.id"
PURPOSE: Final = "loom.purpose"
BACKEND: Final = "loom.memory.backend"
SECTION_TOKENS: Final = "loom.section.{section}.tokens"
PREFIX_DIGEST: Final = "loom.cache.prefix_digest"
PREFIX_TOKENS: Final = "loom.cache.prefix_tokens"
PREDICTED_READ: Final = "loom.cache.predicted_read_tokens"
PREDICTED_WRITE: Final = "loom.cache.predicted_write_tokens"
BROKE_AT: Final = "loom.cache.broke_at"
COLLAPSE_CAUSE: Final = "loom.cache.cause"
STRATEGY: Final = "loom.compaction.strategy"
REASON: Final = "loom.compaction.reason"
TOKENS_BEFORE: Final = "loom.compaction.tokens_before"
TOKENS_AFTER: Final = "loom.compaction.tokens_after"
COVERED: Final = "loom.compaction.covered"

# Metrics: the instrument, unit, description and, of a histogram, the boundaries that the conventions advise.

TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105
USED_INPUT: Final = "gen_ai.client.inference.usage.input_tokens"
USED_OUTPUT: Final = "gen_ai.client.inference.usage.output_tokens"
USED_CACHE_READ: Final = "gen_ai.client.inference.usage.cache_read.input_tokens"
USED_CACHE_WRITE: Final = "gen_ai.client.inference.usage.cache_write.input_tokens"
OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
AGENT_DURATION: Final = "gen_ai.invoke_agent.duration"
TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
COMPACTIONS: Final = "loom.compactions"
COLLAPSES: Final = "loom.cache.collapses"

_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_LONG_SECONDS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_TOKENS: Final = tuple(4.0**power for power in range(14))

INSTRUMENTS: Final[dict[str, tuple[Instrument, str, str, tuple[float, ...]]]] = {
    TOKEN_USAGE: ("histogram", "{token}", "Number of input and output tokens used.", _TOKENS),
    USED_INPUT: ("counter", "{token}", "Input tokens, cached ones included.", ()),
    USED_OUTPUT: ("counter", "{token}", "Output tokens, reasoning included.", ()),
    USED_CACHE_READ: ("counter", "{token}", "Input tokens that were read from a cache.", ()),
    USED_CACHE_WRITE: ("counter", "{token}", "Input tokens that were written to a cache.", ()),
    CURRENT.chat_duration: ("histogram", "s", "How long a call of a model took.", _SECONDS),
    OPERATION_DURATION: ("histogram", "s", "How long an operation took.", _SECONDS),
    AGENT_DURATION: ("histogram", "s", "How long a turn took.", _LONG_SECONDS),
    TOOL_DURATION: ("histogram", "s", "How long a tool took.", _SECONDS),
    COMPACTIONS: ("counter", "{compaction}", "Compactions of conversations.", ()),
    COLLAPSES: ("counter", "{collapse}", "Requests that read less from the prompt cache than predicted.", ()),
}
