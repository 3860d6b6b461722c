"""Fixtures of the cluster tests: one new cluster in .test-cluster/ for the session, clients, and the checks after each
test.

After every test `mantle.check()` must report nothing, and each replica, the learner too, must answer for every
directory as PostgreSQL does. The unavailability of each fault is printed at the end, in seconds.
"""

import os
import uuid
from collections.abc import Iterator

import pytest

from cluster import network
from cluster.cluster import Cluster
from cluster.shape import new_shape
from stack import citus
from stack.layout import REPOSITORY
from tests.support.rest import Rest

from .clients import make_probes, rest_of, session
from .load import Probe
from .measure import REPORT
from .oracle import await_no_problem

FOLDER = REPOSITORY / ".test-cluster"
FOLDER_OF_TESTS = REPOSITORY / "tests" / "cluster"
TIMEOUT_S = 600
ERRORS_QUOTED = 10


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sets a longer time limit, since failovers take long. Its signal fails one test, and the cluster is stopped."""
    for item in items:
        if item.path.is_relative_to(FOLDER_OF_TESTS):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S, method="signal"))


def pytest_terminal_summary(terminalreporter) -> None:
    if REPORT:
        terminalreporter.section("unavailability, seconds")
        for line in REPORT:
            terminalreporter.write_line(str(line))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """The cause of a 500 is only in the gateway's log, which is removed with its directory. So a failure quotes the
    log's last errors.
    """
    report = yield
    if report.failed:
        for log in sorted([*(FOLDER / "logs").glob("gateway[0-9].log"), *(FOLDER / "logs").glob("store-gateway.log")]):
            errors = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line]
            if errors:
                report.sections.append((f"errors in {log.name}", "\n".join(errors[-ERRORS_QUOTED:])))
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
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


@pytest.fixture
def rest(cluster: Cluster) -> Rest:
    return rest_of(cluster)


@pytest.fixture
def ns(rest: Rest) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    rest.create_namespace(name)
    return name


@pytest.fixture
def probes(cluster: Cluster, ns: str) -> dict[int, list[Probe]]:
    return make_probes(cluster, ns)


@pytest.fixture(autouse=True)
def sound(request: pytest.FixtureRequest) -> Iterator[None]:
    """At the end of every test of the cluster, it is complete and PostgreSQL is sound."""
    yield
    if "cluster" not in request.fixturenames:
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    for group in cluster.groups:
        cluster.await_protection(group)
    with session(cluster) as connection:
        assert connection.execute("SELECT problem, ns, pid, name, detail FROM mantle.check()").fetchall() == []
    await_no_problem(cluster)
