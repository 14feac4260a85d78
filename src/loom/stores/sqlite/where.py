"""Filters as conditions of SQLite."""

from __future__ import annotations

from loom.stores.sql_where import Dialect

SQLITE = Dialect(true="1", false="0", mark="?", longest_sql=6_000, largest_integer=2**63 - 1)
"""SQLite refuses expressions that are too deep."""

condition = SQLITE.condition
