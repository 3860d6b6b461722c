"""Pairs of verbs, one of which spans two workers: it is held in the middle while the other comes from a third node.
Complements the isolation matrix (test_isolation.py), whose directories are on one node.

A verb is held where its own session works. So that session is on the node of the directory that is latched last: when
that one is latched, all are.
"""

from concurrent.futures import Future

import psycopg
import pytest

from stack import citus
from stack.poll import wait_until
from tests.support import broken_steps

from . import failpoints, verbs
from .distributed import CitusTarget, SpreadNamespace, distributed_target
from .failpoints import AFTER_LATCHES, BEFORE_CLAIM, BEFORE_COMMIT, BEFORE_COUNTS, BEFORE_EMIT
from .pairs import STEP_BOUND_S, Pairs
from .scenarios import IDS, LEVELS, D, E, F

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

# The scenario's root and e/ are on one worker, d/ and f/ on the other.
WORKERS = {D: 1, E: 0, F: 1}
ROOT_WORKER = 0
# The held verb, the directory whose node has its session, its failpoint, and the other verb.
HELD = {
    "rename e/o to d/n": (E, (AFTER_LATCHES, BEFORE_COUNTS, BEFORE_COMMIT)),
    "rename e/s/ to d/n/": (E, (AFTER_LATCHES, BEFORE_EMIT, BEFORE_COMMIT)),
    "rename e/s/ over d/": (
        E,
        (BEFORE_CLAIM, BEFORE_COUNTS, BEFORE_COMMIT),
    ),  # latched first is the root, on this node as well
    "rename d/ to f/d/": (F, (AFTER_LATCHES, BEFORE_COUNTS, BEFORE_COMMIT)),
    "rmdir d/": (D, (AFTER_LATCHES, BEFORE_COMMIT)),
}
COMES = (
    "create d/n", "mkdir d/n/", "rename e/o to d/n", "rename e/s/ to d/n/", "rename e/s/ over d/", "rename d/ to f/d/",
    "rmdir d/", "chmod d/",
)  # fmt: skip
_WAITS = "SELECT count(*) FROM citus_lock_waits WHERE waiting_gpid = %s AND blocking_gpid = %s"


class SpanningPairs(Pairs):
    """Cases in a namespace with directories on both workers. B comes from the coordinator."""

    def __init__(self, target: CitusTarget):
        self.spread = SpreadNamespace(target)
        super().__init__(target)
        self.watcher.close()
        self.watcher = target.coordinator()
        self.watcher.execute("SET synchronous_commit = off")
        self.b.close()
        self.b = target.coordinator()
        while self.spread.worker_of(self.ns) != ROOT_WORKER:
            self.ns = verbs.create_namespace(self.spread.coordinator, f"matrix{self.ns}")
        self.first = verbs.allocate_ids(self.spread.coordinator, IDS)  # above the root, which is latched first
        while any(self.spread.worker_of(self.first + n) != worker for n, worker in WORKERS.items()):
            self.first = verbs.allocate_ids(self.spread.coordinator, IDS)
        self.by_worker = [
            (psycopg.connect(**node, autocommit=True), failpoints.Gate(psycopg.connect(**node, autocommit=True)))
            for node in target.all[1:]
        ]

    def hold_in(self, letter: int) -> None:
        """Chooses the session of A."""
        self.a, self.gate = self.by_worker[WORKERS[letter]]
        self.a_everywhere, self.b_everywhere = (global_pid(session) for session in (self.a, self.b))

    def _waits(self, b_done: Future, _a_pid: int, _b_pid: int, what: str) -> bool:
        """Waits until B has ended, or is seen to wait for A on any node."""

        def seen() -> str | None:
            if b_done.done():
                return "passed"
            waits = self.watcher.execute(_WAITS, (self.b_everywhere, self.a_everywhere)).fetchone()[0]
            return "waited" if waits else None

        return wait_until(seen, what, STEP_BOUND_S) == "waited"


def global_pid(session: psycopg.Connection) -> int:
    """Citus' id of a session, which includes its work on other nodes."""
    return session.execute("SELECT citus_backend_gpid()").fetchone()[0]


@pytest.fixture(scope="module")
def pairs(citus_cluster):
    with distributed_target(citus_cluster, "mantle_spanning") as target:
        target.on_all_nodes(failpoints.install_steps)
        pairs = SpanningPairs(target)
        yield pairs
        pairs.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("a", HELD)
def test_pairs_across_nodes(pairs, a):
    letter, points = HELD[a]
    pairs.hold_in(letter)
    found = {(point, b): pairs.run(LEVELS, a, point, b) for point in points for b in COMES}
    assert {case: problems for case, problems in found.items() if problems} == {}


@pytest.mark.timeout(120)
def test_a_missing_latch_is_noticed(pairs):
    """Must be the last test: it breaks the database."""
    pairs.spread.target.on_all_nodes(
        lambda connection: broken_steps.break_steps(connection, broken_steps.NO_ENTRY_LATCH)
    )
    pairs.hold_in(E)
    found = pairs.run(LEVELS, "rename e/o to d/n", BEFORE_COUNTS, "rmdir d/")
    # The tombstone is written without the executor, where a row that another transaction has changed is an error, and
    # the data stays as it is. So the wrong code is all that is found.
    assert "code" in {text.split(": ")[0] for text in found}, found
