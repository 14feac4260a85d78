"""Erasing a user at a URL: the memory there and the sessions beside it, with one receipt."""

from __future__ import annotations

from loom.core.record import Erasure, Receipt, StoreReceipt
from loom.core.scope import Scope
from loom.engine.checkpoints import open_checkpoints
from loom.engine.open import open_memory
from loom.engine.places import check_is_there, sessions_place


async def erase_user(url: str, user_id: str, *, namespace: str = "default", sessions: str | None = None) -> Erasure:
    """Remove everything of a user at a URL: what is remembered, and the sessions that are saved with it.

    `sessions` is where conversations are, if not beside the memory.
    """
    check_is_there(url)
    beside = sessions or sessions_place(url)
    receipts: list[StoreReceipt] = []
    if beside is not None:
        checkpoints = open_checkpoints(beside)
        try:
            receipts.append(_named("sessions", await checkpoints.forget(Scope(namespace, user_id))))
        finally:
            await checkpoints.aclose()
    async with open_memory(url, namespace=namespace) as memory:
        receipts.insert(0, _named("memory", await memory.forget(user_id=user_id)))
    return Erasure(user_id=user_id, stores=tuple(receipts))


def _named(store: str, receipt: Receipt) -> StoreReceipt:
    return StoreReceipt(store=store, removed=receipt.removed, pending=receipt.pending)
