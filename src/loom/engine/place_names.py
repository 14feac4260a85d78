"""How places may be written: capitals in the scheme, `~` for the home folder, and what a slip was meant to be."""

from __future__ import annotations

import os

_LOCAL = ("sqlite", "files", "chroma", "qdrant")
"""What stands behind these schemes is a path."""
_BEFORE_PATH = ("//", "edge:")
_FILE_ENDS = (".db", ".sqlite", ".sqlite3")


def written_out(where: str) -> str:
    """A place as the rest of Loom reads it: with a small scheme, and the home folder in place of `~`."""
    scheme, colon, rest = where.partition(":")
    scheme = scheme.lower() if colon else scheme
    if scheme in _LOCAL:
        start = next((start for start in _BEFORE_PATH if rest.startswith(start)), "")
        # Path.expanduser() raises where a user is not known, and drops a leading `./`.
        rest = start + os.path.expanduser(rest.removeprefix(start))  # noqa: PTH111
    return scheme + colon + rest


def meant_by(where: str) -> str:
    """What to write in place of a path that stands alone, to be put behind an error; empty where it is none."""
    is_rooted = where.startswith(("~", ".", "/"))
    if ":" in where or not (is_rooted or "/" in where or where.endswith(_FILE_ENDS)):
        return ""  # what stands behind a colon may hold a password
    return f"; for a file write sqlite:{where if is_rooted else './' + where}"
