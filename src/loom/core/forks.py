"""Locks in forked processes: the thread that held one does not exist there, so it would never be released."""

from __future__ import annotations

import os
from threading import Lock
from typing import Any
from weakref import ref

_HOLDERS: dict[tuple[int, str], ref[Any]] = {}


def renew_lock_after_fork(holder: object, name: str) -> None:
    """Give `holder` a new lock as its attribute `name` in every process that is forked from this one.

    For locks that a child may need: those of a module, and those of objects that work on both sides of a fork.
    """
    key = (id(holder), name)
    _HOLDERS[key] = ref(holder, lambda _: _HOLDERS.pop(key, None))


def _renew() -> None:
    for (_, name), holder in list(_HOLDERS.items()):
        if (found := holder()) is not None:
            setattr(found, name, Lock())


if hasattr(os, "register_at_fork"):  # not where there is no fork
    os.register_at_fork(after_in_child=_renew)
