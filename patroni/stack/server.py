"""One PostgreSQL without the rest of a stack, for tests and measurements with their own settings.

Invariant: it writes only in its directory. The server of an earlier run is stopped and removed first.
"""

import secrets
import shutil
from pathlib import Path

from . import secret, servers
from .account import make_folder, service_account
from .build import postgresql_tree
from .layout import Layout
from .postgresql import PostgreSQL, copy_tree


class Server:
    """A new server. `password` of its superuser `postgres` is generated when absent. `version`: which of servers.py it
    is, if not the chosen one.
    """

    def __init__(
        self,
        folder: Path,
        port_base: int,
        settings: dict[str, str],
        password: str | None = None,
        version: str | None = None,
    ):
        self.version = version or servers.chosen()
        account = service_account()
        layout = Layout(make_folder(folder.absolute(), account), port_base)
        for part in (layout.data, layout.logs, layout.pids, layout.secrets):
            account.own_folder(part)
        account.write(layout.secrets / "superuser", password or secrets.token_urlsafe(secret.PASSWORD_BYTES))
        self.postgresql = PostgreSQL(layout, account)
        # An earlier run may have been cut short, and may have had another build of the extension.
        self.stop()
        shutil.rmtree(self.postgresql.data, ignore_errors=True)
        copy_tree(postgresql_tree(self.version), layout)
        for name, value in settings.items():
            self.postgresql.process.command += ["-c", f"{name}={value}"]

    @property
    def parameters(self) -> dict[str, str]:
        """Connection parameters, except for the database."""
        layout = self.postgresql.layout
        return {
            "host": "127.0.0.1", "port": str(layout.postgresql_port), "user": "postgres",
            "password": secret.read(layout, "superuser"),
        }  # fmt: skip

    def start(self) -> None:
        """Also recovers after a crash."""
        with servers.on(self.version):
            self.postgresql.prepare()
            self.postgresql.start()

    def kill(self) -> None:
        """kill -9 of the postmaster. Returns when no backend is left."""
        self.postgresql.process.kill()

    def stop(self) -> None:
        self.postgresql.process.stop()
