"""Who opens closes; a memory means the same as a URL, a mapping and an object; and agents never see each other's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from loom import Agent, MemoryConfig, open_memory
from loom.api import AgentConfig, LoomApp
from loom.core.scope import Scope
from loom.engine.open import open_checkpoints
from loom.errors import LoomError, UsageError
from loom.memory.memory import Memory
from loom.protocols.model import ModelRequest
from loom.stores.inmemory import InMemoryStore
from loom.testing import ScriptedModel
from loom.testing.wire import ChatWire, Said, serve

pytestmark = pytest.mark.anyio
HOW = ["url", "mapping", "memory"]


def shown(model: ScriptedModel) -> str:
    """All that was ever sent."""
    return "\n".join(str([*request.system, *(m.text for m in request.messages)]) for request in model.requests)


class Watched(ScriptedModel):
    """Answers anything, and says when it is closed."""

    def __init__(self, name: str = "scripted:model") -> None:
        super().__init__(self.answer, name=name)
        self.closed = 0

    @staticmethod
    def answer(request: ModelRequest) -> str:
        return '{"facts": []}' if request.settings.output_schema else f"{len(request.messages)} messages"

    async def aclose(self) -> None:
        self.closed += 1


class Places:
    """One place, named in each way; an object that was opened is closed at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened = AsyncExitStack()

    async def named(self, how: str, **options: Any) -> str | Mapping[str, Any] | Memory:
        options = {"embedder": "hash", **options}
        if how == "url":
            return self.url
        if how == "mapping":
            backend, _, path = self.url.partition(":")
            return {"backend": backend, **({"path": path} if path else {}), **options}
        return await self._opened.enter_async_context(open_memory(self.url, **options))

    async def aclose(self) -> None:
        await self._opened.aclose()


@pytest.fixture(params=["inmemory", "sqlite"])
async def places(request: Any, tmp_path: Path) -> AsyncIterator[Places]:
    made = Places("inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path / 'bot.db'}")
    yield made
    await made.aclose()


# -- who opens closes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", ["rules", "model"])
async def test_what_was_given_as_an_object_stays_open(tmp_path: Path, facts: Any) -> None:
    model = Watched()
    store = open_checkpoints(f"sqlite:{tmp_path / 's.db'}")
    async with open_memory(f"sqlite:{tmp_path / 'm.db'}", embedder="hash") as memory:
        for n in range(2):
            async with Agent(model=model, memory=memory, checkpoints=store, facts=facts) as agent:
                done = await agent.run(f"I live in town {n}.", user_id="ann", session_id="s")
                assert done.turn == n + 1
            with pytest.raises(UsageError, match="this agent is closed"):
                await agent.run("Hi.", user_id="ann")
            assert len(await memory.recall("town", user_id="ann")) > n
            assert await store.load(Scope("default", "ann", "s")) is not None
    assert model.closed == 0
    await store.aclose()


def answered(body: dict[str, Any]) -> Said:
    return Said.text('{"facts": []}' if "<episodes>" in str(body) else "Noted.")


async def test_what_was_named_is_closed_after_it_has_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(ChatWire(), default=answered) as service:
        monkeypatch.setenv("LOOM_BASE_URL", service.url)
        agent = Agent(model="compatible:qwen3", memory=f"sqlite:{tmp_path / 'm.db'}")
        await agent.run("I live in Oslo.", user_id="ann", session_id="s")
        model: Any = agent.model
        assert model._client.get(None) is not None
        await agent.aclose()
        assert model._client.get(None) is None
        assert len(service.requests) == agent.bill.requests == 2
    assert agent.memory
    with pytest.raises(LoomError, match="closed"):
        await agent.memory.recall("Where do I live?", user_id="ann")


async def test_closing_a_memory_ends_the_learning_of_every_agent_on_it() -> None:
    model = Watched()
    memory = open_memory("inmemory", embedder="hash", config=MemoryConfig(learn_seconds=3600))
    agents = [Agent(model=model, memory=memory, facts="model", namespace=name) for name in ("one", "two")]
    for agent in agents:
        await agent.run("I live in Oslo.", user_id="ann")
    await memory.aclose()
    assert [agent.bill.requests for agent in agents] == [2, 2]
    for agent in agents:
        await agent.aclose()
    assert model.closed == 0


async def test_an_application_leaves_open_what_it_was_given() -> None:
    model = Watched()
    async with open_memory("inmemory", embedder="hash") as memory:
        async with LoomApp(model=model, url=memory) as app:
            agent = app.create_agent(AgentConfig(name="a", memory=MemoryConfig()))
            await agent.run("I live in Oslo.", user_id="ann")
        assert (await memory.stats(user_id="ann"))["L1"] == 0, "it is the agent's namespace that knows"
    assert model.closed == 0


# -- one meaning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
async def test_facts_are_found_by_the_model_of_the_agent_however_the_memory_is_named(places: Places, how: str) -> None:
    model = Watched("anthropic:claude-sonnet-5")
    async with Agent(model=model, memory=await places.named(how), facts="model") as agent:
        done = await agent.run("I live in Oslo.", user_id="ann")
        assert done.notes == ()
    assert sum(request.settings.output_schema is not None for request in model.requests) == 1
    assert agent.bill.requests == len(model.requests) == 2


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("mode", ["auto", "rules", "none"])
async def test_facts_and_notes_are_the_same_however_the_memory_is_named(places: Places, how: str, mode: str) -> None:
    model = Watched()
    facts: Any = None if mode == "none" else mode
    async with Agent(model=model, memory=await places.named(how), facts=facts) as agent:
        done = await agent.run("I live in Oslo.", user_id="ann")
        assert agent.memory
        assert bool(await agent.memory.facts(user_id="ann")) == (mode != "none")
    told = {
        "none": "no facts are extracted from what is said: facts=None",
        "auto": "facts are extracted with rules: scripted:model is not a language model",
    }
    assert done.notes == (told.get(mode, told["auto"]),)
    assert len(model.requests) == 1


@pytest.mark.parametrize("how", ["mapping", "memory"])
@pytest.mark.parametrize("wanted", ["rules", None])
async def test_what_the_memory_says_of_facts_holds_unless_the_agent_says_otherwise(
    places: Places, how: str, wanted: Any
) -> None:
    model = Watched("anthropic:claude-sonnet-5")
    memory = await places.named(how, facts=wanted)
    async with Agent(model=model, memory=memory) as agent:
        assert agent.memory
        assert agent.memory.facts_mode == wanted
        await agent.run("I live in Oslo.", user_id="ann")
        assert bool(await agent.memory.facts(user_id="ann")) == (wanted == "rules")
    async with Agent(model=model, memory=await places.named(how, facts=wanted), facts="model") as agent:
        assert agent.memory
        await agent.run("I live in Rome.", user_id="bob")
        assert [fact.object for fact in await agent.memory.facts(user_id="bob")] == ["Rome"]
    assert sum(request.settings.output_schema is not None for request in model.requests) == 1


@pytest.mark.parametrize("how", HOW)
async def test_sessions_are_saved_beside_the_memory_however_it_is_named(tmp_path: Path, how: str) -> None:
    places = Places(f"sqlite:{tmp_path / 'bot.db'}")
    for turn in (1, 2):
        async with Agent(model=Watched(), memory=await places.named(how)) as agent:
            assert (await agent.run("Hi.", user_id="ann", session_id="s")).turn == turn
        await places.aclose()


async def test_of_a_store_nobody_knows_where_it_is_and_the_agent_says_so() -> None:
    async with open_memory(InMemoryStore(), embedder="hash") as memory:
        agent = Agent(model=Watched(), memory=memory)
        assert any("conversations are kept in this process only" in note for note in agent.notes)
        assert not any(
            "kept in this process" in n for n in Agent(model=Watched(), memory=memory, checkpoints="inmemory").notes
        )


@pytest.mark.parametrize("how", ["mapping", "memory"])
async def test_the_namespace_of_the_memory_is_the_agents_and_an_explicit_one_wins(places: Places, how: str) -> None:
    async with Agent(model=Watched(), memory=await places.named(how, namespace="shop")) as agent:
        assert agent.memory
        assert agent.memory.namespace == "shop"
        assert (await agent.session(user_id="ann")).scope.namespace == "shop"
    async with Agent(model=Watched(), memory=await places.named(how, namespace="shop"), namespace="bank") as agent:
        assert agent.memory
        assert agent.memory.namespace == "bank"
        assert (await agent.session(user_id="ann")).scope.namespace == "bank"


async def test_of_an_open_memory_a_view_is_opened_where_something_else_is_wanted() -> None:
    async with open_memory("inmemory", embedder="hash") as memory:
        assert open_memory(memory) is memory
        async with open_memory(memory, namespace="shop") as shop:
            await shop.remember("The shoes are size 39.", user_id="ann")
            assert len(await memory.recall("shoes", user_id="ann")) == 0
        assert len(await shop.recall("shoes", user_id="ann")) == 1, "the store is still open"
        with pytest.raises(UsageError, match="keeps its embedder"):
            open_memory(memory, embedder="hash")


# -- agents of one application --------------------------------------------------------------------------------


async def tell_everything(agent: Agent) -> None:
    """Leave something in every part of a memory: turns, facts, wishes, blocks, and a conversation."""
    assert agent.memory
    await agent.run("My diagnosis is gout. I live in Goutville. Never mention gout.", user_id="ann", session_id="s")
    await agent.memory.set_block("case", "gout", user_id="ann")
    await agent.memory.assert_fact("user", "illness", "gout", user_id="ann")
    await agent.memory.instruct("Always answer gout first.", user_id="ann")


async def see_nothing(agent: Agent, model: ScriptedModel) -> None:
    assert agent.memory
    done = await agent.run("What is my diagnosis? Where do I live?", user_id="ann", session_id="s")
    assert done.turn == 1
    assert "gout" not in shown(model).casefold()
    assert "gout" not in (await agent.memory.recall("gout", user_id="ann", history=True)).text.casefold()
    exported = "".join([line async for line in agent.memory.export(user_id="ann")])
    assert "gout" not in exported.casefold()


@pytest.mark.parametrize("how", [*HOW, "store"])
@pytest.mark.parametrize("namespace", [None, "clinic"])
async def test_two_agents_of_one_application_never_see_each_others(
    places: Places, how: str, namespace: str | None
) -> None:
    options = {"namespace": namespace} if namespace and how != "url" else {}
    memory: Any = await places.named("memory" if how == "store" else how, **options)
    models = {name: Watched() for name in ("doctor", "shop")}
    async with LoomApp(url=memory if how == "store" else "inmemory") as app:
        for name, model in models.items():
            layers = MemoryConfig() if how == "store" else memory
            app.create_agent(AgentConfig(name=name, model=model, memory=layers))
        await tell_everything(app.get_agent("doctor"))
        await see_nothing(app.get_agent("shop"), models["shop"])
        below = f"{namespace}/" if options else ""
        found = [agent.memory.namespace for name in models if (agent := app.get_agent(name)).memory]
        assert found == [f"{below}doctor", f"{below}shop"]
        assert "gout" in str(await app.get_agent("doctor").preview("Hi.", user_id="ann")).casefold()


def test_no_two_names_make_one_namespace() -> None:
    app = LoomApp(model=Watched())
    below = open_memory("inmemory", namespace="a", embedder="hash")
    made = [
        app.create_agent(AgentConfig(name="b", memory=below)),
        app.create_agent(AgentConfig(name="a/b", memory="inmemory")),
        app.create_agent(AgentConfig(name="a%2Fb", memory="inmemory")),
        app.create_agent(AgentConfig(name="c", memory="inmemory", options={"namespace": "mine"})),
    ]
    assert [agent.memory.namespace for agent in made if agent.memory] == ["a/b", "a%2Fb", "a%252Fb", "mine"]
