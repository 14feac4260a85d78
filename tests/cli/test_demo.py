"""`loom demo`, through the installed command: what it shows, and that it shows the same again."""

import json
import os

import pytest

from tests.commands import LOOM, run_loom


def demo(*options, **environ):
    """What the command prints; no key, whatever the machine has."""
    keys = {name for name in os.environ if name.endswith("_API_KEY")}
    env = {name: value for name, value in os.environ.items() if name not in keys} | {"COLUMNS": "80", **environ}
    done = run_loom([LOOM, "demo", *options], env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def told():
    return demo()


@pytest.fixture(scope="module")
def scenes():
    return {scene["title"]: scene["data"] for scene in json.loads(demo("--json"))}


def test_it_explains_every_scene(told, scenes):
    for number, title in enumerate(scenes, 1):
        assert f"{number}. {title}" in told
    assert len(scenes) == 11


def test_it_says_that_nothing_is_sent(told):
    words = " ".join(told.split())
    assert "The answers are scripted, so no key is needed" in words
    assert "predicted, because nothing was sent" in words


def test_it_is_the_same_again(told, scenes):
    assert demo() == told
    assert {scene["title"]: scene["data"] for scene in json.loads(demo("--json"))} == scenes


def test_it_asks_no_provider_even_where_there_is_a_key(told):
    assert demo(OPENAI_API_KEY="nobody", LOOM_MODEL="openai:gpt-5.1") == told


def test_two_users_and_what_each_turn_cost(scenes):
    turns = scenes["One agent, two users, several sessions"]
    assert {turn["user"] for turn in turns} == {"alice", "bob"}
    assert [turn["usage"]["cache_read"] > 0 for turn in turns] == [False, True, True, True, False]
    assert all(turn["usd"] > 0 for turn in turns)
    assert turns[1]["usd"] < turns[0]["usd"] / 5, "what is read costs a tenth"


def test_a_fact_has_two_time_axes(scenes):
    found = scenes["A fact changes, and its history stays"]
    assert list(found["asked"].values()) == ["Berlin", "Tokyo", "Tokyo", "Oslo"]
    retired = [fact for fact in found["facts"] if fact["believed until"] != "-"]
    assert [(fact["fact"], fact["true until"]) for fact in retired] == [("user lives_in Tokyo", "-")]


def test_recall_says_why_and_keeps_users_apart(scenes):
    found = scenes["Recall says why"]
    assert found["hits"][0]["text"] == "My sister Anna keeps a sailing boat in Yokohama."
    assert {"bm25", "dense"} <= set(found["hits"][0]["why"])
    assert "user lives in: Berlin" in found["shown"]
    assert found["others"]
    assert not any(word in text for text in found["others"] for word in ("Anna", "Alice", "boat", "Berlin"))


def test_a_compaction_says_what_it_saves_and_is_undone(scenes):
    found = scenes["A long conversation is compacted, and restored"]
    assert found["tokens"]["after"] < found["tokens"]["before"]
    assert found["messages"]["after"] < found["messages"]["before"] == found["messages"]["in_log"]
    assert found["plan"]["saves"] > 0
    assert found["summary_usd"] > 0
    assert found["undone"] is True


def test_a_session_is_restored_and_forked(scenes):
    found = scenes["Every turn is saved: restore, go back, fork"]
    assert found["restored"]["turns"] == 5
    assert found["forked"]["turns"] == found["forked"]["at"] + 1
    assert found["restored"]["last"] != found["forked"]["last"]


def test_the_bill_adds_up(scenes):
    *rows, total = scenes["What each cost"]
    assert total["session"] == "all"
    assert sum(row["usd"] for row in rows) == pytest.approx(total["usd"])
    assert sum(row["usage"]["input"] for row in rows) == total["usage"]["input"]
    assert total["usd"] < total["usd_uncached"]


def test_the_scenes_of_a_context(scenes):
    edit, pinned = scenes["One edit, and what it costs"], scenes["The same edit with FileEntry(..., pin=True)"]
    assert edit["explanation"]["cause"] == "block_edited"
    assert edit["plan"]["read"] == 0
    assert pinned["explanation"]["cause"] == "nothing_moved"
    assert pinned["plan"]["read"] > 4000
    others = scenes["The same window, other providers"]
    assert [row["provider"] for row in others] == ["anthropic", "openai", "gemini", "vllm"]
