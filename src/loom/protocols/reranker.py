"""Putting hits into a better order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from loom.core.record import Hit


@runtime_checkable
class Reranker(Protocol):
    """Looks at a query and its hits together, and orders them anew.

    Laws:
    - it returns hits it was given, each at most once, and no others; at most `limit` of them;
    - only `score` changes, and `why` gains its signal under the reranker's name;
    - the order is that of loom.core.record.rank_key, and does not depend on the order given;
    - no hits, no work; a failure raises a ProviderError, and recall goes on with the order it had.
    """

    @property
    def name(self) -> str:
        """The signal it adds to `why`."""
        ...

    async def rerank(self, query: str, hits: Sequence[Hit], *, limit: int) -> tuple[Hit, ...]:
        """The best `limit` hits, best first."""
        ...
