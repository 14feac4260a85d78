"""Models are imported from their homes here; the engine gives them their renderer, as `from loom import` does."""

import loom.engine.models  # noqa: F401
