"""The names of keys in Redis.

A user is named in a key by a digest of their scope, whose parts carry their lengths: no character of an id can move a
boundary, end a key early or stand for another user, and no name is ever searched for by a pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from loom.core.scope import Scope

DIGEST = 64
"""How many characters name a user."""


class _Key:
    """A key that is called like the attribute that holds it."""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, names: StoreNames | UserNames | None, _: type) -> str:
        return self._name if names is None else names.of(self._name)


@dataclass(frozen=True, slots=True)
class StoreNames:
    """The keys that a store has once."""

    prefix: str

    format = _Key()
    """The version of the format of all keys."""
    version = _Key()
    """A counter of all changes, which never goes back."""
    users = _Key()
    """Digest of a user to namespace and user id."""
    embedder = _Key()
    """The embedder of the vectors."""
    due = _Key()
    """Jobs that are free, by the time they are to run."""
    held = _Key()
    """Jobs that are leased, by the end of the lease."""
    forgotten = _Key()
    """How many users were removed, under the field `users`."""

    def of(self, what: str) -> str:
        """The key of this name."""
        return f"{self.prefix}:{what}"

    @property
    def near(self) -> str:
        """How the documents of all vectors start, where the server searches them."""
        return f"{self.prefix}:near:"

    def user(self, scope: Scope) -> UserNames:
        """The keys of the user of a scope."""
        return UserNames(self.prefix, sha256(scope.for_user().key().encode()).hexdigest())

    def of_digest(self, digest: str) -> UserNames:
        """The keys of the user with this digest."""
        return UserNames(self.prefix, digest)


@dataclass(frozen=True, slots=True)
class UserNames:
    """The keys of one user; there are no others, so that removing these removes everything."""

    prefix: str
    digest: str

    meta = _Key()
    """The number of the last change and of the last removal."""
    changed = _Key()
    """Ids of records, by the number of the change that wrote them."""
    records = _Key()
    """Records by id."""
    keys = _Key()
    """Index keys by the id of their record."""
    vectors = _Key()
    """Vectors by the id of their record."""
    jobs = _Key()
    """Open jobs by id."""
    job_keys = _Key()
    """Ids of open jobs by the key of the job."""
    dead = _Key()
    """Dead letters, the earliest first."""
    ends = _Key()
    """Ids of records that expire, by the time they do."""

    def of(self, what: str) -> str:
        """The key of this name."""
        return f"{self.prefix}:{what}:{self.digest}"

    def near(self, id: str) -> str:
        """The document of a vector, where the server searches them; there is one only beside a field in `vectors`."""
        return f"{self.of('near')}:{id}"

    @property
    def all(self) -> tuple[str, ...]:
        """Every key of the user."""
        return (
            *(self.meta, self.changed, self.records, self.keys, self.vectors),
            *(self.jobs, self.job_keys, self.dead, self.ends),
        )

    def member(self, job_id: str) -> str:
        """The name of a job among those of all users; at equal times they sort by the id of the job."""
        # No id holds a NUL, and the digest is of one length, so that the two can be told apart.
        return f"{job_id}\0{self.digest}"


def of_member(member: str) -> tuple[str, str]:
    """The id of a job and the digest of its user."""
    return member[: -DIGEST - 1], member[-DIGEST:]


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """The keys of a checkpoint store. No memory store uses one of them, so that both may have one prefix."""

    prefix: str

    @property
    def format(self) -> str:
        """The format of what is stored."""
        return f"{self.prefix}:checkpoint_format"

    @property
    def number(self) -> str:
        """A counter of all saves, which never goes back."""
        return f"{self.prefix}:checkpoint_number"

    def user(self, scope: Scope) -> tuple[str, ...]:
        """Every key of a user, in the order of USER_KEYS."""
        digest = sha256(scope.for_user().key().encode()).hexdigest()
        return tuple(f"{self.prefix}:checkpoint_{what}:{digest}" for what in USER_KEYS)


USER_KEYS = ("sessions", "order", "ids", "data", "entries", "links", "children", "used", "parts", "uses")
"""What a user of a checkpoint store has, as the scripts name it."""


def session_name(scope: Scope) -> str:
    """The name of a session inside the keys of its user: of one length, so that an id can stand behind it."""
    return sha256(scope.key().encode()).hexdigest()
