"""How URLs may be written: capitals in the scheme, `~` for the home folder, and hints for mistyped ones."""

from __future__ import annotations

import os

_LOCAL = ("sqlite", "files", "chroma", "qdrant")
"""Schemes with a path behind them."""
_BEFORE_PATH = ("//", "edge:")
_FILE_ENDS = (".db", ".sqlite", ".sqlite3")


def written_out(where: str) -> str:
    """A URL in its plain form: with a small scheme, and the home folder in place of `~`."""
    scheme, colon, rest = where.partition(":")
    scheme = scheme.lower() if colon else scheme
    if scheme in _LOCAL:
        start = next((start for start in _BEFORE_PATH if rest.startswith(start)), "")
        # Path.expanduser() raises where a user is not known, and drops a leading `./`.
        rest = start + os.path.expanduser(rest.removeprefix(start))  # noqa: PTH111
    return scheme + colon + rest


def meant_by(where: str) -> str:
    """A hint for the end of an error: the URL of a path that was given alone; empty where it is not a path."""
    is_rooted = where.startswith(("~", ".", "/"))
    if ":" in where or not (is_rooted or "/" in where or where.endswith(_FILE_ENDS)):
        return ""  # a password may follow a colon
    return f"; for a file write sqlite:{where if is_rooted else './' + where}"
