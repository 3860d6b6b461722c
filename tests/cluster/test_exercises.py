"""The exercises of an administrator, under load. Each causes a fault, and types the commands of docs/runbooks.md, and
nothing else. It fails if they are not enough. `make exercises` plays all and writes docs/exercises.md.

After each exercise every acknowledged directory is in PostgreSQL and on every replica, `mantle status` shows no
problem, `mantle fsck` no difference, and the checks at the head of the runbooks are clean.
"""

import os
import shutil
from collections.abc import Iterator

import pytest

from cluster import faults, times
from cluster.cluster import Cluster
from cluster.layout import VOTERS
from cluster.services import Replica
from stack.layout import REPOSITORY
from stack.poll import wait_until
from tests.support.slots import drop_slot

from . import runbook
from .clients import session
from .etcdctl import alarms, etcdctl, fill
from .load import Load, Probe
from .measure import REPORT, Measured, index_leader, measured
from .oracle import assert_nothing_is_lost, await_no_problem, fsck, mantle, rebuilds

pytestmark = pytest.mark.long
PAGE = REPOSITORY / "docs" / "exercises.md"
BOUND_S = 300.0
HEALTHY_BOUND_S = 180.0
LEASE_S = times.read()["compiled"]["epoch_lease_s"]
HEAD = """# Exercises

Written by `make exercises` (`tests/cluster/test_exercises.py`); do not edit. Each exercise causes a fault on a whole
cluster under a light load through both gateways, and types the commands of [runbooks.md](runbooks.md). It fails if
they are not enough. At the end every acknowledged directory must be in PostgreSQL and on every replica, and
`mantle fsck` must find no difference.

A column in seconds is the longest time without a success, from the fault to the end of the work. *There*: directories
of the group of PostgreSQL servers that the fault hit; directories of all groups if it hit the index or etcd. *Done*:
directories that were made. *Refused*: mkdirs and lookups that failed for the moment (503, or a broken connection).
One machine with two processors ran everything, beside other work.

| exercise | runbook | mkdir there, s | lookup there, s | mkdir elsewhere, s | lookup elsewhere, s | done | refused |
|---|---|---|---|---|---|---|---|
"""


@pytest.fixture(scope="module", autouse=True)
def page() -> Iterator[None]:
    """Writes the page at the end, if `make exercises` runs."""
    begun = len(REPORT)
    yield
    if "MANTLE_EXERCISES" in os.environ:
        PAGE.write_text(HEAD + "".join(map(row, REPORT[begun:])), encoding="utf-8")


def row(played: Measured) -> str:
    name, _, section = played.what.partition(" | ")
    anchor = section.lower().replace("'", "").replace(" ", "-")
    seconds = [f"{gap:.1f}" for gaps in (played.hit, played.others) if gaps for gap in (gaps.writes, gaps.lookups)]
    seconds += ["–"] * (4 - len(seconds))
    cells = [name, f"[{section}](runbooks.md#{anchor})", *seconds, f"{played.acknowledged:,}", f"{played.refusals:,}"]
    return f"| {' | '.join(cells)} |\n"


class Exercise:
    """What all exercises need: the cluster, the load, and the page."""

    def __init__(self, cluster: Cluster, ns: str, probes: dict[int, list[Probe]]):
        self.cluster, self.ns, self.probes = cluster, ns, probes
        self.group = max(probes)

    def type(self, section: str, bound_s: float = BOUND_S, **words: object) -> str:
        words = {"GROUP": runbook.group(self.cluster, self.group), **{name: str(word) for name, word in words.items()}}
        return runbook.typed(self.cluster, section, bound_s, **words)

    def load(self, what: str, section: str, everywhere: bool = False):
        """Load on all shards. `everywhere`: the fault is none of one group of servers."""
        every = [probe for probes in self.probes.values() for probe in probes]
        probes = {self.group: every} if everywhere else self.probes
        return measured(f"{what} | {section}", probes, self.group)

    def settle(self, load: Load) -> None:
        """The page's first commands are clean, and nothing is lost."""
        for group in self.cluster.groups:
            self.cluster.await_protection(group)
        self.await_index()
        await_no_problem(self.cluster)
        self.type("")
        assert_nothing_is_lost(self.cluster, self.ns, load.acknowledged)
        assert fsck(self.cluster) == []

    def await_index(self) -> None:
        """Waits until `mantle status` says by its exit code that nothing is wrong."""
        wait_until(lambda: self.is_healthy(), "`mantle status` without a problem", HEALTHY_BOUND_S)

    def is_healthy(self) -> bool:
        return mantle(self.cluster, "status", "--seconds", "0").returncode == 0

    def voters(self) -> list[Replica]:
        return self.cluster.replicas[:VOTERS]


@pytest.fixture
def exercise(cluster: Cluster, ns: str, probes: dict[int, list[Probe]]) -> Exercise:
    return Exercise(cluster, ns, probes)


def test_switchover(exercise: Exercise) -> None:
    cluster = exercise.cluster
    with exercise.load("switchover", "Switchover") as load:
        old = cluster.leader(exercise.group)
        standby = next(member for member in cluster.groups[exercise.group] if member is not old)
        exercise.type("Switchover", PRIMARY=old.name, STANDBY=standby.name)
        assert cluster.leader(exercise.group, other_than=old) is standby
    exercise.settle(load)


def test_power_cut_of_a_primary(exercise: Exercise) -> None:
    """Its machine comes back with its data."""
    cluster, section = exercise.cluster, "Starting a dead machine's services again"
    with exercise.load("power cut of a primary", section) as load:
        old = cluster.leader(exercise.group)
        faults.kill_machine(old)
        cluster.leader(exercise.group, BOUND_S, other_than=old)
        exercise.type(section, HOST=old.host.name, UNITS="patroni pgbouncer")
        cluster.await_protection(exercise.group)
    exercise.settle(load)


def test_loss_of_a_standby(exercise: Exercise) -> None:
    """Its disk too: it is made anew."""
    cluster, section = exercise.cluster, "Failover"
    with exercise.load("loss of a standby and its disk", section) as load:
        primary = cluster.leader(exercise.group)
        standby = next(member for member in cluster.groups[exercise.group] if member is not primary)
        faults.kill_machine(standby)
        load.await_progress()
        exercise.type("Starting a dead machine's services again", HOST=standby.host.name, UNITS="patroni pgbouncer")
        wait_until(lambda: standby.answers("liveness"), f"Patroni of {standby.name}", BOUND_S)
        exercise.type(section, SERVER=standby.name)
        cluster.await_protection(exercise.group)
        assert cluster.leader(exercise.group) is primary
    exercise.settle(load)


def test_dropped_slot(exercise: Exercise) -> None:
    cluster, section = exercise.cluster, "A lost slot"
    before = rebuilds(cluster)
    with exercise.load("a slot dropped", section) as load:
        with session(cluster, exercise.group) as connection:
            wait_until(lambda: drop_slot(connection), "the slot to be dropped", BOUND_S)
        wait_until(lambda: rebuilds(cluster) > before, "the index to be rebuilt", BOUND_S)
        exercise.await_index()
        exercise.type(section)
    exercise.settle(load)


def test_replaced_indexnode(exercise: Exercise) -> None:
    section, replica = "Replacing an IndexNode", exercise.voters()[1]
    with exercise.load("an IndexNode replaced", section, everywhere=True) as load:
        exercise.type(section, HOST=replica.host.name, DATA_DIRS=replica.data)
        replica.await_ready()
    exercise.settle(load)


def test_an_indexnodes_folder_goes_back(exercise: Exercise) -> None:
    """Somebody restores an old copy of it; the page says what then."""
    section, cluster = "Replacing an IndexNode", exercise.cluster
    leader = wait_until(lambda: index_leader(cluster), "a leader of the index", BOUND_S)
    replica = next(voter for voter in exercise.voters() if voter is not leader)
    copy = cluster.layout.data / "old-copy"
    with exercise.load("an IndexNode's folder put back, then replaced", section, everywhere=True) as load:
        replica.process.stop()
        shutil.copytree(replica.data, copy)
        replica.start()
        replica.await_ready()
        load.await_progress()
        replica.process.stop()
        shutil.rmtree(replica.data)
        copy.rename(replica.data)
        for path in (replica.data, *replica.data.rglob("*")):
            cluster.account.own(path)
        replica.start()
        load.await_progress()
        exercise.type(section, HOST=replica.host.name, DATA_DIRS=replica.data)
        replica.await_ready()
    exercise.settle(load)


def test_two_of_three_indexnodes_are_lost(exercise: Exercise) -> None:
    section = "Losing two of three IndexNodes"
    with exercise.load("two of three IndexNodes killed, one started", section, everywhere=True) as load:
        lost = exercise.voters()[:2]
        for replica in lost:
            replica.process.kill()
        exercise.type(section, HOST=lost[0].host.name)
        lost[0].await_ready()
        load.await_progress()
        exercise.type("Starting a dead machine's services again", HOST=lost[1].host.name, UNITS="mantle-indexnode")
    exercise.settle(load)


def test_all_indexnodes_are_lost(exercise: Exercise) -> None:
    section, replicas = "Losing all IndexNodes", exercise.cluster.replicas
    with exercise.load(f"all IndexNodes lost with their disks ({LEASE_S} s are waited out)", section, True) as load:
        for replica in replicas:
            replica.process.kill()
        hosts = " ".join(replica.host.name for replica in replicas)
        exercise.type(section, HOSTS=hosts, DATA_DIRS=" ".join(str(replica.data) for replica in replicas))
        exercise.await_index()
    exercise.settle(load)


def test_etcd_out_of_space(exercise: Exercise) -> None:
    section, cluster = "etcd out of space", exercise.cluster
    with exercise.load("etcd out of space", section, everywhere=True) as load:
        fill(cluster)
        load.await_progress()
        exercise.type(section)
        assert alarms(cluster) == ""
        cluster.switchover(exercise.group)
    etcdctl(cluster, "del", "/filler")
    exercise.settle(load)


def test_all_of_etcd_is_lost(exercise: Exercise) -> None:
    """Without a snapshot. No primary changes, and the next switchover works."""
    section, cluster = "Losing all of etcd", exercise.cluster
    before = {group: cluster.leader(group) for group in cluster.groups}
    with exercise.load("all of etcd lost with its disks", section, everywhere=True) as load:
        for member in cluster.etcd:
            member.process.kill()
        load.await_progress()
        exercise.type(
            section,
            HOSTS=" ".join(member.host.name for member in cluster.etcd),
            DATA_DIRS=" ".join(str(member.data) for member in cluster.etcd),
            SETTINGS=" ".join(str(member.config) for member in cluster.etcd),
            TOKEN="second",
        )
        for group in cluster.groups:
            cluster.await_protection(group)
        load.await_progress()
    assert {group: cluster.leader(group) for group in cluster.groups} == before
    exercise.settle(load)
    cluster.switchover(exercise.group)
    cluster.await_protection(exercise.group)


def test_upgrade_of_a_group(exercise: Exercise) -> None:
    """Its standby, a switchover, its former primary, then the extension. (All groups: test_upgrade.py.)"""
    cluster, section, group = exercise.cluster, "Upgrading a server", exercise.group
    with exercise.load("upgrade of a group's servers", section) as load:
        primary = cluster.leader(group)
        standby = next(member for member in cluster.groups[group] if member is not primary)
        exercise.type(section, SERVER=standby.name)
        cluster.await_protection(group)
        exercise.type("Switchover", PRIMARY=primary.name, STANDBY=standby.name)
        cluster.await_protection(group)
        exercise.type(section, SERVER=primary.name)
        cluster.await_protection(group)
        exercise.type("Upgrading the extension")
    exercise.settle(load)


def test_a_new_worker_gets_shards(exercise: Exercise) -> None:
    cluster, section = exercise.cluster, "Moving shards"
    if not cluster.shape.is_citus:
        pytest.skip("without Citus there are no workers")
    with exercise.load("a worker joins, shards move there", section) as load:
        added = cluster.add_worker()
        cluster.await_protection(added)
        exercise.await_index()
        exercise.type("Adding a worker")
        assert "finished" in exercise.type(section, MODE="force_logical")
    exercise.settle(load)


def test_as_a_superuser(exercise: Exercise) -> None:
    shown = exercise.type("As a superuser")
    assert " postgres " in shown and " f " in shown
