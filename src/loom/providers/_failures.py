"""Provider failures: which error it is, and how long to wait before a retry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, cast
from urllib.parse import urlsplit

from loom.core.clock import Clock
from loom.core.message import JSON
from loom.errors import BadResponse, ContextOverflow, ProviderError, ProviderUnavailable, RateLimited

_OVERFLOWS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # Anthropic
        r"prompt is too long(?:: (?P<size>\d+) tokens > (?P<limit>\d+) maximum)?",
        r"exceed context limit: (?P<size>\d+) \+ \d+ > (?P<limit>\d+)",
        # OpenAI and the many that copy its words: DeepSeek, vLLM, SGLang
        (
            r"maximum context length (?:is|of) (?P<limit>\d+) tokens"
            r"(?:.{0,200}?(?:resulted in|requested|request has|contains)(?: a total of)?(?: at least)? (?P<size>\d+))?"
        ),
        r"exceeds the context window of this model",
        r"request too large for .{0,200}limit (?P<limit>\d+), requested (?P<size>\d+)",
        # vLLM
        r"prompt \(length (?P<size>\d+)\) is longer than the maximum model length of (?P<limit>\d+)",
        # SGLang
        r"input \((?P<size>\d+) tokens\) is longer than the model's context length \((?P<limit>\d+) tokens\)",
        # llama.cpp, as a server and in process
        r"request \((?P<size>\d+) tokens\) exceeds the available context size \((?P<limit>\d+) tokens\)",
        r"exceeds? the available context size",
        r"requested tokens \((?P<size>\d+)\) exceed context window of (?P<limit>\d+)",
        # LM Studio
        r"keep the first (?P<size>\d+) tokens when context the overflows.{0,200}context length of only (?P<limit>\d+)",
        # xAI
        r"maximum prompt length is (?P<limit>\d+) but the request contains (?P<size>\d+)",
        # Gemini
        r"input token count (?:\((?P<size>\d+)\) )?exceeds the maximum number of tokens allowed \(?(?P<limit>\d+)",
    )
)
"""The words for a prompt that is too long. Where a provider has a code for it, the code decides without them."""

_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})
_WAIT_CODES = frozenset({"rate_limit_error", "rate_limit_exceeded", "resource_exhausted"})
_UNPAID_CODES = frozenset({"insufficient_quota", "billing_error", "billing_hard_limit_reached"})
_DOWN_CODES = frozenset({"overloaded_error", "api_error", "timeout_error", "server_error", "overloaded", "unavailable"})
_MAY_OVERFLOW = frozenset({None, 200, 400, 413, 422, 429, 500})
"""The statuses under which providers say that a prompt is too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure as a provider reported it."""

    status: int | None = None
    """The HTTP status; None, or 200, for a failure inside a stream."""
    codes: tuple[str, ...] = ()
    """The provider's own words for the kind of failure."""
    message: str = ""
    retry_after: float | None = None
    limit: int | None = None
    size: int | None = None

    @classmethod
    def read(cls, body: object, *, status: int | None = None, retry_after: float | None = None) -> Failure:
        """A failure from the body of an error: the usual JSON forms, or text."""
        found: JSON = body
        if isinstance(found, Mapping):
            inner = cast("Mapping[str, Any]", found)
            found = inner.get("error") if isinstance(inner.get("error"), Mapping) else inner
        if not isinstance(found, Mapping):
            return cls(status=status, message=str(found or ""), retry_after=retry_after)
        error = cast("Mapping[str, Any]", found)
        if status is None and (code := _number(error.get("code"))) in range(400, 600):
            status = code  # a failure inside a stream may name the status it would have had
        codes = tuple(str(error[key]).lower() for key in ("type", "code", "status") if error.get(key))
        message = error.get("message") or error.get("detail") or error.get("error") or ""
        return cls(
            status=status,
            codes=codes,
            message=str(message),
            retry_after=retry_after,
            limit=_number(error.get("n_ctx")),
            size=_number(error.get("n_prompt_tokens")),
        )


def as_error(who: str, failure: Failure, *, key: str | None = None) -> ProviderError:
    """The error to raise for a failure of `who` (`provider:model`); `key` names the variable its key is read from."""
    codes, status = set(failure.codes), failure.status
    said = f": {failure.message}" if failure.message else " and gave no reason"
    if codes & _UNPAID_CODES:
        return ProviderError(f"the account has no quota left for {who}{said}; add credit, waiting does not help")
    overflow = _overflow(who, failure)
    if overflow is not None:
        return overflow
    if status == 429 or codes & _WAIT_CODES:
        wait = failure.retry_after
        how_long = "it did not say for how long" if wait is None else f"for {wait:g} seconds"
        return RateLimited(f"{who} asks to wait ({how_long}){said}", retry_after=wait)
    if status in {401, 403}:
        check = f"check {key}, or give api_key=" if key else "check the key"
        return ProviderError(f"{who} does not accept the key (status {status}{said}); {check}")
    if codes & _DOWN_CODES or (status is not None and (status >= 500 or status in {408, 409})):
        message = f"{who} cannot answer now (status {status}{said}); try again later"
        return ProviderUnavailable(message, retry_after=failure.retry_after)
    if status == 404:
        return ProviderError(f"{who} was not found{said}; check the name of the model and the address")
    return ProviderError(f"{who} refused the request (status {status}){said}")


def unreadable(who: str, error: Exception) -> BadResponse:
    """The error for an answer that cannot be read."""
    return BadResponse(f"{who} sent something that is not an answer ({type(error).__name__}: {error})")


def nothing_came(who: str) -> BadResponse:
    """The error for a stream without a single event: most often a page, from an address that is not the provider's."""
    return BadResponse(f"the stream of {who} ended before an answer began; check the address")


def ended_early(who: str) -> ProviderUnavailable:
    """The error for a stream that ends before its answer does: a server that stops closes its connections properly."""
    return ProviderUnavailable(
        f"the stream of {who} ended before the answer did; what came so far is not kept, try again later"
    )


def unreachable(who: str, error: Exception, address: str | None = None) -> ProviderUnavailable:
    """The error for a connection that cannot be made, or breaks; `address` is where a server of your own answers."""
    at = f" at {_without_user(address)}" if address else ""
    what = "is the server running?" if address else "check the network"
    return ProviderUnavailable(f"the connection to {who}{at} failed ({type(error).__name__}: {error}); {what}")


def _without_user(address: str) -> str:
    """An address without the name and the password that it may hold."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _overflow(who: str, failure: Failure) -> ContextOverflow | None:
    if failure.status not in _MAY_OVERFLOW:
        return None
    found = next((match for pattern in _OVERFLOWS if (match := pattern.search(failure.message))), None)
    if found is None and not set(failure.codes) & _OVERFLOW_CODES:
        return None
    sizes = found.groupdict() if found else {}
    limit = failure.limit if failure.limit is not None else _number(sizes.get("limit"))
    size = failure.size if failure.size is not None else _number(sizes.get("size"))
    message = f"the prompt is too long for {who}: {failure.message or 'it did not say by how much'}"
    return ContextOverflow(message, limit=limit, size=size)


def _number(value: JSON) -> int | None:
    return int(value) if value is not None and str(value).isdigit() else None


# The wait that a provider asks for in the headers of its answer.


def retry_after(headers: Mapping[str, str], clock: Clock) -> float | None:
    """Seconds to wait, from either header, given as a number or as a date; None where nothing was said."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) / unit
        except ValueError:
            seconds = _seconds_until(value, clock)
        if seconds is not None and isfinite(seconds):
            return max(0.0, seconds)
    return None


def _seconds_until(date: str, clock: Clock) -> float | None:
    try:
        return (parsedate_to_datetime(date) - clock.now()).total_seconds()
    except (TypeError, ValueError):
        return None
