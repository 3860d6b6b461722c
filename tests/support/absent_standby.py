"""Simulates a synchronous standby that is required but absent: every commit of the server waits for it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg

from stack.poll import wait_until

BOUND_S = 30.0
PROBE = "SELECT pg_logical_emit_message(true, 'probe', '')"  # a commit that changes nothing, and that no index reads
WAITS = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"


def demand(connect: Callable[[], psycopg.Connection]) -> None:
    """Commits wait from now on, until `lift`. `connect` opens sessions of a superuser.

    Commits follow the setting only after the checkpointer has published it, which is later than sessions show it.
    """
    with connect() as probe, connect() as observer, ThreadPoolExecutor() as pool:
        observer.execute("ALTER SYSTEM SET synchronous_standby_names = 'gone'")
        observer.execute("SELECT pg_reload_conf()")
        pid = probe.info.backend_pid

        def waits() -> bool:
            return observer.execute(WAITS, (pid,)).fetchone() is not None

        def one_waits() -> bool:
            commit = pool.submit(probe.execute, PROBE)
            try:
                wait_until(lambda: commit.done() or waits(), "a commit to end or to wait", BOUND_S)
            except BaseException:
                lift(observer)  # or the pool would wait for the commit, and the commit for the standby
                raise
            has_waited = not commit.done()
            observer.execute("SELECT pg_cancel_backend(%s)", (pid,))
            commit.result(BOUND_S)
            return has_waited

        wait_until(one_waits, "commits to wait for a standby", BOUND_S)


def lift(superuser: psycopg.Connection) -> None:
    """The waiting commits go on."""
    superuser.execute("ALTER SYSTEM RESET synchronous_standby_names")
    superuser.execute("SELECT pg_reload_conf()")
