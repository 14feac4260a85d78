"""Checkpoints on a Redis server."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from loom.core.checks import check_text
from loom.core.clock import Clock
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.stores.checkpoints import Action, BaseCheckpointStore, T
from loom.stores.redis.checkpoint_rows import CheckpointRows, UserRows
from loom.stores.redis.describing import server_labels
from loom.stores.redis.forgetting import FILES
from loom.stores.redis.link import Guarantees, Link
from loom.stores.redis.names import CheckpointNames


class RedisCheckpointStore(BaseCheckpointStore):
    """Keeps sessions on a Redis server; forks and prunes. Any number of stores and processes may share it.

    With `ttl`, a session is over so long after its last save: from that moment no call sees it. What it held goes with
    the next change of its user, and Redis drops everything of a user by itself when their last session is over. A log
    that a fork begins with stays as long as the fork. A save with another `ttl`, or none, sets the end anew.

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
        prefix: str = "loom",
        durable: bool | None = None,
        timeout: float = 10.0,
    ) -> None:
        super().__init__(clock)
        check_text(prefix, "the prefix of a Redis store")
        if ttl is not None and ttl < timedelta(milliseconds=1):
            raise UsageError(f"sessions with ttl={ttl} are over at once; give at least a millisecond, or None")
        names = CheckpointNames(prefix)
        self._link = Link(url, durable=durable, format_key=names.format, timeout=timeout)
        ttl = self._link.said.ttl.get(None) if ttl is None else ttl
        self._prefix, self._ttl = prefix, ttl
        self._rows = CheckpointRows(self._link, names, self._clock, ttl)

    async def __aenter__(self) -> Self:
        await self._link.guarantees()
        return self

    async def guarantees(self) -> Guarantees:
        """What the server promises for what was acknowledged, as it is set up now."""
        return await self._link.guarantees()

    async def describe(self) -> dict[str, str]:
        """The store and its guarantees, by label."""
        kept = "for ever" if self._ttl is None else f"for {self._ttl} after their last save"
        found = await self._link.guarantees()
        return {**server_labels(found, self._prefix), "retention": f"sessions are kept {kept}"}

    async def _step(self, scope: Scope, action: Action[T], *, writes: bool) -> T:  # noqa: ARG002 - a script is a step
        return await action(UserRows(self._rows, scope))

    async def aclose(self) -> None:
        """Close the connections. Closing twice is allowed."""
        await self._link.aclose()
