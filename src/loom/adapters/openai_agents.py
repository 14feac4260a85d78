"""Sessions of the OpenAI Agents SDK in Loom's log: nothing is overwritten, and the model may see a compacted view."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from loom.adapters._logs import Logs
from loom.adapters._openai_items import COMPACTION, ITEM, POP, as_items, as_messages, fits, originals, shown_items
from loom.adapters._shared import Owner, home_of_checkpoints
from loom.core.log import Recorded
from loom.engine.open import open_model
from loom.errors import CompactionError, MissingExtra, UsageError
from loom.protocols.checkpoint_store import CheckpointStore
from loom.session.compaction.cut import shown_tokens
from loom.session.compaction.driver import Load, build, decide
from loom.session.config import CompactionConfig
from loom.session.history import current_request
from loom.text.tokens import EstimateCounter

try:
    from agents import SessionSettings, TResponseInputItem
    from agents.memory.session import SessionABC
except ImportError as error:
    raise MissingExtra("loom.adapters.openai_agents", "openai-agents") from error


class LoomSession(Owner, SessionABC):
    """One conversation of one user, for `Runner.run(..., session=...)`.

    Items are entries of a log. Taking one back is an entry too, and so is a compaction: the items that it replaces are
    no longer given, and stay in the log. Any number of sessions, threads and processes may add at one time.
    """

    def __init__(
        self,
        session_id: str,
        url: str | CheckpointStore,
        *,
        user_id: str,
        namespace: str = "default",
        compaction: CompactionConfig | Mapping[str, Any] | None = None,
        session_settings: SessionSettings | Mapping[str, Any] | None = None,
    ) -> None:
        """Continue a conversation, or begin it.

        Args:
            session_id: the conversation.
            url: where the sessions are (`sqlite:./bot.db`), closed with this one; or a store, which stays open.
            user_id: whose conversation it is.
            namespace: keeps applications on one store apart.
            compaction: when and how get_items() shortens what it gives. The trigger counts `tokens` or `messages`; a
                strategy that writes summaries needs `summary_model`.
            session_settings: those of the SDK, such as the `limit` of get_items().
        """
        self.session_id = session_id
        given = session_settings if isinstance(session_settings, SessionSettings) else dict(session_settings or {})
        self.session_settings = given if isinstance(given, SessionSettings) else SessionSettings(**given)
        self._home = home_of_checkpoints(url)
        self._logs = Logs(user_id=user_id, namespace=namespace)
        self._logs.user.for_session(session_id)  # refuses what names nothing
        self._compaction = None if compaction is None else _checked(CompactionConfig.of(compaction))

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The conversation, the last `limit` items of it; with `compaction=` what a compaction shows of it."""
        log = await self._home.call(self._read)
        if self._compaction is not None:
            log = await self._home.call(lambda store: self._compacted(store, log))
        items = [*shown_items(log).values()]
        most = limit if limit is not None else self.session_settings.limit if self.session_settings else None
        return items if most is None or most < 0 else items[-most:] if most else []

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end, all of them or none."""
        entries = [self._logs.entry(ITEM, item) for item in items]
        await self._home.call(lambda store: self._logs.add(store, self.session_id, entries))

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the last item back, and return it; None where there is none. No two callers get the same one."""
        popped: list[TResponseInputItem] = []

        def decide_last(log: tuple[Recorded, ...]) -> list[Recorded]:
            popped.clear()
            items = originals(log)
            if not items:
                return []
            id, item = items.popitem()
            popped.append(item)
            return [self._logs.entry(POP, id)]

        await self._home.call(lambda store: self._logs.change(store, self.session_id, decide_last))
        return popped[0] if popped else None

    async def clear_session(self) -> None:
        """Remove the conversation, and every byte of it."""
        await self._home.call(lambda store: self._logs.forget(store, self.session_id))

    async def _read(self, store: CheckpointStore) -> tuple[Recorded, ...]:
        return await self._logs.read(store, self.session_id)

    async def _compacted(self, store: CheckpointStore, log: tuple[Recorded, ...]) -> tuple[Recorded, ...]:
        """The log with a compaction added where one is due; where it cannot be done, as it is."""
        assert self._compaction is not None
        items, counter = shown_items(log), EstimateCounter()
        shown, groups = as_messages(items)
        tokens = shown_tokens(shown, counter)
        decision = decide(
            self._compaction, Load(tokens=tokens, history=tokens, messages=len(items), window=sys.maxsize)
        )
        if not decision.compact:
            return log
        request = current_request(shown)
        keep = frozenset({request.id} if request and shown[-1].message.role != "assistant" else ())
        try:
            rewrite = await build(self._compaction).compact(shown, target=decision.target, counter=counter, keep=keep)
        except CompactionError:
            return log
        made = [
            {"covers": [id for key in r.covers for id in groups[key]], "items": as_items(r.message)}
            for r in rewrite.replacements
        ]
        if made:
            await self._logs.change(
                store,
                self.session_id,
                # Another reader may have compacted meanwhile: then its view is the one.
                lambda now: [self._logs.entry(COMPACTION, made)] if fits([*shown_items(now)], made) else [],
            )
        return await self._read(store)


def _checked(config: CompactionConfig) -> CompactionConfig:
    if config.trigger.type == "fraction":
        raise UsageError(
            "compaction has a trigger of the type fraction, and a session of the SDK does not know the model's window; "
            "give tokens or messages, such as {'trigger': {'type': 'tokens', 'threshold': 100_000}}"
        )
    if isinstance(config.summary_model, str):
        object.__setattr__(config, "summary_model", open_model(config.summary_model))
    build(config)  # refuses a strategy that needs a model where there is none
    return config
