"""Models are imported from their homes here; the engine gives them their renderer, as `from loom import` does."""

from importlib import import_module

import_module("loom.engine.open")
