"""The dashboard and the alert rules name only metrics, and labels of them, that the running services show."""

import json
import re

import yaml

from stack import http
from stack.layout import REPLICAS, REPOSITORY

MONITORING = REPOSITORY / "patroni" / "monitoring"
# Labels that Prometheus adds, and a histogram's own.
ADDED = {"instance", "le"}
METRIC = re.compile(r"\bmantle_[a-z_]+\b")
# A metric with its matchers; labels that are grouped by belong to some metric of the expression.
MATCHED = re.compile(r"\b(mantle_[a-z_]+)\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


def expressions() -> list[str]:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    return alerts + [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def shown(stack) -> dict[str, set[str]]:
    """Labels of every metric, by name."""
    pages = [stack.gateway.url, *(stack.indexnodes[replica].probe for replica in REPLICAS)]
    found: dict[str, set[str]] = {}
    for sample in (sample for page in pages for sample in http.metrics(f"{page}/metrics")):
        name, _, labels = sample.partition("{")
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def test_every_metric_and_label_exists(stack, bucket, rest, s3):
    rest.mkdir(bucket, "a")
    assert not rest.exists(bucket, "missing/object")  # PostgreSQL is asked
    s3.put_object(Bucket=bucket, Key="a/o", Body=b"")
    there = shown(stack)
    named = 0
    for expression in expressions():
        metrics = set(METRIC.findall(expression))
        named += len(metrics)
        assert metrics - set(there) == set(), expression
        for metric, matchers in MATCHED.findall(expression):
            assert set(re.findall(r"(\w+)=", matchers)) <= there[metric], expression
        if metrics:
            labels = {label.strip() for group in GROUPED.findall(expression) for label in group.split(",")}
            assert labels - ADDED <= set().union(*(there[metric] for metric in metrics)), expression
    assert named > 30


def test_alerts_say_what_is_wrong():
    for group in yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("info", "warning", "critical"), rule["alert"]
