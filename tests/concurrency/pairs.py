"""Runs one case of the isolation matrix: A is held at a failpoint, B comes, A goes on. Returns the differences from the
expected outcome.
"""

import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg

from stack.poll import wait_until

from . import failpoints, matrix, state, verbs
from .scenarios import IDS, NEW_A, NEW_B, SCENARIOS, Scenario
from .target import PlainTarget
from .tree import Op, Outcome
from .verbs import Answer, Key

PAIRS = [(scenario, a, b) for scenario in SCENARIOS for a, b in scenario.pairs()]
VERBS = [(scenario, a) for scenario in SCENARIOS for a in dict.fromkeys(a for a, _ in scenario.pairs())]
STEP_BOUND_S = 30.0

_WAITS_FOR = """
    SELECT a.wait_event_type = 'Lock' AND %(holder)s = ANY (pg_blocking_pids(a.pid))
      FROM pg_stat_activity a WHERE a.pid = %(waiter)s
"""


class Pairs:
    """Two sessions in a database with failpoints, and a third that watches. Cases run one at a time."""

    def __init__(self, target: PlainTarget):
        self.watcher = target.connect()
        # only for filling the tables; verbs run in the other sessions
        self.watcher.execute("SET synchronous_commit = off")
        self.gate = failpoints.Gate(target.connect())
        self.ns = verbs.create_namespace(self.gate.connection, "matrix")
        self.first = verbs.allocate_ids(self.gate.connection, IDS)
        self.a, self.b = target.connect(self.ns), target.connect(self.ns)
        self.pool = ThreadPoolExecutor(2)

    def close(self) -> None:
        self.pool.shutdown()
        for connection in (self.a, self.b, self.watcher, self.gate.connection):
            connection.close()

    def run(self, scenario: Scenario, a_name: str, point: str, b_name: str, same_request: bool = False) -> list[str]:
        """One case. Returns no texts if all is as expected."""
        tree = scenario.build(self.ns, self.first)
        a = scenario.operations(self.ns, self.first, NEW_A)[a_name]
        b = a if same_request else scenario.operations(self.ns, self.first, NEW_B)[b_name]
        expected = matrix.expect(tree, scenario.has_primary, a, point, b, same_request)
        state.plant(self.watcher, self.ns, tree, scenario.has_primary)
        a_key = Key(uuid.uuid4(), 1)
        b_key = a_key if same_request else Key(uuid.uuid4(), 2)
        waited, a_answer, b_answer = self._interleave(a, a_key, point, b, b_key)
        found = []
        if waited != expected.waits:
            found.append(f"wait: B {'waited' if waited else 'passed'}")
        for who, answer, outcome, replays in (
            ("A", a_answer, expected.a, expected.a_replays),
            ("B", b_answer, expected.b, expected.b_replays),
        ):
            if not agrees(answer, outcome) or (answer.replayed or False) != replays:
                found.append(f"code: {who} answered {answer}, expected {outcome}{', replayed' if replays else ''}")
        return found + state.differences(self.watcher, self.ns, expected.tree)

    def _interleave(self, a: Op, a_key: Key, point: str, b: Op, b_key: Key) -> tuple[bool, Answer, Answer]:
        """Whether B waited for A, and both answers."""
        a_pid, b_pid = self.a.info.backend_pid, self.b.info.backend_pid
        let_commit, at_commit = threading.Event(), threading.Event()
        with self.gate.closed():
            a_done = self.pool.submit(self._hold, a, a_key, point, at_commit, let_commit)
            try:
                if point == failpoints.BEFORE_COMMIT:
                    assert at_commit.wait(STEP_BOUND_S)
                else:
                    self.gate.await_held(a_pid, a_done.done, f"{a.verb} at {point}")
                b_done = self.pool.submit(verbs.call_one, self.b, self.ns, b, b_key)
                waited = self._waits(b_done, a_pid, b_pid, f"{b.verb} while {a.verb} is at {point}")
            finally:
                let_commit.set()
        return waited, a_done.result(STEP_BOUND_S), b_done.result(STEP_BOUND_S)

    def _hold(self, op: Op, key: Key, point: str, at_commit: threading.Event, let_commit: threading.Event) -> Answer:
        """A's part, in its thread."""
        if point != failpoints.BEFORE_COMMIT:
            failpoints.arm(self.a, point)
            return verbs.call_one(self.a, self.ns, op, key)
        try:
            with self.a.transaction():
                answer = verbs.call(self.a, self.ns, [op], [key])[0]
                at_commit.set()
                assert let_commit.wait(STEP_BOUND_S)
        except psycopg.Error as error:
            answer = Answer(error.sqlstate)
        at_commit.set()
        return answer

    def _waits(self, b_done: Future, a_pid: int, b_pid: int, what: str) -> bool:
        """Waits until B has either ended or is seen to wait for A."""
        query = {"holder": a_pid, "waiter": b_pid}
        return (
            wait_until(
                lambda: (
                    "passed"
                    if b_done.done()
                    else "waited"
                    if self.watcher.execute(_WAITS_FOR, query).fetchone()[0]
                    else None
                ),
                what,
                STEP_BOUND_S,
            )
            == "waited"
        )


def agrees(answer: Answer, outcome: Outcome) -> bool:
    """Some verbs answer no version. In a refusal only the code counts."""
    if answer.code is not None or outcome.code is not None:
        return answer.code == outcome.code
    return answer.id in (None, outcome.id) and answer.version in (None, outcome.version)


def points_of(scenario: Scenario, a: str) -> tuple[str, ...]:
    return matrix.points(scenario.operations(0, 0, NEW_A)[a])


def run_pair(pairs: Pairs, scenario: Scenario, a: str, b: str, same_request: bool = False) -> list[str]:
    """The pair at every failpoint of A."""
    return [
        f"{point}: {text}"
        for point in points_of(scenario, a)
        for text in pairs.run(scenario, a, point, b, same_request)
    ]
