"""A node that has no shard of the MetaTable, exactly one, or two: the worker's steps find all that is due in its
shards, and nothing else. A rebalance to a new node passes through each of these states.
"""

import uuid

import psycopg
import pytest

from stack import citus

from .distributed import PLACEMENTS, STEPS, SpreadNamespace, distributed_target, move
from .tree import Op

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

ROUNDS_MAX = 100
# What is due in a directory, and where it is counted.
MAKE_DUE = (
    "INSERT INTO mantle.requests (pid, ns, principal, request_id, request_hash, verb, created)"
    " VALUES (%(pid)s, %(ns)s, 5, %(request)s, 0, 'old', now() - interval '2 days')",
    "INSERT INTO mantle.prune_queue (pid, seq, id, queued) VALUES (%(pid)s, 1, %(pid)s, now() - interval '1 hour')",
    "INSERT INTO mantle.rename_attempts (ns, principal, request_id, attempt, state, created)"
    " VALUES (%(pid)s, 5, %(request)s, 1, 'aborted', now() - interval '2 days')",
    "INSERT INTO mantle.meta (pid, name, ts, ns, removed, created)"
    " VALUES (%(gone)s, '/_ATTR', 0, %(ns)s, true, now() - interval '2 days')",
)
DUE = {
    "requests": "SELECT count(*) FROM mantle.requests WHERE pid = %(pid)s AND verb = 'old'",
    "prune queue": "SELECT count(*) FROM mantle.prune_queue WHERE pid = %(pid)s",
    "attempts": "SELECT count(*) FROM mantle.rename_attempts WHERE ns = %(pid)s",
    "tombstones": "SELECT count(*) FROM mantle.meta WHERE pid = %(gone)s AND removed",
    "delta records": "SELECT count(*) FROM mantle.meta WHERE pid = %(pid)s AND ts > 0",
}
NOTHING = dict.fromkeys(DUE, 0)
ALL = {**dict.fromkeys(DUE, 1), "delta records": 2}


class Directory:
    """A directory with something due for each step that searches a node's shards."""

    def __init__(self, spread: SpreadNamespace, shard: int):
        self.spread = spread
        self.given = {"ns": spread.ns, "pid": self.in_shard(shard), "gone": self.in_shard(shard)}
        pid, session = self.given["pid"], spread.sessions[spread.worker_of(self.given["pid"])]
        spread.call(spread.coordinator, Op("mkdir", spread.ns, f"d{pid}/", pid, explicit=True))
        for statement in MAKE_DUE:
            spread.coordinator.execute(statement, {**self.given, "request": uuid.uuid4()})
        session.execute("SET mantle.delta_records = always")
        for name in ("one", "two"):
            assert spread.call(session, Op("put_object", pid, name, spread.new_id(), size=1, mode=420)).code is None
        session.execute("RESET mantle.delta_records")

    def in_shard(self, shard: int) -> int:
        return next(id for id in iter(self.spread.new_id, None) if self.spread.shard_of(id) == shard)

    def due(self) -> dict[str, int]:
        execute = self.spread.coordinator.execute
        return {what: execute(count, self.given).fetchone()[0] for what, count in DUE.items()}


def shards_of(spread: SpreadNamespace, worker: int) -> list[int]:
    return [
        shard for shard, _, port in spread.coordinator.execute(PLACEMENTS).fetchall() if port == spread.port(worker)
    ]


def work(session: psycopg.Connection) -> None:
    """Every step, until it finds nothing."""
    for step in STEPS:
        for _ in range(ROUNDS_MAX):
            if session.execute("SELECT mantle.run_maintenance(%s)", (step,)).fetchone()[0] == 0:
                break
        else:
            raise AssertionError(f"{step} finds work for ever")


@pytest.mark.timeout(300)
def test_a_worker_does_its_work_with_any_number_of_shards(citus_cluster):
    with distributed_target(citus_cluster, "mantle_counted") as target:
        spread = SpreadNamespace(target)
        here, there = ((node["host"], int(node["port"])) for node in target.all[1:])
        elsewhere = Directory(spread, shards_of(spread, 0)[0])
        for count in (2, 1, 0):
            for shard in shards_of(spread, 1)[count:]:
                move(spread.coordinator, shard, there, here, "block_writes")
            directories = [Directory(spread, shard) for shard in shards_of(spread, 1)]
            assert [directory.due() for directory in directories] == [ALL] * count
            work(spread.sessions[1])
            assert [directory.due() for directory in directories] == [NOTHING] * count, f"with {count} shards"
            # The oldest of too many: not those of the last minute.
            excess = spread.sessions[1].execute("SELECT mantle.purge_oldest_requests(5, 8)").fetchone()[0]
            assert excess == 0 and elsewhere.due() == ALL, "the other worker's are its own"
        work(spread.sessions[0])
        assert elsewhere.due() == NOTHING
