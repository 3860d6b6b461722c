"""A light load on a cluster. It records what was acknowledged, refused and unknown, and when.

Each directory under load has its own writer and reader, so that a stall of one PostgreSQL node shows only in its
directories. A writer retries a temporary refusal (503, a broken connection) with the same idempotency key, as a careful
client does. Two gateways share the work. Times are of the monotonic clock, in seconds.
"""

import itertools
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from stack.poll import wait_until
from tests.support.rest import Answer, Rest

PACE_S = 0.02
PROGRESS_BOUND_S = 120.0


@dataclass
class Times:
    """The times of successes."""

    at: list[float] = field(default_factory=list)
    refusals: int = 0

    def longest_gap_s(self, since: float, until: float) -> float:
        """The longest time without a success between two moments."""
        inside = [since, *(at for at in self.at if since < at < until), until]
        return max(later - earlier for earlier, later in itertools.pairwise(inside))


class Probe:
    """Measures the availability of one directory: a thread makes directories in it, another looks them up.

    `keyed`: the writer names its requests and retries each until it is answered, which takes every node. Otherwise it
    goes on with another directory.
    """

    def __init__(self, ns: str, directory: str, id: int, writer: Rest, reader: Rest, keyed: bool):
        self.ns, self.directory, self.id, self.keyed = ns, directory, id, keyed
        self.writer, self.reader = writer, reader
        self.acknowledged: list[str] = []
        self.writing: str | None = None  # not acknowledged yet
        self.writes, self.reads = Times(), Times()
        self.wrong: list[str] = []

    def write_one(self, end: threading.Event) -> None:
        path = f"{self.directory}/{uuid.uuid4().hex[:12]}"
        key = str(uuid.uuid4()) if self.keyed else None
        self.writing = path
        while not end.is_set():
            answer = self.writer.call("PUT", f"/v1/ns/{self.ns}/dirs/{path}/", key=key)
            if answer.status == 201:
                self.acknowledged.append(path)
                self.writes.at.append(time.monotonic())
                return
            self._refused(self.writes, f"mkdir {path}", answer, end)
            if not self.keyed:
                return

    def read_one(self, end: threading.Event) -> None:
        if not self.acknowledged:
            end.wait(PACE_S)
            return
        path = self.acknowledged[-1]
        answer = self.reader.call("GET", f"/v1/ns/{self.ns}/entries/{path}/")
        if answer.status == 200:
            self.reads.at.append(time.monotonic())
        else:
            self._refused(self.reads, f"stat {path}", answer, end)

    def _refused(self, times: Times, what: str, answer: Answer, end: threading.Event) -> None:
        times.refusals += 1
        if not answer.passing:
            self.wrong.append(f"{what}: {answer.status} {answer.body}")
        end.wait(PACE_S)


class Workers:
    """Steps that are repeated while the block runs, each by a thread; a wrong answer ends the block with a failure.

    A step gets an event, which is set when the block ends.
    """

    def __init__(self, steps: list[Callable[[threading.Event], None]]):
        self._faults: list[str] = []
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=(step,), daemon=True) for step in steps]

    @property
    def wrong(self) -> list[str]:
        """What was wrong so far."""
        return self._faults

    def _repeat(self, step: Callable[[threading.Event], None]) -> None:
        while not self._end.is_set():
            try:
                step(self._end)
            except Exception as fault:  # a fault of the step itself would end the thread unseen
                self._faults.append(repr(fault))
                raise
            self._end.wait(PACE_S)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_ignored) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        assert self.wrong == [], f"{len(self.wrong)} wrong answers, first: {self.wrong[0]}"

    def _why_not(self) -> str | None:
        return next(iter(self.wrong), None)


class Load(Workers):
    """Probes that run while the block does."""

    def __init__(self, probes: list[Probe]):
        self.probes = probes
        super().__init__([step for probe in probes for step in (probe.write_one, probe.read_one)])

    @property
    def wrong(self) -> list[str]:
        return [*self._faults, *(what for probe in self.probes for what in probe.wrong)]

    def longest_s(self, since: float, until: float, chosen: list[Probe]) -> tuple[float, float]:
        """For the given probes, the longest time without a write (of unkeyed ones) and without a lookup."""
        writes = max(probe.writes.longest_gap_s(since, until) for probe in chosen if not probe.keyed)
        return writes, max(probe.reads.longest_gap_s(since, until) for probe in chosen)

    @property
    def acknowledged(self) -> list[str]:
        return [path for probe in self.probes for path in probe.acknowledged]

    def await_progress(self, more: int = 10) -> None:
        """Waits until every probe has had `more` further acknowledgements and answers."""
        before = [(len(probe.writes.at), len(probe.reads.at)) for probe in self.probes]

        def have_moved() -> bool:
            now = ((len(probe.writes.at), len(probe.reads.at)) for probe in self.probes)
            return all(w >= w0 + more and r >= r0 + more for (w, r), (w0, r0) in zip(now, before, strict=True))

        wait_until(
            have_moved, f"{more} more acknowledgements and answers of each probe", PROGRESS_BOUND_S, self._why_not
        )
