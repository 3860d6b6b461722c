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
# Only renames that the index prepared name an index group in the first, or latch the epoch shared. Without Citus their
# fast path latches without the first. A sleep is longer than the lock of a rename (times.toml: rename_lock_ms), and
# shorter than the lease of its resolved paths (lease_s).
RENAME_STEPS = (
    ("latch_across_nodes", "$4 IS NOT NULL AND mantle.is_distributed()"),
    ("latch_epoch", "NOT $2 AND NOT mantle.is_distributed()"),
)
RENAME_SLEEP_S = 13
# During these sleeps the index is rebuilt, and conflicting renames begin, before they go on.
RENAME_SLEEP_BENEATH_S = 18
# Once a rename has recorded its attempt, the abort of the attempt waits for its end. Without Citus a trigger sleeps,
# because the fast path calls no step then.
RECORDED_STEP = "rename_directory_move"
RECORDED_SLEEP = "IF random() < 0.3 AND mantle.is_distributed() THEN PERFORM pg_sleep(15); END IF;"
RECORDED_TRIGGER = """
    CREATE OR REPLACE FUNCTION public.recorded() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF random() < 0.3 AND NEW.state = 'committed' THEN
            PERFORM pg_sleep(15);
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER recorded AFTER INSERT ON mantle.rename_attempts FOR EACH ROW EXECUTE FUNCTION public.recorded();
"""
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


def slower_renames(connection: psycopg.Connection, seconds: int = RENAME_SLEEP_S) -> None:
    for step, is_rename in RENAME_STEPS:
        sleep = f"IF {is_rename} AND random() < 0.5 THEN PERFORM pg_sleep({seconds}); END IF;"
        put_before(connection, step, "slow.RENAME_STEPS", sleep)


def renames_as_before(connection: psycopg.Connection) -> None:
    for step, _ in RENAME_STEPS:
        put_before(connection, step, "slow.RENAME_STEPS", "")


def slower_recorded(connection: psycopg.Connection) -> None:
    put_before(connection, RECORDED_STEP, "slow.RECORDED_STEP", RECORDED_SLEEP)
    if not is_distributed(connection):
        connection.execute("DROP TRIGGER IF EXISTS recorded ON mantle.rename_attempts")
        connection.execute(RECORDED_TRIGGER)


def recorded_as_before(connection: psycopg.Connection) -> None:
    put_before(connection, RECORDED_STEP, "slow.RECORDED_STEP", "")
    if not is_distributed(connection):
        connection.execute("DROP TRIGGER IF EXISTS recorded ON mantle.rename_attempts")


def is_distributed(connection: psycopg.Connection) -> bool:
    return connection.execute("SELECT mantle.is_distributed()").fetchone()[0]
