"""How the command lines of the launchers end.

Invariant: a command that fails or is cut short has ended what it had started.
"""

import os
import signal
import sys
from collections.abc import Callable

from .failure import Failure


def run_command(command: Callable[[], int | None]) -> int:
    """Runs a command; returns the process's exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds the stack, which ends what was started
    os.umask(0o022)
    try:
        return command() or 0
    except Failure as failure:
        print(f"\nmantle: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nmantle: interrupted; what this run had started was ended", file=sys.stderr)
        return 130
