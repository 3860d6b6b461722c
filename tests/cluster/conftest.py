"""Fixtures of the cluster tests: one cluster for the session, made anew in .test-cluster/, clients, and the oracles.

After every test PostgreSQL and every replica are asked: `mantle.check()` reports nothing, and each replica, the learner too,
answers for every directory as PostgreSQL does. What each fault cost is printed at the end, in seconds.
"""

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import botocore.config
import psycopg
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "patroni"), str(REPOSITORY / "tests" / "e2e"), str(Path(__file__).parent)]

from cluster import network  # noqa: E402
from cluster.__main__ import new_shape  # noqa: E402
from cluster.cluster import Cluster  # noqa: E402
from cluster.layout import COORDINATOR  # noqa: E402
from stack import citus, secret  # noqa: E402
from stack.layout import DATABASE, REGION  # noqa: E402

import oracle  # noqa: E402
from load import Lane  # noqa: E402
from rest import Rest  # noqa: E402

FOLDER = REPOSITORY / ".test-cluster"
LANES_EACH = 2
ERRORS_QUOTED = 10
REPORT: list[str] = []


def pytest_terminal_summary(terminalreporter) -> None:
    if REPORT:
        terminalreporter.section("unavailability, seconds")
        for line in REPORT:
            terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """What a gateway answered 500 for is in its log alone, which goes with the folder: a failure quotes its last errors."""
    report = yield
    if report.failed:
        for log in sorted((FOLDER / "logs").glob("gateway[0-9].log")):
            errors = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line]
            if errors:
                report.sections.append((f"errors in {log.name}", "\n".join(errors[-ERRORS_QUOTED:])))
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster under test."""
    if not network.is_permitted():
        pytest.skip("network namespaces are not permitted on this machine, so no cluster was tested")
    if (FOLDER / "shape.json").exists():
        Cluster(FOLDER).remove()
    cluster = Cluster(FOLDER, new_shape(citus.WORKERS, 1, plain="MANTLE_CLUSTER_PLAIN" in os.environ))
    try:
        with cluster.alone():
            cluster.start()
            yield cluster
    finally:
        cluster.stop()


def rest_of(cluster: Cluster, gateway: int = 0) -> Rest:
    """The native API at one gateway."""
    entrance = cluster.gateways[gateway]
    return Rest(entrance.host.address, entrance.port, secret.read(cluster.layout, "token"))


def s3_of(cluster: Cluster, gateway: int = 0):
    """S3 at one gateway, as boto3 speaks it; it does not retry."""
    read = lambda name: secret.read(cluster.layout, name)  # noqa: E731
    return boto3.session.Session().client(
        "s3", endpoint_url=cluster.gateways[gateway].url, region_name=REGION, aws_access_key_id=read("access_key"),
        aws_secret_access_key=read("secret_key"),
        config=botocore.config.Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )  # fmt: skip


@pytest.fixture
def rest(cluster: Cluster) -> Rest:
    return rest_of(cluster)


@pytest.fixture
def ns(rest: Rest) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    rest.create_namespace(name)
    return name


def session(cluster: Cluster, group: int = COORDINATOR) -> psycopg.Connection:
    """A superuser's, at a group's primary."""
    leader = cluster.leader(group)
    return psycopg.connect(
        host=leader.host,
        port=leader.port,
        dbname=DATABASE,
        user="postgres",
        password=secret.read(cluster.layout, "superuser"),
        autocommit=True,
    )


def make_lanes(cluster: Cluster, ns: str) -> dict[int, list[Lane]]:
    """Directories to be put under load, by the group that has what is in them."""
    found: dict[int, list[Lane]] = {group: [] for group in cluster.groups if cluster.groups[group][0].is_source}
    writer = rest_of(cluster)
    with session(cluster) as connection:
        while min(len(lanes) for lanes in found.values()) < LANES_EACH:
            name = f"d{uuid.uuid4().hex[:8]}"
            id = writer.mkdir(ns, name).body["id"]
            group = oracle.group_of(connection, id) if cluster.shape.is_citus else COORDINATOR
            if len(found[group]) < LANES_EACH:
                number = len(found[group])
                gateways = [rest_of(cluster, (number + at) % 2) for at in range(2)]
                found[group].append(Lane(ns, name, id, *gateways, keyed=number % 2 == 0))
    return found


@pytest.fixture
def lanes(cluster: Cluster, ns: str) -> dict[int, list[Lane]]:
    return make_lanes(cluster, ns)


@pytest.fixture(autouse=True)
def sound(request: pytest.FixtureRequest) -> Iterator[None]:
    """The cluster is whole and PostgreSQL is sound, at the end of every test of it."""
    yield
    if "cluster" not in request.fixturenames:
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    for group in cluster.groups:
        cluster.await_protection(group)
    with session(cluster) as connection:
        assert connection.execute("SELECT problem, ns, pid, name, detail FROM mantle.check()").fetchall() == []
        assert connection.execute("SELECT node, problem, detail FROM mantle.check_cluster()").fetchall() == []
