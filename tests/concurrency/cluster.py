"""A PostgreSQL cluster of these suites' own, made by the launcher's code: fsync on, as the unprivileged account.

Kept apart from the stack under test, since it is killed and has settings of its own. Folder and ports may be given by
MANTLE_CONCURRENCY_FOLDER and MANTLE_CONCURRENCY_PORT_BASE.
"""

import os
from pathlib import Path

from stack.account import make_folder, service_account
from stack.layout import REPOSITORY
from stack.poll import wait_until
from stack.server import Server

FOLDER = REPOSITORY / ".concurrency"
PORT_BASE = 7900
PORTS_EACH = 10
SETTING_BOUND_S = 30.0

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

    def await_standby(self, name: str) -> None:
        """Commits wait for it from now on; for none if it has no name."""

        def psql(text: str) -> str:
            return self.postgresql.psql(text, database="postgres").strip()

        psql(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'; SELECT pg_reload_conf()")
        wait_until(lambda: psql("SHOW synchronous_standby_names") == name, "the setting", SETTING_BOUND_S)
