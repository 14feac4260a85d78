"""Connection to a Redis Cluster: which server has a key, and what to do when that changes under a call.

Every command and script of Loom has keys of one slot, so that one server answers it. The driver brings a client for
clusters of its own; it is not used, because it sends ASKING down another connection than the command that it is for,
closes the connections of everybody when one slot is not served, and sends a command again whose answer was lost,
whatever that command does. What is used is the driver's plain client, one for each server.

Sending again is safe here: what only reads may be read twice, and a script that writes leaves a mark with its answer
beside the keys that it wrote, in the same step. Sent again, it finds the mark and answers what it answered before.
"""

from __future__ import annotations

import random
import re
import secrets
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import anyio
from anyio import Lock

from loom.core.checks import check_text
from loom.core.threads import PerLoop
from loom.errors import StoreError, StoreUnavailable, UsageError
from loom.stores.redis.connection import (
    FORMAT,
    MARK,
    Argument,
    Client,
    Guarantees,
    RedisConnection,
    end,
    hidden,
    is_unknown,
    script_name,
    split,
)

SLOTS = 16_384
"""The slots of every Redis Cluster."""
_SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
_FORM = "redis+cluster://HOST:6379,HOST:6379/"
_PORT = 6379
_PREFIX = "loom"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.2
_LEAST_LIFE = 30_000
"""Milliseconds that the mark of a write stays at least: longer than anybody sends it again."""
_ASK_NEXT, _SILENT = 0.1, 1.0
"""Seconds until another server is asked who has which slot, and until a server counts as silent, at most."""
_MOST_STEPS = 8
"""How many servers a call is sent on to before it asks anew who has its slot."""
_NO_MASTER = re.compile("^UNBLOCKED|replica instances")
"""The errors of waiting for replicas on a server that is no longer a master."""
_NAMELESS = "?"
"""The host of a server that is to be called by a name and has none; its address is told with it."""
_NOT_NOW = "NOREPLICAS"
"""How the error starts of a master that has fewer replicas than it wants for a write."""

_T = TypeVar("_T")

ONCE = """
local mark, life = table.remove(KEYS), table.remove(ARGV)
local done = redis.call('GET', mark)
if done then
  -- A write, so that who waits for replicas waits for the one that was made before.
  redis.call('PEXPIRE', mark, life)
  return cmsgpack.unpack(done)
end
local function step()
%s
end
local answer = step()
if answer and answer ~= 0 then redis.call('SET', mark, cmsgpack.pack(answer), 'PX', life) end
return answer
"""
"""Around a script that writes: it is done once, however often it arrives.

The mark is one more key that is not there yet, so that a server that is just handing the slot over, or taking it over,
refuses the script before it begins: half of the user's keys may be elsewhere.
"""


def is_cluster(url: str) -> bool:
    """Whether a URL names a cluster."""
    return url.partition("://")[0] in _SCHEMES


def slot_of(key: str) -> int:
    """The slot of a key: of the text between its first braces, or of all of it."""
    start = key.find("{")
    end = key.find("}", start + 2) if start >= 0 else -1
    return crc_hqx((key[start + 1 : end] if end > 0 else key).encode(), 0) % SLOTS


def beside(key: str) -> str:
    """How keys start that share a slot with this one."""
    start = key.find("{")
    return f"{{{key}}}" if start < 0 else key[: key.index("}", start) + 1]


class _Server:
    """One server of a cluster."""

    def __init__(self, host: str, port: int, make: Callable[[], Client]) -> None:
        self.host = host
        self.address = _named(host, port)
        self._make = make
        # A connection belongs to the event loop it was made in, so each loop has a client of its own.
        self._clients: PerLoop[Client] = PerLoop()

    @property
    def client(self) -> Client:
        """The client of the loop that is running."""
        if (client := self._clients.here) is None:
            client = self._make()
            self._clients.set(client)
        return client

    async def aclose(self) -> None:
        """Close the connections."""
        await self._clients.close(end)


class _NotServed(Exception):
    """A command was not done, or its answer was lost; it may be sent again."""


class ClusterConnection(RedisConnection):
    """Connections to the servers of a cluster, and the commands sent over them.

    A call goes on for `timeout` seconds, whatever happens to the cluster in between, and ends in an answer or in
    StoreUnavailable.
    """

    def __init__(self, url: str, *, durable: bool | None, format_key: str, buckets_key: str, timeout: float) -> None:
        self._seeds, first = _addresses(url)
        super().__init__(first, durable=durable, format_key=format_key, timeout=timeout)
        self.address = hidden(url)
        self._buckets_key = buckets_key
        self._servers: dict[str, _Server] = {}
        self._owners: list[_Server | None] = []
        self._copies: list[_Server] = []
        self._reading = Lock()
        self._read = 0
        self._is_ready = self._is_doubtful = False

    # -- what stores call ---------------------------------------------------------------------------------

    async def call(self, *command: Argument) -> Any:
        """Send one command to the server that has its key."""
        await self._ready()
        return await self._in_time(lambda _: self._one(command))

    async def calls(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands that read, in one go to each server that has some of their keys."""
        await self._ready()
        return await self._in_time(lambda _: self._spread(commands))

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run a script that only reads, as one step."""
        await self._ready()
        rest = (len(keys), *keys, *arguments)
        return await self._in_time(lambda _: self._scripted(slot_of(keys[0]), script, rest))

    async def change(self, script: str, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run a script that writes, as one step that happens once, however often it has to be sent."""
        await self._ready()
        mark, life = f"{beside(keys[0])}:done:{secrets.token_hex(8)}", max(_LEAST_LIFE, 2 * self.milliseconds)
        rest = (len(keys) + 1, *keys, mark, *arguments, life)
        slot, once = slot_of(keys[0]), _once(script)
        return await self._in_time(lambda end: self._scripted(slot, once, rest, end if self._waits.copies else None))

    async def confirm(self, key: str) -> None:
        """Wait until as many replicas as asked for have all that was written beside this key, also by others."""
        if self._waits.copies:
            await self.change(MARK, (f"{beside(key)}:mark",), ())

    async def every(self, *command: Argument) -> list[Any]:
        """Send a command to every master and every replica; returns their answers."""
        await self._ready()

        async def ask(_: float) -> list[Any]:
            return [await server.client.execute_command(*command) for server in [*self._masters(), *self._copies]]

        return await self._in_time(ask)

    async def searches(self) -> bool:
        """RediSearch is not used in a cluster."""
        return False

    async def guarantees(self) -> Guarantees:
        """The guarantees of the weakest master, with those of each."""
        await self._ready()
        return await self._in_time(lambda _: self._ask_masters())

    async def aclose(self) -> None:
        """Close the connections."""
        self._closed = True
        for server in self._servers.values():
            await server.aclose()

    # -- opening ------------------------------------------------------------------------------------------

    async def _ready(self) -> None:
        if self._closed:
            raise UsageError("this store is closed; open another")
        if self._is_ready:
            return
        failure = self._failure
        async with self._opening:
            if self._is_ready:
                return
            if self._failure is not None and self._failure is not failure:
                raise StoreUnavailable(str(self._failure)) from self._failure  # found out while this call waited
            for host, port in self._seeds:
                self._server(host, port)  # imports the driver, which takes longer than many a call
            try:
                await self._in_time(lambda _: self._open())
            except StoreUnavailable as error:
                self._failure = error
                raise
            self._is_ready = True

    async def _open(self) -> None:
        if not self._owners:
            await self._read_slots(self._read)
        self._note(await self._ask_masters())
        stored = await self._kept(self._format_key, FORMAT)
        self._check_format(stored)
        buckets = await self._kept(self._buckets_key, self.said.buckets)
        if buckets != self.said.buckets:
            raise StoreError(
                f"the store on the Redis Cluster at {self.address} has {buckets} buckets, and was opened with "
                f"{self.said.buckets}; write ?buckets={buckets} in its URL. For another number, copy it to another "
                "prefix with `loom store copy`"
            )

    async def _kept(self, key: str, value: int) -> int:
        """The number that a key has, which is `value` if it has none."""
        await self._one(("SET", key, value, "NX"))
        return int(await self._one(("GET", key)))

    async def _ask_masters(self) -> Guarantees:
        from redis.exceptions import ConnectionError, TimeoutError  # noqa: PLC0415

        known, found = self._read, list[Guarantees]()
        for server in sorted(self._masters(), key=lambda one: one.address):
            try:
                found.append(replace(await self._told_by(server.client), address=server.address))
            except (ConnectionError, TimeoutError) as error:
                await self._read_slots(known)
                raise _NotServed(str(error)) from error
        weakest = min(found, key=lambda one: (one.is_durable, one.survives_power_cut, one.appendfsync == "everysec"))
        return replace(weakest, replicas=min(one.replicas for one in found), nodes=tuple(found))

    # -- who has which slot -------------------------------------------------------------------------------

    def _masters(self) -> list[_Server]:
        return list(dict.fromkeys(owner for owner in self._owners if owner is not None))

    def _server(self, host: str, port: int) -> _Server:
        name = _named(host, port)
        if name not in self._servers:
            server = _Server(host, port, partial(self._make, _at(self._url, name)))
            _ = server.client  # a URL that no client can be made of is refused now
            self._servers[name] = server
        return self._servers[name]

    def _owner(self, slot: int) -> _Server:
        server = self._owners[slot]
        if server is None:
            self._is_doubtful = True
            raise _NotServed(f"slot {slot} is not served")
        return server

    async def _read_slots(self, known: int) -> None:
        """Ask which server has which slots; once, for all calls that found the same answer out of date."""
        async with self._reading:
            if self._read != known:
                return
            servers = list(self._servers.values())
            # A server that is cut off from the others does not know it: the next time another one is asked.
            random.shuffle(servers)
            told = await self._told_first(servers, ("CLUSTER", "SLOTS"))
            for server, found in told.items():
                if not isinstance(found, Exception):
                    self._take_slots(found, server)
                    self._read += 1
                    self._is_doubtful = False
                    return
            for server, error in told.items():
                self._refuse_single(server, str(error))
                if not isinstance(error, _NotServed):
                    raise error
            raise _NotServed("; ".join(str(error) for error in told.values()) or "no server answers")

    async def _told_first(self, servers: Sequence[_Server], command: Sequence[Argument]) -> dict[_Server, Any]:
        """What servers answer until the first good answer; beside one that is slow the next is asked."""
        told: dict[_Server, Any] = {}

        async def ask(server: _Server, is_over: anyio.Event) -> None:
            try:
                (told[server],) = await self._answers(server, [command])
            except Exception as error:  # noqa: BLE001 - the caller decides: a task group would wrap it
                told[server] = error
            if not isinstance(told[server], Exception):
                tasks.cancel_scope.cancel()
            is_over.set()

        async with anyio.create_task_group() as tasks:
            for server in servers:
                is_over = anyio.Event()
                tasks.start_soon(ask, server, is_over)
                with anyio.move_on_after(min(_ASK_NEXT, self._timeout / 8)):
                    await is_over.wait()
        return told

    def _refuse_single(self, server: _Server, error: str) -> None:
        if "cluster support disabled" in error.lower():
            raise UsageError(
                f"the Redis server at {server.address} is not in a cluster; write redis://HOST:6379/0 for a single one"
            )

    def _take_slots(self, found: Sequence[tuple[int, int, *tuple[Sequence[Any], ...]]], asked: _Server) -> None:
        owners: list[_Server | None] = [None] * SLOTS
        copies: dict[_Server, None] = {}
        for first, last, *nodes in found:
            owner, *replicas = (self._server(_host(node) or asked.host, int(node[1])) for node in nodes)
            owners[first : last + 1] = [owner] * (last + 1 - first)
            copies |= dict.fromkeys(replicas)
        self._owners, self._copies = owners, list(copies)

    # -- sending, and sending again -----------------------------------------------------------------------

    async def _in_time(self, work: Callable[[float], Awaitable[_T]]) -> _T:
        """Do it, again if need be, within the time of a call, whose end the work is told."""
        why = ""
        end = anyio.current_time() + self._timeout
        with anyio.move_on_after(self._timeout), self._translated():
            pause = _FIRST_PAUSE
            while True:
                try:
                    if self._is_doubtful:
                        await self._read_slots(self._read)
                    return await work(end)
                except _NotServed as error:
                    why = f": {error}"
                await anyio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - so that not all come back at once
                pause = min(2 * pause, _LONGEST_PAUSE)
        self._is_doubtful = True
        raise StoreUnavailable(
            f"the Redis Cluster at {self.address} does not answer within {self._timeout:g} seconds{why}; are all its "
            "slots served? A write that was under way may have happened: writing the same again is safe"
        )

    async def _one(self, command: Sequence[Argument]) -> Any:
        (answer,) = await self._together(slot_of(str(command[1])), [command])
        return _raised(answer)

    async def _spread(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """The answers of commands whose keys may lie on several servers; each server gets all of its own at once."""
        groups: dict[_Server, list[int]] = {}
        for place, command in enumerate(commands):
            groups.setdefault(self._owner(slot_of(str(command[1]))), []).append(place)
        answers: list[Any] = [None] * len(commands)

        async def send(server: _Server, places: list[int]) -> None:
            try:
                slot = slot_of(str(commands[places[0]][1]))
                found = await self._heard(slot, server, [commands[place] for place in places])
            except Exception as error:  # noqa: BLE001 - raised below: a task group would wrap it
                found = [error] * len(places)
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer

        if len(groups) == 1:
            ((server, places),) = groups.items()
            await send(server, places)
        else:
            async with anyio.create_task_group() as tasks:
                for server, places in groups.items():
                    tasks.start_soon(send, server, places)
        for place, answer in enumerate(answers):
            if isinstance(answer, Exception):
                # What another server has by now is asked for alone, with all that may follow from that.
                answers[place] = await self._one(commands[place]) if _is_passing(answer) else _raised(answer)
        return answers

    async def _scripted(self, slot: int, script: str, rest: Sequence[Argument], end: float | None = None) -> Any:
        """The answer of a script; where there is an `end`, once replicas have confirmed it."""
        answers: list[Any] = []
        for command in (("EVALSHA", script_name(script), *rest), ("EVAL", script, *rest)):
            answers = await self._together(slot, [command], end)
            if not is_unknown(answers[0]):
                break
        answer = _raised(answers[0])
        if end is not None:
            if isinstance(answers[1], Exception) and _NO_MASTER.search(str(answers[1])):
                # It became a replica meanwhile: the new master is asked whether it has the write.
                self._is_doubtful = True
                raise _NotServed(str(answers[1]))
            self._check_confirmed(answers[1], self._owner(slot).address)
        return answer

    async def _together(self, slot: int, commands: Sequence[Sequence[Argument]], end: float | None = None) -> list[Any]:
        """The answers of commands that go down one connection to the server that has the slot, wherever that is."""
        from redis.exceptions import AskError, MovedError  # noqa: PLC0415

        server, before = self._owner(slot), list[Sequence[Argument]]()
        for _ in range(_MOST_STEPS):
            answers = (await self._heard(slot, server, [*before, *commands], end))[len(before) :]
            first = answers[0]
            if not isinstance(first, AskError):
                if isinstance(first, Exception) and _is_passing(first):
                    self._is_doubtful = not isinstance(first, _try_again())
                    raise _NotServed(str(first)) from first
                return answers
            host, port = cast("Any", first).host, int(cast("Any", first).port)
            if host == _NAMELESS:
                self._is_doubtful = True
                raise _NotServed(str(first))
            server = self._server(host or server.host, port)
            before = []
            if isinstance(first, MovedError):
                self._owners[slot] = server
            else:
                before = [("ASKING",)]  # it holds for the next command of this connection alone
        self._is_doubtful = True
        raise _NotServed("the servers send each other's clients to and fro")

    async def _heard(
        self, slot: int, server: _Server, commands: Sequence[Sequence[Argument]], end: float | None = None
    ) -> list[Any]:
        """The answers of a server, unless it is silent and the slot becomes that of another one.

        With an `end`, replicas confirm them until then.
        """

        def sent() -> list[Sequence[Argument]]:
            # Confirming is the last thing that a call does: it gets the time that is left.
            return [*commands, *([] if end is None else [self._waiting(end - anyio.current_time())])]

        patience = min(_SILENT, self._timeout / 4)
        with anyio.move_on_after(patience):
            return await self._answers(server, sent())
        owner, found = self._owners[slot], list[Any]()

        async def send() -> None:
            try:
                found.append(await self._answers(server, sent()))
            except Exception as error:  # noqa: BLE001 - raised below: a task group would wrap it
                found.append(error)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            while self._owners[slot] is owner:
                with suppress(_NotServed):
                    await self._read_slots(self._read)
                await anyio.sleep(patience)
            tasks.cancel_scope.cancel()
        if not found:
            raise _NotServed(f"{server.address} is silent")
        return _raised(found[0])

    async def _answers(self, server: _Server, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """The answers of commands down one connection of a server, errors among them."""
        from redis import exceptions  # noqa: PLC0415

        client = server.client
        try:
            if len(commands) > 1:
                pipeline = client.pipeline(transaction=False)
                for command in commands:
                    pipeline.execute_command(*command)
                return await pipeline.execute(raise_on_error=False)
            return [await client.execute_command(*commands[0])]
        except exceptions.ResponseError as error:
            return [error]
        except exceptions.AuthenticationError:
            raise
        except (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.InvalidResponse, OSError) as error:
            self._is_doubtful = True
            raise _NotServed(f"{server.address}: {error}") from error


def _addresses(url: str) -> tuple[list[tuple[str, int]], str]:
    """The servers that the URL of a cluster names, and the URL of the first of them alone."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not url.startswith(f"{parts.scheme}://") or not parts.netloc:
        raise UsageError(f"{hidden(url)!r} is not the address of a Redis Cluster; write {_FORM}")
    if parts.path not in ("", "/", "/0"):
        raise UsageError(
            f"a Redis Cluster has no databases, but {hidden(url)!r} names {parts.path!r}; to keep stores apart, give "
            "each a prefix of its own: ?prefix=NAME"
        )
    found: list[tuple[str, int]] = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{text}")
        try:
            found.append((one.hostname or "", one.port or _PORT))
        except ValueError as error:
            raise UsageError(f"{text!r} is not the address of a server; write {_FORM}") from error
        if not one.hostname:
            raise UsageError(f"{hidden(url)!r} names a server without a host; write {_FORM}")
    first = parts._replace(scheme=_SCHEMES[parts.scheme], path="/0").geturl()
    return found, _at(first, _named(*found[0]))


def _at(url: str, name: str) -> str:
    """The URL of another server, for the same user."""
    parts = urlsplit(url)
    who, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{who}{at}{name}").geturl()


def _host(node: Sequence[Any]) -> str:
    """The host of a server in an answer of CLUSTER SLOTS; "" where it was never told its own address."""
    named = _text(node[0])
    if named != _NAMELESS:
        return named
    more = [_text(one) for one in node[3]]
    return dict(zip(more[::2], more[1::2], strict=True)).get("ip", "")


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _named(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@lru_cache(maxsize=64)
def _once(script: str) -> str:
    return ONCE % script


def _raised(answer: Any) -> Any:
    """An answer, unless it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer


def _is_passing(error: Exception) -> bool:
    """Whether a command was not done, and may be done soon, here or by another server."""
    from redis import exceptions  # noqa: PLC0415

    passing = (exceptions.AskError, exceptions.TryAgainError, exceptions.ClusterDownError, exceptions.ReadOnlyError)
    return isinstance(error, passing) or str(error).startswith(_NOT_NOW)


def _try_again() -> type[Exception]:
    from redis.exceptions import TryAgainError  # noqa: PLC0415

    return TryAgainError


class RedisPlace(NamedTuple):
    """Where a store is: the URL of a server or a cluster, and how its keys start there.

    `buckets` is None on a single server.
    """

    url: str
    prefix: str
    buckets: int | None

    @staticmethod
    def of(url: str, prefix: str | None) -> RedisPlace:
        """The place that a URL names; a prefix that is given beside it counts more than its own."""
        said = split(url)[1]
        chosen = prefix if prefix is not None else _PREFIX if said.prefix is None else said.prefix
        check_text(chosen, "the prefix of a Redis store")
        return RedisPlace(url, chosen, said.buckets if is_cluster(url) else None)

    def connect(self, *, durable: bool | None, format_key: str, timeout: float) -> RedisConnection:
        """The connection to the server or the cluster."""
        if self.buckets is None:
            return RedisConnection(self.url, durable=durable, format_key=format_key, timeout=timeout)
        key = f"{self.prefix}:buckets"
        return ClusterConnection(self.url, durable=durable, format_key=format_key, buckets_key=key, timeout=timeout)
