"""Misspelt URLs, providers, options and methods: each error names what was meant."""

from __future__ import annotations

from typing import Any

import pytest

from loom import (
    Agent,
    Context,
    Memory,
    Session,
    open_checkpoints,
    open_memory,
    open_memory_sync,
    open_model,
    plan,
)
from loom.engine.open import check_name
from loom.errors import UsageError
from loom.testing import ScriptedModel


@pytest.mark.parametrize("opens", [open_memory, open_checkpoints])
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///x.db", "write sqlite:./x.db for a file in this folder, or sqlite:/x.db for an absolute path"),
        ("sqlite:////data/x.db", "write sqlite:/data/x.db"),
        ("SQLite:///C:/data/x.db", "write sqlite:C:/data/x.db"),
        ("sqlite:///", "write sqlite:./memory.db"),
        ("sqlit:./x.db", "did you mean 'sqlite'?"),
        ("sqlite3:./x.db", "did you mean 'sqlite'?"),
        ("file:./x.db", "did you mean 'sqlite'?"),
        ("postgress://u:hunter2@h/x", "did you mean 'postgres'?"),
        ("postgresql+psycopg://u:hunter2@h/x", "did you mean 'postgresql'?"),
        ("pg://u:hunter2@h/x", "did you mean 'postgres'?"),
        ("memory://", "did you mean 'inmemory'?"),
        ("C:\\Users\\me\\bot.db", "for a file write sqlite:C:\\Users\\me\\bot.db"),
        (".\\bot.db", "for a file write sqlite:.\\bot.db"),
        ("./bot.db", "for a file write sqlite:./bot.db"),
    ],
)
def test_a_url_that_is_almost_right_is_corrected(opens: Any, url: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        opens(url)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite:C:\\data\\x.db", "sqlite://C:/data/x.db"])
def test_a_path_of_windows_makes_no_file_of_that_name_here(url: str) -> None:
    with pytest.raises(UsageError, match="is a path of Windows"):
        open_memory(url)


def test_a_url_that_is_nothing_alike_gets_no_guess() -> None:
    with pytest.raises(UsageError) as caught:
        open_memory("carrier-pigeon:coop")
    assert "did you mean" not in str(caught.value)


def test_options_of_a_url_are_corrected_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="did you mean 'primary'"):
        open_memory("composite:?primry=sqlite:./x.db")
    with pytest.raises(UsageError) as caught:
        open_memory("composite:?primary=postgres://u:a&hunter2@h/x")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("antropic:claude-sonnet-5", "did you mean 'anthropic:claude-sonnet-5'?"),
        ("anthropic:", "name one of its models: anthropic:MODEL"),
        ("claude-sonnet-5", "did you mean 'anthropic:claude-sonnet-5'?"),
        ("gpt-5", "did you mean 'openai:gpt-5'?"),
        ("anthropic/claude-sonnet-5", "did you mean 'anthropic:claude-sonnet-5'?"),
        ("google:gemini-3", "did you mean 'gemini:gemini-3'?"),
        ("openai", "name one of its models: openai:MODEL"),
        ("./models/qwen.gguf", "did you mean 'local:./models/qwen.gguf'?"),
    ],
)
def test_a_model_that_is_almost_right_is_corrected(model: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_model(model)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: open_model("anthropic:claude-sonnet-5", apikey="x"), "has no option apikey.*did you mean 'api_key'"),
        (lambda: open_model("local:x.gguf", context=5), "has no option context; .*did you mean 'context_window'"),
        (lambda: open_model("offline:memory", threads=2), "offline:memory has no options"),
        (lambda: open_memory("inmemory", embedder="statik"), "did you mean 'static'"),
        (lambda: open_memory({"backend": "sqlite", "pth": "x.db"}), "has no option pth.*did you mean 'path'"),
        (
            lambda: Session(model=ScriptedModel(["a"]), config={"max_step": 3}),
            "has no setting max_step.*did you mean 'max_steps'",
        ),
    ],
)
def test_an_option_that_is_almost_right_is_corrected(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("add", r"in Loom it is remember\(text, user_id=...\)"),
        ("search", r"in Loom it is recall\(question, user_id=...\)"),
        ("get_all", r"in Loom it is list\(user_id=...\)"),
        ("delete_all", r"in Loom it is forget\(id, user_id=...\)"),
        ("clear", r"in Loom it is forget\(user_id=...\)"),
        ("recal", "did you mean 'recall'"),
        ("xyzzy", "has no attribute 'xyzzy'$"),
    ],
)
def test_a_method_of_another_library_says_how_it_is_called_here(name: str, says: str) -> None:
    with open_memory_sync("inmemory") as memory, pytest.raises(AttributeError, match=says):
        getattr(memory, name)
    with pytest.raises(AttributeError, match=says):
        getattr(open_memory("inmemory"), name)


def test_a_memory_that_is_made_of_a_url_says_how_to_open_one() -> None:
    for given in ("sqlite:./x.db", {"backend": "sqlite", "path": "x.db"}):
        with pytest.raises(UsageError, match=r"write Memory.open\(URL\), or open_memory\(URL\)"):
            Memory(given)  # type: ignore[arg-type]


def test_the_help_of_a_blocking_method_is_that_of_the_async_one() -> None:
    with open_memory_sync("inmemory") as memory:
        assert memory.recall.__doc__ is not None
        assert "where: a further filter" in memory.recall.__doc__
        assert "`for record in memory.list(...)`" in str(memory.list.__doc__)
        assert str(memory.recall.__doc__).startswith("Search a user's memory")


def test_an_agent_says_so_too_and_what_is_there_is_there() -> None:
    with Agent(memory=None) as agent:
        with pytest.raises(AttributeError, match=r"in Loom it is run_sync\(text"):
            agent.invoke("Hi.")  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match="did you mean 'run_sync'"):
            agent.runsync("Hi.")  # type: ignore[attr-defined]
        assert not hasattr(agent, "invoke")
        with pytest.raises(AttributeError, match=r"in Loom it is memory.export\(user_id=...\)"):
            agent.export  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(AttributeError, match=r"'Result' object has no attribute 'content'; in Loom it is text"):
            agent.run_sync("Hi.").content  # type: ignore[attr-defined]  # noqa: B018
        assert callable(agent.blocking.run)


def test_a_path_and_a_mapping_without_a_backend_say_how_to_name_a_file(tmp_path: Any) -> None:
    given: Any = tmp_path / "x.db"
    with pytest.raises(UsageError, match=r"for a file write 'sqlite:.*x\.db'"):
        open_memory(given)
    with pytest.raises(UsageError, match=r"no backend; write {'backend': 'sqlite', 'path': 'x.db'}"):
        Agent(memory={"path": "x.db"})


def test_a_memory_that_is_made_as_elsewhere_says_how_to_open_one() -> None:
    with pytest.raises(UsageError, match=r"and none is given; write Memory\.open\(URL\), or open_memory\(URL\)"):
        Memory()
    memory: Any = open_memory("inmemory")
    with pytest.raises(UsageError, match=r"use open_memory_sync\(\) for a plain `with`"), memory:
        pass


@pytest.mark.parametrize("approve", [True, "always"])
def test_an_approval_that_is_not_a_function_is_refused(approve: Any) -> None:
    for make in (Agent, Session):
        with pytest.raises(UsageError, match="is not a function; give one that takes a ToolRequest"):
            make(model=ScriptedModel(["Hi."]), approve=approve)


def test_a_choice_that_is_almost_right_is_corrected() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'summarize'\?"):
        Agent(compaction={"strategy": "sumarize"})
    with pytest.raises(UsageError, match=r"did you mean 'anthropic'\?"):
        plan(Context("a").compile(), "antropic", "claude-sonnet-5")


def test_the_name_that_was_meant_is_said_last() -> None:
    with pytest.raises(UsageError, match=r"; did you mean 'anthropic:claude-sonnet-5'\?$"):
        check_name("claude-sonnet-5")


def test_a_layer_that_is_written_as_text_is_named_whole() -> None:
    with open_memory_sync("inmemory") as memory:
        memory.remember("I like tea.", user_id="ann")
        for call in (
            lambda: memory.recall("tea", user_id="ann", layers="L1"),  # type: ignore[arg-type]
            lambda: [*memory.list(user_id="ann", layer="L1")],  # type: ignore[arg-type]
        ):
            with pytest.raises(UsageError, match=r"there is no layer 'L1'; use Layer.L1 to Layer.L4, or 1 to 4"):
                call()
        assert len(memory.recall("tea", user_id="ann", layers=1)) == 1  # type: ignore[arg-type]


def test_the_config_of_a_memory_that_is_a_mapping_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the config of a memory is \{'standing_tokens': 4\}; give a MemoryConfig"):
        open_memory_sync("inmemory", config={"standing_tokens": 4})  # type: ignore[arg-type]


def test_the_path_of_an_export_is_not_its_lines() -> None:
    with open_memory_sync("inmemory") as memory, pytest.raises(UsageError, match="give an open file"):
        memory.import_("export.jsonl", user_id="ann")


@pytest.mark.parametrize("made", [Agent, Session])
def test_skills_that_are_not_loaded_are_refused(made: Any) -> None:
    with pytest.raises(UsageError, match=r"skills='./skills' is a path; write skills=load_skills\('./skills'\)"):
        made(model=ScriptedModel(["Hi."]), skills="./skills")
    with pytest.raises(UsageError, match=r"'review' is not a skill; give Skill\(...\), or load_skills\(FOLDER\)"):
        made(model=ScriptedModel(["Hi."]), skills=["review"])
