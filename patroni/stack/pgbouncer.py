"""PgBouncer of a stack: transaction pooling between gateways and PostgreSQL.

Invariant: it stores SCRAM verifiers only, taken from PostgreSQL, and logs in with the keys that a client's login
yields. Debian's service of the same name is neither used nor touched.
"""

import signal
import tomllib

from . import secret
from .account import Account
from .http import is_open
from .layout import CONFIG, DATABASE, REPOSITORY, Layout
from .poll import wait_until
from .postgresql import PostgreSQL
from .process import Process

BINARY = "/usr/sbin/pgbouncer"
READY_BOUND_S = 15.0
TIMES = tomllib.loads((REPOSITORY / "patroni" / "times.toml").read_text(encoding="utf-8"))["pgbouncer"]


class PgBouncer:
    def __init__(self, layout: Layout, account: Account, postgresql: PostgreSQL):
        self.layout = layout
        self.account = account
        self.postgresql = postgresql
        self.host, self.port = "127.0.0.1", layout.pgbouncer_port
        self.config = layout.config / "pgbouncer.ini"
        command = [BINARY, str(self.config)]
        self.process = Process.of(layout, account, "pgbouncer", command, stop_signal=signal.SIGINT)

    def prepare(self) -> None:
        """Writes settings and users; PostgreSQL must be up."""
        users = self.postgresql.psql(
            'SELECT format(\'"%s" "%s"\', rolname, rolpassword) FROM pg_authid'
            " WHERE rolname IN ('gateway', 'operator', 'analyst')",
            database="postgres",
        )
        userlist = self.config.with_suffix(".users")
        text = (CONFIG / "pgbouncer.ini").read_text(encoding="utf-8")
        values = {"address": self.host, "port": self.port, "userlist": userlist}
        values |= {"postgresql_address": self.postgresql.host, "postgresql_port": self.postgresql.port, **TIMES}
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        self.account.write(userlist, users)
        self.account.write(self.config, text)

    def start(self) -> None:
        self.process.start()
        wait_until(self.is_ready, "PgBouncer", READY_BOUND_S, self.process.why_dead)

    def url(self, user: str) -> str:
        return f"postgresql://{user}:{secret.read(self.layout, user)}@{self.host}:{self.port}/{DATABASE}"

    def is_ready(self) -> bool:
        return is_open(self.host, self.port)
