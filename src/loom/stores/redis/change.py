"""A transaction on what a user has: planned in Python on what was read, and made only if that still holds.

Every value that a plan looked at is sent back with it. The server compares them and does all of it or, where another
writer was faster, nothing; the caller then reads and plans again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loom.core.record import Record
from loom.core.scope import Scope
from loom.errors import StaleWrite
from loom.protocols.embedder import Vector
from loom.stores.redis.codec import (
    id_bytes,
    pack_keys,
    pack_owner,
    pack_record,
    pack_vector,
    unpack_keys,
    unpack_record,
)
from loom.stores.redis.link import Argument, RedisConnection
from loom.stores.redis.names import StoreNames
from loom.stores.redis.near import pack_near
from loom.stores.redis.retention import Retention
from loom.stores.redis.scripts import COMMIT
from loom.stores.user_records import RecordChange, UserRecords

DELETED, REPLACED, FORGOTTEN = "deleted", "replaced", "users"
_OF_USER = (DELETED, REPLACED)
"""Fields of a user that change when text is removed; of an unknown user, the forgotten users are counted."""
TRIES = 1000
"""How often a transaction is planned again before it is given up."""


class Transaction:
    """Reads of one user's hashes, and the commands that follow from them. One that `is_outdated` is not committed."""

    def __init__(self, link: RedisConnection, store: StoreNames, scope: Scope, retention: Retention) -> None:
        self.store, self.user, self._retention = store, store.user(scope), retention
        self._link, self._scope = link, scope
        self._checks: dict[tuple[str, bytes], bytes | None] = {}
        self._changed: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}
        self._commands: list[tuple[Argument, ...]] = []
        self.is_outdated = False

    async def read(self, *wanted: tuple[str, Iterable[str]]) -> list[dict[str, bytes]]:
        """The fields of hashes that are there, one mapping for each hash; the change depends on all of them."""
        asked = [(key, list(dict.fromkeys(fields))) for key, fields in wanted]
        commands = [("HMGET", key, *map(id_bytes, fields)) for key, fields in asked if fields]
        answers = iter(await self._link.calls(commands) if commands else [])
        found: list[dict[str, bytes]] = []
        for key, fields in asked:
            values: dict[str, bytes | None] = dict(zip(fields, next(answers), strict=True)) if fields else {}
            self._checks |= {(key, id_bytes(field)): value for field, value in values.items()}
            found.append({field: value for field, value in values.items() if value is not None})
        return found

    async def records(self, ids: Iterable[str], *, with_keys: bool = True) -> UserRecords:
        """These records of the user and their keys, to plan with; expired ones are left out."""
        wanted = list(ids)
        found, keys = await self.read((self.user.records, wanted), (self.user.keys, wanted if with_keys else ()))
        records = {id: unpack_record(data) for id, data in found.items()}
        over = set(self._retention.over(records.values()))
        return UserRecords(
            records={id: record for id, record in records.items() if id not in over},
            keys={id: unpack_keys(data) for id, data in keys.items() if id not in over},
        )

    async def epoch(self) -> str:
        """A token that changes whenever text of the user is removed; the transaction depends on it."""
        user, others = await self.read((self.user.meta, _OF_USER), (self.store.forgotten, [FORGOTTEN]))
        if DELETED in user:
            del self._checks[self.store.forgotten, id_bytes(FORGOTTEN)]
            return ".".join(user.get(name, b"0").decode() for name in _OF_USER)
        # A user who came and went while another call prepared a write is not the user who was never there.
        return f"-{others.get(FORGOTTEN, b'0').decode()}"

    async def check_epoch(self, since: str | None) -> None:
        """Refuse a change that was prepared before text of its user was removed."""
        if since is not None and await self.epoch() != since:
            raise StaleWrite(self._scope.user_id)

    def depends_on(self, key: str, field: str, value: bytes | None) -> None:
        """Make the change only if the field has this value; None: only if it is not there."""
        self._checks[key, id_bytes(field)] = value

    def apply(self, user: UserRecords, change: RecordChange) -> None:
        """Write what was planned for these records."""
        for id in change.deleted - change.records.keys():
            self._remove(id)
        for id, record in change.records.items():
            self.set_record(record, old=user.records.get(id))
            if id in change.deleted:
                self.do("HDEL", self.user.keys, id)
                self._drop_vector(id)
                self.do("HINCRBY", self.user.meta, REPLACED, 1)
        for id, texts in change.keys.items():
            before = {} if id in change.deleted else user.keys.get(id, {})
            kept = {kind: text for kind, text in {**before, **texts}.items() if text.strip()}
            self._note(id)
            if kept:
                self.do("HSET", self.user.keys, id, pack_keys(kept))
            else:
                self.do("HDEL", self.user.keys, id)

    def set_record(self, record: Record, *, old: Record | None) -> None:
        """Write a record; the vector of another text would find it for words it no longer says."""
        self._note(record.id)
        self.do("HSET", self.user.records, record.id, pack_record(record))
        end = self._retention.end_of(record)
        self.do(*(("ZREM", self.user.ends) if end is None else ("ZADD", self.user.ends, end)), record.id)
        if old is not None and old.text != record.text:
            self._drop_vector(record.id)
            self.do("HINCRBY", self.user.meta, REPLACED, 1)

    def set_vectors(self, vectors: Mapping[str, Vector]) -> None:
        """Write vectors."""
        for id, vector in vectors.items():
            self._note(id)
            self.do("HSET", self.user.vectors, id, pack_vector(vector))
            if self._link.has_search and self._retention.is_unlimited:
                self.do("HSET", self.user.near(id), "u", self.user.digest, "v", pack_near(vector))

    def do(self, *command: Argument) -> None:
        """Run this command with the change."""
        self._commands.append(command)

    async def commit(self) -> bool:
        """Make the change; False, and nothing is changed, if a value that was read has changed."""
        if not self._commands or self.is_outdated:
            return not self.is_outdated
        user, store = self.user, self.store
        now = self._retention.now()
        arguments: list[Argument] = [user.digest, pack_owner(self._scope), now, user.near(""), len(self._checks)]
        for (key, field), value in self._checks.items():
            arguments += [key, field, b"-" if value is None else b"=" + value]
        for ids in (self._changed, self._removed):
            arguments += [len(ids), *ids]
        for command in self._commands:
            arguments += [len(command), *command]
        return bool(await self._link.run(COMMIT, (store.version, store.users, store.forgotten, *user.all), arguments))

    def _remove(self, id: str) -> None:
        self._removed[id_bytes(id)] = None
        for key in (self.user.records, self.user.keys):
            self.do("HDEL", key, id)
        self._drop_vector(id)
        self.do("ZREM", self.user.ends, id)

    def _drop_vector(self, id: str) -> None:
        self.do("HDEL", self.user.vectors, id)
        if self._link.has_search:
            self.do("DEL", self.user.near(id))

    def _note(self, id: str) -> None:
        self._changed[id_bytes(id)] = None
