"""The programs that start Loom's MCP server and its hooks: where their settings are, and careful edits of those files.

A settings file is somebody's own: comments, order and spacing stay, only Loom's entry changes, and an edit is made only
if the file means the same as before apart from that entry. A file that cannot be read is left as it is.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

from loom.errors import UsageError

Json: TypeAlias = dict[str, Any]
NAME: Final = "loom"
"""The name of the entry."""
MOST_BYTES: Final = 20_000_000
"""Size of a settings file that is edited."""


@dataclass(frozen=True, slots=True)
class Host:
    """A program with MCP servers: its settings files, and the table in which it lists servers."""

    name: str
    title: str
    user_file: tuple[str, ...]
    project_file: tuple[str, ...] | None
    table: str = "mcpServers"
    form: Literal["json", "toml"] = "json"
    typed: bool = False
    """Whether an entry says how the server is reached: `"type": "stdio"`."""
    hooks_file: tuple[str, ...] | None = None
    """Where its hooks are, in the home folder and in that of a project."""
    events: tuple[str, ...] = ()
    """The events of its hooks that Loom answers."""

    def path(self, *, project: Path | None, home: Path, platform: str = sys.platform) -> Path:
        """Its settings file: of a project's folder, or of the user."""
        if project is not None:
            if self.project_file is None:
                raise UsageError(f"{self.title} has no settings of a project; leave out --project")
            return project.joinpath(*self.project_file)
        folder = {"CONFIG": _config_folder(home, platform)}
        first, *rest = self.user_file
        return folder.get(first, home / first).joinpath(*rest)


def _config_folder(home: Path, platform: str) -> Path:
    if platform == "darwin":
        return home / "Library/Application Support"
    if platform == "win32":
        return Path(os.environ.get("APPDATA") or home / "AppData/Roaming")
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")


HOSTS: Final = {
    host.name: host
    for host in (
        Host(
            "claude-code",
            "Claude Code",
            (".claude.json",),
            (".mcp.json",),
            hooks_file=(".claude", "settings.json"),
            events=("SessionStart", "UserPromptSubmit", "PreCompact", "SessionEnd"),
        ),
        Host(
            "codex",
            "Codex",
            (".codex", "config.toml"),
            (".codex", "config.toml"),
            "mcp_servers",
            "toml",
            hooks_file=(".codex", "hooks.json"),
            events=("SessionStart", "UserPromptSubmit", "PreCompact", "Stop"),  # it has no event for the end
        ),
        Host("cursor", "Cursor", (".cursor", "mcp.json"), (".cursor", "mcp.json")),
        Host(
            "vscode", "VS Code", ("CONFIG", "Code", "User", "mcp.json"), (".vscode", "mcp.json"), "servers", typed=True
        ),
        Host("claude-desktop", "Claude Desktop", ("CONFIG", "Claude", "claude_desktop_config.json"), None),
    )
}


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a settings file that was not made yet."""

    path: Path
    before: str | None
    after: str | None
    """None: there is no file, and none is needed."""

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return self.before != self.after

    @property
    def diff(self) -> str:
        """What would change, as a unified diff."""
        old, new = ((text or "").splitlines(keepends=True) for text in (self.before, self.after))
        lines = unified_diff(old, new, str(self.path), str(self.path))
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    def make(self) -> None:
        """Write the file in one step, so that a reader sees the old text or the new one.

        Raises:
            UsageError: the program wrote its settings meanwhile, and they are left as they are.
        """
        path = self.path.resolve()  # a link stays a link
        if self.after is None:
            return
        if _read(self.path) != self.before:
            raise UsageError(f"{self.path} was changed meanwhile, and was left as it is; run the command again")
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = path.stat().st_mode & 0o7777 if path.exists() else None
            opened = partial(
                os.open, mode=0o666 if mode is None else 0o600
            )  # settings hold keys: never readable by more
            try:
                with open(temporary, "xb", opener=opened) as file:
                    file.write(self.after.encode())
                if mode is not None:
                    temporary.chmod(mode)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror or error}") from error


def plan_edit(host: Host, path: Path, entry: Mapping[str, Any] | None) -> Edit:
    """The edit that puts the entry in, or with None takes it out.

    Raises:
        UsageError: the file is not valid, and is left as it is; the message has its line and column.
    """
    before = _read(path)
    wanted = None if entry is None else {**({"type": "stdio"} if host.typed else {}), **entry}
    if before is None:
        return Edit(path, None, None if wanted is None else _fresh(host, wanted))
    parse, change = (_parse_toml, _change_toml) if host.form == "toml" else (_parse_json, _change_json)
    old = parse(before, path)
    servers = old.get(host.table, {})
    if not isinstance(servers, dict):
        raise UsageError(f"{path}: {host.table} is not a table of servers; correct it, nothing was changed")
    found = cast("Json", servers).get(NAME)
    if found == wanted:
        return Edit(path, before, before)
    after = change(before, host.table, wanted)
    left = {name: value for name, value in cast("Json", servers).items() if name != NAME}
    expected = {**old, host.table: left if wanted is None else {**left, NAME: wanted}}
    try:
        got = parse(after, path)
    except UsageError:
        got = {}
    if _without_empty(got, host.table) != _without_empty(expected, host.table):
        raise UsageError(
            f"{path} lists its servers in a form that cannot be edited safely, and was left as it is; "
            f"change the entry {host.table}.{NAME} by hand"
        )
    return Edit(path, before, after)


def _without_empty(settings: Json, table: str) -> Json:
    return {name: value for name, value in settings.items() if name != table or value}


def _read(path: Path) -> str | None:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # reading a pipe would wait for ever
            raise UsageError(f"{path} is not a file; it was left as it is")
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} is larger than {MOST_BYTES:,} bytes; it was left as it is")
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}); it was left as it is") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; it was left as it is") from error


def _fresh(host: Host, entry: Json) -> str:
    if host.form == "toml":
        return _toml_section(host.table, entry)
    return json.dumps({host.table: {NAME: entry}}, indent=2, ensure_ascii=False) + "\n"


# JSON, with the comments and trailing commas that editors allow.

_JSON_TOKEN: Final = re.compile(
    r"(?P<space>[ \t\r\n\ufeff]+|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)"
    r'|(?P<string>"(?:[^"\\\x00-\x1f]|\\.)*")|(?P<mark>[{}\[\],:])|(?P<word>[^\s{}\[\],:"/]+)'
)


_LINE_COMMENT: Final = re.compile(r"[ \t]*(?://[^\r\n]*)?(?=\r?\n)")


@dataclass(slots=True)
class _Member:
    """A member of an object: where its key begins, where its value begins and ends."""

    key: str
    start: int
    value: int
    end: int
    comma: int | None = None
    """Where the comma behind it is."""


@dataclass(slots=True)
class _Object:
    """An object or a list: where its brackets are, and its members."""

    start: int
    end: int
    members: list[_Member]

    def find(self, key: str) -> _Member | None:
        return next((member for member in reversed(self.members) if member.key == key), None)


class _JsonReader:
    """Reads JSON with comments; remembers where the members of objects are."""

    def __init__(self, text: str, path: Path) -> None:
        self.text, self.path = text, path
        self.objects: dict[int, _Object] = {}
        """Objects by where they begin, and lists, whose members have no key."""
        self._at = 0

    def read(self) -> Any:
        """The value of the whole text; an empty text is an empty object."""
        if self._peek() is None:
            return {}
        value = self._value(0)
        if self._peek() is not None:
            self._refuse("something stands behind the end")
        return value

    def _refuse(self, what: str) -> Any:
        line = self.text.count("\n", 0, self._at) + 1
        column = self._at - (self.text.rfind("\n", 0, self._at) + 1) + 1
        raise UsageError(f"{self.path}:{line}:{column}: {what}; correct it first, the file was left as it is")

    def _peek(self) -> re.Match[str] | None:
        while self._at < len(self.text):
            found = _JSON_TOKEN.match(self.text, self._at)
            if found is None:
                return self._refuse("this is not JSON")
            if found.lastgroup != "space":
                return found
            self._at = found.end()
        return None

    def _take(self, what: str) -> re.Match[str]:
        found = self._peek()
        if found is None:
            return self._refuse(f"the text ends where {what} is expected")
        self._at = found.end()
        return found

    def _value(self, depth: int) -> Any:
        if depth > _DEPTH:
            self._refuse(f"it is nested deeper than {_DEPTH} levels")
        start = self._at
        token = self._take("a value")
        start = token.start()
        if token[0] == "{":
            return self._object(start, depth)
        if token[0] == "[":
            return self._array(start, depth)
        if token.lastgroup in {"string", "word"}:
            try:
                return json.loads(token[0])
            except ValueError:
                pass
        self._at = start
        return self._refuse("this is not a JSON value")

    def _object(self, start: int, depth: int) -> Json:
        found: Json = {}
        members: list[_Member] = []
        while True:
            token = self._take('a name or "}"')
            if token[0] == "}":
                self.objects[start] = _Object(start, self._at, members)
                return found
            if token.lastgroup != "string" or (members and members[-1].comma is None):
                self._at = token.start()
                self._refuse('"," or "}" is expected' if members else 'a name in quotes or "}" is expected')
            key = cast("str", json.loads(token[0], strict=False))
            colon = self._take('":"')
            if colon[0] != ":":
                self._at = colon.start()
                self._refuse('":" is expected')
            self._peek()
            begin = self._at
            found[key] = self._value(depth + 1)
            members.append(_Member(key, token.start(), begin, self._at))
            following = self._peek()
            if following is not None and following[0] == ",":
                members[-1].comma = following.start()
                self._at = following.end()

    def _array(self, start: int, depth: int) -> list[Any]:
        found: list[Any] = []
        members: list[_Member] = []
        while True:
            token = self._peek()
            if token is not None and token[0] == "]":
                self._at = token.end()
                self.objects[start] = _Object(start, self._at, members)
                return found
            if members and members[-1].comma is None:
                self._refuse('"," or "]" is expected')
            begin = self._at
            found.append(self._value(depth + 1))
            members.append(_Member("", begin, begin, self._at))
            following = self._peek()
            if following is not None and following[0] == ",":
                members[-1].comma = following.start()
                self._at = following.end()


_DEPTH: Final = 100


def _parse_json(text: str, path: Path) -> Json:
    found = _JsonReader(text, path).read()
    if not isinstance(found, dict):
        raise UsageError(f"{path}:1:1: the settings are not an object; correct it first, the file was left as it is")
    return cast("Json", found)


def _change_json(text: str, table: str, entry: Json | None) -> str:
    reader = _JsonReader(text, Path())
    reader.read()
    if not reader.objects:  # an empty file, or comments alone
        if entry is None:
            return text
        comments = text.strip(" \t\r\n\ufeff")
        new = json.dumps({table: {NAME: entry}}, indent=2, ensure_ascii=False) + "\n"
        return f"{text.rstrip()}{_like(text, chr(10) + new)}" if comments else new
    root = reader.objects[min(reader.objects)]
    holder = root.find(table)
    step = _indent_of(text, root)
    if holder is None:
        new = f"{json.dumps(table)}: {_written({NAME: entry}, step, 1)}"
        return text if entry is None else _put_in(text, root, new, step, step)
    servers = reader.objects[holder.value]
    member = servers.find(NAME)
    if entry is None:
        return text if member is None else _take_out(text, servers, member)
    if member is None:
        return _put_in(text, servers, f"{json.dumps(NAME)}: {_written(entry, step, 2)}", step * 2, step)
    return text[: member.value] + _like(text, _written(entry, step, 2)) + text[member.end :]


def _indent_of(text: str, root: _Object) -> str:
    """How one level is indented: as the first member is."""
    if root.members:
        line = text.rfind("\n", 0, root.members[0].start) + 1
        before = text[line : root.members[0].start]
        if before and not before.strip():
            return before
    return "  "


def _written(value: object, step: str, level: int) -> str:
    return json.dumps(value, indent=step, ensure_ascii=False).replace("\n", "\n" + step * level)


def _like(text: str, new: str) -> str:
    """A new piece with the line ends of the text."""
    return new.replace("\n", "\r\n") if "\r\n" in text else new


def _put_in(text: str, holder: _Object, new: str, indent: str, step: str) -> str:
    """The text with a member behind the last one of an object or a list; a comment at the end of a line stays."""
    if not holder.members:
        inside = text[holder.start + 1 : holder.end - 1].rstrip()  # comments
        end = f"\n{indent.removesuffix(step)}{text[holder.end - 1]}"
        return text[: holder.start + 1] + inside + _like(text, f"\n{indent}{new}{end}") + text[holder.end :]
    last = holder.members[-1]
    has_comma = last.comma is not None  # behind the last member, so the new one gets one too
    after = last.end if last.comma is None else last.comma + 1
    rest = _LINE_COMMENT.match(text, after, holder.end)
    at = rest.end() if rest else after
    piece = _like(text, f"\n{indent}{new}{',' if has_comma else ''}")
    return text[:after] + ("" if has_comma else ",") + text[after:at] + piece + text[at:]


def _take_out(text: str, holder: _Object, member: _Member) -> str:
    """The text without a member, the line it stood on and the comma that belongs to it."""
    place = holder.members.index(member)
    start, end = member.start, member.end if member.comma is None else member.comma + 1
    line = text.rfind("\n", 0, start)
    if line >= 0 and not text[line:start].strip():
        start = line - 1 if text[line - 1 : line] == "\r" else line
    if member.comma is None and place > 0:  # the last one: the comma in front goes as well
        comma = cast("int", holder.members[place - 1].comma)
        return text[:comma] + text[comma + 1 : start] + text[end:]
    return text[:start] + text[end:]


# Hooks: lists of groups by event, each group with a list of commands. Loom's own are known by their words.

_OWN_HOOK: Final = re.compile(r"\bloom(?:\.exe)?[\"']* hook run ")
HOOKS: Final = "hooks"


def plan_hooks(path: Path, hooks: Mapping[str, Json] | None) -> Edit:
    """The edit that puts a command behind the others of each event, or with None takes all commands of Loom out.

    Raises:
        UsageError: the file is not valid, or has hooks of another form; it is left as it is.
    """
    before = _read(path)
    if before is None and hooks is None:
        return Edit(path, None, None)
    after = before or ""
    old = _parse_json(after, path)
    _check_hooks(old, path)
    events = [*(hooks or {}), *(event for event in old.get(HOOKS, {}) if event not in (hooks or {}))]
    for event in events:
        while (changed := _change_hooks(after, event, (hooks or {}).get(event))) != after:
            after = changed
    new = _parse_json(after, path)
    if _others(new) != _others(old) or _own(new) != {event: [hook] for event, hook in (hooks or {}).items()}:
        raise UsageError(
            f"{path} lists its hooks in a form that cannot be edited safely, and was left as it is; change them by hand"
        )
    return Edit(path, before, after)


def _check_hooks(settings: Json, path: Path) -> None:
    events: Any = settings.get(HOOKS, {})
    for groups in cast("Json", events).values() if isinstance(events, dict) else [None]:
        for group in cast("list[Any]", groups) if isinstance(groups, list) else [None]:
            hooks: Any = cast("Json", group).get(HOOKS, []) if isinstance(group, dict) else None
            if not isinstance(hooks, list) or not all(isinstance(hook, dict) for hook in cast("list[Any]", hooks)):
                raise UsageError(f"{path}: {HOOKS} is not a table of lists of hooks; correct it, nothing was changed")


def _is_own(hook: Json) -> bool:
    return bool(_OWN_HOOK.search(str(hook.get("command", ""))))


def _own(settings: Json) -> dict[str, list[Json]]:
    """Loom's commands by event."""
    found = {
        event: [hook for group in groups for hook in group.get(HOOKS, []) if _is_own(hook)]
        for event, groups in settings.get(HOOKS, {}).items()
    }
    return {event: own for event, own in found.items() if own}


def _others(settings: Json) -> Json:
    """The settings without Loom's commands, and without what is empty then."""

    def group_without(group: Json) -> Json:
        return {**group, HOOKS: [hook for hook in group[HOOKS] if not _is_own(hook)]} if HOOKS in group else group

    events = {
        event: [left for group in groups if (left := group_without(group)) == group or left[HOOKS]]
        for event, groups in settings.get(HOOKS, {}).items()
    }
    rest = {name: value for name, value in settings.items() if name != HOOKS}
    kept = {event: groups for event, groups in events.items() if groups}
    return {**rest, HOOKS: kept} if kept else rest


def _change_hooks(text: str, event: str, wanted: Json | None) -> str:
    """One step towards the one command that is wanted of an event; the same text where nothing is left to do."""
    reader = _JsonReader(text, Path())
    settings = reader.read()
    group = {HOOKS: [wanted]}
    if not reader.objects:  # an empty file
        return text if wanted is None else json.dumps({HOOKS: {event: [group]}}, indent=2, ensure_ascii=False) + "\n"
    root = reader.objects[min(reader.objects)]
    step = _indent_of(text, root)
    table = root.find(HOOKS)
    member = reader.objects[table.value].find(event) if table else None
    if table is None or member is None:
        if wanted is None:
            return text
        if table is None:
            new = f"{json.dumps(HOOKS)}: {_written({event: [group]}, step, 1)}"
            return _put_in(text, root, new, step, step)
        new = f"{json.dumps(event)}: {_written([group], step, 2)}"
        return _put_in(text, reader.objects[table.value], new, step * 2, step)
    groups = settings[HOOKS][event]
    places = reader.objects[member.value]
    found = [
        (at, place, hook)
        for at, one in enumerate(groups)
        for place, hook in enumerate(one.get(HOOKS, []))
        if _is_own(hook)
    ]
    if not found:
        return text if wanted is None else _put_in(text, places, _written(group, step, 3), step * 3, step)
    at, place, hook = found[-1]
    handlers = reader.objects[cast("_Member", reader.objects[places.members[at].value].find(HOOKS)).value]
    if wanted is not None and len(found) == 1:
        one = handlers.members[place]
        return text if hook == wanted else text[: one.value] + _like(text, _written(wanted, step, 5)) + text[one.end :]
    if len(handlers.members) > 1:
        return _take_out(text, handlers, handlers.members[place])
    if len(groups) > 1:
        return _take_out(text, places, places.members[at])
    if len(settings[HOOKS]) > 1:
        return _take_out(text, reader.objects[table.value], member)
    return _take_out(text, root, table)


# TOML: Loom's tables are a block of lines, at the end of the file or where they were.

_HEADER: Final = re.compile(r"[ \t]{0,40}\[{1,2}([^\[\]\n#]{1,300})\]{1,2}[ \t]{0,40}(?:#[^\n]*)?$")


def _parse_toml(text: str, path: Path) -> Json:
    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line (\d+), column (\d+)", str(error))
        lines = text.splitlines() or [""]
        line, column = (place[1], place[2]) if place else (str(len(lines)), str(len(lines[-1]) + 1))
        what = str(error).partition(" (at")[0]
        raise UsageError(f"{path}:{line}:{column}: {what}; correct it first, the file was left as it is") from error


def _change_toml(text: str, table: str, entry: Json | None) -> str:
    before: list[str] = []
    behind: list[str] = []
    waiting: list[str] = []  # blank lines and comments inside Loom's block: they belong to the table that follows them
    is_own = seen = False
    for line in text.splitlines(keepends=True):
        header = _HEADER.match(line.rstrip("\r\n"))
        if header is not None:
            name = re.sub(r"[\s\"']", "", header[1])
            is_own = f"{name}.".startswith(f"{table}.{NAME}.")
            seen = seen or is_own
            behind += () if is_own else waiting
            waiting = []
        if not is_own:
            (behind if seen else before).append(line)
        elif header is None:
            waiting = [*waiting, line] if not line.strip() or line.lstrip().startswith("#") else []
    head, tail = "".join(before), "".join(behind)
    section = "" if entry is None else _toml_section(table, entry)
    if not tail:
        gap = "\n\n" if section else "\n"
        head = head.rstrip() + _like(text, gap) if head.strip() else ""
    elif section and not tail.startswith(("\n", "\r")):
        section += "\n"
    return head + _like(text, section) + tail


def _toml_section(table: str, entry: Json) -> str:
    lines = [f"[{table}.{NAME}]"]
    lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in entry.items() if name != "env"]
    if entry.get("env"):
        lines += ["", f"[{table}.{NAME}.env]"]
        lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in entry["env"].items()]
    return "\n".join(lines) + "\n"
