"""`loom proxy`: the same bytes with nothing chosen, and no cost above direct traffic with everything chosen.

    python benchmarks/proxy.py [--requests N] [--traces N] [--headroom PYTHON] [--json]

`--headroom` names a Python that has headroom-ai; without it, its line is left out.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import anyio

from benchmarks.proxy_traces import Sent
from loom import Scope, open_checkpoints
from loom.catalog import find_model
from loom.context.cache.simulate import Simulation, replay
from loom.core.window import PrefixChain
from loom.server.proxy import Features
from loom.server.proxy.features import Arrived, Prepared, RequestEditor
from loom.server.proxy.markers import without_tokens
from loom.testing import FakeClock
from loom.text.tokens import counter_for
from loom.traces.request import read_request

NOTE = "Your memory of this user."


@dataclass(frozen=True, slots=True)
class Passed:
    """A request as it came and as it went out."""

    sent: Sent
    prepared: Prepared

    @property
    def model(self) -> str:
        """The model that it names."""
        return json.loads(self.sent.body)["model"]


async def pass_on(trace: Sequence[Sent], features: Features, **options: Any) -> list[Passed]:
    """What the proxy makes of a trace."""
    store = options.get("store") or open_checkpoints("inmemory")
    editor = RequestEditor(features, store, FakeClock())
    found: list[Passed] = []
    for one in trace:
        at = datetime.fromtimestamp(one.at, UTC)
        scope = Scope("default", "ann", one.session)
        prepared = await editor.prepare(Arrived(scope, one.upstream, one.path, one.body, at))
        prepared.commit(one.is_answered)
        found.append(Passed(one, prepared))
    return found


def chain_of(one: Passed, *, ours: bool) -> PrefixChain:
    """A request as the cache sees it; what memory added counts nothing."""
    body = json.loads(one.prepared.body if ours else one.sent.body)
    counter = counter_for(find_model(body["model"], one.sent.upstream))
    prompt = read_request(body, provider=one.sent.upstream, counter=counter, at=one.sent.at)
    return without_tokens(PrefixChain.of(prompt), lambda block: f'"text":"{NOTE}' in block.content)[0]


def simulated(passed: Sequence[Passed], *, ours: bool) -> Simulation:
    """The cost of the answered requests of one model."""
    rules = find_model(passed[0].model, passed[0].sent.upstream).cache
    return replay([chain_of(one, ours=ours) for one in passed if one.sent.is_answered], rules)


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
