"""Concurrent calls of verbs, and crashes in the middle of them: several suites over one set of helpers.

- test_isolation.py: all pairs of verbs, one held at each failpoint. matrix.py states the expected outcomes,
  scenarios.py the initial trees and operations.
- test_property.py: random concurrent histories against a model; load.py writes them, history.py judges them.
- test_two_paths.py: the fast path of mkdir and put_object against the SQL fallback, on random batches (batches.py).
- test_reads.py: the fast paths of stat and list against their SQL fallbacks, on random rows (compared_reads.py).
- test_crash.py: kill -9 at each failpoint and under load.
- test_volumes.py: a gateway that stands still, against one that takes its segment of a volume over (volumes.py).
- test_prepare.py: a directory rename that no index has prepared.
- test_bounds.py: bounds on waiting. test_plans.py: the blocks that each statement reads. test_analysts.py: readers
  beside writers.
- test_citus*.py: these and more on a Citus cluster (distributed.py makes it): the commands that verbs send, pairs
  across nodes, shards that move (also during each verb), workers that die, SQL users, restore points.

Helpers: tree.py is the model, verbs.py calls the extension, state.py compares tables with the model, target.py chooses
the node of a session, server.py is the server, restores.py restores it. failpoints.py and
tests/support/broken_steps.py change the extension in test databases.

Every suite has tests that break a step (broken_steps.py) and fail unless the suite notices. MANTLE_PROPERTY_SEED
repeats the choices of a property run (not its timing). MANTLE_PROPERTY_SECONDS makes it longer: `make property
SECONDS=600`.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from .distributed import CitusCluster, CitusTarget, SpreadNamespace
from .server import SuiteServer
from .target import PlainTarget, fresh_target, make_template


@pytest.fixture(scope="session")
def server() -> Iterator[SuiteServer]:
    server = SuiteServer()
    server.start()
    make_template(server.parameters)
    yield server
    server.stop()


@pytest.fixture
def running_server(server: SuiteServer) -> SuiteServer:
    """The server, running: a failed crash test may have left it down."""
    server.start()
    return server


@pytest.fixture(scope="module")
def make_target(server: SuiteServer) -> Iterator[Callable[[str], PlainTarget]]:
    """Databases of one module, removed with it."""
    server.start()
    with ExitStack() as databases:
        yield lambda name: databases.enter_context(fresh_target(server.parameters, f"mantle_{name}"))


@pytest.fixture(scope="session")
def citus_cluster() -> Iterator[CitusCluster]:
    """A coordinator and two workers, for the modules that need them."""
    cluster = CitusCluster()
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def spread(target: CitusTarget) -> SpreadNamespace:
    """A namespace with directories on both workers, in the module's distributed database."""
    return SpreadNamespace(target)


@pytest.fixture
def later() -> Iterator[Callable[..., Future]]:
    """Calls a function beside the test."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit
