"""A PostgreSQL server under Patroni: a member of a group.

Invariant: only Patroni starts, configures, promotes and stops PostgreSQL. The launcher ends a postmaster itself only
when its Patroni is gone (killed by a test), and only one whose data directory is the cluster's.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

from stack import http, secret
from stack.account import Account
from stack.failure import Failure
from stack.layout import DATABASE, Host
from stack.poll import wait_until
from stack.postgresql import PostgreSQL, common_settings
from stack.process import KILL_BOUND_S, start_ticks

from . import certificates, template, times
from .layout import COORDINATOR, PORT_ETCD, PORT_PATRONI, PORT_POSTGRESQL, ClusterLayout

SHARED_BUFFERS = "128MB"
MAX_CONNECTIONS = 200
WATCHDOG = "off"  # never resets the machine that runs this
STOP_BOUND_S = 60.0
# Roles whose queries go from node to node.
ROLES = ("postgres", "gateway", "index", "operator", "importer", "analyst")


class Member(PostgreSQL):
    """One server with its Patroni. Sessions to it are made as to a stack's server."""

    def __init__(self, layout: ClusterLayout, account: Account, group: int, host: Host):
        super().__init__(layout, account, host, [layout.patroni / "bin" / "python", "-m", "patroni"])
        self.group = group
        self.rest = f"https://{host.address}:{PORT_PATRONI}"

    @property
    def is_source(self) -> bool:
        """Checks that the index reads this server's change stream. A coordinator has no shards."""
        return self.group != COORDINATOR or not self.layout.shape.is_citus

    @property
    def permanent_slots(self) -> str:
        """The slots that Patroni keeps on this group's servers. All groups have the same name for the index's."""
        slot = f"{self.layout.shape.slot}: {{type: logical, database: {DATABASE}, plugin: pgoutput}}"
        return f"{{{slot}}}" if self.is_source else "{}"

    def prepare(self) -> None:
        """Writes settings; Patroni makes the data directory."""
        self.account.own_folder(self.data.parent, 0o700)
        self.account.write(self.layout.config / "postgresql.conf", common_settings(self.layout))
        self.account.write(self.config, self.settings())
        names = {role: "superuser" if role == "postgres" else role for role in ROLES}
        passwords = (f"{role}:{secret.read(self.layout, name)}\n" for role, name in names.items())
        lines = "".join(f"*:{PORT_POSTGRESQL}:*:{line}" for line in passwords)
        self.account.write(self.data.parent / "nodes.pgpass", lines)
        self.process.environment = self.environment()

    def settings(self) -> str:
        etcd = ",".join(f"{host.address}:{PORT_ETCD}" for host in self.layout.etcd_hosts)
        # Citus moves shards through the node's own "localhost".
        address = self.host.address
        listen = f"{address},127.0.0.1" if self.layout.shape.has_namespaces else address
        values = {
            "name": self.name, "group": self.group, "address": address, "listen": listen, "port": self.port,
            "rest_port": PORT_PATRONI, "etcd": etcd, "certificates": self.layout.certificates, "database": DATABASE,
            "slots": self.permanent_slots,
            "bin": self.layout.postgresql_bin, "data": self.data,
            "settings": self.layout.config / "postgresql.conf", "pgpass": self.data.parent / "pgpass",
            "shared_buffers": SHARED_BUFFERS, "max_connections": MAX_CONNECTIONS, "clients": self.layout.clients,
            "nodes": "\n".join(
                f"    - hostssl {DATABASE} index {network} scram-sha-256" for network in self.layout.nodes
            ),
            "watchdog": WATCHDOG, **certificates.of(self.layout, self.host),
            **times.of("patroni", "postgresql", "citus"),
        }  # fmt: skip
        text = template.filled("patroni.yml", values)
        return text + (template.filled("patroni-citus.yml", values) if self.layout.shape.is_citus else "")

    def environment(self) -> dict[str, str]:
        """Patroni's secrets, which it keeps from PostgreSQL, and what PostgreSQL inherits for sessions that it makes:
        those of Citus, above all, because `citus.node_conninfo` permits no channel_binding.
        """
        names = {"SUPERUSER": "superuser", "REPLICATION": "replication", "REWIND": "rewind", "RESTAPI": "restapi"}
        passwords = {f"PATRONI_{name}_PASSWORD": secret.read(self.layout, file) for name, file in names.items()}
        libpq = {"PGPASSFILE": str(self.data.parent / "nodes.pgpass"), "PGCHANNELBINDING": "require"}
        return {**passwords, **libpq, "PYTHONDONTWRITEBYTECODE": "1"}

    def client_environment(
        self, database: str = DATABASE, user: str = "postgres", password: str = "superuser"
    ) -> dict[str, str]:
        authority = certificates.of(self.layout, self.host)["authority"]
        tls = {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": authority}
        return {**super().client_environment(database, user, password), **tls}

    def start(self) -> None:
        self.process.start()

    def answers(self, what: str) -> bool:
        """Patroni's own probes: `primary`, `replica`, `health`, `sync`, `readiness`."""
        return http.call("GET", f"{self.rest}/{what}", tls=certificates.client_context(self.layout))[0] == 200

    def is_ready(self) -> bool:
        return self.answers("health")

    def slot_position(self) -> int:
        """The confirmed position of the index's slot here; -1 if there is no slot, or it is lost."""
        shown = self.psql(
            "SELECT pg_wal_lsn_diff(confirmed_flush_lsn, '0/0') FROM pg_replication_slots "
            f"WHERE slot_name = '{self.layout.shape.slot}' AND wal_status <> 'lost' AND confirmed_flush_lsn IS NOT NULL"
        )
        return int(shown.strip() or -1)

    # The postmaster, which outlives its Patroni.
    def postmaster(self) -> int | None:
        """The pid of this server's postmaster, if it runs."""
        with suppress(OSError, ValueError, IndexError):
            pid = int((self.data / "postmaster.pid").read_text(encoding="ascii").split()[0])
            if Path(f"/proc/{pid}/cwd").resolve() == self.data.resolve() and start_ticks(pid) is not None:
                return pid
        return None

    def is_there(self) -> bool:
        """Checks that Patroni or PostgreSQL runs."""
        return self.process.pid() is not None or self.postmaster() is not None

    def signal_postmaster(self, number: signal.Signals) -> None:
        pid = self.postmaster()
        if pid is not None:
            os.kill(pid, number)

    def stop(self) -> None:
        """Patroni stops PostgreSQL first. If Patroni is gone, the launcher stops it."""
        self.process.stop(STOP_BOUND_S)
        for number in (signal.SIGINT, signal.SIGKILL):
            if self.postmaster() is None:
                return
            self.signal_postmaster(number)
            bound_s = STOP_BOUND_S if number == signal.SIGINT else KILL_BOUND_S
            try:
                wait_until(lambda: self.postmaster() is None, f"the end of {self.name}'s PostgreSQL", bound_s)
            except Failure:
                if number == signal.SIGKILL:
                    raise
