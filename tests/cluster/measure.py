"""Measures unavailability while a block runs; conftest.py prints the report."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.clients import Replica
from cluster.cluster import Cluster

from .load import Lane, Load

REPORT: list[str] = []


@contextmanager
def measured(what: str, lanes: dict[int, list[Lane]], hit: int) -> Iterator[Load]:
    """Puts load on all probes while the block runs. Reports the longest time without a success, for the affected group
    and for the others.
    """
    every = [lane for group in lanes.values() for lane in group]
    with Load(every) as load:
        load.await_progress()
        since = time.monotonic()
        yield load
        load.await_progress()
        until = time.monotonic()
    parts = []
    for name, chosen in (
        ("its shards", lanes.get(hit, [])),
        ("others", [lane for group in lanes if group != hit for lane in lanes[group]]),
    ):
        if chosen:
            writes, reads = load.longest_s(since, until, chosen)
            parts.append(f"{name}: writes {writes:.1f}, lookups {reads:.1f}")
    refusals = sum(lane.writes.refusals + lane.reads.refusals for lane in every)
    REPORT.append(f"{what:<48}{'; '.join(parts)}  ({len(load.acknowledged)} acknowledged, {refusals} passing refusals)")


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
