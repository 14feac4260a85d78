"""`loom session`, through the installed command, on conversations that an agent saved."""

import json
import os

import pytest

from loom import Agent
from loom.testing import ScriptedModel
from tests.commands import LOOM, run_loom

QUESTIONS = ("Where is the harbour?", "Who keeps the boat?", "What did we decide about the sails?")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file with one conversation of three turns; nobody changes it."""
    folder = tmp_path_factory.mktemp("saved")
    model = ScriptedModel(lambda request: "It lies behind the old market, by the sea. " * 12)
    agent = Agent("Be brief.", model=model, memory=f"sqlite:{folder}/bot.db")
    for question in QUESTIONS:
        agent.run_sync(question, user_id="ann", session_id="trip")
    agent.close()
    return folder / "bot.db"


@pytest.fixture
def store(saved, tmp_path):
    """A copy of it."""
    copy = tmp_path / "bot.db"
    copy.write_bytes(saved.read_bytes())
    return copy


@pytest.fixture
def loom(store):
    def run(command, *args, code=0, user="ann"):
        line = [LOOM, "session", command, *map(str, args), "--store", f"sqlite:{store}", "--user", user]
        done = run_loom(line)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def data(done):
    return json.loads(done.stdout)


def test_list(loom):
    assert "trip" in loom("list").stdout
    (found,) = data(loom("list", "--json"))
    assert (found["session"], found["last"]["turn"], found["checkpoints"]) == ("trip", 3, 3)
    assert "has no conversations here" in loom("list", user="ben").stdout


def test_show(loom):
    shown = loom("show", "trip").stdout
    assert all(question in shown for question in QUESTIONS)
    found = data(loom("show", "trip", "--at", 1, "--json"))
    assert [message["role"] for message in found["messages"]] == ["user", "assistant"]


def test_a_conversation_belongs_to_its_user(loom):
    for command in ("show", "export", "fork"):
        assert "user 'ben' has no conversation 'trip'" in loom(command, "trip", code=2, user="ben").stderr


def test_restore_goes_back_and_keeps_what_came_later(loom):
    assert "continues from turn 1" in loom("restore", "trip", "--at", 1).stdout
    assert data(loom("show", "trip", "--json"))["turn"] == 1
    assert data(loom("show", "trip", "--at", 3, "--json"))["turn"] == 3


def test_fork(loom):
    assert data(loom("fork", "trip", "--at", 2, "--as", "other", "--json")) == {"session": "other", "turn": 2}
    assert data(loom("show", "other", "--json"))["turn"] == 2
    assert data(loom("show", "trip", "--json"))["turn"] == 3


def test_compact_first_dry_then_for_good(loom):
    few = ["--retain", 2]
    dry = data(loom("compact", "trip", "--strategy", "truncate", *few, "--dry-run", "--json"))
    assert dry["tokens_after"] < dry["tokens_before"]
    assert dry["goes"]
    assert len(data(loom("show", "trip", "--json"))["messages"]) == 6, "a dry run changes nothing"
    assert "there are no others" in loom("compact", "trip").stdout, "all of it is within what stays"
    done = data(loom("compact", "trip", "--strategy", "truncate", *few, "--json"))
    assert done["undo"]
    assert len(data(loom("show", "trip", "--json"))["messages"]) < 6
    assert len(data(loom("show", "trip", "--all", "--json"))["messages"]) == 6, "the log keeps everything"


@pytest.mark.parametrize("at", [1, 3])
def test_a_dry_run_says_what_the_run_does(loom, at):
    loom("restore", "trip", "--at", at)
    dry, done = (data(loom("compact", "trip", "--retain", 2, *how, "--json")) for how in (["--dry-run"], []))
    assert dry["calls"] == 0
    for name in ("strategy", "tokens_before", "tokens_after"):
        assert dry[name] == done[name]


def test_ids_are_whole_in_a_narrow_terminal(loom):
    name = "a-conversation-with-a-very-long-name-" * 3
    loom("fork", "trip", "--as", name)
    assert f"{name} " in loom("list").stdout
    points = data(loom("show", "trip", "--checkpoints", "--json"))
    assert [point["turn"] for point in points] == [3, 2, 1]
    shown = loom("show", "trip", "--checkpoints").stdout
    for point in points:
        assert f"{point['id']}  {point['turn']} " in shown
        assert data(loom("show", "trip", "--at", point["id"], "--json"))["turn"] == point["turn"]


def test_what_was_chatted_is_found_without_a_word(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
    for line in (["chat", "I live in Oslo.", "--session", "trip"], ["session", "show", "trip"]):
        done = run_loom([LOOM, *line], check=True, cwd=tmp_path, env=env)
    assert "I live in Oslo." in done.stdout


def test_a_folder_is_read_and_left_as_it_is(tmp_path):
    line = [LOOM, "session", "list", "--store", f"files:{tmp_path}"]
    done = run_loom(line, check=True)
    assert "has no conversations here" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_export(loom, tmp_path):
    document = data(loom("export", "trip"))
    assert "written to" in loom("export", "trip", "-o", tmp_path / "trip.json").stdout
    assert json.loads((tmp_path / "trip.json").read_text(encoding="utf-8")) == document
    assert QUESTIONS[0] in json.dumps(document)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["show", "nowhere"], "has no conversation 'nowhere'; see `loom session list`"),
        (["show", "nowhere", "--checkpoints"], "has no conversation 'nowhere'"),
        (["show", "trip", "--at", "9"], "at '9'; see `loom session show trip --checkpoints`"),
        (["restore", "trip", "--at", "nothing"], "at 'nothing'"),
        (["compact", "trip", "--strategy", "magic"], "magic"),
        (["fork", "trip", "--as", "trip"], "trip"),
        (["show", "trip", "--at", "²"], "at '²'"),
        (["compact", "trip", "--strategy", "summarize"], "has no model"),
        (["compact", "trip", "--strategy", "summarize", "--dry-run"], "has no model"),
        (["compact", "trip", "--model", "foo"], "'foo' names no model; write provider:model"),
        (["compact", "trip", "--model", "nope:bar", "--dry-run"], "'nope:bar' names no model"),
        (["export", "trip", "-o", "./nowhere/trip.json"], "cannot be written"),
    ],
)
def test_a_mistake_ends_in_one_line_and_changes_nothing(loom, store, args, message):
    before = data(loom("show", "trip", "--json"))
    done = loom(*args, code=2)
    assert done.stderr.startswith("loom: ")
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert data(loom("show", "trip", "--json")) == before


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("sqlite:./nowhere.db", "there is nothing at './nowhere.db'"),
        ("carrier-pigeon:coop", "there is no checkpoint store 'carrier-pigeon'"),
        ("sqlite:", "sqlite needs an address"),
    ],
)
def test_a_store_that_is_not_there(tmp_path, store, message):
    line = [LOOM, "session", "list", "--store", store]
    done = run_loom(line, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("loom: ")
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_a_database(tmp_path):
    (tmp_path / "notes.db").write_text("not a database, just notes\n" * 50)
    line = [LOOM, "session", "list", "--store", "sqlite:./notes.db"]
    done = run_loom(line, cwd=tmp_path)
    assert done.returncode == 2
    assert "is not a sound SQLite file" in done.stderr


def test_requests(loom, store):
    shown = loom("requests", "trip").stdout
    assert [line.split()[0] for line in shown.splitlines()] == ["turn", "1", "2", "3"]
    found = data(loom("requests", "trip", "--json"))
    assert [(one["turn"], one["purpose"], one["error"]) for one in found] == [(n, "answer", None) for n in (1, 2, 3)]
    last = data(loom("list", "--json"))[0]["last"]
    assert sum(one["usage"]["input"] for one in found) == last["usage"]["input"]
    assert found[0]["cache_read"] is None, "not reported is not zero"
    assert len(data(loom("requests", "trip", "--at", "2", "--json"))) == 2
    assert "no conversation 'nothing'" in loom("requests", "nothing", code=2).stderr
    by_url = run_loom([LOOM, "session", "requests", "trip", "--url", f"sqlite:{store}", "--user", "ann", "--json"])
    assert data(by_url) == found
