"""The phases that depend on PostgreSQL's version, on another one than the rest of the run: `--also 18`, or with names
of phases `--also 18=pgtap,upgrade`.

They run in a process of their own, because a stack belongs to one version.
"""

import os
import re
import sys

from .commands import TESTS, Counts, at_least_one_failure, stream

PHASES = ("pgtap", "upgrade", "e2e")


def run_on(given: str) -> Counts:
    server, _, names = given.partition("=")
    phases = names.split(",") if names else PHASES
    print(f"\n== PostgreSQL {server}: {', '.join(phases)} ==", flush=True)
    only = [word for phase in phases for word in ("--only", phase)]
    command = [sys.executable, str(TESTS / "run.py"), *only]
    status, lines = stream(command, env={**os.environ, "MANTLE_PG": server})
    found = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", lines[-1].strip() if lines else "")
    counts = Counts(*map(int, found.groups())) if found else Counts(failed=1)
    failed = (re.match(r"  failed: (.+)", line) for line in lines)
    counts.failures = [f"PostgreSQL {server}: {line[1]}" for line in failed if line]
    return at_least_one_failure(status, counts)
