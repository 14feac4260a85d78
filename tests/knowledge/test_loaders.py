"""Files and folders become documents; a file that cannot be read is named and stops nothing."""

import os

import pytest

from loom.core import checks
from loom.errors import UsageError
from loom.knowledge import InMemoryKnowledgeBase, load_file, load_folder, loaders
from loom.knowledge.loaders import parts_of

pytestmark = pytest.mark.anyio

GUIDE = """\
---
title: Guide
---
Words before any heading.

# Guide

## Install ##

Run the installer.

```sh
# this is a comment, not a heading
install
```

## Use

### On Linux

Use the shell.

### Empty

Networks
--------

Ask for the key.

# Guide

## Install

Another installer.
"""


async def test_markdown_is_cut_at_headings_and_keeps_the_way_to_each(tmp_path):
    (tmp_path / "guide.md").write_text(GUIDE, encoding="utf-8")
    loaded = await load_file(tmp_path / "guide.md")
    assert loaded.notes == ()
    assert [(document.id, document.attributes.get("heading")) for document in loaded.documents] == [
        ("guide.md", None),
        ("guide.md > Guide > Install", "Guide > Install"),
        ("guide.md > Guide > Use > On Linux", "Guide > Use > On Linux"),
        ("guide.md > Guide > Use > Empty", "Guide > Use > Empty"),
        ("guide.md > Guide > Networks", "Guide > Networks"),
        ("guide.md > Guide > Install (2)", "Guide > Install"),
    ]
    install = loaded.documents[1]
    assert install.text.startswith("## Install ##\n\nRun the installer.")
    assert "# this is a comment" in install.text
    assert (install.source, install.provenance.origin) == (str(tmp_path / "guide.md"), "file")
    assert not install.provenance.trusted
    assert install.attributes["path"] == "guide.md"

    base = InMemoryKnowledgeBase()
    assert await base.add(*loaded.documents) == 6
    (hit, *_) = await base.search("where do I use the shell", where={"path": "guide.md"})
    assert hit.item.attributes["heading"] == "Guide > Use > On Linux"


@pytest.mark.parametrize(
    ("text", "headings"),
    [
        ("# A\n\ntext", [("A",)]),
        ("# A #hashtag\ntext", [("A #hashtag",)]),
        ("#hashtag\ntext", [()]),
        ("    # code\ntext", [()]),
        ("####### seven", [()]),
        ("A\n===\none\nB\n---\ntwo", [("A",), ("A", "B")]),
        ("- item\n---\ntext", [()]),
        ("~~~\n# A\n~~~~\n# B\nx", [(), ("B",)]),
        ("```\n# never closed", [()]),
        ("### deep\nx\n# top\ny", [("deep",), ("top",)]),
        ("#\ntext", [("#",)]),
        ("", []),
    ],
)
def test_what_counts_as_a_heading(text, headings):
    assert [part.headings for part in parts_of(text)] == headings


async def test_no_text_is_lost_between_sections():
    parts = parts_of(GUIDE)
    told = "\n".join("\n".join((*part.headings, part.text)) for part in parts)
    for line in GUIDE.splitlines():
        assert line.strip("# ") in told


async def test_a_folder_is_read_in_order_and_the_progress_is_told(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.txt").write_text("Bruno drinks coffee.", encoding="utf-8")
    (tmp_path / "a.txt").write_text("\ufeffAnna drinks tea.", encoding="utf-8")
    (tmp_path / "c.py").write_text("print()", encoding="utf-8")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.txt").write_text("hidden", encoding="utf-8")
    told = []
    loaded = await load_folder(tmp_path, progress=lambda done, of: told.append((done, of)))
    assert [(document.id, document.text) for document in loaded.documents] == [
        ("a.txt", "Anna drinks tea."),
        ("b/two.txt", "Bruno drinks coffee."),
    ]
    assert told == [(1, 2), (2, 2)]
    python = await load_folder(tmp_path, pattern="*.py", trusted=True)
    assert [(document.id, document.provenance.trusted) for document in python.documents] == [("c.py", True)]

    base = InMemoryKnowledgeBase()
    assert await base.add(*loaded.documents) == 2
    (tmp_path / "a.txt").write_text("Anna drinks cocoa.", encoding="utf-8")
    assert await base.add(*(await load_folder(tmp_path)).documents) == 1


async def test_files_that_cannot_be_read_are_named_and_stop_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(loaders, "MAX_DOCUMENT", 50)
    (tmp_path / "good.txt").write_text("Anna drinks tea.", encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "long.txt").write_text("x" * 51, encoding="utf-8")
    (tmp_path / "huge.txt").write_text("x" * 201, encoding="utf-8")
    (tmp_path / "nul.txt").write_bytes(b"a\0b")
    (tmp_path / "empty.txt").write_bytes(b" \n")
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere.txt")
    outside = tmp_path.parent / f"{tmp_path.name}-outside.txt"
    outside.write_text("secret", encoding="utf-8")
    (tmp_path / "out.txt").symlink_to(outside)
    loaded = await load_folder(tmp_path)
    assert [document.id for document in loaded.documents] == ["good.txt"]
    named = {note.split(" was left out: ")[0].rsplit("/", 1)[-1]: note for note in loaded.notes}
    assert set(named) == {"latin.txt", "long.txt", "huge.txt", "nul.txt", "empty.txt", "out.txt"}
    assert "not UTF-8 (byte 3)" in named["latin.txt"]
    assert "51 characters" in named["long.txt"]
    assert "out of the folder" in named["out.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
async def test_a_file_without_permission_is_named(tmp_path):
    (tmp_path / "secret.txt").write_text("x", encoding="utf-8")
    (tmp_path / "secret.txt").chmod(0)
    (note,) = (await load_file(tmp_path / "secret.txt")).notes
    assert "Permission denied" in note


async def test_more_files_or_text_than_the_limits_is_said(tmp_path, monkeypatch):
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("0123456789", encoding="utf-8")
    monkeypatch.setattr(loaders, "MAX_FILES", 3)
    loaded = await load_folder(tmp_path)
    assert (len(loaded.documents), len(loaded.notes)) == (3, 1)
    assert "5 files; the first 3 were read" in loaded.notes[0]
    monkeypatch.setattr(loaders, "MAX_FOLDER", 25)
    loaded = await load_folder(tmp_path)
    assert len(loaded.documents) == 2
    assert "at most 25 characters" in loaded.notes[-1]
    assert checks.MAX_FOLDER > checks.MAX_DOCUMENT


@pytest.mark.parametrize("pattern", ["../*.txt", "/etc/*", "a/../../*", ""])
async def test_a_pattern_cannot_lead_out_of_the_folder(tmp_path, pattern):
    with pytest.raises(UsageError, match="pattern"):
        await load_folder(tmp_path, pattern=pattern)


async def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is not a folder"):
        await load_folder(tmp_path / "nothing")
    with pytest.raises(UsageError, match="is not a file"):
        await load_file(tmp_path)


async def test_long_names_and_headings_become_ids_that_differ(tmp_path):
    text = "\n".join(f"# {'long heading ' * 60}{n}\ntext {n}" for n in range(3))
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    loaded = await load_file(tmp_path / "a.md")
    assert len({document.id for document in loaded.documents}) == 3
    assert await InMemoryKnowledgeBase().add(*loaded.documents) == 3


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_a_bar_is_shown_in_a_terminal_alone(is_terminal, tmp_path, capsys, monkeypatch):
    for number in range(3):
        (tmp_path / f"{number}.md").write_text(f"# Tea {number}\n\nGreen.")
    monkeypatch.setenv("FORCE_COLOR", "1") if is_terminal else monkeypatch.delenv("FORCE_COLOR", raising=False)
    loaded = await load_folder(tmp_path, progress=True)
    assert len(loaded.documents) == 3
    assert ("reading files" in capsys.readouterr().err) is is_terminal
