"""Diagnosing an installation and the parts of a store."""

from __future__ import annotations

import os
import platform
import re
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib import metadata

from loom.core.clock import SystemClock
from loom.engine.open import DEFAULT_MODEL, open_model
from loom.engine.urls import Opening, places_of, store_at
from loom.errors import LoomError, StoreError
from loom.memory._shared import notes_of
from loom.memory._upkeep.summaries import waiting_jobs
from loom.protocols.memory_store import AdminStore, CountsJobs, Describes, HasParts, ListsUsers, MemoryStore
from loom.providers.embedding.choose import pick_embedder
from loom.wrappers.indexed import IndexedStore

PACKAGE = "loom-engine"
LABELS = ("server", "driver", "durability", "isolation", "index", "embedder", "jobs", "schema")
"""The order in which labels are shown; others come after these."""

_USERS = 1000
"""Users whose jobs are counted."""
_DRIVERS = {
    "sqlite": "apsw",
    **dict.fromkeys(("postgres", "postgresql"), "psycopg"),
    **dict.fromkeys(("redis", "rediss", "unix"), "redis"),
    "chroma": "chromadb",
    "qdrant": "qdrant-client",
}
_REQUIREMENT = re.compile(r"""^(?P<name>[\w.-]++)[^;]*+;.*extra == ['"](?P<extra>[\w-]+)['"]""")


@dataclass(frozen=True, slots=True)
class Examined:
    """One part of a store: what it says of itself, or why it could not be asked."""

    part: str
    store: str
    labels: dict[str, str] = field(default_factory=dict[str, str], hash=False)
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The installation of Loom in this Python."""

    python: str
    loom: str
    extras: dict[str, str] = field(hash=False)
    embedder: str
    model: str
    model_failure: str | None = None
    """Why the model that is named cannot be used."""


async def examine(url: str) -> tuple[Examined, ...]:
    """Ask every part of the store at `url`; a part that does not answer costs the others nothing."""
    async with aclosing(store_at(url, Opening(makes=False))) as store:
        found = await _examined("store", store)
    schemes = (place.partition(":")[0].partition("+")[0] for place in places_of(url).values())
    drivers = dict.fromkeys(_DRIVERS[scheme] for scheme in schemes if scheme in _DRIVERS)
    if drivers:
        versions = (f"{package} {_version(package) or 'not installed'}" for package in drivers)
        found[0].labels["driver"] = ", ".join(versions)
    return tuple(found)


async def _examined(part: str, store: MemoryStore) -> list[Examined]:
    if isinstance(store, HasParts) and not isinstance(store, IndexedStore):  # it describes its primary store as well
        return [one for name, below in store.parts.items() for one in await _examined(name, below)]
    try:
        labels = {**await labels_of(store), **await _jobs_in(store)}
        notes = notes_of(store)
        return [Examined(part, type(store).__name__, labels | ({"notes": "; ".join(notes)} if notes else {}))]
    except StoreError as error:
        return [Examined(part, type(store).__name__, failure=str(error))]


async def labels_of(store: object) -> dict[str, str]:
    """A store's description of itself; one that has none is at least reached."""
    if isinstance(store, Describes):
        return await store.describe()
    if isinstance(store, ListsUsers):
        await store.users(limit=1)
    return {}


async def _jobs_in(store: object) -> dict[str, str]:
    """The jobs that wait in a store, and those that were given up, of its first users."""
    if not isinstance(store, AdminStore):
        return {}
    users = await store.users(limit=_USERS)
    now = SystemClock().now()
    waiting = [(await waiting_jobs(store, user, now)).total() for user in users]
    letters = [letter for user in users for letter in await store.dead_letters(user)]
    reasons = "; ".join(f"{letter.job.kind}: {letter.reason}" for letter in letters[-1:])
    given_up = f", {len(letters):,} were given up, the last one because of {reasons}" if letters else ""
    of = f" of the first {_USERS:,} users" if len(users) == _USERS else ""
    if of and isinstance(store, CountsJobs):
        of += "; of all users " + ", ".join(f"{n:,} {state}" for state, n in (await store.job_counts(now=now)).items())
    return {"jobs": f"{sum(waiting):,} wait{given_up}{of}"}


def installed() -> Installed:
    """Python, Loom, its extras, and what is used where nothing is named."""
    try:
        embedder = pick_embedder().why
    except LoomError as error:
        embedder = f"none: {error}"
    named, failure = os.environ.get(DEFAULT_MODEL, "").strip(), None
    try:
        open_model(named or None)  # no provider is called, so a key is not tried
    except LoomError as error:
        failure = str(error)
    return Installed(
        python=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        loom=_version(PACKAGE) or "not installed as a package",
        extras=_extras(),
        embedder=embedder,
        model=named or f"none: {DEFAULT_MODEL} is not set; an agent answers with what it finds in memory",
        model_failure=failure,
    )


def _extras() -> dict[str, str]:
    """For each extra the versions of its packages, or the command that installs what is missing."""
    needed: dict[str, list[str]] = {}
    for line in metadata.requires(PACKAGE) or () if _version(PACKAGE) else ():
        if found := _REQUIREMENT.match(line):
            needed.setdefault(found["extra"], []).append(found["name"])
    extras: dict[str, str] = {}
    for extra, names in sorted(needed.items()):
        versions = {name: _version(name) for name in names}
        there = ", ".join(f"{name} {version}" for name, version in versions.items())
        missing = f"not installed; run: pip install '{PACKAGE}[{extra}]'"
        extras[extra] = missing if None in versions.values() else there
    return extras


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
