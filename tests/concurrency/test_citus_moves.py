"""Shards move during calls: histories under moves and while a worker joins, and calls held between two steps while the
directories they read leave. Each verb overtaken by a move of its shard: test_citus_overtaken.py.
"""

import random
import threading
import uuid

import psycopg
import pytest

from stack import citus
from stack.poll import wait_until
from tests.support import broken_steps
from tests.support.sql_wrappers import wrap

from . import distributed, failpoints, state, verbs
from .distributed import PLACEMENTS, CitusTarget, SpreadNamespace, distributed_target, move
from .random_histories import ELEMENTS_ON_CITUS, SEED, assert_sound, one_history
from .shard_moves import ALL_READ, MOVE_BOUND_S, shard_moves_during
from .tree import Op
from .verbs import Key

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")


class Mover:
    """Moves shards back and forth while a load runs."""

    def __init__(self, target: CitusTarget):
        self.target, self.moves = target, 0

    def __call__(self, load) -> None:
        choose = random.Random(load.seed)
        with self.target.coordinator() as coordinator:
            nodes = [(node["host"], int(node["port"])) for node in self.target.all[1:]]
            for _ in range(3):
                shard, *source = choose.choice(coordinator.execute(PLACEMENTS).fetchall())
                to = next(node for node in nodes if node != tuple(source))
                # The remains of a move prevent the move back; readers may still hold them.
                coordinator.execute("CALL citus_cleanup_orphaned_resources()")
                try:
                    move(coordinator, shard, tuple(source), to, choose.choice(("force_logical", "block_writes")))
                    self.moves += 1
                except psycopg.errors.InternalError_ as error:
                    if "orphaned" not in str(error):
                        raise


@pytest.mark.timeout(240)
def test_histories_are_sound_while_shards_move(citus_cluster):
    with distributed_target(citus_cluster, "mantle_moving") as target:
        target.moved_codes = distributed.MOVED_CODES
        mover = Mover(target)
        assert_sound(target, mover)
        assert mover.moves > 0


@pytest.mark.timeout(240)
def test_a_worker_joins_under_load(citus_cluster):
    """It gets half of the shards, and no client notices."""

    def join(_load) -> None:
        with target.coordinator() as coordinator:
            node = citus_cluster.parameters[2]
            coordinator.execute("SELECT citus_add_node(%s, %s)", (node["host"], int(node["port"])))
            coordinator.execute("SELECT rebalance_table_shards(shard_transfer_mode => 'force_logical')")

    with distributed_target(citus_cluster, "mantle_joining", workers=1) as target:
        target.moved_codes = distributed.MOVED_CODES
        _, problems = one_history(target, SEED, 3 * ELEMENTS_ON_CITUS, join)
        assert problems == [], f"MANTLE_PROPERTY_SEED={SEED}"
        with target.coordinator() as coordinator:
            assert len({tuple(place) for _, *place in coordinator.execute(PLACEMENTS).fetchall()}) == 2
            assert (
                coordinator.execute(
                    "SELECT count(*) FROM mantle.check_cluster()"
                    " WHERE problem NOT IN ('slot', 'worker', 'open_namespace')"
                ).fetchone()[0]
                == 0
            )


# Citus' lock on a shard's place: shared by those who change the shard, exclusive for its move.
PLACE_LOCKS = "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 8"
IS_MOVE_WAITING = f"{PLACE_LOCKS} AND NOT granted"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("verb", ["put_object", "mkdir"])
def test_a_move_waits_for_a_change_under_way(citus_cluster, verb):
    """New entries are written to the shard directly, without Citus: under its lock, or a move would lose them."""
    with distributed_target(citus_cluster, f"mantle_kept_{verb}") as target:
        spread = SpreadNamespace(target)
        pid, session, id = spread.by_worker[0][0], spread.sessions[0], spread.new_id()
        op = (
            Op("mkdir", pid, "late/", id, explicit=True)
            if verb == "mkdir"
            else Op("put_object", pid, "late", id, size=1, mode=420)
        )
        ends = [(node["host"], int(node["port"])) for node in target.all[1:]]
        failures = []

        def move_away() -> None:
            try:
                move(spread.coordinator, spread.shard_of(pid), ends[0], ends[1], "block_writes")
            except psycopg.Error as error:
                failures.append(error)

        moving = threading.Thread(target=move_away)
        with psycopg.connect(**target.all[1], autocommit=True) as watch:
            session.execute("BEGIN")
            try:
                assert spread.call(session, op).code is None
                moving.start()
                wait_until(
                    lambda: not moving.is_alive() or watch.execute(IS_MOVE_WAITING).fetchone() == (True,),
                    "the move to wait",
                    MOVE_BOUND_S,
                )
                assert moving.is_alive(), "the shard has moved away from under the call"
            finally:
                session.execute("COMMIT")
                moving.join()
        assert failures == []
        assert spread.worker_of(pid) == 1
        found = spread.coordinator.execute(
            "SELECT id FROM mantle.meta WHERE pid = %s AND name = %s", (pid, op.name)
        ).fetchall()
        assert found == [(id,)], "it went along"
        assert state.damage(spread.coordinator) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
def test_a_directory_that_is_filled_where_it_went_is_not_removed(citus_cluster, checked):
    """The directory is latched and found empty on one node. It moves, and an object is created where nothing is
    latched. Each part of the removal finds its shard where it writes. The session that sent the parts knows that the
    directory was not latched there (P14).
    """
    with distributed_target(citus_cluster, f"mantle_filled_{'' if checked else 'un'}checked") as target:
        spread = SpreadNamespace(target)
        if not checked:
            target.on_all_nodes(
                lambda connection: broken_steps.break_steps(connection, broken_steps.NO_PLACEMENTS_CHECK)
            )
        target.on_all_nodes(failpoints.install_steps)
        target.on_all_nodes(
            lambda connection: wrap(
                connection, "lease_fault", "ALL_READ", before=f"PERFORM failpoint.reach('{ALL_READ}');"
            )
        )
        here = spread.worker_of(spread.ns)
        victim = spread.by_worker[1 - here][0]
        session, op, key = spread.sessions[here], Op("rmdir", spread.ns, spread.name(victim), victim), Key(uuid.uuid4())
        with shard_moves_during(target, spread, (session, op, key), ALL_READ, victim) as outcome:
            other = psycopg.connect(**target.all[1 + here], autocommit=True)
            id = spread.new_id()
            assert spread.call(other, Op("put_object", victim, "o", id, size=1, mode=420, etag="e")).code is None
        assert outcome == (["MT043"] if checked else [None])
        assert (state.damage(spread.coordinator) == []) == checked
        if checked:
            assert spread.call(session, op, key).code == "MT017"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("verb", ["put_object", "delete_object", "mkdir", "rmdir", "set_attributes"])
def test_no_move_is_the_victim_of_a_deadlock(citus_cluster, verb):
    """A batch waits for a latch on one node, whose holder then writes on another, into a shard that moves. If the batch
    had written there before, the move would wait for it, the holder behind the move, and the batch for the holder.
    Citus ends the youngest, the move (P12).
    """
    with distributed_target(citus_cluster, f"mantle_victim_{verb}") as target:
        spread = SpreadNamespace(target)
        target.on_all_nodes(failpoints.install_steps)
        target.on_all_nodes(
            lambda connection: wrap(
                connection, "lease_fault", "ALL_READ", before=f"PERFORM failpoint.reach('{ALL_READ}');"
            )
        )
        # The batch goes by pid, so that it comes to the shard that moves first.
        here = min((0, 1), key=lambda worker: spread.by_worker[worker][0])
        first, second = spread.by_worker[here][0], spread.by_worker[1 - here][-1]
        below, object_id = spread.new_id(), spread.new_id()
        assert spread.call(spread.coordinator, Op("mkdir", first, "b/", below, explicit=True)).code is None
        for pid, name, id in [(second, "x", object_id), (first, "w", spread.new_id())]:
            put = Op("put_object", pid, name, id, size=1, mode=420, etag="e")
            assert spread.call(spread.coordinator, put).code is None
        batch = {
            "put_object": [
                Op("put_object", first, "w", spread.new_id(), size=2, mode=420, etag="f"),
                Op("put_object", second, "x", spread.new_id(), size=2, mode=420, etag="f"),
            ],
            "delete_object": [Op("delete_object", first, "w"), Op("delete_object", second, "x")],
            "mkdir": [
                Op("mkdir", first, "c/", spread.new_id(), explicit=True),
                Op("mkdir", second, "x/", spread.new_id(), explicit=True),
            ],
            "rmdir": [Op("rmdir", first, "b/", below), Op("rmdir", second, "x/", spread.new_id())],
            "set_attributes": [
                Op("set_attributes", first, "b/", below, mode=448),
                Op("set_attributes", second, "x", object_id, mode=384),
            ],
        }[verb]
        holder = Op("rename_object", second, "x", dst_pid=first, dst_name="y")
        sessions = [target.coordinator() for _ in range(3)]
        outcomes: dict[str, object] = {}

        def run(name: str, work) -> threading.Thread:
            def body() -> None:
                try:
                    outcomes[name] = work()
                except psycopg.Error as error:
                    outcomes[name] = error

            thread = threading.Thread(target=body)
            thread.start()
            return thread

        ends = [(node["host"], int(node["port"])) for node in target.all[1:]]
        shard = spread.shard_of(first)
        gate = failpoints.Gate(target.coordinator())
        watches = [psycopg.connect(**node, autocommit=True) for node in target.all[1:]]
        with gate.closed():
            failpoints.arm(sessions[0], ALL_READ)
            threads = [run("holder", lambda: spread.call(sessions[0], holder))]
            gate.await_held(sessions[0].info.backend_pid, lambda: not threads[0].is_alive(), "the holder")
            keys = [Key(uuid.uuid4()) for _ in batch]
            threads.append(run("batch", lambda: verbs.call(sessions[1], spread.ns, batch, keys)))
            waits = "SELECT EXISTS (SELECT FROM mantle.latches WHERE NOT granted)"
            wait_until(
                lambda: watches[1 - here].execute(waits).fetchone() == (True,),
                "the batch to wait for a latch",
                MOVE_BOUND_S,
            )
            assert watches[here].execute(PLACE_LOCKS).fetchone() == (False,), "it has written before it waits"
            threads.append(run("move", lambda: move(sessions[2], shard, ends[here], ends[1 - here], "block_writes")))
            wait_until(
                lambda: "move" in outcomes or watches[here].execute(IS_MOVE_WAITING).fetchone() == (True,),
                "the move to wait, or to end",
                MOVE_BOUND_S,
            )
        for thread in threads:
            thread.join(MOVE_BOUND_S)
        assert not any(isinstance(outcome, psycopg.errors.DeadlockDetected) for outcome in outcomes.values())
        assert outcomes["move"] is None and spread.worker_of(first) == 1 - here
        assert state.damage(spread.coordinator) == []
