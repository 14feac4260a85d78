"""Telemetry: the bill of model calls, and OpenTelemetry spans and metrics under the GenAI conventions."""

from loom.telemetry.recording import (
    Bill,
    ChatSpan,
    Ledger,
    MeteredModel,
    SessionSpans,
    configure_telemetry,
    info_of,
    metered,
    model_span,
    traced,
)

__all__ = [
    "Bill",
    "ChatSpan",
    "Ledger",
    "MeteredModel",
    "SessionSpans",
    "configure_telemetry",
    "info_of",
    "metered",
    "model_span",
    "traced",
]
