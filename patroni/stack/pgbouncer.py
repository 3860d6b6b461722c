"""PgBouncer of a stack: transaction pooling between gateways and PostgreSQL.

Invariant: it stores SCRAM verifiers only, taken from PostgreSQL, and logs in with the keys that a client's login
yields. Debian's service of the same name is neither used nor touched.
"""

import signal
import tomllib

from . import http
from .account import Account
from .layout import CONFIG, REPOSITORY, Layout
from .postgresql import PostgreSQL, database_url
from .service import Service

TIMES = tomllib.loads((REPOSITORY / "patroni" / "times.toml").read_text(encoding="utf-8"))["pgbouncer"]


class PgBouncer(Service):
    """The PgBouncer beside a server."""

    READY_BOUND_S = 15.0

    def __init__(self, layout: Layout, account: Account, postgresql: PostgreSQL, name: str = "pgbouncer"):
        options = {"host": postgresql.host, "config": "ini", "stop_signal": signal.SIGINT}
        super().__init__(layout, account, name, ["/usr/sbin/pgbouncer"], **options)
        self.postgresql = postgresql
        self.port = layout.pgbouncer_port

    def prepare(self) -> None:
        """Writes settings and users; PostgreSQL must be up."""
        users = self.postgresql.psql(
            'SELECT format(\'"%s" "%s"\', rolname, rolpassword) FROM pg_authid'
            " WHERE rolname IN ('gateway', 'operator', 'importer', 'analyst')",
            database="postgres",
        )
        self.account.write(self.config.with_suffix(".users"), users)
        super().prepare()

    def settings(self) -> str:
        address = self.host.address
        values = {"address": address, "port": self.port, "userlist": self.config.with_suffix(".users"), **TIMES}
        values |= {"postgresql_address": address, "postgresql_port": self.postgresql.port}
        text = (CONFIG / "pgbouncer.ini").read_text(encoding="utf-8")
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        return text

    def url(self, user: str) -> str:
        return database_url(self.layout, user, self.host.address, self.port)

    def is_ready(self) -> bool:
        return http.accepts(self.host.address, self.port)
