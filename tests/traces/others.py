"""What programs other than coding agents write, made by hand from the shapes that they write."""

import json


def lines(*records):
    return "".join(json.dumps(one) + "\n" for one in records)


def node(id, parent, role, *parts, **more):
    content = {"content_type": "text", "parts": list(parts)}
    message = {"id": id, "author": {"role": role}, "create_time": 1.7e9, "content": content, **more}
    return {"id": id, "parent": parent, "message": message if role else None}


THOUGHTS = {"author": {"role": "assistant"}, "content": {"content_type": "thoughts"}}
NODES = {
    one["id"]: one
    for one in [
        node("r", None, None),
        node("s", "r", "system", ""),
        node("h", "s", "user", "I live in Rome.", metadata={"is_visually_hidden_from_conversation": True}),
        node("a", "h", "user", "Plan a trip."),
        node("b", "a", "assistant", "To Rome?"),
        node("c", "a", "assistant", '{"prompt": "a boat"}', recipient="dalle.text2im"),
        node("d", "c", "tool", "made"),
        {"id": "e", "parent": "d", "message": THOUGHTS},
        node("f", "e", "assistant", "To Bergen?"),
        node("g", "f", "user", "Yes.", {"content_type": "image_asset_pointer"}),
    ]
}
CHATGPT = {"id": "c1", "title": "Trips", "current_node": "g", "mapping": NODES}


def said(id, parent, sender, *blocks):
    content = [{"type": "text", "text": one} if isinstance(one, str) else one for one in blocks]
    place = {"uuid": id, "parent_message_uuid": parent, "created_at": "2026-10-01T10:00:00Z"}
    return {**place, "sender": sender, "content": content}


CLAUDE_AI = {
    "uuid": "t",
    "name": "Greetings",
    "chat_messages": [
        said("1", "00000000-0000-4000-8000-000000000000", "human", "Hello."),
        said("2", "1", "assistant", {"type": "thinking", "thinking": "Hm."}, "Hi."),
        said("3", "1", "assistant", {"type": "tool_use", "name": "search"}),
        said("4", "3", "human", "Bye."),
    ],
}


def spoken_part(role, text):
    return {"role": role, "parts": [{"type": "text", "content": text}]}


FIRST = [spoken_part("system", "Be brief."), spoken_part("user", "Hi.")]
ANSWER = [{**spoken_part("assistant", "Hello."), "finish_reason": "stop"}]
SECOND = [*FIRST, *ANSWER, spoken_part("user", "Hi.")]


def span(id, input, output, at=1, **more):
    named = {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "talk",
        "gen_ai.request.model": "gpt-5.5",
        "gen_ai.input.messages": json.dumps(input),
        "gen_ai.output.messages": json.dumps(output),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 7,
        **more,
    }
    place = {"context": {"trace_id": "0x1", "span_id": id}, "start_time": f"2026-11-01T10:00:0{at}Z"}
    return {"name": "chat", **place, "attributes": named}


CACHE = {"gen_ai.usage.cache_read.input_tokens": 60, "gen_ai.usage.cache_creation.input_tokens": 30}
SPANS = [
    span("1", FIRST, ANSWER),
    span("2", SECOND, [{"role": "assistant", "parts": [{"type": "tool_call", "name": "x"}]}], 2, **CACHE),
    span("3", SECOND, ANSWER, 3, **{"gen_ai.operation.name": "invoke_agent"}),
]


def otlp(*spans):
    def value(of):
        return {"intValue": str(of)} if isinstance(of, int) else {"stringValue": of}

    made = [
        {
            "traceId": "1",
            "spanId": one["context"]["span_id"],
            "startTimeUnixNano": str((1_793_527_200 + n) * 1_000_000_000),
            "attributes": [{"key": name, "value": value(of)} for name, of in one["attributes"].items()],
        }
        for n, one in enumerate(spans)
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": made}]}]}


def chat(*texts):
    return [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(texts)]


_ROW = {
    "call_type": "acompletion",
    "model": "claude-sonnet-4-5",
    "startTime": "2026-11-01T10:00:00Z",
    "session_id": "s",
}
_USED = {"prompt_tokens": 200, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 150}}
LITELLM = [
    {
        **_ROW,
        "request_id": "1",
        "messages": chat("Hi."),
        "response": {"choices": [{"message": {"role": "assistant", "content": "Hello."}}]},
        "prompt_tokens": 100,
        "completion_tokens": 5,
    },
    {
        **_ROW,
        "request_id": "2",
        "messages": json.dumps(chat("Hi.", "Hello.", "Bye.")),
        "response": "{}",
        "prompt_tokens": 200,
        "completion_tokens": 9,
        "metadata": json.dumps({"usage_object": _USED}),
    },
]

_GENERATION = {"type": "GENERATION", "traceId": "t", "model": "gpt-5.5", "startTime": "2026-11-01T10:00:00Z"}
LANGFUSE = [
    {
        **_GENERATION,
        "id": "1",
        "input": chat("Hi."),
        "output": {"role": "assistant", "content": "Hello."},
        "usageDetails": {"input": 40, "input_cached_tokens": 60, "output": 5, "total": 105},
    },
    {
        **_GENERATION,
        "id": "2",
        "input": {"messages": chat("Hi.", "Hello.", "Bye.")},
        "output": "See you.",
        "usageDetails": {"input": 10, "output": 2},
    },
    {**_GENERATION, "id": "3", "type": "SPAN", "input": "x"},
]


def request(n, messages, answer):
    used = {"input_tokens": n, "output_tokens": 1, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 6}
    response = {"id": f"msg_{n}", "content": [{"type": "text", "text": answer}], "usage": used}
    body = {"model": "claude-sonnet-4-5", "system": "x", "messages": messages}
    return {"timestamp": 1_793_527_200 + n, "request": body, "response": response}


REQUESTS = [
    request(1, chat("Hi."), "Hello."),
    request(2, chat("Buy milk."), "Done."),
    request(3, chat("Hi.", "Hello.", "Bye."), "See you."),
]

MEM0 = [
    {"id": "1", "memory": "Likes tea", "hash": "x", "user_id": "ann", "created_at": "2026-05-01T10:00:00-07:00"},
    {"id": "2", "memory": "Has a boat", "user_id": "ann", "updated_at": None},
    {"id": "3", "memory": "", "user_id": "ann"},
]

_PLACE = {"namespace": ["memories", "u1"], "created_at": "2026-05-01T10:00:00+00:00"}
LANGGRAPH = [
    {**_PLACE, "key": "a", "value": {"content": "Likes tea"}},
    {**_PLACE, "key": "b", "value": {"kind": "Profile", "content": {"name": "Ann", "age": 40}}},
    {**_PLACE, "key": "c", "value": {}},
]


def _wrapped(**what):
    return [{"type": "text", "text": json.dumps(what)}]


def _called(name, **arguments):
    return [{"function": {"name": name, "arguments": json.dumps(arguments)}}]


_SHORTENED = "prior messages are hidden; summary: I live in Rome."
LETTA = {
    "agents": [
        {
            "id": "agent-0",
            "name": "Ada",
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "You are"}]},
                {"role": "user", "content": _wrapped(type="user_message", message="Hi there.", time="x")},
                {"role": "user", "content": _wrapped(type="heartbeat", reason="x")},
                {"role": "user", "content": _wrapped(type="system_alert", message=_SHORTENED)},
                {"role": "user", "content": [{"type": "text", "text": "{not JSON"}]},
                {"role": "assistant", "content": [], "tool_calls": _called("send_message", message="Hello.")},
                {"role": "assistant", "content": [], "tool_calls": _called("search")},
                {"role": "tool", "content": [{"type": "text", "text": "ok"}]},
            ],
        }
    ],
    "blocks": [{"label": "human", "value": "Name: Ann"}, {"label": "persona", "value": "I am Ada"}],
    "files": [],
}
