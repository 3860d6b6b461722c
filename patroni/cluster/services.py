"""The services of a cluster, each on its host: the classes of a stack with other addresses, and HAProxy in front of
PostgreSQL.
"""

import json

from stack import http, tls
from stack.account import Account
from stack.gateway import Gateway
from stack.indexnode import IndexNode
from stack.layout import INDEX_GROUPS, Host
from stack.pgbouncer import PgBouncer
from stack.service import Service

from . import certificates, store, template, times
from .layout import (
    COORDINATOR,
    PORT_GATEWAY,
    PORT_HAPROXY_METRICS,
    PORT_PATRONI,
    PORT_PGBOUNCER,
    PORT_POSTGRESQL,
    VOTERS,
    ClusterLayout,
)


class Proxy(Service):
    """The HAProxy on a client's host, which leads to the primary of the first group."""

    def __init__(self, layout: ClusterLayout, account: Account, host: Host):
        super().__init__(
            layout, account, f"{host.name}-haproxy", ["/usr/sbin/haproxy", "-db", "-f"], host=host, config="cfg"
        )

    def settings(self) -> str:
        servers = self.layout.group_hosts(COORDINATOR)
        # Only the check speaks TLS here. Sessions pass as they are: client and server verify each other.
        lines = lambda port: "\n".join(
            f"    server {host.name} {host.address}:{port} check port {PORT_PATRONI} verifyhost {host.name}"
            for host in servers
        )
        values = {
            "address": self.host.address, "port": PORT_POSTGRESQL, "pooler_port": PORT_PGBOUNCER,
            "metrics_port": PORT_HAPROXY_METRICS, "authority": certificates.of(self.layout, self.host)["authority"],
            "postgresql_servers": lines(PORT_POSTGRESQL), "pgbouncer_servers": lines(PORT_PGBOUNCER),
            **times.of("haproxy"),
        }  # fmt: skip
        return template.filled("haproxy.cfg", values)

    def is_ready(self) -> bool:
        return http.accepts(self.host.address, PORT_POSTGRESQL)


class Pooler(PgBouncer):
    """The PgBouncer beside a server: TLS on both sides."""

    def tls(self) -> str:
        return tls.pgbouncer(certificates.of(self.layout, self.host))


class Replica(IndexNode):
    """An IndexNode on its host."""

    def __init__(self, layout: ClusterLayout, account: Account, number: int):
        host = layout.index_hosts[number - 1]
        super().__init__(layout, account, number, INDEX_GROUPS[:1], host, host.name)
        self.is_learner = number > VOTERS
        self.peers = layout.index_addresses[:VOTERS]

    def settings(self) -> str:
        index, learners = times.of("indexnode"), self.layout.index_addresses[VOTERS:]
        files = certificates.of(self.layout, self.host)
        return f"""learner = {str(self.is_learner).lower()}
learners = {json.dumps(learners)}
{super().settings()}
{tls.postgres(files, with_certificate=True, server_name=certificates.TAFDB)}
{tls.index(files)}
[raft]
election_timeout_ms = {index["election_timeout_ms"]}
heartbeat_ms = {index["heartbeat_ms"]}

[rename]
lock_ms_max = {index["lock_ms_max"]}
"""


class ClusterGateway(Gateway):
    """A gateway on its host. The bytes of objects are in the cluster's store, which all gateways use. In a cluster that
    an older release made they are in one folder of this machine, which stands for a file system that all mount.
    """

    def __init__(
        self,
        layout: ClusterLayout,
        account: Account,
        number: int,
        name: str | None = None,
        replicas: list[str] | None = None,
    ):
        hosts = layout.gateway_hosts
        host, port = hosts[(number - 1) % len(hosts)], PORT_GATEWAY + (number - 1) // len(hosts)
        super().__init__(layout, account, name or host.name, host=host, port=port, replicas=replicas)
        self.url = f"https://{host.address}:{port}"
        # its own file: other gateways may be reading theirs
        self.credentials = layout.config / f"{self.name}-credentials.toml"
        self.owner_name = self.name
        self.threads = None  # it has a host of its own; and the previous release does not know the setting
        if layout.shape.has_store:
            self.data, self.bucket = None, store.bucket_of(layout)

    def settings(self) -> str:
        limits = "".join(f"{name} = {value}\n" for name, value in times.of("gateway").items())
        text = super().settings().replace("pool_size", f"node_port = {PORT_PGBOUNCER}\npool_size", 1)
        files = certificates.of(self.layout, self.host)
        return f"""{text}
{tls.https(certificates.of(self.layout, self.host, "-https"))}
{tls.index(files)}
{tls.postgres(files, server_name=certificates.TAFDB)}
[limits]
{limits}"""
