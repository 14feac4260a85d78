"""Telemetry: the bill of model calls, and OpenTelemetry spans and metrics under the GenAI conventions."""

from loom.telemetry.bill import Bill, Ledger, MeteredModel, info_of, metered
from loom.telemetry.otel import ChatSpan, SessionSpans, configure_telemetry, model_span, traced

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
