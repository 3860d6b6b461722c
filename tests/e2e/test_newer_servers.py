"""What newer versions of PostgreSQL can do to a running Mantle: settings that 15 does not have."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from stack.poll import wait_until
from stack.service import start_each
from tests.support.slots import slot_name

from .clients import await_all_ready, connect_as
from .inspection import READY_BOUND_S

pytestmark = [pytest.mark.server, pytest.mark.faults]


def needs(superuser: psycopg.Connection, major: int) -> None:
    if superuser.info.server_version < major * 10_000:
        pytest.skip(f"PostgreSQL {major} has it first")


@contextmanager
def setting(superuser: psycopg.Connection, change: str, back: str) -> Iterator[None]:
    superuser.execute(change)
    superuser.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        superuser.execute(back)
        superuser.execute("SELECT pg_reload_conf()")


@pytest.mark.usefixtures("whole")
@pytest.mark.allows("indexnode", r"rebuilding the index|has been invalidated|can no longer access replication slot")
@pytest.mark.allows("postgresql", r"invalidating obsolete replication slot|can no longer access replication slot")
def test_a_slot_that_was_idle_too_long_costs_a_rebuild(stack, bucket, rest, superuser):
    """PostgreSQL 18 invalidates slots without a reader (idle_replication_slot_timeout) at a checkpoint."""
    needs(superuser, 18)
    rest.mkdir(bucket, "before")
    for node in stack.indexnodes.values():
        node.process.stop()
    name, slot = "idle_replication_slot_timeout", slot_name(superuser)
    with setting(superuser, f"ALTER SYSTEM SET {name} = 1", f"ALTER SYSTEM RESET {name}"):

        def is_lost() -> bool:
            superuser.execute("CHECKPOINT")
            query = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
            return superuser.execute(query, (slot,)).fetchone() == ("lost",)

        wait_until(is_lost, "the slot to be invalidated", READY_BOUND_S)
        problems = superuser.execute("SELECT detail FROM mantle.check_cluster() WHERE problem = 'slot'").fetchall()
        assert any(slot in detail for (detail,) in problems), problems
    with stack.alone():
        stack.start()
    await_all_ready(stack)
    rest.mkdir(bucket, "after")
    assert rest.exists(bucket, "before/") and rest.exists(bucket, "after/")


@pytest.mark.usefixtures("whole")
@pytest.mark.allows("indexnode", r"terminating connection due to administrator command|rebuilding the index")
@pytest.mark.allows("postgresql", r"terminating connection due to transaction timeout|replication slot .* is active")
def test_a_bound_on_the_database_s_transactions_leaves_services_alone(stack, bucket, rest, superuser):
    """PostgreSQL 17 ends sessions whose transaction takes longer (transaction_timeout)."""
    needs(superuser, 17)
    change = "ALTER DATABASE mantle SET transaction_timeout = '1ms'"
    with setting(superuser, change, "ALTER DATABASE mantle RESET transaction_timeout"):
        for user in ("gateway", "index"):
            with connect_as(stack, user, user) as session:
                assert session.execute("SHOW transaction_timeout").fetchone() == ("0",)
        services = (stack.pgbouncer, *stack.indexnodes.values())
        for service in services:
            service.process.stop()
        start_each(services)  # not the whole stack: its superuser is bound
        await_all_ready(stack)
        for number in range(20):
            rest.mkdir(bucket, f"bounded-{number}")
