"""Measures what rows, WAL and requests cost, in a database of their own that nothing else has used: a table that was
used before has free space, and would grow by less.
"""

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from stack.poll import wait_until

DATABASE = "sizing"
BOUND_S = 10.0
SESSIONS = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{DATABASE}' AND backend_type = 'client backend'"
NAMESPACE = "sizing"
PUT = """SELECT code FROM mantle.put_object('{0}', ARRAY[%(ns)s::bigint], ARRAY[%(pid)s::bigint], ARRAY[%(name)s],
    ARRAY[%(id)s::bigint], '{0}', '{0}', '{420}', '{1000}', ARRAY[%(etag)s], '{application/octet-stream}',
    ARRAY[NULL]::jsonb[], ARRAY[%(locator)s], '{NULL}', ARRAY[%(request)s::uuid], '{1}')"""
MKDIR = """SELECT code FROM mantle.mkdir('{0}', ARRAY[%(ns)s::bigint], ARRAY[%(pid)s::bigint], ARRAY[%(name)s],
    ARRAY[%(id)s::bigint], '{0}', '{0}', '{493}', '{true}', ARRAY[NULL]::jsonb[], ARRAY[%(request)s::uuid], '{1}')"""
SIZES = """SELECT pg_total_relation_size('mantle.meta'), pg_total_relation_size('mantle.requests'),
    pg_current_wal_insert_lsn() - '0/0'::pg_lsn"""


@dataclass
class Sizes:
    """Bytes of the MetaTable and of the answers to requests, with their PostgreSQL indexes, and of WAL."""

    meta: float
    requests: float
    wal: float

    def __sub__(self, before: "Sizes") -> "Sizes":
        return Sizes(self.meta - before.meta, self.requests - before.requests, self.wal - before.wal)

    def __truediv__(self, count: int) -> "Sizes":
        return Sizes(self.meta / count, self.requests / count, self.wal / count)


@contextmanager
def database(connect) -> Iterator[psycopg.Connection]:
    """A database with the extension. `connect(name)` opens a superuser's session."""
    with connect("postgres") as session:
        session.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        session.execute(f"CREATE DATABASE {DATABASE}")
        try:
            with connect(DATABASE) as inside:
                inside.execute("CREATE EXTENSION mantle")
                yield inside
        finally:
            # A session that was closed may still be there, and would be terminated: that is logged as an error.
            wait_until(lambda: session.execute(SESSIONS).fetchone() == (0,), "the end of its sessions", BOUND_S)
            session.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


def sizes(session: psycopg.Connection) -> Sizes:
    return Sizes(*(float(value) for value in session.execute(SIZES).fetchone()))


def make_namespace(session: psycopg.Connection) -> int:
    (id,) = session.execute("SELECT first_id FROM mantle.allocate_ids('sizing', 1)").fetchone()
    call = "SELECT code FROM mantle.create_namespace(0, %s, %s, 0, 0, 493, %s, 1)"
    assert session.execute(call, (NAMESPACE, id, uuid.uuid4())).fetchone() == (None,)
    return id


def imported(session: psycopg.Connection, program: Path, url: str, listing: Path) -> Sizes:
    """What an import adds."""
    before = sizes(session)
    command = [str(program), "import", "--namespace", NAMESPACE, str(listing), "--database", url]
    subprocess.run(command, check=True, capture_output=True, env={})
    return sizes(session) - before


def each(session: psycopg.Connection, call: str, ns: int, parents: list[int], name: str, count: int) -> Sizes:
    """What a call adds that makes one entry, as a transaction of its own, the parents taking turns."""
    (first,) = session.execute("SELECT first_id FROM mantle.allocate_ids('sizing', %s)", (count,)).fetchone()
    before = sizes(session)
    for number in range(count):
        request = uuid.uuid4()
        words = {
            "ns": ns, "pid": parents[number % len(parents)], "name": name.format(number), "id": first + number,
            "etag": request.hex, "locator": f"objects/{request.hex[:2]}/{request.hex}", "request": request,
        }  # fmt: skip
        (code,) = session.execute(call, words).fetchone()
        assert code is None, code
    return (sizes(session) - before) / count
