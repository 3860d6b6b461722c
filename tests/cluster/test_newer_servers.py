"""What newer versions of PostgreSQL can do to a cluster: settings that 15 does not have."""

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


def make_failover(cluster: Cluster, primary: Member, connection: psycopg.Connection) -> bool:
    """Makes the index's slot a failover slot, while it is free of its reader; false when the reader was faster."""
    slot = cluster.shape.slot
    connection.execute(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    with psycopg.connect(
        host=primary.host.address, port=primary.port, dbname=DATABASE, user="postgres", replication="database",
        password=secret.read(cluster.layout, "superuser"), autocommit=True,
    ) as replication:  # fmt: skip
        replication.pgconn.exec_(f'ALTER_REPLICATION_SLOT "{slot}" (FAILOVER true)'.encode())
    return connection.execute(IS_FAILOVER, (slot,)).fetchone() == (True,)


@pytest.mark.long
def test_a_failover_slot_beside_patroni_s(cluster: Cluster, ns: str, probes: dict[int, list[Probe]]) -> None:
    """PostgreSQL 17 copies such slots to standbys where `sync_replication_slots` is on. Patroni copies the index's slot
    anyway, under the same name. So the mark changes nothing, and the next primary's slot does not have it.
    """
    group = max(probes)
    with session(cluster, group) as old:
        if old.info.server_version < 170_000:
            pytest.skip("PostgreSQL 17 has failover slots first")
        with measured("switchover with a failover slot", probes, group) as load:
            primary = cluster.leader(group)
            wait_until(lambda: make_failover(cluster, primary, old), "the slot to be marked", PROGRESS_BOUND_S)
            cluster.await_protection(group)
            load.await_progress()
            cluster.switchover(group)
            load.await_progress()
    assert_nothing_is_lost(cluster, ns, load.acknowledged)
    cluster.await_protection(group)
    with session(cluster, group) as new:
        assert new.execute(IS_FAILOVER, (cluster.shape.slot,)).fetchone() == (False,)
