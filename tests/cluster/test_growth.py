"""A worker joins a cluster under load, and shards move to it, by the runbooks."""

import pytest

from cluster.cluster import Cluster
from cluster.layout import COORDINATOR

from . import runbook
from .clients import session
from .load import Probe
from .measure import measured
from .oracle import assert_nothing_is_lost, await_no_problem

MOVED_BOUND_S = 240.0
SHARDS_OF = "SELECT count(*) FROM pg_dist_placement WHERE groupid = %s"

pytestmark = pytest.mark.long


def test_a_worker_joins_and_gets_shards(cluster: Cluster, ns: str, probes: dict[int, list[Probe]]) -> None:
    if not cluster.shape.is_citus:
        pytest.skip("without Citus there are no workers")
    with measured("a worker joins, shards move there", probes, max(probes)) as load:
        group = cluster.add_worker()
        await_no_problem(cluster)
        assert cluster.leader(group).name in runbook.typed(cluster, "Adding a worker")
        assert "finished" in runbook.typed(cluster, "Moving shards", MOVED_BOUND_S, MODE="block_writes")
        with session(cluster, COORDINATOR) as connection:
            assert connection.execute(SHARDS_OF, (group,)).fetchone()[0] > 0
        load.await_progress()
    assert_nothing_is_lost(cluster, ns, load.acknowledged)
