"""The failpoints: every place where a test can hold a verb.

They exist in test databases only (sql_wrappers.py). A session arms one by name. When its verb gets there, it waits for
a session-level advisory lock until the test opens the gate. pg_locks shows that the point was reached, so tests wait
for that, not for a time. A failpoint is disarmed once it is reached.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from stack.poll import wait_until
from tests.support.sql_wrappers import wrap

# In the order in which a verb passes them. `before_commit` needs no wrapper: it is an open transaction.
BEFORE_LATCHES = "before_latches"
AFTER_LATCHES = "after_latches"
BEFORE_CLAIM = "before_claim"  # all checks have passed, nothing is written
BEFORE_COUNTS = "before_counts"  # the entry is written, the directory's counts are not
BEFORE_EMIT = "before_emit"  # all is written but the message (not on a fast path, which emits it itself)
BEFORE_COMMIT = "before_commit"
ALL = (BEFORE_LATCHES, AFTER_LATCHES, BEFORE_CLAIM, BEFORE_COUNTS, BEFORE_EMIT, BEFORE_COMMIT)


@dataclass(frozen=True)
class Point:
    """Reached before or after a step, if `condition` on its result is true."""

    name: str
    step: str
    when: str
    condition: str = "true"


POINTS = (
    *(
        Point(name, step, when)
        for step in ("latch_batch", "latch_entries", "latch_pids")
        for name, when in ((BEFORE_LATCHES, "before"), (AFTER_LATCHES, "after"))
    ),
    Point(BEFORE_CLAIM, "record_request", "before"),
    Point(BEFORE_COUNTS, "add_counts", "before"),
    Point(BEFORE_COUNTS, "apply_deltas", "before"),
    Point(BEFORE_EMIT, "emit_directories", "before"),
)


# Points at a table's writes, since the fast paths call no function: a trigger on the rows that match.
@dataclass(frozen=True)
class Written:
    """Reached before or after a row is written."""

    name: str
    table: str
    when: str
    condition: str = "true"


WRITES = (
    Written(BEFORE_CLAIM, "requests", "BEFORE INSERT"),
    Written(BEFORE_COUNTS, "meta", "AFTER INSERT", "NEW.id IS NOT NULL"),
    Written(BEFORE_COUNTS, "meta", "AFTER DELETE", "OLD.id IS NOT NULL"),
    # A directory that moves, on one node.
    Written(BEFORE_COUNTS, "meta", "AFTER UPDATE", "OLD.pid <> NEW.pid OR OLD.name <> NEW.name"),
)

# Class and number of the advisory lock that the test holds while sessions must wait.
GATE = (0x4D54, 1)
HELD_BOUND_S = 30.0

# The test decides how long a failpoint waits: the verb's own lock_timeout must not end it.
REACH = f"""
    CREATE SCHEMA failpoint;
    CREATE FUNCTION failpoint.reach(p_name text) RETURNS void LANGUAGE plpgsql VOLATILE SET lock_timeout = 0 AS $$
    BEGIN
        IF current_setting('failpoint.at', true) = p_name THEN
            PERFORM set_config('failpoint.at', '', false);
            PERFORM pg_advisory_lock_shared({GATE[0]}, {GATE[1]});
            PERFORM pg_advisory_unlock_shared({GATE[0]}, {GATE[1]});
        END IF;
    END $$;
    CREATE FUNCTION failpoint.reach_by_row() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        PERFORM failpoint.reach(TG_ARGV[0]);
        RETURN NEW;
    END $$;
"""


def install(connection: psycopg.Connection) -> None:
    """All points. Call it before any other session of the database runs a verb."""
    install_steps(connection)
    install_triggers(connection)


def install_triggers(connection: psycopg.Connection) -> None:
    """The points at rows; call it after install_steps."""
    for write in WRITES:
        connection.execute(
            f"CREATE TRIGGER failpoint_{write.name}_{write.when.split()[1].lower()} {write.when}"
            f" ON mantle.{write.table} FOR EACH ROW"
            f" WHEN ({write.condition}) EXECUTE FUNCTION failpoint.reach_by_row('{write.name}')"
        )


def install_steps(connection: psycopg.Connection) -> None:
    """The points at steps."""
    connection.execute(REACH)
    for step in dict.fromkeys(point.step for point in POINTS):
        texts = {"before": "", "after": ""}
        for point in (point for point in POINTS if point.step == step):
            texts[point.when] += f"IF {point.condition} THEN PERFORM failpoint.reach('{point.name}'); END IF;"
        wrap(connection, step, "failpoints.POINTS", before=texts["before"], after=texts["after"])
    # A waiting verb must be seen to wait, however slow the machine. Another test checks the bounds on waiting.
    for (signature,) in connection.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p"
        " WHERE p.pronamespace = 'mantle'::regnamespace"
        # mkdir and put_object bound their waits in Rust, unless something else does.
        " AND (array_to_string(p.proconfig, ' ') LIKE '%lock_timeout%' OR p.proname IN ('mkdir', 'put_object'))"
    ).fetchall():
        connection.execute(f"ALTER FUNCTION {signature} SET lock_timeout = '60s'")


def arm(connection: psycopg.Connection, name: str) -> None:
    connection.execute("SELECT set_config('failpoint.at', %s, false)", (name,))


class Gate:
    """Holds the sessions that reach their failpoint."""

    def __init__(self, connection: psycopg.Connection):
        self.connection = connection

    @contextmanager
    def closed(self) -> Iterator[None]:
        """A session that reaches its failpoint waits until the block ends."""
        self.close()
        try:
            yield
        finally:
            self.open()

    def close(self) -> None:
        self.connection.execute("SELECT pg_advisory_lock(%s, %s)", GATE)

    def open(self) -> None:
        self.connection.execute("SELECT pg_advisory_unlock(%s, %s)", GATE)

    def holds(self, backend: int) -> bool:
        """Checks that a session waits at its failpoint."""
        return (
            self.connection.execute(
                "SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.classid = %s AND l.objid = %s"
                " AND l.objsubid = 2"
                " AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())"
                " AND l.pid = %s AND NOT l.granted",
                (*GATE, backend),
            ).fetchone()
            is not None
        )

    def await_held(self, backend: int, is_over, what: str) -> None:
        """Waits until a session is held. `is_over()` true means that its verb ended without reaching the point."""
        wait_until(
            lambda: self.holds(backend),
            what,
            HELD_BOUND_S,
            lambda: "the verb ended without reaching it" if is_over() else None,
        )
