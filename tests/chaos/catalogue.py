"""The faults of a cluster: each has a name, a way to cause it and a way to undo it.

Invariant: `undo` leaves only damage that the cluster must repair by itself. Killed processes are started, frozen ones
continue, links are whole. A fault acts on processes and hosts of its cluster only.
"""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from cluster import faults
from cluster.cluster import Cluster
from cluster.layout import COORDINATOR, Host
from cluster.member import Member
from stack.failure import Failure
from stack.poll import wait_until
from stack.process import Process
from tests.cluster.clients import session
from tests.cluster.oracle import rebuilds
from tests.support.slots import drop_slot

from . import certified, clocks, shards, slow, stored, unnoticed, went_back
from .index_group import index_follower, index_leader

LEADER_BOUND_S = 60.0
LAG_S = 3.0
STUTTER_S = 3.0  # longer than a shard's move takes for its last changes
DROPS = 3
CLOCK_JUMP_S = 600  # longer than every lease; signed requests tolerate 15 minutes
Undo = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """`cause` causes it and returns the function that undoes it. `lasts_s` is its duration in seconds. `alerts`: the
    names of the alerts that it must raise, or the reason why there is none.
    """

    name: str
    cause: Callable[[Cluster, random.Random], Undo]
    lasts_s: float = 10.0
    alerts: tuple[str, ...] | str = ""
    needs_network: bool = False
    needs_citus: bool = False
    needs_clocks: bool = False

    def is_possible(self, cluster: Cluster) -> bool:
        return (
            (cluster.network.is_real or not self.needs_network)
            and (cluster.shape.is_citus or not self.needs_citus)
            and (clocks.library() is not None or not self.needs_clocks)
        )


def sources(cluster: Cluster) -> list[int]:
    return [group for group in cluster.groups if cluster.groups[group][0].is_source]


def standby(cluster: Cluster, group: int) -> Member:
    leader = cluster.leader(group)
    return next(member for member in cluster.groups[group] if member is not leader)


def is_behind(primary: Member) -> bool:
    """Checks that a standby lacks WAL that its primary has flushed."""
    return (
        primary.psql("SELECT bool_or(flush_lsn < pg_current_wal_flush_lsn()) FROM pg_stat_replication").strip() == "t"
    )


def beside(cluster: Cluster, member: Member) -> Process:
    """The PgBouncer beside a server."""
    return next(
        pooler.process for pooler, other in zip(cluster.poolers, cluster.members, strict=True) if other is member
    )


def killed(choose: Callable[[Cluster, random.Random], Process]) -> Callable[[Cluster, random.Random], Undo]:
    """kill -9; started again at the end."""

    def cause(cluster: Cluster, draw: random.Random) -> Undo:
        process = choose(cluster, draw)
        process.kill()
        return process.start

    return cause


def frozen(choose: Callable[[Cluster, random.Random], list[Process]]) -> Callable[[Cluster, random.Random], Undo]:
    """SIGSTOP to the process and its descendants."""

    def cause(cluster: Cluster, draw: random.Random) -> Undo:
        processes = choose(cluster, draw)
        faults.freeze(*processes)
        return lambda: faults.thaw(processes, [])

    return cause


def cut_off(choose: Callable[[Cluster, random.Random], Host]) -> Callable[[Cluster, random.Random], Undo]:
    """Packets from and to the host are lost."""

    def cause(cluster: Cluster, draw: random.Random) -> Undo:
        host = choose(cluster, draw)
        print(f"    cut off: {host.name}", flush=True)
        cluster.network.partition(host)
        return cluster.network.heal

    return cause


def machine_killed(
    of: Callable[[Cluster, random.Random], int], lags: bool = False
) -> Callable[[Cluster, random.Random], Undo]:
    """A primary and its Patroni, as in a power failure. `lags`: its standby was frozen before. It lacks the primary's
    last WAL, also what its kernel has received: else it would read that when it continues, and lack nothing.
    """

    def cause(cluster: Cluster, draw: random.Random) -> Undo:
        primary = cluster.leader(of(cluster, draw))
        if lags:
            late = standby(cluster, primary.group)
            faults.freeze_postgresql(late)
            wait_until(lambda: is_behind(primary), "a standby that lacks what its primary has", LEADER_BOUND_S)
            time.sleep(LAG_S)  # this is the fault: meanwhile nothing is acknowledged, and no client may see the change
        faults.kill_machine(primary)
        if lags:
            faults.kill_all_of_postgresql(late)
        return primary.start

    return cause


def postmaster_killed(cluster: Cluster, draw: random.Random) -> Undo:
    faults.kill_postgresql(cluster.leader(draw.choice(sources(cluster))))
    return lambda: None


def postgresql_frozen(cluster: Cluster, draw: random.Random) -> Undo:
    primary = cluster.leader(draw.choice(sources(cluster)))
    faults.freeze_postgresql(primary)
    return lambda: faults.thaw([], [primary])


def switched_over(of: Callable[[Cluster, random.Random], int]) -> Callable[[Cluster, random.Random], Undo]:
    def cause(cluster: Cluster, draw: random.Random) -> Undo:
        cluster.switchover(of(cluster, draw))
        return lambda: None

    return cause


def slot_dropped(cluster: Cluster, draw: random.Random) -> Undo:
    """Dropped while free of its reader, which comes back at once: retried until it is gone."""
    with session(cluster, draw.choice(sources(cluster))) as connection:
        wait_until(lambda: drop_slot(connection), "the slot to be dropped", LEADER_BOUND_S)
    return lambda: None


def slot_dropped_beneath_a_rename(cluster: Cluster, draw: random.Random) -> Undo:
    """A rename was prepared and waits to commit. Then the index is rebuilt, and does not know its lock any more."""
    with ExitStack() as undoing:
        undoing.callback(slow.on_every_node, cluster, slow.renames_as_before)
        slow.on_every_node(cluster, lambda connection: slow.slower_renames(connection, slow.RENAME_SLEEP_BENEATH_S))
        for _ in range(DROPS):
            wait_until(
                lambda: any(is_renaming_slowly(cluster, group) for group in sources(cluster)),
                "a slow rename",
                LEADER_BOUND_S,
            )
            before = rebuilds(cluster)
            slot_dropped(cluster, draw)
            wait_until(lambda before=before: rebuilds(cluster) > before, "the index to be rebuilt", LEADER_BOUND_S)
        return undoing.pop_all().close


def is_renaming_slowly(cluster: Cluster, group: int) -> bool:
    """Checks that a rename has just begun to sleep."""
    with session(cluster, group) as connection:
        return connection.execute(slow.RENAMES_BEGUN).fetchone() is not None


def streams_stutter(cluster: Cluster, draw: random.Random) -> Undo:
    """Commits of one node reach the index late, while the streams of the others go on: one walsender after the other is
    frozen.
    """
    end = threading.Event()

    def stutter() -> None:
        while not end.is_set():
            shown = ""
            with suppress(Failure):  # a server that another fault keeps busy
                primary = cluster.leader(any_source(cluster, draw))
                shown = primary.psql(
                    f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{cluster.shape.slot}'"
                ).strip()
            if not shown:  # between two readers
                continue
            with suppress(ProcessLookupError):  # the reader has gone, and its walsender with it
                os.kill(int(shown), signal.SIGSTOP)
                end.wait(STUTTER_S)
                os.kill(int(shown), signal.SIGCONT)

    thread = threading.Thread(target=stutter)
    thread.start()

    def undo() -> None:
        end.set()
        thread.join()

    return undo


def clock_set(
    choose: Callable[[Cluster, random.Random], Host], seconds: int
) -> Callable[[Cluster, random.Random], Undo]:
    """A host's clock jumps, and back at the end."""

    def cause(cluster: Cluster, draw: random.Random) -> Undo:
        host = choose(cluster, draw)
        print(f"    clock set: {host.name} {seconds:+d} s", flush=True)
        clocks.jump(cluster, host, seconds)
        return lambda: clocks.jump(cluster, host, 0)

    return cause


def slowed(slower: Callable, as_before: Callable) -> Callable[[Cluster, random.Random], Undo]:
    """Steps of changes sleep now and then, on every node."""

    def cause(cluster: Cluster, _draw: random.Random) -> Undo:
        slow.on_every_node(cluster, slower)
        return lambda: slow.on_every_node(cluster, as_before)

    return cause


def disk_full(cluster: Cluster, _draw: random.Random) -> Undo:
    """The log of an index follower has no room left: it was moved to a small file system."""
    replica = index_follower(cluster)
    kept = replica.data.with_name(replica.data.name + ".kept")
    replica.process.stop()
    replica.data.rename(kept)
    replica.data.mkdir(mode=0o700)
    megabytes = 4 + sum(file.stat().st_size for file in kept.rglob("*") if file.is_file()) // (1 << 20)
    options = f"size={megabytes}m,mode=0700,uid={replica.account.uid},gid={replica.account.gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "mantle-chaos", str(replica.data)], check=True)
    subprocess.run(["cp", "-a", f"{kept}/.", str(replica.data)], check=True)
    replica.start()
    replica.await_ready()
    filler = replica.data / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k", "status=none"], capture_output=True, check=False)

    def undo() -> None:
        replica.process.kill()  # it may have ended by itself
        filler.unlink()
        moved = kept.with_suffix(".moved")
        subprocess.run(["cp", "-a", f"{replica.data}/.", str(moved)], check=True)
        subprocess.run(["umount", str(replica.data)], check=True)
        replica.data.rmdir()
        moved.rename(replica.data)
        shutil.rmtree(kept)
        replica.start()

    return undo


def any_source(cluster: Cluster, draw: random.Random) -> int:
    return draw.choice(sources(cluster))


def primary_host(cluster: Cluster, draw: random.Random) -> Host:
    return cluster.leader(any_source(cluster, draw)).host


def first_group(_cluster: Cluster, _draw: random.Random) -> int:
    return COORDINATOR


def two_voters_killed(cluster: Cluster, _draw: random.Random) -> Undo:
    """The leader and a follower: the index group has no majority."""
    leader, follower = index_leader(cluster), index_follower(cluster)
    for replica in (leader, follower):
        replica.process.kill()
    return lambda: [replica.process.start() for replica in (leader, follower)] and None


def two_members_killed(cluster: Cluster, draw: random.Random) -> Undo:
    """etcd has no majority."""
    killed_ones = [member.process for member in draw.sample(cluster.etcd, 2)]
    for process in killed_ones:
        process.kill()
    return lambda: [process.start() for process in killed_ones] and None


DOWN = ("ProcessIsDown",)
JOINED_ANEW = ("MantleIndexReplicaJoinedAnew",)
FAST = "clients notice it for less than an alert waits"
CLOCK = "clocks are not watched: nothing of Mantle depends on them"
WITHIN = "the cluster's own work: nothing is broken"
CATALOGUE = [
    Fault("gateway killed", killed(lambda c, draw: draw.choice(c.gateways).process), 6, alerts=DOWN),
    Fault("index leader killed", killed(lambda c, _: index_leader(c).process), alerts=DOWN),
    Fault("index follower killed", killed(lambda c, _: index_follower(c).process), alerts=DOWN),
    Fault("index learner killed", killed(lambda c, _: c.replicas[-1].process), 6, alerts=DOWN),
    Fault(
        "two voters of the index killed",
        two_voters_killed,
        alerts=(*DOWN, "MantleIndexHasNoLeader", "MantleIndexIsNotStreaming", "MantleIndexDoesNotReadANode"),
    ),
    Fault(
        "PgBouncer killed",
        killed(lambda c, draw: beside(c, c.leader(any_source(c, draw)))),
        8,
        alerts=("MantleGatewayRefuses",),
    ),
    Fault(
        "HAProxy of a gateway killed",
        killed(lambda c, draw: draw.choice(c.proxies[len(c.replicas) :]).process),
        6,
        alerts=DOWN,
    ),
    Fault(
        "HAProxy of the index leader killed",
        killed(lambda c, _: c.proxies[c.replicas.index(index_leader(c))].process),
        6,
        alerts=DOWN,
    ),
    Fault("etcd member killed", killed(lambda c, draw: draw.choice(c.etcd).process), alerts=DOWN),
    Fault(
        "two etcd members killed",
        two_members_killed,
        20,
        alerts=(*DOWN, "EtcdHasNoLeader", "EtcdMemberHasNoLeader", "PatroniDoesNotReachEtcd"),
    ),
    Fault(
        "etcd out of space",
        unnoticed.etcd_filled,
        15,
        alerts=("EtcdIsFilling", "EtcdIsOutOfSpace", "PatroniWritesFail"),
    ),
    Fault("etcd's disk slow", unnoticed.etcd_flushes_slowly, 45, alerts=("EtcdIsSlow",)),
    Fault("postmaster killed", postmaster_killed, alerts=("MantleGatewayRefuses",)),
    Fault(
        "standby killed",
        killed(lambda c, draw: standby(c, any_source(c, draw)).process),
        15,
        alerts=(*DOWN, "PostgreSQLHasNoSynchronousStandby"),
    ),
    Fault(
        "standby frozen",
        unnoticed.standby_frozen,
        15,
        alerts=("MantleIndexWaitsForStandby", "MantleIndexLagsBehindPostgreSQL"),
    ),
    Fault(
        "primary's machine killed",
        machine_killed(any_source),
        30,
        alerts=(*DOWN, "PostgreSQLHasNoPrimary", "MantleGatewayRefuses", "MantlePostgreSQLIsUnprotected"),
    ),
    Fault(
        "coordinator's machine killed",
        machine_killed(first_group),
        30,
        needs_citus=True,
        alerts=(*DOWN, "PostgreSQLHasNoPrimary"),
    ),
    Fault(
        "standby behind, then primary's machine killed",
        machine_killed(any_source, lags=True),
        30,
        alerts=(*DOWN, "PostgreSQLHasNoPrimary"),
    ),
    Fault("switchover of the first group", switched_over(first_group), alerts=FAST),
    Fault("switchover of a worker's group", switched_over(any_source), needs_citus=True, alerts=FAST),
    Fault("Patroni paused", unnoticed.paused, 30, alerts=("PatroniIsPaused",)),
    Fault(
        "etcd frozen",
        frozen(lambda c, _: [member.process for member in c.etcd]),
        25,
        alerts=(*DOWN, "EtcdHasNoLeader", "PatroniDoesNotReachEtcd"),
    ),
    Fault("PostgreSQL frozen", postgresql_frozen, 12, alerts=("PostgreSQLHasNoPrimary",)),
    Fault("index leader frozen", frozen(lambda c, _: [index_leader(c).process]), 8, alerts=DOWN),
    Fault("gateway frozen", frozen(lambda c, draw: [draw.choice(c.gateways).process]), 8, alerts=DOWN),
    Fault("index leader cut off", cut_off(lambda c, _: index_leader(c).host), 10, needs_network=True, alerts=DOWN),
    Fault(
        "gateway cut off", cut_off(lambda c, draw: draw.choice(c.gateways).host), 10, needs_network=True, alerts=DOWN
    ),
    Fault(
        "primary cut off",
        cut_off(primary_host),
        30,
        needs_network=True,
        alerts=(*DOWN, "PostgreSQLHasNoPrimary", "PostgreSQLHasNoSynchronousStandby"),
    ),
    Fault("index follower's disk full", disk_full, 10, alerts=("DiskIsFilling",)),
    Fault("a disk that fills slowly", unnoticed.disk_fills, 35, alerts=("DiskWillBeFull",)),
    Fault("index folder goes back", went_back.folder, alerts=JOINED_ANEW),
    Fault("parts of an index folder go back", went_back.parts, alerts=JOINED_ANEW),
    Fault(
        "index folder goes back while a voter is down",
        went_back.without_quorum,
        30,
        alerts=(*JOINED_ANEW, *DOWN, "MantleIndexReplicaIsUnfit", "MantleIndexHasNoLeader"),
    ),
    Fault("index folder goes back, and nobody remembers", went_back.unremembered, 20, alerts=(*JOINED_ANEW, *DOWN)),
    Fault("slot dropped", slot_dropped, alerts=("MantleIndexWasRebuilt",)),
    Fault("slot dropped beneath a slow rename", slot_dropped_beneath_a_rename, 20, alerts=("MantleIndexWasRebuilt",)),
    Fault("shard moved", shards.shard_moved, needs_citus=True, alerts=WITHIN),
    Fault("busy shards moved", shards.busy_shards_moved, needs_citus=True, alerts=WITHIN),
    Fault("one shard a node", shards.one_shard_left, needs_citus=True, alerts=WITHIN),
    Fault("change streams stutter", streams_stutter, 20, alerts=FAST),
    Fault("object lost in the store", stored.bytes_lost, alerts=("MantleObjectBytesAreMissing", "MantleGatewayFails")),
    Fault("store's machine killed", stored.machine_killed, alerts=DOWN),
    Fault("a role may forge the stream", unnoticed.stream_may_be_forged, 15, alerts=("MantleChangeStreamMayBeForged",)),
    Fault("background worker disabled", unnoticed.worker_disabled, 20, alerts=("MantleMaintenanceFails",)),
    Fault("targets of Prometheus without a group", unnoticed.without_labels, 30, alerts=("PatroniGroupIsUnknown",)),
    Fault("targets of Prometheus missing", unnoticed.without_targets, 30, alerts=("JobHasNoTargets",)),
    Fault("primary's clock set ahead", clock_set(primary_host, CLOCK_JUMP_S), 15, needs_clocks=True, alerts=CLOCK),
    Fault("primary's clock set back", clock_set(primary_host, -CLOCK_JUMP_S), 15, needs_clocks=True, alerts=CLOCK),
    Fault(
        "index leader's clock set ahead",
        clock_set(lambda c, _: index_leader(c).host, CLOCK_JUMP_S),
        needs_clocks=True,
        alerts=CLOCK,
    ),
    Fault(
        "index leader's clock set back",
        clock_set(lambda c, _: index_leader(c).host, -CLOCK_JUMP_S),
        needs_clocks=True,
        alerts=CLOCK,
    ),
    Fault(
        "gateway's clock set ahead",
        clock_set(lambda c, draw: draw.choice(c.gateways).host, CLOCK_JUMP_S),
        needs_clocks=True,
        alerts=CLOCK,
    ),
    Fault(
        "certificates of an index follower and a gateway expired",
        certified.expired,
        20,
        needs_clocks=True,
        alerts=("CertificateExpires", "CertificateExpiresSoon"),
    ),
    Fault("a key that does not fit its certificate", certified.do_not_fit, 15, alerts=("CertificatesAreNotUsed",)),
    Fault("authority of all certificates replaced", certified.authority_replaced, alerts=FAST),
    Fault(
        "forged calls of the index", certified.forged, 30, alerts=("MantleIndexRefusesCalls", "MantleIndexTermJumps")
    ),
    Fault("slow changes", slowed(slow.slower_changes, slow.changes_as_before), 45, alerts=("MantleGatewayIsSlow",)),
    Fault(
        "renames that outlast their locks",
        slowed(slow.slower_renames, slow.renames_as_before),
        30,
        alerts="the leader aborts each in time",
    ),
    Fault(
        "renames that cannot be aborted",
        slowed(slow.slower_recorded, slow.recorded_as_before),
        30,
        alerts=("MantleRenameLocksStay",),
    ),
]
