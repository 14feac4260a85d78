"""An audit names the right cause of every collapse, finds none where there is none, and adds up."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from loom import audit
from loom.catalog import find_model
from loom.context.cache.audit import AuditedCall, audit_transcripts
from loom.context.cache.audit_page import BARS, audit_page, requests_chart
from loom.context.cache.collapses import COLLAPSE_CAUSES, CollapseCause
from loom.context.cache.simulate import replay
from loom.traces.transcript import RecordedCall, RecordedCompaction, SkippedLine, Transcript
from tests.context.cache import layouts
from tests.context.cache.recorded_sessions import MAKERS, coding_session, not_reported, service_session
from tests.traces import rollouts
from tests.traces.claude import assistant, text_of, used, user

PLANTED = 8
CLEAN = 32
SONNET = find_model("claude-sonnet-5")


def found_in(*transcripts: Transcript) -> list[tuple[int, CollapseCause]]:
    """The place of each call with a collapse, and the cause."""
    calls = [call for session in audit_transcripts(transcripts).sessions for call in session.calls]
    return [(call.number - 1, call.collapse.cause) for call in calls if call.collapse]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("cause", COLLAPSE_CAUSES)
@pytest.mark.parametrize("seed", range(PLANTED))
def test_a_planted_collapse_is_found_with_its_cause_and_nothing_else(
    maker: str, cause: CollapseCause, seed: int
) -> None:
    transcript, at = MAKERS[maker](seed, cause)
    assert found_in(transcript) == [(at, cause)]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("seed", range(CLEAN))
def test_nothing_is_found_where_nothing_was_planted(maker: str, seed: int) -> None:
    transcript, _ = MAKERS[maker](seed, None)
    assert sum(call.read or 0 for call in transcript.calls) > 0
    assert found_in(transcript) == []


def test_the_makers_show_what_makes_it_hard() -> None:
    """Clean sessions that are judged hold small other calls, parallel calls, short prompts and a cache with a grid."""
    made = [service_session(seed, None)[0] for seed in range(CLEAN)]
    pairs = [(one, next) for t in made for one, next in zip(t.calls, t.calls[1:], strict=False)]
    assert sum(1 for one, next in pairs if (next.at or 0) - (one.at or 0) < 2) > 20
    assert sum(1 for one, next in pairs if (next.read or 0) * 2 < (one.read or 0)) > 20
    assert sum(1 for t in made if t.calls[0].written_short is None) > 5
    assert any((call.at or 0) - (before.at or 0) > 150 for before, call in pairs)


# Sessions of Loom's own replay, which knows markers, lookback and grids: a third maker, of whole prompts.

_APPENDED = (layouts.automatic_tail, layouts.static_tail, layouts.reminder_after_tail, layouts.implicit,
             layouts.past_ends_marked, layouts.implicit_and_marks, layouts.grid_clean)  # fmt: skip
_MODELS = {"lookback": "claude-sonnet-5", "exact": "gpt-5.6", "grid": "gpt-5"}


def replayed(layout: layouts.Layout) -> Transcript:
    """What the provider of a layout would have reported, a request every half minute."""
    matching = layout.rules.matching
    steps = replay(layout.trace, layout.rules).steps
    writes = [None if matching == "grid" else step.write for step in steps]
    calls = (
        call(n, step.read, write, step.uncached, at=30.0 * n, model=_MODELS[matching])
        for n, (step, write) in enumerate(zip(steps, writes, strict=True))
    )
    return session(*calls)


@pytest.mark.parametrize("layout", _APPENDED)
def test_a_replay_of_a_conversation_that_only_grows_has_no_collapse(layout: Callable[[], layouts.Layout]) -> None:
    assert found_in(replayed(layout())) == []


def test_a_replay_with_another_order_of_tools_collapses_there_and_nowhere_else() -> None:
    assert found_in(replayed(layouts.tools_reordered())) == [(n, "unexplained") for n in range(3, 120, 7)]


# Sessions by hand.


def call(
    n: int, read: int | None, short: int | None, fresh: int = 10, *, at: float | None = None, **more
) -> RecordedCall:
    return RecordedCall(
        id=f"m{n}-{at}-{fresh}",
        at=60.0 * n if at is None else at,
        model=more.pop("model", "claude-sonnet-5"),
        fresh=fresh,
        output=100,
        read=read,
        written_short=short,
        written_long=more.pop("long", None if short is None else 0),
        number=more.pop("number", 2 * n + 1),
        line=more.pop("line", n + 1),
        **more,
    )


def session(*calls: RecordedCall, compactions: tuple[RecordedCompaction, ...] = (), **more) -> Transcript:
    own = {"program": "claude-code", "session_id": "s1", "path": "s1.jsonl", **more}
    return Transcript(calls=calls, compactions=compactions, **own)


def test_an_unexplained_loss_names_the_prefix_that_still_matched() -> None:
    """The first message changes with every call: tools and system prompt are read, the rest is written again."""
    done = audit_transcripts(
        [session(call(0, 0, 60_000), call(1, 43_876, 17_000), call(2, 43_876, 18_000), call(3, 43_876, 19_500))]
    )
    messages = [collapse.message for collapse in done.collapses]
    assert messages == ["read stayed at 43,876: the part before message 1 is intact"] * 2
    assert [collapse.lost for collapse in done.collapses] == [17_000, 18_000]
    later = audit_transcripts(
        [session(call(0, 0, 30_000), call(1, 30_000, 9_000), call(2, 39_000, 9_000), call(3, 30_500, 20_000))]
    )
    assert later.collapses[0].message == "read fell to 30,500: the part before message 2 is intact"
    cold = audit_transcripts([session(call(0, 0, 30_000), call(1, 30_000, 9_000), call(2, 0, 41_000))])
    assert cold.collapses[0].message.startswith("nothing was read: tools or system prompt changed")


def test_what_was_lost_is_priced_at_what_it_cost_more_than_reading() -> None:
    done = audit_transcripts([session(call(0, 0, 40_000), call(1, 40_000, 1_000), call(2, 0, 41_500, at=4_000))])
    (collapse,) = done.collapses
    assert (collapse.cause, collapse.expected, collapse.read, collapse.lost) == ("idle", 41_000, 0, 41_000)
    assert collapse.extra_cost == pytest.approx(41_000 * (1.25 - 0.1))
    price = SONNET.input_price or 0
    assert collapse.usd == pytest.approx(41_000 * 1.15 * price / 1e6)
    assert done.usd == pytest.approx(
        ((40_000 + 1_000 + 41_500) * 1.25 + 40_000 * 0.1 + 30) * price / 1e6 + 300 * (SONNET.output_price or 0) / 1e6
    )
    assert done.usd_without_collapse == pytest.approx((done.usd or 0) - (collapse.usd or 0))
    assert collapse.message == "1.1 h passed, and what was written is kept for 5 min"
    assert done.read_share == pytest.approx(40_000 / (40_010 + 41_010 + 41_510))


def test_an_hour_is_kept_where_an_hour_was_written() -> None:
    long = [call(0, 0, 0, long=40_000), call(1, 40_000, 0, long=2_000), call(2, 42_000, 0, at=1_800, long=500)]
    assert found_in(session(*long)) == []
    assert found_in(session(*long, call(3, 0, 0, at=1_800 + 3_700, long=43_000))) == [(3, "idle")]
    lost_early = call(3, 0, 0, at=1_800 + 1_200, long=43_000)
    assert found_in(session(*long, lost_early)) == [(3, "unexplained")]
    mixed = [call(0, 0, 30_000, long=20_000), call(1, 20_000, 31_000, at=600)]
    done = audit_transcripts([session(*mixed)])
    assert [(c.cause, c.lost) for c in done.collapses] == [("idle", 30_000)]


def test_a_longer_write_is_priced_before_a_shorter_one() -> None:
    done = audit_transcripts([session(call(0, 0, 10_000, long=20_000), call(1, 0, 10_000, long=21_000, at=9_000))])
    (collapse,) = done.collapses
    assert collapse.lost == 30_000
    assert collapse.extra_cost == pytest.approx(21_000 * (2.0 - 0.1) + 9_000 * (1.25 - 0.1))


def test_where_several_causes_hold_the_others_are_named_too() -> None:
    before = [call(0, 0, 50_000, program_version="1"), call(1, 50_000, 900, program_version="1")]
    after = call(2, 0, 52_000, at=5_000, program_version="2")
    (collapse,) = audit_transcripts([session(*before, after)]).collapses
    assert (collapse.cause, collapse.also) == ("idle", ("program_changed",))


@pytest.mark.parametrize("known", ["line", "at", "number"])
def test_a_compaction_is_placed_by_line_or_time_or_texts(known: str) -> None:
    calls = [call(0, 0, 90_000), call(1, 90_000, 2_000), call(2, 14_000, 12_000)]
    compaction = RecordedCompaction(at=90.0, number=4, line=2, trigger="auto", before=92_000, after=11_000)
    if known != "line":
        calls, compaction = [replace(c, line=0) for c in calls], replace(compaction, line=0)
    if known == "number":
        calls, compaction = [replace(c, at=None) for c in calls], replace(compaction, at=None)
    done = audit_transcripts([session(*calls, compactions=(compaction,))])
    assert [(c.cause, c.message) for c in done.collapses] == [
        ("compaction", "the conversation was compacted (auto), from 92,000 to 11,000 tokens")
    ]


def test_what_is_not_reported_is_unknown_and_not_zero() -> None:
    silent = not_reported(coding_session(1, "idle")[0])
    done = audit_transcripts([silent])
    assert (done.collapses, done.read_share) == ((), None)
    assert done.not_reported == done.requests == len(silent.calls)
    assert (done.written_short, done.written_long) == (None, None)
    mixed = [call(0, 0, 40_000), call(1, None, None, 41_000), call(2, 40_000, 2_000), call(3, 0, 43_000)]
    done = audit_transcripts([session(*mixed)])
    assert (found_in(session(*mixed)), done.not_reported) == ([(3, "unexplained")], 1)
    assert done.read_share == pytest.approx(40_000 / (40_010 + 42_010 + 43_010))


def test_an_unknown_price_is_said_and_tokens_are_counted() -> None:
    calls = [call(0, 0, 40_000, model="house-model"), call(1, 40_000, 900, model="house-model")]
    done = audit_transcripts([session(*calls, call(2, 0, 42_000, at=9_000, model="house-model"))])
    assert (done.usd, done.lost_usd, done.usd_without_collapse) == (None, None, None)
    assert done.unpriced == {"house-model": 3}
    beside = audit_transcripts(
        [session(*calls, call(2, 0, 42_000, at=9_000, model="house-model")), session(call(0, 0, 5_000), path="x")]
    )
    assert beside.usd
    assert (beside.lost_usd, beside.usd_without_collapse) == (None, None)  # not zero
    assert done.lost == 40_900
    assert audit_transcripts([session(call(0, 0, 5_000, model="claude-sonnet-5[1m]"))]).usd is not None


def test_failed_calls_are_not_requests() -> None:
    failed = RecordedCall(id="e", at=61.0, model="<synthetic>", fresh=0, output=0, read=0, written_short=0, line=9)
    done = audit_transcripts([session(call(0, 0, 40_000), failed, call(2, 40_000, 900))])
    assert (done.requests, done.collapses) == (2, ())


def test_a_conversation_that_goes_back_reads_from_the_point_it_went_back_to() -> None:
    calls = [call(0, 0, 20_000), call(1, 20_000, 20_000), call(2, 40_000, 20_000), call(3, 60_000, 9_000)]
    assert found_in(session(*calls, call(4, 40_000, 11_000))) == []


def test_a_sum_of_several_passes_does_not_raise_what_is_expected() -> None:
    calls = [call(0, 0, 50_000), call(1, 50_000, 1_000), call(2, 153_000, 3_000), call(3, 54_000, 2_000)]
    assert found_in(session(*calls, call(4, 56_000, 500))) == []


def test_a_prompt_below_the_minimum_is_never_a_collapse() -> None:
    haiku = [call(n, 0, 0, 3_000, model="claude-haiku-4-5") for n in range(5)]
    assert found_in(session(*haiku)) == []


def test_caching_that_was_switched_off_is_found_once() -> None:
    calls = [call(0, 0, 40_000), call(1, 40_000, 900), *(call(n, 0, 0, 42_000) for n in range(2, 6))]
    assert found_in(session(*calls)) == [(2, "unexplained")]


def test_a_cache_that_promises_nothing_may_miss_but_not_stop_at_the_same_place() -> None:
    def gpt(n: int, read: int, prompt: int) -> RecordedCall:
        return call(n, read, None, prompt - read, model="gpt-5", at=20.0 * n)

    good = [gpt(0, 0, 20_000), gpt(1, 19_968, 22_000), gpt(2, 21_888, 24_000)]
    missed = [*good, gpt(3, 0, 26_000), gpt(4, 25_984, 28_000)]
    done = audit_transcripts([session(*missed)])
    assert (done.collapses, done.missed) == ((), 23_936)
    stuck = [*good, *(gpt(n, 11_264, 24_000 + 2_000 * n) for n in range(3, 8))]
    done = audit_transcripts([session(*stuck)])
    assert [c.cause for c in done.collapses] == ["unexplained"] * 5
    assert done.collapses[1].message == "read stayed at 11,264: the part before message 1 is intact"


def test_a_system_prompt_that_is_cached_alone_is_all_that_is_expected() -> None:
    """Writes are not reported, and only the system prompt is ever cached, which the second prompt hardly exceeds."""
    alone = [call(0, 0, None, 5_000), *(call(n, 4_900, None, 500 + 4_000 * n) for n in range(1, 9))]
    assert found_in(session(*alone)) == []
    assert found_in(session(*alone, call(9, 0, None, 42_000))) == [(9, "unexplained")]


def test_a_tail_that_is_marked_and_not_repeated_is_not_a_collapse() -> None:
    calls = [call(0, 0, 24_000), call(1, 20_000, 5_000), call(2, 21_000, 5_500), call(3, 22_500, 5_000)]
    assert found_in(session(*calls)) == []


def test_main_and_subagents_are_apart_and_together() -> None:
    main = session(call(0, 0, 40_000), call(1, 40_000, 900))
    other = session(call(5, 0, 9_000), session_id="s1/a", parent="s1", is_subagent=True)
    done = audit_transcripts([main, other])
    assert (done.main.requests, done.subagents.requests, done.requests) == (2, 1, 3)
    assert (done.main.written_short, done.subagents.written_short, done.written_short) == (40_900, 9_000, 49_900)
    assert done.collapses == ()  # the small prompt of the subagent did not touch the cache of its main


def test_calls_that_another_file_repeats_count_once_and_still_say_what_was_kept() -> None:
    first = session(call(0, 0, 40_000), call(1, 40_000, 900))
    again = session(*first.calls, call(2, 0, 43_000, at=90.0), session_id="s2", path="s2.jsonl")
    done = audit_transcripts([first, again])
    assert (done.requests, done.sessions[1].repeated) == (3, 2)
    assert [c.lost for c in done.collapses] == [40_900]


def test_parts_of_a_long_conversation_are_one() -> None:
    whole, at = coding_session(3, "compaction")
    cut = at  # the compaction is in one part, the call after it in the next
    parts = [replace(whole, calls=whole.calls[:cut]), replace(whole, calls=whole.calls[cut:], compactions=())]
    assert audit_transcripts(parts) == audit_transcripts([whole])


def test_lines_and_files_that_could_not_be_read_are_counted() -> None:
    good = session(call(0, 0, 40_000), skipped=(SkippedLine(3, "broken: it is not JSON"), SkippedLine(4, "tool: no")))
    bad = Transcript(program="", session_id="", path="x.json", skipped=(SkippedLine(0, "file: it is a list"),))
    done = audit_transcripts([good, bad])
    assert done.skipped == {"broken: it is not JSON": 1}
    assert done.unread == {"x.json": "it is a list"}


def test_the_sums_are_those_of_the_calls() -> None:
    done = audit_transcripts(MAKERS[maker](seed, "idle")[0] for maker in MAKERS for seed in range(5))
    calls: list[AuditedCall] = [call for session in done.sessions for call in session.calls]
    assert done.requests == len(calls) > 200
    written = (done.written_short or 0) + (done.written_long or 0)
    assert done.prompt == sum(c.prompt for c in calls) == done.read + done.fresh + written
    assert done.usd == pytest.approx(sum(session.usd or 0 for session in done.sessions))
    assert done.lost == sum(found.lost for found in done.by_cause.values()) == sum(s.lost for s in done.sessions)
    assert (done.lost_usd or 0) == pytest.approx(sum(found.usd or 0 for found in done.by_cause.values()))
    as_dict = done.to_dict()
    assert as_dict["lost"] == sum(session["lost"] for session in as_dict["sessions"])
    assert as_dict["sessions"][0]["calls"][0]["collapse"] is None


def test_transcripts_can_be_given_one_or_many() -> None:
    transcript = coding_session(1, "idle")[0]
    assert audit(transcript) == audit([transcript])
    assert audit([]).requests == 0


# The page.


class Tags(HTMLParser):
    """Every tag of a page, and whether each that was opened is closed."""

    EMPTY = frozenset({"meta", "br", "line", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in self.EMPTY or self.open.pop() == tag


def tags_of(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    return parser.seen


def test_the_page_holds_every_request_and_marks_every_collapse() -> None:
    made = [coding_session(seed, "idle")[0] for seed in range(3)]
    page = audit_page(audit_transcripts(made))
    tags = tags_of(page)  # of which each chart has two: for wide and for narrow screens
    assert sum(1 for tag, _ in tags if tag == "g") == 2 * sum(len(t.calls) for t in made)
    assert sum(1 for tag, attrs in tags if tag == "text" and attrs.get("class") == "lost") == 2 * 3
    assert "prefers-color-scheme: dark" in page


def test_the_page_loads_nothing_and_escapes_what_it_shows() -> None:
    evil = "<script>alert(1)</script><img src=x onerror=1>\"'"
    calls = [call(0, 0, 40_000, model=evil), call(1, 0, 41_000, model=f"{evil}2")]
    page = audit_page(audit_transcripts([session(*calls, title=evil, path=evil, session_id=evil, program=evil)]))
    names = {tag for tag, _ in tags_of(page)}
    assert not names & {"script", "img", "link", "iframe", "object"}
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert "default-src 'none'" in page
    assert not any(name.startswith("on") for _, attrs in tags_of(page) for name in attrs)


def test_half_a_character_in_a_title_or_a_path_can_be_written() -> None:
    page = audit_page(audit_transcripts([session(call(0, 0, 40_000), title="x\ud83d", path="\udcff.jsonl")]))
    assert b"x?" in page.encode("utf-8")


def test_what_is_not_reported_is_drawn_otherwise_than_zero() -> None:
    known, silent = (
        audit_transcripts([t]).sessions[0].calls
        for t in (session(call(0, 0, 0, 5_000)), session(call(0, None, None, 5_000)))
    )
    assert 'class="fresh"' in requests_chart(known).partition("</svg>")[0]
    drawn = requests_chart(silent).partition("</svg>")[0]
    assert 'class="unknown"' in drawn
    assert 'class="fresh"' not in drawn
    assert "did not report" in drawn


def test_a_chart_of_many_requests_says_that_it_merges_them() -> None:
    calls = [call(n, 40_000 if n else 0, 0 if n else 40_000) for n in range(3 * BARS - 1)]
    calls[700] = call(700, 0, 40_000)
    chart = requests_chart(audit_transcripts([session(*calls)]).sessions[0].calls)
    assert chart.count("<g>") == 2 * BARS  # for wide and for narrow screens
    assert "each bar is the mean of 3 requests" in chart
    assert chart.count('class="lost"') == 3  # in each chart, and in the legend
    assert requests_chart([]).count("<g>") == 0


# Files: what one copied from another says what was cached.


@pytest.mark.parametrize("others", [("b.jsonl",), ()], ids=["beside the first", "alone"])
def test_a_pause_before_a_session_was_resumed_is_found_with_or_without_the_file_it_copied(
    tmp_path: Path, others: tuple[str, ...]
) -> None:
    first = [user("u1", None, "One."), assistant("a2", "u1", "Two.", usage=used(3, 9, short=20_000))]
    own = [
        user("u3", "a2", "Three.", sessionId="later", timestamp="2026-11-02T13:00:00.000Z"),
        assistant(
            "a4",
            "u3",
            "Four.",
            usage=used(3, 9, short=20_100),
            sessionId="later",
            timestamp="2026-11-02T13:00:05.000Z",
        ),
    ]
    for name in others:
        (tmp_path / name).write_text(text_of(*first))
    (tmp_path / "a.jsonl").write_text(text_of(*({**one, "sessionId": "later"} for one in first), *own))
    found = audit([tmp_path])
    assert [(one.cause, one.lost) for one in found.collapses] == [("idle", 20_000)]
    assert (found.requests, sum(one.repeated for one in found.sessions)) == (2, len(others))


def test_a_fork_of_codex_is_held_against_what_its_parent_left(tmp_path: Path) -> None:
    def count(minute: int, total: int, prompt: int, read: int) -> dict[str, Any]:
        line = rollouts.counted((total, 29_952, minute), (prompt, read, 1))
        return {**line, "timestamp": f"2026-11-03T11:{minute:02}:00.000Z"}

    parent = [rollouts.meta("one"), rollouts.turn(), *rollouts.said("Go.")]
    parent += [count(1, 30_000, 30_000, 0), count(2, 61_000, 31_000, 29_952)]
    own = [*rollouts.said("On."), *(count(2 + n, 61_000 + 40_000 * n, 32_000 + 500 * n, 4_096) for n in (1, 2, 3, 4))]
    (tmp_path / "rollout-1.jsonl").write_text(rollouts.text_of(*parent))
    fork = [rollouts.meta("two", forked_from_id="one"), *parent[1:], *own]
    (tmp_path / "rollout-2.jsonl").write_text(rollouts.text_of(*fork))
    found = audit([tmp_path])
    assert (found.requests, [one.requests for one in found.sessions]) == (6, [2, 4])
    assert found.sessions[1].repeated == 2
    assert [one.calls[0].collapse is not None for one in found.sessions] == [False, True]
