"""Bytes in volumes: the fence of a segment (P59), freed rows (P60), and what a scan must not miss (P61).

The paused gateway is a session that is held at a failpoint. The other one takes its segment over.
"""

import uuid
from concurrent.futures import Future
from contextlib import closing, contextmanager
from itertools import count

import psycopg
import pytest

from stack.poll import wait_until
from tests.support import broken_steps

from . import copies, failpoints, verbs
from .restores import back_up, restorable_server, restore
from .target import PlainTarget, fresh_target
from .tree import Op
from .verbs import Answer, Key
from .volumes import Volume, locators, put

BOUND_S = 30.0
WAITS = "SELECT count(*) FROM mantle.latches WHERE class = 'segment' AND NOT granted AND exclusive"


class Fenced:
    """A namespace, a volume with a leased segment, and the gate at which a put is held."""

    def __init__(self, target: PlainTarget):
        self.target = target
        self.watcher = target.connect()
        self.gate = failpoints.Gate(target.connect())
        self.ns = verbs.create_namespace(self.watcher, f"volumes-{uuid.uuid4().hex[:12]}")
        self.ids = count(verbs.allocate_ids(self.watcher, 10_000))
        self.volume = Volume(target.connect())
        self.segment, self.epoch = self.volume.new_segment()

    def put(self, session: psycopg.Connection, name: str) -> tuple[str, Answer]:
        locator = self.volume.locator(self.segment, self.epoch)
        return locator, put(session, self.ns, self.ns, name, next(self.ids), locator)

    def close(self) -> None:
        for connection in (self.watcher, self.gate.connection, self.volume.session):
            connection.close()


@contextmanager
def fenced(target: PlainTarget):
    made = Fenced(target)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def target(make_target):
    target = make_target("volumes")
    target.on_all_nodes(failpoints.install)
    return target


@pytest.fixture(scope="module")
def without_latch(make_target):
    target = make_target("volumes_broken")
    target.on_all_nodes(lambda connection: broken_steps.break_steps(connection, broken_steps.NO_SEGMENT_LATCH))
    target.on_all_nodes(failpoints.install)
    return target


def held(at: Fenced, session: psycopg.Connection, name: str, point: str, later) -> Future:
    """A put that stands still at a failpoint, for as long as the gate is closed."""
    failpoints.arm(session, point)
    putting = later(at.put, session, name)
    at.gate.await_held(session.info.backend_pid, putting.done, f"a put at {point}")
    return putting


# On the fast path and on the fallback, which the second put of a name takes.
NAMES = pytest.mark.parametrize("puts_before", [0, 1], ids=["new", "over another"])


@NAMES
def test_a_put_that_stands_still_before_its_latch_is_refused(target, later, puts_before):
    with fenced(target) as at, closing(target.connect()) as session:
        before = {at.put(session, "o")[0] for _ in range(puts_before)}
        with at.gate.closed():
            putting = held(at, session, "o", failpoints.BEFORE_LATCHES, later)
            at.volume.mount()
            epoch = at.volume.take_over(at.segment)
            at.volume.admit(at.segment, epoch)
            assert at.volume.scan(at.segment, epoch) == before
        _, answer = putting.result(BOUND_S)
        assert answer.code == "MT048"
        assert at.volume.scan(at.segment, epoch) == before == locators(at.watcher, at.ns)


def taken_over_meanwhile(at: Fenced, putting: Future, let_go, later) -> tuple[bool, set[str]]:
    """Another gateway takes the segment over while a put is under way. Whether it waited, and what it finds."""
    at.volume.mount()
    epoch = at.volume.take_over(at.segment)
    with closing(at.target.connect()) as taker:
        admitting = later(at.volume.admit, at.segment, epoch, taker)
        wait_until(
            lambda: admitting.done() or at.watcher.execute(WAITS).fetchone()[0], "the take-over to end or wait", BOUND_S
        )
        waited = not admitting.done()
        found = at.volume.scan(at.segment, epoch) if not waited else set()
        let_go()
        putting.result(BOUND_S)
        admitting.result(BOUND_S)
    return waited, found if not waited else at.volume.scan(at.segment, epoch)


@NAMES
@pytest.mark.parametrize("point", [failpoints.BEFORE_CLAIM, failpoints.BEFORE_COUNTS])
def test_a_put_that_stands_still_before_its_commit_is_waited_for_and_seen(target, later, point, puts_before):
    with fenced(target) as at, closing(target.connect()) as session:
        waited, found, named = _race(at, session, point, puts_before, later)
        assert waited
        assert named <= found, "a row names bytes that the taker does not know"


@pytest.mark.parametrize("point", [failpoints.BEFORE_CLAIM, failpoints.BEFORE_COUNTS])
def test_a_missing_latch_is_noticed(without_latch, later, point):
    """Without the shared latch the taker passes by, and the put commits afterwards."""
    with fenced(without_latch) as at, closing(without_latch.connect()) as session:
        waited, found, named = _race(at, session, point, 0, later)
        assert not waited
        assert not named <= found


def _race(at: Fenced, session: psycopg.Connection, point: str, puts_before: int, later):
    for _ in range(puts_before):
        assert at.put(session, "o")[1].code is None
    at.gate.close()
    is_closed = True

    def let_go() -> None:
        nonlocal is_closed
        at.gate.open()
        is_closed = False

    try:
        putting = held(at, session, "o", point, later)
        waited, found = taken_over_meanwhile(at, putting, let_go, later)
    finally:
        if is_closed:
            at.gate.open()
    assert putting.result(BOUND_S)[1].code is None
    return waited, found, locators(at.watcher, at.ns)


def test_a_transaction_that_stays_open_is_waited_for(target, later):
    """With a put in it that has ended. Who waits in vain changes nothing, and may try again."""
    with fenced(target) as at, closing(target.connect()) as session, closing(target.connect()) as taker:
        session.execute("BEGIN")
        locator, answer = at.put(session, "o")
        assert answer.code is None
        at.volume.mount()
        epoch = at.volume.take_over(at.segment)
        # mantle.admit_segments has a bound of its own, which the failpoints lift.
        taker.execute("BEGIN; SET LOCAL lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            taker.execute(
                "SELECT mantle.latch_volume_segments(%s, ARRAY[%s::int], true)", (at.volume.number, at.segment)
            )
        taker.execute("ROLLBACK")
        with pytest.raises(psycopg.errors.DatabaseError) as refused:
            at.volume.scan(at.segment, epoch)
        assert refused.value.sqlstate == "MT048"
        session.execute("COMMIT")
        at.volume.admit(at.segment, epoch)
        assert at.volume.scan(at.segment, epoch) == {locator}


def delete(at: Fenced, session: psycopg.Connection, name: str) -> None:
    assert copies.delete(session, at.ns, at.ns, name) == (None, None)


def test_nothing_is_taken_before_it_is_durable(make_target, server, later):
    """The horizon was taken before the standby was demanded; without its flush nobody knows what a failover keeps."""
    target = make_target("volumes_durable")
    with fenced(target) as at, closing(target.connect()) as session:
        locator, _ = at.put(session, "o")
        delete(at, session, "o")
        (node,) = at.volume.nodes()
        assert at.volume.take(node) == []
        with server.without_standby():
            horizon = at.volume.horizons[node]
            assert at.volume.take(node) == []
            assert at.volume.horizons[node] == horizon
        wait_until(
            lambda: at.watcher.execute("SELECT NOT required FROM mantle.standby_flush()").fetchone()[0],
            "the end of the demand", BOUND_S,
        )  # fmt: skip
        assert at.volume.take(node) == [locator]


DELETES = 60


def test_what_is_freed_is_taken_once(target, later):
    """By several sessions of one mount at once, which no gateway has, while more is freed."""
    with fenced(target) as at:
        (node,) = at.volume.nodes()
        made: set[str] = set()
        is_over = False

        def free() -> None:
            with closing(target.connect()) as session:
                for number in range(DELETES):
                    made.add(at.put(session, f"o{number}")[0])
                    delete(at, session, f"o{number}")

        def take() -> list[str]:
            taken: list[str] = []
            with closing(target.connect()) as session:
                while not is_over:
                    taken += at.volume.take(node, session, limit=3)
            return taken

        taking = [later(take) for _ in range(3)]
        try:
            later(free).result(BOUND_S)
            left = "SELECT count(*) FROM mantle.freed WHERE volume = %s"
            wait_until(
                lambda: at.watcher.execute(left, (at.volume.number,)).fetchone() == (0,), "all to be taken", BOUND_S
            )
        finally:
            is_over = True
        taken = [locator for one in taking for locator in one.result(BOUND_S)]
        assert sorted(taken) == sorted(made)


ROUNDS = 60


def test_what_moves_is_in_the_scan(target, later):
    """Objects that are renamed, copied and deleted all the time are in every scan, page by page."""
    with fenced(target) as at, closing(target.connect()) as session:
        directory = next(at.ids)
        assert verbs.call_one(session, at.ns, Op("mkdir", at.ns, "d/", directory), Key(uuid.uuid4())).code is None
        kept = {at.put(session, f"o{number}")[0] for number in range(7)}
        rounds = 0

        def move(number: int) -> int:
            moves = 0
            ways = ((at.ns, directory), (directory, at.ns))
            with closing(target.connect()) as mover:
                while rounds < ROUNDS:
                    source, to = ways[moves % 2]
                    op = Op("rename_object", source, f"o{number}", dst_pid=to, dst_name=f"o{number}")
                    assert verbs.call_one(mover, at.ns, op, Key(uuid.uuid4())).code is None
                    moves += 1
            return moves

        def hop(number: int) -> int:
            hops = 0
            with closing(target.connect()) as copier:
                while rounds < ROUNDS:
                    here, there = f"o{number}" + "-" * (hops % 2), f"o{number}" + "-" * ((hops + 1) % 2)
                    copied = copies.copy(copier, at.ns, (at.ns, here), (at.ns, there), next(at.ids))
                    assert copied.code is None
                    assert copies.delete(copier, at.ns, at.ns, here)[0] is None
                    hops += 1
            return hops

        working = [later(move, 1), later(move, 2), later(hop, 3), later(hop, 4)]
        missed: list[set[str]] = []
        try:
            for _ in range(ROUNDS):
                missed.append(kept - at.volume.scan(at.segment, at.epoch, page=2))
                rounds += 1
        finally:
            rounds = ROUNDS
        assert min(work.result(BOUND_S) for work in working) > 0
        assert not any(missed)


def test_a_restore_ends_leases_and_admissions(tmp_path):
    """Epochs of the history that was undone are never given again, and none that the backup has counts any more."""
    with restorable_server() as server, fresh_target(server.parameters, "mantle_volumes_restored") as target:
        with fenced(target) as at:
            kept, _ = at.put(at.watcher, "kept")
        back_up(server, tmp_path / "backup")
        with closing(target.connect_when_up()) as session:
            at.volume.mount(session)
            undone = at.volume.take_over(at.segment)
            at.volume.admit(at.segment, undone)
            ((later_segment, later_epoch, _),) = at.volume.lease()
            at.volume.admit(later_segment, later_epoch)
            lost = at.volume.locator(later_segment, later_epoch)
            assert put(session, at.ns, at.ns, "lost", next(at.ids), lost).code is None
        restore(server, tmp_path / "backup")
        with closing(target.connect_when_up()) as session:
            at.volume.session = session
            for epoch in (at.epoch, undone):
                locator = at.volume.locator(at.segment, epoch)
                assert put(session, at.ns, at.ns, "o", next(at.ids), locator).code == "MT048"
            with pytest.raises(psycopg.errors.DatabaseError) as refused:
                at.volume.take_over(at.segment)
            assert refused.value.sqlstate == "MT059"
            at.volume.record()
            epoch = at.volume.take_over(at.segment)
            assert epoch > max(at.epoch, undone)
            with pytest.raises(psycopg.errors.DatabaseError) as refused:
                at.volume.scan(at.segment, epoch)
            assert refused.value.sqlstate == "MT048"
            at.volume.admit(at.segment, epoch)
            assert at.volume.scan(at.segment, epoch) == {kept}
            assert at.volume.lease() == [], "who knows which segments were used"
            ((segment, epoch, was_used),) = at.volume.lease(unused_only=False)
            assert was_used and (segment, epoch) != (later_segment, later_epoch)
            assert epoch > later_epoch
