"""What the extension does in a server that `pg_upgrade` has started, and in one that it has made. Any version."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from stack.layout import REPOSITORY
from stack.poll import wait_until
from stack.server import Server

FOLDER = REPOSITORY / ".test-upgrade" / "alone"
PORT_BASE = 8100
DATABASE = "mantle"
RESTORED_BOUND_S = 60

# The catalog as pg_upgrade makes it (tests/pgtap/restore_after_upgrade.sql has the rest).
LOSE = """
    UPDATE pg_proc SET proacl = NULL WHERE oid IN (SELECT f FROM mantle.message_functions() AS f);
    DELETE FROM pg_init_privs
     WHERE classoid = 'pg_proc'::regclass AND objoid IN (SELECT f FROM mantle.message_functions() AS f);
    DELETE FROM pg_depend d USING pg_publication p
     WHERE d.classid = 'pg_publication'::regclass AND d.objid = p.oid AND p.pubname = 'mantle_stream'
"""
LOST = "SELECT count(*) FROM mantle.lost_by_upgrade()"


@pytest.fixture
def server() -> Iterator[Server]:
    """One of its own, with the extension in a database."""
    FOLDER.parent.mkdir(exist_ok=True)
    server = Server(FOLDER, PORT_BASE, {"shared_preload_libraries": "mantle", "mantle.compaction_databases": ""})
    try:
        server.start()
        server.postgresql.psql(f"CREATE DATABASE {DATABASE}", database="postgres")
        server.postgresql.psql("CREATE EXTENSION mantle", database=DATABASE)
        yield server
    finally:
        server.stop()


def connect(server: Server) -> psycopg.Connection:
    return psycopg.connect(**server.parameters, dbname=DATABASE, autocommit=True)


def test_no_process_of_ours_runs_while_pg_upgrade_works(server: Server):
    """A worker's transactions would take ids that pg_upgrade believes to be free."""
    signs = "SELECT count(*) FROM mantle.worker_signs()"
    with connect(server) as connection:
        assert connection.execute(signs).fetchone() == (1,), "in a usual start there is a launcher"
    server.stop()
    server.postgresql.process.command.append("-b")
    server.start()
    with connect(server) as connection:
        assert connection.execute(signs).fetchone() == (0,)
        processes = connection.execute("SELECT backend_type FROM pg_stat_activity WHERE backend_type ~ 'mantle'")
        assert processes.fetchall() == []


@pytest.mark.parametrize("chosen", [DATABASE, "*"])
def test_the_worker_restores_what_pg_upgrade_loses(server: Server, chosen: str):
    with connect(server) as connection:
        connection.execute(LOSE)
        assert connection.execute(LOST).fetchone() == (3,)
    server.stop()
    command = server.postgresql.process.command
    command[command.index("mantle.compaction_databases=")] = f"mantle.compaction_databases={chosen}"
    server.start()
    with connect(server) as connection:
        nothing_is_lost = lambda: connection.execute(LOST).fetchone() == (0,)
        wait_until(nothing_is_lost, "the worker to restore", RESTORED_BOUND_S)
        connection.execute("SET ROLE mantle_analyst")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT pg_logical_emit_message(true, 'mantle', 'forged')")


def test_a_worker_and_an_administrator_restore_at_once(server: Server):
    with connect(server) as connection, connect(server) as other, connect(server) as watcher:
        connection.execute(LOSE)
        restore = "SELECT count(*) FROM mantle.restore_after_upgrade()"
        with ThreadPoolExecutor() as pool, connection.transaction():
            assert connection.execute(restore).fetchone() == (3,)
            second = pool.submit(lambda: other.execute(restore).fetchone())
            waits = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
            is_waiting = lambda: watcher.execute(waits, (other.info.backend_pid,)).fetchone() == (1,)
            wait_until(is_waiting, "the other session to wait", RESTORED_BOUND_S)
        assert second.result() == (0,)
        assert connection.execute(LOST).fetchone() == (0,)
