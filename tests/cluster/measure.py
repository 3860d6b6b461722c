"""Measures unavailability while a block runs; conftest.py prints the report."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.cluster import Cluster
from cluster.services import Replica

from .load import Load, Probe


@dataclass
class Gaps:
    """The longest times without a write and without a lookup, in seconds."""

    writes: float
    lookups: float

    def __str__(self) -> str:
        return f"writes {self.writes:.1f}, lookups {self.lookups:.1f}"


@dataclass
class Measured:
    """What clients saw of a fault: on the shards of the group that it hit, and on the others."""

    what: str
    hit: Gaps | None
    others: Gaps | None
    acknowledged: int
    refusals: int

    def __str__(self) -> str:
        parts = [f"{name}: {gaps}" for name, gaps in (("its shards", self.hit), ("others", self.others)) if gaps]
        counts = f"({self.acknowledged} acknowledged, {self.refusals} passing refusals)"
        return f"{self.what:<48}{'; '.join(parts)}  {counts}"


REPORT: list[Measured | str] = []  # a line each


@contextmanager
def measured(what: str, probes: dict[int, list[Probe]], hit: int) -> Iterator[Load]:
    """Puts load on all probes while the block runs. Reports the longest time without a success, for the affected group
    and for the others.
    """
    every = [probe for group in probes.values() for probe in group]
    with Load(every) as load:
        load.await_progress()
        since = time.monotonic()
        yield load
        load.await_progress()
        until = time.monotonic()
    gaps = lambda chosen: Gaps(*load.longest_s(since, until, chosen)) if chosen else None
    others = [probe for group in probes if group != hit for probe in probes[group]]
    refusals = sum(probe.writes.refusals + probe.reads.refusals for probe in every)
    REPORT.append(Measured(what, gaps(probes.get(hit, [])), gaps(others), len(load.acknowledged), refusals))


def index_leader(cluster: Cluster, other_than: Replica | None = None) -> Replica | None:
    """The replica that reports to lead. A replica that was cut off reports nothing."""
    return next(
        (
            replica
            for replica in cluster.replicas
            if replica is not other_than and replica.metric("mantle_index_leader") == 1
        ),
        None,
    )
