"""Numbers of delta records repeat: a batch that compaction waits for may need the number that is being folded."""

import threading
import uuid

import psycopg

from stack.poll import wait_until

from . import verbs

WAIT_BOUND_S = 20.0
ADD = "SELECT mantle.apply_deltas(ARRAY[ROW(%s, %s, 1, 0, 10)::mantle.delta])"
IS_WAITING = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"


def add(connection: psycopg.Connection, ns: int, pid: int, how: str) -> None:
    """Adds an entry of 10 bytes to a directory's counts."""
    connection.execute("SELECT set_config('mantle.delta_records', %s, false)", (how,))
    connection.execute(ADD, (ns, pid))


def number_of_delta(connection: psycopg.Connection, pid: int) -> int:
    [(number,)] = connection.execute("SELECT ts FROM mantle.meta WHERE pid = %s AND ts > 0", (pid,)).fetchall()
    return number


def counts(connection: psycopg.Connection, pid: int) -> list[tuple[int, int, int]]:
    """Attribute records: number, entries, bytes."""
    found = "SELECT ts, entries, bytes FROM mantle.meta WHERE pid = %s AND name = '/_ATTR' ORDER BY ts"
    return connection.execute(found, (pid,)).fetchall()


def test_a_number_that_is_being_folded_may_be_wanted_again(make_target):
    """The batch adds in place, compaction waits for it, and the batch then appends. Neither deadlocks the other."""
    target = make_target("numbers")
    with target.connect() as connection, target.connect() as batch, target.connect() as compaction:
        ns = verbs.create_namespace(connection, f"numbers-{uuid.uuid4().hex[:12]}")
        lower = verbs.allocate_ids(connection, 2)
        upper = lower + 1
        for pid in (lower, upper):
            add(connection, ns, pid, "never")
            add(connection, ns, pid, "always")
        batch.execute("BEGIN")
        add(batch, ns, lower, "auto")
        failures = []

        def fold() -> None:
            try:
                compaction.execute("SELECT mantle.compact_directories(%s, 100)", ([lower, upper],))
            except psycopg.Error as error:
                failures.append(error)

        folding = threading.Thread(target=fold)
        folding.start()
        try:
            pid = compaction.info.backend_pid
            wait_until(
                lambda: connection.execute(IS_WAITING, (pid,)).fetchone() == (True,), "compaction to wait", WAIT_BOUND_S
            )
            number = number_of_delta(connection, upper)
            connection.execute("SELECT setval('mantle.delta_ts', %s, false)", (number - 1,))
            add(batch, ns, upper, "always")
            batch.execute("COMMIT")
        finally:
            batch.close()
            folding.join()
        assert failures == []
        assert counts(connection, lower) == [(0, 3, 30)]
        assert counts(connection, upper) == [(0, 2, 20), (number + 1, 1, 10)], (
            "one was folded, the next number was taken"
        )
