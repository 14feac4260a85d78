"""Learning by a model: in the background, several turns at once, counted, broken off by forget, finished by closing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from anyio import Event, create_task_group

from loom import open_memory
from loom.core.message import Usage
from loom.core.record import Claim
from loom.core.scope import Scope
from loom.errors import ProviderUnavailable, RateLimited, UsageError
from loom.memory._write.extract_llm import LlmExtractor
from loom.memory._write.learn_in_background import AT_ONCE, BATCH, LAST_BATCHES, MAX_ATTEMPTS, UNREAD_IN_A_ROW
from loom.memory.config import MemoryConfig
from loom.memory.memory import Memory
from loom.protocols.extractor import Extraction
from loom.protocols.model import ModelRequest
from loom.testing import FakeClock, ScriptedModel

pytestmark = pytest.mark.anyio
ANN = {"user_id": "ann"}
NOW = MemoryConfig(learn_seconds=0)
LATER = MemoryConfig(learn_seconds=3600)
"""Nothing is read because of the time that passes."""


def shown(request: ModelRequest) -> list[dict[str, Any]]:
    """The messages that a request asks about."""
    lines = request.messages[-1].text.split("<episodes>\n")[1].split("\n</episodes>")[0].splitlines()
    return [json.loads(line) for line in lines]


def pets(request: ModelRequest) -> str:
    """Finds a pet in every message that mentions one: what no plain rule does."""
    found = [
        {"sources": [said["id"]], "subject": "user", "predicate": "has_pet", "object": said["text"].split()[-1]}
        for said in shown(request)
        if "beast" in said["text"]
    ]
    return json.dumps({"facts": found})


class Watched(ScriptedModel):
    """A model that says when it reads, and answers when it may."""

    def __init__(self, replies: Callable[[ModelRequest], Any] = pets, *, held: bool = False) -> None:
        super().__init__(replies, name="anthropic:claude-sonnet-4-5")
        self.reads, self.may_answer, self.cancelled = Event(), Event(), Event()
        if not held:
            self.may_answer.set()

    async def complete(self, request: ModelRequest) -> Any:
        self.reads.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.requests.append(request)
            self.cancelled.set()
            raise
        return await super().complete(request)


def opened(model: ScriptedModel, where: str = "inmemory", config: MemoryConfig = LATER, **options: Any) -> Memory:
    return open_memory(where, embedder="hash", extractor=LlmExtractor(model), config=config, **options)


async def tell(memory: Memory, *texts: str, **options: Any) -> None:
    for text in texts:
        await memory.remember(text, **{**ANN, "session_id": "s", **options})


async def known(memory: Memory, **options: Any) -> list[str]:
    return sorted(fact.object for fact in await memory.facts(predicate="has_pet", **{**ANN, **options}))


# -- when it reads --------------------------------------------------------------------------------------------


async def test_four_turns_are_read_with_one_request_and_fewer_wait() -> None:
    model = Watched()
    async with opened(model) as memory:
        await tell(memory, "My beast is Rex", "My beast is Tom", "My beast is Ada")
        assert (await memory.stats(**ANN))["jobs"] == 6, "each has a job for the rules and one for the model"
        assert model.requests == []
        await tell(memory, "My beast is Bob")
        await model.reads.wait()
        await memory.metabolize(**ANN)
        assert await known(memory) == ["Ada", "Bob", "Rex", "Tom"]
        assert len(model.requests) == 1
        assert len(shown(model.requests[0])) == 4
        assert (await memory.stats(**ANN))["jobs"] == 0


async def test_what_waits_is_read_when_the_user_has_been_quiet() -> None:
    model = Watched()
    async with opened(model, config=NOW) as memory:
        await tell(memory, "My beast is Rex")
        await model.reads.wait()
        await memory.metabolize(**ANN)
        assert await known(memory) == ["Rex"]


async def test_what_teaches_nothing_is_never_read_and_leaves_no_job() -> None:
    model = Watched()
    async with opened(model, config=NOW) as memory:
        await tell(memory, "Thanks!", "Where do I live?", "ok, good night")
        await memory.remember("My beast is Rex", origin="assistant", **ANN)
        assert (await memory.stats(**ANN))["jobs"] == 4, "those of the rules alone"
        await memory.metabolize(**ANN)
    assert model.requests == []
    assert memory.bill.requests == 0


async def test_each_user_is_read_alone(tmp_path: Path) -> None:
    model = Watched()
    async with opened(model, f"sqlite:{tmp_path / 'm.db'}") as memory:
        for user in ("ann", "bob"):
            await tell(memory, f"My beast is {user}s", user_id=user)
        done = await memory.metabolize()
        assert [len(shown(request)) for request in model.requests] == [1, 1]
        assert (await known(memory), await known(memory, user_id="bob")) == (["anns"], ["bobs"])
        assert done.bill.requests == 2


async def test_a_request_is_bounded_in_turns_and_in_characters_and_its_answer_too() -> None:
    model = Watched()
    async with opened(model, config=MemoryConfig(learn_turns=1000, learn_seconds=3600)) as memory:
        await tell(memory, *(f"My beast is n{n}" for n in range(BATCH + 2)))
        await tell(memory, "x" * 30_000 + " beast", "My beast is Zoe")
        await memory.remember(
            [{"role": "user", "content": "I like it"}, {"role": "assistant", "content": "y" * 9_000}], **ANN
        )
        await memory.metabolize(**ANN)
    sizes = [len(shown(request)) for request in model.requests]
    assert sizes[0] == BATCH
    assert sum(sizes) == BATCH + 6
    assert all(len(request.messages[-1].text) < 30_000 for request in model.requests)
    assert all(request.settings.max_output for request in model.requests)
    answer = next(said for request in model.requests for said in shown(request) if said["origin"] == "assistant")
    assert len(answer["text"]) == 300


async def test_a_worker_reads_too() -> None:
    model = Watched()
    async with opened(model, config=NOW) as memory:
        await tell(memory, "My beast is Rex")
        async with memory.worker(every=0):
            await model.reads.wait()
        await memory.metabolize(**ANN)
        assert await known(memory) == ["Rex"]


async def test_metabolize_may_leave_the_model_alone() -> None:
    model = Watched()
    async with opened(model) as memory:
        await tell(memory, "My beast is Rex. I live in Oslo.")
        done = await memory.metabolize(learn=False, **ANN)
        assert [fact.object for fact in await memory.facts(predicate="lives_in", **ANN)] == ["Oslo"], (
            "by rules, at once"
        )
        assert (model.requests, done.bill.requests) == ([], 0)
        done = await memory.metabolize(**ANN)
        assert (len(model.requests), done.bill.requests, done.counts["facts"]) == (1, 1, 1)


# -- what it costs --------------------------------------------------------------------------------------------


async def test_the_bill_has_every_request() -> None:
    model = Watched()
    async with opened(model) as memory:
        assert (memory.bill.requests, memory.usage, memory.bill.cost) == (0, Usage(), 0.0)
        await tell(memory, *(f"My beast is n{n}" for n in range(4)))
        await model.reads.wait()
        await memory.metabolize(**ANN)
        report = memory.learned(**ANN)
        assert report is not None
        assert (report.turns, report.facts, report.bill) == (4, 4, memory.bill)
        assert memory.bill.requests == 1
        assert memory.usage.input > memory.usage.output > 0
        assert memory.bill.cost is not None
        assert memory.bill.cost > 0
        assert str(report).startswith("a model read 4 remembered turns and wrote 4 facts: 1 request, ")
        assert memory.learned(**ANN) is None, "it is told once"


async def test_the_usage_of_an_extractor_of_your_own_counts() -> None:
    class Mine:
        async def extract(self, episodes: Any, *, known: Any = ()) -> Extraction:
            claim = Claim(subject="user", predicate="has_pet", object="Rex", sources=(episodes[0].id,))
            return Extraction(claims=(claim,), usage=Usage(input=70, output=7))

    async with open_memory("inmemory", embedder="hash", extractor=Mine(), config=LATER) as memory:
        await tell(memory, "My beast is Rex")
        await memory.metabolize(**ANN)
        assert (memory.usage, memory.bill.cost) == (Usage(input=70, output=7), None)
        assert await known(memory) == ["Rex"]


# -- forgetting -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["turn", "session", "user"])
@pytest.mark.parametrize("how", ["background", "metabolize"])
async def test_forget_breaks_off_what_is_being_read_and_its_result_is_dropped(
    tmp_path: Path, what: str, how: str
) -> None:
    model = Watched(held=True)
    async with opened(model, f"sqlite:{tmp_path / 'm.db'}", NOW if how == "background" else LATER) as memory:
        async with create_task_group() as tasks:
            gone = (await memory.remember("My beast is Rex", session_id="s", **ANN)).kept[0].id
            await tell(memory, "My beast is Tom", session_id="t")
            if how == "metabolize":
                tasks.start_soon(lambda: memory.metabolize(**ANN))
            await model.reads.wait()
            ids, session = ([gone], {}) if what == "turn" else ([], {"session_id": "s"} if what == "session" else {})
            await memory.forget(*ids, **ANN, **session)
            assert model.cancelled.is_set()
            model.may_answer.set()
        await memory.metabolize(**ANN)
        assert await known(memory) == ([] if what == "user" else ["Tom"])
        assert (await memory.stats(**ANN))["jobs"] == 0
    asked = [said["text"] for request in model.requests[1:] for said in shown(request)]
    assert "My beast is Rex" not in asked, "it is not sent again"


# -- closing --------------------------------------------------------------------------------------------------


async def test_closing_reads_what_waits() -> None:
    model = Watched()
    memory = opened(model)
    await tell(memory, "My beast is Rex", "My beast is Tom")
    await memory.aclose()
    await memory.aclose()
    assert [len(shown(request)) for request in model.requests] == [2]
    assert memory.bill.requests == 1


async def test_closing_reads_no_more_than_so_many_lots_and_the_rest_is_kept(tmp_path: Path) -> None:
    where = f"sqlite:{tmp_path / 'm.db'}"
    model, turns = Watched(), BATCH * (LAST_BATCHES + 1)
    async with opened(model, where, MemoryConfig(learn_turns=10_000, learn_seconds=3600)) as memory:
        for n in range(turns):
            await memory.remember(f"My beast is n{n}", **ANN)
    assert len(model.requests) == LAST_BATCHES
    async with opened(model, where) as memory:
        await memory.metabolize(**ANN)
        assert len(await known(memory)) == turns
    assert len(model.requests) == LAST_BATCHES + 1


async def test_closing_waits_for_what_is_being_read() -> None:
    model = Watched(held=True)
    memory = opened(model, config=NOW)
    await tell(memory, "My beast is Rex")
    await model.reads.wait()
    async with create_task_group() as tasks:
        tasks.start_soon(memory.aclose)
        model.may_answer.set()
    assert not model.cancelled.is_set()
    assert (len(model.requests), memory.bill.requests) == (1, 1)
    assert memory.usage.output > 0


async def test_closing_that_is_broken_off_leaves_the_job_for_the_next_start(tmp_path: Path) -> None:
    where = f"sqlite:{tmp_path / 'm.db'}"
    model = Watched(held=True)
    memory = opened(model, where)
    await tell(memory, "My beast is Rex")
    async with create_task_group() as tasks:
        tasks.start_soon(memory.aclose)
        await model.reads.wait()
        tasks.cancel_scope.cancel()
    assert model.cancelled.is_set()
    model.may_answer.set()
    async with opened(model, where) as memory:
        await memory.metabolize(**ANN)
        assert await known(memory) == ["Rex"], "at once: nobody has to wait for a lease to run out"


def test_a_program_that_ends_without_closing_leaves_the_job_for_the_next_start(tmp_path: Path) -> None:
    where = f"sqlite:{tmp_path / 'm.db'}"

    async def first() -> None:
        model = Watched(held=True)
        await tell(opened(model, where, NOW), "My beast is Rex")
        await model.reads.wait()

    async def second() -> list[str]:
        async with opened(Watched(), where) as memory:
            await memory.metabolize(**ANN)
            return await known(memory)

    asyncio.run(first())
    assert asyncio.run(second()) == ["Rex"]


# -- failures -------------------------------------------------------------------------------------------------


async def test_a_reply_that_is_not_json_is_a_job_that_failed_with_a_reason_that_repeats_nothing() -> None:
    clock = FakeClock()
    model = Watched(lambda _: "I am sorry, but Rex is a secret")
    async with opened(model, clock=clock) as memory:
        await tell(memory, "My beast is Rex")
        for _ in range(MAX_ATTEMPTS):
            done = await memory.metabolize(**ANN)
            assert "no JSON could be read in 1 of the model's replies" in done.failed[0]
            clock.advance(timedelta(hours=1))
        (letter,) = await memory.store.dead_letters(Scope("default", "ann"))
        assert (letter.job.kind, "Rex" in letter.reason) == ("learn", False)
        assert letter.reason.startswith("BadResponse: ")
        stats = await memory.stats(**ANN)
        assert (stats["failed"], stats["jobs"]) == (1, 0)
        assert memory.bill.requests == MAX_ATTEMPTS


async def test_of_turns_that_failed_together_each_is_tried_alone() -> None:
    clock = FakeClock()
    model = Watched(lambda request: "No." if "poison" in str(shown(request)) else pets(request))
    async with opened(model, clock=clock) as memory:
        await tell(memory, "My beast is Rex", "My beast is poison", "My beast is Tom")
        assert len((await memory.metabolize(**ANN)).failed) == 1
        clock.advance(timedelta(minutes=1))
        await memory.metabolize(**ANN)
        assert await known(memory) == ["Rex", "Tom"]
        clock.advance(timedelta(minutes=1))
        await memory.metabolize(**ANN)
        assert (await memory.stats(**ANN))["failed"] == 1
    assert [len(shown(request)) for request in model.requests] == [3, 1, 1, 1, 1]


async def test_a_model_that_never_answers_in_json_is_not_asked_for_ever() -> None:
    model = Watched(lambda _: "What a lovely beast!")
    config = MemoryConfig(learn_turns=1, learn_seconds=0)
    async with opened(model, config=config) as memory:
        for n in range(20):
            await tell(memory, f"My beast is n{n}", user_id=f"u{n}")
            await memory.metabolize(user_id=f"u{n}", learn=False)
        done = await memory.metabolize()
        assert "no more turns are read until the next start" in done.failed[-1]
    assert UNREAD_IN_A_ROW < len(model.requests) <= UNREAD_IN_A_ROW + AT_ONCE + 1, "and once when it was asked for"


@pytest.mark.parametrize("error", [ProviderUnavailable("away"), RateLimited("slow down", retry_after=40.0)])
async def test_a_provider_that_is_away_is_asked_again_later_and_nothing_is_given_up(error: Exception) -> None:
    clock = FakeClock()
    down = True
    model = Watched(lambda request: error if down else pets(request))
    async with opened(model, clock=clock) as memory:
        await tell(memory, "My beast is Rex")
        for _ in range(MAX_ATTEMPTS + 2):
            assert len((await memory.metabolize(**ANN)).failed) == 1
            assert (await memory.metabolize(**ANN)).failed == (), "not before its time"
            clock.advance(timedelta(hours=1))
        down = False
        await memory.metabolize(**ANN)
        assert await known(memory) == ["Rex"]
        assert (await memory.stats(**ANN))["failed"] == 0


async def test_a_failure_in_the_background_is_told() -> None:
    model = Watched(lambda _: ProviderUnavailable("the provider is away"))
    async with opened(model, config=NOW) as memory:
        await tell(memory, "My beast is Rex")
        await model.reads.wait()
        await memory.metabolize(**ANN)
        report = memory.learned(**ANN)
        assert report is not None
        assert report.failed == "the provider is away"
        assert "it failed: the provider is away" in str(report)
        assert memory.bill.requests == 1


async def test_facts_by_a_model_that_is_not_there_wait_and_say_so(tmp_path: Path) -> None:
    where = f"sqlite:{tmp_path / 'm.db'}"
    async with open_memory(where, embedder="hash", facts="model") as memory:
        await tell(memory, "I live in Oslo. My beast is Rex")
        done = await memory.metabolize(**ANN)
        assert done.notes[-1].startswith("1 turn(s) wait for a model")
        assert [fact.object for fact in await memory.facts(predicate="lives_in", **ANN)] == ["Oslo"]
    async with opened(Watched(), where) as memory:
        await memory.metabolize(**ANN)
        assert await known(memory) == ["Rex"]


# -- how it is asked for --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"facts": "none"}, "facts='none' is not known; use 'model', 'rules', None or 'auto'"),
        ({"facts": "rules", "with_facts": False}, "contradict each other"),
        ({"facts": "rules", "extractor": LlmExtractor(ScriptedModel())}, "leaves the extractor nothing to do"),
        ({"with_facts": False, "extractor": LlmExtractor(ScriptedModel())}, "leaves the extractor nothing to do"),
    ],
)
def test_what_contradicts_itself_is_refused(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_memory("inmemory", **options)


@pytest.mark.parametrize("wrong", [{"learn_turns": 0}, {"learn_seconds": -1.0}, {"learn_seconds": float("nan")}])
def test_a_wait_that_means_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="give 1 turn or more, and 0 seconds or more"):
        MemoryConfig(**wrong)


@pytest.mark.parametrize("options", [{"facts": None}, {"with_facts": False}])
async def test_without_facts_nothing_is_learnt_in_any_way_of_running_jobs(tmp_path: Path, options: Any) -> None:
    where = f"sqlite:{tmp_path / 'm.db'}"
    async with open_memory(where, embedder="hash", **options) as memory, opened(Watched(), where) as worker:
        await tell(memory, "I live in Oslo.")
        await memory.metabolize(**ANN)
        await tell(memory, "I live in Rome.")
        await worker.metabolize()
        assert await memory.facts(history=True, **ANN) == ()
        assert (await memory.stats(**ANN))["jobs"] == 0


async def test_what_was_learnt_of_a_forgotten_user_is_not_told_in_its_words() -> None:
    fact = {"sources": ["e1"], "subject": "user", "predicate": "instruction", "object": "Always answer in German"}
    model = Watched(lambda _: json.dumps({"facts": [fact]}), held=True)
    async with opened(model, config=NOW) as memory:
        await memory.instruct("Always answer in French", **ANN)
        await tell(memory, "Always answer in German")
        await model.reads.wait()
        model.may_answer.set()
        await memory.metabolize(**ANN)
        await memory.forget(**ANN)
        report = memory.learned(**ANN)
        assert report is not None
        assert (report.bill.requests, report.notes) == (1, ())
