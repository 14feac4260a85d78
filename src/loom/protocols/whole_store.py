"""Administrative view of a memory store: users, embedder, pending jobs, guarantees.

Memory itself works for one user at a time and needs none of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from loom.core.scope import Scope
from loom.protocols.jobs import Job, KeepsJobs
from loom.protocols.memory_store import HandsOver, KeepsKeys, KeepsVectors, MemoryStore


@runtime_checkable
class ListsUsers(Protocol):
    """A store that lists its users.

    Laws: each user with a record or an open job is listed once, by namespace and user; `after` continues the list.
    """

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users of whom something was written, by namespace and user, from behind `after`."""
        ...


@runtime_checkable
class WholeStore(MemoryStore, KeepsVectors, KeepsKeys, HandsOver, KeepsJobs, ListsUsers, Protocol):
    """A store whose data of all users can be copied to and from another store.

    Laws:
    - bound() returns what the last bind() or rebind() set, in any process that shares the store;
    - open_jobs() changes no job: it leases none, and no attempt is counted;
    - a job that open_jobs() gave is queued by write() at another store as it is, with its attempts;
    - what list() and found_by() give of a user, put there, makes another store equal to this one.
    """

    async def bound(self) -> tuple[str, int] | None:
        """The embedder of the vectors and their dimension, as bind() set them; None before that."""
        ...

    async def open_jobs(self, scope: Scope) -> tuple[Job, ...]:
        """The open jobs of a user, by id; this leases none of them."""
        ...


@runtime_checkable
class Describes(Protocol):
    """A store that describes itself: what it is, and what it guarantees as configured now."""

    async def describe(self) -> dict[str, str]:
        """Labels such as `server`, `durability`, `isolation`, `index`, `embedder` and `schema`, each with a text."""
        ...


@runtime_checkable
class HasNotes(Protocol):
    """A store with notes for people about what it guarantees, known once it was used."""

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
