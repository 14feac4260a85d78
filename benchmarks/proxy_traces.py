"""Traces for `loom proxy`: random conversations of many shapes, and one of a coding agent with long tool results.

Everything comes from a seed. The shapes are those of public programs: chat, agents that call tools alone and in
parallel, clients that mark nothing, the system prompt, the end, the last two messages or everything; conversations that
go back and branch off, that are tried again, that pause for longer than a cache lasts, and that change the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

_WORDS = (
    "the file module test build cache request path value token index shape order result table column session "
    "user name date total count returns opens closes reads writes passes checks moves keeps finds sends takes "
    "north south river light paper green seven early small first second later often under over while because "
)
WORDS: Sequence[str] = _WORDS.split()
CLAUDE = ("claude-sonnet-5", "claude-sonnet-5", "claude-haiku-4-5", "claude-fable-5-1", "claude-opus-4-8")
STYLES = ("none", "none", "system", "tail", "both", "both", "two", "automatic", "hour", "four", "some")


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of a trace, and whether the provider answered it."""

    at: float
    path: str
    upstream: str
    session: str
    body: bytes
    is_answered: bool = True


def words(random: Random, count: int) -> str:
    """Some words, in lines."""
    return " ".join(random.choice(WORDS) + ("\n" if random.random() < 0.08 else "") for _ in range(count))


def long_result(random: Random, lines: int) -> str:
    """A result as tools give them: a log, a list of matches, or JSON."""
    kind = random.randrange(3)
    if kind == 0:
        levels = ("INFO", "INFO", "INFO", "DEBUG", "WARNING", "ERROR")
        return "\n".join(f"2026-11-{i % 28 + 1:02} {random.choice(levels)} {words(random, 9)}" for i in range(lines))
    if kind == 1:
        return "\n".join(f"src/{random.choice(WORDS)}/{i}.py:{i * 7}: {words(random, 8)}" for i in range(lines))
    return json.dumps([{"id": i, "name": words(random, 3), "n": random.random()} for i in range(lines)])


@dataclass(slots=True)
class Conversation:
    """A program's own view of a conversation, in the format of one provider."""

    random: Random
    wire: str
    model: str
    style: str
    session: str
    tools: list[Any] = field(default_factory=list[Any])
    system: str = ""
    messages: list[Any] = field(default_factory=list[Any])
    calls: int = 0

    def user(self) -> None:
        """The user says something."""
        text = words(self.random, self.random.choice((4, 20, 120, 900)))
        if self.wire == "responses":
            self.messages.append({"role": "user", "content": text})
            return
        content: Any = text if self.random.random() < 0.5 else [{"type": "text", "text": text}]
        self.messages.append({"role": "user", "content": content})

    def answer(self) -> None:
        """The model says something."""
        text = words(self.random, self.random.choice((5, 40, 200)))
        self.messages.append({"role": "assistant", "content": text})

    def use_tools(self) -> None:
        """The model calls tools, and their results come."""
        count = self.random.choice((1, 1, 1, 2, 5, 12))
        ids = [f"{self.session}_call_{self.calls + i}" for i in range(count)]
        self.calls += count
        results = [
            long_result(self.random, self.random.choice((40, 150, 400)))
            if self.random.random() < 0.4
            else words(self.random, 15)
            for _ in ids
        ]
        if self.wire == "messages":
            calls = [{"type": "tool_use", "id": id, "name": "run", "input": {"q": words(self.random, 3)}} for id in ids]
            self.messages.append({"role": "assistant", "content": calls})
            given = [
                {"type": "tool_result", "tool_use_id": id, "content": self._content(text)}
                for id, text in zip(ids, results, strict=True)
            ]
            self.messages.append({"role": "user", "content": given})
        elif self.wire == "chat":
            made = [{"id": id, "type": "function", "function": {"name": "run", "arguments": "{}"}} for id in ids]
            self.messages.append({"role": "assistant", "content": None, "tool_calls": made})
            for id, text in zip(ids, results, strict=True):
                self.messages.append({"role": "tool", "tool_call_id": id, "content": text})
        else:
            for id in ids:
                self.messages.append({"type": "function_call", "call_id": id, "name": "run", "arguments": "{}"})
            for id, text in zip(ids, results, strict=True):
                self.messages.append({"type": "function_call_output", "call_id": id, "output": text})

    def _content(self, text: str) -> Any:
        return text if self.random.random() < 0.5 else [{"type": "text", "text": text}]

    def go_back(self) -> None:
        """Forget the last messages, back to one of the user, and say something else there."""
        places = [
            i
            for i, message in enumerate(self.messages)
            if message.get("role") == "user" and not _has_results(message) and i
        ]
        if places:
            del self.messages[self.random.choice(places) :]
            self.user()

    def body(self) -> dict[str, Any]:
        """The request as the program sends it."""
        messages = json.loads(json.dumps(self.messages))
        body: dict[str, Any] = {"model": self.model, "max_tokens": 999, "new_field": {"kept": [1.50, "\u2603", None]}}
        if self.wire == "messages":
            system = [{"type": "text", "text": self.system}] if self.system else []
            body |= {"tools": self.tools} if self.tools else {}
            body |= {"messages": messages} | ({"system": system} if system else {})
            self._mark(body)
        elif self.wire == "chat":
            head = [{"role": "system", "content": self.system}] if self.system else []
            body |= {"messages": [*head, *messages], "max_completion_tokens": 99}
        else:
            body |= {"instructions": self.system or None, "input": messages}
        return body

    def _mark(self, body: dict[str, Any]) -> None:
        five, hour = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
        style = self.style
        if style == "automatic":
            body["cache_control"] = five
            return
        if style == "some":
            style = self.random.choice(("none", "tail", "both"))
        if style in {"system", "both", "two", "hour", "four"} and "system" in body:
            body["system"][-1] = {**body["system"][-1], "cache_control": hour if style == "hour" else five}
        if style == "four" and self.tools:
            body["tools"] = [*self.tools[:-1], {**self.tools[-1], "cache_control": five}]
        users = [message for message in body["messages"] if message["role"] == "user"]
        count = {"tail": 1, "both": 1, "hour": 1, "two": 2, "four": 2}.get(style, 0)
        for message in users[-count:] if count else []:
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
            message["content"][-1] = {**message["content"][-1], "cache_control": five}


def _has_results(message: Any) -> bool:
    content = message.get("content")
    return '"tool_result"' in json.dumps(content)


def random_trace(seed: int) -> list[Sent]:
    """Requests of one user: of one conversation, or of two that take turns."""
    random = Random(seed)
    wire = random.choice(("messages",) * 6 + ("chat", "responses"))
    tools: list[Any] = [
        {"name": f"tool_{i}", "description": words(random, 60), "input_schema": {"type": "object", "properties": {}}}
        for i in range(random.choice((0, 1, 8)))
    ]
    system = words(random, random.choice((0, 200, 900, 3_500)))
    talks: list[Conversation] = []
    for i in range(random.choice((1, 1, 1, 2))):
        model = random.choice(CLAUDE) if wire == "messages" else random.choice(("gpt-5.6", "gpt-5"))
        talks.append(Conversation(random, wire, model, random.choice(STYLES), f"s{i}", tools, system))
    return [*_talk(random, talks, random.randrange(4, 16))]


def _talk(random: Random, talks: list[Conversation], requests: int) -> Iterator[Sent]:
    at = 1_000_000.0
    path = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}[talks[0].wire]
    upstream = "anthropic" if talks[0].wire == "messages" else "openai"
    for _ in range(requests):
        talk = random.choice(talks)
        at += random.choice((2, 10, 30, 90, 200, 290, 310, 900, 4_000))
        chance = random.random()
        if not talk.messages:
            talk.user()
        elif chance < 0.08:
            pass  # the same again
        elif chance < 0.16 and len(talk.messages) > 3:
            talk.go_back()
        elif chance < 0.60:
            talk.use_tools()
        else:
            talk.answer()
            talk.user()
        if talk.wire == "messages" and random.random() < 0.04:
            talk.model = random.choice(CLAUDE)
        body = json.dumps(talk.body(), indent=random.choice((None, 1)), ensure_ascii=random.random() < 0.5).encode()
        yield Sent(at, path, upstream, talk.session, body, is_answered=random.random() > 0.05)


def agent_trace(seed: int = 7, requests: int = 28, kinds: tuple[int, ...] = (0, 1, 2, 3, 4)) -> list[dict[str, Any]]:
    """A coding agent that looks for a fault: searches, logs, listings and test runs, marked as such agents do it.

    Every request repeats the one before and adds a call with its result; the system prompt and the end are marked.
    """
    random = Random(seed)
    tools = [
        {
            "name": name,
            "description": words(random, 70),
            "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
        }
        for name in ("bash", "read", "grep", "edit", "glob", "todo")
    ]
    system = [{"type": "text", "text": words(random, 1_800), "cache_control": {"type": "ephemeral"}}]
    question = "The build fails since Monday. Find out why, and fix it."
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": question}]}]
    found: list[dict[str, Any]] = []
    for number in range(requests):
        sent = json.loads(json.dumps(messages))
        sent[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        found.append(
            {"model": "claude-sonnet-5", "max_tokens": 4_000, "tools": tools, "system": system, "messages": sent}
        )
        command, output = _step(random, kinds[number % len(kinds)])
        call = {"type": "tool_use", "id": f"toolu_{number:03}", "name": "bash", "input": {"command": command}}
        messages.append({"role": "assistant", "content": [{"type": "text", "text": words(random, 18)}, call]})
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number:03}", "content": output}
        messages.append({"role": "user", "content": [result]})
    return found


def _step(random: Random, kind: int) -> tuple[str, str]:
    """A command, and what it printed."""
    if kind == 0:
        rows = (f"src/{random.choice(WORDS)}/{random.choice(WORDS)}.py:{i * 3}: {words(random, 9)}" for i in range(140))
        return "grep -rn build src", "\n".join(row.replace("\n", "") for row in rows)
    if kind == 1:
        levels = ("INFO",) * 12 + ("WARNING", "ERROR")
        rows = (
            f"2026-11-16T09:{i % 60:02}:{i % 47:02} {random.choice(levels)} worker-{i % 4} {words(random, 10)}"
            for i in range(160)
        )
        return "tail -n 160 build.log", "\n".join(row.replace("\n", "") for row in rows)
    if kind == 2:
        rows = (f"tests/test_{random.choice(WORDS)}.py::test_{random.choice(WORDS)}_{i} PASSED" for i in range(180))
        return "pytest -v", "\n".join([*rows, "FAILED tests/test_cache.py::test_order - AssertionError", "1 failed"])
    if kind == 3:
        rows = [{"path": f"src/{random.choice(WORDS)}_{i}.py", "size": random.randrange(9_000)} for i in range(120)]
        return "ls --json", json.dumps(rows, indent=1)
    return "git log -3 --oneline", "\n".join(f"{random.randrange(1 << 28):07x} {words(random, 6)}" for _ in range(3))


# Calls for the proxy with nothing chosen: any bytes at all.

_TOKEN = "abcdefghijklmnopqrstuvwxyzABCXYZ0123456789!#$%&'*+-.^_`|~"
_SHOWN = (*range(0x20, 0x7F), *range(0xA0, 0x100))
_TAKEN = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade", "host", "expect", "content-length", "origin"),
    )
)
_TARGETS = (
    *(b"/v1/messages", b"/v1/messages?beta=true&x=%7B%22a%22%7D&q=[1]", b"/v1/messages/count_tokens"),
    *(b"/v1/responses", b"/v1/chat/completions?api-version=2026-01-01"),
    *(b"/other/v1/messages", b"/other/v1/responses?a=b%2Fc"),
)


@dataclass(frozen=True, slots=True)
class AnyCall:
    """A call and its answer, byte by byte."""

    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    status: int
    answered: list[tuple[bytes, bytes]]
    answer: bytes
    chunks: int


def any_call(seed: int) -> AnyCall:
    """Headers, bodies and answers of all kinds: bytes, JSON of odd shapes, and whole requests."""
    random = Random(seed)
    body = random.choice((_bytes, _odd_json, _request))(random)
    status = random.choice((200, 201, 202, 400, 401, 403, 404, 409, 413, 418, 422, 429, 500, 503, 529, 599))
    answer = _bytes(random)
    return AnyCall(
        random.choice(_TARGETS), _headers(random), body, status, _headers(random), answer, random.randrange(6)
    )


def _headers(random: Random) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    for _ in range(random.randrange(12)):
        name = "".join(random.choices(_TOKEN, k=random.randint(1, 20)))
        name = random.choice((name, name, "authorization", "anthropic-beta", "Accept-Encoding", "cookie", "x-api-key"))
        value = "".join(
            chr(random.choice((*range(0x20, 0x7F), *range(0xA0, 0x100)))) for _ in range(random.randrange(40))
        )
        if name.lower() not in _TAKEN and not name.lower().startswith("x-loom-"):
            found.append((name.encode(), value.encode("latin-1").strip(b" \t")))
    return found


def _bytes(random: Random) -> bytes:
    return random.randbytes(random.choice((0, 1, 30, 2_000)))


def _odd_json(random: Random) -> bytes:
    text = random.choice(
        ('{"a":1,"a":2}', '{"messages":[{"role":"user","content":"\\ud83d"}]}', "[1E400,-0.0]", "NaN", "{}")
    )
    return text.encode()


def _request(random: Random) -> bytes:
    return random.choice(random_trace(random.randrange(50))[:3]).body
