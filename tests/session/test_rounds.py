"""Rounds and units: where a history may be cut."""

from hypothesis import given, settings

from loom.core.message import ImagePart, Message, TextPart, ToolCallPart, ToolResultPart
from loom.session.compaction.summary_message import SummaryMessage
from loom.session.history import current_request, is_request, rounds_of, units_of
from tests.session.histories import PNG, check_pairs, histories, shown_from

ASK = Message.user("do it")
SYSTEM = Message("system", (TextPart("be kind"),))


def calls(*ids):
    return Message("assistant", tuple(ToolCallPart(id, "run", {}) for id in ids))


def results(*ids):
    return Message("user", tuple(ToolResultPart(id, (TextPart("ok"),)) for id in ids))


def sizes(*messages):
    return [len(unit.items) for unit in units_of(shown_from(messages))]


def test_calls_and_all_their_results_are_one_unit():
    assert sizes(ASK, calls("a"), results("a"), Message.assistant("done")) == [1, 2, 1]
    assert sizes(ASK, calls("a", "b"), results("a"), results("b"), calls("c"), results("c")) == [1, 3, 2]
    assert sizes(ASK, calls("a", "b"), results("b", "a")) == [1, 2]


def test_messages_between_a_call_and_its_result_belong_to_the_unit():
    assert sizes(calls("a"), ASK, results("a"), ASK) == [3, 1]
    assert sizes(calls("a"), calls("b"), results("a"), results("b")) == [4]


def test_call_ids_may_come_back():
    assert sizes(calls("0"), results("0"), ASK, calls("0"), results("0")) == [2, 1, 2]


def test_half_pairs_are_known():
    units = units_of(shown_from([calls("a"), ASK, results("zzz"), calls("b", "c"), results("b")]))
    assert [(unit.open, unit.stray) for unit in units] == [(True, False), (False, False), (False, True), (True, False)]


def test_a_system_message_inside_belongs_to_the_message_before_it():
    assert sizes(SYSTEM, SYSTEM, ASK, SYSTEM, Message.assistant("yes")) == [1, 1, 2, 1]


def test_a_round_is_a_request_and_everything_up_to_the_next():
    units = units_of(shown_from([Message.assistant("hi"), ASK, calls("a"), results("a"), ASK, Message.assistant("x")]))
    rounds = rounds_of(units)
    assert [[item.id for item in found.items] for found in rounds] == [["m0"], ["m1", "m2", "m3"], ["m4", "m5"]]
    assert [found.request and found.request.id for found in rounds] == [None, "m1", "m4"]


def test_a_request_is_what_a_user_said_and_nothing_else():
    assert is_request(Message("user", (ImagePart(PNG, "image/png"),)))
    assert is_request(Message("user", (ToolResultPart("a", ()), TextPart("and this"))))
    assert not is_request(results("a"))
    assert not is_request(Message.assistant("hello"))
    assert not is_request(SummaryMessage("truncate", 3).message)
    assert is_request(Message.user(SummaryMessage("truncate", 3).message.text + " quoted by a user"))


def test_the_current_request_is_the_last_one_although_a_record_and_results_follow():
    shown = shown_from([ASK, Message.user("now this"), SummaryMessage("snapshot", 9).message, calls("a"), results("a")])
    assert current_request(shown).id == "m1"
    assert current_request(shown_from([Message.assistant("hi")])) is None
    assert current_request(()) is None


@settings(max_examples=60, deadline=None)
@given(histories())
def test_units_are_the_history_in_order_and_each_stands_alone(shown):
    units = units_of(shown)
    assert tuple(item for unit in units for item in unit.items) == shown
    assert tuple(item for found in rounds_of(units) for item in found.items) == shown
    for unit in units:
        check_pairs(unit.items)
    assert not any(unit.open for unit in units[:-1])
