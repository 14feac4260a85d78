"""Loom's entry in the settings of other programs: put in, put in again, taken out, on files as people have them."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.errors import UsageError
from loom.server.hosts import HOSTS, Host, plan_edit
from tests.commands import LOOM, run_loom

ENTRY = {"command": "loom", "args": ["mcp", "--url", "sqlite:./m.db", "--user", "ann"]}
JSON_HOSTS = [host for host in HOSTS.values() if host.form == "json"]

STARTS = {  # MARK is the name of the table that lists the servers
    "empty": "",
    "blank lines": "\n\n",
    "empty object": "{}",
    "other settings": '{\n  "theme": "dark",\n  "n": [1, 2, {"a": null}]\n}\n',
    "other servers": '{\n  "MARK": {\n    "files": {"command": "npx", "args": ["-y", "files"]}\n  }\n}\n',
    "empty table": '{\n    "MARK": {}\n}\n',
    "comments": (
        '// my settings\n{\n  /* keep */ "a": 1, // one\n  "MARK": {\n    // the files\n    "files": {"command": "f"} // last\n'
        "  }\n}\n"
    ),
    "comma at the end": '{\n\t"MARK": {\n\t\t"files": {"command": "f",},\n\t},\n}\n',
    "line ends of Windows": '{\r\n  "MARK": {\r\n    "files": {"command": "f"}\r\n  }\r\n}\r\n',
    "one line": '{"MARK": {"files": {"command": "f"}}, "z": 1}',
    "an older entry": '{\n  "MARK": {\n    "loom": {"command": "old"},\n    "files": {"command": "f"}\n  }\n}\n',
    "an older entry, last": '{\n  "MARK": {\n    "files": {"command": "f"}, // f\n    "loom": {"command": "old"}\n  }\n}',
}
TOML_STARTS = {
    "empty": "",
    "blank lines": "\n\n",
    "other settings": '# mine\nmodel = "o5"\n\n[tui]\ntheme = "dark" # yes\n',
    "no line end": 'model = "o5"',
    "other servers": '[mcp_servers.files]\ncommand = "npx"\nargs = ["-y", "files"]\n',
    "an older entry": '[mcp_servers.loom]\ncommand = "old"\n\n[mcp_servers.loom.env]\nA = "1"\n\n# next\n[tui]\nx = 1\n',
    "an older entry, last": '[tui]\nx = 1\n\n[mcp_servers.loom]\ncommand = "old"\n',
    "spaces in the name": '[ mcp_servers . "loom" ]\ncommand = "old"\n[tui]\nx = 1\n',
    "line ends of Windows": "[tui]\r\nx = 1\r\n",
    "a text that looks like a table": 'about = """\n[tui]\nx\n"""\n[tui]\nx = 1\n',
}


def start_of(host: Host, name: str) -> str:
    return (TOML_STARTS if host.form == "toml" else STARTS)[name].replace("MARK", host.table)


def cases() -> list[tuple[str, str]]:
    return [(host.name, name) for host in HOSTS.values() for name in (TOML_STARTS if host.form == "toml" else STARTS)]


def strip_comments(text: str) -> str:
    """The JSON of the starts above without what editors allow beside it: none of their strings holds these marks."""
    lines = [line.split("//")[0] for line in text.replace("/* keep */", "").splitlines()]
    joined = "".join(line.strip() for line in lines)
    return joined.replace(",}", "}").replace(",]", "]") or "{}"


def meaning(host: Host, text: str) -> dict[str, Any]:
    if host.form == "toml":
        return tomllib.loads(text.replace("\r\n", "\n"))
    return json.loads(strip_comments(text))


@pytest.mark.parametrize(("name", "start"), cases())
def test_the_entry_goes_in_once_and_comes_out_again(tmp_path: Path, name: str, start: str) -> None:
    host, path = HOSTS[name], tmp_path / "settings"
    text = start_of(host, start)
    path.write_bytes(text.encode())
    before = meaning(host, text)

    edit = plan_edit(host, path, ENTRY)
    assert edit.changes
    assert path.read_bytes().decode() == text, "planning changes nothing"
    edit.make()
    written = path.read_bytes().decode()
    wanted = {"type": "stdio", **ENTRY} if host.typed else ENTRY
    others = {key: value for key, value in before.get(host.table, {}).items() if key != "loom"}
    assert meaning(host, written) == {**before, host.table: {**others, "loom": wanted}}
    assert ("\r\n" in text) == ("\r\n" in written)
    if "\r\n" in text:
        assert "\n" not in written.replace("\r\n", "")
    for comment in ("// my settings", "/* keep */", "// one", "// the files", "// last", "# mine", "# yes", "# next"):
        assert (comment in text) == (comment in written)
    order = [part for part in ("theme", "files", "tui", '"z"') if part in text]
    assert sorted(order, key=text.index) == sorted(order, key=written.index)

    assert not plan_edit(host, path, ENTRY).changes, "the second time there is nothing to do"

    plan_edit(host, path, None).make()
    left = meaning(host, path.read_bytes().decode())
    assert left.pop(host.table, {}) == others
    assert left == {key: value for key, value in before.items() if key != host.table}
    assert not plan_edit(host, path, None).changes


@pytest.mark.parametrize("name", HOSTS)
def test_a_file_that_is_not_there_is_made_with_its_folders(tmp_path: Path, name: str) -> None:
    host = HOSTS[name]
    path = host.path(project=None, home=tmp_path, platform="linux")
    plan_edit(host, path, ENTRY).make()
    assert "loom" in meaning(host, path.read_text())[host.table]
    other = tmp_path / "other"
    edit = plan_edit(host, other, None)
    edit.make()
    assert not edit.changes
    assert not other.exists()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a": 1,, }', "1:9"),
        ('{\n  "a": 1\n  "b": 2\n}', "3:3"),
        ("{'a': 1}", "1:2"),
        ('{"a": [1, 2}', "1:12"),
        ('{"a": 1} x', "1:10"),
        ('{"a": tru}', "1:7"),
        ('{"a": "x', "1:7"),
        ("[1]", "1:1"),
        ('{"MARK": 3}', "not a table"),
        ("{" * 3000, ":"),
        ('{"a":' * 3000, "nested"),
        ("/* open", "1:1"),
    ],
)
@pytest.mark.parametrize("name", ["claude-code", "vscode"])
def test_a_json_file_that_is_not_valid_is_left_as_it_is(tmp_path: Path, name: str, text: str, place: str) -> None:
    host, path = HOSTS[name], tmp_path / "settings.json"
    text = text.replace("MARK", host.table)
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        plan_edit(host, path, ENTRY)
    assert place in str(caught.value)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("text", "place"),
    [("a = \n", "1:5"), ("a = 1\n[b\n", "2:3"), ("mcp_servers = 3\n", "not a table"), ("x = 'a\n", "1:")],
)
def test_a_toml_file_that_is_not_valid_is_left_as_it_is(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        plan_edit(HOSTS["codex"], path, ENTRY)
    assert place in str(caught.value)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = {files = {command = "f"}}\n',
        '[mcp_servers]\nloom = {command = "old"}\n',
        'mcp_servers.loom.command = "old"\n',
        'about = """\n[mcp_servers.loom]\nx\n"""\n',
    ],
)
def test_a_form_that_cannot_be_edited_safely_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="by hand"):
        plan_edit(HOSTS["codex"], path, ENTRY)
    assert path.read_text() == text


def test_a_file_of_other_bytes_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(b"{\xff}")
    with pytest.raises(UsageError, match="not UTF-8"):
        plan_edit(HOSTS["cursor"], path, ENTRY)
    with pytest.raises(UsageError, match="cannot be read"):
        plan_edit(HOSTS["cursor"], tmp_path, ENTRY)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(
    settings=st.dictionaries(st.text(max_size=8) | st.just("mcpServers"), JSON, max_size=4),
    servers=st.dictionaries(st.text(max_size=8) | st.just("loom"), JSON, max_size=3),
    indent=st.sampled_from([None, 0, 2, 4, "\t"]),
)
def test_any_valid_file_keeps_its_meaning(
    settings: dict[str, Any], servers: dict[str, Any], indent, tmp_path_factory
) -> None:
    path = tmp_path_factory.mktemp("any") / "settings.json"
    before = {**settings, "mcpServers": servers}
    path.write_text(json.dumps(before, indent=indent))
    host = HOSTS["claude-code"]
    plan_edit(host, path, ENTRY).make()
    assert json.loads(path.read_text()) == {**before, "mcpServers": {**servers, "loom": ENTRY}}
    plan_edit(host, path, None).make()
    left = {name: value for name, value in servers.items() if name != "loom"}
    assert json.loads(path.read_text()) == {**before, "mcpServers": left}


def test_places_of_the_settings() -> None:
    home = Path("/home/ann")
    places = {
        name: [str(host.path(project=None, home=home, platform=platform)) for platform in ("linux", "darwin")]
        for name, host in HOSTS.items()
    }
    assert places["claude-code"][0] == "/home/ann/.claude.json"
    assert places["codex"][0] == "/home/ann/.codex/config.toml"
    assert places["vscode"][1] == "/home/ann/Library/Application Support/Code/User/mcp.json"
    assert str(HOSTS["vscode"].path(project=Path("/p"), home=home)) == "/p/.vscode/mcp.json"
    with pytest.raises(UsageError, match="--project"):
        HOSTS["claude-desktop"].path(project=Path("/p"), home=home)


def test_the_command_shows_the_change_and_makes_it_once(tmp_path: Path) -> None:
    install = [LOOM, "mcp", "install", "claude-code", "--project"]
    first = run_loom([*install, "--yes", "--url", "sqlite:./m.db"], cwd=tmp_path, check=True)
    assert '+    "loom": {' in first.stdout
    assert json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"]["loom"]["command"] == "loom"
    again = run_loom([*install, "--url", "sqlite:./m.db"], cwd=tmp_path, check=True)
    assert "nothing was changed" in again.stdout
    gone = json.loads(run_loom([*install, "--remove", "--json"], cwd=tmp_path, check=True).stdout)
    assert gone["changed"]
    wrong = run_loom([LOOM, "mcp", "install", "emacs", "--yes"], cwd=tmp_path)
    assert wrong.returncode
    assert "claude-desktop" in wrong.stderr
    almost = run_loom([LOOM, "mcp", "install", "cursr", "--yes"], cwd=tmp_path)
    assert "did you mean 'cursor'?" in " ".join(almost.stderr.split())


def test_settings_that_the_program_wrote_meanwhile_are_left_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"a": 1}', encoding="utf-8")
    edit = plan_edit(HOSTS["claude-code"], path, ENTRY)
    path.write_text('{"a": 2}', encoding="utf-8")
    with pytest.raises(UsageError, match="changed meanwhile"):
        edit.make()
    assert path.read_text(encoding="utf-8") == '{"a": 2}'
    assert [one.name for one in tmp_path.iterdir()] == ["settings.json"]


@pytest.mark.parametrize("name", ["cursor", "codex"])
def test_line_ends_of_windows_come_back_as_they_were(tmp_path: Path, name: str) -> None:
    start = {
        "cursor": b'{\r\n  "mcpServers": {\r\n    "other": {"command": "x"}\r\n  }\r\n}\r\n',
        "codex": b'[mcp_servers.other] # mine\r\ncommand = "x"\r\n',
    }[name]
    path = tmp_path / "settings"
    path.write_bytes(start)
    plan_edit(HOSTS[name], path, {"command": "loom", "args": ["mcp"]}).make()
    assert path.read_bytes().count(b"\n") == path.read_bytes().count(b"\r\n") > start.count(b"\r\n")
    plan_edit(HOSTS[name], path, None).make()
    assert path.read_bytes() == start


def test_a_file_of_comments_alone_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("// mine\n", encoding="utf-8")
    edit = plan_edit(HOSTS["vscode"], path, ENTRY)
    assert edit.after is not None
    assert edit.after.startswith("// mine\n{")
    assert not plan_edit(HOSTS["vscode"], path, None).changes


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "settings.json")
    with pytest.raises(UsageError, match="not a file"):
        plan_edit(HOSTS["claude-code"], tmp_path / "settings.json", ENTRY)


def test_a_path_in_the_settings_of_a_person_is_the_same_from_every_folder(tmp_path: Path) -> None:
    home = {**os.environ, "HOME": str(tmp_path), "USERPROFILE": str(tmp_path)}
    command = [LOOM, "mcp", "install", "cursor", "--url", "sqlite:./team.db", "--json"]
    run_loom(command, cwd=tmp_path, check=True, env=home)
    written = json.loads((tmp_path / ".cursor/mcp.json").read_text(encoding="utf-8"))
    assert f"sqlite:{tmp_path / 'team.db'}" in written["mcpServers"]["loom"]["args"]
