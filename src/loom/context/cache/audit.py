"""Audit: what the prompt cache did in recorded sessions, from reported usage alone: sums, cost and collapses.

No request bodies are needed. How a collapse is found is in `collapses`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, TypeAlias

from loom.context.cache.collapses import (
    COLLAPSE_CAUSES,
    CacheRates,
    Collapse,
    CollapseCause,
    CollapseFinder,
    prompt_of,
)
from loom.errors import UsageError
from loom.traces.reader import read_transcripts
from loom.traces.transcript import RecordedCall, RecordedCompaction, Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCall:
    """One call of a model: what it used, what it cost, and whether the cache was lost before it.

    `read`, `written_short` and `written_long` are None where the provider did not say.
    """

    number: int
    """Its place in the session, from 1."""
    line: int
    at: float | None
    model: str
    fresh: int
    read: int | None
    written_short: int | None
    written_long: int | None
    output: int
    usd: float | None
    missed: int = 0
    """Tokens that were not read although nothing changed, on a provider that promises nothing: not a collapse."""
    collapse: Collapse | None = None

    @property
    def prompt(self) -> int:
        """Tokens of the whole prompt."""
        return self.fresh + (self.read or 0) + self.written

    @property
    def written(self) -> int:
        """Tokens written, for any time."""
        return (self.written_short or 0) + (self.written_long or 0)


class AuditSums:
    """Sums over calls."""

    def _each(self) -> Iterable[AuditedCall]:
        raise NotImplementedError

    @cached_property
    def _sums(self) -> Counter[str]:
        sums: Counter[str] = Counter()
        for call in self._each():
            sums["requests"] += 1
            sums["prompt"] += call.prompt
            sums["read"] += call.read or 0
            sums["written_short"] += call.written_short or 0
            sums["written_long"] += call.written_long or 0
            sums["writers"] += call.written_short is not None or call.written_long is not None
            sums["fresh"] += call.fresh
            sums["output"] += call.output
            sums["missed"] += call.missed
            if call.read is None:
                sums["not_reported"] += 1
            else:
                sums["reported"] += call.prompt
        return sums

    @property
    def requests(self) -> int:
        """Calls of a model."""
        return self._sums["requests"]

    @property
    def not_reported(self) -> int:
        """Calls for which the provider said nothing of the cache, which is not the same as zero."""
        return self._sums["not_reported"]

    @property
    def prompt(self) -> int:
        """Tokens of all prompts."""
        return self._sums["prompt"]

    @property
    def read(self) -> int:
        """Tokens read from the cache, where it was reported."""
        return self._sums["read"]

    @property
    def written_short(self) -> int | None:
        """Tokens written for the short time, and all that were written where the record does not tell them apart.

        None where no write was ever reported.
        """
        return self._sums["written_short"] if self._sums["writers"] else None

    @property
    def written_long(self) -> int | None:
        """Tokens written for the long time; None where no write was ever reported."""
        return self._sums["written_long"] if self._sums["writers"] else None

    @property
    def fresh(self) -> int:
        """Tokens neither read nor written."""
        return self._sums["fresh"]

    @property
    def output(self) -> int:
        """Tokens of the answers."""
        return self._sums["output"]

    @property
    def missed(self) -> int:
        """Tokens not read, though nothing changed, on a provider that promises nothing."""
        return self._sums["missed"]

    @property
    def read_share(self) -> float | None:
        """Share of the prompts that was read; None where nothing was reported."""
        whole = self._sums["reported"]
        return self.read / whole if whole else None

    @cached_property
    def collapses(self) -> tuple[Collapse, ...]:
        """Every collapse, in order."""
        return tuple(call.collapse for call in self._each() if call.collapse)

    @property
    def lost(self) -> int:
        """Tokens paid again after collapses."""
        return sum(collapse.lost for collapse in self.collapses)

    @cached_property
    def usd(self) -> float | None:
        """What the calls cost whose price is known; None where none is."""
        known = [call.usd for call in self._each() if call.usd is not None]
        return sum(known) if known else None

    @cached_property
    def lost_usd(self) -> float | None:
        """What the collapses cost whose price is known; None where there are some and no price is known."""
        known = [collapse.usd for collapse in self.collapses if collapse.usd is not None]
        return None if self.usd is None or (self.collapses and not known) else sum(known)

    @property
    def usd_without_collapse(self) -> float | None:
        """What the calls would have cost with no collapse."""
        return None if self.usd is None or self.lost_usd is None else self.usd - self.lost_usd

    @cached_property
    def unpriced(self) -> Mapping[str, int]:
        """The models whose price is not known, each with its calls."""
        return dict(Counter(call.model for call in self._each() if call.usd is None))

    @cached_property
    def by_cause(self) -> Mapping[CollapseCause, CollapseSum]:
        """The collapses in sum, the cause that lost most first."""
        found: dict[CollapseCause, CollapseSum] = {}
        for cause in COLLAPSE_CAUSES:
            own = [collapse for collapse in self.collapses if collapse.cause == cause]
            if own:
                known = [collapse.usd for collapse in own if collapse.usd is not None]
                found[cause] = CollapseSum(len(own), sum(c.lost for c in own), sum(known) if known else None)
        return dict(sorted(found.items(), key=lambda item: -item[1].lost))

    def sums_to_dict(self) -> dict[str, Any]:
        """The sums as plain values."""
        names = (
            *("requests", "not_reported", "prompt", "read", "read_share", "written_short", "written_long", "fresh"),
            *("output", "usd", "unpriced", "missed", "lost", "lost_usd", "usd_without_collapse"),
        )
        causes = {cause: {"collapses": s.count, "lost": s.lost, "usd": s.usd} for cause, s in self.by_cause.items()}
        return {**{name: getattr(self, name) for name in names}, "by_cause": causes}


@dataclass(frozen=True, slots=True)
class CollapseSum:
    """The collapses of one cause in sum."""

    count: int
    lost: int
    usd: float | None


@dataclass(frozen=True, kw_only=True)
class AuditedSession(AuditSums):
    """One conversation of one agent. A subagent has its own, as it has a cache of its own."""

    program: str
    session_id: str
    path: str
    parent: str | None
    """The session that it was begun in or forked from."""
    is_subagent: bool
    title: str
    calls: tuple[AuditedCall, ...]
    repeated: int = 0
    """Calls that another session has already, because a resumed or forked file repeats them; counted once."""

    def _each(self) -> Iterable[AuditedCall]:
        return self.calls

    def to_dict(self) -> dict[str, Any]:
        """The session as plain values."""
        names = ("program", "session_id", "path", "parent", "is_subagent", "title", "repeated")
        own = {name: getattr(self, name) for name in names}
        return {**own, **self.sums_to_dict(), "calls": [_plain(call) for call in self.calls]}


@dataclass(frozen=True)
class AuditedGroup(AuditSums):
    """Some of the sessions in sum."""

    sessions: tuple[AuditedSession, ...]

    def _each(self) -> Iterable[AuditedCall]:
        return (call for session in self.sessions for call in session.calls)


@dataclass(frozen=True, kw_only=True)
class Audit(AuditSums):
    """What the cache did in all sessions."""

    sessions: tuple[AuditedSession, ...]
    without_calls: int = 0
    """Conversations that hold no call with usage."""
    skipped: Mapping[str, int]
    """Lines that could not be read: how many, by reason."""
    unread: Mapping[str, str]
    """Files that could not be read, or are something else, each with the reason."""

    @property
    def main(self) -> AuditedGroup:
        """The sessions of people."""
        return AuditedGroup(tuple(session for session in self.sessions if not session.is_subagent))

    @property
    def subagents(self) -> AuditedGroup:
        """The sessions that other sessions began."""
        return AuditedGroup(tuple(session for session in self.sessions if session.is_subagent))

    def _each(self) -> Iterable[AuditedCall]:
        return (call for session in self.sessions for call in session.calls)

    def to_dict(self) -> dict[str, Any]:
        """The audit as plain values, as `loom cache audit --json` prints it."""
        sessions = [session.to_dict() for session in self.sessions]
        groups = {"main": self.main.sums_to_dict(), "subagents": self.subagents.sums_to_dict()}
        rest = {"without_calls": self.without_calls, "skipped": dict(self.skipped), "unread": dict(self.unread)}
        return {**self.sums_to_dict(), **groups, **rest, "sessions": sessions}


def _plain(call: AuditedCall) -> dict[str, Any]:
    values = {f.name: getattr(call, f.name) for f in fields(call)}
    lost = call.collapse
    values["collapse"] = None if lost is None else {f.name: getattr(lost, f.name) for f in fields(lost)}
    return values


Source: TypeAlias = Transcript | str | os.PathLike[str]


def audit(sources: Source | Iterable[Source]) -> Audit:
    """What the prompt cache did in recorded sessions: reads, writes, cost, and every collapse with its cause.

    Sources are transcripts of Claude Code, Codex and others: files, folders, patterns, or what `read_transcripts` gave.
    Nothing but the usage that providers reported is needed.

    Raises:
        UsageError: a path does not exist, or what it names cannot be read.
    """
    given = [sources] if isinstance(sources, Transcript | str | os.PathLike) else sources
    if not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{given!r} names no transcript; give a path, or a list of paths")
    return audit_transcripts(_transcripts(given))


def _transcripts(sources: Iterable[Source]) -> Iterator[Transcript]:
    paths: list[str | os.PathLike[str]] = []
    for source in sources:
        if isinstance(source, Transcript):
            yield source
        else:
            paths.append(source)
    if paths:  # together: what a resumed session repeats counts once
        yield from read_transcripts(paths)


def audit_transcripts(transcripts: Iterable[Transcript]) -> Audit:
    """The same for transcripts that were read already; their texts are not held."""
    sessions: dict[tuple[str, str, str], _OneSession] = {}
    skipped: Counter[str] = Counter()
    unread: dict[str, str] = {}
    shared = _Shared()
    for transcript in transcripts:
        reasons = [line.reason for line in transcript.skipped if line.reason.startswith(_UNREADABLE)]
        if not transcript.program and not transcript.calls:
            unread[transcript.path] = reasons[0].removeprefix("file: ") if reasons else "it could not be read"
            continue
        skipped.update(reasons)
        key = (transcript.program, transcript.path, transcript.session_id)
        if key not in sessions:
            sessions[key] = _OneSession(transcript, shared)
        sessions[key].add(transcript)
    audited = [session.audited() for session in sessions.values()]
    return Audit(
        sessions=tuple(session for session in audited if session.calls),
        without_calls=sum(1 for session in audited if not session.calls and not session.repeated),
        skipped=dict(skipped.most_common()),
        unread=unread,
    )


_UNREADABLE: Final = ("broken", "too long", "unfinished", "file")
"""How reasons begin that say that a line could not be read; the others say why a line is not a person's words."""


@dataclass(slots=True)
class _Shared:
    """What the sessions of one audit share."""

    rates: dict[str, CacheRates] = field(default_factory=dict[str, CacheRates])
    seen: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]])
    """Calls that one of them has already."""


class _OneSession:
    """One conversation, whose parts may come one after another."""

    def __init__(self, transcript: Transcript, shared: _Shared) -> None:
        self._of = replace(transcript, texts=(), calls=(), compactions=(), repeated=(), skipped=())
        self._shared = shared
        self._copied: list[RecordedCall] = []
        self._calls: list[RecordedCall] = []
        self._compactions: list[RecordedCompaction] = []

    def add(self, transcript: Transcript) -> None:
        """Add the calls of the conversation, or of the next part of it."""
        # A failed call has no usage, and programs write it down under a model of their own.
        self._calls += (call for call in transcript.calls if prompt_of(call) or call.output)
        self._copied += transcript.repeated
        self._compactions += transcript.compactions
        if transcript.title:
            self._of = replace(self._of, title=transcript.title)

    def audited(self) -> AuditedSession:
        calls: list[AuditedCall] = []
        repeated = len(self._copied)
        finder = CollapseFinder([*self._copied, *self._calls], self._compactions, self._shared.rates)
        for call, collapse, missed in islice(finder, repeated, None):
            key = (call.id, call.at, call.model, call.fresh, call.read, call.output)
            if call.id and key in self._shared.seen:
                repeated += 1
                continue
            self._shared.seen.add(key)
            calls.append(_audited(len(calls) + 1, call, finder.rates(call).cost(call), collapse, missed))
        of = self._of
        return AuditedSession(
            program=of.program,
            session_id=of.session_id,
            path=of.path,
            parent=of.parent,
            is_subagent=of.is_subagent,
            title=of.title,
            calls=tuple(calls),
            repeated=repeated,
        )


def _audited(number: int, call: RecordedCall, usd: float | None, collapse: Collapse | None, missed: int) -> AuditedCall:
    return AuditedCall(
        number=number,
        line=call.line,
        at=call.at,
        model=call.model,
        fresh=call.fresh,
        read=call.read,
        written_short=call.written_short,
        written_long=call.written_long,
        output=call.output,
        usd=usd,
        missed=missed,
        collapse=collapse,
    )
