"""Slow changes: a step of the extension sleeps now and then, on every node, as on a slow or crowded server.

Invariant: only the timing changes. A wrapped step has the same effect as before.
"""

from collections.abc import Callable
from functools import partial

import psycopg

from cluster.cluster import Cluster
from stack.failure import Failure
from stack.poll import wait_until
from tests.cluster.clients import session
from tests.support.sql_wrappers import put_before

PRIMARY_BOUND_S = 60.0

# Before the latch is taken, and while it is held, when everything is read and written.
CHANGE_STEPS = ("latch_batch", "latch_entries", "placement_fault", "placements_fault")
CHANGE_SLEEP = "IF random() < 0.3 THEN PERFORM pg_sleep(random() / 2); END IF;"
# Only renames that the index prepared name an index group here. The sleep is longer than the lock of a rename
# (times.toml: rename_lock_ms), and shorter than the lease of its resolved paths (lease_s).
RENAME_STEP = "latch_across_nodes"
RENAME_SLEEP = "IF $4 IS NOT NULL AND random() < 0.5 THEN PERFORM pg_sleep(13); END IF;"
# Once a rename has recorded its attempt, the abort of the attempt waits for its end.
RECORDED_STEP = "rename_directory_move"
RECORDED_SLEEP = "IF random() < 0.3 THEN PERFORM pg_sleep(15); END IF;"
# During these sleeps the index is rebuilt, and conflicting renames begin, before they go on.
RENAME_SLEEP_BENEATH = "IF $4 IS NOT NULL AND random() < 0.5 THEN PERFORM pg_sleep(18); END IF;"
# Renames that have not slept for long yet.
RENAMES_BEGUN = (
    "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%rename_directory%'"
    " AND query_start > clock_timestamp() - interval '2 seconds'"
)


def on_every_node(cluster: Cluster, work: Callable[[psycopg.Connection], None]) -> None:
    """At the primary of every group, in one transaction each; Citus does not propagate it. During a failover it waits
    for the new primary.
    """
    for group in cluster.groups:
        wait_until(
            partial(is_done, cluster, group, work),
            f"group {group} to have a primary that can be changed",
            PRIMARY_BOUND_S,
        )


def is_done(cluster: Cluster, group: int, work: Callable[[psycopg.Connection], None]) -> bool:
    try:
        with session(cluster, group) as connection:
            if cluster.shape.is_citus:
                connection.execute("SET citus.enable_ddl_propagation = off")
            with connection.transaction():
                work(connection)
    except (Failure, psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
        return False
    return True


def slower_changes(connection: psycopg.Connection, sleep: str = CHANGE_SLEEP) -> None:
    for step in CHANGE_STEPS:
        put_before(connection, step, "slow.CHANGE_STEPS", sleep)


def changes_as_before(connection: psycopg.Connection) -> None:
    slower_changes(connection, "")


def slower_renames(connection: psycopg.Connection, sleep: str = RENAME_SLEEP) -> None:
    put_before(connection, RENAME_STEP, "slow.RENAME_STEP", sleep)


def renames_as_before(connection: psycopg.Connection) -> None:
    slower_renames(connection, "")


def slower_recorded(connection: psycopg.Connection, sleep: str = RECORDED_SLEEP) -> None:
    put_before(connection, RECORDED_STEP, "slow.RECORDED_STEP", sleep)


def recorded_as_before(connection: psycopg.Connection) -> None:
    slower_recorded(connection, "")
