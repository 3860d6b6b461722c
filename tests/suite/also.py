"""The phases that depend on PostgreSQL's version, on another one than the rest of the run: `--also 18`, or with names
`--also 18=pgtap,server`. `server` is the part of e2e that may differ between versions of PostgreSQL.

They run in a process of their own, because a stack belongs to one version.
"""

import os
import re
import sys

from .commands import TESTS, Counts, at_least_one_failure, stream

PHASES = ("pgtap", "upgrade", "e2e")
SERVER = "server"


def run_on(given: str) -> Counts:
    server, _, names = given.partition("=")
    chosen = names.split(",") if names else PHASES
    print(f"\n== PostgreSQL {server}: {', '.join(chosen)} ==", flush=True)
    only = [word for name in chosen for word in ("--only", "e2e" if name == SERVER else name)]
    environment = {**os.environ, "MANTLE_PG": server} | ({"MANTLE_E2E_SERVER": "1"} if SERVER in chosen else {})
    status, lines = stream([sys.executable, str(TESTS / "run.py"), *only], env=environment)
    found = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", lines[-1].strip() if lines else "")
    counts = Counts(*map(int, found.groups())) if found else Counts(failed=1)
    failed = (re.match(r"  failed: (.+)", line) for line in lines)
    counts.failures = [f"PostgreSQL {server}: {line[1]}" for line in failed if line]
    return at_least_one_failure(status, counts)
