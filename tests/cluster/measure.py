"""Measures unavailability while a block runs; conftest.py prints the report."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.cluster import Cluster
from cluster.services import Replica

from .load import Load, Probe

REPORT: list[str] = []


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
    parts = []
    for name, chosen in (
        ("its shards", probes.get(hit, [])),
        ("others", [probe for group in probes if group != hit for probe in probes[group]]),
    ):
        if chosen:
            writes, reads = load.longest_s(since, until, chosen)
            parts.append(f"{name}: writes {writes:.1f}, lookups {reads:.1f}")
    refusals = sum(probe.writes.refusals + probe.reads.refusals for probe in every)
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
