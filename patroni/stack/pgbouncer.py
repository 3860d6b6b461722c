"""PgBouncer of a stack: transaction pooling between gateways and PostgreSQL.

Invariant: it stores SCRAM verifiers only, taken from PostgreSQL, and logs in with the keys that a client's login
yields. Debian's service of the same name is neither used nor touched.
"""

import base64
import hashlib
import hmac
import signal
import tomllib

from . import http, secret
from .account import Account
from .layout import CONFIG, REPOSITORY, Layout
from .postgresql import PostgreSQL, database_url
from .service import Service

TIMES = tomllib.loads((REPOSITORY / "patroni" / "times.toml").read_text(encoding="utf-8"))["pgbouncer"]


ADMINISTRATOR = "pgbouncer"  # of the pooler itself
ITERATIONS = 4096


def scram_verifier(password: str) -> str:
    """A SCRAM-SHA-256 verifier as PostgreSQL stores it (RFC 5802). The salt follows from the password, so that the same
    password gives the same file.
    """
    digest = lambda key, text: hmac.new(key, text, hashlib.sha256).digest()
    salt = digest(password.encode(), b"salt")[:16]
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
    stored = hashlib.sha256(digest(salted, b"Client Key")).digest()
    parts = [base64.b64encode(part).decode() for part in (salt, stored, digest(salted, b"Server Key"))]
    return f"SCRAM-SHA-256${ITERATIONS}:{parts[0]}${parts[1]}:{parts[2]}"


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
        own = f'"{ADMINISTRATOR}" "{scram_verifier(secret.read(self.layout, ADMINISTRATOR))}"\n'
        self.account.write(self.config.with_suffix(".users"), users + own)
        super().prepare()

    def settings(self) -> str:
        address = self.host.address
        values = {"address": address, "port": self.port, "userlist": self.config.with_suffix(".users"), **TIMES}
        values["tls"] = self.tls()
        values |= {"postgresql_address": address, "postgresql_port": self.postgresql.port}
        text = (CONFIG / "pgbouncer.ini").read_text(encoding="utf-8")
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        return text

    def tls(self) -> str:
        """The lines about TLS. On loopback there is none."""
        return ""

    def url(self, user: str) -> str:
        return database_url(self.layout, user, self.host.address, self.port)

    def is_ready(self) -> bool:
        return http.accepts(self.host.address, self.port)
