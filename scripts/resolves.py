"""Ask uv whether the base install resolves from wheels alone, for every Python and system that Loom names.

`python -m scripts.resolves` prints a table and exits with 1 if one fails; `--update` writes the table and its date to
`tests/packaging/resolves.json`. Needs uv and a package index; nothing is installed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = ROOT / "tests/packaging/resolves.json"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14", "3.15")
SYSTEMS: Final = {
    "Linux x86_64, glibc": "x86_64-manylinux_2_28",
    "Linux aarch64, glibc": "aarch64-manylinux_2_28",
    "Linux x86_64, musl": "x86_64-unknown-linux-musl",
    "Linux aarch64, musl": "aarch64-unknown-linux-musl",
    "macOS arm64": "aarch64-apple-darwin",
    "Windows x86_64": "x86_64-pc-windows-msvc",
}


def find_uv() -> str | None:
    """The program uv: beside this Python, or on the path."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def base_dependencies() -> list[str]:
    """What the base install of Loom asks for."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]


def resolve(uv: str, python: str, platform: str) -> tuple[list[str], str]:
    """The packages with their versions, or none and what uv said."""
    command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    command += ["--python-version", python, "--python-platform", platform, "-"]
    wanted = "\n".join(base_dependencies())
    done = subprocess.run(command, input=wanted, capture_output=True, text=True, check=False, cwd=ROOT.anchor)
    return (done.stdout.split("\n")[:-1], "") if done.returncode == 0 else ([], done.stderr.strip())


def resolve_all(uv: str, pythons: Sequence[str] = PYTHONS) -> dict[str, dict[str, tuple[list[str], str]]]:
    """For every system and Python, what resolve() says."""
    pairs = list(product(SYSTEMS, pythons))
    with ThreadPoolExecutor(15) as threads:  # they wait for the index
        found = [threads.submit(resolve, uv, python, SYSTEMS[system]) for system, python in pairs]
    table: dict[str, dict[str, tuple[list[str], str]]] = {system: {} for system in SYSTEMS}
    for (system, python), result in zip(pairs, found, strict=True):
        table[system][python] = result.result()
    return table


def main() -> int:
    """Resolve, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true")
    given = parser.parse_args()
    uv = find_uv()
    if uv is None:
        print("uv is not installed; run: pip install uv")
        return 2
    table = resolve_all(uv)
    for system, row in table.items():
        print(f"{system:24}", *(f"{python}: {len(names) or 'fails'}" for python, (names, _) in row.items()), sep="  ")
    failures = [said for row in table.values() for _, said in row.values() if said]
    print(*dict.fromkeys(failures), sep="\n")
    if given.update and not failures:
        packages = {system: {python: names for python, (names, _) in row.items()} for system, row in table.items()}
        held = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "asked": base_dependencies(), "packages": packages}
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
