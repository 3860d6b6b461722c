"""New entries are written to the shards directly, without Citus. The write must do what Citus' own INSERT does: use a
valid shard map, take the same locks, and tell Citus of the change.
"""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from stack import citus
from stack.poll import wait_until

from . import state
from .distributed import CitusTarget, SpreadNamespace, distributed_target, move
from .shard_moves import MOVE_BOUND_S
from .tree import Op

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")


@pytest.fixture(scope="module")
def database(citus_cluster):
    """For tests that do not move shards."""
    with distributed_target(citus_cluster, "mantle_direct") as target:
        yield target


@pytest.fixture(scope="module")
def spread(database) -> SpreadNamespace:
    return SpreadNamespace(database)


def new_entry(spread: SpreadNamespace, verb: str, pid: int) -> Op:
    id = spread.new_id()
    if verb == "mkdir":
        return Op("mkdir", pid, f"m{id}/", id, explicit=True)
    return Op("put_object", pid, f"o{id}", id, size=5, mode=420, etag="e")


def ids_of(spread: SpreadNamespace, *ops: Op) -> list[int]:
    """The ids in a directory, as Citus sees them."""
    found = spread.coordinator.execute("SELECT id FROM mantle.meta WHERE id = ANY (%s)", ([op.id for op in ops],))
    return sorted(id for (id,) in found.fetchall())


def ends(target: CitusTarget) -> list[tuple[str, int]]:
    return [(node["host"], int(node["port"])) for node in target.all[1:]]


READS = {
    "is_distributed": "SELECT mantle.is_distributed()",
    "list_tree": "SELECT count(*) FROM mantle.list_tree(%(ns)s, %(pid)s, '', NULL, 10, '0')",
    "is_local": "SELECT mantle.is_local(ARRAY[%(pid)s::bigint])",
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("first", ["put_object", *READS])
def test_an_old_snapshot_makes_no_map(citus_cluster, first):
    """A transaction whose snapshot is older than a move asks where shards are. Its session must not use that answer
    later.
    """
    with distributed_target(citus_cluster, f"mantle_old_{first}") as target:
        spread = SpreadNamespace(target)
        pid = spread.by_worker[0][0]
        session = psycopg.connect(**target.all[1], autocommit=True)
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM pg_class")
        move(spread.coordinator, spread.shard_of(pid), *ends(target), "block_writes")
        # It learns of the move before it has a map.
        session.execute("SELECT count(*) FROM pg_class")
        if first == "put_object":
            with pytest.raises(psycopg.Error) as refused:
                spread.call(session, new_entry(spread, "put_object", pid))
            assert refused.value.sqlstate == "MT041"
        else:
            try:
                session.execute(READS[first], {"ns": spread.ns, "pid": pid})
            except psycopg.errors.SyntaxErrorOrAccessRuleViolation:
                raise
            except psycopg.Error:
                pass  # a read may fail then: its shard is not where its snapshot says
        session.execute("ROLLBACK")
        new = new_entry(spread, "put_object", pid)
        assert spread.call(session, new).code is None
        assert ids_of(spread, new) == [new.id]
        assert state.damage(spread.coordinator) == []


@pytest.mark.parametrize("table", ["meta", "requests"])
@pytest.mark.parametrize("verb", ["put_object", "mkdir"])
def test_a_lock_of_the_table_holds_changes_off(spread, verb, table):
    """As for a statement: LOCK TABLE, and the conversion of a distributed table, know the logical table only. Citus
    locks it on every node, and reports no more than that when one refuses.
    """
    session, lock = spread.sessions[0], f"LOCK TABLE mantle.{table} IN SHARE MODE NOWAIT"
    with session.transaction():
        assert spread.call(session, new_entry(spread, verb, spread.by_worker[0][0])).code is None
        with pytest.raises(psycopg.errors.InternalError_, match="essential"), spread.coordinator.transaction():
            spread.coordinator.execute(lock)
    with spread.coordinator.transaction():
        spread.coordinator.execute(lock)


def is_waiting_for_shard(watch: psycopg.Connection) -> bool:
    """Checks that a session waits for the lock under which Citus moves shards."""
    return (
        watch.execute("SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 8 AND NOT granted").fetchone()
        is not None
    )


@contextmanager
def held_before_copying(watch: psycopg.Connection, node: dict[str, str], work: threading.Thread) -> Iterator[None]:
    """Holds a copy by logical replication to this node where it makes its subscriptions: its slots exist, it has waited
    for open transactions, and no row is copied.
    """
    with psycopg.connect(**node) as gate:
        gate.execute("LOCK TABLE pg_catalog.pg_subscription IN SHARE MODE")
        work.start()
        waiting = "SELECT FROM pg_locks WHERE relation = 'pg_catalog.pg_subscription'::regclass AND NOT granted"
        with psycopg.connect(**node, autocommit=True) as other:
            wait_until(
                lambda: not work.is_alive() or other.execute(waiting).fetchone() is not None,
                "the copy to begin",
                MOVE_BOUND_S,
            )
        yield


def split(spread: SpreadNamespace, pid: int, worker: int, mode: str) -> None:
    """Splits the shard of a directory into two on the same node."""
    shard = spread.shard_of(pid)
    least, most = spread.coordinator.execute(
        "SELECT shardminvalue::bigint, shardmaxvalue::bigint FROM pg_dist_shard WHERE shardid = %s", (shard,)
    ).fetchone()
    node = spread.coordinator.execute(
        "SELECT nodeid FROM pg_dist_node WHERE nodeport = %s", (int(spread.target.all[worker + 1]["port"]),)
    ).fetchone()[0]
    spread.coordinator.execute(
        "SELECT citus_split_shard_by_split_points(%s, ARRAY[%s::text], ARRAY[%s, %s], %s::citus.shard_transfer_mode)",
        (shard, (least + most) // 2, node, node, mode),
    )


PLUGINS = "output_plugin_libraries"


@contextmanager
def splits_by_replication(node: dict[str, str]) -> Iterator[None]:
    """Newer minor versions of PostgreSQL ask which libraries may decode. An online split decodes with a library of
    Citus.
    """
    with psycopg.connect(**node, autocommit=True) as connection:
        before = connection.execute("SELECT current_setting(%s, true)", (PLUGINS,)).fetchone()[0]
        if before is None:
            yield
            return

        def set_to(value: str) -> None:
            connection.execute(f"ALTER SYSTEM SET {PLUGINS} = {value}")
            connection.execute("SELECT pg_reload_conf()")
            wait_until(
                lambda: ("citus" in connection.execute(f"SHOW {PLUGINS}").fetchone()[0]) == ("citus" in value),
                PLUGINS,
                30.0,
            )

        set_to(f"{before}, citus" if before else "citus")
        try:
            yield
        finally:
            set_to("DEFAULT")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", ["force_logical", "block_writes"])
@pytest.mark.parametrize("kind", ["move", "split"])
def test_a_change_under_way_is_waited_for(citus_cluster, kind, mode):
    """A move or a split of its shard waits for it. An online one waits at its end, before it switches over."""
    with (
        distributed_target(citus_cluster, f"mantle_waits_{kind}_{mode}") as target,
        splits_by_replication(target.all[1]),
    ):
        spread = SpreadNamespace(target)
        pid, session = spread.by_worker[0][0], spread.sessions[0]
        failures = []

        def leave() -> None:
            try:
                if kind == "move":
                    move(spread.coordinator, spread.shard_of(pid), *ends(target), mode)
                else:
                    split(spread, pid, 0, mode)
            except psycopg.Error as error:
                failures.append(error)

        before, change = spread.shard_of(pid), new_entry(spread, "put_object", pid)
        leaving = threading.Thread(target=leave)

        def begin_change() -> None:
            session.execute("BEGIN")
            assert spread.call(session, change).code is None

        with psycopg.connect(**target.all[1], autocommit=True) as watch:
            try:
                if mode == "force_logical":
                    with held_before_copying(watch, target.all[2 if kind == "move" else 1], leaving):
                        begin_change()
                else:
                    begin_change()
                    leaving.start()
                wait_until(lambda: not leaving.is_alive() or is_waiting_for_shard(watch), "it to wait", MOVE_BOUND_S)
                assert leaving.is_alive(), f"it has not waited for the change: {failures}"
            finally:
                session.execute("COMMIT")
                leaving.join()
        assert failures == []
        if kind == "move":
            assert spread.worker_of(pid) == 1
        else:
            assert spread.shard_of(pid) != before
        later = new_entry(spread, "put_object", pid)
        assert spread.call(session, later).code is None
        assert ids_of(spread, change, later) == [change.id, later.id]
        assert state.damage(spread.coordinator) == []


def directory_of_another_shard(spread: SpreadNamespace, worker: int, pid: int) -> int:
    """On the same node."""
    while True:
        id = spread.new_id()
        if spread.worker_of(id) == worker and spread.shard_of(id) != spread.shard_of(pid):
            spread.call(spread.coordinator, Op("mkdir", spread.ns, f"d{id}/", id, explicit=True))
            return id


def shards_kept(spread: SpreadNamespace, session: psycopg.Connection) -> int:
    """The number of shards that a session keeps on their nodes."""
    count = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 8 AND granted AND pid = %s"
    with psycopg.connect(**spread.target.all[1], autocommit=True) as watch:
        return watch.execute(count, (session.info.backend_pid,)).fetchone()[0]


def test_a_change_taken_back_to_a_savepoint_leaves_nothing(spread):
    """No row, count or lock is left. Earlier and later changes of the transaction are unaffected."""
    session, pid = spread.sessions[0], spread.by_worker[0][0]
    other = directory_of_another_shard(spread, 0, pid)
    kept, gone, again, after = (new_entry(spread, "put_object", directory) for directory in (pid, other, pid, other))
    taken_back = new_entry(spread, "mkdir", other)
    with session.transaction():
        assert spread.call(session, kept).code is None
        assert shards_kept(spread, session) == 1
        session.execute("SAVEPOINT here")
        for op in (gone, taken_back, again):
            assert spread.call(session, op).code is None
        assert shards_kept(spread, session) == 2
        session.execute("ROLLBACK TO here")
        assert shards_kept(spread, session) == 1, "the shard of what was taken back may go"
        assert spread.call(session, after).code is None
        assert shards_kept(spread, session) == 2
    assert ids_of(spread, kept, gone, taken_back, again, after) == [kept.id, after.id]
    # The names are free, and so are the request ids.
    assert spread.call(session, gone).code is None
    assert state.damage(spread.coordinator) == []


def test_a_client_cannot_prepare_a_change(spread):
    """As after Citus' own statements: Citus' records would belong to the next transaction, and nothing would end this
    one.
    """
    session = spread.sessions[0]
    change, name = new_entry(spread, "put_object", spread.by_worker[0][0]), uuid.uuid4().hex
    session.execute("BEGIN")
    assert spread.call(session, change).code is None
    try:
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            session.execute(f"PREPARE TRANSACTION '{name}'")
    finally:
        session.execute("ROLLBACK")
        if session.execute("SELECT FROM pg_prepared_xacts WHERE gid = %s", (name,)).fetchone():
            session.execute(f"ROLLBACK PREPARED '{name}'")
    assert ids_of(spread, change) == []
    assert spread.call(session, change).code is None


@pytest.mark.timeout(120)
def test_a_shard_is_not_split_in_the_transaction_of_a_change(citus_cluster):
    """The coordinator, which has shards here, splits them: it would copy them without the change."""
    with distributed_target(citus_cluster, "mantle_split_after") as target:
        spread = SpreadNamespace(target)
        coordinator, pid = spread.coordinator, spread.by_worker[0][0]
        node = target.all[0]
        end = (node["host"], int(node["port"]))
        coordinator.execute("SELECT citus_set_node_property(%s, %s, 'shouldhaveshards', true)", end)
        move(coordinator, spread.shard_of(pid), ends(target)[0], end, "block_writes")
        change = new_entry(spread, "put_object", pid)
        coordinator.execute("SET statement_timeout = '30s'")
        with pytest.raises(psycopg.errors.ActiveSqlTransaction), coordinator.transaction():
            assert spread.call(coordinator, change).code is None
            split(spread, pid, -1, "block_writes")
        assert ids_of(spread, change) == []
        assert spread.call(coordinator, change).code is None
        assert state.damage(coordinator) == []


def cluster_problems(spread: SpreadNamespace) -> set[str]:
    found = spread.coordinator.execute(
        "SELECT problem FROM mantle.check_cluster() WHERE node = 'cluster' AND problem <> 'open_namespace'"
    ).fetchall()
    return {problem for (problem,) in found}


@pytest.mark.timeout(120)
def test_tables_that_may_go_apart_are_left_to_citus(citus_cluster):
    """Shards of the same hash values on the same node that are not colocated: one lock does not keep both there, since
    a move takes the shards of one colocation group.
    """
    with distributed_target(citus_cluster, "mantle_apart") as target:
        spread = SpreadNamespace(target)
        pid, session = spread.by_worker[0][0], spread.sessions[0]
        spread.coordinator.execute(
            "SELECT update_distributed_table_colocation('mantle.requests', colocate_with => 'none')"
        )
        assert cluster_problems(spread) == {"colocation"}
        change = new_entry(spread, "put_object", pid)
        with session.transaction():
            assert spread.call(session, change).code is None
            assert shards_kept(spread, session) == 2
        assert ids_of(spread, change) == [change.id]


SECOND_COPY = """
    INSERT INTO pg_dist_placement (placementid, shardid, shardstate, shardlength, groupid)
    SELECT 1000000000, %s, 1, 0, n.groupid FROM pg_dist_node n WHERE n.nodeport = %s
"""


def test_shards_with_two_copies_are_left_to_citus(spread):
    """Citus writes both copies; here it refuses, as only one shard has two."""
    session, pid = spread.sessions[0], spread.by_worker[0][0]
    second = (spread.shard_of(pid), int(spread.target.all[2]["port"]))
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="replication factor"), session.transaction():
        session.execute(SECOND_COPY, second)
        spread.call(session, new_entry(spread, "put_object", pid))
    assert spread.call(session, new_entry(spread, "put_object", pid)).code is None
    with spread.coordinator.transaction():
        spread.coordinator.execute(SECOND_COPY, second)
        assert "copies" in cluster_problems(spread)
        raise psycopg.Rollback
    assert cluster_problems(spread) == set()
