"""The SDK of OpenTelemetry, with exporters that keep what they get."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loom import configure_telemetry

_DELTA = AggregationTemporality.DELTA
_READER = InMemoryMetricReader(preferred_temporality={Counter: _DELTA, Histogram: _DELTA})


@dataclass(frozen=True)
class Point:
    """One point of a metric: its attributes, and its sum or count."""

    name: str
    unit: str
    attributes: dict[str, Any]
    value: float


@dataclass(frozen=True)
class Recorded:
    """What was exported since the test began."""

    exporter: InMemorySpanExporter

    def spans(self, start: str = "") -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(start)]

    def points(self) -> list[Point]:
        data = _READER.get_metrics_data()
        return [
            Point(metric.name, metric.unit or "", dict(point.attributes or {}), _value(point))
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            if scope.scope.name == "loom"
            for metric in scope.metrics
            for point in metric.data.data_points
        ]


def _value(point: Any) -> float:
    return float(point.sum if hasattr(point, "sum") else point.value)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())  # once in a process
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        metrics.set_meter_provider(MeterProvider([_READER]))
    exporter = InMemorySpanExporter()
    provider: Any = trace.get_tracer_provider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    _READER.get_metrics_data()
    yield Recorded(exporter)
    exporter.shutdown()
    configure_telemetry()
