"""Looking into a SQLite file beside Loom."""

import apsw

TO_FORMAT_3 = (
    "ALTER TABLE users DROP COLUMN indexed; ALTER TABLE users DROP COLUMN relinked; "
    "ALTER TABLE users DROP COLUMN revision; "
    "ALTER TABLE records DROP COLUMN before; DROP TABLE links; DROP TABLE sketches; PRAGMA user_version=3"
)
"""Makes a file of format 3 of one whose records are all indexed, and whose turns have texts as keys."""


def execute(path, sql):
    db = apsw.Connection(str(path))
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()
