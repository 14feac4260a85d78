"""Rollouts of Codex: each text once, what each call used, and what forks repeat."""

import pytest

from loom.traces.reader import read_transcripts
from tests.traces.rollouts import answered, counted, counts, event, item, line, meta, said, text_of, turn

ENVIRONMENT = "<environment_context>\n  <cwd>/home/someone</cwd>\n</environment_context>"
TALK = [
    meta("one", "2026-11-03T08:00:00.000Z"),
    item("developer", "<permissions instructions>Be careful.</permissions instructions>"),
    item("user", "# AGENTS.md instructions for /work\n\n<INSTRUCTIONS>I live in Rome.</INSTRUCTIONS>", ENVIRONMENT),
    turn(),
    *said("I live in Oslo."),
    line("response_item", {"type": "reasoning", "summary": []}),
    line("response_item", {"type": "function_call", "name": "shell", "call_id": "c1", "arguments": "{}"}),
    line("response_item", {"type": "function_call_output", "call_id": "c1", "output": "I live in Rome."}),
    *answered("Noted."),
    counted((1000, 400, 50), (1000, 400, 50)),
    counted((1000, 400, 50), (1000, 400, 50)),
    *said("Yes."),
    *said("Yes."),
    *answered("Fine."),
    counted((2600, 1400, 90), (1600, 1000, 40)),
]


@pytest.fixture
def read(tmp_path):
    def read(*lines, name="rollout-1.jsonl"):
        (tmp_path / name).write_text(text_of(*lines))
        return next(iter(read_transcripts([tmp_path / name])))

    return read


def spoken(one):
    return [f"{text.writer}: {text.text}" for text in one.texts]


def reasons(one):
    return {skip.line: skip.reason.partition(":")[0] for skip in one.skipped}


def usage(one):
    return [(c.fresh, c.read, c.output) for c in one.calls]


def test_each_text_counts_once(read):
    one = read(*TALK)
    assert spoken(one) == ["user: I live in Oslo.", "assistant: Noted.", "user: Yes.", "user: Yes.", "assistant: Fine."]
    assert reasons(one) == {
        1: "event", 2: "harness", 3: "harness", 4: "event", 6: "repeated", 7: "thinking", 8: "tool", 9: "tool",
        11: "repeated", 12: "event", 13: "event", 15: "repeated", 17: "repeated", 19: "repeated", 20: "event",
    }  # fmt: skip
    assert (one.program, one.session_id, one.parent) == ("codex", "one", None)


def test_every_line_is_accounted_for(read):
    one = read(*TALK)
    assert sorted([text.line for text in one.texts] + [*reasons(one)]) == list(range(1, len(TALK) + 1))


def test_what_was_read_lies_inside_the_input_and_a_count_that_is_said_twice_is_one(read):
    one = read(*TALK)
    assert usage(one) == [(600, 400, 50), (600, 1000, 40)]
    assert {(c.model, c.effort, c.program_version) for c in one.calls} == {("gpt-5.5", "medium", "0.153.0")}
    assert [c.number for c in one.calls] == [2, 5]
    assert {c.written_short for c in one.calls} == {None}


def test_sums_are_differenced(read):
    one = read(
        meta("s"),
        turn(),
        counted((1000, 400, 50)),
        counted((2600, 1400, 90)),
        counted((2600, 1400, 90)),
        counted((300, 0, 9)),
    )
    assert usage(one) == [(600, 400, 50), (600, 1000, 40), (300, 0, 9)]


def test_the_record_of_a_response_and_its_count_are_one_call(read):
    def record(id, *used):
        return line("token_usage_record", {"response_id": id, "thread_id": "s", "usage": counts(*used)})

    one = read(
        meta("s"), turn(),
        record("r1", 1000, 400, 50), counted((1000, 400, 50), (1000, 400, 50)),
        counted((2000, 1300, 60), (1000, 900, 10)), record("r2", 1000, 900, 10), record("r2", 1000, 900, 10),
    )  # fmt: skip
    assert usage(one) == [(600, 400, 50), (100, 900, 10)]


def test_a_summary_is_a_compaction(read):
    replaced = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "I live in Rome."}]}]
    one = read(
        *TALK,
        line("compacted", {"message": "Summary: they live in Oslo.", "replacement_history": replaced}),
        event("context_compacted"),
        *said("Go on."),
    )
    assert spoken(one)[-2:] == ["summary: Summary: they live in Oslo.", "user: Go on."]
    assert [(each.number, each.line) for each in one.compactions] == [(5, 21)]
    assert reasons(one)[22] == "event"


def test_items_that_stand_for_a_summary_are_left_out(read):
    sealed = line("response_item", {"type": "compaction", "encrypted_content": "x"})
    one = read(
        meta("s"),
        *said("Hi."),
        sealed,
        item("user", "Another language model started to solve this problem and produced a summary of it."),
    )
    assert (spoken(one), [*reasons(one).values()]) == (["user: Hi."], ["event", "repeated", "summary", "harness"])


def test_turns_that_were_taken_back_are_left_out(read):
    one = read(*TALK, event("thread_rolled_back", num_turns=2), *said("No."))
    assert spoken(one) == ["user: I live in Oslo.", "assistant: Noted.", "user: No."]
    assert [n for n, reason in reasons(one).items() if reason == "rewound"] == [14, 16, 18]


def test_the_request_stays_of_what_the_editor_added(read):
    one = read(
        meta("s"), *said("# Context from my IDE setup:\n\n## Open tabs: x\n\n## My request for Codex:\nFix it.\n")
    )
    assert spoken(one) == ["user: Fix it."]


def test_a_picture_has_no_words(read):
    shown = line("response_item", {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "<image name=[Image #1]>"}, {"type": "input_image", "image_url": "data:"},
        {"type": "input_text", "text": "</image>"}, {"type": "input_text", "text": "What is it?"}]})  # fmt: skip
    one = read(meta("s"), shown, event("user_message", message="What is it?", images=[]))
    assert spoken(one) == ["user: What is it?"]


def test_a_line_of_a_new_type_may_come_first(read):
    one = read(line("not_known_yet", {"x": 1}), *TALK)
    assert (one.program, one.session_id, len(one.texts)) == ("codex", "one", 5)


def test_old_files_without_an_envelope(read):
    old = {"id": "old", "timestamp": "2025-07-01T10:00:00.000Z", "instructions": None}
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}
    one = read(old, {"record_type": "state"}, message)
    assert (one.session_id, spoken(one)) == ("old", ["user: Hi."])


FORKS = {
    "by a person": {"forked_from_id": "one"},
    "as a subagent": {"source": {"subagent": {"thread_spawn": {"parent_thread_id": "one", "depth": 1}}}},
}


def restamped(lines, at):
    return [{**one, "timestamp": at} for one in lines]


@pytest.mark.parametrize("way", FORKS)
@pytest.mark.parametrize("has_parents_meta", [False, True])
@pytest.mark.parametrize("is_restamped", [False, True])
def test_what_a_fork_repeats_counts_once(tmp_path, way, has_parents_meta, is_restamped):
    start = "2026-11-03T12:00:00.000Z"
    history = TALK if has_parents_meta else TALK[1:]
    own = [turn(), *said("Yes."), *answered("Sure."), counted((4000, 2700, 100), (1400, 1300, 10))]
    for number in (2, 3):
        lines = [
            meta(f"fork{number}", start, **FORKS[way]),
            *(restamped(history, start) if is_restamped else history),
            *own,
        ]
        (tmp_path / f"rollout-{number}.jsonl").write_text(text_of(*lines))
    (tmp_path / "rollout-9.jsonl").write_text(text_of(*TALK))
    parent, *forks = read_transcripts([tmp_path])
    assert (len(parent.texts), usage(parent)) == (5, [(600, 400, 50), (600, 1000, 40)])
    writer = "user" if way == "by a person" else "program"
    for one in forks:
        assert spoken(one) == [f"{writer}: Yes.", "assistant: Sure."]
        assert usage(one) == [(100, 1300, 10)]
        assert (one.parent, one.is_subagent) == ("one", way != "by a person")
        assert {"repeated"} == {reason for n, reason in reasons(one).items() if n == len(TALK) + has_parents_meta}


def test_forks_of_a_parent_that_is_not_there_repeat_it_once(tmp_path):
    for number in (1, 2):
        own = [*said(f"Own {number}."), counted((2600 + number, 1400, 91), (number, 0, 1))]
        lines = [meta(f"f{number}", f"2026-11-03T12:00:0{number}.000Z", forked_from_id="gone"), *TALK[1:], *own]
        (tmp_path / f"rollout-{number}.jsonl").write_text(text_of(*lines))
    one, two = read_transcripts([tmp_path])
    assert len(one.calls) == 3
    assert (spoken(two), usage(two)) == (["user: Own 2."], [(2, 0, 1)])


def test_a_rollout_that_is_there_twice_counts_once(tmp_path):
    for name in ("rollout-1", "archived"):
        (tmp_path / f"{name}.jsonl").write_text(text_of(*TALK))
    (tmp_path / "linked.jsonl").symlink_to(tmp_path / "archived.jsonl")
    found = list(read_transcripts([tmp_path]))
    assert sorted((len(one.texts), len(one.calls)) for one in found) == [(0, 0), (5, 2)]


def test_a_fork_that_only_refers_to_its_parent_keeps_what_it_has(tmp_path):
    (tmp_path / "rollout-1.jsonl").write_text(text_of(*TALK))
    child = [
        meta("c", "2026-11-03T13:00:00.000Z", forked_from_id="one"),
        turn(),
        *said("New."),
        counted((3000, 1500, 99), (400, 100, 9)),
    ]
    (tmp_path / "rollout-2.jsonl").write_text(text_of(*child))
    _, two = read_transcripts([tmp_path])
    assert (spoken(two), usage(two)) == (["user: New."], [(300, 100, 9)])
