"""Prometheus for a cluster: whom it asks, the rules, and the processes that tests start. `make cluster` only writes the
settings; to run them, see patroni/README.md.

certificates.sh watches the certificates of other programs. `make cluster` writes its list; an administrator, or a test,
runs it.

Invariant: targets are in files of their own, which Prometheus reads again when a host is added.
"""

import json
import shutil
from pathlib import Path

from stack import http, packages, programs
from stack.failure import Failure
from stack.layout import REPOSITORY
from stack.service import Service
from stack.terminal import run

from . import certificates
from .cluster import Cluster
from .layout import PORT_ETCD_METRICS, PORT_HAPROXY_METRICS, PORT_PATRONI

SOURCE = REPOSITORY / "patroni" / "monitoring"
PORT_PROMETHEUS = 9090
PORT_NODE_EXPORTER = 9100
JOBS = ("mantle-gateway", "mantle-index", "patroni", "etcd", "haproxy", "node")
Targets = list[tuple[list[str], dict[str, str]]]


def program_of(cluster: Cluster, package: str, name: str) -> Path:
    """A copy of a program that the services' account can reach, from a Debian package that is not installed."""
    built, own = packages.unpacked(package) / "usr" / "bin" / name, cluster.layout.binaries / name
    if programs.differs(built, own):
        shutil.copy2(built, own)
    return own


def address_of(url: str) -> str:
    return url.removeprefix("http://")


def targets(cluster: Cluster) -> dict[str, Targets]:
    """Addresses and labels of each job."""
    at = lambda hosts, port: [(sorted({f"{host.address}:{port}" for host in hosts}), {})]
    # Not the store's IndexNode: the rules count replicas by group, and its group is another database's.
    gateways = [*cluster.gateways, *([cluster.store.gateway] if cluster.store else [])]
    return {
        "mantle-gateway": [([address_of(gateway.probe) for gateway in gateways], {})],
        "mantle-index": [([address_of(replica.probe) for replica in cluster.replicas], {})],
        "patroni": [
            ([f"{member.host.address}:{PORT_PATRONI}" for member in members], {"group": str(group)})
            for group, members in cluster.groups.items()
        ],
        "etcd": at(cluster.layout.etcd_hosts, PORT_ETCD_METRICS),
        "haproxy": at([proxy.host for proxy in cluster.proxies], PORT_HAPROXY_METRICS),
        # All hosts are this machine.
        "node": [([f"{cluster.layout.own_address}:{PORT_NODE_EXPORTER}"], {})],
    }


def metric_pages(cluster: Cluster) -> dict[str, list[str]]:
    """The URLs of the metrics, by job."""
    scheme = lambda job: "https" if job == "patroni" else "http"
    return {
        job: [f"{scheme(job)}://{address}/metrics" for addresses, _ in of_job for address in addresses]
        for job, of_job in targets(cluster).items()
    }


def folder_of(cluster: Cluster) -> Path:
    return cluster.layout.folder / "monitoring"


def write(cluster: Cluster) -> Path:
    """Writes Prometheus' settings, its rules and the targets; returns the settings' path."""
    folder = folder_of(cluster)
    (folder / "targets").mkdir(parents=True, exist_ok=True)
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copyfile(SOURCE / name, folder / name)
    authority = certificates.path(cluster.layout, f"{certificates.AUTHORITY}.crt")
    shutil.copyfile(authority, folder / "authority.crt")
    write_certificates(cluster)
    for job, of_job in targets(cluster).items():
        write_targets(cluster, job, of_job)
    return folder / "prometheus.yml"


def write_certificates(cluster: Cluster) -> Path:
    """Writes the list of certificates to watch; returns its path."""
    path = folder_of(cluster) / "certificates.list"
    path.write_text(certificates.watched(cluster.layout), encoding="utf-8")
    return path


def check_certificates(cluster: Cluster) -> Path:
    """Checks the certificates of other programs now; returns the page, which node_exporter adds to its own."""
    page = folder_of(cluster) / "textfile" / "certificates.prom"
    page.parent.mkdir(parents=True, exist_ok=True)
    run([SOURCE / "certificates.sh", write_certificates(cluster), page], "checking certificates")
    return page


def write_targets(cluster: Cluster, job: str, of_job: Targets) -> None:
    text = json.dumps([{"targets": addresses, "labels": labels} for addresses, labels in of_job], indent=1)
    path = folder_of(cluster) / "targets" / f"{job}.yml"
    path.write_text(text + "\n", encoding="utf-8")  # JSON is YAML


class Prometheus(Service):
    """Debian's Prometheus, unpacked. It asks from this machine, which a partition of hosts does not cut off."""

    def __init__(self, cluster: Cluster, config: Path):
        program = program_of(cluster, "prometheus", "prometheus")
        address, data = f"{cluster.layout.own_address}:{PORT_PROMETHEUS}", cluster.layout.data / "prometheus"
        super().__init__(cluster.layout, cluster.account, "prometheus", [
            program, "--web.enable-lifecycle",
            f"--web.listen-address={address}", f"--storage.tsdb.path={data}", f"--config.file={config}",
        ], config=None)  # fmt: skip
        self.data = data
        self.url = f"http://{address}"

    def prepare(self) -> None:
        self.account.own_folder(self.data, 0o700)

    def is_ready(self) -> bool:
        return http.is_ready(f"{self.url}/-/ready")

    def reload(self) -> None:
        """Reads settings and rules again."""
        status, body = http.call("POST", f"{self.url}/-/reload")
        if status != 200:
            raise Failure(f"Prometheus refuses its settings: {body}")

    def firing(self) -> set[tuple[str, str]]:
        """Name and labels of the alerts that fire now."""
        status, body = http.call("GET", f"{self.url}/api/v1/alerts")
        alerts = json.loads(body)["data"]["alerts"] if status == 200 else []
        return {
            (alert["labels"]["alertname"], describe(alert["labels"])) for alert in alerts if alert["state"] == "firing"
        }

    def fired(self, since: float, until: float) -> dict[str, set[str]]:
        """The alerts that fired between two times (Unix, seconds), with their labels."""
        query = (
            f"/api/v1/query_range?query=ALERTS%7Balertstate%3D%22firing%22%7D&start={since:.3f}&end={until:.3f}&step=1"
        )
        status, body = http.call("GET", self.url + query, timeout_s=30.0)
        found: dict[str, set[str]] = {}
        for series in json.loads(body)["data"]["result"] if status == 200 else []:
            found.setdefault(series["metric"]["alertname"], set()).add(describe(series["metric"]))
        return found


def describe(labels: dict[str, str]) -> str:
    left_out = ("alertname", "__name__", "alertstate", "severity")
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if name not in left_out)


class NodeExporter(Service):
    """Debian's node_exporter, unpacked: file systems, and the page about certificates."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        program = program_of(cluster, "prometheus-node-exporter", "prometheus-node-exporter")
        address = f"{cluster.layout.own_address}:{PORT_NODE_EXPORTER}"
        super().__init__(cluster.layout, cluster.account, "node-exporter", [
            program, f"--web.listen-address={address}", "--collector.disable-defaults", "--collector.filesystem",
            "--collector.textfile", f"--collector.textfile.directory={folder_of(cluster) / 'textfile'}",
        ], config=None)  # fmt: skip
        self.probe = f"http://{address}"

    def prepare(self) -> None:
        """It has neither data nor settings. What a timer does every hour is done once."""
        check_certificates(self.cluster)

    def is_ready(self) -> bool:
        return bool(self.metrics())
