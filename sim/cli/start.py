"""Where the command line starts. It imports nothing before it is ready to answer Ctrl-C."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `kneesim`; Ctrl-C ends it with status 130 and no traceback, even during its imports."""
    try:
        from sim.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
