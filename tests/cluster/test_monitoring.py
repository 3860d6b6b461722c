"""Prometheus' settings fit the cluster. Each process shows every metric that rules and dashboard name. Logs rotate."""

import gzip
import subprocess

from cluster import certificates, monitoring
from cluster.cluster import Cluster
from stack import packages
from stack.service import start_each
from tests.support import monitoring as named

from . import runbook


def test_every_metric_exists_from_the_start(cluster: Cluster) -> None:
    """Of every process, also of two that have just been started and got no request."""
    exporter = monitoring.NodeExporter(cluster)
    new = [cluster.gateways[-1], cluster.replicas[-1]]
    try:
        for service in new:
            service.process.stop()
        start_each([exporter, *new])
        there = named.shown(monitoring.metric_pages(cluster), certificates.client_context(cluster.layout))
    finally:
        exporter.process.stop()
    assert {page.split(" ")[0] for page in there} == set(monitoring.JOBS)
    assert all(has for has in there.values()), [page for page, has in there.items() if not has]
    missing = [named.missing(there, expression, named.OF_VOLUMES) for expression in named.expressions()]
    problems = [problem for of_expression in missing for problem in of_expression]
    assert problems == []


def test_settings_of_prometheus_are_valid(cluster: Cluster) -> None:
    program = packages.unpacked("prometheus") / "usr" / "bin" / "promtool"
    done = subprocess.run(
        [program, "check", "config", monitoring.write(cluster)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "WARNING" not in done.stdout + done.stderr, done.stdout + done.stderr


def test_logs_rotate(cluster: Cluster) -> None:
    """A service goes on writing into the file that was emptied."""
    log = cluster.gateways[0].process.log_file
    line = "a line of an earlier hour\n"
    with log.open("a") as file:
        file.writelines([line] * (21 << 20 >> 4))
    words = {
        "STATE": str(cluster.layout.data / "logrotate.state"),
        "SETTINGS": str(cluster.layout.config / "logrotate.conf"),
    }
    runbook.typed(cluster, "Logs", **words)
    kept = log.with_name(f"{log.name}.1.gz")
    assert gzip.decompress(kept.read_bytes()).decode().endswith(line)
    assert line not in log.read_text()
    cluster.gateways[0].process.stop()
    cluster.gateways[0].start()
    cluster.gateways[0].await_ready()
    assert "the gateway answers" in log.read_text()
