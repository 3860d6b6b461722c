"""Runs phases in processes of their own beside the phases of the stack, because those leave processors idle: they wait
for flushes, locks and restarts of servers.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field

from .commands import TESTS, Counts, at_least_one_failure, python, stream

# Those before these use all processors; the cluster's after them measure time on services of their own.
BESIDE = ("replicas", "pgtap", "upgrade", "e2e")


@dataclass(frozen=True)
class Job:
    """Phases of another process."""

    phases: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    label: str = ""
    """What the names of its phases and of its failures are shown with."""


@dataclass
class Outcome:
    counts: Counts
    table: list[str] = field(default_factory=list)
    """A line for each phase."""
    output: str = ""
    """Empty if it was shown."""


def run_job(job: Job, show: bool = True) -> Outcome:
    head = f"\n== {job.label}{', '.join(job.phases)} ==\n"
    if show:
        print(head, end="", flush=True)
    only = [word for phase in job.phases for word in ("--only", phase)]
    status, lines = stream([sys.executable, str(TESTS / "run.py"), *only], show=show, env=os.environ | job.environment)
    found = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", lines[-1].strip() if lines else "")
    counts = Counts(*map(int, found.groups())) if found else Counts(failed=1)
    failed = (re.match(r"  failed: (.+)", line) for line in lines)
    counts.failures = [f"{job.label}{line[1]}" for line in failed if line]
    table = [f"{line.rstrip()}  {job.label}".rstrip() for line in lines if re.match(r"  \w+ +\d+ s  \d+ passed", line)]
    return Outcome(at_least_one_failure(status, counts), table, "" if show else head + "".join(lines))


class Beside:
    """Runs jobs, one after the other, beside this process' phases."""

    def __init__(self, pool: ThreadPoolExecutor, jobs: Iterable[Job]):
        self._pool, self._jobs = pool, list(jobs)
        self._running: list[Future[Outcome]] = []

    def before(self, phase: str) -> None:
        """Starts the jobs with the first phase that permits it; waits for their end before one that does not."""
        if phase in BESIDE and self._jobs and not self._running:
            python()  # of both processes, so only one may make it
            self._running = [self._pool.submit(run_job, job, show=False) for job in self._jobs]
        elif phase not in BESIDE:
            wait(self._running)

    def outcomes(self) -> Iterator[Outcome]:
        """Waits for their end and shows their output. Without a phase that permitted it, they run now."""
        if not self._running:
            yield from map(run_job, self._jobs)
        for future in self._running:
            outcome = future.result()
            print(outcome.output, end="", flush=True)
            yield outcome


@contextmanager
def beside(jobs: Iterable[Job]) -> Iterator[Beside]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield Beside(pool, jobs)
