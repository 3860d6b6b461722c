"""A cluster with plain connections gets TLS everywhere, by docs/runbooks.md, "Changing a running cluster to TLS".

Clients go on meanwhile: some by HTTP until the gateways take HTTPS only, others by HTTPS as soon as they may. No step
answers them anything but passing refusals. At the end all settings are those that `make cluster` writes.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from cluster.cluster import Cluster
from cluster.layout import COORDINATOR, PORT_HAPROXY_METRICS, PORT_PATRONI, PORT_PGBOUNCER
from cluster.member import Member
from cluster.services import Pooler, Proxy
from stack import http, secret
from stack.pgbouncer import ADMINISTRATOR
from stack.poll import wait_until
from stack.service import Service
from tests.support.rest import Rest

from .clients import make_probes
from .load import Load, Probe
from .measure import REPORT, Gaps, Measured
from .oracle import assert_nothing_is_lost
from .way_to_tls import TEXTS, Step, Way

BOUND_S = 90.0
PLAIN_SESSIONS = """
    SELECT usename, client_addr, application_name FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
     WHERE NOT ssl AND client_addr IS NOT NULL AND pid <> pg_backend_pid()
"""
PLAIN_OPEN = 'mantle_{}_open_connections{{kind="plain"}}'


def texts(cluster: Cluster) -> dict[Path, str]:
    """All settings files of the services that change."""
    return {s.config: s.config.read_text(encoding="utf-8") for s in cluster.services() if type(s) in TEXTS}


def reload(service: Service) -> None:
    """Writes its settings and tells it."""
    service.prepare()
    os.kill(service.process.pid(), signal.SIGHUP)


def restart(services: list[Service]) -> None:
    """One after the other."""
    for service in services:
        service.process.stop()
        service.prepare()
        service.start()
        service.await_ready()


def start_anew(cluster: Cluster, member: Member) -> None:
    """Patroni and its PostgreSQL."""
    member.stop()
    member.prepare()
    member.start()
    cluster.await_protection(member.group)


class Steps:
    """What an administrator does at each step, and how it is seen that it is done."""

    def __init__(self, cluster: Cluster, way: Way):
        self.cluster, self.way = cluster, way

    def make_plain(self) -> None:
        """Not under load. The stores of bytes and etcd stay as they are."""
        cluster = self.cluster
        kept = {s.name for s in cluster.services() if type(s) not in TEXTS}
        cluster.stop(except_for=frozenset(kept))
        for member in cluster.members:
            member.rest = f"http://{member.host.address}:{PORT_PATRONI}"
        cluster.start()

    def settle(self, what: str, is_done: Callable[[], bool]) -> None:
        wait_until(is_done, f"step {self.way.step.name}: {what}", BOUND_S)

    def shown(self, member: Member, setting: str) -> str:
        return member.psql(f"SHOW {setting}").strip()

    def pooler_has(self, pooler: Pooler, setting: str, value: str) -> bool:
        password = secret.read(self.cluster.layout, ADMINISTRATOR)
        at = {"host": pooler.host.address, "port": PORT_PGBOUNCER, "dbname": ADMINISTRATOR, "user": ADMINISTRATOR}
        try:
            with psycopg.connect(**at, password=password, connect_timeout=5, autocommit=True) as connection:
                cursor = psycopg.ClientCursor(connection)
                return (setting, value) in [row[:2] for row in cursor.execute("SHOW CONFIG").fetchall()]
        except psycopg.OperationalError:
            return False

    def reload_poolers(self, setting: str, value: str) -> None:
        for pooler in self.cluster.poolers:
            reload(pooler)
            self.settle(f"{setting} of {pooler.name}", lambda pooler=pooler: self.pooler_has(pooler, setting, value))

    def servers(self) -> None:
        for member in self.cluster.members:
            reload(member)
            self.settle(f"ssl of {member.name}", lambda member=member: self.shown(member, "ssl") == "on")
        self.reload_poolers("client_tls_sslmode", "allow")

    def between(self) -> None:
        cluster = self.cluster
        for member in cluster.members:
            reload(member)
            verifies = lambda member=member: "verify-full" in self.shown(member, "citus.node_conninfo")
            self.settle(f"citus.node_conninfo of {member.name}", verifies)
        self.reload_poolers("server_tls_sslmode", "verify-full")
        for number, group in cluster.groups.items():
            old = cluster.leader(number)
            for member in group:
                if member is not old:
                    start_anew(cluster, member)
            cluster.switchover(number)
            start_anew(cluster, old)

    def both_checks(self) -> None:
        for member in self.cluster.members:
            reload(member)
        self.restart_proxies()

    def restart_proxies(self) -> None:
        for proxy in self.cluster.proxies:
            restart([proxy])
            self.settle(f"{proxy.name} to find the primary", lambda proxy=proxy: self.finds(proxy, ""))

    def finds(self, proxy: Proxy, how: str) -> bool:
        """Checks that a proxy finds the primary by a line whose name ends so."""
        name = self.cluster.leader(COORDINATOR).host.name + how
        page = http.metrics(f"http://{proxy.host.address}:{PORT_HAPROXY_METRICS}/metrics")
        sample = f'haproxy_server_status{{proxy="postgresql",server="{name}",state="UP"}}'
        return page.get(sample) == 1 or (how == "" and page.get(sample.replace(name, f"{name}-tls")) == 1)

    def rest(self) -> None:
        cluster = self.cluster
        for number, group in cluster.groups.items():
            primary = cluster.leader(number)
            for member in sorted(group, key=lambda member: member is primary):
                reload(member)
                member.rest = f"https://{member.host.address}:{PORT_PATRONI}"
                self.settle(f"HTTPS of {member.name}", member.is_ready)
        for proxy in cluster.proxies:
            self.settle(f"{proxy.name} to ask by HTTPS", lambda proxy=proxy: self.finds(proxy, "-tls"))

    def index(self) -> None:
        restart(self.cluster.replicas)

    def gateways(self) -> None:
        restart(self.cluster.gateways)

    def await_no_plain(self, service: Service, kind: str) -> None:
        """Waits until its metrics show no open plain connection."""

        def none_is_open() -> bool:
            shown = service.metrics()
            return bool(shown) and shown.get(PLAIN_OPEN.format(kind), 0) == 0

        self.settle(f"the end of plain connections to {service.name}", none_is_open)

    def strict(self) -> None:
        for replica in self.cluster.replicas:
            self.await_no_plain(replica, "tls")
        self.index()
        self.gateways()

    def https(self) -> None:
        for gateway in self.cluster.gateways:
            self.await_no_plain(gateway, "gateway")
        self.gateways()

    def refused(self) -> None:
        for member in self.cluster.members:
            none = lambda member=member: member.psql(PLAIN_SESSIONS).strip() == ""
            self.settle(f"the end of plain sessions at {member.name}", none)
        count = "SELECT count(*) FROM pg_hba_file_rules WHERE type = 'host'"
        for member in self.cluster.members:
            reload(member)
            self.settle(f"pg_hba of {member.name}", lambda member=member: member.psql(count).strip() == "0")
        self.reload_poolers("client_tls_sslmode", "require")

    def take(self, step: Step) -> None:
        """Does what is next."""
        assert step == self.way.step + 1
        self.way.step = step
        {
            Step.SERVERS: self.servers, Step.BETWEEN: self.between, Step.BOTH_CHECKS: self.both_checks,
            Step.REST: self.rest, Step.CHECKS: self.restart_proxies, Step.ACCEPT: self.index,
            Step.GATEWAYS: self.gateways, Step.CONNECT: self.index, Step.STRICT: self.strict, Step.HTTPS: self.https,
            Step.REFUSED: self.refused,
        }[step]()  # fmt: skip


@contextmanager
def plain(cluster: Cluster) -> Iterator[Steps]:
    """The cluster without TLS. Afterwards it is as before, whatever has failed."""
    way = Way(cluster)
    try:
        steps = Steps(cluster, way)
        steps.make_plain()
        yield steps
    finally:
        is_over = way.step == Step.REFUSED
        way.end()
        for member in cluster.members:
            member.rest = f"https://{member.host.address}:{PORT_PATRONI}"
        if not is_over:
            cluster.stop()
            cluster.start()


def plain_rest(cluster: Cluster, number: int) -> Rest:
    """The native API at one gateway, by HTTP."""
    gateway = cluster.gateways[number]
    return Rest(gateway.host.address, gateway.port, secret.read(cluster.layout, "token"))


def load_of(probes: dict[int, list[Probe]]) -> Load:
    return Load([probe for of_group in probes.values() for probe in of_group])


@contextmanager
def reported(what: str, load: Load) -> Iterator[None]:
    """Reports the longest times without an acknowledgement and an answer, from the first ones on."""
    load.await_progress()
    since = time.monotonic()
    yield
    gaps = Gaps(*load.longest_s(since, time.monotonic(), load.probes))
    refusals = sum(probe.writes.refusals + probe.reads.refusals for probe in load.probes)
    REPORT.append(Measured(what, None, gaps, len(load.acknowledged), refusals))


@pytest.mark.long
@pytest.mark.timeout(1500, method="signal")
def test_a_running_cluster_gets_tls(cluster: Cluster, ns: str) -> None:
    at_the_end = texts(cluster)
    by_http, by_https = load_of(make_probes(cluster, ns, plain_rest)), load_of(make_probes(cluster, ns))
    with plain(cluster) as steps:
        assert all(steps.shown(member, "ssl") == "off" for member in cluster.members)
        with ExitStack() as until_the_end:
            with by_http, reported("plain connections to TLS: clients by HTTP", by_http):
                for step in (step for step in Step if Step.PLAIN < step <= Step.GATEWAYS):
                    steps.take(step)
                    by_http.await_progress()
                until_the_end.enter_context(by_https)
                until_the_end.enter_context(reported("the same: clients by HTTPS", by_https))
                for step in (Step.CONNECT, Step.STRICT):
                    steps.take(step)
                    by_http.await_progress()
                    by_https.await_progress()
            for step in (Step.HTTPS, Step.REFUSED):
                steps.take(step)
                by_https.await_progress()
    assert texts(cluster) == at_the_end
    assert_nothing_is_lost(cluster, ns, [*by_http.acknowledged, *by_https.acknowledged])
