"""The options of one turn: metadata, a cost limit, and the form of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from loom.core.limits import check_attributes
from loom.core.message import Usage
from loom.core.run import RunContext, current_run
from loom.core.scope import Scope
from loom.errors import CostExceeded, UsageError
from loom.session.build import Parts
from loom.session.config import check_ceiling
from loom.telemetry.bill import Bill, info_of

if TYPE_CHECKING:
    from loom.session.output import Output

_PRICED = Usage(input=1, output=1)


class TurnOptions(TypedDict, total=False):
    """What may be given for one turn, beside its message."""

    metadata: Mapping[str, Any] | None
    """What tools find in get_run_context().metadata."""
    max_cost: float | None
    """US dollars that this turn may cost; the limit of the configuration if not given."""
    output_type: Any
    """The form of the answer: a pydantic model, a dataclass, a TypedDict or a plain type; the value is `output`."""
    output_retries: int
    """How often an answer that does not fit is asked for again; once if not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSpec:
    """The options of one turn, checked."""

    run: RunContext
    max_cost: float | None = None
    output: Output | None = None

    def exceeded(self, bill: Bill) -> CostExceeded | None:
        """The error to say that a turn has reached its cost limit; None where it has not."""
        if self.max_cost is None or (bill.cost is not None and bill.cost < self.max_cost):
            return None
        return CostExceeded(spent=bill.cost, ceiling=self.max_cost)


def turn_spec(parts: Parts, run_id: str, **options: Unpack[TurnOptions]) -> TurnSpec:
    """The checked options of a turn that begins now."""
    given = options.get("max_cost")
    ceiling = parts.config.max_cost if given is None else given
    if ceiling is not None:
        check_ceiling(ceiling)
        _check_priced(parts, ceiling)
    output, form = None, options.get("output_type")
    if form is not None:
        from loom.session.output import Output  # noqa: PLC0415  (pydantic, only where it is wanted)

        retries = options.get("output_retries", 1)
        output = Output(form, retries=retries, taken=[spec.name for spec in parts.tools.specs])
    return TurnSpec(run=_run(parts.saver.scope, run_id, options.get("metadata")), max_cost=ceiling, output=output)


def _check_priced(parts: Parts, ceiling: float) -> None:
    """Refuse a cost limit where the price of a model is not known: reaching it could not be noticed."""
    summaries = parts.config.compaction.summary_model
    priced = {parts.model.model.name: parts.model.cost(_PRICED)}
    if summaries is not None:
        name = str(getattr(summaries, "name", summaries))
        priced[name] = info_of(name).cost(_PRICED)
    for name, cost in priced.items():
        if cost is None:
            raise UsageError(
                f"max_cost={ceiling:g} needs the price of {name}, which is not known; add it to your model data "
                "(LOOM_MODELS), or leave max_cost out"
            )


def _run(scope: Scope, run_id: str, metadata: Mapping[str, Any] | None) -> RunContext:
    check_attributes(dict.fromkeys(metadata or ()), "the metadata of a run")
    outer = current_run()
    return RunContext(
        user_id=scope.user_id,
        session_id=scope.session_id or "",
        namespace=scope.namespace,
        run_id=run_id,
        depth=0 if outer is None else outer.depth + 1,
        metadata=dict(metadata or {}),
    )
