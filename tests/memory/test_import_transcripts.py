"""Transcripts in a memory: whose words become turns and facts, under which ids, and what is left out."""

import json

import pytest

from loom.cli.memory import import_files
from loom.core.record import Episode, Fact
from loom.engine import open_memory_sync
from loom.memory._upkeep import metabolism
from tests.traces.claude import SESSION, assistant, boundary, line, queued, text_of, user
from tests.traces.others import CHATGPT, LANGGRAPH, LETTA, MEM0, NODES
from tests.traces.rollouts import answered, item, meta, said
from tests.traces.rollouts import text_of as rollout_of


@pytest.fixture
def memory():
    with open_memory_sync("inmemory:", embedder="hash") as memory:
        yield memory


@pytest.fixture
def load(memory, tmp_path):
    """Imports texts as files of a folder, for the user `me`."""

    def load(**files):
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text if isinstance(text, str) else json.dumps(text))
        return import_files(memory, [folder], user="me", progress=lambda *_: None)

    return load


def records(memory, kind):
    return [one for one in memory.list(user_id="me", limit=1000) if isinstance(one, kind)]


def turns(memory):
    found = [one for one in records(memory, Episode) if not one.sources]
    return sorted((one.speaker, one.text) for one in found)


def objects(memory):
    return {fact.object for fact in memory.facts(user_id="me")}


MIXED = text_of(
    user("u1", None, "I live in Oslo."),
    assistant("a2", "u1", "I live in Cork too."),
    user("u3", "a2", "I live in Rome."),  # rewound
    assistant("a4", "u3", "Rome!"),
    boundary("c5", "a2"),
    user("s6", "c5", "The user said: I live in Paris. I have a dog called Rex.", isCompactSummary=True),
    user("u7", None, "I live in Lima. Look for the bug.", isSidechain=True),  # a subagent
    assistant("a8", "u7", "I live in Quito.", isSidechain=True),
    user("u9", "s6", "<system-reminder>I live in Bonn.</system-reminder>"),
    user("u10", "u9", "I live in Kyiv.", isMeta=True),
    user("u11", "u10", "<command-name>/x</command-name><command-args>I live in Riga.</command-args>"),
    user("u12", "u11", "<local-command-stdout>I live in Bern.</local-command-stdout>"),
    line("attachment", "t13", "u12", attachment={"type": "hook_success", "content": "I live in Nice."}),
    queued("q14", "t13", "My sister is called Anna.", origin={"kind": "human"}),
    assistant("a15", "q14", "Noted."),
)


def test_rewound_branches_summaries_subagents_and_harness_text_give_no_turn_and_no_fact(memory, load):
    done = load(talk__jsonl=MIXED)
    assert turns(memory) == [
        ("assistant", "I live in Cork too."),
        ("assistant", "Noted."),
        ("user", "I live in Oslo."),
        ("user", "My sister is called Anna."),
    ]
    assert {"Oslo", "Anna"} <= objects(memory)
    text = " ".join(f"{fact.subject} {fact.predicate} {fact.object}" for fact in memory.facts(user_id="me"))
    for place in ("Rome", "Paris", "Rex", "Lima", "Quito", "Bonn", "Kyiv", "Riga", "Bern", "Nice", "Cork"):
        assert place not in text
    assert done.left_out == {"rewound": 2, "harness": 5, "summary": 1, "subagent": 2}
    assert (done.new, done.there) == (4, 0)


def test_codex_gives_the_words_of_the_user_alone(memory, load):
    context = "<environment_context>I live in Rome.</environment_context>"
    spawn = {"source": {"subagent": {"thread_spawn": {"parent_thread_id": "p"}}}}
    load(
        **{
            "rollout-1__jsonl": rollout_of(
                meta("p"), item("user", context), *said("I live in Oslo."), *answered("Nice.")
            ),
            "rollout-2__jsonl": rollout_of(meta("c", **spawn), *said("I live in Lima."), *answered("I live in Quito.")),
        }
    )
    assert turns(memory) == [("assistant", "Nice."), ("user", "I live in Oslo.")]
    assert objects(memory) == {"Oslo"}


def test_reading_a_transcript_again_adds_only_what_is_new(memory, load):
    first = [user("u1", None, "I live in Oslo."), assistant("a2", "u1", "Noted.")]
    assert load(talk__jsonl=text_of(*first)).new == 2
    ids = {one.id for one in records(memory, Episode)}
    again = load(talk__jsonl=text_of(*first))
    assert (again.new, again.there) == (0, 2)
    more = load(talk__jsonl=text_of(*first, user("u3", "a2", "I have a boat."), assistant("a4", "u3", "Good.")))
    assert (more.new, more.there) == (2, 2)
    assert ids <= {one.id for one in records(memory, Episode)}


def test_a_branch_that_was_taken_later_is_added(memory, load):
    """Turns are known by their own ids, so another text in the same place is not taken for a repetition."""
    first = [user("u1", None, "Plan a trip."), assistant("a2", "u1", "Where to?"), user("u3", "a2", "To Rome.")]
    load(talk__jsonl=text_of(*first))
    done = load(talk__jsonl=text_of(*first, user("u4", "a2", "To Bergen.")))
    assert (done.new, done.there, done.left_out) == (1, 2, {"rewound": 1})
    assert ("user", "To Bergen.") in turns(memory)


def test_the_turns_of_an_export_are_known_by_their_place(memory, load):
    assert load(conversations__json=[CHATGPT]).new == 3
    grown = {**CHATGPT, "current_node": "x", "mapping": {**NODES, "x": _node("x", "g", "I ski.")}}
    done = load(conversations__json=[grown])
    assert (done.new, done.there) == (1, 3)
    assert {one.session_id for one in records(memory, Episode) if not one.sources} == {"c1"}


def _node(id, parent, text):
    return {"id": id, "parent": parent, "message": {"author": {"role": "user"}, "content": {"parts": [text]}}}


NOTES = {
    "memories__json": ({"results": MEM0}, ["Has a boat", "Likes tea"], "derived"),
    "store__json": (LANGGRAPH, ["Likes tea", "kind: Profile\ncontent: name: Ann\nage: 40"], "derived"),
    "notes__md": ("# Home\nI live in Rome.\n", ["# Home\nI live in Rome."], "file"),
}


@pytest.mark.parametrize("name", NOTES)
def test_notes_are_kept_as_what_they_are(memory, load, name):
    text, expected, origin = NOTES[name]
    load(**{name: text})
    found = [one for one in records(memory, Episode) if not one.sources]
    assert sorted(one.text for one in found) == expected
    assert {(one.provenance.origin, one.provenance.trusted, one.session_id, one.speaker) for one in found} == {
        (origin, False, None, None)
    }
    assert objects(memory) == set()
    again = load(**{name: text})
    assert (again.new, again.there) == (0, len(expected))


def test_an_agent_of_letta(memory, load):
    load(ada__af=LETTA)
    found = [one for one in records(memory, Episode) if not one.sources]
    assert sorted((one.provenance.origin, one.session_id or "", one.text) for one in found) == [
        ("assistant", "Ada", "Hello."),
        ("derived", "", "human: Name: Ann"),
        ("import", "Ada", "Hi there."),
        ("import", "Ada", "{not JSON"),
    ]


def test_memories_of_several_users_are_not_mixed(memory, load):
    rows = [MEM0[0], {**MEM0[1], "user_id": "bob"}, {**MEM0[1], "id": "9", "user_id": "me", "memory": "Has a kite"}]
    done = load(memories__json=rows)
    assert [one.text for one in records(memory, Episode)] == ["Has a kite"]
    assert done.left_out == {"another user": 2}
    assert "memories of 3 users (ann, bob, me); only those of me were imported" in " ".join(done.notes)


def test_damaged_lines_and_files_are_named(memory, load):
    done = load(talk__jsonl=MIXED + '{"type": "us', config__json='{"theme": "dark"}')
    assert {name: done.left_out[name] for name in ("unfinished", "file")} == {"unfinished": 1, "file": 1}
    said = "\n".join(done.notes)
    assert "talk.jsonl, line 16 was left out: the last line was still being written" in said
    assert "config.json was left out: it holds no conversation that Loom can read" in said


def test_many_damaged_lines_are_counted(memory, load):
    done = load(talk__jsonl=MIXED + "{\n" * 100)
    assert done.left_out["broken"] == 100
    assert (len(done.notes), done.more) == (20, 80)


def test_names_that_no_store_keeps_are_replaced(memory, load):
    odd = user("u\ud800" + "x" * 2000, None, "I live in Oslo.", sessionId="s\0" + "y" * 900)
    assert load(talk__jsonl=text_of(odd).encode("utf-8", "surrogatepass").decode("utf-8", "replace")).new == 1
    assert load(talk__jsonl=text_of(odd).encode("utf-8", "surrogatepass").decode("utf-8", "replace")).there == 1


def test_the_bar_counts_the_jobs_that_find_facts(memory, tmp_path):
    talks = [{"id": f"c{n}", "messages": [{"role": "user", "content": f"My boat {n} is green."}]} for n in range(30)]
    (tmp_path / "talk.jsonl").write_text("\n".join(map(json.dumps, talks)))
    seen = []
    import_files(memory, [tmp_path], user="me", progress=lambda *_: None, learning=lambda *at: seen.append(at))
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert len(seen) >= 30
    assert {total for _, total in seen[:10]} <= {total for _, total in seen if total >= 30}
    assert seen[-1][0] == seen[-1][1]


def test_every_job_is_done_even_if_there_are_more_than_a_pass_takes(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(metabolism, "PASS", 10)
    talks = [{"id": f"c{n}", "messages": [{"role": "user", "content": f"Boat {n}."}]} for n in range(35)]
    (tmp_path / "talk.jsonl").write_text("\n".join(map(json.dumps, talks)))
    import_files(memory, [tmp_path], user="me", progress=lambda *_: None)
    assert memory.stats(user_id="me")["jobs"] == 0


def test_a_subagent_of_its_own_file_is_left_out(memory, load):
    side = {"isSidechain": True, "agentId": "abc"}
    done = load(
        talk__jsonl=text_of(user("u1", None, "Hi.")),
        **{
            "agent-abc__jsonl": text_of(
                user("u2", None, "I live in Rome.", **side), assistant("a3", "u2", "Yes.", **side)
            )
        },
    )
    assert (turns(memory), done.left_out) == ([("user", "Hi.")], {"subagent": 2})
    assert [one.session_id for one in records(memory, Episode)] == [SESSION]
    assert records(memory, Fact) == []
