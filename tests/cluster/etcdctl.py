"""etcd's command line, as the environment file sets it up; and how a test fills etcd up."""

import os
import subprocess

from cluster import environment
from cluster.cluster import Cluster
from cluster.etcd import QUOTA_BYTES
from stack.poll import wait_until

CHUNK_BYTES = 1 << 20  # below etcd's limit of a request, 1.5 MiB
FILLER = "/filler"
BOUND_S = 60


def etcdctl(
    cluster: Cluster, *arguments: str, text: str | None = None, endpoint: str | None = None
) -> subprocess.CompletedProcess:
    """`endpoint`: the only member to ask, for commands that one of them has to answer."""
    variables = {key: value for key, value in environment.variables(cluster).items() if key.startswith("ETCDCTL_")}
    if endpoint:
        variables["ETCDCTL_ENDPOINTS"] = endpoint
    return subprocess.run(
        ["etcdctl", *arguments], input=text, capture_output=True, text=True, check=False, timeout=BOUND_S,
        env={**os.environ, **variables},
    )  # fmt: skip


def alarms(cluster: Cluster) -> str:
    return etcdctl(cluster, "alarm", "list").stdout


def fill(cluster: Cluster) -> None:
    """Overwrites one key until etcd raises its alarm: the old revisions fill the file."""
    value = "x" * CHUNK_BYTES
    for _ in range(2 * QUOTA_BYTES // CHUNK_BYTES):
        if "database space exceeded" in etcdctl(cluster, "put", FILLER, text=value).stderr:
            break
    wait_until(lambda: "NOSPACE" in alarms(cluster), "etcd's alarm", BOUND_S)
