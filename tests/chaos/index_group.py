"""The replicas of the index group that a fault acts on."""

from cluster.cluster import Cluster
from cluster.layout import VOTERS
from stack.indexnode import IndexNode
from stack.poll import wait_until

LEADER_BOUND_S = 60.0


def index_leader(cluster: Cluster) -> IndexNode:
    """The replica that leads the index group."""

    def leading() -> IndexNode | None:
        return next((replica for replica in cluster.replicas if replica.metric("mantle_index_leader") == 1), None)

    return wait_until(leading, "a leader of the index group", LEADER_BOUND_S)


def index_follower(cluster: Cluster) -> IndexNode:
    """A voter that follows."""
    leader = index_leader(cluster)
    return next(replica for replica in cluster.replicas[:VOTERS] if replica is not leader)
