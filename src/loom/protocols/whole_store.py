"""A memory store as a whole, for whoever looks after it: who is in it, whose vectors it holds, what waits, what holds.

Memory itself asks for one user at a time and needs none of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from loom.core.scope import Scope
from loom.protocols.jobs import Job, KeepsJobs
from loom.protocols.memory_store import HandsOver, KeepsKeys, KeepsVectors, MemoryStore


@runtime_checkable
class ListsUsers(Protocol):
    """A store that says whose records it holds.

    Laws: everybody who has a record or an open job is listed, once, by namespace and user; `after` continues the list.
    """

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users of whom something was written, by namespace and user, from behind `after`."""
        ...


@runtime_checkable
class WholeStore(MemoryStore, KeepsVectors, KeepsKeys, HandsOver, KeepsJobs, ListsUsers, Protocol):
    """A store from which, and to which, everything of everybody can be moved.

    Laws:
    - bound() says what bind() and rebind() were told last, by anybody who shares the store;
    - open_jobs() leaves every job as it is: it is leased to nobody by that, and its attempts do not count up;
    - a job that open_jobs() gave is queued by write() at another store as it is, with its attempts;
    - what list() and found_by() give of a user, put there, makes another store equal to this one.
    """

    async def bound(self) -> tuple[str, int] | None:
        """The embedder of the vectors and their dimension, as bind() was told; None before that."""
        ...

    async def open_jobs(self, scope: Scope) -> tuple[Job, ...]:
        """The open jobs of a user, by id; nobody is given them by this."""
        ...


@runtime_checkable
class Describes(Protocol):
    """A store that says what it is and what it guarantees as it is set up now."""

    async def describe(self) -> dict[str, str]:
        """Labels such as `server`, `durability`, `isolation`, `index`, `embedder` and `schema`, each with a text."""
        ...


@runtime_checkable
class HasNotes(Protocol):
    """A store that knows, once it was used, what a person should know of what it guarantees."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for people; empty where nothing is unusual, and before the first call."""
        ...


@runtime_checkable
class HasParts(Protocol):
    """A store that is made of others."""

    @property
    def parts(self) -> Mapping[str, MemoryStore]:
        """The stores below, by the name of what each is for, the truth first."""
        ...
