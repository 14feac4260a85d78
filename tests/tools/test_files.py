"""The memory tool: its six commands, its root, its limits, and its users."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom import ToolSpec, open_memory
from loom.errors import UsageError
from loom.protocols.tool import ToolError
from loom.testing import FakeClock
from loom.tools import files
from loom.tools.files import memory_files, path_of

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["inmemory", "sqlite"])
async def memory(request, tmp_path):
    where = "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path / 'm.db'}"
    async with open_memory(where, embedder="hash", clock=FakeClock()) as memory:
        yield memory


@pytest.fixture
def do(memory, call):
    tool = memory_files(memory, clock=FakeClock())

    async def run(command: str, user: str = "ann", **input: Any) -> str:
        return await call(tool, user, "memory", command=command, **input)

    return run


async def test_a_file_lives_through_all_commands(do):
    assert await do("create", path="/memories/notes.txt", file_text="one\ntwo\n") == (
        "File created successfully at: /memories/notes.txt"
    )
    assert await do("view", path="/memories/notes.txt") == (
        "Here's the content of /memories/notes.txt with line numbers:\n     1\tone\n     2\ttwo"
    )
    edited = await do("str_replace", path="/memories/notes.txt", old_str="two", new_str="2")
    assert edited.startswith("The memory file has been edited.")
    assert edited.endswith("     1\tone\n     2\t2")
    assert await do("insert", path="/memories/notes.txt", insert_line=1, insert_text="1.5\n") == (
        "The file /memories/notes.txt has been edited."
    )
    assert await do("rename", old_path="/memories/notes.txt", new_path="/memories/old/notes.txt") == (
        "Successfully renamed /memories/notes.txt to /memories/old/notes.txt"
    )
    seen = await do("view", path="/memories/old/notes.txt")
    assert seen.split("\n")[1:] == ["     1\tone", "     2\t1.5", "     3\t2"]
    assert await do("delete", path="/memories/old/notes.txt") == "Successfully deleted /memories/old/notes.txt"
    with pytest.raises(ToolError, match="does not exist"):
        await do("view", path="/memories/old/notes.txt")


async def test_folders_are_listed_two_levels_deep_with_sizes(do):
    assert (await do("view", path="/memories")).split("\n")[1:] == ["0B\t/memories"]
    for path, text in [("a/b/c.txt", "xy"), ("a/d.txt", "x" * 1536), ("e.txt", ""), (".hidden", "s")]:
        await do("create", path=f"/memories/{path}", file_text=text)
    head, *listed = (await do("view", path="/memories/")).split("\n")
    assert head == "Here're the files and directories up to 2 levels deep in /memories, excluding hidden items:"
    assert listed == [
        "1.5K\t/memories",
        "1.5K\t/memories/a/",
        "2B\t/memories/a/b/",
        "1.5K\t/memories/a/d.txt",
        "0B\t/memories/e.txt",
    ]


async def test_a_folder_moves_and_goes_as_a_whole(do):
    for name in ("x", "y/z"):
        await do("create", path=f"/memories/a/{name}", file_text=name)
    await do("rename", old_path="/memories/a", new_path="/memories/b")
    assert (await do("view", path="/memories/b/y/z")).endswith("1\ty/z")
    with pytest.raises(ToolError, match="does not exist"):
        await do("view", path="/memories/a")
    with pytest.raises(ToolError, match="cannot move into itself"):
        await do("rename", old_path="/memories/b", new_path="/memories/b/c")
    await do("delete", path="/memories/b")
    assert (await do("view", path="/memories")).split("\n")[1:] == ["0B\t/memories"]


async def test_lines_can_be_asked_for(do):
    await do("create", path="/memories/n", file_text="\n".join("abcde"))
    assert (await do("view", path="/memories/n", view_range=[2, 3])).split("\n")[1:] == ["     2\tb", "     3\tc"]
    assert (await do("view", path="/memories/n", view_range=[5, -1])).split("\n")[1:] == ["     5\te"]
    for wrong in ([0, 1], [4, 9], [3, 2], [1], [1, 2, 3]):
        with pytest.raises(ToolError, match="Invalid `view_range`"):
            await do("view", path="/memories/n", view_range=wrong)


@pytest.mark.parametrize(
    ("command", "input", "said"),
    [
        ("create", {"path": "/memories/n", "file_text": "x"}, "File /memories/n already exists"),
        ("create", {"path": "/memories/n/m", "file_text": "x"}, "is a file, so nothing can lie in it"),
        ("create", {"path": "/memories/f", "file_text": "x"}, "already exists"),
        ("create", {"path": "/memories/N", "file_text": "x"}, "only in capital letters"),
        ("create", {"path": "/memories", "file_text": "x"}, "already exists"),
        ("create", {"path": "/memories/x"}, "create needs file_text"),
        ("create", {"file_text": "x"}, "create needs path"),
        ("str_replace", {"path": "/memories/n", "old_str": "z", "new_str": "y"}, "did not appear verbatim"),
        ("str_replace", {"path": "/memories/n", "old_str": "", "new_str": "y"}, "did not appear verbatim"),
        ("str_replace", {"path": "/memories/n", "old_str": "a", "new_str": "y"}, "in lines: 1, 3"),
        ("str_replace", {"path": "/memories/f", "old_str": "a", "new_str": "y"}, "is not a file"),
        ("str_replace", {"path": "/memories/x", "old_str": "a", "new_str": "y"}, "does not exist"),
        ("insert", {"path": "/memories/n", "insert_line": 4, "insert_text": "x"}, r"within the range \[0, 3\]"),
        ("insert", {"path": "/memories/n", "insert_line": -1, "insert_text": "x"}, "Invalid `insert_line`"),
        ("delete", {"path": "/memories"}, "Cannot delete the /memories directory itself"),
        ("delete", {"path": "/memories/x"}, "does not exist"),
        ("rename", {"old_path": "/memories/x", "new_path": "/memories/y"}, "does not exist"),
        ("rename", {"old_path": "/memories/n", "new_path": "/memories/f/g"}, "already exists"),
        ("rename", {"old_path": "/memories/n", "new_path": "/memories/f"}, "already exists"),
        ("rename", {"old_path": "/memories/n", "new_path": "/tmp/n"}, "must start with /memories"),
        ("rename", {"old_path": "/memories", "new_path": "/memories/y"}, "Cannot rename"),
        ("view", {}, "view needs path"),
        ("erase", {"path": "/memories/n"}, "the input of memory is wrong"),
    ],
)
async def test_what_cannot_be_done_is_told_and_changes_nothing(do, command, input, said):
    await do("create", path="/memories/n", file_text="a\nb\na")
    await do("create", path="/memories/f/g", file_text="g")
    before = await do("view", path="/memories")
    with pytest.raises(ToolError, match=said):
        await do(command, **input)
    assert await do("view", path="/memories") == before
    assert (await do("view", path="/memories/n")).endswith("     1\ta\n     2\tb\n     3\ta")


WAYS_OUT = [
    "/etc/passwd",
    "memories/x",
    "/",
    "",
    "/memoriesx/a",
    "/Memories/a",
    "/memories/../etc",
    "/memories/..",
    "/memories/./a",
    "/memories//a",
    "/memories//",
    "/memories/a/",
    "/memories/a\\..\\b",
    "/memories/%2e%2e/a",
    "/memories/a\x00",
    "/memories/a\nb",
    "/memories/a\u200bb",
    "/memories/\u202etxt.a",
    "/memories/\uff0e\uff0e/a",
    "/memories/e\u0301",
    "/memories/~root",
    "/memories/ a",
    "/memories/a ",
    "/memories/" + "a" * 300,
    "/memories/\ud800",
    "\u2215memories/a",
]


@pytest.mark.parametrize("path", [p for p in WAYS_OUT if p != "/memories/a/"])
def test_no_path_leaves_the_root_or_looks_like_another(path):
    with pytest.raises(ToolError, match="Path"):
        path_of(path)


def test_a_plain_path_is_itself():
    for path in ("/memories", "/memories/a.txt", "/memories/a b/é_1-2.md"):
        assert path_of(path) == path
    assert path_of("/memories/a/") == "/memories/a"


@given(st.text(max_size=40))
def test_whatever_is_taken_lies_under_the_root(rest):
    try:
        path = path_of(f"/memories/{rest}")
    except ToolError:
        return
    assert path == "/memories" or path.startswith("/memories/")
    assert ".." not in path.split("/")
    assert path_of(path) == path


async def test_files_are_bounded(do, monkeypatch):
    with pytest.raises(ToolError, match="at most 100,000"):
        await do("create", path="/memories/big", file_text="x" * 100_001)
    await do("create", path="/memories/big", file_text="x" * 100_000)
    with pytest.raises(ToolError, match="at most 100,000"):
        await do("insert", path="/memories/big", insert_line=0, insert_text="y")
    monkeypatch.setattr(files, "MAX_FILES", 2)
    await do("create", path="/memories/second", file_text="")
    with pytest.raises(ToolError, match="there are 2 files already"):
        await do("create", path="/memories/third", file_text="")
    with pytest.raises(UsageError, match="NUL"):
        await do("str_replace", path="/memories/big", old_str="x" * 100_000, new_str="a\0b")


async def test_users_never_meet_and_a_forgotten_user_has_no_files(do, memory):
    await do("create", user="ann", path="/memories/secret", file_text="Ann's secret")
    await do("create", user="bob", path="/memories/secret", file_text="Bob's")
    assert "Bob's" in await do("view", user="bob", path="/memories/secret")
    await do("delete", user="bob", path="/memories/secret")
    assert "Ann's secret" in await do("view", user="ann", path="/memories/secret")
    await memory.forget(user_id="ann")
    assert (await do("view", user="ann", path="/memories")).split("\n")[1:] == ["0B\t/memories"]


async def test_files_are_exported_and_not_shown_by_themselves(do, memory):
    await do("create", path="/memories/n", file_text="the capital is Lisbon")
    assert await memory.blocks(user_id="ann") == ()
    assert not (await memory.recall("What is the capital?", user_id="ann")).hits
    assert "Lisbon" not in str(await memory.profile(user_id="ann"))
    lines = [line async for line in memory.export(user_id="ann")]
    assert any("Lisbon" in line for line in lines)
    await memory.import_(lines, user_id="carl")
    assert "Lisbon" in await do("view", user="carl", path="/memories/n")


async def test_a_provider_that_knows_it_gets_its_own_form_and_the_others_the_schema(memory):
    from loom import Context, render

    context = Context("c", tools=[memory_files(memory).spec])
    context.convo.add("hello")
    window = context.compile()
    body = render(window, "anthropic", "claude-sonnet-4-5")
    assert {k: v for k, v in body["tools"][0].items() if k != "cache_control"} == {
        "type": "memory_20250818",
        "name": "memory",
    }
    assert "input_schema" not in body["tools"][0]
    other = render(window, "openai", "gpt-5")["tools"][0]
    assert (other["name"], sorted(other["parameters"]["properties"])[:2]) == ("memory", ["command", "file_text"])
    assert other["parameters"]["required"] == ["command"]


def test_a_native_form_is_a_copy():
    given = {"anthropic": {"type": "t", "name": "memory"}}
    spec = ToolSpec("memory", native=given)
    given["anthropic"]["type"] = "changed"
    assert spec.native["anthropic"]["type"] == "t"
