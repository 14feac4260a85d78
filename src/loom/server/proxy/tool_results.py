"""Long results of tools, shortened once and the same way for ever, and readable whole.

What stays is the beginning, the end, and the lines that look like errors or sums; a line at the end says how to read
the rest. The whole result is stored before the short one is sent.

The rest is read from `/loom/results/ID` of the proxy, or with `loom proxy read ID`. A tool that the proxy adds and
serves itself would change the tools of the request, which costs the whole cached prompt, and would need answers that
are held back and rewritten. A coding agent has a shell; a program of one's own has tools of its own, and one of them
can be this address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from loom.server.proxy.edits import RequestText, ResultText, TextEdit, quoted

_SHORTEST: Final = 2_400
"""Characters of a result that is sent whole: below, too little is saved."""
_HEAD, _TAIL = 10, 8
"""Lines of the beginning and of the end that stay."""
_NOTABLE: Final = 12
"""Lines between them that stay because they look like errors or sums, the first ones."""
_AT_ONCE: Final = 200
"""Lines that the command at the end of a short result reads, as an example."""
_LINE: Final = 160
"""Characters of a line that stay."""
_PIECE: Final = 500
"""Characters of either end that stay of a text which has few lines."""
_SAYS: Final = re.compile(
    r"\b(?:error|errors|exception|traceback|fatal|panic|critical|failed|failure|failures|denied|refused|not found|"
    r"undefined|unresolved|timed? ?out|assert(?:ion)?|warning|deprecated|total|passed|summary)\b",
    re.IGNORECASE,
)
_ID: Final = re.compile(r"[0-9a-f]{18}")
_READS: Final = re.compile(r"loom proxy read|/loom/results/")
"""A call with these reads a stored result; what it gives is not shortened again."""


@dataclass(frozen=True, slots=True)
class ShortResult:
    """A result as it is sent, and the whole of it."""

    id: str
    key: str
    short: str
    whole: str


def result_id(session_id: str, text: str) -> str:
    """The id of a stored result; it begins with a digest of the conversation, so that it is found without a search."""
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return session_digest(session_id) + digest[:12]


def session_digest(session_id: str) -> str:
    """The first digits of the ids of a conversation."""
    return sha256(session_id.encode()).hexdigest()[:6]


def is_result_id(text: str) -> bool:
    """Whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None


READ: Final = "loom proxy read {id} --lines 1-{last}"
"""How a stored result is read where the proxy cannot be asked without a secret."""
_NAME: Final = re.compile(r"[\w.@-]{1,100}", re.ASCII)
_HOST: Final = re.compile(r"[\w.:\[\]-]{1,100}", re.ASCII)


def how_to_read(host: str, user: str, default_user: str) -> str:
    """The command that reads a stored result from this proxy, for a model that has a shell."""
    if not _HOST.fullmatch(host) or not _NAME.fullmatch(user):
        return READ
    named = "" if user == default_user else f" -H 'x-loom-user: {user}'"
    return f"curl -s{named} 'http://{host}/loom/results/{{id}}?lines=1-{{last}}'"


def new_results(
    request: RequestText, known: Mapping[str, str], left_whole: frozenset[str], session_id: str, read: str
) -> list[ShortResult]:
    """The long results that this request sends for the first time, shortened.

    Those before the last answer were sent before, so they stay as they are.
    """
    first, calls = request.new_from(), request.calls()
    found: list[ShortResult] = []
    for result in request.result_texts():
        is_new = result.message >= first and result.key not in known and result.key not in left_whole
        if is_new and not _READS.search(calls.get(result.call_id, "")):
            id = result_id(session_id, result.text)
            if short := shortened(result.text, id, read):
                found.append(ShortResult(id, result.key, short, result.text))
    return found


def result_edits(request: RequestText, known: Mapping[str, str]) -> list[tuple[ResultText, TextEdit]]:
    """The changes that bring the short results back into a request that has the whole ones."""
    pairs = ((result, known.get(result.key)) for result in request.result_texts())
    return [(r, TextEdit(r.node.start, r.node.end, quoted(short))) for r, short in pairs if short is not None]


def shortened(text: str, id: str, read: str = READ) -> str | None:
    """The short form of a long text; None where it would save less than half."""
    if len(text) < _SHORTEST:
        return None
    lines = text.split("\n")
    if len(lines) <= _HEAD + _TAIL + 2:
        kept = f"{text[:_PIECE]}\n[...]\n{text[-_PIECE:]}" if max(map(len, lines)) > 2 * _PIECE else ""
        if not kept:
            return None
    else:
        kept = "\n".join(_kept(lines))
    command = read.replace("{id}", id).replace("{last}", str(min(len(lines), _AT_ONCE)))
    note = f"[loom: {len(kept):,} of {len(text):,} characters, {len(lines):,} lines. Read more: `{command}`]"
    short = f"{kept}\n{note}"
    return short if 2 * len(short) <= len(text) else None


def _kept(lines: list[str]) -> list[str]:
    middle = range(_HEAD, len(lines) - _TAIL)
    notable = [i for i in middle if _SAYS.search(lines[i])][:_NOTABLE]
    kept = [_cut(line) for line in lines[:_HEAD]]
    at = _HEAD
    for i in (*notable, len(lines) - _TAIL):
        if i > at:
            kept.append(f"[... {i - at:,} lines]")
        if i < len(lines) - _TAIL:
            kept.append(_cut(lines[i]))
            at = i + 1
    return [*kept, *(_cut(line) for line in lines[-_TAIL:])]


def _cut(line: str) -> str:
    return line if len(line) <= _LINE else f"{line[: _LINE - 4]} ..."
