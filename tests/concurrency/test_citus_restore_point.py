"""A restore point of all nodes: no change of two nodes is before it on one of them and after it on the other, whichever
node began it.
"""

from concurrent.futures import Future

import psycopg
import pytest

from stack import citus
from stack.poll import wait_until

from . import verbs
from .distributed import CitusTarget, SpreadNamespace, distributed_target
from .tree import Op

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

BOUND_S = 30.0
_WAITS = "SELECT count(*) FROM pg_locks WHERE relation = 'mantle.meta'::regclass AND NOT granted AND mode = %s"
# A transaction without a session.
_HELD_BY_PREPARED = (
    "SELECT count(*) FROM pg_locks WHERE relation = 'mantle.meta'::regclass"
    " AND mode = 'RowExclusiveLock' AND pid IS NULL"
)


@pytest.fixture(scope="module")
def target(citus_cluster):
    with distributed_target(citus_cluster, "mantle_restore_point") as target:
        yield target


def rename_across(spread: SpreadNamespace, session: psycopg.Connection, name: str) -> verbs.Answer:
    here, there = spread.by_worker[0][0], spread.by_worker[1][0]
    return spread.call(session, Op("rename_object", here, name, dst_pid=there, dst_name=name))


def made(spread: SpreadNamespace, name: str) -> None:
    op = Op("put_object", spread.by_worker[0][0], name, spread.new_id())
    assert spread.call(spread.coordinator, op).code is None


def is_waiting(target: CitusTarget, mode: str) -> bool:
    """Checks every node."""
    found = []
    target.on_all_nodes(lambda node: found.append(node.execute(_WAITS, (mode,)).fetchone()[0]))
    return any(found)


def point(target: CitusTarget, name: str) -> str:
    """Called again when it gives up, as administrators do."""
    with target.coordinator() as coordinator:

        def made() -> str | None:
            try:
                return coordinator.execute("SELECT mantle.create_restore_point(%s)::text", (name,)).fetchone()[0]
            except psycopg.errors.LockNotAvailable:
                return None

        return wait_until(made, "a restore point", BOUND_S)


def assert_waits(target: CitusTarget, waiting: Future, mode: str) -> None:
    wait_until(lambda: waiting.done() or is_waiting(target, mode), "somebody to wait", BOUND_S)
    assert not waiting.done(), "it did not wait"


def test_it_waits_for_a_change_that_a_worker_has_begun(target, spread, later):
    made(spread, "begun")
    mover = spread.sessions[0]
    mover.execute("BEGIN")
    assert rename_across(spread, mover, "begun").code is None
    waiting = later(point, target, "after the change")
    assert_waits(target, waiting, "ShareLock")
    mover.execute("COMMIT")
    assert waiting.result(BOUND_S)


def test_it_waits_for_a_prepared_part(citus_cluster, target, spread, later):
    """One part is prepared on the other worker, and the session's own waits for an absent standby."""
    made(spread, "prepared")
    own, other = citus_cluster.servers[1], psycopg.connect(**target.all[2], autocommit=True)
    with own.without_standby():
        moving = later(rename_across, spread, spread.sessions[0], "prepared")
        wait_until(lambda: moving.done() or other.execute(_HELD_BY_PREPARED).fetchone()[0], "a half", BOUND_S)
        assert not moving.done()
        waiting = later(point, target, "after the half")
        assert_waits(target, waiting, "ShareLock")
    assert moving.result(BOUND_S).code is None
    assert waiting.result(BOUND_S)


def test_changes_wait_for_it(target, spread, later):
    made(spread, "late")
    with target.coordinator() as coordinator, coordinator.transaction():
        coordinator.execute("SELECT mantle.create_restore_point('before the change')")
        waiting = later(rename_across, spread, spread.sessions[0], "late")
        assert_waits(target, waiting, "RowExclusiveLock")
    assert waiting.result(BOUND_S).code is None


@pytest.mark.parametrize("number", [0, 1], ids=["coordinator", "worker"])
def test_it_gives_up_soon(target, number):
    """While it waits for a forgotten transaction, every change would wait for it."""
    with psycopg.connect(**target.all[number]) as forgotten, target.coordinator() as coordinator:
        forgotten.execute("LOCK TABLE mantle.meta IN ROW EXCLUSIVE MODE")
        coordinator.execute(f"SET statement_timeout = '{BOUND_S:g}s'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            coordinator.execute("SELECT mantle.create_restore_point('in vain')")
        forgotten.rollback()
        assert coordinator.execute("SHOW lock_timeout").fetchone() == ("0",)
        assert coordinator.execute("SELECT mantle.create_restore_point('at last') IS NOT NULL").fetchone() == (True,)


def test_a_plain_database_has_one_too(make_target):
    with make_target("mantle_restore_point").connect() as session:
        assert session.execute("SELECT mantle.create_restore_point('plain') IS NOT NULL").fetchone()[0]
