"""A restore to a point in time: the state of a copy of the server's files, on a new timeline."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from stack.poll import wait_until

from .server import SuiteServer
from .target import make_template

NUMBER = 4
RECOVERY_BOUND_S = 30.0


@contextmanager
def restorable_server() -> Iterator[SuiteServer]:
    server = SuiteServer(NUMBER, {"mantle.compaction_databases": ""})
    server.start()
    make_template(server.parameters)
    yield server
    server.stop()


def back_up(server: SuiteServer, backup: Path) -> None:
    server.stop()
    subprocess.run(["cp", "-a", str(server.postgresql.data), str(backup)], check=True)
    server.start()


def restore(server: SuiteServer, backup: Path) -> None:
    """The state of the backup, on a new timeline, as a restore to a point in time leaves it."""
    data = server.postgresql.data
    server.stop()
    shutil.rmtree(data)
    subprocess.run(["cp", "-a", str(backup), str(data)], check=True)
    with (data / "postgresql.auto.conf").open("a", encoding="ascii") as settings:
        settings.write("restore_command = 'false'\n")
    (data / "recovery.signal").touch()
    server.postgresql.account.own(data / "recovery.signal")
    server.start()
    wait_until(lambda: is_primary(server), "the end of recovery", RECOVERY_BOUND_S)


def is_primary(server: SuiteServer) -> bool:
    with psycopg.connect(**server.parameters, dbname="postgres") as connection:
        return connection.execute("SELECT NOT pg_is_in_recovery()").fetchone()[0]
