"""Emptying Loom's tables between tests."""

from loom.stores.postgres.schema import TABLES

USED = """
SELECT relname FROM pg_class
WHERE relnamespace = to_regnamespace('loom') AND relkind = 'r' AND (relispartition OR relname = ANY(%s))
AND pg_relation_size(oid) > 0
"""


def empty_tables(db):
    """Remove every row of everybody, where there may be one: TRUNCATE gives each table and index a new file."""
    if used := db.execute(USED, [["embedder", *TABLES]]).fetchall():
        db.execute(f"TRUNCATE {', '.join(f'loom.{name}' for (name,) in used)}")
