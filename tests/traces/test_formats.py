"""Exports, logs and other memories: the texts, the calls, and why the rest was left out."""

import json

import pytest

from loom.errors import UsageError
from loom.traces.reader import TranscriptReader, read_transcripts
from loom.traces.stream import JsonStream
from tests.traces.others import (
    CHATGPT,
    CLAUDE_AI,
    LANGFUSE,
    LANGGRAPH,
    LETTA,
    LITELLM,
    MEM0,
    REQUESTS,
    SPANS,
    chat,
    lines,
    otlp,
    span,
)


def read(value, name="export.json"):
    text = value if isinstance(value, str) else json.dumps(value)
    return list(TranscriptReader().read(JsonStream([text.encode()]), name))


def spoken(one):
    return [f"{text.writer}: {text.text}" for text in one.texts]


def reasons(one):
    return [skip.reason.partition(":")[0] for skip in one.skipped]


def usage(one):
    return [(c.fresh, c.read, c.written_short, c.output) for c in one.calls]


# Exports


def test_chatgpt_shows_the_branch_of_the_current_node():
    (one,) = read([CHATGPT])
    assert spoken(one) == ["user: Plan a trip.", "assistant: To Bergen?", "user: Yes."]
    assert reasons(one) == ["system", "harness", "tool", "tool", "thinking", "rewound"]
    assert (one.program, one.session_id, one.title) == ("chatgpt", "c1", "Trips")


@pytest.mark.parametrize("leaf", [{}, {"current_leaf_message_uuid": "4"}])
def test_claude_ai_shows_the_branch_of_its_leaf(leaf):
    (one,) = read([{**CLAUDE_AI, **leaf}])
    assert spoken(one) == ["user: Hello.", "user: Bye."]
    assert reasons(one) == ["tool", "rewound"]
    assert (one.program, one.session_id, one.title) == ("claude.ai", "t", "Greetings")


def test_claude_ai_without_parents_is_one_branch():
    old = [{"uuid": "1", "sender": "human", "text": "Hello."}, {"uuid": "2", "sender": "assistant", "text": "Hi."}]
    (one,) = read([{"uuid": "t", "chat_messages": old}])
    assert spoken(one) == ["user: Hello.", "assistant: Hi."]


def test_harness_in_plain_messages_is_left_out():
    reminder = "<system-reminder>I live in Rome.</system-reminder>"
    (one,) = read([{"role": "user", "content": f"Hi.{reminder}"}, {"role": "user", "content": reminder}])
    assert (spoken(one), reasons(one)) == (["user: Hi."], ["harness"])


# Logs


@pytest.mark.parametrize(
    "form",
    [
        lambda: lines(*SPANS),
        lambda: SPANS,
        lambda: otlp(*SPANS),
        lambda: lines(otlp(SPANS[0]), otlp(SPANS[0], *SPANS[1:])),
    ],
    ids=["lines", "array", "otlp", "otlp on lines"],
)
def test_spans_of_opentelemetry(form):
    (one,) = read(form(), "spans.jsonl")
    assert spoken(one) == ["user: Hi.", "assistant: Hello.", "user: Hi."]
    assert usage(one) == [(100, None, None, 7), (10, 60, 30, 7)]
    assert (one.program, one.session_id, one.calls[0].model) == ("opentelemetry", "talk", "gpt-5.5")
    assert [c.number for c in one.calls] == [1, 3]
    first, second = (c.at for c in one.calls)
    assert first
    assert first + 1 == second


def test_messages_in_an_event_of_a_span_and_older_names():
    (one,) = [json.loads(json.dumps(SPANS[1]))]
    named = one["attributes"]
    messages = {name: named.pop(name) for name in ("gen_ai.input.messages", "gen_ai.output.messages")}
    named["gen_ai.usage.cache_read_input_tokens"] = named.pop("gen_ai.usage.cache_read.input_tokens")
    one["events"] = [{"name": "gen_ai.client.inference.operation.details", "attributes": messages}]
    (found,) = read(lines(one), "spans.jsonl")
    assert (len(found.texts), usage(found)) == (3, [(10, 60, 30, 7)])


def test_files_of_the_same_name_are_not_taken_for_one(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "talk.json").write_text(json.dumps([{"role": "user", "content": f"I am {folder}."}]))
    assert [one.session_id for one in read_transcripts([tmp_path])] == ["talk", "b/talk"]


def test_the_total_of_an_agent_is_not_a_call():
    (one,) = read(lines(*SPANS), "spans.jsonl")
    assert "event" in reasons(one)


def test_rows_of_litellm():
    first, second = LITELLM
    for form in (lines(first, second, second), [first, second], {"data": [first, second]}):
        (one,) = read(form)
        assert spoken(one) == ["user: Hi.", "assistant: Hello.", "user: Bye."]
        assert usage(one) == [(100, None, None, 5), (50, 150, None, 9)]
        assert (one.program, one.session_id) == ("litellm", "s")
    (one,) = read(lines({**first, "messages": {}, "response": {}}))
    assert (spoken(one), len(one.calls)) == ([], 1)


def test_observations_of_langfuse():
    trace = {"id": "t", "sessionId": "s", "observations": LANGFUSE}
    wrapped = {"data": [trace], "meta": {}}
    for form, session in ((lines(*LANGFUSE), "t"), (LANGFUSE, "t"), ([trace], "s"), (wrapped, "s")):
        (one,) = read(form)
        assert spoken(one) == ["user: Hi.", "assistant: Hello.", "user: Bye.", "assistant: See you."]
        assert usage(one) == [(40, 60, None, 5), (10, None, None, 2)]
        assert (one.program, one.session_id) == ("langfuse", session)


def test_traces_of_langfuse_without_observations_and_other_names():
    trace = {
        "id": "1",
        "sessionId": "s",
        "userId": "u",
        "timestamp": "2026-11-01T10:00:00Z",
        "input": chat("Hi."),
        "output": "Hello.",
    }
    (one,) = read([trace])
    assert (spoken(one), one.calls, one.session_id) == (["user: Hi.", "assistant: Hello."], (), "s")
    row = {
        "id": "2",
        "trace_id": "t",
        "type": "GENERATION",
        "provided_model_name": "gpt-5.5",
        "input": json.dumps(chat("Hi.")),
        "output": None,
    }
    (one,) = read(lines({**row, "usage_details": {"input": 5, "input_cache_read": 7, "output": 2}}))
    assert (spoken(one), usage(one), one.calls[0].model) == (["user: Hi."], [(5, 7, None, 2)], "gpt-5.5")
    old = {"input": 5, "output": 2, "total": 7, "unit": "TOKENS", "inputCost": 3.0, "outputCost": 1.0}
    (one,) = read(lines({**row, "usage": old}))
    assert usage(one) == [(5, None, None, 2)]


def test_recorded_requests_are_one_conversation_where_they_go_on():
    one, two = read(lines(*REQUESTS), "log.jsonl")
    assert spoken(one) == ["user: Hi.", "assistant: Hello.", "user: Bye.", "assistant: See you."]
    assert spoken(two) == ["user: Buy milk.", "assistant: Done."]
    assert usage(one) == [(1, 5, 6, 1), (3, 5, 6, 1)]
    assert (one.session_id, two.session_id) == ("log-0", "log-1")


def test_requests_of_every_provider():
    responses = {
        "model": "gpt-5.5",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
            {"type": "function_call", "name": "f"},
        ],
    }
    gemini = {
        "url": "/v1beta/models/gemini-3:generateContent",
        "body": {
            "contents": [{"role": "user", "parts": [{"text": "Hi."}]}, {"role": "model", "parts": [{"text": "Yes?"}]}]
        },
    }
    (one,) = read(lines(responses))
    assert spoken(one) == ["user: Hi."]
    (one,) = read(lines(gemini))
    assert spoken(one) == ["user: Hi.", "assistant: Yes?"]


def test_a_long_log_without_ids_takes_time_in_proportion():
    messages, records = [], []
    for n in range(300):
        messages.append({"role": "user", "content": f"note {n}"})
        records.append({"model": "m", "messages": list(messages)})
    (one,) = read(lines(*records))
    assert len(one.texts) == 300


# Other memories


def test_memories_of_mem0():
    for form in ({"results": MEM0, "relations": []}, MEM0, lines(*MEM0)):
        (one,) = read(form)
        assert spoken(one) == ["note: Likes tea", "note: Has a boat"]
        assert (one.program, one.owner, reasons(one)) == ("mem0", "ann", ["empty"])
    assert [one.owner for one in read([MEM0[0], {**MEM0[1], "user_id": "bob"}])] == ["ann", "bob"]


def test_items_of_a_langgraph_store():
    for form in (LANGGRAPH, {"items": LANGGRAPH}, lines(*LANGGRAPH)):
        (one,) = read(form)
        assert spoken(one) == ["note: Likes tea", "note: kind: Profile\ncontent: name: Ann\nage: 40"]
        assert one.texts[0].id.startswith("memories/u1/a:")
    (one,) = read([{"prefix": "memories.u1", "key": "a", "value": {"content": "Likes tea"}}])
    assert spoken(one) == ["note: Likes tea"]


def test_an_agent_file_of_letta():
    (agent,) = LETTA["agents"]
    old = {"agent_type": "memgpt_agent", "name": "Ada", "core_memory": LETTA["blocks"], "messages": agent["messages"]}
    for form in (LETTA, old, json.dumps(LETTA, indent=2)):
        notes, talk = read(form, "ada.af")
        assert (spoken(notes), reasons(notes)) == (["note: human: Name: Ann"], ["harness"])
        assert spoken(talk) == ["user: Hi there.", "user: {not JSON", "assistant: Hello."]
        assert reasons(talk) == ["harness", "harness", "summary", "tool", "tool"]


def test_sections_of_markdown(tmp_path):
    (tmp_path / "sub").mkdir()
    text = "\ufeff---\ntags: x\n---\n# Tea\r\n\r\nGreen.\n\n## Boats\nA sloop.\n"
    (tmp_path / "sub" / "Notes.md").write_text(text, encoding="utf-8")
    (one,) = read_transcripts([tmp_path])
    assert spoken(one) == ["note: # Tea\n\nGreen.", "note: ## Boats\nA sloop."]
    assert [text.line for text in one.texts] == [4, 8]
    (tmp_path / "long.md").write_text("\n\n".join(["word " * 300] * 20))
    long = next(one for one in read_transcripts([tmp_path]) if one.session_id == "long")
    assert len(long.texts) > 5
    assert max(len(text.text) for text in long.texts) <= 4000
    (tmp_path / "bad.md").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"bad\.md: it is not UTF-8 text"):
        list(read_transcripts([tmp_path / "bad.md"]))


def test_markdown_beside_transcripts_is_not_read(tmp_path):
    (tmp_path / "MEMORY.md").write_text("I live in Rome.")
    (tmp_path / "talk.jsonl").write_text(lines({"role": "user", "content": "Hi."}))
    assert [spoken(one) for one in read_transcripts([tmp_path])] == [["user: Hi."]]


LIVES, ANSWERED = "I live in Oslo.", "You live in Rome."
TALK = ["user: I live in Oslo.", "assistant: You live in Rome."]


def generation(input, output=None):
    row = {"id": "g", "type": "GENERATION", "traceId": "t", "startTime": "2026-11-01T10:00:00Z", "model": "gpt-5.5"}
    return {**row, "input": input, "output": output, "usageDetails": {"input": 10, "output": 3}}


def constructor(name, text):
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", name], "kwargs": {"content": text}}


@pytest.mark.parametrize(
    ("input", "output"),
    [
        ([{"type": "human", "content": LIVES}, {"type": "ai", "content": ANSWERED}], None),
        ([{"type": "human", "data": {"content": LIVES}}, {"type": "ai", "data": {"content": ANSWERED}}], None),
        ([[constructor("HumanMessage", LIVES), constructor("AIMessageChunk", ANSWERED)]], None),
        ({"messages": [[{"role": "user", "content": LIVES}]]}, {"generations": [[{"text": ANSWERED}]]}),
        ({"args": [], "kwargs": {"messages": [{"role": "user", "content": LIVES}]}}, ANSWERED),
        ({"role": "user", "content": LIVES}, {"type": "ai", "content": ANSWERED}),
        ({"content": LIVES}, [{"type": "text", "text": ANSWERED}]),
    ],
    ids=["types", "data", "constructors", "generations", "arguments", "one message", "blocks"],
)
def test_no_answer_is_taken_for_the_words_of_the_user(input, output):
    (one,) = read([generation(input, output)])
    assert spoken(one) == TALK


def attributes_of(sent, came, *, infix=""):
    named = {f"{sent}.0.{infix}role": "user", f"{sent}.0.{infix}content": LIVES}
    return {**named, f"{came}.0.{infix}role": "assistant", f"{came}.0.{infix}content": ANSWERED}


ASKED = [{"role": "user", "content": LIVES}]
REPLIED = [{"role": "assistant", "content": ANSWERED}]


@pytest.mark.parametrize(
    ("named", "events"),
    [
        (attributes_of("gen_ai.prompt", "gen_ai.completion"), []),
        (
            {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": json.dumps([{"type": "text", "text": LIVES}])},
            [],
        ),
        (attributes_of("llm.input_messages", "llm.output_messages", infix="message."), []),
        ({"ai.prompt.messages": json.dumps(ASKED), "ai.response.text": ANSWERED}, []),
        (
            {},
            [
                ("gen_ai.user.message", {"content": LIVES}),
                ("gen_ai.choice", {"index": 0, "message": json.dumps({"content": ANSWERED})}),
            ],
        ),
        (
            {},
            [
                ("gen_ai.user.message", {"gen_ai.event.content": json.dumps({"content": LIVES})}),
                ("gen_ai.choice", {"gen_ai.event.content": json.dumps({"message": {"content": ANSWERED}})}),
            ],
        ),
        (
            {},
            [
                ("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps(ASKED)}),
                ("gen_ai.content.completion", {"gen_ai.completion": json.dumps(REPLIED)}),
            ],
        ),
    ],
    ids=["numbered", "blocks as text", "openinference", "vercel", "events", "bodies of events", "contents"],
)
def test_spans_of_older_and_other_conventions(named, events):
    one = span("1", [], [])
    for name in ("gen_ai.input.messages", "gen_ai.output.messages"):
        del one["attributes"][name]
    one["attributes"] |= named
    one["events"] = [{"name": name, "attributes": inside} for name, inside in events]
    (found,) = read(lines(one), "spans.jsonl")
    assert spoken(found) == TALK[: len(found.texts)]
    assert found.texts
    assert usage(found) == [(100, None, None, 7)]


def test_a_span_of_openinference_has_its_usage_by_its_own_names():
    named = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "claude-sonnet-5",
        "llm.token_count.prompt": 100,
        "llm.token_count.completion": 7,
        "llm.token_count.prompt_details.cache_read": 60,
        "llm.token_count.prompt_details.cache_write": 30,
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.contents.0.message_content.text": LIVES,
    }
    place = {"context": {"trace_id": "0x1", "span_id": "0x2"}, "start_time": "2026-11-01T10:00:00Z"}
    (one,) = read(lines({"name": "ChatAnthropic", **place, "attributes": named}), "spans.jsonl")
    assert (spoken(one), usage(one), one.calls[0].model) == (TALK[:1], [(10, 60, 30, 7)], "claude-sonnet-5")


@pytest.mark.parametrize("number", ["9" * 5000, "--5", "five"])
def test_a_whole_number_of_otlp_that_is_none_is_left_out(tmp_path, number):
    spans = otlp(*SPANS[:1])
    attributes = spans["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"]
    attributes.append({"key": "gen_ai.usage.cache_read.input_tokens", "value": {"intValue": number}})
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(spans))
    (one,) = read_transcripts([path])
    assert [call.read for call in one.calls] == [None]


def test_otlp_with_names_in_snake_case():
    text = {"key": "gen_ai.input.messages", "value": {"string_value": json.dumps(ASKED)}}
    count = {"key": "gen_ai.usage.input_tokens", "value": {"int_value": "12"}}
    spans = [{"trace_id": "t", "span_id": "s", "attributes": [text, count]}]
    (one,) = read(lines({"resource_spans": [{"scope_spans": [{"spans": spans}]}]}), "spans.jsonl")
    assert (spoken(one), usage(one)) == (TALK[:1], [(12, None, None, 0)])


def test_rows_of_litellm_with_the_request_and_the_cache_elsewhere():
    row = {
        **{key: value for key, value in LITELLM[0].items() if key not in {"messages", "response", "metadata"}},
        "messages": {},
        "proxy_server_request": json.dumps({"messages": ASKED}),
        "metadata": {"additional_usage_values": {"cache_read_input_tokens": 70}},
    }
    (one,) = read(lines(row))
    assert spoken(one) == TALK[:1]
    assert (one.calls[0].fresh, one.calls[0].read) == (30, 70)
