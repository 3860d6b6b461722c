"""The bound on what a worker purges in one transaction on Citus, where one hot directory has all due rows."""

import uuid

import pytest

from stack import citus

from .distributed import SpreadNamespace, distributed_target

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

OLD = """INSERT INTO mantle.requests (pid, ns, principal, request_id, request_hash, verb, created)
         SELECT %s, %s, 5, gen_random_uuid(), 0, 'old', now() - n * interval '1 hour'
           FROM generate_series(1, %s) AS n"""
LEFT = "SELECT count(*) FROM mantle.requests WHERE verb = 'old'"
MADE_AT = (
    "SELECT (lpad(to_hex((extract(epoch FROM now() - %s::interval) * 1000)::bigint), 12, '0') || '70008'"
    " || repeat('0', 15))::uuid"
)
MKDIR = """SELECT r.code FROM mantle.mkdir('{5}', ARRAY[%(ns)s::bigint], ARRAY[%(pid)s::bigint], ARRAY['made/'],
               ARRAY[%(id)s::bigint], '{0}', '{0}', '{493}', '{t}', ARRAY[NULL]::jsonb[],
               ARRAY[%(request)s::uuid], '{0}', p_caller => '{0}') AS r"""


@pytest.mark.timeout(300)
def test_a_purge_takes_a_batch_of_a_hot_directory(citus_cluster):
    with distributed_target(citus_cluster, "mantle_purged") as target:
        spread = SpreadNamespace(target)
        worker, (hot, *_), (away, *_) = spread.sessions[0], spread.by_worker[0], spread.by_worker[1]
        for pid, rows in ((hot, 50), (away, 5)):
            spread.coordinator.execute(OLD, (pid, spread.ns, rows))

        def purge(call: str) -> int:
            return worker.execute(f"SELECT {call}").fetchone()[0]

        def left() -> int:
            return spread.coordinator.execute(LEFT).fetchone()[0]

        due = "created < now() - interval ''30.5 hours''"
        assert [purge(f"mantle.purge('requests', 'pid', '{due}', 8)") for _ in range(4)] == [8, 8, 4, 0], "a batch each"
        assert left() == 35, "this worker's alone"
        # Too many: the oldest of this worker.
        assert [purge(f"mantle.purge_oldest_requests({excess}, 8)") for excess in (10, 2, 0)] == [8, 2, 0]
        oldest = spread.coordinator.execute(
            "SELECT min(created) < now() - interval '19.5 hours' FROM mantle.requests WHERE pid = %s", (hot,)
        )
        assert left() == 25 and oldest.fetchone() == (True,)
        # For ids that may have been among them, on the node of the directory, whichever node is asked.
        for session in (worker, spread.coordinator):
            codes = []
            for age in ("22 hours", "19 hours"):
                request = uuid.UUID(str(session.execute(MADE_AT, (age,)).fetchone()[0]))
                given = {"ns": spread.ns, "pid": hot, "id": spread.new_id(), "request": request}
                with session.transaction(force_rollback=True):
                    codes.append(session.execute(MKDIR, given).fetchone()[0])
            assert codes == ["MT021", None]
        for table, column, where in (
            ("rename_attempts", "ns", "created < now()"),
            ("operations", "pid", "state = ''done''"),
        ):
            assert purge(f"mantle.purge('{table}', '{column}', '{where}', 8)") == 0
