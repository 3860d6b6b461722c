"""A stack that speaks TLS on every connection, for the bench: it costs more than a plain one by the cost of TLS.

Invariant: the settings are those of a cluster's services. Every client verifies its server, IndexNodes and gateways
show each other certificates, and no server answers without TLS.
"""

import socket
import struct

from . import certificates, http, tls
from .failure import Failure
from .gateway import Gateway
from .indexnode import IndexNode
from .layout import DATABASE, REPLICAS, Layout
from .pgbouncer import PgBouncer
from .poll import wait_until
from .postgresql import PostgreSQL
from .service import Service
from .stack import Stack

ADDRESS = "127.0.0.1"
TIMEOUT_S = 5.0
LISTED_BOUND_S = 20.0  # until every connection that a start makes is there
PROTOCOL = 3 << 16  # version 3.0 of PostgreSQL's protocol
REFUSED = b"E"  # the first byte of PostgreSQL's answer to a session that it refuses
OPEN = 'mantle_tls_open_connections{{kind="{}"}}'


class TlsPostgreSQL(PostgreSQL):
    """The server, which an index also shows a certificate of its role."""

    ACCESS = f"""# Loopback only, TLS and passwords.
hostssl {DATABASE} index {ADDRESS}/32 scram-sha-256 clientcert=verify-full
hostssl all all {ADDRESS}/32 scram-sha-256
"""

    def settings(self) -> str:
        files = certificates.files(self.layout, "postgresql")
        return super().settings() + (
            "ssl = on\n"
            f"ssl_cert_file = '{files['certificate']}'\n"
            f"ssl_key_file = '{files['key']}'\n"
            f"ssl_ca_file = '{files['authority']}'\n"
        )

    def client_environment(
        self, database: str = DATABASE, user: str = "postgres", password: str = "superuser"
    ) -> dict[str, str]:
        authority = certificates.files(self.layout, "postgresql")["authority"]
        verified = {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": authority}
        return {**super().client_environment(database, user, password), **verified}


class TlsPgBouncer(PgBouncer):
    """TLS to gateways and to the server."""

    def tls(self) -> str:
        return tls.pgbouncer(certificates.files(self.layout, "postgresql"))


class TlsIndexNode(IndexNode):
    """An IndexNode that shows its certificate to peers, gateways and PostgreSQL."""

    def settings(self) -> str:
        files = certificates.files(self.layout, "index")
        return f"{super().settings()}\n{tls.postgres(files, with_certificate=True)}\n{tls.index(files)}"


class TlsGateway(Gateway):
    """A gateway for HTTPS."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.url = self.url.replace("http:", "https:", 1)

    def settings(self) -> str:
        files, users = (certificates.files(self.layout, name) for name in ("gateway", "gateway-https"))
        return f"{super().settings()}\n{tls.postgres(files)}\n{tls.index(files)}\n{tls.https(users)}"


class TlsStack(Stack):
    """One stack with TLS everywhere."""

    def _compose(self, layout: Layout) -> None:
        self.layout, account = layout, self.account
        self.postgresql = TlsPostgreSQL(layout, account)
        self.pgbouncer = TlsPgBouncer(layout, account, self.postgresql)
        self.indexnodes = {replica: TlsIndexNode(layout, account, replica, self.groups) for replica in REPLICAS}
        self.gateway = TlsGateway(layout, account)
        self.more_gateways = []

    def _prepare(self) -> None:
        super()._prepare()
        self.account.own_folder(self.layout.certificates, 0o700)
        make = lambda name, subject, use: certificates.make(
            self.layout, self.account, name, subject, [ADDRESS, "localhost"], use
        )
        certificates.make_authority(self.layout, self.account, certificates.AUTHORITY, "/CN=mantle stack")
        make("postgresql", "/CN=postgresql", certificates.SERVER)
        make("index", "/OU=mantle-peer/CN=index", [certificates.BOTH])
        make("gateway", "/OU=mantle-gateway/CN=gateway", [certificates.BOTH])
        make("gateway-https", "/CN=gateway", certificates.SERVER)

    @property
    def authority(self) -> str:
        """The certificate of the authority that clients trust."""
        return str(certificates.path(self.layout, f"{certificates.AUTHORITY}.crt"))

    def check_encryption(self) -> None:
        """Raises a Failure if a server answers without TLS, or has a connection without it."""
        answering = [server.name for server in (self.postgresql, self.pgbouncer) if _takes_plain_sessions(server)]
        if http.call("GET", self.gateway.url.replace("https:", "http:", 1))[0]:
            answering.append(self.gateway.name)
        sessions = self.postgresql.psql(
            "SELECT usename, count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
            " WHERE client_addr IS NOT NULL AND NOT ssl GROUP BY 1"
        )
        if answering or sessions.strip():
            raise Failure(f"not all is encrypted: {', '.join(answering)} answers plain; sessions: {sessions.strip()}")
        # An IndexNode answers a plain call too, by a refusal.
        wait_until(self._has_only_tls, "connections of the IndexNodes, all with TLS", LISTED_BOUND_S)

    def _has_only_tls(self) -> bool:
        open_connections = [indexnode.metrics() for indexnode in self.indexnodes.values()]
        return all(found.get(OPEN.format("tls")) and not found.get(OPEN.format("plain")) for found in open_connections)


def _takes_plain_sessions(server: Service) -> bool:
    """Begins a session without TLS; PostgreSQL and PgBouncer then ask for a password, or refuse."""
    parameters = f"user\0gateway\0database\0{DATABASE}\0\0".encode()
    with socket.create_connection((ADDRESS, server.port), timeout=TIMEOUT_S) as connection:
        connection.sendall(struct.pack("!ii", 8 + len(parameters), PROTOCOL) + parameters)
        return connection.recv(1) not in (b"", REFUSED)
