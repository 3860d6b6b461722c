"""etcd's faults, and the commands of docs/runbooks.md against them."""

import json
import shutil

import pytest

from cluster import monitoring
from cluster.cluster import Cluster
from cluster.etcd import QUOTA_BYTES
from stack import http
from stack.failure import Failure
from stack.poll import wait_until

from . import runbook
from .etcdctl import BOUND_S, alarms, etcdctl, fill
from .load import Probe
from .measure import measured
from .oracle import assert_nothing_is_lost


def refused(cluster: Cluster) -> float:
    """Changes that etcd has refused for want of space."""
    pages = [http.metrics(url) for url in monitoring.metric_pages(cluster)["etcd"]]
    is_refusal = lambda name: name.startswith("grpc_server_handled_total{") and 'grpc_code="ResourceExhausted"' in name
    return sum(value for page in pages for name, value in page.items() if is_refusal(name))


def sizes(cluster: Cluster) -> list[int]:
    return [
        member["Status"]["dbSize"] for member in json.loads(etcdctl(cluster, "endpoint", "status", "-w", "json").stdout)
    ]


def test_etcd_out_of_space(cluster: Cluster, ns: str, probes: dict[int, list[Probe]]) -> None:
    group = max(probes)
    with measured("etcd out of space", probes, group) as load:
        fill(cluster)
        before = refused(cluster)
        # What the alert EtcdIsOutOfSpace looks at: Patroni's heartbeats are refused.
        wait_until(lambda: refused(cluster) > before, "etcd to refuse Patroni's changes", BOUND_S)
        with pytest.raises(Failure):
            cluster.switchover(group)
        runbook.typed(cluster, "etcd out of space")
        assert alarms(cluster) == ""
        assert max(sizes(cluster)) < QUOTA_BYTES // 4
        cluster.switchover(group)
        load.await_progress()
    assert etcdctl(cluster, "del", "/filler").returncode == 0
    cluster.await_protection(group)
    assert_nothing_is_lost(cluster, ns, load.acknowledged)


def make_leader(cluster: Cluster, name: str) -> None:
    members = json.loads(etcdctl(cluster, "member", "list", "-w", "json").stdout)["members"]
    numbers = {member["name"]: member["ID"] for member in members}
    urls = {member["ID"]: member["clientURLs"][0] for member in members}
    (leading,) = leaders(cluster)
    if leading != numbers[name]:
        done = etcdctl(cluster, "move-leader", f"{numbers[name]:x}", endpoint=urls[leading])
        assert done.returncode == 0, done.stderr
        wait_until(lambda: leaders(cluster) == {numbers[name]}, f"{name} to lead", BOUND_S)


def leaders(cluster: Cluster) -> set[int]:
    """The leader that each member names."""
    statuses = json.loads(etcdctl(cluster, "endpoint", "status", "-w", "json").stdout)
    return {status["Status"]["leader"] for status in statuses}


def test_a_lost_etcd_member_is_replaced(cluster: Cluster) -> None:
    """The lost member was the leader, so calls of the others to it get no answer."""
    member = cluster.etcd[-1]
    make_leader(cluster, member.name)
    member.process.kill()
    shutil.rmtree(member.data)
    words = {"MEMBER": member.name, "ADDRESS": member.host.address}
    assert "unstarted" in runbook.typed(cluster, "Replacing an etcd member", **words)
    member.prepare()
    member.config.write_text(member.settings().replace("initial-cluster-state: new", "initial-cluster-state: existing"))
    member.start()
    member.await_ready()
    runbook.typed(cluster, "etcd that is slow or has no leader")


@pytest.mark.long
def test_etcd_is_restored(cluster: Cluster, ns: str, probes: dict[int, list[Probe]]) -> None:
    """The loss of all members stops no client, and a snapshot brings them back."""
    place = cluster.layout.data / "etcd-backup"
    cluster.account.own_folder(place)
    words = {"FILE": str(place / "snapshot.db"), "CONFIGURATION": str(place / "settings.yml")}
    runbook.typed(cluster, "Backing etcd up", GROUP=runbook.group(cluster, max(probes)), **words)
    assert "synchronous_mode: true" in (place / "settings.yml").read_text()
    cluster.switchover(max(probes))  # so that the snapshot names a former primary
    cluster.await_protection(max(probes))
    with measured("all of etcd lost and restored", probes, max(probes)) as load:
        for member in cluster.etcd:
            member.process.kill()
            shutil.rmtree(member.data)
        for member in cluster.etcd:
            lines = dict(line.split(": ", 1) for line in member.settings().splitlines() if line.startswith("initial-"))
            value = lambda name, lines=lines: lines[name].split()[0]
            runbook.typed(
                cluster, "Restoring etcd", MEMBER=member.name, DATA=str(member.data), ADDRESS=member.host.address,
                MEMBERS=value("initial-cluster"), TOKEN="restored", **words,
            )  # fmt: skip
            for path in (member.data, *member.data.rglob("*")):
                cluster.account.own(path)
            member.start()
        for member in cluster.etcd:
            member.await_ready()
        load.await_progress()
    for group in cluster.groups:
        cluster.await_protection(group)
    assert_nothing_is_lost(cluster, ns, load.acknowledged)
