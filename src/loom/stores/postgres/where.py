"""Filters as conditions of Postgres."""

from __future__ import annotations

from loom.stores.sql_where import Dialect

POSTGRES = Dialect(true="true", false="false", mark="%s", most_values=10_000)
"""Postgres takes 65,535 values in a statement."""

condition = POSTGRES.condition
