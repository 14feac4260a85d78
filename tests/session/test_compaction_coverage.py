"""Records, the facts a text mentions, and what a rewrite still tells of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.injection_data import hostile
from loom.core.message import Message, TextPart, ToolCallPart, ToolResultPart
from loom.session.compaction.coverage import coverage, facts_in, facts_lines, numbers_in, text_of
from loom.session.compaction.cut import head_and_tail, one_line
from loom.session.compaction.strategies import Snapshot, Truncate
from loom.session.compaction.summarize import Summarize
from loom.session.compaction.summary_message import SummaryMessage, fenced, fit, read_record
from loom.session.config import Retain
from loom.text.fence import without_tag
from loom.text.tokens import EstimateCounter
from tests.session.histories import ScriptedAsk, answer, applied, long_round, shown_from, tokens

COUNTER = EstimateCounter()
TAGS = st.sampled_from(
    ["<loom-record>", "</loom-record>", '<loom-part name="x">', "</loom-part>", "< / LOOM-part", "\n"]
)
TEXTS = st.lists(st.one_of(TAGS, st.text(max_size=12)), max_size=8).map("".join)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.dictionaries(st.sampled_from(["summary", "files", "earlier"]), TEXTS, max_size=3))
def test_a_record_comes_back_as_it_was_written_and_its_text_stays_inside(messages, texts):
    record = SummaryMessage("snapshot", messages, {name: tuple(text.split("\n")) for name, text in texts.items()})
    found = read_record(record.message)
    assert (found.strategy, found.messages) == ("snapshot", messages)
    assert found.parts == {name: tuple(fenced(text).split("\n")) for name, text in texts.items()}
    assert record.message.text.count("</loom-record>") == 1
    assert read_record(found.message) == found, "writing it again changes nothing"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=80), max_size=30), st.integers(0, 400))
def test_a_record_is_cut_by_whole_lines_and_as_little_as_needed(lines, limit):
    record = SummaryMessage("snapshot", 3, {"a": tuple(lines)} if lines else {})
    found = fit(record, limit, COUNTER)
    if found is None:
        assert COUNTER.count(SummaryMessage("snapshot", 3).message.text) > limit
        return
    assert COUNTER.count(found.message.text) <= limit
    kept = found.parts.get("a", ())
    assert kept == tuple(lines)[: len(kept)]


def test_no_other_message_is_a_record():
    text = SummaryMessage("truncate", 3).message.text
    assert read_record(Message.user(text)) is not None
    assert read_record(Message.assistant(text)) is None
    assert read_record(Message.user(text + " ")) is None
    assert read_record(Message("user", (TextPart(text), TextPart("x")))) is None


def test_facts():
    text = (
        "Edit src/loom/core.py, ./run.sh, /etc/hosts, C:\\work\\a.txt and setup.cfg and/or km/h. See "
        "https://example.org/x?y=2026. Ada Lovelace calls parse_config in HttpServer at 10:45 on 2026-03-04 for "
        "$4,200.50, 12GB, 85%. We decided to keep v2.3.1 of it. It was nice."
    )
    facts = facts_in(text)
    assert facts.paths == ("src/loom/core.py", "./run.sh", "/etc/hosts", "C:\\work\\a.txt", "setup.cfg")
    assert facts.numbers == ("10:45", "2026-03-04", "$4,200.50", "12GB", "85%", "v2.3.1")
    assert facts.names == ("https://example.org/x?y=2026", "Ada Lovelace", "parse_config", "HttpServer")
    assert facts.decisions == ("We decided to keep v2.3.1 of it.",)


def test_facts_are_found_in_calls_and_results_but_not_in_a_records_own_words():
    call = Message(
        "assistant", (ToolCallPart("call_77", "read", {"deep": [{"where": "docs/a b/plan.md\n"}], "n": 1234}),)
    )
    assert facts_in(text_of(call)).numbers == ("1234",)
    assert "b/plan.md" in facts_in(text_of(call)).paths
    result = Message("user", (ToolResultPart("call_77", (TextPart("found lib/x.rs"),)),))
    assert facts_in(text_of(result)).paths == ("lib/x.rs",)
    assert facts_in(text_of(SummaryMessage("truncate", 4711).message)).numbers == ()


def test_a_number_comes_with_the_words_around_it():
    text = "module_84430 is old. The gateway listens on port 8443 for internal traffic of the whole cluster."
    assert numbers_in(text) == {"8443": "listens on port 8443 for internal traffic"}
    assert numbers_in("8443") == {"8443": "8443"}


def test_short_forms():
    assert one_line("a\n b", 10) == "a b"
    assert one_line("abcdefghij", 5) == "abcd…"
    assert one_line(" " * 100 + "x", 5) == "…"
    text = head_and_tail("start " + "x " * 5000 + "end", 60, COUNTER)
    assert text.startswith("start")
    assert text.endswith("end")
    assert COUNTER.count(text) <= 60
    assert head_and_tail("x " * 5000, 3, COUNTER) == ""
    assert head_and_tail("short", 60, COUNTER) == "short"


PLANTED = (
    "Please set the limit in config/limits.yaml to 4250 and keep src/api/gate.py as it is.",
    "We decided to use PostgreSQL instead of MySQL.",
    "Ada Lovelace wants the report at https://example.org/report by 2026-03-04.",
)


def planted(more=30):
    return shown_from([*map(Message.user, PLANTED), *long_round(more)])


@pytest.mark.anyio
async def test_paths_and_numbers_survive_a_summary_that_says_nothing():
    shown = planted()
    target = tokens(shown, COUNTER) // 2
    rewrite = await Summarize(ScriptedAsk()).compact(shown, target=target, counter=COUNTER)
    found = coverage(shown, rewrite)
    assert found.paths.missing == ()
    assert found.numbers.missing == ()
    assert found.paths.share == 1.0
    assert "Ada Lovelace" in found.names.missing
    assert "https://example.org/report" in found.names.contained
    assert found.decisions.missing == ("We decided to use PostgreSQL instead of MySQL.",)
    assert found.missing == len(found.names.missing) + 1


@pytest.mark.anyio
async def test_they_survive_further_passes():
    compactor = Summarize(ScriptedAsk(), retain=Retain("messages", count=2))
    shown = planted(more=4)
    for number in range(4):
        shown = (*shown, *shown_from(long_round(4, size=2000), f"r{number}_"))
        rewrite = await compactor.compact(shown, target=tokens(shown, COUNTER) // 2, counter=COUNTER)
        shown = applied(shown, rewrite)
    text = "\n".join(text_of(item.message) for item in shown)
    for fact in ("config/limits.yaml", "src/api/gate.py", "4250", "2026-03-04", "https://example.org/report"):
        assert fact in text


@pytest.mark.anyio
async def test_coverage_tells_what_a_summary_contains():
    async def ask(history, instruction, *, max_output):
        return answer("Ada Lovelace: limit 4250. MySQL is out, they decided to use PostgreSQL.")

    shown = planted()
    rewrite = await Summarize(ask, facts=0).compact(shown, target=tokens(shown, COUNTER) // 2, counter=COUNTER)
    found = coverage(shown, rewrite)
    assert found.names.contained == ("Ada Lovelace",)
    assert found.numbers.contained == ("4250",)
    assert len(found.decisions.contained) == 1
    assert "config/limits.yaml" in found.paths.missing
    nothing = coverage(shown, await Truncate().compact(shown, target=10**6, counter=COUNTER))
    assert nothing.missing == 0
    assert nothing.paths.share == 1.0
    snapshot = await Snapshot().compact(shown, target=tokens(shown, COUNTER) // 2, counter=COUNTER)
    assert coverage(shown, snapshot).decisions.missing == ()


def test_only_what_is_not_told_is_listed():
    messages = [Message.user("a/b.py, c/d.py, 1234 and 5,678")]
    assert facts_lines(messages, "a/b.py has 5678 lines") == {
        "paths": ("c/d.py",),
        "numbers": ("a/b.py, c/d.py, 1234 and 5,678",),
    }


@pytest.mark.parametrize("string", hostile())
def test_no_text_leaves_its_part_of_a_record(string):
    told = string.replace("memory", "loom-part").replace("MEMORY", "LOOM-RECORD")
    text = SummaryMessage(
        "snapshot", 3, {"requests": (one_line(told, 400) or "x",), "summary": tuple(told.split("\n"))}
    ).message.text
    body = text.partition("<loom-record>\n")[2].removesuffix("</loom-record>")
    assert body.count("<loom-part name=") == body.count("</loom-part>") == 2
    assert "loom-record>" not in body
    inside = body.replace('<loom-part name="requests">', "").replace('<loom-part name="summary">', "")
    inside = inside.replace("</loom-part>", "")
    assert without_tag("loom-part", without_tag("loom-record", inside)) == inside
