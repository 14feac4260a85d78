"""Looking into a SQLite file beside Loom."""

import apsw


def execute(path, sql):
    db = apsw.Connection(str(path))
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()
