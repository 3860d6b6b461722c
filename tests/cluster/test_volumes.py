"""Bytes in volumes while servers of PostgreSQL fail over, on Citus too: nothing is lost, altered, foreign or leaked.

A worker's failover ends what it admits (P59) and the history in which its deletes are taken (P60); the coordinator's
ends all leases. In both cases the gateways lease their segments anew, and read from all nodes which blocks are used
(P61). `object_load.py` says what a read may answer.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster import faults, times
from cluster.cluster import Cluster
from cluster.layout import COORDINATOR
from cluster.member import Member
from stack.poll import wait_until

from . import runbook
from .clients import make_directories, rest_of, s3_of
from .measure import REPORT
from .object_load import Body, Callers, ObjectLoad, object_load
from .volumes import (
    HOUR_MS,
    Logs,
    VolumeOf,
    assert_scrubbed,
    await_empty,
    await_no_leak,
    put_settings,
    stand_in,
    volumes,
)

FAILOVER_BOUND_S = times.read()["client"]["retry_s"]
SOON_S = 15.0
# of directories on other nodes, while one is away: without service only calls in progress would end
OTHERS_LEAST = 20
WORKER, OTHER = 1, 2


@pytest.fixture(scope="module")
def both(cluster: Cluster) -> Iterator[list[VolumeOf]]:
    """The volumes of both gateways."""
    if not cluster.shape.is_citus:
        pytest.skip("without Citus there is one group, and no worker")
    with volumes(cluster) as both:
        yield both


@contextmanager
def loaded(cluster: Cluster, ns: str, both: list[VolumeOf], what: str) -> Iterator[ObjectLoad]:
    """Load while the block runs. Then everything is as it should be; and once all is deleted, all blocks are free."""
    logs = Logs(cluster)
    since = time.monotonic()
    with object_load(cluster, ns, cluster.gateways) as load:
        yield load
    changes, refusals = (
        sum(writer.changes for writer in load.writers),
        sum(times.refusals for writer in load.writers for times in writer.times),
    )
    REPORT.append(
        f"{what:<48}{changes} changes of objects, {refusals} passing refusals, {time.monotonic() - since:.0f} s"
    )
    load.assert_all_read()
    await_no_leak(cluster, both)
    assert_scrubbed(cluster, both)
    remove_all(cluster, ns)
    await_empty(cluster, both)
    assert logs.complaints() == []


def remove_all(cluster: Cluster, ns: str) -> None:
    s3, rest = s3_of(cluster), rest_of(cluster)
    for upload in s3.list_multipart_uploads(Bucket=ns).get("Uploads", []):
        s3.abort_multipart_upload(Bucket=ns, Key=upload["Key"], UploadId=upload["UploadId"])
    for name in rest.list(ns, ""):
        rest.insist("DELETE", f"/v1/ns/{ns}/dirs/{name}?recursive=true")
    assert s3.list_objects_v2(Bucket=ns)["KeyCount"] == 0


def killed(cluster: Cluster, group: int) -> Member:
    """The group's primary, whose machine lost its power."""
    old = cluster.leader(group)
    faults.kill_machine(old)
    return old


def started_again(cluster: Cluster, old: Member) -> None:
    runbook.typed(cluster, "Starting a dead machine's services again", HOST=old.host.name, UNITS="patroni pgbouncer")
    cluster.await_protection(old.group)


def test_a_worker_fails_over_while_a_gateway_dies(cluster: Cluster, ns: str, both: list[VolumeOf]) -> None:
    """The gateway mounts its volume while the worker is away. Puts on the other worker go on, also through it."""
    gateway = cluster.gateways[0]
    with loaded(cluster, ns, both, "power cut of a worker's primary, a gateway dies") as load:
        old = killed(cluster, WORKER)
        gateway.process.kill()
        gateway.start()
        gateway.await_ready()
        since = time.monotonic()
        cluster.leader(WORKER, FAILOVER_BOUND_S, other_than=old)
        until = time.monotonic()
        started_again(cluster, old)
    for number in range(len(cluster.gateways)):
        assert load.changes(OTHER, number, since, until) >= OTHERS_LEAST, f"in {until - since:.0f} s"


@pytest.mark.long
@pytest.mark.parametrize("gateway_dies", [False, True])
@pytest.mark.parametrize("group", [COORDINATOR, WORKER])
def test_failover(cluster: Cluster, ns: str, both: list[VolumeOf], group: int, gateway_dies: bool) -> None:
    what = f"power cut of group {group}'s primary" + (", a gateway dies after it" if gateway_dies else "")
    with loaded(cluster, ns, both, what) as load:
        old = killed(cluster, group)
        cluster.leader(group, FAILOVER_BOUND_S, other_than=old)
        if gateway_dies:
            cluster.gateways[0].process.kill()
            cluster.gateways[0].start()
        started_again(cluster, old)
        load.await_progress()


@pytest.mark.long
@pytest.mark.parametrize("group", [COORDINATOR, WORKER])
def test_switchover(cluster: Cluster, ns: str, both: list[VolumeOf], group: int) -> None:
    with loaded(cluster, ns, both, f"switchover of group {group}"):
        old, new = cluster.switchover(group)
        assert cluster.leader(group) is new is not old


@pytest.mark.long
def test_every_group_fails_over_at_once(cluster: Cluster, ns: str, both: list[VolumeOf]) -> None:
    with loaded(cluster, ns, both, "power cut of every group's primary"):
        gone = [killed(cluster, group) for group in cluster.groups]
        for old in gone:
            cluster.leader(old.group, FAILOVER_BOUND_S, other_than=old)
        for old in gone:
            started_again(cluster, old)


@pytest.mark.long
def test_a_workers_primary_is_cut_off(cluster: Cluster, ns: str, both: list[VolumeOf]) -> None:
    """Its packets are lost, so nobody learns at once that it is away."""
    with loaded(cluster, ns, both, "a worker's primary cut off") as load:
        old = cluster.leader(WORKER)
        cluster.network.partition(old.host)
        try:
            since = time.monotonic()
            cluster.leader(WORKER, FAILOVER_BOUND_S, other_than=old)
            until = time.monotonic()
            load.await_progress()
        finally:
            cluster.network.heal()
        cluster.await_protection(WORKER)
    for number in range(len(cluster.gateways)):
        assert load.changes(OTHER, number, since, until) >= OTHERS_LEAST, f"in {until - since:.0f} s"


@pytest.mark.long
def test_a_volume_is_taken_over_while_a_worker_fails_over(cluster: Cluster, ns: str, both: list[VolumeOf]) -> None:
    """By another gateway, once the process of the first has ended. While that one only stands still, it waits."""
    first, second = both
    with loaded(cluster, ns, both, "a volume taken over, power cut of a worker's primary") as load:
        faults.freeze(first.gateway.process)
        with stand_in(cluster, "gateway1-stand-in", first.folder, [second.folder]) as other:
            taken = VolumeOf(other, first.folder)
            is_refused = lambda: other.metrics().get("mantle_gateway_volume_mounted") == 0
            wait_until(is_refused, "the other gateway to wait for the volume", SOON_S)
            old = killed(cluster, WORKER)
            first.gateway.process.kill()
            other.await_ready()
            wait_until(taken.is_mounted, "its metrics", SOON_S)
            load.callers.replace(0, other)
            since = time.monotonic()
            cluster.leader(WORKER, FAILOVER_BOUND_S, other_than=old)
            until = time.monotonic()
            started_again(cluster, old)
            load.await_progress()
            first.gateway.start()
            wait_until(lambda: first.gateway.metrics().get("mantle_gateway_volume_mounted") == 0, "its metrics", SOON_S)
            assert not first.gateway.is_ready()
        first.gateway.await_ready()
        load.callers.replace(0, first.gateway)
    assert load.changes(OTHER, 0, since, until) > 0


@pytest.mark.long
@pytest.mark.parametrize("how", ["switchover", "power cut"])
def test_what_is_deleted_after_a_failover_is_free_at_once(
    cluster: Cluster, ns: str, both: list[VolumeOf], how: str
) -> None:
    """Although nothing is put there since, which the node would refuse, and no sweep looks for unnamed blocks."""
    before = [volume.gateway.config.read_text(encoding="utf-8") for volume in both]
    try:
        for volume, text in zip(both, before, strict=True):
            put_settings(volume.gateway, text.replace("sweep_interval_ms = 500", f"sweep_interval_ms = {HOUR_MS}"))
        ((directory, _),) = make_directories(cluster, ns, 1)[WORKER]
        callers = Callers(cluster, cluster.gateways)
        keys = [f"{directory}/{number}" for number in range(20)]
        for number, key in enumerate(keys):
            given = {"Bucket": ns, "Key": key, "Body": Body(key, 50_000).bytes()}
            assert callers.call(number % len(callers), "put_object", **given)[0] == 200
        await_no_leak(cluster, both)
        assert all(volume.bytes_of("used") > 0 for volume in both)
        if how == "switchover":
            cluster.switchover(WORKER)
        else:
            old = killed(cluster, WORKER)
            cluster.leader(WORKER, FAILOVER_BOUND_S, other_than=old)
            started_again(cluster, old)
        for key in keys:
            is_gone = lambda key=key: callers.call(0, "delete_object", Bucket=ns, Key=key)[0] == 200
            wait_until(is_gone, f"the end of {key}", FAILOVER_BOUND_S)
        await_empty(cluster, both, SOON_S)
    finally:
        for volume, text in zip(both, before, strict=True):
            put_settings(volume.gateway, text)
