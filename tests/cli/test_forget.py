"""`loom forget`: one command erases a person."""

import json

import pytest
from typer.testing import CliRunner

from loom import Agent
from loom.cli.app import app
from loom.testing import ScriptedModel


@pytest.fixture
def loom(tmp_path):
    def run(*args, **options):
        return CliRunner().invoke(app, [*args, "--url", f"sqlite:{tmp_path}/bot.db"], **options)

    return run


def talked(tmp_path):
    with Agent(model=ScriptedModel(["Noted."] * 2), memory=f"sqlite:{tmp_path}/bot.db") as agent:
        agent.run_sync("My PIN is zebra4711.", user_id="alice", session_id="s1")
        agent.run_sync("I like tea.", user_id="bob", session_id="s1")


def test_memory_and_conversations_of_one_person_go(tmp_path, loom):
    talked(tmp_path)
    done = loom("forget", "alice", "--yes", "--json")
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert {one["store"]: one["removed"] for one in said["stores"]} == {
        "memory": {"episode": 3, "job": 1},  # two turns, the episode of the session, and that it may go on
        "sessions": {"checkpoint": 1, "entry": 3},
    }
    assert said["pending"] == []
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"zebra4711" not in left
    assert b"I like tea." in left
    assert "nothing was there" in loom("forget", "alice", "--yes").stdout


def test_it_asks_first(tmp_path, loom):
    talked(tmp_path)
    asked = loom("forget", "alice", input="n\n")
    assert asked.exit_code == 1
    assert "conversations included" in asked.stdout
    assert b"zebra4711" in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_place_that_is_not_there_is_refused(loom):
    refused = loom("forget", "alice", "--yes")
    assert refused.exit_code != 0
    assert "there is nothing at" in str(refused.exception)
