"""Data about models: windows, prices, and the rules of their prompt caches."""

from loom.catalog.catalog import Catalog, find_model
from loom.catalog.model import CacheRules, ModelInfo

__all__ = ["CacheRules", "Catalog", "ModelInfo", "find_model"]
