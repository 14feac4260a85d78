"""A model provider on this machine: a real HTTP server that speaks a provider's wire format and follows a script."""

from loom.testing.wire.script import Fault, Refused, Said, Wire
from loom.testing.wire.server import WireServer, serve

__all__ = ["Fault", "Refused", "Said", "Wire", "WireServer", "serve"]
