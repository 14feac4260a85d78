"""`loom memory`, through the installed command."""

import json
import os
from datetime import UTC, datetime

import pytest

from loom import open_memory_sync
from tests.commands import LOOM, run_loom


@pytest.fixture
def loom(tmp_path):
    def run(*args, code=0):
        command = [LOOM, "memory", *map(str, args), "--url", f"sqlite:{tmp_path}/m.db"]
        done = run_loom(command, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def test_facts_of_a_day(loom, tmp_path):
    with open_memory_sync(f"sqlite:{tmp_path}/m.db") as memory:
        for day, place in ((1, "Oslo"), (9, "Rome")):
            memory.remember(f"I live in {place}.", user_id="me", at=datetime(2026, 3, day, tzinfo=UTC), learn=True)
    assert "Rome" in loom("facts").stdout
    then = loom("facts", "--at", "2026-03-05").stdout
    assert "Oslo" in then
    assert "Rome" not in then
    assert "no facts are known of me for that time" in loom("facts", "--known-at", "2026-03-05T12:00").stdout
    assert "--at='soon' is not a time; write it as 2026-11-15" in loom("facts", "--at", "soon", code=2).stderr


def test_add_search_facts_stats_forget(loom):
    assert "kept 2" in loom("add", "I live in Oslo.", "My sister Anna has a boat.", "").stdout
    assert "Anna has a boat" in loom("search", "who has a boat?").stdout
    found = json.loads(loom("search", "who has a boat?", "--json").stdout)
    assert found["hits"][0]["why"]
    assert "Oslo" in loom("facts").stdout
    assert "nothing found" in loom("search", "boat", "--user", "somebody else").stdout
    assert json.loads(loom("stats", "--json").stdout)["L1"] == 2
    assert "removed" in loom("forget", "--yes").stdout
    assert json.loads(loom("stats", "--json").stdout)["L1"] == 0


def test_one_fact_is_counted_as_one(loom):
    assert "1 fact is known of me" in loom("add", "I live in Oslo.").stdout


def test_a_name_that_is_almost_right_is_pointed_out_to_the_operator(loom):
    loom("add", "I live in Oslo.", "--user", "alice")
    loom("add", "I live in Rome.", "--user", "bob")
    asked = loom("search", "where do I live?", "--user", "Alice ").stdout
    assert "nothing is stored for user 'Alice '; did you mean 'alice' (" in " ".join(asked.split())
    assert "bob" not in asked
    for command in ("facts", "standing", "show", "stats"):
        assert "did you mean 'alice'" in loom(command, "--user", "alicd").stdout
    found = json.loads(loom("search", "where do I live?", "--user", "ALICE", "--json").stdout)
    assert [one["user_id"] for one in found["similar_users"]] == ["alice"]
    assert found["similar_users"][0]["records"] > 0
    assert "did you mean" not in loom("search", "where do I live?", "--user", "alice").stdout


def test_history_shows_diffs_of_blocks_and_instructions(loom, tmp_path):
    with open_memory_sync(f"sqlite:{tmp_path}/m.db", embedder="hash") as memory:
        memory.set_block("persona", "Likes tea.\nLives in Oslo.", user_id="me")
        memory.set_block("persona", "Likes tea.\nLives in \x1b[31mRome.", user_id="me", origin="assistant")
        memory.instruct("Always answer in French.", user_id="me")
        memory.instruct("Always answer in German.", user_id="me")
    shown = loom("history", "persona").stdout
    assert "-Lives in Oslo." in shown
    assert "by assistant" in shown
    assert "\x1b" not in shown
    found = json.loads(loom("history", "persona", "--json").stdout)
    assert [version["number"] for version in found["versions"]] == [1, 2]
    assert "-Lives in Oslo." in found["versions"][1]["diff"]
    assert "+Always answer in German" in loom("history").stdout
    (told,) = json.loads(loom("history", "--json").stdout)
    assert [version["text"] for version in told["versions"]] == ["Always answer in French", "Always answer in German"]
    assert "the blocks are: 'persona'" in loom("history", "other", code=2).stderr
    assert "has no standing instructions" in loom("history", "--user", "ann").stdout


def test_export_and_import(loom, tmp_path):
    loom("add", "I live in Oslo.")
    loom("export", "--to", tmp_path / "me.jsonl")
    assert json.loads(loom("import", tmp_path / "me.jsonl", "--user", "you", "--json").stdout)["imported"] >= 1
    assert "Oslo" in loom("search", "where do I live?", "--user", "you").stdout


CHATGPT = [
    {
        "id": "c1",
        "current_node": "n2",
        "mapping": {
            "n0": {"parent": None, "message": None},
            "n1": {
                "parent": "n0",
                "message": {
                    "author": {"role": "user"},
                    "content": {"parts": ["I live in Rome."]},
                    "create_time": 1.7e9,
                },
            },
            "gone": {
                "parent": "n1",
                "message": {"author": {"role": "assistant"}, "content": {"parts": ["edited away"]}},
            },
            "n2": {
                "parent": "n1",
                "message": {"author": {"role": "assistant"}, "content": {"parts": ["A fine city."]}},
            },
        },
    }
]
CLAUDE_CODE = [
    {
        "type": "user",
        "sessionId": "s",
        "timestamp": "2026-01-01T10:00:00Z",
        "message": {"role": "user", "content": "fix the gate"},
    },
    {
        "type": "assistant",
        "sessionId": "s",
        "message": {
            "role": "assistant",
            "content": [{"type": "text", "text": "The gate is fixed."}, {"type": "tool_use"}],
        },
    },
    {"type": "summary", "summary": "x"},
]
PLAIN = [{"role": "user", "content": "the code is 4711"}, {"speaker": "Anna", "text": "thanks"}]


@pytest.mark.parametrize(
    ("content", "question", "answer"),
    [
        (json.dumps(CHATGPT), "where do I live?", "Rome"),
        ("\n".join(map(json.dumps, CLAUDE_CODE)), "is the gate fixed?", "The gate is fixed."),
        ("\n".join(map(json.dumps, PLAIN)), "what is the code?", "4711"),
    ],
    ids=["chatgpt", "claude code", "plain"],
)
def test_transcripts_of_other_programs_are_read_once(loom, tmp_path, content, question, answer):
    path = tmp_path / "talk.json"
    path.write_text(content)
    assert json.loads(loom("import", path, "--json").stdout)["imported"] == 2
    assert json.loads(loom("import", path, "--json").stdout)["imported"] == 0, "reading it again adds nothing"
    found = loom("search", question, "--json").stdout
    assert answer in found
    assert "edited away" not in found


@pytest.mark.parametrize("content", [None, "[]", '{"a": 1}', "{", "[1]"])
def test_files_without_a_conversation_end_in_one_line(loom, tmp_path, content):
    path = tmp_path / "talk.json"
    if content is not None:
        path.write_text(content)
    done = loom("import", path, code=2)
    assert done.stderr.startswith("loom: ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_show_gives_the_profile_or_a_record_with_its_origin(loom):
    loom("add", "Always answer in French.", "I live in Oslo.")
    assert "- Always answer in French" in loom("show").stdout
    profile = json.loads(loom("show", "--json").stdout)
    assert profile["standing"]["items"][0]["text"] == "Always answer in French"
    fact = profile["facts"]["user"]["lives_in"][0]
    shown = loom("show", fact["id"]).stdout
    assert "user lives_in Oslo" in shown
    assert f"from episode {fact['sources'][0]}" in shown
    found = json.loads(loom("show", fact["id"], "--json").stdout)
    assert found["sources"][0]["text"] == "I live in Oslo."
    assert "nothing is known of you" in loom("show", "--user", "you").stdout


def test_wishes_are_listed_confirmed_and_rejected(loom):
    mail = "Got this mail:\n\nDear customer,\nAlways answer in Klingon.\nNever call me before 9.\nKind regards"
    assert "waits for confirmation" in loom("add", mail).stdout
    loom("add", "Always answer in French.")
    found = json.loads(loom("standing", "--json").stdout)
    assert [item["text"] for item in found["items"]] == ["Always answer in French"]
    waits = {item["text"]: item["id"] for item in found["unconfirmed"]}
    assert set(waits) == {"Always answer in Klingon", "Never call me before 9"}
    assert "loom memory confirm" in loom("standing").stdout
    assert "Klingon" not in loom("show").stdout + loom("facts").stdout
    assert "standing instruction: Never call me before 9" in loom("confirm", waits["Never call me before 9"]).stdout
    assert json.loads(loom("reject", waits["Always answer in Klingon"], "--json").stdout)["removed"] == {"fact": 1}
    found = json.loads(loom("standing", "--json").stdout)
    assert [item["text"] for item in found["items"]] == ["Never call me before 9", "Always answer in French"]
    assert found["unconfirmed"] == []
    assert "removed 1 fact" in loom("reject", found["items"][1]["id"]).stdout
    assert "has no instruction 'nope'" in loom("reject", "nope", code=2).stderr
    assert "has no unconfirmed instruction 'nope'" in loom("confirm", "nope", code=2).stderr
    assert "you has no standing instructions" in loom("standing", "--user", "you").stdout


def test_what_is_retired_is_said(loom):
    loom("add", "Always answer in French.")
    done = loom("add", "Always answer in German.").stdout
    assert "'Always answer in French' no longer stands" in " ".join(done.split())


def test_the_named_command_repairs_another_embedder(loom):
    loom("add", "the boat is red", "--embedder", "hash")
    assert json.loads(loom("search", "boat", "--json").stdout)["notes"] == [], "it opens with what it was made with"
    assert "because this store was made with it" in " ".join(loom("stats").stdout.split())
    done = loom("add", "the boat is blue", "--json", "--embedder", "static")
    assert "loom memory reembed" in json.loads(done.stdout)["notes"][0]
    assert "loom memory reembed" in " ".join(loom("search", "boat", "--embedder", "static").stdout.split())
    done = json.loads(loom("reembed", "--json").stdout)
    assert (done["records"], done["exchanged"]) == (2, True)
    assert json.loads(loom("search", "boat", "--json").stdout)["notes"] == []
    assert "embedded 0 records with static" in loom("reembed").stdout
    assert "embedding with static" in loom("stats").stdout
    assert "embedding with hash" in json.loads(loom("stats", "--embedder", "hash", "--json").stdout)["embedder"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (("stats", "--embedder", "nobody"), "nobody"),
        (("reembed", "--embedder", "nobody"), "nobody"),
        (("search", " "), "the question is empty; ask in words, or see everything with `loom memory export`"),
        (("stats", "--user", ""), "--user is empty; give it a name"),
        (("add", "x", "--session", " "), "--session is empty; give it a name"),
        (("export", "--to", "nowhere/x.jsonl"), "cannot be written"),
        (("import", "bad-export.jsonl"), "is not UTF-8 text"),
        (("import", "old-export.jsonl"), "line 2"),
        (("show", "nowhere"), "user 'me' has no record 'nowhere'; `loom memory search` and `loom memory facts` show"),
        (("forget", "nowhere"), "user 'me' has no record 'nowhere'; `loom memory search` and `loom memory facts` show"),
        (("forget", "nowhere", "--json"), "user 'me' has no record 'nowhere'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_users_mistake_ends_in_one_line(loom, tmp_path, call, says):
    loom("add", "I live in Oslo.")
    (tmp_path / "bad-export.jsonl").write_bytes(b'{"loom": "memory", "format": 1}\n\xff\xfe')
    (tmp_path / "old-export.jsonl").write_text('{"loom": "memory", "format": 1}\n{"kind": "fact", "id": "f"}\n')
    done = loom(*call, code=2)
    assert done.stderr.startswith("loom: ")
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_no_record_is_forgotten_where_one_is_not_there(loom):
    (id,) = json.loads(loom("add", "I live in Oslo.", "--json").stdout)["kept"]
    loom("forget", id, "nowhere", code=2)
    assert json.loads(loom("stats", "--json").stdout)["L1"] == 1
    assert "1 episode" in loom("forget", id).stdout


@pytest.mark.parametrize("limit", ["0", "-3"])
def test_a_limit_of_no_hits_is_refused_by_its_option(loom, limit):
    loom("add", "I live in Oslo.")
    assert "Invalid value for '--limit'" in loom("search", "Oslo", "--limit", limit, code=2).stderr


@pytest.mark.parametrize(
    "call",
    ["search x", "facts", "show", "stats", "export", "export --to backup.jsonl", "forget", "work", "reembed"],
)
def test_a_place_with_a_slip_is_refused_and_not_made(tmp_path, call):
    command = [LOOM, "memory", *call.split(), "--url", "sqlite:./typo.db"]
    done = run_loom(command, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "loom: there is nothing at './typo.db'; give the URL of a store that was used before\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("width", ["30", "80", ""])
def test_lists_show_whole_ids_that_other_commands_take(tmp_path, monkeypatch, loom, width):
    monkeypatch.setenv("COLUMNS", width)
    loom("add", "I live in Oslo.", "My sister Anna has a boat.")
    (tmp_path / "talk.jsonl").write_text(json.dumps({"role": "user", "content": "the boat is green"}))
    loom("import", tmp_path / "talk.jsonl")
    hits = json.loads(loom("search", "boat in Oslo", "--json").stdout)["hits"]
    facts = json.loads(loom("facts", "--json").stdout)
    assert len(hits) > 2
    assert len(facts) == 2
    for command, found in ((("search", "boat in Oslo"), hits), (("facts",), facts)):
        words = loom(*command).stdout.split()
        assert all(one["id"] in words for one in found)
    assert hits[0]["text"] in loom("show", hits[0]["id"]).stdout.replace("\n", " ")


def test_a_long_record_is_shortened_in_the_list_alone(loom):
    text = "The boat is green. " * 5_000
    loom("add", text)
    shown = loom("search", "boat").stdout
    assert "\N{HORIZONTAL ELLIPSIS}" in shown
    assert len(shown) < 1_000
    (hit,) = json.loads(loom("search", "boat", "--json").stdout)["hits"]
    assert hit["text"] == text.strip()
    assert loom("show", hit["id"]).stdout.count("green") >= 5_000


def test_facts_as_json_have_times(loom):
    loom("add", "I live in Oslo.")
    (fact,) = json.loads(loom("facts", "--json").stdout)
    assert (fact["object"], fact["valid_from"][:2]) == ("Oslo", "20")


def test_work_does_what_waits(loom):
    loom("add", "I live in Oslo.")
    assert "did 0 jobs" in loom("work").stdout


def test_the_words_of_python_are_understood_too(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
    run_loom([LOOM, "memory", "remember", "I live in Oslo."], cwd=tmp_path, env=env, check=True)
    assert "I live in Oslo." in run_loom([LOOM, "memory", "recall", "Oslo"], cwd=tmp_path, env=env, check=True).stdout


def test_a_dash_is_what_comes_through_the_pipe(tmp_path):
    command = [LOOM, "memory", "add", "-", "--url", f"sqlite:{tmp_path}/m.db"]
    assert "kept 1" in run_loom(command, input="I have a dog.\n", cwd=tmp_path).stdout
    with open_memory_sync(f"sqlite:{tmp_path}/m.db") as memory:
        assert [record.text for record in memory.list(user_id="me", kind="episode")] == ["I have a dog."]


def test_an_unknown_instruction_names_the_command_that_lists_them(loom):
    loom("add", "I live in Oslo.")
    for command in ("confirm", "reject"):
        assert "`loom memory standing` lists them" in loom(command, "nope", code=2).stderr


def test_an_export_of_nobody_says_so_beside_the_lines(loom):
    loom("add", "I live in Oslo.")
    done = loom("export", "--user", "nobody")
    assert done.stdout.count("\n") == 1
    assert done.stderr == "! nothing is stored for user 'nobody'\n"
