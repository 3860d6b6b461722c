"""A PostgreSQL server for these suites, made by the launcher's code: fsync on, as the unprivileged account.

It is separate from the stack under test, since tests kill it and give it settings of their own.
MANTLE_CONCURRENCY_FOLDER and MANTLE_CONCURRENCY_PORT_BASE set its directory and ports.
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

# Commit timestamps order the property test's histories. No worker runs: compaction is an operation of the tests.
SETTINGS = {
    "track_commit_timestamp": "on",
    "mantle.compaction_databases": "",
    "shared_buffers": "128MB",
    "max_wal_size": "512MB",
    "min_wal_size": "128MB",
}


class SuiteServer(Server):
    """One server. `number`: several side by side, each with its own settings."""

    def __init__(self, number: int = 0, settings: dict[str, str] | None = None, password: str | None = None):
        place = make_folder(Path(os.environ.get("MANTLE_CONCURRENCY_FOLDER", FOLDER)).absolute(), service_account())
        base = int(os.environ.get("MANTLE_CONCURRENCY_PORT_BASE", PORT_BASE)) + PORTS_EACH * number
        super().__init__(place / (f"node{number}" if settings else ""), base, SETTINGS | (settings or {}), password)

    def connect(self) -> psycopg.Connection:
        """A superuser's session, in a database that no test uses."""
        return psycopg.connect(**self.parameters, dbname="postgres", autocommit=True)

    def lift_standby(self) -> None:
        """No commit waits for a standby any more."""
        with self.connect() as superuser:
            absent_standby.lift(superuser)

    @contextmanager
    def without_standby(self) -> Iterator[None]:
        """Commits wait for an absent synchronous standby while the block runs."""
        try:
            absent_standby.demand(self.connect)
            yield
        finally:
            self.lift_standby()
