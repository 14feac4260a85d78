"""Maintenance of stores: initialise, verify, sweep, find users with similar names, and erase a person."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable
from unicodedata import normalize
from urllib.parse import urlsplit, urlunsplit

from loom.admin.doctor import labels_of
from loom.core.record import Erasure, Receipt, StoreReceipt
from loom.core.scope import Scope
from loom.engine.open import open_checkpoints, open_memory
from loom.engine.urls import Opening, check_is_there, index_at, places_of, sessions_place, store_at
from loom.protocols.memory_store import HasParts, IndexDifference, ListsUsers, MemoryStore, Scrubs, Sweeps

NOTHING = "nothing to verify: it keeps no index beside its records that could differ from them"


@runtime_checkable
class Verifies(Protocol):
    """A store that can compare an index with what it indexes."""

    async def verify(self, *, repair: bool = False) -> IndexDifference:
        """The differences between index and store; with `repair` they are removed."""
        ...


@dataclass(frozen=True, slots=True)
class Verified:
    """The result for one part of a store; `difference` is None where there is nothing to compare."""

    part: str
    store: str
    difference: IndexDifference | None

    @property
    def is_right(self) -> bool:
        """Whether both are the same now."""
        found = self.difference
        return found is None or found.is_equal or (found.is_repaired and not found.problems)


async def verify_store(store: MemoryStore, *, repair: bool = False, part: str = "") -> tuple[Verified, ...]:
    """The report of every part of a store, lower parts first.

    So an index is compared with a primary store that was put right already.
    """
    found: list[Verified] = []
    for name, below in store.parts.items() if isinstance(store, HasParts) else ():
        found += await verify_store(below, repair=repair, part=f"{part}.{name}" if part else name)
    verifies = isinstance(store, Verifies)
    if verifies or not found:
        difference = await store.verify(repair=repair) if verifies else None
        found.append(Verified(part or "store", type(store).__name__, difference))
    return tuple(found)


# Users whose names are almost the one that was asked for.

SIMILAR: Final = 5
"""How many users similar_users() returns at most."""
_PAGE: Final = 1000
_LOOKED_AT: Final = 100_000
"""Users that are compared; a hint is not worth reading more."""
_SHORT: Final = 3
"""Names of fewer letters have nothing in common where one letter differs."""


class SimilarUser(NamedTuple):
    """A user whose name is almost another, and how many records they have."""

    user_id: str
    records: int


async def similar_users(store: MemoryStore, user: Scope) -> tuple[SimilarUser, ...]:
    """Users of the same namespace whose names differ from this one only in case, spaces or one letter.

    This is for operators, who may see the users of a store. Never show its result to one of the users. Names that
    differ in case and spaces come first.
    """
    if not isinstance(store, ListsUsers):
        return ()
    found = list[tuple[bool, str]]()
    wanted, looked, after = _folded(user.user_id), 0, Scope(user.namespace, "\1")
    while looked < _LOOKED_AT:
        page = await store.users(after=after, limit=_PAGE)
        for other in (scope for scope in page if scope.namespace == user.namespace and scope.user_id != user.user_id):
            folded = _folded(other.user_id)
            if folded == wanted or (len(wanted) >= _SHORT and _is_one_edit_away(folded, wanted)):
                found.append((folded != wanted, other.user_id))
        if len(page) < _PAGE or page[-1].namespace != user.namespace:
            break
        looked, after = looked + len(page), page[-1]
    scopes = [Scope(user.namespace, name) for _, name in sorted(found)[:SIMILAR]]
    return tuple([SimilarUser(scope.user_id, await store.count(scope)) for scope in scopes])


def _folded(name: str) -> str:
    return "".join(normalize("NFKC", name).casefold().split())


def _is_one_edit_away(one: str, other: str) -> bool:
    """Whether one letter more, less or other, or two that changed places, make one name from the other."""
    if abs(len(one) - len(other)) > 1:
        return False
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    first, second = one[same:], other[same:]
    if first[:2] == second[:2][::-1] and first[2:] == second[2:]:
        return True
    return first[1:] == second[1:] or first[1:] == second or first == second[1:]


# Sweeping a store: no bytes of what was forgotten stay in its files.

_POSTGRES = ("postgres", "postgresql")


async def sweep_store(url: str, *, schema: str | None = None, owner_role: str | None = None) -> tuple[str, ...]:
    """Leave no bytes of what was deleted at any place of a store; returns what is pending, in words.

    `schema` and `owner_role` are those of Postgres, whose URL names an administrator here.
    """
    check_is_there(url)
    pending: list[str] = []
    # An index of vectors beside the primary store clears what it forgets by itself.
    for place in dict.fromkeys(place for part, place in places_of(url).items() if part != "vectors"):
        if place.partition(":")[0] in _POSTGRES:
            from loom.stores.postgres import sweep_schema  # noqa: PLC0415 - needs a driver

            given = {"schema": schema, "owner_role": owner_role}
            pending += await sweep_schema(place, **{name: value for name, value in given.items() if value is not None})
        else:
            async with aclosing(store_at(place, Opening())) as store:
                if isinstance(store, Sweeps):
                    pending += await store.sweep()
                elif isinstance(store, Scrubs):
                    pending += await store.scrub()
    return tuple(pending)


# Preparing stores for their first use: schemas and roles in a database, files, folders.


class Made(NamedTuple):
    """The work done for one part of a store, in words."""

    part: str
    done: str


async def init_store(url: str, **roles: Any) -> tuple[Made, ...]:
    """Make what is needed at `url`, and at every place it is made of; what is there already stays.

    `roles` are the options of `init_schema`, for Postgres, whose URL names an administrator here; its `progress` is
    told how many users were moved, or indexes made, and of how many.
    """
    return tuple([Made(part, await _made(part, place, roles)) for part, place in places_of(url).items()])


async def _made(part: str, place: str, roles: dict[str, Any]) -> str:
    if place.partition(":")[0] in _POSTGRES:
        return await _init_schema(place, roles)
    if part == "vectors":
        return await _index(place)
    async with aclosing(store_at(place, Opening())) as store:
        await store.users(limit=1)  # a file is made, and a server is looked at, at the first use
        labels = await labels_of(store)
    return "; ".join(["ready", *(labels[label] for label in ("server", "durability", "index") if label in labels)])


async def _init_schema(place: str, roles: dict[str, Any]) -> str:
    from loom.stores.postgres import init_schema  # noqa: PLC0415 - needs a driver
    from loom.stores.postgres.schema import APP_ROLE, OWNER_ROLE, SCHEMA, VERSION  # noqa: PLC0415

    given = {name: value for name, value in roles.items() if value is not None}
    made = await init_schema(place, **given)
    notes = "".join(f"; {note}" for note in made.notes)
    schema, app, owner = (
        given.get(name, usual)
        for name, usual in (("schema", SCHEMA), ("app_role", APP_ROLE), ("owner_role", OWNER_ROLE))
    )
    at = urlsplit(place)
    hosts = at.netloc.rpartition("@")[2]
    if made.one_role:
        return f"schema {schema!r} is at version {VERSION} and belongs to the role of this URL: connect as that{notes}"
    return (
        f"schema {schema!r} is at version {VERSION} and belongs to {owner!r}, which is not for connecting; open "
        f"the store as {app!r}: {urlunsplit(('postgresql', f'{app}@{hosts}', at.path, at.query, ''))}{notes}"
    )


async def _index(place: str) -> str:
    async with aclosing(index_at(place)) as index:
        bound = await index.bound()
    if bound is None:
        return f"ready: {index.place}; collections are made with the first vector, which says their size"
    return f"ready: {index.place}; holds vectors of {bound[0]} ({bound[1]} numbers)"


# Erasing a user at a URL: the memory there and the sessions beside it, with one receipt.


async def erase_user(url: str, user_id: str, *, namespace: str = "default", sessions: str | None = None) -> Erasure:
    """Remove everything of a user at a URL: what is remembered, and the sessions that are saved with it.

    `sessions` is where conversations are, if not beside the memory.
    """
    check_is_there(url)
    beside = sessions or sessions_place(url)
    receipts: list[StoreReceipt] = []
    if beside is not None:
        async with aclosing(open_checkpoints(beside)) as checkpoints:
            receipts.append(_named("sessions", await checkpoints.forget(Scope(namespace, user_id))))
    async with open_memory(url, namespace=namespace) as memory:
        receipts.insert(0, _named("memory", await memory.forget(user_id=user_id)))
    return Erasure(user_id=user_id, stores=tuple(receipts))


def _named(store: str, receipt: Receipt) -> StoreReceipt:
    return StoreReceipt(store=store, removed=receipt.removed, pending=receipt.pending)
