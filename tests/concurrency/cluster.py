"""A PostgreSQL cluster of these suites' own, made by the launcher's code: fsync on, as the unprivileged account.

Kept apart from the stack under test, since it is killed and has settings of its own. Folder and ports may be given by
MANTLE_CONCURRENCY_FOLDER and MANTLE_CONCURRENCY_PORT_BASE.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from stack.account import make_folder, service_account
from stack.layout import REPOSITORY
from stack.server import Server
from tests.support import absent_standby

FOLDER = REPOSITORY / ".concurrency"
PORT_BASE = 7900
PORTS_EACH = 10

# Commit timestamps order the property test's histories. No worker: compaction is an operation of the tests.
SETTINGS = {
    "track_commit_timestamp": "on",
    "mantle.compaction_databases": "",
    "shared_buffers": "128MB",
    "max_wal_size": "512MB",
    "min_wal_size": "128MB",
}


class Cluster(Server):
    """One server. `number`: several side by side, with settings of their own."""

    def __init__(self, number: int = 0, settings: dict[str, str] | None = None, password: str | None = None):
        place = make_folder(Path(os.environ.get("MANTLE_CONCURRENCY_FOLDER", FOLDER)).absolute(), service_account())
        base = int(os.environ.get("MANTLE_CONCURRENCY_PORT_BASE", PORT_BASE)) + PORTS_EACH * number
        super().__init__(place / (f"node{number}" if settings else ""), base, SETTINGS | (settings or {}), password)

    def connect(self) -> psycopg.Connection:
        """A session of the superuser, in a database that no test has."""
        return psycopg.connect(**self.parameters, dbname="postgres", autocommit=True)

    def lift_standby(self) -> None:
        """No commit waits for a standby any more."""
        with self.connect() as superuser:
            absent_standby.lift(superuser)

    @contextmanager
    def without_standby(self) -> Iterator[None]:
        """Commits wait for a synchronous standby that is not there."""
        try:
            absent_standby.demand(self.connect)
            yield
        finally:
            self.lift_standby()
