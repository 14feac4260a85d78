"""Text that a terminal would obey: none of it is printed, by any command, in any place where foreign text is shown."""

import ast
import io
import json
import os
import re
import sys
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
import typer

import loom.cli
from loom import Agent, open_checkpoints, open_memory
from loom.cli import main
from loom.cli.app import app
from loom.cli.output import Stream
from loom.core.log import Recorded
from loom.core.record import Episode, Fact, Provenance, WorkingBlock
from loom.core.scope import Scope
from loom.server.proxy.features import RESULT
from loom.server.proxy.tool_results import result_id
from loom.testing import ScriptedModel

EVIL = (
    "\x1b]0;owned\x07\x1b[2J\x1b[8mhidden\x1b[0m \x9b31mred \x9d0;owned\x9c \u202eevil\u202c \u2066isolate\u2069 "
    "zero\u200bwidth\u2060\ufeff tag\U000e0041\U000e007f line\u2028break\u2029 back\x08\x08 bell\x07"
    " del\x7f next\x85line \x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\ [bold red]markup[/] [link=http://e]x[/link]"
)
RAW = "\x1b]0;owned\x07\x1b[2J\x1b[8mhidden\x1b[0m \x9b31mred \x9d0;owned\x9c \u202eevil\u202c"
"""A part of it that nothing changes on its way into a fact."""
NAME = "Mal\u202elory\x9b2J\u200b\U000e0041"
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\r|\x1b\[1A|\x1b\[2K")
"""What Loom asks a terminal for: styles, and a bar of progress that is drawn over again."""
WORD = "swordfish"
"""Is in every stored text, so that a search finds it."""


def leaves(command, path=()):
    """Every command of the app with its path."""
    command = getattr(command, "command", command)  # the one that the list of commands stands for
    for name, one in getattr(command, "commands", {}).items():
        yield from leaves(one, (*path, name))
    if path and (not hasattr(command, "commands") or command.invoke_without_command):
        yield " ".join(path), command


COMMANDS = dict(leaves(typer.main.get_command(app)))

ARGUMENTS = {
    "cache audit": [["session.jsonl"], ["session.jsonl", "--html", f"{NAME}/x.html"], [f"{NAME}.jsonl"]],
    "cache plan": [["request.json"], ["request.json", "--provider", EVIL], [f"{NAME}.json"]],
    "cache explain": [["request.json", "next.json"], ["request.json", "request.json", "--model", NAME]],
    "cache simulate": [["trace.jsonl"], [f"{NAME}.jsonl"]],
    "memory add": [[f"My {WORD} {NAME}", "--url", "DB", "--user", NAME]],
    "memory search": [
        [WORD, "--url", "DB", "--user", NAME],
        [NAME, "--url", "DB"],
        [WORD, "--url", f"sqlite:{NAME}.db"],
    ],
    "memory facts": [["--url", "DB", "--user", NAME, "--history"], ["--url", "DB", "--user", f"{NAME}2"]],
    "memory show": [["--url", "DB", "--user", NAME], ["FACT", "--url", "DB", "--user", NAME], [NAME, "--url", "DB"]],
    "memory standing": [["--url", "DB", "--user", NAME], ["--url", "DB", "--user", f"{NAME}2"]],
    "memory history": [
        [f"other {NAME}", "--url", "DB", "--user", NAME],
        ["--url", "DB", "--user", NAME],
        [NAME, "--url", "DB", "--user", NAME],
    ],
    "memory confirm": [["WISH", "--url", "DB", "--user", NAME], [NAME, "--url", "DB", "--user", NAME]],
    "memory reject": [["WISH", "--url", "DB", "--user", NAME], [NAME, "--url", "DB", "--user", NAME]],
    "memory stats": [["--url", "DB", "--user", NAME]],
    "memory forget": [[NAME, "--url", "DB", "--user", NAME], ["--url", "DB", "--user", f"{NAME}2"]],
    "memory export": [["--url", "DB", "--user", NAME], ["--url", "DB", "--to", f"{NAME}/x"]],
    "memory import": [["turns.jsonl", "--url", "DB", "--user", NAME], [f"{NAME}.jsonl", "--url", "DB"]],
    "memory reembed": [["--url", "DB", "--embedder", "hash"], ["--url", "DB", "--embedder", NAME]],
    "memory work": [["--url", "DB"]],
    "session list": [["--store", "DB", "--user", NAME], ["--store", "DB", "--user", f"{NAME}2"]],
    "session show": [
        [NAME, "--store", "DB", "--user", NAME],
        [NAME, "--store", "DB", "--user", NAME, "--checkpoints"],
        [f"{NAME}2", "--store", "DB", "--user", NAME],
    ],
    "session requests": [[NAME, "--store", "DB", "--user", NAME], [f"{NAME}2", "--store", "DB", "--user", NAME]],
    "mcp": [["--url", f"{NAME}://x"]],
    "mcp install": [["codex", "--project", "--yes", "--user", NAME], [NAME, "--yes"]],
    "serve token add": [[NAME, "--tokens", "tokens.json", "--user", NAME], [f"{NAME}2", "--right", NAME]],
    "serve token list": [["--tokens", "tokens.json"]],
    "serve token revoke": [[f"{NAME}3", "--tokens", "tokens.json"]],
    "inspect": [[f"{NAME}4.jsonl"], [f"sqlite:{NAME}4.db"]],
    "serve": [["--url", f"{NAME}://x"], ["--host", NAME, "--url", "DB"]],
    "proxy": [["--upstream", NAME]],
    "proxy read": [["RESULT", "--url", "DB", "--user", NAME], [NAME, "--url", "DB", "--user", NAME]],
    "session restore": [[NAME, "--store", "DB", "--user", NAME, "--at", "1"], [NAME, "--store", "DB", "--at", NAME]],
    "session fork": [[NAME, "--store", "DB", "--user", NAME, "--as", f"{NAME}3"]],
    "session export": [[NAME, "--store", "DB", "--user", NAME]],
    "session compact": [
        [NAME, "--store", "DB", "--user", NAME, "--dry-run"],
        [NAME, "--store", "DB", "--user", NAME, "--model", NAME],
    ],
    "chat": [
        [f"Which {WORD} is it?", "--memory", "DB", "--user", NAME, "--session", f"{NAME}4"],
        [f"/memory {WORD}", "--memory", "DB", "--user", NAME],
        ["/memory", "--memory", "DB", "--user", NAME],
        ["/context", "--memory", "DB", "--user", NAME, "--session", NAME],
        [f"/{NAME}", "--memory", "DB", "--user", NAME],
        ["Hi.", "--memory", "DB", "--model", NAME],
    ],
    "hook install": [["codex", "--project", "--yes", "--user", NAME], [NAME, "--yes"]],
    "store init": [[f"sqlite:{NAME}.db"], [f"{NAME}://x"]],
    "store sweep": [["DB"], [f"sqlite:{NAME}2.db"]],
    "store verify": [["DB"], [f"sqlite:{NAME}2.db"]],
    "store copy": [["DB", "sqlite:copy.db"], ["DB", f"{NAME}:x"]],
    "forget": [[f"{NAME}2", "--url", "DB", "--yes"], [NAME, "--url", "DB"], [" ", "--url", "DB"]],
    "doctor": [["DB"], [f"sqlite:{NAME}2.db"]],
    "demo": [],  # it prints its own texts alone
}
ARGUMENTS["memory remember"], ARGUMENTS["memory recall"] = ARGUMENTS["memory add"], ARGUMENTS["memory search"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A file with a memory and conversations, and recorded requests, all of them full of such text."""
    folder = tmp_path_factory.mktemp("evil")
    anyio.run(fill, folder)
    request = {
        "model": f"claude-{NAME}",
        "system": f"{EVIL} " * 300,
        "messages": [{"role": "user", "content": f"{EVIL} {WORD}"}],
    }
    moved = {**request, "system": f"{NAME} {EVIL} " * 300}
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    (folder / "next.json").write_text(json.dumps(moved), encoding="utf-8")
    (folder / "trace.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in (request, moved, request)))
    turn = {"role": "user", "name": NAME, "content": f"{EVIL} {WORD}"}
    (folder / "turns.jsonl").write_text(json.dumps(turn) + "\n", encoding="utf-8")
    used = {"input_tokens": 3, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 50_000}
    calls = [{"id": f"{NAME}{n}", "role": "assistant", "model": f"{EVIL}{n}", "usage": used} for n in range(3)]
    lines = [{"type": "summary", "summary": EVIL, "leafUuid": "x"}]
    lines += [{"type": "assistant", "uuid": f"{n}", "sessionId": NAME, "message": call} for n, call in enumerate(calls)]
    (folder / "session.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


async def fill(folder):
    url = f"sqlite:{folder}/bot.db"
    async with open_memory(url, embedder="hash") as memory:
        now, said = datetime.now(UTC), Provenance("user")
        fact = Fact(id="fact", subject=f"{EVIL} {WORD}", predicate=NAME, object=EVIL, recorded_at=now, provenance=said)
        block = WorkingBlock(name=NAME, text=f"{EVIL} {WORD}", updated_at=now, provenance=said)
        turn = Episode(id=f"turn {NAME}", text=f"{EVIL} {WORD}", at=now, recorded_at=now, provenance=said, speaker=NAME)
        # As they are: what is cleaned today on its way in may have been stored by another program or an older Loom.
        await memory.store.put(Scope(user_id=NAME), fact, block, turn)
        await memory.assert_fact(f"{RAW} {WORD}", f"likes {NAME}", EVIL, user_id=NAME)
        await memory.set_block(f"other {NAME}", f"{EVIL} {WORD}", user_id=NAME)
        await memory.instruct(f"Always say {NAME} {WORD}.", user_id=NAME)
        await memory.remember(f"{EVIL} {WORD}", user_id=NAME, session_id=NAME, speaker=NAME, attributes={NAME: NAME})
        wish = (await memory.standing(user_id=NAME)).items[0]
    result = result_id(NAME, EVIL)
    (folder / "ids.json").write_text(json.dumps({"FACT": fact.id, "WISH": wish.id, "RESULT": result}))
    model = ScriptedModel([f"{EVIL} {WORD}", "Yes."], name=f"scripted:{NAME}")
    async with Agent(EVIL, model=model, memory=url, name=NAME) as agent:
        for said in (f"{EVIL} {WORD}", "And then?"):
            await agent.run(said, user_id=NAME, session_id=NAME)
    async with aclosing(open_checkpoints(url)) as checkpoints:
        body = {"id": result, "key": "", "short": "", "whole": f"{EVIL} {WORD}"}
        chat = Scope(user_id=NAME, session_id=NAME)
        await checkpoints.append(chat, [Recorded("result", now, RESULT, body)])


def outputs(place, monkeypatch, capfd, arguments):
    monkeypatch.chdir(place)
    known = {"DB": f"sqlite:{place}/bot.db", **json.loads((place / "ids.json").read_text())}
    monkeypatch.setattr(sys, "argv", ["loom", *(known.get(argument, argument) for argument in arguments)])
    for name in [name for name in os.environ if name.endswith("_API_KEY") or name.startswith("LOOM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfd.readouterr()
    assert ended.value.code in (0, 1, 2), err
    assert "Traceback" not in err
    return out, err


def test_every_command_is_in_this_corpus():
    assert set(COMMANDS) - {"hook run"} == set(ARGUMENTS), (
        "a new command needs a line here that lets it print stored text"
    )


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "terminal"])
def test_no_command_prints_what_a_terminal_obeys(place, monkeypatch, capfd, name, is_terminal):
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    for arguments in ARGUMENTS[name]:
        out, err = outputs(place, monkeypatch, capfd, [*name.split(), *arguments])
        assert out + err, arguments
        for text in (out, err):
            shown = OWN.sub("", text) if is_terminal else text
            assert not UNSAFE.findall(shown), (arguments, shown[:500])
            assert "\x1b[8m" not in text
            assert "\x1b]" not in text


@pytest.mark.parametrize("name", sorted(n for n, c in COMMANDS.items() if any("--json" in p.opts for p in c.params)))
def test_json_is_safe_to_look_at_and_means_the_very_same(place, monkeypatch, capfd, name):
    for arguments in ARGUMENTS[name]:
        out, err = outputs(place, monkeypatch, capfd, [*name.split(), *arguments, "--json"])
        assert not UNSAFE.findall(out + OWN.sub("", err)), arguments
        if err:
            continue  # it was refused
        parsed = [json.loads(line) for line in out.splitlines()] if name in LINES else json.loads(out)
        if name in WHOLE and arguments == ARGUMENTS[name][0]:
            assert RAW in strings(parsed)


LINES = {"chat", "memory export"}
WHOLE = {"memory facts", "memory show", "memory export", "session export"}


def strings(value):
    """Every text in a JSON value, and in JSON that a text is; as one."""
    if isinstance(value, dict):
        return "\n".join(strings(one) for pair in value.items() for one in pair)
    if isinstance(value, list):
        return "\n".join(map(strings, value))
    return str(value)


def test_an_export_to_a_file_is_raw(place, monkeypatch, capfd):
    outputs(place, monkeypatch, capfd, ["memory", "export", "--url", "DB", "--user", NAME, "--to", "memory.jsonl"])
    outputs(place, monkeypatch, capfd, ["session", "export", NAME, "--store", "DB", "--user", NAME, "-o", "one.json"])
    assert "\u202eevil" in (place / "memory.jsonl").read_text(encoding="utf-8")
    assert "\u202eevil" in (place / "one.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["a\x1b", "[2Jb", "\x9b", "31m"], "a[2Jb31m"),
        (["one\r", "\ntwo\r", "three"], "one\ntwo\nthree"),
        (
            ["\u0645\u06cc", "\u200c", "\u062e\u0648\u0627\u0647\u0645"],
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        ),
        (["\U0001f469\u200d", "\U0001f680", "\u200d", "x"], "\U0001f469\u200d\U0001f680x"),
        (["safe\u200b", "\u202e", "", "text"], "safetext"),
    ],
)
def test_an_answer_in_pieces_is_as_safe_as_one_text(capsys, pieces, shown):
    stream = Stream()
    for piece in pieces:
        stream.write(piece)
    assert capsys.readouterr().out == shown


def test_nothing_is_printed_past_the_functions_that_make_it_safe():
    """Commands print by loom.cli.output alone."""
    names = {"print", "input", "Console", "sys.stdout.write", "sys.stderr.write"}
    names |= {f"typer.{name}" for name in ("echo", "secho", "confirm", "prompt")}
    for path in Path(loom.cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and path.name != "output.py":
                assert ast.unparse(node.func) not in names, f"{path.name}:{node.lineno}"
