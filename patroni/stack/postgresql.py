"""PostgreSQL of a stack: a private database cluster, run by a private copy of the server's files.

Invariant: the data directory is complete or absent (initdb writes beside it, and a rename puts it in place). Debian's
own cluster, its files under /usr and /etc, and port 5432 are not touched.
"""

import os
import shutil
import signal
from pathlib import Path

from . import secret, servers
from .account import Account
from .failure import Failure
from .layout import CONFIG, DATABASE, LOOPBACK, Host, Layout
from .service import Service
from .terminal import run

SHARED_BUFFERS_MAX_MB = 2048


class PostgreSQL(Service):
    """One server. `program`: what runs it, if that is not the launcher."""

    READY_BOUND_S = 120.0  # includes a crash recovery of max_wal_size
    ACCESS = """# Loopback only, passwords only. Replication of IndexNodes names the database, so these lines cover it.
host all all 127.0.0.1/32 scram-sha-256
"""

    def __init__(self, layout: Layout, account: Account, host: Host = LOOPBACK, program: list | None = None):
        self.data = layout.data / host.name / "postgresql"
        if program is None:
            command = [layout.postgresql_bin / "postgres", "-D", self.data]
            options = {"config": None, "stop_signal": signal.SIGINT}  # a fast shutdown
            name = f"{host.name}-postgresql" if host.name else "postgresql"
            super().__init__(layout, account, name, command, host=host, **options)
        else:
            super().__init__(layout, account, host.name, program, host=host, config="yml")
        self.port = layout.postgresql_port

    def prepare(self) -> None:
        """Makes the data directory if there is none, and renews the settings."""
        if not self.data.exists():
            self._initialize()
        made_by, major = (self.data / "PG_VERSION").read_text(encoding="ascii").strip(), servers.major()
        if made_by != major:
            raise Failure(
                f"{self.data} was made by PostgreSQL {made_by}, and this is {major}. Run with PG={made_by}; to go on "
                f"with {major}, upgrade it (docs/runbooks.md), or remove it by `make clean`"
            )
        for name, text in (
            ("mantle.conf", common_settings(self.layout)),
            ("pg_hba.conf", self.ACCESS),
            ("postgresql.conf", self.settings()),
        ):
            self.account.write(self.data / name, text)

    def _initialize(self) -> None:
        new = self.data.with_name("postgresql.new")
        shutil.rmtree(new, ignore_errors=True)
        self.account.own_folder(new, 0o700)
        command = [self.layout.postgresql_bin / "initdb", "--pgdata", new, "--username", "postgres"]
        command += ["--auth", "scram-sha-256", "--pwfile", self.layout.secrets / "superuser"]
        command += ["--locale", "C.UTF-8", "--encoding", "UTF8", "--data-checksums"]
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        run(command, "initdb", cwd="/", env=environment, **self.account.popen_arguments())
        new.rename(self.data)

    def settings(self) -> str:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
        return (
            "include 'mantle.conf'\n"
            f"port = {self.layout.postgresql_port}\n"
            f"shared_buffers = '{max(128, min(SHARED_BUFFERS_MAX_MB, pages // 8))}MB'\n"
            f"maintenance_work_mem = '{max(64, min(512, pages // 32))}MB'\n"
        )

    def start(self) -> None:
        super().start()
        self.await_ready()

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
        names = ("gateway", "index", "operator", "importer", "analyst")
        lines = [f"\\set {name}_password '{secret.read(self.layout, name)}'" for name in names]
        self.psql("\n".join([*lines, (CONFIG / "roles.sql").read_text(encoding="utf-8")]))

    def psql(self, text: str, *, database: str = DATABASE, user: str = "postgres", password: str = "superuser") -> str:
        """Runs a script; returns its rows, unaligned. Raises Failure with psql's message."""
        command = [self.layout.postgresql_bin / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f", "-"]
        client = self.client_environment(database, user, password)
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **client}
        return run(self.client_command(command), "psql", input=text, env=environment)

    def client_command(self, command: list) -> list:
        """How the launcher runs a client of the server: as it is, since the server can be reached from here."""
        return command

    def client_environment(
        self, database: str = DATABASE, user: str = "postgres", password: str = "superuser"
    ) -> dict[str, str]:
        """The variables that libpq reads."""
        where = {
            "PGHOST": self.host.address,
            "PGPORT": str(self.port),
            "PGDATABASE": database,
            "PGCONNECT_TIMEOUT": "5",
        }
        return {**where, "PGUSER": user, "PGPASSWORD": secret.read(self.layout, password)}

    def url(self, user: str, password: str | None = None) -> str:
        return database_url(self.layout, user, self.host.address, self.port, password)


def database_url(layout: Layout, user: str, address: str, port: int, password: str | None = None) -> str:
    """A URL with the password of the secret `password`, by default the user's."""
    return f"postgresql://{user}:{secret.read(layout, password or user)}@{address}:{port}/{DATABASE}"


def common_settings(layout: Layout) -> str:
    """The settings that Mantle relies on, as this server offers them."""
    text = (CONFIG / "mantle.conf").read_text(encoding="utf-8")
    has_lz4 = servers.offers_lz4(layout.postgresql_bin)
    return text if has_lz4 else text.replace("wal_compression = lz4", "wal_compression = pglz")


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
