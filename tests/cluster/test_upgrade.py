"""A rolling upgrade under load, by docs/runbooks.md: every server, every IndexNode, every gateway, one by one.

`MANTLE_PREVIOUS` names a directory with `mantle-indexnode` and `mantle-gateway` of the previous release. IndexNodes and
gateways then start with those, so that both releases run side by side. Without it they are upgraded to themselves.
"""

import os
import shutil
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from stack.poll import wait_until

from . import runbook
from .load import PROGRESS_BOUND_S, Probe
from .measure import index_leader, measured
from .oracle import assert_nothing_is_lost

pytestmark = pytest.mark.long
PROGRAMS = ("mantle-indexnode", "mantle-gateway")


def test_servers(cluster: Cluster, ns: str, probes: dict[int, list[Probe]]) -> None:
    with measured("rolling upgrade of the servers", probes, max(probes)) as load:
        for group in cluster.groups:
            primary = cluster.leader(group)
            for standby in (member for member in cluster.groups[group] if member is not primary):
                restart(cluster, group, standby.name)
            standby = next(member for member in cluster.groups[group] if member is not primary)
            names = {"PRIMARY": primary.name, "STANDBY": standby.name}
            runbook.typed(cluster, "Switchover", GROUP=runbook.group(cluster, group), **names)
            cluster.await_protection(group)
            restart(cluster, group, primary.name)
        assert "extversion" in runbook.typed(cluster, "Upgrading the extension")
        load.await_progress()
    assert_nothing_is_lost(cluster, ns, load.acknowledged)


def restart(cluster: Cluster, group: int, server: str) -> None:
    assert server in runbook.typed(cluster, "Upgrading a server", GROUP=runbook.group(cluster, group), SERVER=server)
    cluster.await_protection(group)


def test_indexnodes_and_gateways(cluster: Cluster, ns: str, probes: dict[int, list[Probe]]) -> None:
    before = kept(cluster, Path(os.environ.get("MANTLE_PREVIOUS", cluster.layout.binaries)))
    for part in (*cluster.replicas, *cluster.gateways):
        start_again(part, before)
    with measured("rolling upgrade of IndexNodes and gateways", probes, max(probes)) as load:
        first = wait_until(lambda: index_leader(cluster), "a leader of the index", PROGRESS_BOUND_S)
        others = [replica for replica in cluster.replicas if replica is not first]
        for part in others:
            start_again(part, cluster.layout.binaries)
        heir = next(replica for replica in others if not replica.is_learner)
        assert heir.listen in runbook.typed(cluster, "Upgrading IndexNodes and gateways", ADDRESS=heir.listen)
        wait_until(lambda: index_leader(cluster) is heir, "the leadership to be handed over", PROGRESS_BOUND_S)
        for part in (first, *cluster.gateways):
            start_again(part, cluster.layout.binaries)
        load.await_progress()
    assert_nothing_is_lost(cluster, ns, load.acknowledged)


def kept(cluster: Cluster, programs: Path) -> Path:
    """A copy of a release's programs that the services' account can run."""
    place = cluster.layout.folder / "previous"
    place.mkdir(exist_ok=True)
    for name in PROGRAMS:
        shutil.copy2(programs / name, place / name)
        (place / name).chmod(0o755)
    return place


def start_again(part, programs: Path) -> None:
    """Starts it again with the programs of a release."""
    part.process.stop()
    part.process.command = [
        str(programs / Path(word).name) if Path(word).name in PROGRAMS else word for word in part.process.command
    ]
    part.start()
    part.await_ready()
