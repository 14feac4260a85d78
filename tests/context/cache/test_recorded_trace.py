"""Recorded requests: traces, files of them, and usage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loom.catalog import find_model
from loom.context.cache.diagnose import simulate
from loom.context.cache.simulate import replay
from loom.core.message import Usage
from loom.errors import BadRequestFile, UsageError
from loom.traces.request import read_usage
from loom.traces.sources import Trace, read_trace_file
from tests.context.cache.bodies import BODY, CLAUDE, Letters, messages, user


def turn(count: int, **more: Any) -> dict[str, Any]:
    marked = {"type": "text", "text": "question " * 600, "cache_control": {"type": "ephemeral"}}
    return {**messages(*[user(f"{i} " * 400) for i in range(count)], user([marked])), **more}


def lines(*records: Any) -> list[str]:
    return [json.dumps(record, ensure_ascii=False) + "\n" for record in records]


@pytest.fixture
def read_trace(tmp_path: Path) -> Callable[..., Trace]:
    def read(given: list[str], counter: Letters) -> Trace:
        (tmp_path / "trace.jsonl").write_text("".join(given), encoding="utf-8")
        return read_trace_file(tmp_path / "trace.jsonl", counter=counter)

    return read


def test_a_trace_of_lines(read_trace: Callable[..., Trace]) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2, "output_tokens": 1}
    given = [*lines({"request": turn(0), "at": 1.0, "response": {"usage": usage}}), "\n", *lines(turn(1))]
    prompts, usages = read_trace(given, counter=Letters())
    assert [len(p.blocks) for p in prompts] == [2, 3]
    assert [p.at for p in prompts] == [1.0, None]
    assert usages == (Usage(input=17, output=1, cache_read=5, cache_write=2), None)


def test_requests_of_a_trace_share_their_blocks_and_counts(read_trace: Callable[..., Trace]) -> None:
    counter = Letters()
    prompts, _ = read_trace(lines(turn(3), turn(3)), counter=counter)
    assert prompts[0].blocks
    assert all(a is b for a, b in zip(prompts[0].blocks, prompts[1].blocks, strict=True))
    assert counter.asked == len(prompts[0].blocks)


def test_a_block_that_moved_keeps_its_content_and_not_its_place(read_trace: Callable[..., Trace]) -> None:
    first, second = read_trace(lines(turn(0), turn(1)), counter=Letters()).prompts
    assert first.blocks[1].key == second.blocks[2].key
    assert (first.blocks[1].path, second.blocks[2].path) == ("messages[0].content[0]", "messages[1].content[0]")


def test_a_trace_can_be_simulated(read_trace: Callable[..., Trace]) -> None:
    history = [turn(0), turn(0)]
    history[1]["messages"] = [*history[0]["messages"], user("More.")]
    prompts, _ = read_trace(lines(*history), counter=Letters())
    steps = replay(prompts, find_model(CLAUDE).cache).steps
    assert [s.read for s in steps] == [0, prompts[0].tokens]
    assert steps[1].uncached == 5


def test_a_file_of_lines_an_array_and_a_single_request(tmp_path: Path) -> None:
    file = tmp_path / "requests"
    file.write_text("".join(lines(turn(0), turn(1))), encoding="utf-8")
    by_line = read_trace_file(file, counter=Letters())
    file.write_text(json.dumps([turn(0), turn(1)], indent=2), encoding="utf-8-sig")
    assert read_trace_file(file, counter=Letters()) == by_line
    assert len(by_line.prompts) == 2
    file.write_text(json.dumps(turn(1), indent=2), encoding="utf-8")
    assert read_trace_file(str(file), counter=Letters()).prompts == by_line.prompts[1:]


def test_messages_that_a_log_keeps_as_text_are_read(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    plain = messages(user("Hi."))
    kept = {**plain, "messages": json.dumps(plain["messages"]), "startTime": "2026-11-01T10:00:00Z"}
    file.write_text("".join(lines(plain, kept)), encoding="utf-8")
    one, other = read_trace_file(file, counter=Letters()).prompts
    assert (one.blocks, one.at, other.at) == (other.blocks, None, 1793527200.0)
    file.write_text("".join(lines({**kept, "messages": kept["messages"][:-3]})), encoding="utf-8")
    with pytest.raises(BadRequestFile, match="line 1: messages is text, but not whole JSON"):
        read_trace_file(file, counter=Letters())


def test_a_text_may_hold_any_line_separator(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text("".join(lines(messages(user("a\u2028b\x85c")))), encoding="utf-8")
    assert read_trace_file(file, counter=Letters()).prompts[0].blocks[-1].tokens == 5


GOOD = json.dumps(BODY)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"requests\.jsonl is empty; record at least one request"),
        ("\n \n", r"requests\.jsonl is empty"),
        ("[]", r"requests\.jsonl is empty"),
        (f"{GOOD}\n{GOOD[:40]}", r"requests\.jsonl, line 2, column \d+: this is not JSON .*cut off, so remove it"),
        (f"{GOOD[:40]}\n{GOOD}", r"requests\.jsonl, line 1, column \d+: this is not JSON .*cut off"),
        (f"{GOOD}\n\nhello\n", r"requests\.jsonl, line 3, column 1: this is not JSON .*one JSON object on each line"),
        (f"{GOOD}\n[1]\n", r"requests\.jsonl, line 2: this is a list, not a JSON object"),
        ('"text"', r"requests\.jsonl, line 1: this is a text, not a JSON object"),
        (f"{GOOD}\n" + '{"foo": 1}', r"requests\.jsonl, line 2: no request was found in a record with foo"),
        (f"[{GOOD}, 3]", r"requests\.jsonl, item 2: this is a number"),
        (f"[\n{GOOD},\n", r"requests\.jsonl, line 3, column 1: this is not JSON"),
        ('{\n "model": "m",\n', r"requests\.jsonl, line 3, column 1: this is not JSON"),
        ("[" * 100_000, r"requests\.jsonl: the JSON is nested too deeply"),
    ],
)
def test_a_broken_file_is_refused_by_line(tmp_path: Path, text: str, match: str) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadRequestFile, match=match):
        read_trace_file(file, counter=Letters())


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequestFile, match=r"gone\.jsonl cannot be read: No such file"):
        read_trace_file(tmp_path / "gone.jsonl", counter=Letters())
    (tmp_path / "bad").write_bytes(b"\xff\xfe{}")
    with pytest.raises(BadRequestFile, match="is not UTF-8 text"):
        read_trace_file(tmp_path / "bad", counter=Letters())


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {"input_tokens": 3, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 7},
            Usage(input=123, output=7, cache_read=100, cache_write=20),
        ),
        (
            {"input_tokens": 3, "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 5}},
            Usage(input=12, cache_write=9),
        ),
        ({"input_tokens": 3, "cache_read_input_tokens": None, "output_tokens": 1}, Usage(input=3, output=1)),
        (
            {
                "input_tokens": 123,
                "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 20},
                "output_tokens": 7,
            },
            Usage(input=123, output=7, cache_read=100, cache_write=20),
        ),
        (
            {"prompt_tokens": 123, "prompt_tokens_details": {"cached_tokens": 100}, "completion_tokens": 7},
            Usage(input=123, output=7, cache_read=100),
        ),
        (
            {"prompt_tokens": 123, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20},
            Usage(input=123, cache_read=100, cache_write=20),
        ),
        (
            {
                "promptTokenCount": 123,
                "cachedContentTokenCount": 100,
                "candidatesTokenCount": 5,
                "thoughtsTokenCount": 2,
            },
            Usage(input=123, output=7, cache_read=100),
        ),
        ({"prompt_token_count": 123, "cached_content_token_count": None}, Usage(input=123)),
        ({"input_tokens": 3, "cache_read_input_tokens": 1e400, "output_tokens": 1}, Usage(input=3, output=1)),
        (
            {
                "prompt_tokens": 123,
                "prompt_cache_hit_tokens": 100,
                "prompt_cache_miss_tokens": 23,
                "completion_tokens": 7,
            },
            Usage(input=123, output=7, cache_read=100),
        ),
        (
            {"input": 9, "output": 1, "cache_read": 5, "cache_write": 2},
            Usage(input=9, output=1, cache_read=5, cache_write=2),
        ),
    ],
)
def test_usage_has_one_meaning(usage: dict[str, Any], expected: Usage) -> None:
    assert read_usage(usage) == expected
    assert read_usage({"usage": usage}) == expected
    assert read_usage({"request": BODY, "response": {"body": json.dumps({"usage": usage})}}) == expected


def test_gemini_keeps_its_usage_under_another_name() -> None:
    assert read_usage({"response": {"usageMetadata": {"promptTokenCount": 4}}}) == Usage(input=4)


@pytest.mark.parametrize("value", [None, 3, "x", {}, BODY, {"usage": None}, {"usage": {"total": 3}}, {"response": "{"}])
def test_no_usage_is_none(value: Any) -> None:
    assert read_usage(value) is None


def test_simulate_takes_the_path_of_a_trace(tmp_path: Path) -> None:
    marked = {"type": "text", "text": "Hi.", "cache_control": {"type": "ephemeral"}}
    body = {"model": "claude-sonnet-5", "max_tokens": 9, "messages": [{"role": "user", "content": [marked]}]}
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{json.dumps(body)}\n" * 3)
    done = simulate(path)
    assert done.tokens == simulate([body] * 3).tokens
    assert simulate(str(path)).steps == done.steps
    (finding,) = done.findings
    assert finding.usd == 0.0, "what no fix removes saves nothing; its price is known"
    assert str(finding).startswith("below minimum at messages[0]")
    with pytest.raises(BadRequestFile, match="cannot be read"):
        simulate(tmp_path / "nope.jsonl")
    (tmp_path / "other.jsonl").write_text(f"{json.dumps(body)}\n" * 2)
    with pytest.raises(UsageError, match="holds 2 traces"):
        simulate(tmp_path)
