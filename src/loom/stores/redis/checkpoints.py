"""Checkpoints on a Redis server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any, Self

from loom.core.clock import Clock
from loom.core.codec import checkpoint_from_dict, checkpoint_to_dict, from_bytes, to_bytes
from loom.core.log import Checkpoint, LogEntry, SavedSession
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.stores import _packed as packing
from loom.stores import checkpoints as kernel
from loom.stores._packed import LogSlice
from loom.stores._sql import to_micros
from loom.stores.base import DamagedData, owner, reading
from loom.stores.checkpoints import Action, BaseCheckpointStore, CheckpointPort, Matching, Removed, Saved, T
from loom.stores.redis.cluster import RedisPlace
from loom.stores.redis.connection import Argument, Guarantees, RedisConnection
from loom.stores.redis.schema import (
    USER_KEYS,
    CheckpointNames,
    id_bytes,
    pack_owner,
    session_name,
    store_names,
    unpack_owner,
)
from loom.stores.redis.store import FILES, server_labels

# The Lua of checkpoints: each script is one step that no other client sees half of.
#
# A node is one save: the entries it brought, and the checkpoint behind them. A node whose checkpoint was removed stays
# while another continues its log. Nodes are named by 16 digits that rise and are never used again; a session by the 64
# digits of a hash. KEYS are a counter of all saves, what one user has, and the names of all users by their digest:
#
# - sessions: session to the time in microseconds at which it is over, or inf
# - order: session, node and id in one text, so that the checkpoints of a session are a range in the order of saving
# - ids: session and id in one text, to node
# - data: node to its checkpoint; entries: node to its entries
# - links: node to its parent ('' for none) and the number of its entries; children: node to how many continue it
# - used: node to the hashes of its parts, 32 bytes each; parts: hash to part; uses: hash to how often it is used
# - held: session, a 0 and the id of an entry of its log, in one text; upto: session to the node up to which that is
#   complete. Only of sessions that were asked for it.

_SEEING = """
local number, sessions, order, ids, data, entries, links, children, used, parts, uses, held, upto, users =
  unpack(KEYS)
local now = ARGV[1]

-- The texts of a session's checkpoints, last saved first; none if it is over.
local function saved(session, from, limit)
  local ends = redis.call('ZSCORE', sessions, session)
  if not ends or (ends ~= 'inf' and tonumber(ends) <= tonumber(now)) then return {} end
  return redis.call('ZREVRANGEBYLEX', order, '[' .. session .. ':', '[' .. session, 'LIMIT', from, limit)
end

local function newest(session)
  local text = saved(session, 0, 1)[1]
  return text and string.sub(text, 65, 80) or ''
end

-- The node of a checkpoint: '=' and its id, or '-' for the one last saved; '' if there is none.
local function find(session, wanted)
  local last = newest(session)
  if last == '' or wanted == '-' then return last end
  return redis.call('HGET', ids, session .. string.sub(wanted, 2)) or ''
end

local function link(node)
  return string.match(redis.call('HGET', links, node) or '', '^(%d*) (%d+)$')
end

local function each_hash(node, visit)
  local hashes = redis.call('HGET', used, node)
  for place = 1, #hashes, 32 do visit(string.sub(hashes, place, place + 31)) end
end
"""

_REMOVING = """
local function unindex(session)
  redis.call('ZREMRANGEBYLEX', held, '[' .. session .. '0', '(' .. session .. '1')
  redis.call('HDEL', upto, session)
end

local function release(hash)
  if redis.call('HINCRBY', uses, hash, -1) == 0 then
    redis.call('HDEL', uses, hash)
    redis.call('HDEL', parts, hash)
  end
end

-- Remove a node that no other one needs, and those before it. Returns the first that stays, and how many entries went.
local function drop(node)
  local gone = 0
  while node ~= '' do
    local parent, size = link(node)
    if not parent or redis.call('HEXISTS', data, node) == 1 or redis.call('HEXISTS', children, node) == 1 then
      break
    end
    each_hash(node, release)
    for _, key in ipairs({entries, links, used}) do redis.call('HDEL', key, node) end
    if parent ~= '' and redis.call('HINCRBY', children, parent, -1) == 0 then
      redis.call('HDEL', children, parent)
    end
    gone = gone + size
    node = parent
  end
  return node, gone
end

-- How many entries of removed checkpoints stay because others continue them.
local function left_of(stays)
  local left, seen = 0, {}
  for _, node in ipairs(stays) do
    while node ~= '' and not seen[node] do
      seen[node] = true
      local parent, size = link(node)
      if parent and redis.call('HEXISTS', data, node) == 0 then left = left + size end
      node = parent or ''
    end
  end
  return left
end

-- Remove checkpoints. Returns how many, and how many entries went and stay.
local function remove(texts)
  for _, text in ipairs(texts) do
    local session = string.sub(text, 1, 64)
    redis.call('ZREM', order, text)
    redis.call('HDEL', ids, session .. string.sub(text, 81))
    redis.call('HDEL', data, string.sub(text, 65, 80))
    if #redis.call('ZRANGEBYLEX', order, '[' .. session, '[' .. session .. ':', 'LIMIT', 0, 1) == 0 then
      redis.call('ZREM', sessions, session)
      unindex(session)
    end
  end
  local stays, gone = {}, 0
  for place, text in ipairs(texts) do
    local dropped
    stays[place], dropped = drop(string.sub(text, 65, 80))
    gone = gone + dropped
  end
  return {#texts, gone, left_of(stays)}
end

-- Sessions that are over go before anything else happens.
for _, session in ipairs(redis.call('ZRANGEBYSCORE', sessions, '-inf', now)) do
  remove(redis.call('ZRANGEBYLEX', order, '[' .. session, '[' .. session .. ':'))
end

-- The server drops everything of a user by itself when their last session is over; their name, if it can.
local function settle()
  local last, digest = redis.call('ZREVRANGE', sessions, 0, 0, 'WITHSCORES')[2], string.sub(sessions, -64)
  if not last then
    redis.call('HDEL', users, digest)
    return
  end
  local left = last ~= 'inf' and string.format('%.0f', math.ceil((last - now) / 1000))
  for place = 2, #KEYS - 1 do
    if left then
      redis.call('PEXPIRE', KEYS[place], left)
    else
      redis.call('PERSIST', KEYS[place])
    end
  end
  if left then
    redis.pcall('HPEXPIRE', users, left, 'FIELDS', 1, digest)
  else
    redis.pcall('HPERSIST', users, 'FIELDS', 1, digest)
  end
end
"""


def _reads(script: str) -> str:
    return _SEEING + script


def _writes(script: str) -> str:
    return _SEEING + _REMOVING + script


FIND = _reads("""
-- ARGV: now, a session, what is wanted of it. Returns the node and the checkpoint of each, or nothing.
local found = {}
for place = 3, #ARGV do
  local node = find(ARGV[2], ARGV[place])
  found[place - 2] = node ~= '' and {node, redis.call('HGET', data, node)}
end
return found
""")

LIST = _reads("""
-- ARGV: now, how many (-1 for all), the node before which they were saved ('' for any), the attributes that they have
-- as JSON ('' for any), one session, or none for all. Returns checkpoints, last saved first.
local limit, before, found = tonumber(ARGV[2]), ARGV[3], {}
local attributes = ARGV[4] ~= '' and cjson.decode(ARGV[4])

local function has_all(checkpoint)
  if not attributes then return true end
  local own = cjson.decode(checkpoint).attributes or {}
  for name, value in pairs(attributes) do
    if own[name] ~= value then return false end
  end
  return true
end

local function take(node)
  if before ~= '' and node >= before then return end
  local checkpoint = redis.call('HGET', data, node)
  if has_all(checkpoint) then found[#found + 1] = checkpoint end
end

-- Of one session no more is read than is asked for, some at a time.
if ARGV[5] then
  local from, texts = 0, saved(ARGV[5], 0, 100)
  while #texts > 0 and #found ~= limit do
    for _, text in ipairs(texts) do
      if #found ~= limit then take(string.sub(text, 65, 80)) end
    end
    from = from + #texts
    texts = saved(ARGV[5], from, 100)
  end
  return found
end

local nodes = {}
for _, session in ipairs(redis.call('ZRANGE', sessions, 0, -1)) do
  for _, text in ipairs(saved(session, 0, -1)) do nodes[#nodes + 1] = string.sub(text, 65, 80) end
end
table.sort(nodes, function(one, other) return one > other end)
for _, node in ipairs(nodes) do
  if #found ~= limit then take(node) end
end
return found
""")

SESSIONS = _reads("""
-- ARGV: now, one session, or none for all. Returns of each, in any order, the newest node, how many checkpoints there
-- are, the first and the last.
local found = {}
for _, session in ipairs(ARGV[2] and {ARGV[2]} or redis.call('ZRANGE', sessions, 0, -1)) do
  local last = newest(session)
  if last ~= '' then
    local low, high = '[' .. session, '[' .. session .. ':'
    local first = string.sub(redis.call('ZRANGEBYLEX', order, low, high, 'LIMIT', 0, 1)[1], 65, 80)
    local count = redis.call('ZLEXCOUNT', order, low, high)
    found[#found + 1] = {last, count, redis.call('HGET', data, first), redis.call('HGET', data, last)}
  end
end
return found
""")

LOG = _reads("""
-- ARGV: now, a session, what is wanted of it, how many saves (-1 for all), how many entries at least (-1 for all), 1
-- for the parts as well. Returns the saves up to it, the last first: of each the entries and the hashes of the parts;
-- then each part behind its hash. Nothing if it is not there.
local node, most, last = find(ARGV[2], ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if node == '' then return false end
local saves, bodies, seen, count = {}, {}, {}, 0
local function take(hash)
  if not seen[hash] then
    seen[hash] = true
    bodies[#bodies + 1] = hash
    bodies[#bodies + 1] = redis.call('HGET', parts, hash)
  end
end
while node ~= '' and #saves ~= most and (last < 0 or count < last) do
  saves[#saves + 1] = {redis.call('HGET', entries, node), redis.call('HGET', used, node)}
  if ARGV[6] == '1' then each_hash(node, take) end
  local parent, size = link(node)
  node, count = parent, count + size
end
return {saves, bodies}
""")

_HOLDING = """
-- Those of the ids, from a place on, that the index of a session has.
local function held_of(session, place)
  local found = {}
  for at = place, #ARGV do
    if redis.call('ZSCORE', held, session .. '0' .. ARGV[at]) then found[#found + 1] = ARGV[at] end
  end
  return found
end
"""

HELD = (
    _SEEING
    + _HOLDING
    + """
-- ARGV: now, a session, its newest node, ids. Returns nothing if that is not its newest node; else up to which node the
-- index is complete, whether it has to begin anew, the entries that are missing in it; then what it has of the ids.
local session, last = ARGV[2], ARGV[3]
if newest(session) ~= last then return false end
local mark, missing = redis.call('HGET', upto, session) or '', {}
local node, anew = last, 0
while node ~= '' and node > mark do
  missing[#missing + 1] = redis.call('HGET', entries, node)
  node = link(node)
end
if node ~= mark then
  anew = 1
  while node ~= '' do
    missing[#missing + 1] = redis.call('HGET', entries, node)
    node = link(node)
  end
end
return {mark, anew, missing, held_of(session, 4)}
"""
)

INDEX = _writes(
    _HOLDING
    + """
-- ARGV: now, a session, its newest node, up to which node the index was complete, whether it begins anew, how many ids
-- are added to it, those ids, other ids. Returns what it has of the others; nothing if another client was faster.
local session, last, count = ARGV[2], ARGV[3], tonumber(ARGV[6])
if newest(session) ~= last or (redis.call('HGET', upto, session) or '') ~= ARGV[4] then
  settle()
  return false
end
if ARGV[5] == '1' then unindex(session) end
for at = 7, 6 + count do redis.call('ZADD', held, 0, session .. '0' .. ARGV[at]) end
redis.call('HSET', upto, session, last)
settle()
return held_of(session, 7 + count)
"""
)

ADD = _writes("""
-- ARGV: now, when the session is over, the session, the id; which node is its newest; session and id of the parent, and
-- its node; the checkpoint, the entries, their number, their hashes; the user's name; each part behind its hash.
-- Returns 0, and adds nothing, if another client was faster.
local session, id, parent, hashes = ARGV[3], ARGV[4], ARGV[7], ARGV[11]
local is_stale = newest(session) ~= ARGV[5] or redis.call('HEXISTS', ids, session .. id) == 1
if is_stale or (parent ~= '' and redis.call('HGET', ids, ARGV[6]) ~= parent) then
  settle()
  return 0
end
local node = string.format('%016.0f', redis.call('INCR', number))
redis.call('ZADD', sessions, ARGV[2], session)
redis.call('ZADD', order, 0, session .. node .. id)
redis.call('HSET', ids, session .. id, node)
redis.call('HSET', data, node, ARGV[8])
redis.call('HSET', entries, node, ARGV[9])
redis.call('HSET', links, node, parent .. ' ' .. ARGV[10])
if parent ~= '' then redis.call('HINCRBY', children, parent, 1) end
redis.call('HSET', used, node, hashes)
redis.call('HSET', users, string.sub(sessions, -64), ARGV[12])
for place = 13, #ARGV, 2 do redis.call('HSETNX', parts, ARGV[place], ARGV[place + 1]) end
each_hash(node, function(hash) redis.call('HINCRBY', uses, hash, 1) end)
settle()
return 1
""")

DELETE = _writes("""
-- ARGV: now, a session, an id. Returns how many checkpoints went.
local session, id = ARGV[2], ARGV[3]
local node = find(session, '=' .. id)
local removed = remove(node ~= '' and {session .. node .. id} or {})
settle()
return removed[1]
""")

PRUNE = _writes("""
-- ARGV: now, a session, how many stay. Returns the ids of the others, the last saved first.
local texts, gone = saved(ARGV[2], ARGV[3], -1), {}
for place, text in ipairs(texts) do gone[place] = string.sub(text, 81) end
remove(texts)
settle()
return gone
""")

FORGET = _writes("""
-- ARGV: now, one session, or none for all. Returns how many checkpoints and entries went, and how many entries stay.
local texts = {}
for _, session in ipairs(ARGV[2] and {ARGV[2]} or redis.call('ZRANGE', sessions, 0, -1)) do
  for _, text in ipairs(saved(session, 0, -1)) do texts[#texts + 1] = text end
end
local removed = remove(texts)
settle()
return removed
""")


_NEWEST = b"-"
_NONE = b""
_PARTS = 1 + USER_KEYS.index("parts")
_LOOKS = 2
"""How often the saves of a log are read where a part of them is missing: another process may have just removed it."""


class RedisCheckpointStore(BaseCheckpointStore):
    """Keeps sessions on a Redis server; forks and prunes. Any number of stores and processes may share it.

    With `ttl`, a session expires that long after its last save: from then on no call sees it. Its data goes with the
    next change of its user, and Redis drops everything of a user by itself when their last session expires. A log that
    a fork begins with stays as long as the fork. A save with another `ttl`, or none, sets the end anew.

    `prefix`, `durable` and `timeout` are those of a RedisStore, which may have the same prefix. The URL may say
    `?durable=true&ttl=30d` as well; what it says of layers is for memories.
    """

    _after_forgetting = FILES

    def __init__(
        self,
        url: str,
        *,
        ttl: timedelta | None = None,
        clock: Clock | None = None,
        prefix: str | None = None,
        durable: bool | None = None,
        timeout: float = 10.0,
    ) -> None:
        super().__init__(clock)
        if ttl is not None and ttl < timedelta(milliseconds=1):
            raise UsageError(f"sessions with ttl={ttl} are over at once; give at least a millisecond, or None")
        place = RedisPlace.of(url, prefix)
        store_names(place.prefix, place.buckets)  # refuses a prefix that a cluster would misread
        names = CheckpointNames(place.prefix, place.buckets)
        self._link = place.connect(durable=durable, format_key=names.format, timeout=timeout)
        ttl = self._link.said.ttl.get(None) if ttl is None else ttl
        self._names, self._ttl = names, ttl

    async def __aenter__(self) -> Self:
        await self._link.guarantees()
        return self

    async def guarantees(self) -> Guarantees:
        """The durability of acknowledged saves, as the server is set up now."""
        return await self._link.guarantees()

    async def describe(self) -> dict[str, str]:
        """The store and its guarantees, by label."""
        kept = "for ever" if self._ttl is None else f"for {self._ttl} after their last save"
        found = await self._link.guarantees()
        return {**server_labels(found, self._names.prefix), "retention": f"sessions are kept {kept}"}

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users who have sessions here, sorted by namespace and user, starting after `after`."""
        kernel.check_limit(limit)
        held = await self._link.calls([("HVALS", part.users) for part in self._names.parts])
        named = sorted((unpack_owner(data) for users in held for data in users), key=owner)
        found: list[Scope] = []
        for user in named if after is None else (user for user in named if owner(user) > owner(after)):
            # A server that cannot drop a name by itself may have that of a user whose sessions are over.
            if await self.sessions(user, limit=1):
                found.append(user)
            if len(found) == limit:
                break
        return tuple(found)

    async def _step(self, scope: Scope, action: Action[T], *, writes: bool) -> T:
        saves = _RedisSaves(self._link, self._names, scope, self._clock, self._ttl)
        answer = await action(saves)
        if writes and not saves.has_written:
            # Nothing to write, because of what is there: that must be as safe as if it had been written now.
            await self._link.confirm(saves.key)
        return answer

    async def aclose(self) -> None:
        """Close the connections. Closing twice is allowed."""
        await self._link.aclose()


class _RedisSaves(CheckpointPort[bytes]):
    """The saves of one user. Scripts see nothing of each other, so that append() compares what was read before."""

    def __init__(
        self, link: RedisConnection, names: CheckpointNames, scope: Scope, clock: Clock, ttl: timedelta | None
    ) -> None:
        bucket = names.bucket(scope)
        self._link, self._keys, self._scope = link, (bucket.number, *bucket.user(scope), bucket.users), scope
        self._clock, self._ttl = clock, ttl
        self.key = bucket.number
        self.has_written = False

    async def find(self, session_id: str, *ids: str | None) -> list[Saved[bytes] | None]:
        found = await self._run(FIND, self._name(session_id), *map(_wanted, ids))
        return [None if one is None else Saved(one[0], _checkpoint(one[1])) for one in found]

    async def checkpoints(
        self, session_id: str | None, limit: int | None, matching: Matching[bytes] | None = None
    ) -> list[Checkpoint]:
        before = _NONE if matching is None or matching.before is None else matching.before
        attributes = to_bytes(dict(matching.attributes)) if matching is not None and matching.attributes else _NONE
        found = await self._run(LIST, -1 if limit is None else limit, before, attributes, *self._names(session_id))
        return [_checkpoint(data) for data in found]

    async def sessions(self, session_id: str | None, limit: int | None) -> list[SavedSession]:
        found: list[tuple[bytes, int, bytes, bytes]] = await self._run(SESSIONS, *self._names(session_id))
        found.sort(key=itemgetter(0), reverse=True)
        return [
            kernel.saved_session(_checkpoint(first), _checkpoint(last), count)
            for _, count, first, last in found[:limit]
        ]

    async def log(self, session_id: str, id: str, wanted: LogSlice) -> list[LogEntry] | None:
        which = (self._name(session_id), _wanted(id), -1 if wanted.whole else 1)
        last = -1 if wanted.last is None else wanted.last
        for _ in range(_LOOKS):
            found = await self._run(LOG, *which, last, 0 if wanted.is_partial else 1)
            if found is None:
                return None
            saves, flat = found
            pieces = [
                (entries, [hashes[start : start + packing.HASH] for start in range(0, len(hashes), packing.HASH)])
                for entries, hashes in reversed(saves)
            ]
            bodies: dict[bytes, Any] = dict(zip(flat[::2], flat[1::2], strict=True))
            if wanted.is_partial and (needed := packing.needed_hashes(pieces, wanted)):
                got = await self._link.call("HMGET", self._keys[_PARTS], *needed)
                bodies = dict(zip(needed, got, strict=True))
            if None not in bodies.values():
                return packing.unpack_entries(pieces, bodies, wanted)
        raise DamagedData("a part of a conversation is missing")

    async def held(self, session_id: str, newest: Saved[bytes], ids: Sequence[str]) -> set[str]:
        session, asked = self._name(session_id), [id_bytes(id) for id in ids]
        found: list[bytes] | None = None
        while found is None:
            index = await self._run(HELD, session, newest.key, *asked)
            if index is None:  # the session went on meanwhile: append() will see that, too
                return set()
            upto, anew, missing, found = index
            if not missing:
                break
            added = [id_bytes(id) for entries in missing for id in packing.ids_in(entries)]
            found = await self._change(INDEX, session, newest.key, upto, anew, len(added), *added, *asked)
        return {id.decode(errors="surrogatepass") for id in found or ()}

    async def append(
        self,
        checkpoint: Checkpoint,
        entries: Sequence[LogEntry],
        *,
        parent: Saved[bytes] | None,
        newest: Saved[bytes] | None,
    ) -> bool:
        packed = packing.pack_entries(entries)
        end = "+inf" if self._ttl is None else to_micros(self._clock.now() + self._ttl)
        arguments: list[Argument] = [end, self._name(checkpoint.session_id), id_bytes(checkpoint.id)]
        arguments += [_NONE if newest is None else newest.key]
        if parent is None:
            arguments += [_NONE, _NONE]
        else:
            session = self._name(parent.checkpoint.session_id).encode()
            arguments += [session + id_bytes(parent.checkpoint.id), parent.key]
        arguments += [to_bytes(checkpoint_to_dict(checkpoint)), packed.entries, len(entries), b"".join(packed.hashes)]
        arguments += [pack_owner(self._scope)]
        for hash, body in packed.bodies.items():
            arguments += [hash, body]
        return bool(await self._change(ADD, *arguments))

    async def remove(
        self, session_id: str | None, *, id: str | None = None, keep: int = 0, erase: bool = False
    ) -> Removed:
        if erase or session_id is None:
            checkpoints, entries, left = await self._change(FORGET, *self._names(session_id))
            return Removed(checkpoints, entries=entries, left=left)
        if id is not None:
            return Removed(await self._change(DELETE, self._name(session_id), id_bytes(id)))
        found = await self._change(PRUNE, self._name(session_id), keep)
        return Removed(len(found), tuple(id.decode(errors="surrogatepass") for id in reversed(found)))

    async def _run(self, script: str, *arguments: Argument) -> Any:
        return await self._link.run(script, self._keys, (to_micros(self._clock.now()), *arguments))

    async def _change(self, script: str, *arguments: Argument) -> Any:
        self.has_written = True
        return await self._link.change(script, self._keys, (to_micros(self._clock.now()), *arguments))

    def _name(self, session_id: str) -> str:
        return session_name(self._scope.for_session(session_id))

    def _names(self, session_id: str | None) -> tuple[str, ...]:
        return () if session_id is None else (self._name(session_id),)


def _wanted(id: str | None) -> bytes:
    return _NEWEST if id is None else b"=" + id_bytes(id)


def _checkpoint(data: bytes) -> Checkpoint:
    with reading("a checkpoint"):
        return checkpoint_from_dict(from_bytes(data))
