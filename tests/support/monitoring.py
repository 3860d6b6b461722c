"""The metrics that the alert rules and the dashboard name, and those that processes show."""

import json
import re
import ssl
from collections.abc import Iterable

import yaml

from stack import http
from stack.layout import REPOSITORY

MONITORING = REPOSITORY / "patroni" / "monitoring"
# Labels that Prometheus adds, or its settings; and a histogram's own.
ADDED = {"instance", "job", "group", "le"}
PREFIXES = {
    "mantle_gateway_": ("mantle-gateway",),
    "mantle_index_": ("mantle-index",),
    "mantle_tls_": ("mantle-gateway", "mantle-index"),
    "patroni_": ("patroni",),
    "etcd_": ("etcd",),
    "grpc_server_": ("etcd",),
    "node_": ("node",),
    "mantle_certificate": ("node",),
}
# Shown only by processes that have certificates, or a volume.
OF_CERTIFICATES = ("mantle_tls_",)
OF_VOLUMES = (
    "mantle_gateway_volume_", "mantle_gateway_frees_refused_", "mantle_gateway_segments_refused_",
    "mantle_gateway_bytes_corrupt_", "mantle_gateway_scrub_",
)  # fmt: skip
METRIC = re.compile(rf"\b(?:{'|'.join(PREFIXES)})[a-z_]+\b")
# A metric with its matchers. Labels of a `by` clause belong to some metric of the expression.
MATCHED = re.compile(rf"\b((?:{'|'.join(PREFIXES)})[a-z_]+)\{{([^}}]*)\}}")
GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
Shown = dict[str, dict[str, set[str]]]


def rules() -> list[dict]:
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[str]:
    """Of the alert rules and of the dashboard."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [rule["expr"] for rule in rules()] + panels


def shown(pages: dict[str, Iterable[str]], tls: ssl.SSLContext | None = None) -> Shown:
    """For each URL of a metrics page, whose job is given: its metrics, with the labels and values of each."""
    found: Shown = {}
    for job, urls in pages.items():
        for url in urls:
            of_page = found.setdefault(f"{job} {url}", {})
            for sample in http.metrics(url, tls):
                name, _, labels = sample.partition("{")
                of_page.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def missing(pages: Shown, expression: str, without: tuple[str, ...] = ()) -> list[str]:
    """What the expression names and a process of the job lacks. `without`: beginnings of metrics that none has."""
    found = []
    of = lambda metric: next(jobs for prefix, jobs in PREFIXES.items() if metric.startswith(prefix))
    jobs = {name.split(" ")[0] for name in pages}
    named = [metric for metric in sorted(set(METRIC.findall(expression))) if jobs & set(of(metric))]
    metrics = [metric for metric in named if not metric.startswith(without)]
    for page, has in pages.items():
        own = [metric for metric in metrics if page.split(" ")[0] in of(metric)]
        found += [f"{page}: no {metric}" for metric in own if metric not in has]
        for metric, matchers in MATCHED.findall(expression):
            if metric in has:
                lacking = set(re.findall(r"(\w+)=", matchers)) - has[metric] - ADDED
                found += [f"{page}: {metric} has no label {label}" for label in sorted(lacking)]
    if metrics and not found:
        labels = {label.strip() for group in GROUPED.findall(expression) for label in group.split(",")}
        known = set().union(*(has.get(metric, set()) for has in pages.values() for metric in metrics))
        found += [f"no metric of it has the label {label}: {expression}" for label in sorted(labels - ADDED - known)]
    return found
