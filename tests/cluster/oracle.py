"""Checks that hold after any fault: PostgreSQL and every index replica have everything that was acknowledged, and the
same directories.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from cluster import certificates, tafdb
from cluster.cluster import Cluster
from cluster.environment import variables as environment_of
from cluster.layout import COORDINATOR
from cluster.services import ClusterGateway
from stack import secret
from stack.failure import Failure
from stack.poll import wait_until
from tests.support.rest import Rest

FIRST_PRIVATE_GATEWAY = 10
SAMPLE = 5
AGREE_BOUND_S = 20.0
CONTENT_BOUND_S = 60.0
GROUP_OF = """
    SELECT n.groupid FROM pg_dist_placement p JOIN pg_dist_node n ON n.groupid = p.groupid AND n.noderole = 'primary'
     WHERE p.shardid = get_shard_id_for_distribution_column('mantle.meta', %s::bigint)
"""


def group_of(coordinator: psycopg.Connection, pid: int) -> int:
    """The worker group that has the content of a directory."""
    return coordinator.execute(GROUP_OF, (pid,)).fetchone()[0]


def await_no_problem(cluster: Cluster) -> None:
    """Waits until `mantle.check_cluster()` names nothing: workers and readers come back some seconds after a fault."""
    found = ["it does not answer"]

    def is_content() -> bool:
        found[:] = tafdb.problems(cluster.leader(COORDINATOR))
        return not found

    with suppress(Failure):
        wait_until(is_content, "check_cluster to be content", CONTENT_BOUND_S)
    assert found == [], f"after {CONTENT_BOUND_S:g} s check_cluster still names {found}"


def rest_at(cluster: Cluster, gateway: ClusterGateway) -> Rest:
    """The native API at a gateway."""
    trusted = certificates.path(cluster.layout, f"{certificates.AUTHORITY}.crt")
    return Rest(gateway.host.address, gateway.port, secret.read(cluster.layout, "token"), trusted)


@contextmanager
def only_replica(cluster: Cluster, number: int) -> Iterator[Rest]:
    """The native API, answered by one replica, so its answers show what that replica knows."""
    name = f"gateway-of-{cluster.layout.index_hosts[number - 1].name}"
    address = cluster.layout.index_addresses[number - 1]
    gateway = ClusterGateway(cluster.layout, cluster.account, FIRST_PRIVATE_GATEWAY + number, name, [address])
    gateway.prepare()
    gateway.start()
    try:
        gateway.await_ready()
        yield rest_at(cluster, gateway)
    finally:
        gateway.process.stop()


def assert_nothing_is_lost(cluster: Cluster, ns: str, acknowledged: list[str]) -> None:
    """Every acknowledged directory is in PostgreSQL, and every replica has the directories of PostgreSQL."""
    rest = rest_at(cluster, cluster.gateways[0])
    listed = {
        f"{directory}/{name}"
        for directory in {path.split("/")[0] for path in acknowledged}
        for name in rest.list(ns, directory + "/")
    }
    lost = sorted({path + "/" for path in acknowledged} - listed)
    assert lost == [], f"PostgreSQL lacks {len(lost)} of {len(acknowledged)}, first {lost[0]}"
    assert_replicas_agree(cluster)
    for replica in cluster.replicas:
        with only_replica(cluster, replica.replica) as one:
            for path in acknowledged[-SAMPLE:]:
                one.list(ns, path + "/")  # raises a refusal


def assert_replicas_agree(cluster: Cluster) -> None:
    """Every replica has exactly PostgreSQL's directories. A gateway cannot show that: it asks PostgreSQL for what a
    replica lacks.
    """
    leader = cluster.leader(COORDINATOR)

    def do_agree() -> bool:
        there = int(leader.psql("SELECT count(*) FROM mantle.directories"))
        return all(replica.metric("mantle_index_directories") == there for replica in cluster.replicas)

    wait_until(do_agree, "every replica to have as many directories as PostgreSQL", AGREE_BOUND_S)


def mantle(cluster: Cluster, *arguments: str, superuser: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs the command `mantle` as an administrator; in PostgreSQL as the role `operator` or a superuser."""
    names = ("MANTLE_INDEX", "MANTLE_TLS_CA", "MANTLE_TLS_CERTIFICATE", "MANTLE_TLS_KEY", "DATABASE_URL", "PGPASSFILE")
    variables = environment_of(cluster)
    environment = {name: variables[name] for name in names}
    if superuser:
        environment["DATABASE_URL"] = variables["SUPERUSER_URL"]
    command = [str(cluster.layout.binaries / "mantle"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def fsck(cluster: Cluster) -> list[str]:
    """The differences that `mantle fsck` finds."""
    done = mantle(cluster, "fsck")
    return [] if done.returncode == 0 else [f"fsck: {done.stdout}{done.stderr}"]


def rebuilds(cluster: Cluster) -> float:
    """Completed rebuilds, over all replicas."""
    return sum(replica.metric("mantle_index_rebuilds_completed_total") or 0 for replica in cluster.replicas)
