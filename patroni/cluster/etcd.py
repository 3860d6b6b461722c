"""One etcd member."""

import json

from stack import http
from stack.account import Account
from stack.layout import Host
from stack.service import Service

from . import certificates, template, times
from .layout import PORT_ETCD, PORT_ETCD_METRICS, PORT_ETCD_PEER, ClusterLayout

QUOTA_BYTES = 64 << 20  # a test fills it within seconds; Patroni's keys take a few MB


class Etcd(Service):
    """A member on its host."""

    def __init__(self, layout: ClusterLayout, account: Account, host: Host):
        super().__init__(layout, account, host.name, ["/usr/bin/etcd", "--config-file"], host=host, config="yml")
        self.data = layout.data / host.name

    def settings(self) -> str:
        members = ",".join(f"{host.name}=https://{host.address}:{PORT_ETCD_PEER}" for host in self.layout.etcd_hosts)
        values = {
            "name": self.name, "data": self.data, "address": self.host.address, "members": members, "state": "new",
            "token": f"mantle-{self.layout.tag}", "certificates": self.layout.certificates,
            "client_port": PORT_ETCD, "peer_port": PORT_ETCD_PEER, "metrics_port": PORT_ETCD_METRICS,
            "quota_bytes": QUOTA_BYTES, **times.of("etcd"),
        }  # fmt: skip
        return template.filled("etcd.yml", values)

    def is_ready(self) -> bool:
        """Checks that the member knows a leader."""
        url = f"https://{self.host.address}:{PORT_ETCD}/health"
        status, body = http.call(
            "GET", url, tls=certificates.client_context(self.layout, certificates.ETCD_AUTHORITY), timeout_s=2.0
        )
        return status == 200 and json.loads(body)["health"] == "true"
