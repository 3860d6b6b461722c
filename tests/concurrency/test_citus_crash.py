"""kill -9 of a worker during renames across two workers: before, between and after their two phases. Once Citus has
settled the prepared transactions, no rename is half done. What the session's node had committed is there, and
everything that was acknowledged.

A transaction is held between its phases by an absent synchronous standby. The prepare or the commit is flushed, then
waits for it: on the other worker before the session's commit, on the session's own after the other's prepare.
"""

import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import psycopg
import pytest

from stack import citus
from stack.poll import wait_until

from . import failpoints, state, verbs
from .distributed import CitusTarget, SpreadNamespace, distributed_target
from .server import SuiteServer
from .tree import Op
from .verbs import Answer, Key

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

OWN, OTHER = 0, 1  # workers: the session's, which has the source, and that of the destination
HELD_BOUND_S = 30.0
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'"
PREPARED = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"


@pytest.fixture(scope="module")
def target(citus_cluster) -> Iterator[CitusTarget]:
    with distributed_target(citus_cluster, "mantle_citus_crash") as target:
        target.on_all_nodes(failpoints.install_steps)
        yield target


class Renames:
    """An object and a directory that go from one worker to the other, each in its own session."""

    def __init__(self, target: CitusTarget):
        self.target, self.spread = target, SpreadNamespace(target)
        spread, epoch = (
            self.spread,
            self.spread.coordinator.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()[0],
        )
        source, destination = spread.by_worker[OWN][0], spread.by_worker[OTHER][0]
        directory = spread.new_id()
        # Acknowledged, on both.
        for op in (
            Op("put_object", source, "o", spread.new_id(), size=9, mode=420, etag="e"),
            Op("mkdir", source, "s/", directory, explicit=True),
            Op("put_object", destination, "there", spread.new_id(), size=5, mode=420, etag="e"),
        ):
            assert spread.call(spread.coordinator, op).code is None
        self.ops = (
            Op("rename_object", source, "o", dst_pid=destination, dst_name="o"),
            Op("rename_directory", source, "s/", directory, dst_pid=destination, dst_name="s/", epoch=epoch),
        )
        self.keys = [Key(uuid.uuid4()) for _ in self.ops]
        self.sessions = [psycopg.connect(**target.all[1 + OWN], autocommit=True) for _ in self.ops]
        self.before = state.read_tree(spread.coordinator, spread.ns)
        self.watchers = [psycopg.connect(**node, autocommit=True) for node in target.all[1:]]

    def begin(self, pool: ThreadPoolExecutor) -> list[Future]:
        calls = zip(self.sessions, self.ops, self.keys, strict=True)
        return [pool.submit(verbs.call_one, session, self.spread.ns, op, key) for session, op, key in calls]

    def await_count(self, worker: int, query: str, what: str) -> None:
        wait_until(lambda: self.watchers[worker].execute(query).fetchone() == (len(self.ops),), what, HELD_BOUND_S)

    def check(self, are_done: bool) -> None:
        """Both renames are done, or neither, and their retries are answered so."""
        expected = self.before.copy()
        if are_done:
            assert [expected.apply(op).code for op in self.ops] == [None, None]
        self.target.settle()
        with self.target.coordinator() as coordinator:
            assert state.differences(coordinator, self.spread.ns, expected) == []
            for op, key in zip(self.ops, self.keys, strict=True):
                answer = verbs.call_one(coordinator, self.spread.ns, op, key)
                assert (answer.code, answer.replayed) == (None, are_done), op
                if not are_done:
                    assert expected.apply(op).code is None
            assert state.differences(coordinator, self.spread.ns, expected) == []


@contextmanager
def held_before_prepare(
    renames: Renames, _servers: list[SuiteServer], pool: ThreadPoolExecutor
) -> Iterator[list[Future]]:
    """Latched on both nodes, recorded on the other, removed from their own: nothing is prepared."""
    gate = failpoints.Gate(psycopg.connect(**renames.target.all[1 + OWN], autocommit=True))
    gate.close()
    for session in renames.sessions:
        failpoints.arm(session, failpoints.BEFORE_COUNTS)
    running = renames.begin(pool)
    for session, future in zip(renames.sessions, running, strict=True):
        gate.await_held(session.info.backend_pid, future.done, "a rename before its counts")
    yield running
    if not gate.connection.closed:
        with suppress(psycopg.OperationalError):  # its server may be the one that died
            gate.open()


@contextmanager
def held_at(
    worker: int, renames: Renames, servers: list[SuiteServer], pool: ThreadPoolExecutor
) -> Iterator[list[Future]]:
    """The last WAL record that `worker` writes is flushed, and waits for a standby."""
    with servers[worker].without_standby():
        running = renames.begin(pool)
        renames.await_count(worker, WAITING, "both to wait for the standby")
        renames.await_count(OTHER, PREPARED, "both to be prepared on the other worker")
        yield running


MOMENTS = {
    "before prepare": (held_before_prepare, False),
    "prepared": (lambda *held: held_at(OTHER, *held), False),
    "committed": (lambda *held: held_at(OWN, *held), True),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("killed", [OWN, OTHER], ids=["its own worker", "the other worker"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_dies_during_renames(citus_cluster, target, moment, killed):
    hold, are_done = MOMENTS[moment]
    renames, servers = Renames(target), citus_cluster.servers[1:]
    with ThreadPoolExecutor(len(renames.ops)) as pool:
        with hold(renames, servers, pool) as running:
            assert not any(future.done() for future in running)
            servers[killed].kill()
            if killed == OTHER and moment == "committed":
                # Its own node goes on, without the other.
                servers[OWN].lift_standby()
                assert [answer.code for answer in outcomes(running)] == [None, None], "acknowledged"
            servers[killed].start()
        answers = outcomes(running)
    if not are_done or killed == OWN:
        assert all(answer.code is not None for answer in answers), f"nobody was told that it is done: {answers}"
    renames.check(are_done)


def outcomes(running: list[Future]) -> list[Answer]:
    return [future.result(HELD_BOUND_S) for future in running]
