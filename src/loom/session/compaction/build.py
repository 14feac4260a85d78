"""From a configuration to the compactor it describes."""

from __future__ import annotations

from loom.errors import UsageError
from loom.protocols.compactor import Compactor
from loom.session.compaction.ask import Ask, ask_model
from loom.session.compaction.chain import Chain
from loom.session.compaction.clear_tools import ClearTools
from loom.session.compaction.config import CompactionConfig
from loom.session.compaction.cut import CutOptions
from loom.session.compaction.hierarchical import Hierarchical
from loom.session.compaction.sliding_window import SlidingWindow
from loom.session.compaction.snapshot import Snapshot
from loom.session.compaction.summarize import Summarize
from loom.session.compaction.truncate import Truncate

_PLAIN = {"truncate": Truncate, "sliding_window": SlidingWindow, "snapshot": Snapshot}
_ASKING = {"summarize": Summarize, "hierarchical": Hierarchical}


def build(config: CompactionConfig, *, ask: Ask | None = None, binds_thinking: bool = True) -> Chain:
    """The compactor of a configuration: its strategies in a chain, clearing first, truncation last.

    Args:
        config: what is wanted.
        ask: asks for summaries, unless the configuration names a model for that.
        binds_thinking: whether the model refuses thinking whose past was edited.
    """
    by_count = config.trigger.type == "messages"
    common = CutOptions(
        retain=config.retain,
        binds_thinking=binds_thinking,
        max_messages=max(2, int((config.trigger.threshold or 0) * config.target)) if by_count else None,
    )
    if isinstance(config.summary_model, str):
        raise UsageError(f"summary_model is the name {config.summary_model!r}; open it first, with open_model()")
    asked = ask if config.summary_model is None else ask_model(config.summary_model)
    clear = ClearTools(config.clear_tools, binds_thinking=binds_thinking)
    # Clearing leaves the number of messages as it is, so it cannot answer a trigger that counts them.
    cheap = clear if config.clear_tools.enabled and not by_count else None
    made: list[Compactor] = []
    for strategy in config.strategies:
        if not isinstance(strategy, str):
            made.append(strategy)
        elif strategy == "clear_tools":
            made.append(clear)
        elif strategy in _PLAIN:
            made.append(_PLAIN[strategy](**common))
        elif asked is None:
            raise UsageError(f"the strategy {strategy} needs a model; give ask=, or summary_model in the configuration")
        else:
            made.append(_ASKING[strategy](asked, **common))
    return Chain(made, cheap=cheap, last=Truncate(**common))
