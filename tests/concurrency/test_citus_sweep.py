"""The sweeper's question on several nodes: the bytes of an object are in use also while the object moves (P51)."""

from contextlib import closing, suppress
from itertools import cycle

import psycopg
import pytest

from stack import citus
from stack.poll import wait_until

from .distributed import SpreadNamespace, distributed_target
from .tree import Op

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

BOUND_S = 30.0
LOOKS = 400
MOVERS = 3
ORPHAN = "objects/00/orphan"
# A transaction without a session that holds the latch of moves.
_HELD_BY_PREPARED = "SELECT count(*) FROM mantle.latches WHERE class = 'moves' AND backend IS NULL"
_WAITS_FOR_MOVES = "SELECT count(*) FROM mantle.latches WHERE class = 'moves' AND NOT granted"


@pytest.fixture(scope="module")
def target(citus_cluster):
    with distributed_target(citus_cluster, "mantle_sweep") as target:
        yield target


def ends(spread: SpreadNamespace) -> tuple[int, int]:
    """A directory on each node."""
    return spread.by_worker[0][0], spread.by_worker[1][0]


def put(spread: SpreadNamespace, name: str) -> str:
    """Makes an object in the first directory, and answers its locator."""
    locator = f"objects/00/{spread.ns}-{name}"
    op = Op("put_object", ends(spread)[0], name, spread.new_id(), locator=locator)
    assert spread.call(spread.coordinator, op).code is None
    return locator


def rename(spread: SpreadNamespace, session: psycopg.Connection, name: str, source: int, destination: int):
    op = Op("rename_object", source, name, dst_pid=destination, dst_name=name)
    return spread.call(session, op)


def unused(session: psycopg.Connection, *locators: str) -> list[str]:
    rows = session.execute("SELECT * FROM mantle.unused_locators(%s)", (list(locators),)).fetchall()
    return [row[0] for row in rows]


def test_bytes_without_an_object_are_found(spread):
    locator = put(spread, "kept")
    assert unused(spread.coordinator, locator, ORPHAN) == [ORPHAN]


def test_an_object_that_has_left_and_has_not_arrived_is_in_use(target, spread):
    """As if the move's part on the first node had been committed, and that on the other not yet."""
    locator, (source, destination) = put(spread, "between"), ends(spread)
    leaving, arriving = spread.sessions
    row = leaving.execute(
        "SELECT m::text FROM mantle.meta m WHERE m.pid = %s AND m.name = 'between'", (source,)
    ).fetchone()[0]
    arrived = leaving.execute(
        "SELECT jsonb_populate_record(%s::mantle.meta, jsonb_build_object('pid', %s::bigint))::text", (row, destination)
    ).fetchone()[0]
    with arriving.transaction():
        arriving.execute("SELECT mantle.insert_entry_delegated(%s, %s, NULL, NULL, 0)", (destination, arrived))
        leaving.execute("SELECT mantle.remove_entry_delegated(%s, %s, NULL, 0)", (source, row))
        # What the sweeper would remove: nothing, because the question is refused.
        with pytest.raises(psycopg.errors.LockNotAvailable):
            assert unused(spread.coordinator, locator) == []
    assert unused(spread.coordinator, locator) == []


def test_a_part_that_is_only_prepared_is_waited_for(citus_cluster, target, spread, later):
    """One part is prepared on the other worker, and the session's own waits for an absent standby."""
    put(spread, "prepared")
    source, destination = ends(spread)
    with (
        closing(psycopg.connect(**target.all[2], autocommit=True)) as other,
        citus_cluster.servers[1].without_standby(),
    ):
        moving = later(rename, spread, spread.sessions[0], "prepared", source, destination)
        wait_until(lambda: moving.done() or other.execute(_HELD_BY_PREPARED).fetchone()[0], "a half", BOUND_S)
        assert not moving.done()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            unused(spread.coordinator, ORPHAN)
    assert moving.result(BOUND_S).code is None
    assert unused(spread.coordinator, ORPHAN) == [ORPHAN]


def test_an_object_that_moves_all_the_time_is_in_use(target, spread, later):
    """Two looks that both follow a move of their own would miss it, however long the second waits."""
    names = [f"hopping{n}" for n in range(MOVERS)]
    locators = [put(spread, name) for name in names]
    looks = 0

    def hop(name: str) -> int:
        moves = 0
        with closing(target.connect()) as session:
            ways = cycle([ends(spread), ends(spread)[::-1]])
            while looks < LOOKS:
                assert rename(spread, session, name, *next(ways)).code is None
                moves += 1
        return moves

    moving = [later(hop, name) for name in names]
    missed = []
    try:
        for _ in range(LOOKS):
            with suppress(psycopg.errors.LockNotAvailable):
                missed += unused(spread.coordinator, *locators)
            looks += 1
    finally:
        looks = LOOKS
    assert min(mover.result(BOUND_S) for mover in moving) > 0
    assert missed == []


def test_only_moves_wait_for_the_sweeper(target, spread, later):
    put(spread, "waits")
    source, destination = ends(spread)
    with closing(psycopg.connect(**target.all[2], autocommit=True)) as other:
        with target.coordinator() as sweeper, sweeper.transaction():
            assert unused(sweeper, ORPHAN) == [ORPHAN]
            moving = later(rename, spread, spread.sessions[0], "waits", source, destination)
            wait_until(lambda: moving.done() or other.execute(_WAITS_FOR_MOVES).fetchone()[0], "a move", BOUND_S)
            assert not moving.done(), "it did not wait"
            put(spread, "does-not-wait")
        assert moving.result(BOUND_S).code is None
