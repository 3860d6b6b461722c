"""What happens when two things happen at once, and when the server dies in the middle: suites over one set of parts.

- test_isolation.py: all pairs of verbs, one held at each failpoint; expectations in matrix.py, initial trees and operations in scenarios.py.
- test_property.py: random concurrent histories against a model; written by load.py, judged by history.py.
- test_crash.py: kill -9 at each failpoint and under load.
- test_prepare.py: a directory rename that no index has prepared.
- test_bounds.py: who waits how long. test_plans.py: what each statement reads. test_analysts.py: readers while others write.
- test_citus*.py: these and more on a Citus cluster (distributed.py makes it): verbs and what they send, pairs whose directories are
  on several nodes, shards that move (also from under each verb), workers that die, what users of SQL meet, restore points.

Parts: tree.py is the model, verbs.py calls the extension, state.py compares tables with the model, failpoints.py and
tests/support/broken_steps.py change the extension in test databases (by sql_wrappers.py beside it), target.py hides which node a session goes to, cluster.py is the server.

Every suite has tests that break a step (broken_steps.py) and demand to see it noticed. Settings: MANTLE_PROPERTY_SEED repeats a
property run's choices (not its timing), MANTLE_PROPERTY_SECONDS makes it longer: `make property SECONDS=600`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from .cluster import Cluster
from .distributed import CitusCluster
from .target import PlainTarget, fresh_target, make_template


@pytest.fixture(scope="session")
def server() -> Iterator[Cluster]:
    """Started for these tests, stopped at their end."""
    cluster = Cluster()
    cluster.start()
    make_template(cluster.parameters)
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(server: Cluster) -> Cluster:
    """The server, up: a crash test that failed half-way must not take the others with it."""
    server.start()
    return server


@pytest.fixture(scope="module")
def make_target(server: Cluster) -> Iterator[Callable[[str], PlainTarget]]:
    """Databases of a module's own, removed with it."""
    server.start()
    with ExitStack() as databases:
        yield lambda name: databases.enter_context(fresh_target(server.parameters, f"mantle_{name}"))


@pytest.fixture(scope="session")
def citus_cluster() -> Iterator[CitusCluster]:
    """A coordinator and two workers, for the modules that ask for them."""
    cluster = CitusCluster()
    cluster.start()
    yield cluster
    cluster.stop()
