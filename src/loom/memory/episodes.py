"""Session episodes: one record in L3 per conversation, which summarises it and names its turns as sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256

from loom.core.clock import Clock
from loom.core.filter import Range
from loom.core.heavy import off_loop
from loom.core.record import Episode, Layer, Provenance, Record
from loom.core.scope import Scope
from loom.memory.compress import ContextCompressor
from loom.memory.config import MemoryConfig
from loom.memory.neighbours import session_turns
from loom.protocols.jobs import Job, KeepsJobs
from loom.protocols.memory_store import MemoryStore
from loom.protocols.whole_store import WholeStore

EPISODE = "episode"
"""The kind of job that writes the episode of a session."""
SUMMARY = "summary"
"""The kind of job that lets a model rewrite it."""
PREFIX = "ep:"
ARE_EPISODES = Range("id", low=PREFIX, high="ep;")
"""The records whose ids have the prefix of session episodes: `;` follows `:` in ASCII."""
MOST_TURNS = 1_000
"""Turns that an episode is made from, the newest ones. All of them are its sources, so that forgetting one removes the
episode too."""
_IDLE = timedelta(hours=1)
"""How long a session is idle before it counts as ended, if L1 has no retention."""


def episode_id(session_id: str) -> str:
    """The id of the episode of a session: the same however often it is written."""
    return PREFIX + sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def is_session_episode(record: object) -> bool:
    """Whether a record is the episode of a session."""
    return isinstance(record, Episode) and record.session_id is not None and record.id == episode_id(record.session_id)


def is_summary(record: object) -> bool:
    """Whether a record summarises several others, so that it cannot replace them."""
    return is_session_episode(record) or (isinstance(record, Episode) and record.id.startswith("sum:"))


def session_job(kind: str, scope: Scope, session_id: str, run_at: datetime) -> Job:
    """The job of kind EPISODE or SUMMARY for a session; one of each is open at a time."""
    key = f"{kind}:{episode_id(session_id)}"
    return Job(id=key, scope=scope.for_user(), kind=kind, key=key, run_at=run_at, payload={"session": session_id})


def episode_jobs(gone: Iterable[Record], left: Iterable[Record], user: Scope, now: datetime) -> list[Job]:
    """Jobs that rewrite the session episodes among `gone`, for sessions that still have turns."""
    lost = {record.session_id for record in gone if isinstance(record, Episode) and is_session_episode(record)}
    there = {r.session_id for r in left if isinstance(r, Episode) and not r.sources and r.session_id in lost}
    return [session_job(EPISODE, user, session, now) for session in sorted(s for s in there if s is not None)]


async def waiting_jobs(store: KeepsJobs, user: Scope, now: datetime) -> Counter[str]:
    """Number of pending jobs of a user by kind; sessions that have not ended yet are not counted.

    A store that cannot list its jobs reports them as one kind with an empty name.
    """
    if not isinstance(store, WholeStore):
        return Counter({"": await store.pending(user)})
    jobs = await store.open_jobs(user)
    return Counter(job.kind for job in jobs if job.kind != EPISODE or job.run_at <= now)


async def job_episodes(store: MemoryStore, job: Job) -> list[Episode]:
    """The episodes that a job names and that still exist."""
    found = [await store.get(job.scope, id) for id in job.payload.get("episodes", ())]
    return [episode for episode in found if isinstance(episode, Episode)]


def texts_of(episodes: Iterable[Episode]) -> list[tuple[str, str]]:
    """Ids and texts, to compare what was read with what is stored now."""
    return [(episode.id, episode.text) for episode in episodes]


class SessionEpisodes:
    """Builds the episodes of sessions; the callers write them."""

    def __init__(self, store: MemoryStore, config: MemoryConfig, *, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._compressor = ContextCompressor()
        hours = config.l1.retention_hours
        self.idle = _IDLE if hours is None else timedelta(hours=hours)
        """How long a session is idle before it counts as ended."""

    def job(self, scope: Scope) -> Job:
        """The job that a turn of a session queues: due when the session may have ended."""
        assert scope.session_id is not None
        return session_job(EPISODE, scope, scope.session_id, self._clock.now() + self.idle)

    async def turns(self, user: Scope, session_id: str) -> list[Episode]:
        """The turns that the episode of a session is made from, in order."""
        return (await session_turns(self._store, user.for_session(session_id)))[-MOST_TURNS:]

    def idle_at(self, turns: Sequence[Episode]) -> datetime:
        """When a session has been idle for long enough."""
        return max(turn.recorded_at for turn in turns) + self.idle

    async def stored(self, user: Scope, session_id: str) -> Episode | None:
        """The episode of a session as it is stored."""
        record = await self._store.get(user, episode_id(session_id))
        return record if isinstance(record, Episode) else None

    async def build(
        self, user: Scope, session_id: str, turns: Sequence[Episode], *, text: str | None = None
    ) -> tuple[Episode | None, bool]:
        """The episode to write for these turns, None if it is stored already; and whether it contains every statement.

        Its content is `text`, or else sentences selected from the turns.
        """
        if not turns:
            return None, True
        known = await self.stored(user, session_id)
        sources = tuple(turn.id for turn in turns)
        if known is not None and known.sources == sources and text is None:
            return None, True
        is_complete = True
        if text is None:
            work = sum(len(turn.text) for turn in turns)
            text, is_complete = await off_loop(work, partial(self._compressor.conversation, turns))
        episode = Episode(
            id=episode_id(session_id),
            text=f"Conversation of {_days(turns[0].at, turns[-1].at)}: {text}",
            at=max(turn.at for turn in turns),
            recorded_at=self._clock.now(),
            provenance=Provenance.derived([turn.provenance for turn in turns]),
            layer=max(Layer.L3, known.layer) if known else Layer.L3,
            session_id=session_id,
            importance=max([turn.importance for turn in turns] + ([known.importance] if known else [])),
            accesses=known.accesses if known else 0,
            accessed_at=known.accessed_at if known else None,
            sources=sources,
        )
        return episode, is_complete


def _days(first: datetime, last: datetime) -> str:
    """`3 November 2026`, or `30 October to 2 November 2026`, independent of the locale."""
    end = f"{last.day} {_MONTHS[last.month - 1]} {last.year}"
    if first.date() == last.date():
        return end
    parts = [str(first.day)]
    parts += [_MONTHS[first.month - 1]] if (first.month, first.year) != (last.month, last.year) else []
    parts += [str(first.year)] if first.year != last.year else []
    return f"{' '.join(parts)} to {end}"


_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
