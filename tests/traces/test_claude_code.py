"""Transcripts of Claude Code: what was said, what was left out and why, and what each call used."""

import json
import random
from collections import Counter

import pytest

from loom.traces.reader import read_transcripts
from tests.traces.claude import (
    MODEL,
    SESSION,
    assistant,
    boundary,
    call,
    line,
    queued,
    result,
    text_of,
    used,
    user,
)

REMINDER = "<system-reminder>\nThe file notes.md was changed.\n</system-reminder>"

# Each case: its lines, who said what on the branch that was shown, and the reason of every line that was left out.
CASES = {
    "plain": (
        [user("u1", None, "I live in Oslo."), assistant("a2", "u1", "Noted.")],
        ["user: I live in Oslo.", "assistant: Noted."],
        {},
    ),
    "rewound": (
        [
            user("u1", None, "Plan a trip."),
            assistant("a2", "u1", "Where to?"),
            user("u3", "a2", "To Rome."),
            assistant("a4", "u3", "Rome it is."),
            user("u5", "a2", "To Bergen."),
            assistant("a6", "u5", "Bergen it is."),
        ],
        ["user: Plan a trip.", "assistant: Where to?", "user: To Bergen.", "assistant: Bergen it is."],
        {3: "rewound", 4: "rewound"},
    ),
    "rewound to the beginning": (
        [
            user("u1", None, "Hello."),
            assistant("a2", "u1", "Hi."),
            user("u3", None, "Good day."),
            assistant("a4", "u3", "Hi!"),
        ],
        ["user: Good day.", "assistant: Hi!"],
        {1: "rewound", 2: "rewound"},
    ),
    "compacted": (
        [
            user("u1", None, "My cat is called Tofu."),
            assistant("a2", "u1", "A fine name."),
            boundary("c3", "a2", preTokens=150_000, postTokens=6_000),
            user("s4", "c3", "Summary: the user has a cat.", isCompactSummary=True, isVisibleInTranscriptOnly=True),
            user("u5", "s4", "And a dog."),
            assistant("a6", "u5", "Good."),
        ],
        [
            "user: My cat is called Tofu.",
            "assistant: A fine name.",
            "summary: Summary: the user has a cat.",
            "user: And a dog.",
            "assistant: Good.",
        ],
        {},
    ),
    "compacted, and the lines that were kept go on": (
        [
            user("u1", None, "One."),
            assistant("a2", "u1", "Two."),
            boundary("c3", "a2", preTokens=9, preservedMessages={"uuids": ["a2"]}),
            user("s4", "c3", "Summary.", isCompactSummary=True),
            user("u5", "a2", "Three."),
            assistant("a6", "u5", "Four."),
        ],
        ["user: One.", "assistant: Two.", "user: Three.", "assistant: Four."],
        {4: "summary"},
    ),
    "compacted, and a kept message is written again": (
        [
            user("u1", None, "One."),
            assistant("a2", "u1", "Two."),
            user("u3", "a2", "Three."),
            user("u4", "a2", "Four."),
            boundary("c5", "a6", preservedSegment={"headUuid": "a6", "anchorUuid": "s7", "tailUuid": "a6"}),
            user("s7", "c5", "Summary.", isCompactSummary=True),
            assistant("a6", "s7", "Five."),
            user("u8", "a6", "Six."),
        ],
        ["user: One.", "assistant: Two.", "user: Four.", "summary: Summary.", "assistant: Five.", "user: Six."],
        {3: "rewound"},
    ),
    "compacted, and the line before is gone": (
        [
            user("u1", None, "One."),
            assistant("a2", "u1", "Two."),
            boundary("c3", "not-in-this-file"),
            user("s4", "c3", "Summary.", isCompactSummary=True),
            assistant("a5", "s4", "Three."),
        ],
        ["user: One.", "assistant: Two.", "summary: Summary.", "assistant: Three."],
        {},
    ),
    "harness": (
        [
            user("u1", None, "<local-command-caveat>Caveat: these are commands.</local-command-caveat>", isMeta=True),
            user("u2", "u1", "<command-name>/clear</command-name>\n<command-message>clear</command-message>"),
            user("u3", "u2", "<local-command-stdout>done</local-command-stdout>"),
            user("u4", "u3", "<bash-input>ls</bash-input>"),
            user("u5", "u4", REMINDER),
            user("u6", "u5", "Base directory for this skill: I live in Paris.", isMeta=True),
            user("u7", "u6", "<task-notification><summary>I live in Rome.</summary></task-notification>"),
            user("u8", "u7", "[Request interrupted by user]"),
            user("u9", "u8", "I live in Lima.", origin={"kind": "peer"}),
            line("system", "y10", "u9", subtype="stop_hook_summary", content="I live in Kyiv."),
            line(
                "attachment",
                "t11",
                "y10",
                attachment={"type": "hook_additional_context", "content": ["I live in Bonn."]},
            ),
            line("progress", "p12", "t11", data={"type": "hook_progress"}),
            user("u13", "p12", f"I live in Oslo.\n{REMINDER}"),
            user("u14", "u13", [{"type": "text", "text": REMINDER}, {"type": "text", "text": "And I ski."}]),
            user("u15", "u14", "<user-prompt-submit-hook>I live in Cork.</user-prompt-submit-hook>"),
        ],
        ["user: I live in Oslo.", "user: And I ski."],
        dict.fromkeys((*range(1, 12), 15), "harness") | {12: "event"},
    ),
    "a subagent in the same file": (
        [
            user("u1", None, "Find the bug."),
            assistant("a2", "u1", [call("Task")]),
            user("u3", None, "I live in Rome. Look for the bug.", isSidechain=True),
            assistant("a4", "u3", "It is in line 4.", isSidechain=True),
            result("u5", "a2", "It is in line 4."),
            assistant("a6", "u5", "Found it."),
        ],
        ["user: Find the bug.", "assistant: Found it."],
        {2: "tool", 5: "tool"},
    ),
    "typed while the model works": (
        [
            user("u1", None, "Build it."),
            assistant("a2", "u1", [call()]),
            line("queue-operation", "", None, operation="enqueue", content="Use tabs."),
            result("u3", "a2", "ok"),
            queued("q4", "u3", "Use tabs.", origin={"kind": "human"}),
            queued("q5", "q4", [{"type": "text", "text": "And a README."}, {"type": "image", "source": {}}]),
            queued("q6", "q5", "<task-notification>done</task-notification>", mode="task-notification"),
            queued("q7", "q6", "/compact now"),
            queued("q8", "q7", "I am another session.", origin={"kind": "peer"}),
            line("attachment", "q9", "q8", attachment={"type": "opened_file_in_ide", "filename": "/tmp/x"}),
            queued("q10", "q9", "/tmp/x is the file"),
            assistant("a11", "q10", "Done."),
        ],
        ["user: Build it.", "user: Use tabs.", "user: And a README.", "user: /tmp/x is the file", "assistant: Done."],
        {2: "tool", 3: "event", 4: "tool", 7: "harness", 8: "harness", 9: "harness", 10: "harness"},
    ),
    "one message over several lines": (
        [
            user("u1", None, "Go."),
            assistant("a2", "u1", [{"type": "thinking", "thinking": "Hm."}], message="m", usage=used(3, 1, 100, 20)),
            assistant("a3", "a2", "First I look.", message="m", usage=used(3, 1, 100, 20)),
            assistant("a4", "a3", [call(tool="t1")], message="m", usage=used(3, 90, 100, 20)),
            assistant("a5", "a4", [call(tool="t2")], message="m", usage=used(3, 90, 100, 20)),
            result("u6", "a4", "one", "t1"),
            result("u7", "a5", "two", "t2"),
            assistant("a8", "u7", "Then I act.", message="n", usage=used(1, 9, 120, 30)),
            assistant("a9", "a8", "Done.", message="n", usage=used(1, 9, 120, 30)),
        ],
        ["user: Go.", "assistant: First I look.", "assistant: Then I act.\n\nDone."],
        {2: "thinking", 4: "tool", 5: "tool", 6: "tool", 7: "tool"},
    ),
    "errors of the API": (
        [
            user("u1", None, "Go."),
            assistant("a2", "u1", "API Error: 529", model="<synthetic>", isApiErrorMessage=True, usage=used(0, 0)),
            assistant("a3", "a2", "No response requested.", model="<synthetic>", usage=used(0, 0)),
            user("u4", "a3", "Go on."),
            assistant("a5", "u4", "Here."),
        ],
        ["user: Go.", "user: Go on.", "assistant: Here."],
        {2: "error", 3: "error"},
    ),
    "lines of the program": (
        [
            {"type": "summary", "summary": "A trip to Bergen", "leafUuid": "a2"},
            {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}},
            user("u1", None, "Hello."),
            assistant("a2", "u1", []),
            user("u3", "a2", " "),
        ],
        ["user: Hello."],
        {1: "event", 2: "event", 4: "empty", 5: "empty"},
    ),
}


@pytest.fixture
def read(tmp_path):
    def read(*lines, name="talk.jsonl"):
        text = lines[0] if isinstance(lines[0], str) else text_of(*lines)
        (tmp_path / name).write_text(text)
        return list(read_transcripts([tmp_path / name]))

    return read


def spoken(one):
    return [f"{text.writer}: {text.text}" for text in one.texts]


def reasons(one):
    return {skip.line: skip.reason.partition(":")[0] for skip in one.skipped}


@pytest.mark.parametrize("name", CASES)
def test_what_was_said_and_why_the_rest_was_not(read, name):
    lines, expected, left = CASES[name]
    main = read(*lines)[0]
    assert spoken(main) == expected
    assert reasons(main) == left
    assert (main.program, main.session_id, main.parent, main.is_subagent) == ("claude-code", SESSION, None, False)


@pytest.mark.parametrize("name", CASES)
def test_every_line_is_accounted_for(read, name):
    lines, _, _ = CASES[name]
    found = read(*lines)
    known = Counter(text.line for one in found for text in one.texts)
    known += Counter(skip.line for one in found for skip in one.skipped)
    known += Counter(each.line for one in found for each in one.compactions)
    parts = 1 if name == "one message over several lines" else 0  # the last line is a part of a text
    assert sorted(known) == list(range(1, len(lines) + 1 - parts))
    assert set(known.values()) == {1}


def test_a_subagent_is_a_session_of_its_own(read):
    _, agent = read(*CASES["a subagent in the same file"][0])
    assert (agent.parent, agent.is_subagent, agent.session_id) == (SESSION, True, f"{SESSION}/u3")
    assert spoken(agent) == ["program: I live in Rome. Look for the bug.", "assistant: It is in line 4."]
    assert [one.id for one in agent.calls] == ["msg_a4"]


def test_a_subagent_in_a_file_of_its_own(read):
    side = {"isSidechain": True, "agentId": "abc123"}
    (agent,) = read(
        user("u1", None, "Look.", **side), assistant("a2", "u1", "Seen.", **side), name="agent-abc123.jsonl"
    )
    assert (agent.parent, agent.is_subagent, agent.session_id) == (SESSION, True, f"{SESSION}/abc123")
    assert spoken(agent) == ["program: Look.", "assistant: Seen."]


def test_usage_counts_once_for_a_message_over_several_lines(read):
    (main,) = read(*CASES["one message over several lines"][0])
    first, second = main.calls
    assert (first.id, first.line, first.number, first.model, first.program_version) == ("m", 2, 1, MODEL, "2.1.90")
    assert (first.fresh, first.output, first.read, first.written_short, first.written_long) == (3, 90, 100, 20, 0)
    assert (second.output, second.read, second.number) == (9, 120, 2)


def test_what_is_kept_for_an_hour_is_apart(read):
    usage = used(1, 2, 3, short=40, long=500)
    old = {"input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 7}
    (main,) = read(
        user("u1", None, "x"),
        assistant("a2", "u1", "y", usage=usage),
        assistant("a3", "a2", "z", usage=old),
        assistant("a4", "a3", "w", usage={"input_tokens": 1, "output_tokens": 2}),
    )
    assert [(c.written_short, c.written_long, c.read) for c in main.calls] == [
        (40, 500, 3),
        (7, 0, None),
        (None, None, None),
    ]


def test_calls_on_a_rewound_branch_were_made_all_the_same(read):
    (main,) = read(*CASES["rewound"][0])
    assert [c.id for c in main.calls] == ["msg_a2", "msg_a4", "msg_a6"]


def test_failed_calls_are_not_calls(read):
    (main,) = read(*CASES["errors of the API"][0])
    assert [c.id for c in main.calls] == ["msg_a5"]


def test_a_compaction_has_its_place_and_its_sizes(read):
    (main,) = read(*CASES["compacted"][0])
    ((one),) = main.compactions
    assert (one.number, one.line, one.trigger, one.before, one.after) == (2, 3, "auto", 150_000, 6_000)
    small = line(
        "system",
        "c3",
        "a2",
        subtype="microcompact_boundary",
        microcompactMetadata={"trigger": "auto", "preTokens": 900, "tokensSaved": 300},
    )
    (main,) = read(user("u1", None, "x"), assistant("a2", "u1", "y"), small, user("u4", "c3", "z"))
    assert [(each.before, each.after) for each in main.compactions] == [(900, 600)]
    assert len(main.texts) == 3


def test_the_title_is_the_best_there_is(read):
    (main,) = read(*CASES["lines of the program"][0])
    assert main.title == "A trip to Bergen"
    named = {"type": "custom-title", "customTitle": "Bergen", "sessionId": SESSION}
    (main,) = read(*CASES["lines of the program"][0], named)
    assert main.title == "Bergen"


def test_a_broken_line_does_not_cut_the_conversation(read):
    lines = text_of(user("u1", None, "One."), assistant("a2", "u1", "Two."), user("u3", "a2", "Three.")).splitlines()
    lines[1] = lines[1][:40]
    (main,) = read("\n".join(lines) + "\n")
    assert spoken(main) == ["user: One.", "user: Three."]
    assert reasons(main) == {2: "broken"}


def test_a_summary_of_older_versions_is_known_by_its_words(read):
    words = "This session is being continued from a previous conversation that ran out of context. I live in Rome."
    (main,) = read(user("u1", None, words), assistant("a2", "u1", "Yes."))
    assert [text.writer for text in main.texts] == ["summary", "assistant"]


def test_a_plan_and_a_skill_are_not_the_words_of_the_user(read):
    (main,) = read(
        user("u1", None, "Implement the following plan: I live in Rome.", planContent="# Plan"),
        user("u2", "u1", "Base directory for this skill", sourceToolUseID="toolu_1"),
        user("u3", "u2", "Go."),
    )
    assert (spoken(main), reasons(main)) == (["user: Go."], {1: "harness", 2: "harness"})


def test_a_session_has_the_name_of_its_file_where_a_line_says_so(read):
    lines = [user("u1", None, "One.", sessionId="old"), user("u2", "u1", "Two.", sessionId="new")]
    assert [one.session_id for one in read(*lines, name="new.jsonl")] == ["new"]
    assert [one.session_id for one in read(*lines, name="copy.jsonl")] == ["old"]


def test_lines_in_an_array_are_read_the_same(read):
    lines, expected, _ = CASES["rewound"]
    (main,) = read(json.dumps(lines, indent=1), name="talk.json")
    assert spoken(main) == expected


@pytest.mark.parametrize(
    "first",
    [
        {"type": "queue-operation", "operation": "enqueue", "content": "Hi.", "sessionId": SESSION},
        {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}},
        {"type": "mode", "mode": "normal", "sessionId": SESSION},
        {"type": "not-known-yet", "sessionId": SESSION, "data": {"content": "x"}},
        {"type": "summary", "summary": "A talk", "leafUuid": "a2"},
    ],
)
def test_a_file_is_known_whatever_its_first_line_is(read, first):
    lines, expected, left = CASES["rewound"]
    (main,) = read(first, *lines)
    assert (main.program, spoken(main)) == ("claude-code", expected)
    assert reasons(main) == {1: "event"} | {line + 1: reason for line, reason in left.items()}


def test_parents_in_a_circle_end(read):
    (main,) = read(user("u1", "u2", "One."), user("u2", "u1", "Two."))
    assert spoken(main) == ["user: One.", "user: Two."]


def test_what_a_resumed_session_copied_counts_once(tmp_path):
    first = [user("u1", None, "One."), assistant("a2", "u1", "Two.")]
    more = [user("u3", "a2", "Three.", sessionId="later"), assistant("a4", "u3", "Four.", sessionId="later")]
    away = [user("u5", "a2", "Five.", sessionId="later"), assistant("a6", "u5", "Six.", sessionId="later")]
    copied = [{**one, "sessionId": "later"} for one in first]
    (tmp_path / "b.jsonl").write_text(text_of(*first))
    (tmp_path / "a.jsonl").write_text(text_of(*copied, *more, *away))
    one, two = read_transcripts([tmp_path])
    assert (spoken(one), [c.id for c in one.calls]) == (["user: One.", "assistant: Two."], ["msg_a2"])
    assert spoken(two) == ["user: Five.", "assistant: Six."]
    assert (two.session_id, [c.id for c in two.calls]) == ("later", ["msg_a4", "msg_a6"])
    assert reasons(two) == {1: "repeated", 2: "repeated", 3: "rewound", 4: "rewound"}


def test_a_fork_with_ids_of_its_own_names_those_it_copied(tmp_path):
    (tmp_path / "a.jsonl").write_text(text_of(user("u1", None, "One."), assistant("a2", "u1", "Two.")))
    copies = [
        user("f1", None, "One.", sessionId="fork", forkedFrom={"sessionId": SESSION, "messageUuid": "u1"}),
        assistant(
            "f2",
            "f1",
            "Two.",
            message="msg_a2",
            sessionId="fork",
            forkedFrom={"sessionId": SESSION, "messageUuid": "a2"},
        ),
        user("u3", "f2", "Three.", sessionId="fork"),
    ]
    (tmp_path / "0.jsonl").write_text(text_of(*copies))
    one, two = read_transcripts([tmp_path / "*.jsonl"])
    assert (spoken(one), spoken(two)) == (["user: One.", "assistant: Two."], ["user: Three."])
    assert [len(each.calls) for each in (one, two)] == [1, 0]


@pytest.mark.parametrize("seed", range(60))
def test_the_texts_are_those_on_the_path_to_the_last_line(read, seed):
    """Random conversations with rewinds, compactions, tools and harness text, against the path taken step by step."""
    rng = random.Random(seed)
    lines, parents, texts = [], {}, {}

    def add(made, text=None):
        lines.append(made)
        parents[made["uuid"]] = made["parentUuid"] or made.get("logicalParentUuid")
        if text:
            texts[made["uuid"]] = text

    last = None
    for n in range(0, 3 * rng.randint(1, 40), 3):
        last = rng.choice([None, *parents]) if rng.random() < 0.15 else last
        if last and rng.random() < 0.1:
            add(boundary(f"c{n}", last))
            add(user(f"s{n}", f"c{n}", f"{n}", isCompactSummary=True), f"summary: {n}")
            last = f"s{n}"
        kind = rng.choice(["user", "assistant", "meta", "tool", "progress"])
        if kind in {"user", "assistant"}:
            add((user if kind == "user" else assistant)(f"x{n}", last, f"{n}"), f"{kind}: {n}")
        elif kind == "progress":
            add(line("progress", f"x{n}", last))
        else:
            add(result(f"x{n}", last, "ok") if kind == "tool" else user(f"x{n}", last, "meta", isMeta=True))
        last = f"x{n}"
    at = next((one["uuid"] for one in reversed(lines) if one["type"] in {"user", "assistant"}), None)
    path = []
    while at:
        path.append(at)
        at = parents[at]
    (main,) = read(*lines)
    assert spoken(main) == [texts[id] for id in reversed(path) if id in texts]
    known = [one.line for one in (*main.texts, *main.skipped, *main.compactions)]
    assert sorted(known) == list(range(1, len(lines) + 1))
