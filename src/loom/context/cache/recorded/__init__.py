"""Recorded requests of any program, read as prompts: four wire formats, the logs around them, and usage."""

from loom.context.cache.recorded.envelope import model_of, read_recorded
from loom.context.cache.recorded.request import read_request
from loom.context.cache.recorded.trace import Trace, read_record_file, read_trace, read_trace_file
from loom.context.cache.recorded.usage import read_usage

__all__ = [
    "Trace",
    "model_of",
    "read_record_file",
    "read_recorded",
    "read_request",
    "read_trace",
    "read_trace_file",
    "read_usage",
]
