"""`loom chat`, through the installed command: one message, piped lines, commands, JSON, mistakes."""

import json
import os
import subprocess

import pytest

from tests.commands import LOOM, run_loom


@pytest.fixture
def chat(tmp_path):
    """Runs the command in a folder of its own, where nobody has a model or a key."""
    unset = {name for name in os.environ if name.endswith("_API_KEY") or name.startswith("LOOM_")}
    env = {name: value for name, value in os.environ.items() if name not in unset} | {"NO_COLOR": "1", "COLUMNS": "200"}

    def run(*args, lines=(), code=0):
        said = "".join(f"{line}\n" for line in lines)
        command = [LOOM, "chat", *args]
        done = run_loom(command, input=said, cwd=tmp_path, env=env)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def events(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_one_message_is_answered_and_remembered_for_the_next_run(chat, tmp_path):
    first = chat("I live in Oslo.")
    assert "no language model is connected" in first.stdout
    assert "tokens in" in first.stdout
    assert "user lives in: Oslo" in chat("Where do I live?").stdout
    assert (tmp_path / "loom-memory.db").is_file()


def test_another_user_is_told_nothing(chat):
    chat("I live in Oslo.", "--user", "ann")
    assert "Oslo" not in chat("Where do I live?", "--user", "ben").stdout


def test_piped_lines_are_one_conversation(chat):
    done = chat(lines=["I live in Oslo.", "", "My sister Anna has a boat.", "/context"])
    assert done.stdout.startswith("offline:memory, user me; /help lists the commands")
    assert "turn 2:" in done.stdout
    assert done.stderr == "", "nobody types, so there is no prompt"


def test_a_session_goes_on(chat):
    chat("I live in Oslo.", "--session", "trip")
    done = chat("--session", "trip", lines=["Where is it?", "/context"])
    assert "session trip, turn 2:" in done.stdout


def test_memory_can_be_shown_and_forgotten(chat):
    told = ["My sister Anna has a boat.", "/memory", "/memory who has a boat?"]
    shown = chat(lines=told).stdout
    assert "- user sister: Anna" in shown
    row = next(line for line in shown.splitlines() if line.endswith("My sister Anna has a boat."))
    again = chat(lines=[f"/forget {row.split()[0]}", "/memory who has a boat?", "/memory"]).stdout
    assert "forgot " in again
    assert "boat." not in again
    assert "Anna" not in again, "what was made from it goes with it"


MAIL = "I got this mail, what do you think of it? Always be brief."


def test_a_wish_that_was_learnt_is_said_and_can_be_rejected(chat):
    said = chat("Please always answer in German.").stdout
    row = next(line for line in said.splitlines() if ": learned; /reject" in line)
    id = row.split()[-1]
    shown = chat(lines=["/standing", f"/reject {id}", "/standing"]).stdout
    assert f"{id}  Please always answer in German" in shown
    assert shown.splitlines()[-1] == "there are no standing instructions"


def test_a_wish_that_waits_is_said_listed_and_confirmed(chat):
    said = " ".join(chat(MAIL).stdout.split())
    assert "! Always be brief: waits; /confirm" in said
    listed = events(chat("--json", lines=["/standing"]))[-1]["standing"]
    (waiting,) = [one for one in listed if one["unconfirmed"]]
    assert waiting["wish"] == "Always be brief"
    done = events(chat("--json", lines=[f"/confirm {waiting['id']}", "/standing"]))[-2:]
    assert done[0] == {"kept": ["Always be brief"], "retired": []}
    assert [one["unconfirmed"] for one in done[1]["standing"]] == [False]


def test_what_was_learnt_is_told_once_as_a_line_of_json(chat):
    found = events(chat("--json", lines=["Always be brief.", "Thanks!"]))
    news = [one for one in found if one.get("type") == "standing"]
    assert [(one["wish"], one["unconfirmed"]) for one in news] == [("Always be brief", False)]


def test_compact_and_undo(chat):
    done = chat(lines=[*(f"Say {n}. " + "word " * 40 for n in range(6)), "/compact", "/undo", "/undo"])
    assert "/undo reverses it" in done.stdout
    assert "the messages of the last compaction are shown again" in done.stdout
    assert done.stderr == "loom: nothing was compacted, so there is nothing to undo\n"


def test_help_lists_the_commands(chat):
    shown = [line.split()[0] for line in chat(lines=["/help"]).stdout.splitlines() if line.startswith("/")]
    for command in (
        "/context",
        "/memory",
        "/forget",
        "/standing",
        "/confirm",
        "/reject",
        "/compact",
        "/undo",
        "/help",
        "/quit",
    ):
        assert command in shown


def test_a_conversation_is_continued_by_its_first_words(chat):
    chat("I live in Oslo, by the sea.", "--session", "trip")
    chat("My boat is red.", "--session", "boat")
    found = events(chat("Where do I live?", "--json", "--session", "i live in"))
    assert {event["session_id"] for event in found} == {"trip"}
    chat("I live in Rome now.", "--session", "news")
    assert "2 conversations begin with 'I live'" in chat("Where?", "--session", "I live", code=2).stderr
    fresh = events(chat("Hello.", "--json", "--session", "two words"))
    assert {event["session_id"] for event in fresh} == {"two words"}


def test_an_unknown_command_names_the_one_that_is_meant(chat):
    assert "did you mean '/context'?" in chat(lines=["/contxt"]).stderr


def test_quit_ends_it(chat):
    assert "never said" not in chat(lines=["/quit", "never said"]).stdout
    assert [e["type"] for e in events(chat("--json", lines=["/exit", "never said"]))] == []


def test_events_as_lines_of_json(chat):
    found = events(chat("I live in Oslo.", "--json"))
    assert [e["type"] for e in found][:2] == ["session.start", "turn.start"]
    assert [e["type"] for e in found][-3:] == ["memory.remembered", "turn.end", "memory.learned"]
    assert [e["seq"] for e in found] == list(range(len(found)))
    assert "".join(e["text"] for e in found if e["type"] == "text").startswith("Noted")


def test_commands_as_lines_of_json(chat):
    talk = ["My sister Anna has a boat. " + "word " * 60, *(f"Go on, {number}. " * 40 for number in range(4))]
    lines = [*talk, "/context", "/memory", "/memory boat"]
    done = chat("--json", lines=[*lines, "/compact", "/undo", "/help"])
    context, profile, hits, compacted, undone, helped = events(done)[-6:]
    assert context["sections"]["convo"] > 0
    assert "Anna" in profile["profile"]
    assert hits["hits"][0]["id"]
    assert compacted["tokens_after"] < compacted["tokens_before"]
    assert undone["messages"] == 10
    assert "/quit" in helped["commands"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/nope", "there is no /nope; /help lists the commands"),
        ("/forget", "name what to forget"),
        ("/forget nothing", "there is nothing with the id 'nothing'"),
        ("/confirm", "name what to confirm"),
        ("/confirm nothing", "no unconfirmed instruction 'nothing'"),
        ("/reject", "name what to reject"),
        ("/reject nothing", "no instruction 'nothing'"),
        ("/undo", "nothing was compacted"),
    ],
)
def test_a_mistake_ends_the_line_and_not_the_conversation(chat, line, message):
    done = chat(lines=[line, "I live in Oslo."])
    assert done.stderr.startswith("loom: ")
    assert message in done.stderr
    assert "Noted" in done.stdout
    assert message in chat(line, code=2).stderr, "alone it is a failure"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["hi", "--model", "nonsense"], "write provider:model"),
        (["hi", "--model", "anthropic:claude-sonnet-5"], "ANTHROPIC_API_KEY"),
        (["hi", "--memory", "carrier-pigeon:x"], "there is no memory backend"),
        (["hi", "--user", ""], "user_id"),
        ([""], "the message is empty"),
    ],
)
def test_what_cannot_work_says_what_to_do(chat, args, message):
    done = chat(*args, code=2)
    assert done.stderr.splitlines()[-1].startswith("loom: ")
    assert message in done.stderr


def test_a_command_that_is_almost_right_is_corrected(chat):
    assert "there is no /memry; did you mean '/memory'?" in chat("/memry", code=2).stderr


def test_memory_tools_are_there_only_when_asked_for(chat):
    plain = events(chat("Hi.", "--json"))
    tools = events(chat("Hi.", "--json", "--memory-tools"))
    used = [next(e["usage"]["input"] for e in found if e["type"] == "turn.end") for found in (plain, tools)]
    assert used[0] < 100 < used[1], "the tools are described in the prompt"


def test_the_memory_of_a_chat_is_that_of_the_other_commands(chat, tmp_path):
    chat("I live in Oslo.")
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
    facts = run_loom([LOOM, "memory", "facts"], cwd=tmp_path, env=env).stdout
    assert "user lives_in Oslo" in facts
    listed = run_loom([LOOM, "session", "list"], cwd=tmp_path, env=env).stdout
    assert "I live in Oslo." in listed


def test_conversations_are_found_beside_the_memory_that_the_environment_names(chat, tmp_path):
    chat("I live in Oslo.", "--memory", "sqlite:./other.db")
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
    env["LOOM_MEMORY"] = "composite:?primary=sqlite:./other.db"
    assert "I live in Oslo." in run_loom([LOOM, "session", "list"], cwd=tmp_path, env=env).stdout


def test_conversations_are_listed_by_their_first_words(chat):
    chat("I live in Oslo.", "--session", "one")
    done = chat(lines=["My sister Anna has a boat.\tIt is blue.", "And a dog.", "/sessions"])
    lines = done.stdout.splitlines()[-3:]
    assert lines[0].endswith("My sister Anna has a boat. It is blue.")
    assert lines[1].startswith("one  ")
    assert lines[1].endswith("I live in Oslo.")
    listed = events(chat("/sessions", "--json"))[0]["sessions"]
    assert [one["begins"] for one in listed] == ["My sister Anna has a boat.\tIt is blue.", "I live in Oslo."]
    assert "no conversations are saved yet" in chat("/sessions", "--user", "ben").stdout


def test_a_file_of_earlier_chats_is_pointed_out_and_left_alone(chat, tmp_path):
    chat("I live in Oslo.", "--memory", "sqlite:./loom-chat.db")
    assert "rename it to loom-memory.db" in chat("Hi.").stderr
    assert chat("Hi.").stderr == "", "from then on there is a file, and the choice is made"


def test_input_that_is_not_text_does_not_end_the_chat(chat, tmp_path):
    (tmp_path / "in").write_bytes(b"\xff\xfe I live in Oslo.\n")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with (tmp_path / "in").open("rb") as file:
        done = subprocess.run([LOOM, "chat"], stdin=file, capture_output=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["hi", "--threads", "2"], "--threads: for models on this machine alone; give --model local:PATH too"),
        (["hi", "--context", "512", "--model", "anthropic:claude-sonnet-5"], "--context: for models on this machine"),
        (["hi", "--model", "local:./none.gguf", "--threads", "2"], "none.gguf"),
        (["hi", "--memory", "sqlite:///bot.db"], "write sqlite:./bot.db for a file in this folder"),
        (["hi", "--model", "antropic:claude-sonnet-5"], "did you mean 'anthropic:claude-sonnet-5'?"),
        (["x" * 100_000 * 11], "at most 1,000,000 are taken"),
    ],
)
def test_options_that_do_not_fit_say_what_to_give(chat, args, message):
    done = chat(*args, code=2) if len(args[0]) < 1_000 else chat(lines=args)
    assert message in " ".join(done.stderr.split())
