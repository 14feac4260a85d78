"""Connection to a Redis server, and the options of its URL; `cluster.py` is that of a cluster."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha1
from typing import Any, NamedTuple, Protocol, TypeAlias, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from anyio import Lock

from loom.core.record import Layer
from loom.core.threads import PerLoop
from loom.errors import FormatTooNew, MissingExtra, StoreError, StoreUnavailable, UsageError

# Options in a Redis URL: `?durable=true&ttl=30d&ttl_l1=1h&prefix=bot&wait=1`.

Ttl: TypeAlias = timedelta | Mapping[Layer | None, timedelta]
"""How long episodes are kept: all of them, or those of each layer; None names those that no layer names."""

LAYERS = {layer.label.lower(): layer for layer in Layer}
REST = "rest"
BUCKETS = 256
"""How many parts a new store on a cluster has, unless its URL says otherwise."""
_MOST_BUCKETS = 4096
_MOST_COPIES = 100
_NUMBERS = {"wait": (1, _MOST_COPIES), "waitaof": (0, _MOST_COPIES), "buckets": (1, _MOST_BUCKETS)}
_PLAIN = ("prefix", *_NUMBERS)
"""Options that are one value, given once."""
_NAMES = {"durable", *_PLAIN, "ttl", *(f"ttl_{layer}" for layer in LAYERS)}
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PERIOD = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([smhdw]?)", re.ASCII)
_YES_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Options(NamedTuple):
    """Options of a store: whether to refuse a server that may lose acknowledged writes, and how long episodes stay.

    `wait`: how many replicas have to confirm a write before it is acknowledged; `waitaof`: the same on their disks, and
    on that of the master. `prefix`: how all keys start. `buckets`: how many parts a store on a cluster has.
    """

    durable: bool = False
    ttl: Mapping[Layer | None, timedelta] = {}
    wait: int = 0
    waitaof: int | None = None
    prefix: str | None = None
    buckets: int = BUCKETS


def period(value: object, what: str) -> timedelta:
    """A period: a timedelta, seconds, or a number with a unit, such as `90s`, `1h`, `7d` and `2w`."""
    if isinstance(value, timedelta):
        found = value
    else:
        match = None if isinstance(value, bool) else _PERIOD.fullmatch(str(value).strip().lower())
        if match is None:
            raise UsageError(f"{what}={value!r} is not a period; give seconds, or a number with s, m, h, d or w: 7d")
        found = _seconds(float(match[1]) * _UNITS[match[2]])
    if found <= timedelta(0):
        raise UsageError(f"with {what}={value!r} everything is over at once; give more, or none")
    return found


def _seconds(amount: float) -> timedelta:
    try:
        return timedelta(seconds=amount)
    except OverflowError:
        return timedelta.max


def periods(value: object) -> dict[Layer | None, timedelta]:
    """How long episodes of each layer are kept, as `ttl` of a mapping says it: one period, or one for each layer."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return {None: period(value, "ttl")}
    given: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
    return {_layer(name): period(value, f"ttl of {name}") for name, value in given.items()}


def _layer(name: object) -> Layer | None:
    if name is None or str(name).lower() == REST:
        return None
    if isinstance(name, Layer) or str(name).lower() in LAYERS:
        return name if isinstance(name, Layer) else LAYERS[str(name).lower()]
    raise UsageError(f"ttl names {name!r}, which is not a layer; the names are {', '.join(LAYERS)} and {REST}")


def split(url: str) -> tuple[str, Options]:
    """A URL as the driver reads it, and what it says to Loom."""
    parts = urlsplit(url)
    if not parts.query:
        return url, Options()
    given = parse_qsl(parts.query, keep_blank_values=True)
    mine = {name: value for name, value in given if name in _NAMES}
    if not mine:
        return url, Options()
    others = [(name, value) for name, value in given if name not in _NAMES]
    durable = mine.pop("durable", "no")
    plain: dict[str, Any] = {name: mine.pop(name) for name in _PLAIN if name in mine}
    plain |= {name: _number(name, value) for name, value in plain.items() if name in _NUMBERS}
    ttl = {LAYERS.get(name.removeprefix("ttl_")): period(value, name) for name, value in mine.items()}
    return parts._replace(query=urlencode(others)).geturl(), Options(_durable(durable), ttl, **plain)


def _number(name: str, value: str) -> int:
    least, most = _NUMBERS[name]
    if not value.isascii() or not value.isdigit() or not least <= int(value) <= most:
        raise UsageError(f"{name}={value!r} is not a number from {least} to {most}; give one")
    return int(value)


def with_options(url: str, *, durable: object = None, ttl: object = None) -> str:
    """A URL that says what stood beside it in a mapping, which counts more than what it says itself."""
    address, options = split(url)
    ends = {**options.ttl, **periods(ttl)}
    more = {
        "ttl" if layer is None else f"ttl_{layer.label.lower()}": f"{end.total_seconds():.6f}".rstrip("0").rstrip(".")
        for layer, end in ends.items()
    }
    if options.durable if durable is None else _durable(durable):
        more["durable"] = "true"
    given = {name: (getattr(options, name), getattr(Options(), name)) for name in _PLAIN}
    more |= {name: str(value) for name, (value, usual) in given.items() if value != usual}
    if not more:
        return address
    return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(more)}"


def _durable(value: object) -> bool:
    if str(value).lower() not in _YES_NO:
        raise UsageError(f"durable={value!r} is neither true nor false; give one of them")
    return _YES_NO[str(value).lower()]


Argument: TypeAlias = str | bytes | int | float
_SCHEMES = ("redis", "rediss", "unix")
FORMAT = 1
"""The format of everything that Loom keeps in Redis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantees:
    """What a Redis server says of what it keeps. None: the server does not tell.

    `appendonly`: every write goes to a file. `appendfsync`: when that file is forced to disk. `eviction`: what the
    server does when its memory is full. `replicas`: how many copies follow it at this moment. `wait` and `waitaof`: how
    many of them confirm each write of this store, as its URL asks. Of a cluster these are the weakest of each master,
    and `nodes` are those of the masters.
    """

    version: str
    appendonly: bool
    appendfsync: str | None
    eviction: str | None
    address: str = ""
    replicas: int = 0
    wait: int = 0
    waitaof: int | None = None
    nodes: tuple[Guarantees, ...] = ()

    @property
    def is_durable(self) -> bool:
        """Whether an acknowledged write is still there after the server was killed and started again."""
        return self.appendonly and self.eviction in (None, "noeviction")

    @property
    def survives_power_cut(self) -> bool:
        """Whether an acknowledged write is on the disk."""
        return self.is_durable and (self.appendfsync == "always" or self.waitaof is not None)

    @property
    def survives_failover(self) -> bool:
        """Whether an acknowledged write is still there after a replica took the place of its master."""
        return self.confirming > 0

    @property
    def confirming(self) -> int:
        """How many replicas confirm a write before it is acknowledged."""
        return max(self.wait, self.waitaof or 0)

    def __str__(self) -> str:
        which = f" (of {len(self.nodes)} masters, at {self.address})" if self.nodes else ""
        return f"{self._alone()}{which}{self._copied()}"

    def _alone(self) -> str:
        if not self.appendonly:
            return "not durable: without appendonly, a restart takes what was written since the last snapshot, or all"
        if not self.is_durable:
            return f"not durable: maxmemory-policy is {self.eviction}, so a full server drops records"
        if self.survives_power_cut:
            return "durable: an acknowledged write survives a killed server and a power cut"
        if self.appendfsync == "everysec":
            return "durable: survives a killed server; a power cut takes up to about a second (appendfsync everysec)"
        return f"durable: survives a killed server; a power cut may take writes (appendfsync {self.appendfsync})"

    def _copied(self) -> str:
        """What is left of a write when a replica takes the place of its master."""
        if self.confirming:
            where = "on the disks of" if self.waitaof else "by"
            lack = f"; only {self.replicas} follow now" if self.replicas < self.confirming else ""
            return f"; each write is confirmed {where} {self.confirming} replicas, so it survives a failover{lack}"
        if self.nodes:
            return "; a failover may take what was acknowledged just before it (?wait=1 waits for a replica)"
        return ""


class _Pipeline(Protocol):
    def execute_command(self, *command: Argument) -> object: ...

    async def execute(self, *, raise_on_error: bool = True) -> list[Any]: ...


class Client(Protocol):
    """What is used of the driver's client, which is typed too loosely to be checked."""

    async def execute_command(self, *command: Argument) -> Any:
        """Send a command; returns its answer, or raises the error that it is."""

    def pipeline(self, *, transaction: bool) -> _Pipeline:
        """Commands that go down one connection together."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""


class RedisConnection:
    """One pool of connections, and the commands sent over it."""

    def __init__(self, url: str, *, durable: bool | None, format_key: str, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not url.startswith(f"{parts.scheme}://"):
            raise UsageError(f"{hidden(url)!r} is not the address of a Redis server; write redis://HOST:6379/0")
        _check_address(url)
        self.address = hidden(url)
        self._url, self.said = split(url)
        self._waits = _waits(self.said)
        self._durable = self.said.durable if durable is None else durable
        self._format_key, self._timeout = format_key, timeout
        self.has_search = False
        """Whether the server has RediSearch, as far as is known: nothing is before the first call."""
        self.notes: tuple[str, ...] = ()
        """What a person should know of what the server guarantees, as it was when it was connected."""
        self._opening = Lock()
        # A connection belongs to the event loop it was made in, so each loop has a client of its own.
        self._clients: PerLoop[Client] = PerLoop()
        self._failure: StoreUnavailable | None = None
        self._closed = False

    async def call(self, *command: Argument) -> Any:
        """Send one command."""
        client = await self._opened()
        with self._translated():
            return await client.execute_command(*command)

    async def calls(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send several commands in one go; others may come in between."""
        client = await self._opened()
        with self._translated():
            pipeline = client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return await pipeline.execute()

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run a script that only reads, as one step."""
        client = await self._opened()
        from redis.exceptions import NoScriptError  # noqa: PLC0415 - _opened() has said if it is missing

        rest = (len(keys), *keys, *arguments)
        with self._translated():
            try:
                return await client.execute_command("EVALSHA", script_name(script), *rest)
            except NoScriptError:
                return await client.execute_command("EVAL", script, *rest)

    async def change(self, script: str, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run a script that writes, as one step; the answer comes when as many replicas as asked for have confirmed."""
        if not self._waits.copies:
            return await self.run(script, keys, arguments)
        client = await self._opened()
        rest = (len(keys), *keys, *arguments)
        with self._translated():
            for command in (("EVALSHA", script_name(script)), ("EVAL", script)):
                answer, confirmed = await self._confirmed(client, (*command, *rest), self._timeout)
                if not is_unknown(answer):
                    break
            if isinstance(answer, Exception):
                raise answer
        self._check_confirmed(confirmed, self.address)
        return answer

    async def confirm(self, key: str) -> None:
        """Wait until as many replicas as asked for have all that was written beside this key, also by others."""
        if self._waits.copies:
            # WAIT looks at what its own connection wrote: without a write it would wait for nothing.
            await self.change(MARK, (f"{key}:mark",), ())

    async def every(self, *command: Argument) -> list[Any]:
        """Send a command to every server; returns their answers."""
        return [await self.call(*command)]

    async def _confirmed(self, client: Client, command: Sequence[Argument], seconds: float) -> tuple[Any, Any]:
        """The answer of a command, and of how many replicas have it: over one connection, or it would not count."""
        pipeline = client.pipeline(transaction=False)
        pipeline.execute_command(*command)
        pipeline.execute_command(*self._waiting(seconds))
        answer, confirmed = await pipeline.execute(raise_on_error=False)
        return answer, confirmed

    def _waiting(self, seconds: float) -> tuple[Argument, ...]:
        """The command that waits for replicas, for most of so many seconds."""
        left = seconds - max(_WAY_BACK, seconds / 10)
        return (self._waits.command, *self._waits.copies, max(1, round(left * 1000)))

    def _check_confirmed(self, confirmed: Any, address: str) -> None:
        """Refuse to acknowledge what fewer replicas have than were asked for."""
        wanted: Sequence[int] = self._waits.copies
        if isinstance(confirmed, Exception):
            raise StoreError(f"the Redis server at {address} refused {self._waits.command}: {confirmed}") from confirmed
        found: list[int] = confirmed if len(wanted) > 1 else [confirmed]
        if any(have < due for have, due in zip(found, wanted, strict=True)):
            have, due = found[len(found) - 1], wanted[len(wanted) - 1]
            what = f"{have} of {due} replicas confirmed it{' on their disks' if len(found) > 1 else ''} in time"
            if have >= due:
                what = "not on its disk in time"
            raise StoreUnavailable(
                f"the write is on the Redis server at {address}, but {what}: it may be lost if that server fails now. "
                "Writing the same again is safe"
            )

    @property
    def milliseconds(self) -> int:
        """How long an answer may take."""
        return max(1, round(self._timeout * 1000))

    async def searches(self) -> bool:
        """Whether the server has RediSearch and lets this user in."""
        await self._opened()
        return self.has_search

    async def guarantees(self) -> Guarantees:
        """The guarantees of the server, read from it."""
        return await self._ask(await self._opened())

    async def aclose(self) -> None:
        """Close the connections."""
        self._closed = True
        await self._clients.close(end)

    async def _opened(self) -> Client:
        if self._closed:
            raise UsageError("this store is closed; open another")
        if (client := self._clients.here) is not None:
            return client
        failure = self._failure
        async with self._opening:
            if (client := self._clients.here) is None:
                if self._failure is not None and self._failure is not failure:
                    raise StoreUnavailable(str(self._failure)) from self._failure  # found out while this call waited
                client = await self._connected()
                self._clients.set(client)
            return client

    async def _connected(self) -> Client:
        client = self._make(self._url)
        try:
            await self._check(client)
        except BaseException as error:
            self._failure = error if isinstance(error, StoreUnavailable) else None
            await client.aclose()
            raise
        return client

    def _make(self, url: str) -> Client:
        """The client of one server; it connects at its first command."""
        try:
            from redis.asyncio import Redis  # noqa: PLC0415 - only who uses Redis needs the driver
            from redis.asyncio.retry import Retry  # noqa: PLC0415
            from redis.backoff import NoBackoff  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtra("a Redis store", "redis") from error
        # A write that was sent and not answered may have happened: only the caller can decide to send it again.
        try:
            client = Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
                url,
                protocol=2,
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
                retry=Retry(NoBackoff(), 0),
            )
            # It connects to nothing, and refuses an option that it does not know.
            cast("Any", client).connection_pool.make_connection()
        except ValueError as error:
            raise UsageError(f"{self.address!r} is not the address of a Redis server: {error}") from error
        except TypeError as error:
            name = str(error).rpartition("argument ")[2]
            raise UsageError(
                f"the URL of {self.address!r} has the option {name}, which is not known; those of Loom are durable, "
                "ttl and ttl_l1 to ttl_l4, prefix, wait, waitaof and buckets, and the others are those of the driver"
            ) from error
        return cast("Client", client)

    async def _check(self, client: Client) -> None:
        self._note(await self._ask(client))
        self.has_search = await _has_search(client)
        with self._translated():
            await client.execute_command("SET", self._format_key, FORMAT, "NX")
            stored = int(await client.execute_command("GET", self._format_key))
        self._check_format(stored)

    def _note(self, found: Guarantees) -> None:
        """Refuse a server that may lose what it acknowledged, or say so."""
        if not found.is_durable:
            what = f"the Redis server at {self.address} is {found}"
            remedy = "set `appendonly yes` and `maxmemory-policy noeviction` on it"
            if self._durable:
                raise StoreError(f"{what}; {remedy}, or leave durable=True out")
            self.notes = (f"{what}; {remedy} to keep everything that is acknowledged",)

    def _check_format(self, stored: int) -> None:
        if stored > FORMAT:
            raise FormatTooNew(f"the Redis store at {self.address} has format {stored}; this Loom reads up to {FORMAT}")

    async def _ask(self, client: Client) -> Guarantees:
        with self._translated():
            return await self._told_by(client)

    async def _told_by(self, client: Client) -> Guarantees:
        from redis.exceptions import NoPermissionError, ResponseError  # noqa: PLC0415

        info: dict[str, Any] = await client.execute_command("INFO")
        try:
            config: dict[str, Any] = await client.execute_command("CONFIG GET", "appendfsync")
        except (NoPermissionError, ResponseError):  # many hosted servers keep their settings to themselves
            config = {}
        return Guarantees(
            version=str(info.get("redis_version", "")),
            appendonly=bool(info.get("aof_enabled")),
            appendfsync=config.get("appendfsync"),
            eviction=info.get("maxmemory_policy"),
            replicas=int(info.get("connected_slaves", 0)),
            wait=self.said.wait,
            waitaof=self.said.waitaof,
        )

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Errors of the driver as errors of Loom."""
        from redis import exceptions  # noqa: PLC0415

        try:
            yield
        except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
            raise StoreError(
                f"the Redis server at {self.address} refused the login or a command: {error}; check the user, the "
                f"password and the rights in the URL: redis://USER:PASSWORD@HOST:6379/0"
            ) from error
        except exceptions.BusyLoadingError as error:
            raise StoreUnavailable(
                f"the Redis server at {self.address} still loads its data; try again soon"
            ) from error
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            raise StoreUnavailable(
                f"the Redis server at {self.address} does not answer: {error}; is it running? A write that was under "
                f"way may have happened: writing the same again is safe"
            ) from error
        except (exceptions.AskError, exceptions.ClusterCrossSlotError) as error:
            raise StoreError(
                f"the Redis server at {self.address} is one of a cluster; write redis+cluster://HOST:6379/ as its URL"
            ) from error
        except exceptions.ReadOnlyError as error:
            raise StoreUnavailable(
                f"the Redis server at {self.address} is a replica, which takes no writes: {error} Name its master"
            ) from error
        except exceptions.OutOfMemoryError as error:
            raise StoreUnavailable(
                f"the Redis server at {self.address} is full, and nothing was written: {error} Give it more memory "
                "(maxmemory), or forget() something"
            ) from error
        except exceptions.ResponseError as error:
            raise StoreError(f"the Redis server at {self.address} refused a command: {error}") from error
        except exceptions.RedisError as error:
            raise StoreError(
                f"what answers at {self.address} is not a Redis server: {error}; check the host and the port"
            ) from error


MARK = "return redis.call('SET', KEYS[1], '', 'PX', 1)"
"""Writes something that is gone at once, for a connection that has to wait for what others wrote."""
_WAY_BACK = 0.25
"""Seconds that replicas do not get to confirm a write: the answer still has to come back in time."""


def script_name(script: str) -> str:
    """How Redis calls a script: by its SHA-1, which is a name here and guards nothing."""
    return sha1(script.encode(), usedforsecurity=False).hexdigest()


class Waits(NamedTuple):
    """The command that waits for copies of a write, and how many: on replicas; before that, for WAITAOF, its own."""

    command: str = ""
    copies: tuple[int, ...] = ()


def _waits(options: Options) -> Waits:
    if options.waitaof is not None:
        return Waits("WAITAOF", (1, max(options.waitaof, options.wait)))
    return Waits("WAIT", (options.wait,)) if options.wait else Waits()


def is_unknown(answer: object) -> bool:
    """Whether the answer says that the server does not know a script by its name."""
    from redis.exceptions import NoScriptError  # noqa: PLC0415

    return isinstance(answer, NoScriptError)


async def _has_search(client: Client) -> bool:
    """Whether the server has RediSearch for this user and this database: it indexes the first one alone."""
    from redis.exceptions import ResponseError  # noqa: PLC0415

    try:
        await client.execute_command("FT._LIST")
        connection: dict[str, Any] = await client.execute_command("CLIENT INFO")
    except ResponseError:
        return False
    return int(connection.get("db", 0)) == 0


def _check_address(url: str) -> None:
    """Refuse what the driver would read as another address than was meant; what is not understood is not repeated."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    if "decode_responses" in given:
        raise UsageError("decode_responses in the URL of a Redis store changes what it reads; leave it out")
    if parts.scheme == "unix":
        return
    try:
        _ = parts.port
    except ValueError:
        is_good = False
    else:
        is_good = "@" not in parts.path and not parts.fragment
    if not is_good:
        raise UsageError(
            "the port in the URL of a Redis server is not a number up to 65535, or its password has characters that "
            "end it; write redis://USER:PASSWORD@HOST:6379/0, with %2F for a / in the password, %23 for #, %3F for ? "
            "and %40 for @"
        )
    database = parts.path.strip("/")
    if database and not (database.isascii() and database.isdigit()):
        raise UsageError(
            f"{hidden(url)!r} names the database {database!r} of a Redis server, and they have numbers; write "
            "redis://HOST:6379/0, and ?prefix=NAME to keep stores apart"
        )


async def end(client: Client) -> None:
    """Close the connections of a client."""
    await client.aclose()


def hidden(url: str) -> str:
    """The address without the password, which may stand behind the question mark too."""
    parts = urlsplit(url)
    if "@" not in parts.netloc and not parts.query:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
