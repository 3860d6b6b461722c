"""Copies share the bytes of their source: on several nodes too, no change loses bytes that an object names (P52)."""

import uuid
from contextlib import closing, suppress

import psycopg
import pytest

from stack import citus
from stack.poll import wait_until

from .copies import copy, delete, locator
from .distributed import SpreadNamespace, distributed_target
from .tree import Op

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

BOUND_S = 30.0
LOOKS = 300
ROUNDS = 60
_WAITS = "SELECT count(*) FROM mantle.latches WHERE class = 'name' AND NOT granted"


@pytest.fixture(scope="module")
def target(citus_cluster):
    with distributed_target(citus_cluster, "mantle_copies") as target:
        yield target


def put(spread: SpreadNamespace, pid: int, name: str) -> str:
    at = f"objects/00/{spread.ns}-{name}-{uuid.uuid4()}"
    assert spread.call(spread.coordinator, Op("put_object", pid, name, spread.new_id(), locator=at)).code is None
    return at


@pytest.mark.parametrize("apart", [False, True])
def test_source_and_copy_share_their_bytes(spread, apart):
    source, session = spread.by_worker[0][0], spread.sessions[0]
    destination = spread.by_worker[1][0] if apart else spread.by_worker[0][1]
    at = put(spread, source, "source")
    assert copy(session, spread.ns, (source, "source"), (destination, "copy"), spread.new_id()).code is None
    for place in ((source, "source"), (destination, "copy")):
        assert locator(spread.coordinator, *place) == (at, True)
        # Nobody may remove the bytes at once: the sweeper finds out.
        assert delete(spread.coordinator, spread.ns, *place) == (None, None)


def test_a_replaced_object_leaves_its_own_bytes(spread):
    source, destination = spread.by_worker[0][0], spread.by_worker[1][0]
    put(spread, source, "new")
    old = put(spread, destination, "replaced")
    copied = copy(spread.coordinator, spread.ns, (source, "new"), (destination, "replaced"), spread.new_id())
    assert (copied.code, copied.old_locator) == (None, old)
    again = put(spread, destination, "replaced")
    assert locator(spread.coordinator, destination, "replaced") == (again, None)


def test_a_source_that_was_replaced_is_not_copied(spread):
    source, destination = spread.by_worker[0][0], spread.by_worker[1][0]
    put(spread, source, "changes")
    copied = copy(spread.coordinator, spread.ns, (source, "changes"), (destination, "c"), spread.new_id(), found=(1, 1))
    assert copied.code == "MT026"
    assert locator(spread.coordinator, destination, "c") == (None, None)


def test_the_delete_of_a_source_waits_for_its_copy(target, spread, later):
    source, destination = spread.by_worker[0][0], spread.by_worker[1][0]
    at = put(spread, source, "waited")
    copying = spread.sessions[1]
    with closing(psycopg.connect(**target.all[1], autocommit=True)) as there:
        with copying.transaction():
            assert copy(copying, spread.ns, (source, "waited"), (destination, "c"), spread.new_id()).code is None
            deleting = later(delete, spread.sessions[0], spread.ns, source, "waited")
            wait_until(lambda: deleting.done() or there.execute(_WAITS).fetchone()[0], "the delete", BOUND_S)
            assert not deleting.done(), "it did not wait"
        assert deleting.result(BOUND_S) == (None, None)
    assert locator(spread.coordinator, destination, "c") == (at, True)


def test_copies_and_deletes_at_once(spread, later):
    """Either the copy has the bytes, or the delete's caller may remove them, never both."""
    source, destination = spread.by_worker[0][0], spread.by_worker[1][0]
    for round_ in range(ROUNDS):
        name = f"raced{round_}"
        put(spread, source, name)
        found = spread.coordinator.execute(
            "SELECT m.id, m.version FROM mantle.meta m WHERE m.pid = %s AND m.name = %s AND m.ts = 0", (source, name)
        ).fetchone()
        copied = later(
            copy, spread.sessions[0], spread.ns, (source, name), (destination, name), spread.new_id(), found=found
        )
        deleted = later(delete, spread.sessions[1], spread.ns, source, name)
        has_copy, left = copied.result(BOUND_S).code is None, deleted.result(BOUND_S)[1]
        assert has_copy != (left is not None)


def test_bytes_that_hop_by_copies_are_in_use(target, spread, later):
    """Each copy is followed by the delete of its source. At every moment some object names the bytes."""
    ends = [(spread.by_worker[0][0], "hop"), (spread.by_worker[1][0], "hop")]
    at = put(spread, *ends[0])
    looks = 0

    def hop() -> int:
        moves = 0
        with closing(target.connect()) as session:
            while looks < LOOKS:
                source, destination = ends[moves % 2], ends[(moves + 1) % 2]
                assert copy(session, spread.ns, source, destination, spread.new_id()).code is None
                assert delete(session, spread.ns, *source) == (None, None)
                moves += 1
        return moves

    hopping, missed = later(hop), []
    try:
        for _ in range(LOOKS):
            with suppress(psycopg.errors.LockNotAvailable):
                missed += spread.coordinator.execute("SELECT * FROM mantle.unused_locators(%s)", ([at],)).fetchall()
            looks += 1
    finally:
        looks = LOOKS
    assert hopping.result(BOUND_S) > 0
    assert missed == []
