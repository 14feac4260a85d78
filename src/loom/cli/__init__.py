"""The command line: `loom`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `loom`; a user's mistake ends in one line and exit code 2, never in a traceback."""
    if sys.argv[1:3] == ["hook", "run"] and "--help" not in sys.argv:
        from loom.server.hooks import main as run_hook

        run_hook(sys.argv[3:])  # a host waits for it: without the modules of the command line
    from loom.cli.app import app
    from loom.cli.output import echo
    from loom.errors import LoomError

    try:
        app()
    except LoomError as error:
        echo(f"loom: {error}", err=True)
        raise SystemExit(2) from None
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the pipe is gone, and Python would complain there at exit
        raise SystemExit(1) from None
