"""Try an installed Loom: the quick start of the README, and memory and sessions in every embedded place.

`python scripts/try_install.py README.md`, with the Python that Loom is installed in, from an empty folder. Standard
library and Loom alone; what goes to the network fails. Exits with an error at the first thing that is wrong.
"""

from __future__ import annotations

import contextlib
import io
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


class RefusedConnectionError(AssertionError):
    """Something went to the network."""


def refuse_network() -> None:
    """Connections to other machines fail; the loop of asyncio talks to itself on Windows."""
    connect: Callable[..., Any] = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> Any:
        if self.family == getattr(socket, "AF_UNIX", None) or str(address[0]) in {"127.0.0.1", "::1"}:
            return connect(self, address)
        raise RefusedConnectionError(f"a connection to {address}")

    socket.socket.connect = refuse


def try_quick_start(readme: Path) -> None:
    """The first example of the README prints what the README says."""
    found = re.search(
        r"^```python\n(.*?)^```\n+```text\n(.*?)^```", readme.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(found[1], str(readme), "exec"), {"__name__": "__main__"})
    assert printed.getvalue().strip() == found[2].strip(), printed.getvalue()


def try_memory(place: str) -> None:
    """What was remembered is found by its meaning, and forgotten."""
    from loom import open_memory_sync  # noqa: PLC0415

    with open_memory_sync(place) as memory:
        memory.remember("My sister keeps a sailing boat in Yokohama.", user_id="alice")
        memory.remember("Моя сестра живёт в Казани. 我妹妹住在成都。", user_id="alice")
        found = memory.recall("where is the sailing yacht?", user_id="alice")
        assert not found.notes, found.notes
        assert "Yokohama" in found.hits[0].item.text
        assert "Казани" in memory.recall("сестра живёт", user_id="alice").hits[0].item.text
        memory.forget(user_id="alice")
        assert not memory.recall("boat", user_id="alice").hits


def try_sessions(place: str) -> None:
    """A session is saved, and goes on in another session object."""
    from anyio import run  # noqa: PLC0415

    from loom import Session, open_checkpoints  # noqa: PLC0415
    from loom.testing import ScriptedModel  # noqa: PLC0415

    async def talk() -> None:
        store = open_checkpoints(place)
        first = Session(model=ScriptedModel(["Hello."]), session_id="s", user_id="alice", checkpoints=store)
        await first.send("Hi.")
        again = Session(model=ScriptedModel(["Yes."]), session_id="s", user_id="alice", checkpoints=store)
        await again.restore()
        await again.send("Are you there?")
        assert [message.text for message in again.messages] == ["Hi.", "Hello.", "Are you there?", "Yes."]
        await store.aclose()

    run(talk)


def main() -> None:
    """Everything, in a folder that is removed afterwards."""
    readme = Path(sys.argv[1]).resolve()
    refuse_network()
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, contextlib.chdir(folder):
        try_quick_start(readme)
        for place in ("inmemory", "sqlite:./memory.db"):
            try_memory(place)
        for place in ("inmemory", "sqlite:./sessions.db", "files:./sessions"):
            try_sessions(place)
    print(f"Loom works with Python {sys.version.split()[0]} on {sys.platform}")


if __name__ == "__main__":
    main()
