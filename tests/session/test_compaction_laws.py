"""Random histories through every strategy and every fault: the laws hold, or it says that it cannot."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.core.message import Message, ToolCallPart
from loom.errors import CannotCompact, LoomError
from loom.text.tokens import EstimateCounter
from tests.session.histories import (
    ASKING,
    FAULTS,
    RETAINS,
    STRATEGIES,
    ScriptedAsk,
    check_laws,
    histories,
    last_request,
    long_round,
    results_for,
    shown_from,
    strategy,
    tokens,
)

pytestmark = pytest.mark.anyio
COUNTER = EstimateCounter()
shares = st.sampled_from((0.0, 0.05, 0.3, 0.5, 0.8, 0.95))


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=25, deadline=None)
@given(shown=histories(), binds=st.booleans(), data=st.data())
async def test_laws(name, shown, binds, data):
    target = int(tokens(shown, COUNTER) * data.draw(shares))
    retain = data.draw(st.sampled_from(RETAINS))
    keep = data.draw(st.sets(st.sampled_from([item.id for item in shown]), max_size=2))
    fault = data.draw(st.sampled_from(sorted(FAULTS))) if name in ASKING else "none"
    made = [strategy(name, ScriptedAsk(fault), retain=retain, binds_thinking=binds) for _ in range(2)]
    outcomes = []
    for compactor in made:
        try:
            outcomes.append(await compactor.compact(shown, target=target, counter=COUNTER, keep=keep))
        except (LoomError, RuntimeError) as error:
            outcomes.append((type(error), str(error)))
    if isinstance(outcomes[0], tuple) and name not in {"summarize", "hierarchical"}:
        assert outcomes[0][0] is CannotCompact
    assert outcomes[0] == outcomes[1], "the same input gave two rewrites"
    if not isinstance(outcomes[0], tuple):
        check_laws(shown, outcomes[0], target=target, counter=COUNTER, keep=keep, binds_thinking=binds)


@pytest.mark.parametrize("name", ["truncate", "sliding_window", "chain"])
@settings(max_examples=25, deadline=None)
@given(shown=histories(), share=shares, fault=st.sampled_from(sorted(FAULTS)))
async def test_it_cannot_only_where_what_must_stay_is_too_large(name, shown, share, fault):
    target = int(tokens(shown, COUNTER) * share)
    opening = [item for item in shown[:1] if item.message.role == "system"]
    request = last_request(shown)
    after_request = shown[shown.index(request) + 1 :] if request else ()
    bound = [item for item in after_request[:1] if item.message.role == "system"]
    waiting = [i for i in shown[-1:] if any(isinstance(part, ToolCallPart) for part in i.message.parts)]
    asked = [request] if request else []
    if request and any(hasattr(part, "call_id") for part in request.message.parts):
        return  # results and a request in one message: its calls must stay as well
    must = {item.id: item for item in (*opening, *asked, *bound, *waiting)}.values()
    compactor = strategy(name, ScriptedAsk(fault))
    if tokens(must, COUNTER) <= target:
        check_laws(
            shown, await compactor.compact(shown, target=target, counter=COUNTER), target=target, counter=COUNTER
        )
    else:
        with pytest.raises(CannotCompact):
            await compactor.compact(shown, target=target, counter=COUNTER)


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=10, deadline=None)
@given(first=histories(), second=histories())
async def test_passes_follow_each_other_and_records_never_stack(name, first, second):
    """Before and after what cannot be compacted, perhaps, comes what always can: a long round that is half too much."""
    compactor = strategy(name, ScriptedAsk())
    shown, long = (), shown_from(long_round(20, size=4000))
    for number, more in enumerate((long, first, second, long)):
        messages = [*results_for(shown), Message.user("go on"), *(item.message for item in more)]
        shown = (*shown, *shown_from(messages, f"r{number}_"))
        target = tokens(shown, COUNTER) - max(1, tokens(more, COUNTER) // 2)
        try:
            rewrite = await compactor.compact(shown, target=target, counter=COUNTER)
        except CannotCompact:
            assert more is not long
            continue
        assert rewrite.replacements
        shown = check_laws(shown, rewrite, target=target, counter=COUNTER)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("binds", [True, False])
async def test_one_round_of_500_calls(name, binds):
    shown = shown_from(long_round(500, thinking=True, size=4000))
    target = tokens(shown, COUNTER) // 10
    compactor = strategy(name, ScriptedAsk(), binds_thinking=binds)
    rewrite = await compactor.compact(shown, target=target, counter=COUNTER)
    after = check_laws(shown, rewrite, target=target, counter=COUNTER, binds_thinking=binds)
    assert after[0] == shown[0]
    assert [item.message.parts[-1] for item in after[-2:]] == [item.message.parts[-1] for item in shown[-2:]]


@pytest.mark.parametrize("name", STRATEGIES)
async def test_a_history_within_its_target_is_left_alone(name):
    shown = shown_from(long_round(3))
    rewrite = await strategy(name, ScriptedAsk()).compact(shown, target=tokens(shown, COUNTER), counter=COUNTER)
    assert rewrite.replacements == ()
    assert (await strategy(name, ScriptedAsk()).compact((), target=0, counter=COUNTER)).replacements == ()
