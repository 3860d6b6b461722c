"""Settings that PostgreSQL 15 does not have, and what they do to a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import psycopg
import pytest

from cluster.cluster import Cluster
from cluster.member import Member
from stack import secret
from stack.layout import DATABASE
from stack.poll import wait_until

from .clients import session
from .load import PROGRESS_BOUND_S, Probe
from .measure import measured
from .oracle import assert_nothing_is_lost

IS_FAILOVER = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
# What PostgreSQL says when it cannot copy such a slot to a standby.
REFUSED = "same name slot"


def connect(cluster: Cluster, member: Member, **more) -> psycopg.Connection:
    """A superuser's session, also at a standby."""
    return psycopg.connect(
        host=member.host.address, port=member.port, dbname=DATABASE, user="postgres",
        password=secret.read(cluster.layout, "superuser"), autocommit=True, **more,
    )  # fmt: skip


def make_failover(cluster: Cluster, primary: Member, connection: psycopg.Connection) -> bool:
    """Makes the index's slot a failover slot while nobody reads it; false if the reader came back first."""
    slot = cluster.shape.slot
    with connect(cluster, primary, replication="database") as replication:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
        )
        replication.pgconn.exec_(f'ALTER_REPLICATION_SLOT "{slot}" (FAILOVER true)'.encode())
    return connection.execute(IS_FAILOVER, (slot,)).fetchone() == (True,)


@contextmanager
def synchronizing(cluster: Cluster, standby: Member) -> Iterator[None]:
    """Lets PostgreSQL copy failover slots to the standby while the block runs."""
    with connect(cluster, standby) as connection:
        connection.execute("ALTER SYSTEM SET sync_replication_slots = on")
        connection.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        with connect(cluster, standby) as connection:
            connection.execute("ALTER SYSTEM RESET sync_replication_slots")
            connection.execute("SELECT pg_reload_conf()")


@pytest.mark.long
@pytest.mark.parametrize("synchronized", [False, True], ids=["marked", "synchronized"])
def test_a_failover_slot_beside_patroni_s(
    cluster: Cluster, ns: str, probes: dict[int, list[Probe]], synchronized: bool
) -> None:
    """From 17 on a slot may be marked so that PostgreSQL copies it to standbys. Patroni (4.1) leaves such a slot alone,
    so the standby's copy, which is Patroni's, stays where it is. It is behind the index, so a switchover loses nothing.
    Where `sync_replication_slots` is on, PostgreSQL does not copy it either, because of Patroni's copy. The next
    primary's slot has no mark, and Patroni copies it to the old primary.
    """
    group = max(probes)
    primary = cluster.leader(group)
    standby = next(member for member in cluster.groups[group] if member is not primary)
    with session(cluster, group) as old:
        if old.info.server_version < 170_000:
            pytest.skip("PostgreSQL 17 has failover slots first")
        with (
            measured("switchover with a failover slot", probes, group) as load,
            synchronizing(cluster, standby) if synchronized else nullcontext(),
        ):
            wait_until(lambda: make_failover(cluster, primary, old), "the slot to be marked", PROGRESS_BOUND_S)
            load.await_progress()
            if synchronized:
                log = standby.process.log_file
                has_refused = lambda: REFUSED in log.read_text(encoding="utf-8", errors="replace")
                wait_until(has_refused, "PostgreSQL to meet Patroni's copy", PROGRESS_BOUND_S)
            cluster.await_standbys(group)
            cluster.switchover(group)
            load.await_progress()
    assert_nothing_is_lost(cluster, ns, load.acknowledged)
    # The old primary gets a copy without the mark.
    cluster.await_protection(group)
    for member in cluster.groups[group]:
        with connect(cluster, member) as connection:
            assert connection.execute(IS_FAILOVER, (cluster.shape.slot,)).fetchone() == (False,)
