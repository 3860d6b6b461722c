"""A lease bounds how long a resolved path may be used: a late change is refused, and so is one on a database with
another history (P8).

Each test first shows the damage of a change without a lease: an entry in a directory that does not exist.
"""

import uuid

import psycopg
import pytest

from stack.poll import wait_until

from . import verbs
from .restores import back_up, restorable_server, restore
from .target import fresh_target

LEASE_S = 20  # mantle_types::limits::LEASE_S
PUT = """SELECT r.code FROM mantle.put_object('{0}', ARRAY[%(ns)s::bigint], ARRAY[%(pid)s::bigint], ARRAY[%(name)s],
             ARRAY[%(id)s::bigint], '{0}', '{0}', '{420}', '{1}', '{e}', '{t}', ARRAY[NULL]::jsonb[], '{l}',
             ARRAY[NULL]::text[], ARRAY[gen_random_uuid()], '{0}', ARRAY[%(lease)s::text]) AS r"""
MKDIR = """SELECT r.id FROM mantle.mkdir('{0}', ARRAY[%(ns)s::bigint], ARRAY[%(ns)s::bigint], ARRAY[%(name)s],
             ARRAY[%(id)s::bigint], '{0}', '{0}', '{493}', '{t}', ARRAY[NULL]::jsonb[],
             ARRAY[gen_random_uuid()], '{0}') AS r"""


def new_namespace(connection: psycopg.Connection) -> int:
    return verbs.create_namespace(connection, f"lease-{uuid.uuid4().hex[:12]}")


def lease_of(connection: psycopg.Connection, ns: int) -> str:
    return connection.execute("SELECT mantle.lease(%s)", (ns,)).fetchone()[0]


def put(connection: psycopg.Connection, ns: int, pid: int, lease: str | None, id: int | None = None) -> str | None:
    """In a long transaction `id` is from an earlier allocation: allocations wait for each other's commit."""
    new = {
        "ns": ns,
        "pid": pid,
        "name": uuid.uuid4().hex,
        "id": id or verbs.allocate_ids(connection, 1),
        "lease": lease,
    }
    return connection.execute(PUT, new).fetchone()[0]


def mkdir(connection: psycopg.Connection, ns: int, name: str) -> int:
    return connection.execute(MKDIR, {"ns": ns, "name": name, "id": verbs.allocate_ids(connection, 1)}).fetchone()[0]


def problems(connection: psycopg.Connection) -> set[str]:
    return {problem for (problem,) in connection.execute("SELECT problem FROM mantle.check()").fetchall()}


def without_a_lease(connection: psycopg.Connection, ns: int, pid: int) -> set[str]:
    """The effect of a change of `pid` that names no lease."""
    with connection.transaction(force_rollback=True):
        assert put(connection, ns, pid, None) is None
        return problems(connection)


@pytest.fixture
def restorable():
    with restorable_server() as server:
        yield server


def test_a_restore_ends_the_leases_of_what_it_undid(restorable, tmp_path):
    with fresh_target(restorable.parameters, "mantle_lease") as target:
        with target.connect() as connection:
            ns = new_namespace(connection)
            backup = tmp_path / "backup"
            back_up(restorable, backup)
        with target.connect_when_up() as connection:
            undone = mkdir(connection, ns, "undone/")
            lease = lease_of(connection, ns)
            assert put(connection, ns, undone, lease) is None
        restore(restorable, backup)
        with target.connect_when_up() as connection:
            assert "no_parent" in without_a_lease(connection, ns, undone)
            assert put(connection, ns, undone, lease) == "MT045"
            assert put(connection, ns, ns, lease) == "MT045", (
                "of what is still there as well: who knows what else it saw"
            )
            assert put(connection, ns, ns, lease_of(connection, ns)) is None
            assert problems(connection) == set()


def test_no_change_comes_after_the_tombstone(make_target):
    """A client that paused for longer than a tombstone is kept, and a transaction that did."""
    target = make_target("late")
    with target.connect() as slept, target.connect() as connection:
        ns = new_namespace(connection)
        removed = mkdir(connection, ns, "removed/")
        first = verbs.allocate_ids(slept, 2)
        slept.execute("BEGIN")
        assert put(slept, ns, ns, None, first) is None
        lease = lease_of(connection, ns)
        rmdir = (
            "SELECT code FROM mantle.rmdir('{0}', ARRAY[%s::bigint], ARRAY[%s::bigint], '{removed/}',"
            " ARRAY[%s::bigint], ARRAY[gen_random_uuid()], '{0}')"
        )
        assert connection.execute(rmdir, (ns, ns, removed)).fetchone() == (None,)
        assert put(connection, ns, removed, lease) == "MT018"
        # Longer ago than it is kept.
        connection.execute(
            "UPDATE mantle.meta SET created = created - interval '1 year' WHERE pid = %s AND removed", (removed,)
        )
        purge = "SELECT mantle.run_maintenance('purge_tombstones')"
        connection.execute(purge)
        assert "no_parent" in without_a_lease(connection, ns, removed)
        over = (
            "SELECT clock_timestamp() > to_timestamp(split_part(%s, '/', 1)::bigint / 1000000.0)"
            " AND clock_timestamp() > now() + %s * interval '1 s'"
        )
        wait_until(lambda: slept.execute(over, (lease, LEASE_S)).fetchone()[0], "the end of the lease", 2 * LEASE_S)
        assert put(connection, ns, removed, lease) == "MT044"
        assert put(slept, ns, removed, None, first + 1) == "MT044"
        slept.execute("COMMIT")
        assert problems(connection) == set()
