"""The whole cluster serves, and continues to serve during planned and unplanned changes of primaries."""

import time

import botocore.exceptions
import pytest

from cluster import faults, tafdb, times
from cluster.cluster import Cluster
from cluster.layout import COORDINATOR
from stack.poll import wait_until
from tests.support.slots import drop_slot

from . import runbook
from .clients import make_directories, rest_of, s3_of, session
from .load import PROGRESS_BOUND_S, Probe
from .measure import index_leader, measured
from .oracle import assert_nothing_is_lost

# changes and lookups of other groups while a node is away: without service only calls in progress would end
OTHERS_LEAST = 10
FAILOVER_BOUND_S = times.read()["client"]["retry_s"]


def test_both_gateways_write_and_every_replica_has_it(cluster: Cluster, ns: str) -> None:
    made = []
    for number in range(len(cluster.gateways)):
        rest = rest_of(cluster, number)
        rest.mkdir(ns, f"from{number}/a/b", parents=True)
        s3_of(cluster, number).put_object(Bucket=ns, Key=f"from{number}/object", Body=b"bytes")
        made += [f"from{number}/a"]
    for number in range(len(cluster.gateways)):
        assert rest_of(cluster, number).list(ns, "") == ["from0/", "from1/"]
        for other in range(len(cluster.gateways)):
            assert s3_of(cluster, number).get_object(Bucket=ns, Key=f"from{other}/object")["Body"].read() == b"bytes"
    assert_nothing_is_lost(cluster, ns, made)


@pytest.mark.parametrize("of", ["worker", pytest.param("coordinator", marks=pytest.mark.long)])
def test_switchover(cluster: Cluster, ns: str, probes: dict[int, list[Probe]], of: str) -> None:
    group = group_of(cluster, of)
    with measured(f"switchover of the {of}'s group", probes, group) as load:
        old = cluster.leader(group)
        standby = next(member for member in cluster.groups[group] if member is not old)
        names = {"PRIMARY": old.name, "STANDBY": standby.name}
        assert standby.name in runbook.typed(cluster, "Switchover", GROUP=runbook.group(cluster, group), **names)
        assert cluster.leader(group, other_than=old) is standby
    assert_nothing_is_lost(cluster, ns, load.acknowledged)


@pytest.mark.long
def test_a_killed_postmaster_comes_back_or_is_replaced(
    cluster: Cluster, ns: str, probes: dict[int, list[Probe]]
) -> None:
    group = max(probes)
    with measured("kill -9 of a primary's postmaster", probes, group) as load:
        faults.kill_postgresql(cluster.leader(group))
        load.await_progress()
    assert_nothing_is_lost(cluster, ns, load.acknowledged)


@pytest.mark.parametrize("of", ["last", pytest.param("coordinator", marks=pytest.mark.long)])
def test_failover(cluster: Cluster, ns: str, probes: dict[int, list[Probe]], of: str) -> None:
    group = max(probes) if of == "last" else group_of(cluster, of)
    with measured(f"power cut of group {group}'s primary", probes, group) as load:
        old = cluster.leader(group)
        faults.kill_machine(old)
        since = time.monotonic()
        new = cluster.leader(group, FAILOVER_BOUND_S, other_than=old)
        until = time.monotonic()
    wait_until(
        lambda: any("none follows this server" in row for row in tafdb.problems(cluster.leader(COORDINATOR))),
        "check_cluster to name the primary without a standby",
        FAILOVER_BOUND_S,
    )
    units = {"HOST": old.host.name, "UNITS": "patroni pgbouncer"}
    runbook.typed(cluster, "Starting a dead machine's services again", **units)
    wait_until(lambda: old.answers("liveness"), f"Patroni of {old.name}", FAILOVER_BOUND_S)
    if of == "last":  # its data directory is discarded; the coordinator's is rewound
        runbook.typed(cluster, "Failover", GROUP=runbook.group(cluster, group), SERVER=old.name)
    cluster.await_protection(group)
    assert cluster.leader(group) is new
    assert_nothing_is_lost(cluster, ns, load.acknowledged)
    # Work that does not need the group goes on: the index is read, and reads from the other groups. Requests with a key
    # wait for every node.
    for probe in (probe for other in probes if other != group for probe in probes[other] if not probe.keyed):
        for times_of in (probe.writes, probe.reads):
            assert sum(since < at < until for at in times_of.at) >= OTHERS_LEAST


def test_a_cut_off_leader_of_the_index_is_replaced(cluster: Cluster, ns: str, probes: dict[int, list[Probe]]) -> None:
    """A real partition: packets are lost, nothing is refused."""
    leader = wait_until(lambda: index_leader(cluster), "a leader of the index", PROGRESS_BOUND_S)
    with measured("the index's leader cut off", probes, max(probes)) as load:
        cluster.network.partition(leader.host)
        wait_until(lambda: index_leader(cluster, other_than=leader), "another leader of the index", PROGRESS_BOUND_S)
        load.await_progress()
        cluster.network.heal()
    leader.await_ready()
    assert_nothing_is_lost(cluster, ns, load.acknowledged)


@pytest.mark.long
def test_a_lost_coordinator_keeps_no_lock(cluster: Cluster, ns: str) -> None:
    """Its transaction has a row's lock on a worker. Nobody tells the worker that its client is lost."""
    if not cluster.shape.is_citus:
        pytest.skip("without Citus there is no worker")
    ((directory, id),) = make_directories(cluster, ns, 1)[max(cluster.groups)]
    put = {"Bucket": ns, "Key": f"{directory}/object", "Body": b"bytes"}
    s3_of(cluster).put_object(**put)
    old = cluster.leader(COORDINATOR)
    connection = session(cluster, COORDINATOR)
    try:
        connection.autocommit = False
        locked = connection.execute("SELECT name FROM mantle.meta WHERE pid = %s FOR UPDATE", [id]).fetchall()
        assert locked
        assert not is_put(cluster, put)
        cluster.network.partition(old.host)
        cluster.leader(COORDINATOR, FAILOVER_BOUND_S, other_than=old)
        wait_until(lambda: is_put(cluster, put), "the lock to end", FAILOVER_BOUND_S)
    finally:
        cluster.network.heal()
        connection.close()
    cluster.await_protection(COORDINATOR)


def is_put(cluster: Cluster, put: dict) -> bool:
    try:
        s3_of(cluster).put_object(**put)
    except botocore.exceptions.ClientError as error:
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 503, error
        return False
    return True


@pytest.mark.long
def test_a_frozen_etcd_stops_no_client(cluster: Cluster, ns: str, probes: dict[int, list[Probe]]) -> None:
    """Two of three members are frozen for longer than a leader key's ttl: failsafe mode keeps every primary."""
    before = {group: cluster.leader(group) for group in cluster.groups}
    with measured("two of three etcd members frozen", probes, max(probes)) as load:
        frozen = [member.process for member in cluster.etcd[:2]]
        faults.freeze(*frozen)
        until = time.monotonic() + times.read()["patroni"]["ttl_s"] + times.read()["patroni"]["retry_timeout_s"]
        while time.monotonic() < until:
            load.await_progress()
        faults.thaw(frozen, [])
    assert {group: cluster.leader(group) for group in cluster.groups} == before
    assert_nothing_is_lost(cluster, ns, load.acknowledged)


@pytest.mark.long
def test_lost_slot(cluster: Cluster, ns: str, probes: dict[int, list[Probe]]) -> None:
    """Patroni recreates a dropped slot at a later position. The index notices that it may have missed changes."""
    group = max(probes)
    rebuilt = rebuilds(cluster)
    with measured("a slot dropped", probes, group) as load:
        with session(cluster, group) as connection:
            wait_until(lambda: drop_slot(connection), "the slot to be dropped", PROGRESS_BOUND_S)
        wait_until(lambda: rebuilds(cluster) > rebuilt, "the index to be rebuilt", PROGRESS_BOUND_S)
    cluster.await_protection(group)
    assert cluster.shape.slot not in runbook.typed(cluster, "A lost slot")
    assert_nothing_is_lost(cluster, ns, load.acknowledged)


def rebuilds(cluster: Cluster) -> float:
    return sum(replica.metric("mantle_index_rebuilds_completed_total") or 0 for replica in cluster.replicas)


def test_replaced_indexnode(cluster: Cluster, ns: str) -> None:
    """A voter that lost its disk rejoins by itself. The learner is removed, and joins again when it is started."""
    rest_of(cluster).mkdir(ns, "before/a", parents=True)
    voter, learner = cluster.replicas[1], cluster.replicas[-1]
    runbook.typed(cluster, "Replacing an IndexNode", HOST=voter.host.name, DATA_DIRS=str(voter.data))
    voter.await_ready()
    learner.process.stop()
    assert learner.listen not in runbook.typed(cluster, "Removing an IndexNode", ADDRESS=learner.listen).split()
    # A removed member can only come back under a new id.
    runbook.typed(cluster, "Replacing an IndexNode", HOST=learner.host.name, DATA_DIRS=str(learner.data))
    learner.await_ready()
    assert_nothing_is_lost(cluster, ns, ["before/a"])
    runbook.typed(cluster, "")


def group_of(cluster: Cluster, of: str) -> int:
    if of == "worker" and not cluster.shape.is_citus:
        pytest.skip("without Citus there is one group, and no worker")
    return COORDINATOR if of == "coordinator" else 1
