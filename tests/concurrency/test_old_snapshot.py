"""An old snapshot keeps all versions of a row. Changes of one directory must not read past more and more of them."""

import uuid

import psycopg

from . import verbs

ADD = "SELECT mantle.apply_deltas(ARRAY[ROW(%s, %s, 1, 0, 10)::mantle.delta])"
MANY = 2000
RECORDS = "SELECT count(*) FILTER (WHERE ts = 0), count(*) FILTER (WHERE ts > 0) FROM mantle.meta WHERE pid = %s"


def count(connection: psycopg.Connection, ns: int, pid: int) -> tuple[int, int]:
    """Counts many entries, one after the other; primary and delta records afterwards."""
    for _ in range(MANY):
        connection.execute(ADD, (ns, pid), prepare=True)
    total = "SELECT sum(entries) FROM mantle.meta WHERE pid = %s"
    assert connection.execute(total, (pid,)).fetchone() == (MANY + 1,)
    return connection.execute(RECORDS, (pid,)).fetchone()


def test_counts_leave_a_record_with_many_old_versions(make_target):
    target = make_target("old_snapshot")
    with target.connect() as connection, target.connect() as reader:
        ns = verbs.create_namespace(connection, f"old-{uuid.uuid4().hex[:12]}")
        first = verbs.allocate_ids(connection, 2)
        for pid in (first, first + 1):
            connection.execute("SET mantle.delta_records = never")
            connection.execute(ADD, (ns, pid))
            connection.execute("SET mantle.delta_records = auto")
        # PostgreSQL prunes the versions of a page that nobody sees any more: one caller adds in place for ever.
        assert count(connection, ns, first) == (1, 0)
        with reader.transaction():
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT count(*) FROM mantle.namespaces")
            primary, deltas = count(connection, ns, first + 1)
        assert primary == 1 and deltas > MANY // 4
