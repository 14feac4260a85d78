"""`loom proxy`: the same bytes with nothing chosen, and no cost above direct traffic with everything chosen.

    python -m benchmarks.proxy [--requests N] [--traces N] [--headroom PYTHON]

`--headroom` names a Python that has headroom-ai; without it, its line is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate
from random import Random
from typing import Any

import anyio

from benchmarks.proxy_traces import AnyCall, Sent, agent_trace, any_call, random_trace, words
from loom import Scope, open_checkpoints, open_memory
from loom.catalog import find_model
from loom.context.cache.simulate import Simulation, replay
from loom.core.window import Block, PrefixChain
from loom.server.proxy import Features
from loom.server.proxy.features import Arrived, Prepared, RequestEditor
from loom.server.proxy.markers import without_tokens
from loom.testing import FakeClock
from loom.text.tokens import counter_for
from loom.traces.request import read_request
from tests.server.proxying import RawProvider, answer_of, exchange, proxied, raw_provider

NOTE = "Your memory of this user."


@dataclass(frozen=True)
class Passed:
    """A request as it came and as it went out."""

    sent: Sent
    prepared: Prepared
    made: dict[tuple[str, ...], Block] = field(default_factory=dict[tuple[str, ...], Block])
    """Blocks of the same trace and model that were counted already."""

    @property
    def model(self) -> str:
        """The model that it names."""
        return self.direct.model

    @cached_property
    def direct(self) -> PrefixChain:
        """The request as it came."""
        return chain_of(self, ours=False)

    @cached_property
    def ours(self) -> PrefixChain:
        """The request as it went out."""
        return self.direct if self.prepared.body == self.sent.body else chain_of(self, ours=True)


async def pass_on(trace: Sequence[Sent], features: Features, **options: Any) -> list[Passed]:
    """What the proxy makes of a trace."""
    store = options.get("store") or open_checkpoints("inmemory")
    editor = RequestEditor(features, store, FakeClock())
    found: list[Passed] = []
    made: dict[str, dict[tuple[str, ...], Block]] = {}
    for one in trace:
        at = datetime.fromtimestamp(one.at, UTC)
        scope = Scope("default", "ann", one.session)
        prepared = await editor.prepare(Arrived(scope, one.upstream, one.path, one.body, at))
        prepared.commit(one.is_answered)
        found.append(Passed(one, prepared, made.setdefault(json.loads(one.body)["model"], {})))
    return found


def chain_of(one: Passed, *, ours: bool) -> PrefixChain:
    """A request as the cache sees it; what memory added counts nothing."""
    body = json.loads(one.prepared.body if ours else one.sent.body)
    counter = counter_for(find_model(body["model"], one.sent.upstream))
    prompt = read_request(body, provider=one.sent.upstream, counter=counter, at=one.sent.at, made=one.made)
    return without_tokens(PrefixChain.of(prompt), lambda block: f'"text":"{NOTE}' in block.content)[0]


def simulated(passed: Sequence[Passed], *, ours: bool) -> Simulation:
    """The cost of the answered requests of one model."""
    rules = find_model(passed[0].model, passed[0].sent.upstream).cache
    return replay([one.ours if ours else one.direct for one in passed if one.sent.is_answered], rules)


def groups(passed: Sequence[Passed]) -> Iterator[list[Passed]]:
    """All requests of a model, and those of each conversation alone."""
    for model in sorted({one.model for one in passed}):
        own = [one for one in passed if one.model == model]
        for session in (None, *sorted({one.sent.session for one in own})):
            yield [one for one in own if session is None or one.sent.session == session]


def excess(passed: Sequence[Passed]) -> float:
    """The most that any conversation, or the user, was ever behind direct traffic, in tokens; at most 0 by the law."""
    worst = 0.0
    for group in groups(passed):
        direct, ours = simulated(group, ours=False), simulated(group, ours=True)
        pairs = zip(accumulate(s.cost for s in direct.steps), accumulate(s.cost for s in ours.steps), strict=True)
        worst = max([worst, *(b - a for a, b in pairs)])
    return worst


def read_less(passed: Sequence[Passed]) -> bool:
    """Whether a smaller share of the prompts was read from the cache than of direct traffic."""
    return any(
        simulated(group, ours=True).read_share < simulated(group, ours=False).read_share - 1e-9
        for group in groups(passed)
    )


def cost(passed: Sequence[Passed], *, ours: bool) -> float:
    """The cost of a trace, in tokens at the plain input price."""
    models = sorted({one.model for one in passed})
    return sum(simulated([p for p in passed if p.model == model], ours=ours).cost for model in models)


# With nothing chosen: every byte of any call, both ways.


def is_passed_whole(call: AnyCall, provider: RawProvider, address: str) -> bool:
    """Whether a call and its answer went through as they were."""
    provider.answer = answer_of(call.status, call.answered, call.answer, chunks=call.chunks)
    sent = [*call.headers, (b"content-length", b"%d" % len(call.body))]
    status, headers, answer = exchange(address, call.target, sent, call.body)
    length = [] if call.chunks else [(b"content-length", b"%d" % len(call.answer))]
    came = [pair for pair in _lowered(provider.headers) if pair[0] != b"host"]
    went = [pair for pair in _lowered(headers) if pair[0] != b"transfer-encoding"]
    line = b"POST " + call.target.removeprefix(b"/other") + b" HTTP/1.1"
    return (provider.line, came, provider.body) == (line, _lowered(sent), call.body) and (status, went, answer) == (
        call.status,
        _lowered([*call.answered, *length]),
        call.answer,
    )


def _lowered(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in headers]


def changed_calls(count: int) -> int:
    """How many of so many random calls were not passed on byte by byte."""
    names = ("anthropic", "openai", "other")
    with raw_provider() as provider, proxied(dict.fromkeys(names, provider.url)) as address:
        return sum(not is_passed_whole(any_call(seed), provider, address) for seed in range(count))


# Everything chosen: the law, on random traces.


def added_to(one: Passed) -> int:
    """Tokens that memory added to a request."""
    added = one.prepared.record.get("added", 0)
    return added if isinstance(added, int) else 0


@dataclass(slots=True)
class Lawful:
    """What the traces of one choice of features came to."""

    name: str
    traces: int = 0
    over: int = 0
    """Traces in which a conversation, or the user, was at any time behind direct traffic."""
    read_less: int = 0
    direct: float = 0.0
    ours: float = 0.0
    added: int = 0
    """Tokens that memory added, which are not in the costs."""

    @property
    def share(self) -> float:
        """The cost relative to direct traffic."""
        return self.ours / self.direct if self.direct else 1.0

    def enter(self, passed: Sequence[Passed], *, advance: float = 0.0) -> None:
        """Count one trace."""
        self.traces += 1
        self.over += excess(passed) > advance + 1e-6
        self.direct += cost(passed, ours=False)
        self.ours += cost(passed, ours=True)
        self.added += sum(added_to(one) for one in passed)


CHOICES: dict[str, dict[str, Any]] = {
    "--markers": {"markers": True},
    "--markers --advance 5000": {"markers": True, "advance": 5_000.0},
    "--shorten-tools": {"shorten_tools": True},
    "--compact 15000": {"compact": 15_000},
    "--memory": {"memory": True},
    "all four": {"markers": True, "shorten_tools": True, "compact": 15_000, "memory": True},
}


async def lawful(name: str, seeds: Sequence[int]) -> Lawful:
    """Pass random traces on with one choice of features, and compare them with direct traffic."""
    found = Lawful(name)
    for seed in seeds:
        chosen = dict(CHOICES[name])
        async with open_memory("inmemory") as memory:
            if chosen.pop("memory", False):
                random = Random(seed)
                for n in range(12):
                    await memory.remember(words(random, 25), user_id="ann", session_id=f"old-{n}")
                await memory.instruct("Answer briefly.", user_id="ann")
                chosen["memory"] = memory
            passed = await pass_on(random_trace(seed), Features(**chosen))
        found.enter(passed, advance=chosen.get("advance", 0.0))
        if name == "--memory":
            found.read_less += read_less(passed)
    return found


# Long tool results: nothing done, the proxy, and headroom's `compress()`, on one trace of a coding agent.

_HEADROOM = """
import json, sys
from headroom import compress
for line in sys.stdin:
    body = json.loads(line)
    done = compress(body["messages"], model=body["model"])
    print(json.dumps(done.messages), flush=True)
"""


def shortened_agent(shape: Sequence[Sent]) -> list[Passed]:
    """The trace with shortened results."""
    return anyio.run(pass_on, shape, Features(shorten_tools=True))


def as_sent(bodies: Sequence[dict[str, Any]]) -> list[Sent]:
    """Bodies as requests, twenty seconds apart."""
    return [
        Sent(1_000_000.0 + 20 * i, "/v1/messages", "anthropic", "agent", json.dumps(body).encode())
        for i, body in enumerate(bodies)
    ]


def by_headroom(bodies: Sequence[dict[str, Any]], python: str) -> list[Sent]:
    """The same trace as headroom sends it."""
    lines = "\n".join(json.dumps(body) for body in bodies)
    done = subprocess.run([python, "-c", _HEADROOM], input=lines, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return as_sent([{**body, "messages": messages} for body, messages in zip(bodies, found, strict=True)])


def relative_costs(bodies: Sequence[dict[str, Any]], headroom: str | None) -> Iterator[tuple[str, float, float]]:
    """Name, cost relative to nothing done, and share read."""
    trace = as_sent(bodies)
    plain = [Passed(one, Prepared(one.body, Scope("default", "ann", "agent"))) for one in trace]
    base = simulated(plain, ours=True)
    rows = [("nothing done", plain), ("loom proxy --shorten-tools", shortened_agent(trace))]
    if headroom:
        other = [
            Passed(one, Prepared(one.body, Scope("default", "ann", "agent"))) for one in by_headroom(bodies, headroom)
        ]
        rows.append(("headroom-ai compress()", other))
    for name, passed in rows:
        done = simulated(passed, ours=True)
        yield name, done.cost / base.cost, done.read_share


# What markers are worth to programs that place none.


def chat_trace(seed: int, turns: int) -> list[Sent]:
    """A conversation with a long system prompt and no marker, a minute between its requests."""
    random = Random(seed)
    system, messages = words(random, 3_000), list[Any]()
    found: list[dict[str, Any]] = []
    for _ in range(turns):
        messages.append({"role": "user", "content": words(random, 60)})
        found.append({"model": "claude-sonnet-5", "max_tokens": 999, "system": system, "messages": [*messages]})
        messages.append({"role": "assistant", "content": words(random, 250)})
    return [replace(one, at=1_000_000.0 + 60 * i) for i, one in enumerate(as_sent(found))]


def unmarked_agent() -> list[Sent]:
    """The coding agent, without its markers."""
    return as_sent(json.loads(json.dumps(agent_trace()).replace(', "cache_control": {"type": "ephemeral"}', "")))


def marker_rows() -> Iterator[tuple[str, str, float]]:
    """The trace, the choice, and its cost relative to direct traffic."""
    traces = {"chat of 12 turns": chat_trace(3, 12), "chat of 1 turn": chat_trace(3, 1), "agent": unmarked_agent()}
    choices: dict[str, dict[str, Any]] = {
        "--markers": {"markers": True},
        "--markers --advance 5000": {"markers": True, "advance": 5_000.0},
        "--markers --shorten-tools": {"markers": True, "shorten_tools": True},
    }
    for trace, sent in traces.items():
        for name, chosen in choices.items():
            passed = anyio.run(pass_on, sent, Features(**chosen))
            yield trace, name, cost(passed, ours=True) / cost(passed, ours=False)


def main(requests: int = 10_000, traces: int = 1_000, headroom: str | None = None) -> None:
    """Print every line."""
    print(f"nothing chosen: {changed_calls(requests)} of {requests:,} random calls changed")
    for name in CHOICES:
        done = anyio.run(lawful, name, range(traces))
        more = f", {done.read_less} read less" if name == "--memory" else ""
        text = f", {done.added:,} tokens added" if done.added else ""
        print(f"{name}: {done.over} of {done.traces:,} traces over the law{more}; cost {done.share:.3f}{text}")
    for trace, name, share in marker_rows():
        print(f"{trace}, {name}: cost {share:.3f}")
    for title, kinds in (("searches, logs, tests, listings", (0, 1, 2, 3, 4)), ("searches and logs", (0, 1))):
        for name, share, read in relative_costs(agent_trace(kinds=kinds), headroom):
            print(f"agent, {title}, {name}: cost {share:.3f}, {read:.1%} read")


if __name__ == "__main__":
    words_given = sys.argv[1:]
    given = dict(zip(words_given[::2], words_given[1::2], strict=True))
    main(int(given.get("--requests", 10_000)), int(given.get("--traces", 1_000)), given.get("--headroom"))
