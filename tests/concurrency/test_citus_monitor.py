"""What monitoring says of Citus' own processes."""

from contextlib import closing

import pytest

from stack import citus
from stack.poll import wait_until

from .distributed import distributed_target

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

BOUND_S = 60.0
# What PostgreSQL says that Citus' daemon began.
SAID = """
    SELECT xact_start - backend_start FROM pg_stat_activity
     WHERE datname = current_database() AND backend_type LIKE 'Citus Maintenance Daemon%' AND xact_start IS NOT NULL
"""
TOLD = "SELECT since FROM mantle.open_transactions() WHERE detail LIKE 'Citus Maintenance Daemon%'"


@pytest.fixture(scope="module")
def target(citus_cluster):
    with distributed_target(citus_cluster, "mantle_monitored") as target:
        yield target


def test_a_short_transaction_of_the_daemon_is_not_as_old_as_its_process(target):
    """PostgreSQL says of each of them that it began with the process: after 15 minutes each would be named."""
    with closing(target.coordinator()) as session, closing(target.coordinator()) as holder:
        for warm_up in (SAID, TOLD):
            session.execute(warm_up)
        holder.execute("BEGIN")
        # The daemon reads it in every round, to finish prepared transactions.
        holder.execute("LOCK TABLE pg_dist_transaction IN ACCESS EXCLUSIVE MODE")
        wait_until(lambda: session.execute(TOLD).fetchone(), "a transaction of the daemon", BOUND_S)
        assert session.execute(SAID).fetchone()[0].total_seconds() < 1, "as PostgreSQL has it"
        assert session.execute(TOLD).fetchone() == (None,)
        holder.execute("ROLLBACK")
