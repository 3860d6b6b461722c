"""PostgreSQL of a stack: a private database cluster, run by a private copy of the server's files.

Invariant: the data directory is complete or absent (initdb writes beside it, and a rename puts it in place). Debian's
own cluster, its files under /usr and /etc, and port 5432 are not touched.
"""

import os
import shutil
import signal
from pathlib import Path

from . import secret
from .account import Account
from .failure import Failure
from .layout import CONFIG, DATABASE, Layout
from .poll import wait_until
from .process import Process
from .terminal import run

READY_BOUND_S = 120.0  # includes a crash recovery of max_wal_size
SHARED_BUFFERS_MAX_MB = 2048

ACCESS = """# Loopback only, passwords only. Replication of IndexNodes names the database, so these lines cover it.
host all all 127.0.0.1/32 scram-sha-256
"""


class PostgreSQL:
    def __init__(self, layout: Layout, account: Account):
        self.layout = layout
        self.account = account
        self.host, self.port = "127.0.0.1", layout.postgresql_port
        self.data = layout.data / "postgresql"
        command = [str(layout.postgresql_bin / "postgres"), "-D", str(self.data)]
        # SIGINT: a fast shutdown.
        self.process = Process.of(layout, account, "postgresql", command, stop_signal=signal.SIGINT)

    def prepare(self) -> None:
        """Makes the data directory if there is none, and renews the settings."""
        if not self.data.exists():
            self._initialize()
        shutil.copy(CONFIG / "mantle.conf", self.data / "mantle.conf")
        self.account.own(self.data / "mantle.conf")
        self.account.write(self.data / "pg_hba.conf", ACCESS)
        self.account.write(self.data / "postgresql.conf", self._settings())

    def _initialize(self) -> None:
        new = self.data.with_name("postgresql.new")
        shutil.rmtree(new, ignore_errors=True)
        self.account.make(new, 0o700)
        run(
            [
                *(str(self.layout.postgresql_bin / "initdb"), "--pgdata", str(new), "--username", "postgres"),
                *("--auth", "scram-sha-256", "--pwfile", str(self.layout.secrets / "superuser")),
                *("--locale", "C.UTF-8", "--encoding", "UTF8", "--data-checksums"),
            ],
            "initdb",
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            **self.account.popen_arguments(),
        )
        new.rename(self.data)

    def _settings(self) -> str:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
        return (
            "include 'mantle.conf'\n"
            f"port = {self.layout.postgresql_port}\n"
            f"shared_buffers = '{max(128, min(SHARED_BUFFERS_MAX_MB, pages // 8))}MB'\n"
            f"maintenance_work_mem = '{max(64, min(512, pages // 32))}MB'\n"
        )

    def start(self) -> None:
        self.process.start()
        wait_until(self.is_ready, "PostgreSQL", READY_BOUND_S, self.process.why_dead)

    def is_ready(self) -> bool:
        """Checks that this cluster answers, and not another one on the same port."""
        try:
            return self.psql("SHOW data_directory", database="postgres").strip() == str(self.data)
        except Failure:
            return False

    def set_up(self) -> None:
        """Creates database, extension and roles where they are missing."""
        exists = self.psql(f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'", database="postgres").strip()
        if not exists:
            self.psql(f"CREATE DATABASE {DATABASE}", database="postgres")
        names = ("gateway", "index", "operator", "analyst")
        lines = [f"\\set {name}_password '{secret.read(self.layout, name)}'" for name in names]
        self.psql("\n".join([*lines, (CONFIG / "roles.sql").read_text(encoding="utf-8")]))

    def psql(self, text: str, *, database: str = DATABASE, user: str = "postgres", password: str = "superuser") -> str:
        """Runs a script; returns its rows, unaligned. Raises Failure with psql's message."""
        return run(
            [str(self.layout.postgresql_bin / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f", "-"],
            "psql",
            input=text,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **self.client_environment(database, user, password)},
        )

    def client_environment(
        self, database: str = DATABASE, user: str = "postgres", password: str = "superuser"
    ) -> dict[str, str]:
        """The variables that libpq reads."""
        where = {"PGHOST": self.host, "PGPORT": str(self.port), "PGDATABASE": database, "PGCONNECT_TIMEOUT": "5"}
        return {**where, "PGUSER": user, "PGPASSWORD": secret.read(self.layout, password)}

    def url(self, user: str, password: str | None = None) -> str:
        return f"postgresql://{user}:{secret.read(self.layout, password or user)}@{self.host}:{self.port}/{DATABASE}"


def copy_tree(source: Path, layout: Layout) -> None:
    """Copies the server's files (51 MB) into the stack, so that a rebuild does not change a running server."""
    mark = "mantle.fingerprint"
    wanted = (source / mark).read_text(encoding="ascii")
    own = layout.postgresql_tree / mark
    if own.exists() and own.read_text(encoding="ascii") == wanted:
        return
    new = layout.postgresql_tree.with_name("pg.new")
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(source, new, symlinks=True)
    shutil.rmtree(layout.postgresql_tree, ignore_errors=True)
    new.rename(layout.postgresql_tree)
