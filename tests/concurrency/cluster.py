"""A PostgreSQL cluster of these suites' own, made by the launcher's code: fsync on, as the unprivileged account.

Kept apart from the stack under test, since it is killed and has settings of its own. Folder and ports may be given by
MANTLE_CONCURRENCY_FOLDER and MANTLE_CONCURRENCY_PORT_BASE.
"""

import os
import secrets
import shutil
from pathlib import Path

from stack import secret
from stack.account import make_folder, service_account
from stack.build import postgresql_tree
from stack.layout import REPOSITORY, Layout
from stack.postgresql import PostgreSQL, copy_tree
from stack.terminal import write_private

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


class Cluster:
    """One server, made anew for each run; started again after a crash. `number`: several side by side, with settings of
    their own."""

    def __init__(self, number: int = 0, settings: dict[str, str] | None = None, password: str | None = None):
        folder = Path(os.environ.get("MANTLE_CONCURRENCY_FOLDER", FOLDER)) / (f"node{number}" if settings else "")
        account = service_account()
        base = int(os.environ.get("MANTLE_CONCURRENCY_PORT_BASE", PORT_BASE)) + PORTS_EACH * number
        layout = Layout(make_folder(folder.absolute(), account), base)
        for part in (layout.data, layout.logs, layout.pids, layout.secrets):
            part.mkdir(mode=0o755, exist_ok=True)
            account.own(part)
        write_private(layout.secrets / "superuser", password or secrets.token_urlsafe(24))
        account.own(layout.secrets / "superuser")
        self.postgresql = PostgreSQL(layout, account)
        # Of a run before, which may have been cut short, and may have had another build of the extension.
        self.stop()
        shutil.rmtree(self.postgresql.data, ignore_errors=True)
        copy_tree(postgresql_tree(), layout)
        for name, value in (SETTINGS | (settings or {})).items():
            self.postgresql.process.command += ["-c", f"{name}={value}"]
        self.parameters = {
            "host": "127.0.0.1", "port": str(layout.postgresql_port), "user": "postgres",
            "password": secret.read(layout, "superuser"),
        }  # fmt: skip

    def start(self) -> None:
        """Also after a crash: recovers."""
        self.postgresql.prepare()
        self.postgresql.start()

    def kill(self) -> None:
        """kill -9 of the postmaster, in the middle of whatever goes on. Returns when no backend is left."""
        self.postgresql.process.kill()

    def stop(self) -> None:
        self.postgresql.process.stop()
