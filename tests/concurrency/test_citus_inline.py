"""Bytes inside PostgreSQL on several nodes (P62): they are where their objects' rows are, and go where these go."""

import os
from contextlib import closing

import psycopg
import pytest

from stack import citus

from .copies import copy, delete
from .distributed import SpreadNamespace, distributed_target, move
from .tree import Op

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

SIZES = (1, 4096, 16_384)
WORKERS = (0, 1)
LOCATOR = "SELECT m.locator FROM mantle.meta m WHERE m.pid = %s AND m.name = %s AND m.ts = 0"
KEPT = "SELECT i.bytes FROM mantle.inline i WHERE i.pid = %s ORDER BY 1"
# Rows of both tables that are on this node.
HERE = """
    SELECT count(*) FILTER (WHERE s.logicalrelid = 'mantle.meta'::regclass),
           count(*) FILTER (WHERE s.logicalrelid = 'mantle.inline'::regclass)
      FROM pg_dist_shard s JOIN pg_dist_placement p ON p.shardid = s.shardid
      JOIN pg_dist_local_group l ON l.groupid = p.groupid
     WHERE s.logicalrelid IN ('mantle.meta'::regclass, 'mantle.inline'::regclass)
"""
TOGETHER = "SELECT code, entry FROM mantle.stat_local(%s::bigint[], %s::bigint[], %s::text[], '{true}')"


@pytest.fixture(scope="module")
def target(citus_cluster):
    with distributed_target(citus_cluster, "mantle_inline") as target:
        yield target


@pytest.fixture
def spread(target) -> SpreadNamespace:
    spread = SpreadNamespace(target)
    yield spread
    target.settle()
    assert spread.coordinator.execute("SELECT problem, pid, name, detail FROM mantle.check()").fetchall() == []


def put(spread: SpreadNamespace, session: psycopg.Connection, pid: int, name: str, size: int = 100) -> bytes:
    body = os.urandom(size)
    op = Op("put_object", pid, name, spread.new_id(), size=size, inline=body)
    assert spread.call(session, op).code is None
    return body


def read(spread: SpreadNamespace, session: psycopg.Connection, pid: int, name: str) -> bytes | None:
    """What the object's row leads to, asked in any session."""
    (locator,) = spread.coordinator.execute(LOCATOR, (pid, name)).fetchone()
    found = session.execute("SELECT b FROM mantle.inline_bytes(%s, %s) AS b", (pid, locator)).fetchall()
    return found[0][0] if found else None


def together(spread: SpreadNamespace, session: psycopg.Connection, pid: int, name: str) -> tuple:
    """Code and entry with its bytes, from the session's node alone."""
    given = ([spread.ns], [pid], [name])
    # A session that has not read where the shards are leaves it to SQL, once.
    session.execute(TOGETHER, given)
    return session.execute(TOGETHER, given).fetchone()


def kept(spread: SpreadNamespace, pid: int) -> list[bytes]:
    return [body for (body,) in spread.coordinator.execute(KEPT, (pid,))]


def test_the_tables_are_colocated(target):
    with closing(target.coordinator()) as session:
        assert session.execute("SELECT * FROM mantle.shard_problems()").fetchall() == []
    for node in target.all[1:]:
        with closing(psycopg.connect(**node, autocommit=True)) as session:
            entries, bytes_ = session.execute(HERE).fetchone()
            assert entries == bytes_ > 0


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("size", SIZES)
def test_every_node_writes_and_reads_them(spread, worker, size):
    """The node of the directory by its fast path; the others through it."""
    pid = spread.by_worker[worker][0]
    for at, session in enumerate((spread.coordinator, *spread.sessions)):
        name = f"o{at}-{size}"
        body = put(spread, session, pid, name, size)
        overwritten = put(spread, session, pid, name, size)
        assert body != overwritten or size == 1
        for reader in (spread.coordinator, *spread.sessions):
            assert read(spread, reader, pid, name) == overwritten
        code, entry = together(spread, spread.sessions[worker], pid, name)
        assert code is None and entry.endswith(size.to_bytes(4) + overwritten)
        assert kept(spread, pid) == [overwritten]
        assert delete(session, spread.ns, pid, name) == (None, None)
        assert kept(spread, pid) == []


@pytest.mark.parametrize("way", [WORKERS, WORKERS[::-1]])
def test_a_rename_to_another_node_takes_them_along(spread, way):
    source, destination = (spread.by_worker[worker][0] for worker in way)
    for session in (spread.coordinator, *spread.sessions):
        body = put(spread, session, source, "moves", 4096)
        put(spread, session, destination, "replaced")
        op = Op("rename_object", source, "moves", dst_pid=destination, dst_name="replaced", overwrite=True)
        assert spread.call(session, op).code is None
        assert (kept(spread, source), kept(spread, destination)) == ([], [body])
        assert read(spread, session, destination, "replaced") == body


def test_a_copy_on_another_node_has_its_own(spread):
    source, destination = spread.by_worker[0][0], spread.by_worker[1][0]
    body = put(spread, spread.sessions[0], source, "source", 4096)
    put(spread, spread.sessions[0], destination, "copy")
    copied = copy(spread.sessions[1], spread.ns, (source, "source"), (destination, "copy"), spread.new_id())
    assert (copied.code, copied.old_locator) == (None, None)
    assert delete(spread.coordinator, spread.ns, source, "source") == (None, None)
    assert (kept(spread, source), kept(spread, destination)) == ([], [body])
    assert read(spread, spread.sessions[0], destination, "copy") == body


def test_what_fails_on_one_node_leaves_both(spread):
    source, destination = spread.by_worker[0][0], spread.by_worker[1][0]
    body = put(spread, spread.sessions[0], source, "stays", 4096)
    with spread.coordinator.transaction(force_rollback=True):
        op = Op("rename_object", source, "stays", dst_pid=destination, dst_name="gone")
        assert spread.call(spread.coordinator, op).code is None
    assert (kept(spread, source), kept(spread, destination)) == ([body], [])


@pytest.mark.parametrize("mode", ["block_writes", "force_logical"])
def test_a_shard_takes_them_along(target, spread, mode):
    pid = spread.by_worker[0][0]
    bodies = {f"{mode}{size}": put(spread, spread.sessions[0], pid, f"{mode}{size}", size) for size in SIZES}
    ends = [(node["host"], int(node["port"])) for node in target.all[1:]]
    shard = spread.shard_of(pid)
    for source in WORKERS:
        move(spread.coordinator, shard, ends[source], ends[1 - source], mode)
        for name, body in bodies.items():
            assert read(spread, spread.coordinator, pid, name) == body
            code, entry = together(spread, spread.sessions[1 - source], pid, name)
            assert code is None and entry.endswith(body)
            assert together(spread, spread.sessions[source], pid, name) == ("MT043", None)
        again = f"after{source}"
        bodies[again] = put(spread, spread.sessions[1 - source], pid, again, 4096)
    assert kept(spread, pid) == sorted(bodies.values())


def test_an_analyst_reads_none_on_any_node(target, spread):
    pid = spread.by_worker[0][0]
    put(spread, spread.coordinator, pid, "secret")
    for node in target.all:
        with closing(psycopg.connect(**node, autocommit=True)) as session:
            session.execute("SET ROLE mantle_analyst")
            for query in ("SELECT count(*) FROM mantle.inline", "SELECT mantle.inline_bytes(1, 'inline:1')"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    session.execute(query)
