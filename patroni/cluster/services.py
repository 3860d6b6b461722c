"""The services of a cluster, each on its host: the classes of a stack with other addresses, and HAProxy in front of
PostgreSQL.
"""

from stack.account import Account
from stack.gateway import Gateway
from stack.http import is_open
from stack.indexnode import IndexNode
from stack.layout import INDEX_GROUPS
from stack.pgbouncer import BINARY, PgBouncer

from . import template, times
from .host import process_on
from .layout import (
    COORDINATOR,
    PORT_GATEWAY,
    PORT_INDEX_GRPC,
    PORT_INDEX_HTTP,
    PORT_PATRONI,
    PORT_PGBOUNCER,
    PORT_POSTGRESQL,
    VOTERS,
    ClusterLayout,
    Host,
)  # fmt: skip
from .member import Member

HAPROXY = "/usr/sbin/haproxy"


class Pooler(PgBouncer):
    """The PgBouncer beside a server."""

    def __init__(self, layout: ClusterLayout, account: Account, member: Member):
        super().__init__(layout, account, member)
        name = f"{member.name}-pgbouncer"
        self.host, self.port = member.host, PORT_PGBOUNCER
        self.config = layout.config / f"{name}.ini"
        self.process = process_on(
            member.address, layout, account, name, [BINARY, str(self.config)], stop_signal=self.process.stop_signal
        )


class Proxy:
    """The HAProxy on a client's host, which leads to the primary of the first group."""

    def __init__(self, layout: ClusterLayout, account: Account, host: Host):
        self.layout, self.account, self.host = layout, account, host
        self.name = f"{host.name}-haproxy"
        self.config = layout.config / f"{self.name}.cfg"
        self.process = process_on(host, layout, account, self.name, [HAPROXY, "-db", "-f", str(self.config)])

    def prepare(self) -> None:
        servers = self.layout.group_hosts(COORDINATOR)

        def lines(port: int) -> str:
            return "\n".join(
                f"    server {host.name} {host.address}:{port} check port {PORT_PATRONI}" for host in servers
            )

        values = {
            "address": self.host.address, "port": PORT_POSTGRESQL, "pooler_port": PORT_PGBOUNCER,
            "postgresql_servers": lines(PORT_POSTGRESQL), "pgbouncer_servers": lines(PORT_PGBOUNCER),
            **times.of("haproxy"),
        }  # fmt: skip
        self.account.write(self.config, template.filled("haproxy.cfg", values))

    def is_ready(self) -> bool:
        return is_open(self.host.address, PORT_POSTGRESQL)


class Replica(IndexNode):
    """An IndexNode on its host."""

    def __init__(self, layout: ClusterLayout, account: Account, number: int):
        super().__init__(layout, account, number, INDEX_GROUPS[:1])
        host = layout.index_hosts[number - 1]
        self.host = host
        self.is_learner = number > VOTERS
        self.name = host.name
        self.data, self.config = layout.data / self.name, layout.config / f"{self.name}.toml"
        self.listen, self.http_listen = f"{host.address}:{PORT_INDEX_GRPC}", f"{host.address}:{PORT_INDEX_HTTP}"
        self.database = (host.address, PORT_POSTGRESQL)  # its HAProxy
        command = [str(layout.binaries / "mantle-indexnode"), "--config", str(self.config)]
        self.process = process_on(host, layout, account, self.name, command, environment=self.process.environment)

    def settings(self) -> str:
        voters = ", ".join(f'"{address}"' for address in self.layout.index_addresses[:VOTERS])
        every = ", ".join(f'"{address}"' for address in self.layout.index_addresses)
        index = times.of("indexnode")
        return f"""learner = {str(self.is_learner).lower()}
{super().settings().replace(every, voters)}
[raft]
election_timeout_ms = {index["election_timeout_ms"]}
heartbeat_ms = {index["heartbeat_ms"]}

[rename]
lock_ms_max = {index["lock_ms_max"]}
"""


class ClusterGateway(Gateway):
    """A gateway on its host. All gateways share one directory of objects. `replicas`: the IndexNodes it asks."""

    def __init__(
        self,
        layout: ClusterLayout,
        account: Account,
        number: int,
        name: str | None = None,
        replicas: list[str] | None = None,
    ):
        super().__init__(layout, account, number)
        host = layout.gateway_hosts[(number - 1) % len(layout.gateway_hosts)]
        self.host, self.name = host, name or host.name
        self.port = PORT_GATEWAY + (number - 1) // len(layout.gateway_hosts)
        self.listen = f"{host.address}:{self.port}"
        self.url = f"http://{self.listen}"
        self.config = layout.config / f"{self.name}.toml"
        # its own file: other gateways may be reading theirs
        self.credentials = layout.config / f"{self.name}-credentials.toml"
        self.database = (host.address, PORT_PGBOUNCER)  # its HAProxy
        self.replicas = replicas or layout.index_addresses
        self.owner_name = self.name
        self.threads = None  # it has a host of its own; and the previous release does not know the setting
        command = [str(layout.binaries / "mantle-gateway"), "--config", str(self.config)]
        self.process = process_on(host, layout, account, self.name, command, environment=self.process.environment)

    def settings(self) -> str:
        limits = "".join(f"{name} = {value}\n" for name, value in times.of("gateway").items())
        text = super().settings().replace("pool_size", f"node_port = {PORT_PGBOUNCER}\npool_size", 1)
        return f"{text}\n[limits]\n{limits}"
