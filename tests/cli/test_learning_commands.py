"""What learning by a model costs, and that it fails, is seen on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from loom.testing.wire import ChatWire, Said, WireServer, serve
from tests.commands import LOOM, run_loom

REX = json.dumps({"facts": [{"sources": ["e1"], "subject": "user", "predicate": "has_pet", "object": "Rex"}]})


@pytest.fixture
def provider() -> Iterator[WireServer]:
    """Learns one fact from whatever it reads, and answers people with a word."""
    with serve(ChatWire(), default=lambda body: Said.text(REX if "<episodes>" in str(body) else "Noted.")) as service:
        yield service


@pytest.fixture
def loom(tmp_path: Path, provider: WireServer) -> Callable[..., Any]:
    unset = {name for name in os.environ if name.endswith("_API_KEY") or name.startswith("LOOM_")}
    env = {name: value for name, value in os.environ.items() if name not in unset}
    env |= {"NO_COLOR": "1", "COLUMNS": "200", "LOOM_BASE_URL": provider.url}

    def run(*args: str, lines: tuple[str, ...] = (), code: int = 0) -> Any:
        said = "".join(f"{line}\n" for line in lines)
        done = run_loom([LOOM, *args], input=said, cwd=tmp_path, env=env)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def test_a_chat_says_what_it_cost_and_what_of_it_was_learning(loom: Any, provider: WireServer) -> None:
    done = loom("chat", "--model", "compatible:qwen3", lines=("I keep a beast.", "/cost", "Thanks!"))
    assert "(1 request, 1,000 tokens in, 20 out)" not in done.stdout
    assert "\n1 request, 1,000 tokens in, 20 out\n" in done.stdout, "/cost, before anything was learnt"
    assert (
        "(3 requests, 3,000 tokens in, 60 out; of it for learning: 1 request, 1,000 tokens in, 20 out)" in done.stdout
    )
    assert "learning from the conversation" in done.stderr
    assert len(provider.requests) == 3
    shown = loom("chat", "--model", "compatible:qwen3", "--json", lines=("/cost",))
    found = json.loads(shown.stdout.splitlines()[0])
    assert (found["all"]["requests"], found["learning"]["requests"]) == (0, 0)
    facts = json.loads(loom("memory", "facts", "--json").stdout)
    assert "Rex" in [fact["object"] for fact in facts]


def test_the_length_of_answers_is_limited_on_request(loom: Any, provider: WireServer) -> None:
    loom("chat", "Thanks!", "--model", "compatible:qwen3", "--max-output", "77")
    assert 77 in provider.requests[0].values()
    loom("chat", "Thanks!", "--model", "compatible:qwen3")
    assert 77 not in provider.requests[1].values()


def test_courtesy_costs_no_second_request(loom: Any, provider: WireServer) -> None:
    loom("chat", "Thanks!", "--model", "compatible:qwen3")
    assert len(provider.requests) == 1


def test_an_interrupt_while_it_learns_at_the_end_leaves_that_for_the_next_time(tmp_path: Path, loom: Any) -> None:
    learning = Event()

    def stuck(body: dict[str, Any]) -> Any:
        if "<episodes>" not in str(body):
            return Said.text("Noted.")
        learning.set()
        return "stalled"

    with serve(ChatWire(), default=stuck) as service:
        env = {**os.environ, "LOOM_BASE_URL": service.url}
        command = [LOOM, "chat", "I keep a beast.", "--model", "compatible:qwen3", "--memory", "sqlite:m.db"]
        with subprocess.Popen(
            command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            learning.wait()
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate()
        assert b"Noted." in out
        assert b"Ctrl-C postpones it to the next time" in errors
        assert process.returncode == 130
        assert len(service.requests) == 2
    assert "jobs 1 wait" in " ".join(loom("doctor", "sqlite:m.db").stdout.split())


def test_turns_that_wait_are_read_by_a_worker_that_is_given_a_model(
    loom: Any, provider: WireServer, tmp_path: Path
) -> None:
    source = """
import anyio
from loom import open_memory
async def main():
    async with open_memory("sqlite:m.db", embedder="hash", facts="model") as memory:
        await memory.remember("I keep a beast.", user_id="me")
anyio.run(main)
"""
    subprocess.run([sys.executable, "-c", source], check=True, cwd=tmp_path)
    db = ("--url", "sqlite:m.db")
    loom("memory", "work", *db)
    assert provider.requests == []
    assert "jobs 1 wait" in " ".join(loom("doctor", "sqlite:m.db").stdout.split())
    done = loom("memory", "work", *db, "--model", "compatible:qwen3").stdout
    assert "did 1 jobs: 1 facts" in done
    assert "1 request, 1,000 tokens in, 20 out" in done
    assert "Rex" in loom("memory", "facts", *db).stdout


def test_a_model_that_does_not_answer_in_json_is_seen_in_stats_and_doctor(loom: Any, tmp_path: Path) -> None:
    source = """
import anyio
from datetime import timedelta
from loom import open_memory
from loom.memory._write.extract_llm import LlmExtractor
from loom.testing import FakeClock, ScriptedModel
async def main():
    clock, model = FakeClock(), ScriptedModel(lambda _: "What a lovely beast!")
    async with open_memory("sqlite:m.db", embedder="hash", extractor=LlmExtractor(model), clock=clock) as memory:
        await memory.remember("I keep a beast.", user_id="me")
        for _ in range(3):
            await memory.metabolize(user_id="me")
            clock.advance(timedelta(hours=1))
anyio.run(main)
"""
    subprocess.run([sys.executable, "-c", source], check=True, cwd=tmp_path)
    assert json.loads(loom("memory", "stats", "--url", "sqlite:m.db", "--json").stdout)["failed"] == 1
    told = " ".join(loom("doctor", "sqlite:m.db").stdout.split())
    assert "0 wait, 1 were given up, the last one because of learn: BadResponse:" in told
    assert "lovely" not in told
