"""kill -9 of the postmaster at any moment: nothing acknowledged is lost, nothing is half done, and a retry is answered
as the state demands.

The kernel survives and keeps what was written, so this is a crash of PostgreSQL, not of the machine; fsync is on all
the same.
"""

import itertools
import random
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psycopg
import pytest

from stack.poll import wait_until
from tests.support import broken_steps

from . import failpoints, matrix, state, verbs
from .history import judge
from .load import Load, Submission, digest
from .pairs import agrees
from .random_histories import SEED
from .scenarios import IDS, IMPLICIT, LEVELS, NEW_A, SIBLINGS, Scenario
from .target import PlainTarget, fresh_target
from .tree import Op, Outcome, Tree
from .verbs import Answer, Key

HELD_BOUND_S = 30.0
SESSIONS = 4
# Elements that are answered before the kill, at random: from almost none to many.
ELEMENTS_MAX = 600
CRASHES = 8

# Every verb once, each on its own scenario: all are held at the same time.
HELD = (
    (SIBLINGS, "create n"),
    (SIBLINGS, "overwrite o"),
    (SIBLINGS, "delete o"),
    (SIBLINGS, "mkdir n/"),
    (SIBLINGS, "rmdir s/"),
    (SIBLINGS, "rename o to n"),
    (SIBLINGS, "rename s/ to n/"),
    (SIBLINGS, "chmod o"),
    (SIBLINGS, "chmod s/"),
    (SIBLINGS, "compact"),
    (IMPLICIT, "prune i/"),
    (LEVELS, "rename e/o to d/n"),
    (LEVELS, "rename e/s/ over d/"),
    (LEVELS, "remove tree d/"),
)


@dataclass
class Held:
    """One verb on its own scenario, and its retry after the crash."""

    ns: int
    tree: Tree
    op: Op
    key: Key
    connection: psycopg.Connection

    def points(self) -> tuple[str, ...]:
        return matrix.points(self.op)

    def call(self, connection: psycopg.Connection) -> Answer:
        return verbs.call(connection, self.ns, [self.op], [self.key])[0]

    def carry_out(self) -> Outcome:
        """Applies it to the model."""
        return self.tree.apply(self.op)

    def differences(self, connection: psycopg.Connection) -> list[str]:
        """Its row, its root's entry and its tombstone must all be there, or none."""
        return state.differences(connection, self.ns, self.tree)


@dataclass
class HeldNamespace:
    """The creation or removal of a namespace, which is no operation inside one."""

    verb: str
    name: str
    ns: int
    exists: bool
    key: Key
    connection: psycopg.Connection

    @property
    def op(self) -> Op:
        return Op(self.verb, 0, f"{self.name}/", self.ns)

    def points(self) -> tuple[str, ...]:
        return failpoints.ALL

    def call(self, connection: psycopg.Connection) -> Answer:
        if self.verb == "create_namespace":
            return verbs.make_namespace(connection, self.name, self.ns, self.key)
        return verbs.delete_namespace(connection, self.name, self.key)

    def carry_out(self) -> Outcome:
        """Applies it to the model."""
        self.exists = not self.exists
        return Outcome(None, self.ns)

    def differences(self, connection: psycopg.Connection) -> list[str]:
        """Its row, its root's entry and its tombstone must all be there, or none."""
        found = connection.execute(
            "SELECT (SELECT count(*) FROM mantle.namespaces WHERE ns = %(ns)s AND name = %(name)s),"
            " (SELECT count(*) FROM mantle.meta WHERE pid = 0 AND name = %(name)s || '/' AND id = %(ns)s),"
            " (SELECT count(*) FROM mantle.meta WHERE pid = %(ns)s AND removed)",
            {"ns": self.ns, "name": self.name},
        ).fetchone()
        removed = int(self.verb == "delete_namespace" and not self.exists)
        expected = (int(self.exists), int(self.exists), removed)
        return [f"{self.verb}: {found}, expected {expected}"] * (found != expected) + state.damage(connection)


@pytest.fixture
def target(running_server):
    with fresh_target(running_server.parameters, "mantle_crash") as target:
        yield target


def prepare(target: PlainTarget, scenario: Scenario, name: str) -> Held:
    with target.connect() as connection:
        ns = verbs.create_namespace(connection, f"crash-{uuid.uuid4().hex[:12]}")
        first = verbs.allocate_ids(connection, IDS)
        tree = scenario.build(ns, first)
        state.plant(connection, ns, tree)
    return Held(ns, tree, scenario.operations(ns, first, NEW_A)[name], Key(uuid.uuid4(), 1), target.connect(ns))


def prepare_namespaces(target: PlainTarget) -> list[HeldNamespace]:
    """One to create, one to remove."""
    names = [f"crash-{verb}-{uuid.uuid4().hex[:12]}" for verb in ("made", "gone")]
    with target.connect() as connection:
        new, old = verbs.allocate_ids(connection, 1), verbs.create_namespace(connection, names[1])
    keys = [Key(uuid.uuid4(), 1) for _ in names]
    return [
        HeldNamespace("create_namespace", names[0], new, False, keys[0], target.connect()),
        HeldNamespace("delete_namespace", names[1], old, True, keys[1], target.connect()),
    ]


def hold(held: Held | HeldNamespace, point: str) -> None:
    """Runs the verb up to its failpoint; the server dies meanwhile."""
    try:
        if point == failpoints.BEFORE_COMMIT:
            held.connection.execute("BEGIN")
        else:
            failpoints.arm(held.connection, point)
        held.call(held.connection)
    except psycopg.OperationalError:
        pass


def is_in_transaction(watcher: psycopg.Connection, backend: int) -> bool:
    found = watcher.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", (backend,)).fetchone()
    return found == ("idle in transaction",)


@pytest.mark.parametrize("point", failpoints.ALL)
def test_a_crash_while_verbs_are_held(running_server, target, point):
    """Uncommitted verbs have done nothing, whatever they had written. Committed ones are complete. Every retry then
    counts as the first request.
    """
    target.on_all_nodes(failpoints.install)
    wanted = [*(prepare(target, scenario, name) for scenario, name in HELD), *prepare_namespaces(target)]
    wanted = [held for held in wanted if point in held.points()]
    bystander = prepare(target, SIBLINGS, "create m")
    gate, watcher = failpoints.Gate(target.connect()), target.connect()
    gate.close()
    with ThreadPoolExecutor(len(wanted)) as pool:
        for held in wanted:
            running, backend = pool.submit(hold, held, point), held.connection.info.backend_pid
            if point == failpoints.BEFORE_COMMIT:
                wait_until(
                    lambda backend=backend: is_in_transaction(watcher, backend), f"{held.op.verb} to end", HELD_BOUND_S
                )
            else:
                gate.await_held(backend, running.done, f"{held.op.verb} at {point}")
        assert agrees(
            verbs.call_one(bystander.connection, bystander.ns, bystander.op, bystander.key),
            bystander.tree.apply(bystander.op),
        )
        running_server.kill()
    running_server.start()
    with target.connect_when_up() as connection:
        assert state.differences(connection, bystander.ns, bystander.tree) == []
        for held in wanted:
            assert held.differences(connection) == [], held.op
            answer, outcome = held.call(connection), held.carry_out()
            assert agrees(answer, outcome) and not answer.replayed, (held.op, answer, outcome)
            assert held.differences(connection) == [], held.op
        again = verbs.call_one(connection, bystander.ns, bystander.op, bystander.key)
        assert again.code is None and again.replayed


def retry_unknown(connection: psycopg.Connection, load: Load, tree: Tree) -> list[str]:
    """Retries every element that got no answer, one at a time; the model knows the expected answers."""
    problems = []
    recorded = {
        request: (hash, Answer(None, id, version, True))
        for request, hash, id, version in connection.execute(
            "SELECT request_id, request_hash, id, version FROM mantle.requests WHERE ns = %s", (load.ns,)
        ).fetchall()
    }
    attempts = itertools.count(10**9)
    for s in [s for s in load.submissions if s.answer is None and s.op.verb not in verbs.WITHOUT_REQUEST]:
        key = Key(s.key.request, s.key.hash, next(attempts))
        if s.op.verb in ("rename_directory", "remove_tree"):
            with load.prepares.prepared(connection, s.op) as granted:
                answer = verbs.call_one(connection, load.ns, s.op, key) if granted else None
        else:
            answer = verbs.call_one(connection, load.ns, s.op, key)
        if answer is None:
            continue
        hash, expected = recorded.get(s.key.request, (key.hash, None))
        if hash != key.hash:
            expected = Answer("MT020")
        elif expected is None:
            outcome = tree.apply(s.op, tree.looks_busy(s.op))
            expected = Answer(outcome.code, outcome.id, outcome.version)
            if outcome.code is None:
                recorded[s.key.request] = (hash, Answer(None, outcome.id, outcome.version, True))
        if not agrees(answer, expected.outcome) or answer.replayed != expected.replayed:
            problems.append(f"retry of {s.op} answered {answer}, expected {expected}")
    return problems


def kill_at(server, elements: int):
    """Chaos for a load: the kill, once the wanted number of elements has been sent."""

    def chaos(load: Load) -> None:
        wait_until(
            lambda: len(load.submissions) >= elements or load.stop.is_set(), f"{elements} elements", HELD_BOUND_S
        )
        server.kill()
        load.stop.set()

    return chaos


def test_crashes_under_load(running_server, target):
    choose = random.Random(f"{SEED}-crash")
    unknown = 0
    for number in range(CRASHES):
        load = Load(target, SEED + number, SESSIONS)
        load.run(10 * ELEMENTS_MAX, kill_at(running_server, choose.randrange(ELEMENTS_MAX)))
        running_server.start()
        with target.connect_when_up() as connection:
            problems = judge(connection, load.ns, load.submissions, load.surprises)
            assert problems == [], f"MANTLE_PROPERTY_SEED={SEED}, crash {number}:\n" + "\n".join(problems)
            tree = state.read_tree(connection, load.ns)
            problems = retry_unknown(connection, load, tree) + state.differences(connection, load.ns, tree)
            assert problems == [], f"MANTLE_PROPERTY_SEED={SEED}, crash {number}:\n" + "\n".join(problems)
        unknown += sum(s.answer is None for s in load.submissions)
    assert unknown > 0, "no crash hit a call"


def test_a_commit_that_does_not_wait_is_noticed(running_server, target):
    """It is acknowledged before the flush: a kill -9 loses it, and the judge notices."""
    target.on_all_nodes(lambda connection: broken_steps.break_steps(connection, broken_steps.NO_COMMIT_CHECK))
    hasty = PlainTarget({**target.parameters, "options": "-c synchronous_commit=off"}, target.database)
    for number in range(CRASHES):
        load = Load(target, SEED + number, sessions=1)
        load.target = hasty
        load.run(10 * ELEMENTS_MAX, kill_at(running_server, ELEMENTS_MAX // 3))
        running_server.start()
        with target.connect_when_up() as connection:
            problems = judge(connection, load.ns, load.submissions, load.surprises)
        if any(text.startswith("lost") for text in problems):
            return
    pytest.fail(f"no acknowledgement was lost in {CRASHES} crashes")


def test_a_missing_row_is_noticed(target):
    """The judge reports an answer without a record, and a change without its request."""
    load = Load(target, SEED, SESSIONS)
    load.run(200)
    # An object outside the load's names: only this request explains it.
    op = Op("put_object", load.ns, "kept", next(load.ids), 1, "v1", mode=420)
    key = Key(uuid.uuid4(), digest(op))
    with target.connect(load.ns) as connection:
        load.send(connection, [Submission(op, key, 0.0)])
        assert judge(connection, load.ns, load.submissions, load.surprises) == []
        deleted = connection.execute(
            "DELETE FROM mantle.requests WHERE ns = %s AND request_id = %s", (load.ns, key.request)
        )
        assert deleted.rowcount == 1
        problems = judge(connection, load.ns, load.submissions, load.surprises)
        assert any(text.startswith("lost") for text in problems), problems
        assert any(text.startswith(("tree", "order", "refusal")) for text in problems), problems
