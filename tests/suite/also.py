"""The phases that depend on PostgreSQL's version, on another one than the rest of the run: `--also 18`, or with names
`--also 18=pgtap,server`. `server` is the part of e2e that may differ between versions of PostgreSQL.

They run in a process of their own, because a stack belongs to one version. Its stack has a directory and ports of its
own, so that it runs beside phases which leave processors idle: they wait for flushes, locks and restarts of servers.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from .commands import TESTS, Counts, at_least_one_failure, python, stream

PHASES = ("pgtap", "upgrade", "e2e")
SERVER = "server"
# The phases beside which they run. Those before use all processors; those after measure time on services of their own.
BESIDE = ("concurrency", "distributed", "replicas", "pgtap", "upgrade")
PLACE = {"MANTLE_TEST_FOLDER": ".test-also", "MANTLE_TEST_PORT_BASE": "8300"}


def _chosen(given: str) -> tuple[str, list[str]]:
    """The server and the names of phases."""
    server, _, names = given.partition("=")
    return server, names.split(",") if names else list(PHASES)


def may_run_beside(given: str) -> bool:
    """Whether nothing in it has one place for all runs, as the tests of upgrades have."""
    return "upgrade" not in _chosen(given)[1]


def run_on(given: str, show: bool = True) -> tuple[Counts, str]:
    """The counts, and the output if it was not shown."""
    server, chosen = _chosen(given)
    head = f"\n== PostgreSQL {server}: {', '.join(chosen)} ==\n"
    if show:
        print(head, end="", flush=True)
    only = [word for name in chosen for word in ("--only", "e2e" if name == SERVER else name)]
    environment = {**os.environ, **PLACE, "MANTLE_PG": server}
    environment |= {"MANTLE_E2E_SERVER": "1"} if SERVER in chosen else {}
    status, lines = stream([sys.executable, str(TESTS / "run.py"), *only], show=show, env=environment)
    found = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", lines[-1].strip() if lines else "")
    counts = Counts(*map(int, found.groups())) if found else Counts(failed=1)
    failed = (re.match(r"  failed: (.+)", line) for line in lines)
    counts.failures = [f"PostgreSQL {server}: {line[1]}" for line in failed if line]
    return at_least_one_failure(status, counts), "" if show else head + "".join(lines)


class Beside:
    """Runs on other versions, one after the other, beside this one."""

    def __init__(self, pool: ThreadPoolExecutor, given: Iterable[str]):
        self._pool, self._given = pool, list(given)
        self._running: list[Future[tuple[Counts, str]]] = []

    def before(self, phase: str) -> None:
        """Starts them with the first phase that permits it; waits for their end before one that does not."""
        if phase in BESIDE and self._given and not self._running:
            python()  # of both processes, so only one may make it
            self._running = [self._pool.submit(run_on, given, show=False) for given in self._given]
        elif phase not in BESIDE:
            wait(self._running)

    def counts(self) -> Counts:
        """Waits for their end and shows their output. Without a phase that permitted it, they run now."""
        total = Counts()
        if not self._running:
            for given in self._given:
                total += run_on(given)[0]
        for future in self._running:
            counts, output = future.result()
            print(output, end="", flush=True)
            total += counts
        return total


@contextmanager
def beside(given: Iterable[str]) -> Iterator[Beside]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield Beside(pool, given)
