"""`loom cache`, through the installed command."""

import json
import re
from datetime import UTC, datetime

import pytest

from loom import Context, Message, StringEntry, render
from tests.commands import LOOM, run_loom
from tests.traces import claude


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
    assert out.startswith("1. volatile in prefix (saves ")  # what to do comes before the table
    assert "All fixed saves" in out
    found = json.loads(loom("cache", "simulate", recorded / "trace.jsonl", "--json").stdout)
    assert len(found["steps"]) == 8
    assert found["findings"][0]["cause"] == "volatile_in_prefix"
    assert found["fixed_cost"] < 0.6
    assert found["relative_cost"] > 1.2


def test_findings_have_dollars_and_add_up(recorded):
    found = json.loads(loom("cache", "simulate", recorded / "trace.jsonl", "--json").stdout)
    assert found["usd"] == pytest.approx(sum(step["usd"] for step in found["steps"]))
    saved = sum(finding["saving"] for finding in found["findings"])
    assert found["fixed_usd"] == pytest.approx(found["usd"] * (1 - saved))
    assert found["fixed_usd"] == pytest.approx(found["usd"] - sum(f["usd"] for f in found["findings"] if f["fix"]))
    assert 0 < saved < 1


# What people have: folders, several files, patterns, pipes, HAR, lines of a trace.


def steps_of(*args, input=None, cwd=None):
    done = run_loom([LOOM, "cache", "simulate", *args, "--json"], input=input, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["steps"]


@pytest.fixture(scope="module")
def single(recorded, tmp_path_factory):
    """A folder with one file for each request, and others that are not requests."""
    folder = tmp_path_factory.mktemp("single")
    for n in range(8):
        (folder / f"call-{n + 5}.json").write_text((recorded / f"{n}.json").read_text())
    (folder / "package.json").write_text('{"name": "x"}')
    (folder / "notes.txt").write_text("not looked at")
    return folder


def test_one_file_for_each_request_is_one_trace(recorded, single):
    bodies = [json.loads(line)["request"] for line in (recorded / "trace.jsonl").read_text().splitlines()]
    expected = steps_of("-", input="\n".join(map(json.dumps, bodies)))
    assert len(expected) == 8
    done = run_loom([LOOM, "cache", "simulate", single, "--json"])
    assert json.loads(done.stdout)["steps"] == expected  # call-9 comes before call-10
    assert "left out: " in done.stderr
    assert "package.json: no request was found in a record with name" in done.stderr
    (single / "call-20.json").write_text('{"model": "claude-sonnet-5", "messages": "cut"}')
    done = run_loom([LOOM, "cache", "simulate", single, "--json"])
    (single / "call-20.json").unlink()
    assert json.loads(done.stdout)["steps"] == expected
    assert "call-20.json: messages is 'cut', but must be a list" in done.stderr
    assert steps_of(single / "call-*.json") == expected
    assert steps_of(*(single / f"call-{n + 5}.json" for n in range(8))) == expected


def test_several_traces_are_summed_and_the_worst_is_explained(recorded, tmp_path):
    text = (recorded / "trace.jsonl").read_text()
    (tmp_path / "one.jsonl").write_text(text)
    (tmp_path / "two.jsonl").write_text("\n".join(text.splitlines()[:3]))
    found = json.loads(loom("cache", "simulate", tmp_path, "--json").stdout)
    assert [len(trace["steps"]) for trace in found["traces"]] == [8, 3]
    for name in ("tokens", "read", "usd"):
        assert found[name] == pytest.approx(sum(trace[name] for trace in found["traces"]))
    out = loom("cache", "simulate", tmp_path).stdout
    assert out.index("volatile in prefix") < out.index("trace (2)")
    assert "11" in out.split("all", 1)[1]


def archive(recorded):
    """What a browser or a proxy saves: requests to a model among others, one answer as a stream of events."""
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 1500}}}
    answer = f"event: x\ndata: {json.dumps(start)}\n\ndata: {json.dumps({'usage': {'output_tokens': 7}})}\n\n"
    entries = [
        {
            "startedDateTime": f"2026-11-16T08:0{n}:00.000Z",
            "request": {
                "url": "https://api.example.com/v1/messages",
                "postData": {"text": (recorded / f"{n}.json").read_text()},
            },
            "response": {"content": {"mimeType": "text/event-stream", "text": answer}},
        }
        for n in range(4)
    ]
    other = {"request": {"url": "https://example.com/app.js"}, "response": {"content": {}}}
    return {"log": {"version": "1.2", "entries": [other, *entries, other]}}


def test_har(recorded, tmp_path):
    path = tmp_path / "saved.har"
    path.write_text(json.dumps(archive(recorded), indent=1), encoding="utf-8-sig")
    done = run_loom([LOOM, "cache", "simulate", path, "--json"])
    found = json.loads(done.stdout)
    assert len(found["steps"]) == 4
    assert found["billed"][0] == {"input": 1505, "output": 7, "cache_read": 1500, "cache_write": 0}
    assert "2 entries: they are not requests to a model" in done.stderr
    assert "byte 10 (system)" in loom("cache", "explain", f"{path}:2:3").stdout
    path.write_text('{"log": {"entries": []}}')
    assert "holds no request to a model" in loom("cache", "simulate", path, code=2).stderr


def test_lines_of_a_trace(recorded):
    trace = recorded / "trace.jsonl"
    out = loom("cache", "explain", f"{trace}:2:3").stdout
    assert out == loom("cache", "explain", recorded / "1.json", recorded / "2.json").stdout
    assert out == loom("cache", "explain", f"{trace}:2", f"{trace}:3").stdout
    planned = json.loads(loom("cache", "plan", f"{trace}:2:3", "--json").stdout)
    assert planned == json.loads(loom("cache", "plan", f"{trace}:3", "--previous", f"{trace}:2", "--json").stdout)
    done = loom("cache", "explain", trace)
    assert "the last two of 8 requests" in done.stderr
    assert done.stdout == loom("cache", "explain", f"{trace}:7:8").stdout
    assert "has no request in line 9; the last one is in line 8" in loom("cache", "plan", f"{trace}:9", code=2).stderr
    assert "there is one request" in loom("cache", "explain", f"{trace}:2", code=2).stderr


@pytest.mark.parametrize("command", ["simulate", "plan", "explain"])
def test_a_transcript_is_answered_with_the_command_for_it(tmp_path, command):
    path = tmp_path / "session.jsonl"
    transcript(path, *LOST)
    error = loom("cache", command, path, code=2).stderr
    assert "this is a transcript of Claude Code" in error
    assert f"run `loom cache audit {path}`" in error
    assert f"run `loom cache audit {path}`" in loom("cache", command, tmp_path, code=2).stderr


def test_requests_of_any_shape_on_the_disk(recorded, tmp_path):
    """Line ends of Windows, a byte order mark, a line of 20 MB."""
    lines = (recorded / "trace.jsonl").read_text().splitlines()
    record = json.loads(lines[-1])
    record["request"]["messages"].append({"role": "user", "content": "x" * 20_000_000})
    path = tmp_path / "trace.jsonl"
    path.write_bytes(("\ufeff" + "\r\n".join([*lines, json.dumps(record), ""])).encode())
    steps = steps_of(path)
    assert len(steps) == 9
    assert steps[-1]["tokens"] > 1_000_000


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ('{"request": {"model"', "line 9, column 21: this is not JSON"),
        ('{"request": ' + "[" * 100_000, "line 9: the JSON is nested too deeply to be read; remove this record"),
        ('{"request": 3}', "line 9: no request was found in a record with request"),
        ("\x00", "line 9, column 1: this is not JSON"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(recorded, tmp_path, last, message):
    path = tmp_path / "trace.jsonl"
    path.write_text((recorded / "trace.jsonl").read_text() + "\n" + last)
    error = loom("cache", "simulate", path, code=2).stderr
    assert str(path) in error
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_many_requests_are_summarised(tmp_path):
    body = {"model": "claude-sonnet-5", "messages": [{"role": "user", "content": "hi"}]}
    (tmp_path / "trace.jsonl").write_text("\n".join([json.dumps(body)] * 3_000))
    lines = loom("cache", "simulate", tmp_path / "trace.jsonl").stdout.splitlines()
    assert len(lines) < 70
    assert any("2,960 more" in line for line in lines)


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
        ("", "is empty"),
        ('{"model": "x", "messages": [', "not JSON"),
        ("[1, 2]", "one request"),
        ('{"hello": "world"}', "request"),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "or --model NAME"),
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


# `loom cache audit`: transcripts of other programs.


def transcript(path, *calls, session="s1"):
    """A transcript of Claude Code; each call is minutes, tokens read and tokens written for five minutes."""
    lines, last = [], None
    for n, (minutes, read, written) in enumerate(calls):
        question = claude.user(f"{session}u{n}", last, f"question {n}")
        answer = claude.assistant(
            f"{session}a{n}", question["uuid"], f"answer {n}", usage=claude.used(9, 50, read, written)
        )
        last = answer["uuid"]
        at = datetime.fromtimestamp(1_790_000_000 + 60 * minutes, UTC).isoformat()
        lines += [{**line, "timestamp": at, "sessionId": session} for line in (question, answer)]
    path.write_text(claude.text_of(*lines), encoding="utf-8")
    return lines


LOST = ((0, 0, 50_000), (1, 50_000, 900), (20, 0, 52_000), (21, 52_000, 400))


def test_audit(tmp_path):
    transcript(tmp_path / "one.jsonl", *LOST)
    transcript(tmp_path / "two.jsonl", (0, 0, 9_000), (1, 9_000, 500), session="s2")
    out = loom("cache", "audit", tmp_path).stdout
    assert "6 requests in 2 sessions" in out
    assert "idle: 50,900 tokens lost, $" in out
    assert "19 min passed, and what was written is kept for 5 min" in out
    assert "with no collapse: $" in out
    found = json.loads(loom("cache", "audit", tmp_path / "*.jsonl", "--json").stdout)
    assert (found["requests"], found["lost"]) == (6, 50_900)
    assert found["by_cause"]["idle"]["collapses"] == 1
    assert found["usd_without_collapse"] == pytest.approx(found["usd"] - found["lost_usd"])
    longest = max((session["calls"] for session in found["sessions"]), key=len)
    assert [call["collapse"] is None for call in longest] == [True, True, False, True]


@pytest.mark.parametrize(
    ("read", "says"), [(0, "The requests are recorded: where they begin alike"), (2_400, "never lost")]
)
def test_audit_of_a_cache_that_was_never_read(tmp_path, read, says):
    usage = {"input_tokens": 30, "cache_creation_input_tokens": 2_400, "cache_read_input_tokens": read}
    lines = []
    for turn in range(4):
        messages = [{"role": ("user", "assistant")[n % 2], "content": f"Part {n}."} for n in range(2 * turn + 1)]
        body = {"model": "claude-sonnet-5", "messages": messages, "system": "You are brief."}
        lines.append(json.dumps({"at": 60 * turn, "request": body, "response": {"usage": usage}}))
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    page = tmp_path / "page.html"
    assert says in " ".join(loom("cache", "audit", tmp_path / "trace.jsonl").stdout.split())
    loom("cache", "audit", tmp_path / "trace.jsonl", "--html", page)
    assert re.sub("`(.+)`", r"<code>\1</code>", says) in page.read_text()


@pytest.mark.parametrize(("sessions", "says"), [(1, "never lost"), (2, "Nothing was ever read from the cache")])
def test_audit_of_sessions_of_one_request(tmp_path, sessions, says):
    for n in range(sessions):
        transcript(tmp_path / f"{n}.jsonl", (n, 0, 9_000), session=f"s{n}")
    assert says in " ".join(loom("cache", "audit", tmp_path).stdout.split())


def test_audit_of_a_pipe(tmp_path):
    transcript(tmp_path / "one.jsonl", *LOST)
    text = (tmp_path / "one.jsonl").read_text()
    done = run_loom([LOOM, "cache", "audit", "-", "--json"], input=text)
    assert json.loads(done.stdout)["lost"] == 50_900


def test_audit_as_a_page(tmp_path):
    transcript(tmp_path / "one.jsonl", *LOST)
    page = tmp_path / "page.html"
    done = loom("cache", "audit", tmp_path / "one.jsonl", "--html", page)
    assert (done.stdout, str(page) in done.stderr) == ("", True)
    assert page.read_text(encoding="utf-8").count("<g>") == 2 * 4  # for wide and for narrow screens
    loom("cache", "audit", tmp_path / "one.jsonl", "--html", tmp_path / "no" / "page.html", code=2)


def test_audit_of_a_broken_file(tmp_path):
    """A broken line, one of 20 MB, line ends of Windows, a byte order mark, deep nesting, a last line half written."""
    lines = [json.dumps(line) for line in transcript(tmp_path / "one.jsonl", *LOST)]
    long = json.dumps({"type": "attachment", "uuid": "x", "sessionId": "s1", "text": "x" * 20_000_000})
    deep = '{"type": "user", "uuid": "d", "message": ' + "[" * 100_000 + "]" * 100_000 + "}"
    text = "\r\n".join(["\ufeff" + lines[0], "{broken", long, deep, *lines[1:], '{"type": "assistant", "uu'])
    (tmp_path / "one.jsonl").write_bytes(text.encode())
    out = loom("cache", "audit", tmp_path).stdout
    assert "idle: 50,900 tokens lost" in out
    assert out.count("1 line left out: broken: ") == 2
    assert "1 line left out: unfinished: " in out


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("", "it is empty"), ("hello", "not JSON"), ("[1]", "no conversation")],
)
def test_a_file_without_sessions_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_text(content)
    done = loom("cache", "audit", path, code=2)
    assert message in done.stderr
    assert str(path) in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_folder_without_sessions_is_refused(tmp_path):
    (tmp_path / "package.json").write_text('{"name": "x"}')
    error = loom("cache", "audit", tmp_path, code=2).stderr
    assert "no call of a model with usage was found" in error
    assert "package.json" in error


def test_a_request_that_reads_less_is_pointed_out_where_no_fix_is_known(tmp_path):
    """A list of tools that one request lacks: no rule for the program removes that."""
    lines, messages = [], []
    for n in range(5):
        messages.append({"role": "user", "content": f"question {n}"})
        body = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 100,
            "system": [{"type": "text", "text": "Be careful. " * 1_200, "cache_control": {"type": "ephemeral"}}],
            "messages": [*messages],
        }
        if n != 3:
            body["tools"] = [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}}]
        lines.append(json.dumps(body))
        messages.append({"role": "assistant", "content": f"answer {n}"})
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    said = " ".join(loom("cache", "simulate", tmp_path / "trace.jsonl").stdout.split())
    assert "No cause of missed cache reads was found." in said
    assert re.search(r"But request 4 read [\d,]+ tokens less than the one before it: `loom cache explain`", said)
    assert "The tools changed" in loom("cache", "explain", f"{tmp_path}/trace.jsonl:3:4").stdout


def test_recorded_requests_without_usage_are_for_simulate(recorded):
    assert "`loom cache simulate`" in loom("cache", "audit", recorded / "trace.jsonl", code=2).stderr


def test_a_slip_in_the_name_of_a_provider_is_refused_by_every_command(recorded):
    for command in ("plan", "explain", "simulate"):
        done = loom("cache", command, recorded / "trace.jsonl", "--provider", "antropic", code=2)
        assert "did you mean 'anthropic'" in done.stderr
