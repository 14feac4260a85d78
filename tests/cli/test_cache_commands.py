"""`loom cache`, through the installed command."""

import json

import pytest

from loom import Context, Message, StringEntry, render
from tests.commands import LOOM, run_loom


def loom(*args, code=0):
    done = run_loom([LOOM, *args])
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A conversation of another program: the system prompt holds the time of day."""
    folder = tmp_path_factory.mktemp("recorded")
    lines = []
    messages = []
    for n in range(8):
        messages.append({"role": "user", "content": f"question {n} " * 40})
        body = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 100,
            "system": f"It is 03:{n:02}:00. " + "Be careful. " * 600,
            "messages": [*messages],
            "cache_control": {"type": "ephemeral"},
        }
        (folder / f"{n}.json").write_text(json.dumps(body))
        lines.append(json.dumps({"request": body, "at": 60 * n}))
        messages.append({"role": "assistant", "content": f"answer {n} " * 40})
    (folder / "trace.jsonl").write_text("\n".join(lines))
    return folder


def test_plan(recorded):
    out = loom("cache", "plan", recorded / "3.json", "--previous", recorded / "2.json").stdout
    assert "claude-sonnet-4-5 (anthropic)" in out
    assert "0.0% read from the cache" in out
    assert "changed at byte" in out
    assert "03:03:00" in out


def test_plan_as_json(recorded):
    found = json.loads(loom("cache", "plan", recorded / "3.json", "--json").stdout)
    assert found["read"] == 0
    assert found["tokens"] == found["write"] + found["uncached"] > 1500
    assert {"markers", "warnings", "usd", "next_read", "relative_cost"} <= set(found)


def test_explain(recorded):
    out = loom("cache", "explain", recorded / "1.json", recorded / "2.json").stdout
    assert "changed at byte 10 (system)" in out
    assert "behind the conversation" in out
    found = json.loads(loom("cache", "explain", recorded / "1.json", recorded / "2.json", "--json").stdout)
    assert (found["cause"], found["byte_in_block"]) == ("block_edited", 10)
    assert "Nothing moved" in loom("cache", "explain", recorded / "1.json", recorded / "1.json").stdout


def test_simulate(recorded):
    out = loom("cache", "simulate", recorded / "trace.jsonl").stdout
    assert "volatile in prefix" in out
    assert "With these fixed" in out
    found = json.loads(loom("cache", "simulate", recorded / "trace.jsonl", "--json").stdout)
    assert len(found["steps"]) == 8
    assert found["findings"][0]["cause"] == "volatile_in_prefix"
    assert found["fixed_cost"] < 0.6
    assert found["relative_cost"] > 1.2


def test_a_context_of_ones_own_can_be_recorded_and_read_back(tmp_path):
    ctx = Context("agent")
    ctx.foundation.add(StringEntry("rule " * 1500))
    lines = []
    for n in range(5):
        ctx.convo.add(Message.user(f"question {n}"))
        lines.append(json.dumps(render(ctx.compile(), "openai", "gpt-5.6")))
        ctx.convo.add(Message.assistant(f"answer {n}"))
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    found = json.loads(loom("cache", "simulate", path, "--json").stdout)
    assert [s["read"] > 1500 for s in found["steps"]] == [False, True, True, True, True]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("", "not JSON"),
        ('{"model": "x", "messages": [', "not JSON"),
        ("[1, 2]", "one request"),
        ('{"hello": "world"}', "request"),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "names no model"),
    ],
)
def test_bad_files_end_in_one_line(tmp_path, content, message):
    path = tmp_path / "request.json"
    if content is not None:
        path.write_text(content)
    done = loom("cache", "plan", path, code=2)
    assert done.stderr.startswith("loom: ")
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_bad_line_of_a_trace_is_named(tmp_path, recorded):
    path = tmp_path / "trace.jsonl"
    path.write_text((recorded / "trace.jsonl").read_text() + '\n{"request": ')
    assert "line 9" in loom("cache", "simulate", path, code=2).stderr


def test_help_and_version():
    assert "cache" in loom("--help").stdout
    assert loom("--version").stdout.startswith("loom 0.")
    assert {"plan", "explain", "simulate"} <= set(loom("cache", "--help").stdout.split())
