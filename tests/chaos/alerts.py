"""A real Prometheus beside the cluster, which evaluates the alert rules while faults are caused.

A fault lasts some seconds, and an alert waits for minutes. So Prometheus asks every second and gets a copy of the rules
in which each duration (`for`, and the ranges of the expressions) is divided by SHORTENED, and `for` is 20 s at most. A
healthy cluster is judged by the original settings and rules.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from cluster import monitoring
from cluster.cluster import Cluster
from stack.poll import wait_until
from stack.service import start_each

SHORTENED = 15
SECONDS = {"s": 1, "m": 60, "h": 3600}
RANGE = re.compile(r"(?<=\[)(\d+)([smh])(?=\])")
# rate() needs two samples.
RANGE_LEAST_S = 4
FOR_MOST_S = 20
SILENCE_BOUND_S = 180.0
FIRES_BOUND_S = 30.0


def shortened(count: str, unit: str) -> int:
    return int(count) * SECONDS[unit] // SHORTENED


def shorter(rules: dict) -> dict:
    """The rules with shorter durations."""
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule["expr"] = RANGE.sub(lambda found: f"{max(RANGE_LEAST_S, shortened(found[1], found[2]))}s", rule["expr"])
        if "for" in rule:
            rule["for"] = f"{min(FOR_MOST_S, max(1, shortened(rule['for'][:-1], rule['for'][-1])))}s"
    return rules


BUCKET = "the gateways keep bytes in a bucket"
VOLUMES = f"{BUCKET}; tests/e2e/test_volume*.py break volumes"

# Alerts that no fault of the catalogue raises, each with the reason. tests/lint/alerts.py plays them.
UNPROVOKED = {
    "MantleIndexReplicaIsBehind": "ten thousand entries are more than a fault lasts",
    "MantleIndexReplicaDoesNotServe": "a replica that starts serves within the seconds that a fault lasts",
    "MantleIndexEpochsDiffer": "a replica that lacks a rebuild gets it with the log or a snapshot",
    "MantleGatewayRefusesLookups": "the load has too few lookups that miss the index",
    "MantleSlotCannotBeMade": "Patroni makes the slot of its own accord; tests/e2e/test_held_up.py has the fault",
    "PostgreSQLIsHeldUp": "a transaction is old after minutes; tests/e2e/test_held_up.py has one that counts sooner",
    "PostgreSQLCertificateIsDue": "certificates live for long; tests/e2e/test_held_up.py has one that does not",
    "CertificateIsNotLoaded": "it takes hours; tests/cluster/test_certificates.py forgets to load one",
    "CertificatesAreNotWatched": "a day without a check is longer than any fault",
    "PostgreSQLRefusesLogins": "no fault locks a role out; tests/e2e/test_held_up.py does",
    "PostgreSQLRunsOut": "it would take the load's connections; tests/e2e/test_held_up.py uses up what nobody needs",
    "MantleObjectBytesAreDamaged": VOLUMES,
    "MantleScrubFoundDamage": VOLUMES,
    "MantleVolumeIsNotMounted": VOLUMES,
    "MantleVolumeIsReadOnly": f"{BUCKET}; a flush fails in gateway/src/data/volumes/tests.rs",
    "MantleVolumeIsFilling": VOLUMES,
    "MantleVolumeIsInconsistent": VOLUMES,
}


class Alerts:
    """Prometheus and node_exporter of one cluster. Started before the first round, as one that has run for long."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.prometheus = monitoring.Prometheus(cluster, monitoring.write(cluster))
        self.services = [monitoring.NodeExporter(cluster), self.prometheus]

    def __enter__(self) -> "Alerts":
        self.play(short=True)
        start_each(self.services)
        return self

    def __exit__(self, *_ignored) -> None:
        for service in self.services:
            service.process.stop()

    def play(self, *, short: bool) -> None:
        """Chooses settings and rules: those of the repository, or shorter ones."""
        config = monitoring.write(self.cluster)
        if short:
            rules = config.with_name("alerts.yml")
            rules.write_text(yaml.safe_dump(shorter(yaml.safe_load(rules.read_text()))), encoding="utf-8")
            settings = yaml.safe_load(config.read_text())
            settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
            config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        if self.prometheus.process.pid() is not None:
            self.prometheus.reload()

    def await_silence(self, names: set[str]) -> None:
        """Until none of these fires any more because of what was before."""
        firing = lambda: {name for name, _ in self.prometheus.firing()} & names
        wait_until(lambda: not firing(), f"the end of {', '.join(sorted(names))}", SILENCE_BOUND_S)

    def missed(self, expected: set[str], since: float) -> tuple[set[str], dict[str, set[str]]]:
        """The alerts that should have fired since then and have not, and all that have."""
        until = time.time() + FIRES_BOUND_S
        while True:
            fired = self.prometheus.fired(since, time.time())
            if expected <= fired.keys() or time.time() > until:
                return expected - fired.keys(), fired
            time.sleep(1)  # the rules are evaluated once a second

    @contextmanager
    def as_they_are(self) -> Iterator[None]:
        """The rules of the repository while the block runs."""
        self.play(short=False)
        try:
            yield
        finally:
            self.play(short=True)
