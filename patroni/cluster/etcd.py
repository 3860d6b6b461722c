"""One etcd member."""

import json
import urllib.request

from stack.account import Account

from . import certificates, template, times
from .host import process_on
from .layout import PORT_ETCD, PORT_ETCD_PEER, ClusterLayout, Host

BINARY = "/usr/bin/etcd"
ASK_TIMEOUT_S = 2.0


class Etcd:
    def __init__(self, layout: ClusterLayout, account: Account, host: Host):
        self.layout, self.account, self.host = layout, account, host
        self.name = host.name
        self.data = layout.data / host.name
        self.config = layout.config / f"{host.name}.yml"
        self.process = process_on(host, layout, account, host.name, [BINARY, "--config-file", str(self.config)])

    def prepare(self) -> None:
        self.account.make(self.data, 0o700)
        members = ",".join(f"{host.name}=https://{host.address}:{PORT_ETCD_PEER}" for host in self.layout.etcd_hosts)
        values = {
            "name": self.name, "data": self.data, "address": self.host.address, "members": members, "state": "new",
            "token": f"mantle-{self.layout.tag}", "certificates": self.layout.certificates,
            "client_port": PORT_ETCD, "peer_port": PORT_ETCD_PEER, **times.of("etcd"),
        }  # fmt: skip
        self.account.write(self.config, template.filled("etcd.yml", values))

    def is_ready(self) -> bool:
        """Checks that the member knows a leader."""
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=certificates.client_context(self.layout)),
        )
        try:
            with opener.open(f"https://{self.host.address}:{PORT_ETCD}/health", timeout=ASK_TIMEOUT_S) as answer:
                return json.load(answer)["health"] == "true"
        except (OSError, ValueError):
            return False
