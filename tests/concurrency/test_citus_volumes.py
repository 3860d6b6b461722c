"""Bytes in volumes on several nodes. Each node fences its own puts (P59) and writes its own freed rows (P60); a scan
reads all nodes (P61)."""

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import cycle

import psycopg
import pytest

from stack import citus
from stack.poll import wait_until

from . import copies, verbs
from .distributed import SpreadNamespace, distributed_target
from .tree import Op
from .verbs import Key
from .volumes import Volume, locators, put

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

BOUND_S = 60.0
SCANS = 100
PREPARED = "SELECT count(*) FROM mantle.latches WHERE class = 'segment' AND backend IS NULL"
WAITS = "SELECT count(*) FROM mantle.latches WHERE class = 'segment' AND NOT granted"
WORKERS = (0, 1)


@pytest.fixture(scope="module")
def target(citus_cluster):
    with distributed_target(citus_cluster, "mantle_volumes") as target:
        yield target


@pytest.fixture
def volume(target) -> Iterator[Volume]:
    with closing(target.coordinator()) as session:
        yield Volume(session)


@contextmanager
def node(target, worker: int) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(**target.all[1 + worker], autocommit=True)) as session:
        yield session


def put_on(spread: SpreadNamespace, session: psycopg.Connection, worker: int, name: str, locator: str) -> str | None:
    return put(session, spread.ns, spread.by_worker[worker][0], name, spread.new_id(), locator).code


def by_worker(spread: SpreadNamespace, volume: Volume) -> list[int]:
    """The partition that stands for each worker."""
    nodes = {spread.worker_of(at): at for at in volume.nodes()}
    return [nodes[worker] for worker in WORKERS]


def refusal(call, *arguments) -> str | None:
    with pytest.raises(psycopg.Error) as refused:
        call(*arguments)
    return refused.value.sqlstate


def test_each_node_is_asked_once(spread, volume):
    assert sorted(spread.worker_of(at) for at in volume.nodes()) == list(WORKERS)


@pytest.mark.parametrize("worker", WORKERS)
def test_a_node_admits_for_itself(spread, volume, worker):
    """A put on a node that has not admitted the epoch is refused, wherever it comes from."""
    ((segment, epoch, _),) = volume.lease()
    volume.admit_at(by_worker(spread, volume)[worker], segment, epoch)
    for session in (spread.coordinator, *spread.sessions):
        locator = volume.locator(segment, epoch)
        assert put_on(spread, session, worker, f"o{spread.new_id()}", locator) is None
        assert put_on(spread, session, 1 - worker, "other", volume.locator(segment, epoch)) == "MT048"
    assert refusal(volume.scan, segment, epoch) == "MT048"
    volume.admit(segment, epoch)
    assert volume.scan(segment, epoch) == locators(spread.coordinator, spread.ns)


def test_only_the_coordinator_leases(spread, volume):
    for session in spread.sessions:
        assert refusal(session.execute, "SELECT mantle.set_volume_state(1, 'lost')") == "MT043"
        call = "SELECT * FROM mantle.lease_segments(%s, %s, 1, true)"
        assert refusal(session.execute, call, (volume.number, volume.mount_epoch)) == "MT043"


@pytest.mark.parametrize("worker", WORKERS)
def test_a_put_on_any_node_is_waited_for(target, spread, volume, later, worker):
    segment, epoch = volume.new_segment()
    locator = volume.locator(segment, epoch)
    with closing(target.coordinator()) as taker, node(target, worker) as session, node(target, worker) as watcher:
        session.execute("BEGIN")
        assert put_on(spread, session, worker, "o", locator) is None
        volume.mount(taker)
        new = volume.take_over(segment)
        admitting = later(volume.admit, segment, new)
        wait_until(lambda: admitting.done() or watcher.execute(WAITS).fetchone()[0], "the take-over", BOUND_S)
        assert not admitting.done()
        session.execute("COMMIT")
        admitting.result(BOUND_S)
        assert volume.scan(segment, new) == {locator}
        assert put_on(spread, session, worker, "late", volume.locator(segment, epoch)) == "MT048"


def test_a_part_that_is_only_prepared_is_waited_for(citus_cluster, target, spread, volume, later):
    """A batch for both workers commits in two phases. One part is prepared, the other waits for an absent standby."""
    segment, epoch = volume.new_segment()
    made = [volume.locator(segment, epoch) for _ in WORKERS]
    ops = [
        Op("put_object", spread.by_worker[worker][0], "both", spread.new_id(), locator=made[worker])
        for worker in WORKERS
    ]
    with node(target, 0) as session, node(target, 1) as watcher:
        with citus_cluster.servers[1].without_standby():
            putting = later(verbs.call, session, spread.ns, ops, [Key(uuid.uuid4()) for _ in ops])
            wait_until(lambda: putting.done() or watcher.execute(PREPARED).fetchone()[0], "a prepared part", BOUND_S)
            assert not putting.done()
            new = volume.take_over(segment)
            assert refusal(volume.admit_at, by_worker(spread, volume)[1], segment, new) == "55P03"
        assert [answer.code for answer in putting.result(BOUND_S)] == [None, None]
    target.settle()
    volume.admit(segment, new)
    assert volume.scan(segment, new) == set(made)


def test_while_a_worker_is_away_only_unused_segments_may_be_written(citus_cluster, target, spread, volume):
    used, _ = volume.new_segment()
    here, away = by_worker(spread, volume)
    server = citus_cluster.servers[2]
    server.stop()
    try:
        ((unused, first, was_used),) = volume.lease()
        assert not was_used
        volume.admit_at(here, unused, first)
        with node(target, 0) as session:
            assert put_on(spread, session, 0, "meanwhile", volume.locator(unused, first)) is None
            new = volume.take_over(used)
            volume.admit_at(here, used, new)
            assert refusal(volume.admit_at, away, used, new) is not None
            assert refusal(volume.scan, used, new) is not None, "rows of the other worker may name bytes there"
    finally:
        server.start()
    with closing(target.coordinator()) as session:
        volume.session = session
        wait_until(lambda: answers(session), "the worker", BOUND_S)
        with node(target, 1) as other:
            assert put_on(spread, other, 1, "back", volume.locator(unused, first)) == "MT048"
            volume.admit_at(away, unused, first)
            assert put_on(spread, other, 1, "back", volume.locator(unused, first)) is None
        assert refusal(volume.scan, used, new) == "MT048"
        volume.admit(used, new)
        assert volume.scan(used, new) == set()


def answers(session: psycopg.Connection) -> bool:
    try:
        return session.execute("SELECT count(*) >= 0 FROM mantle.meta").fetchone()[0]
    except psycopg.Error:
        return False


def test_what_moves_between_nodes_is_in_the_scan(target, spread, volume, later):
    segment, epoch = volume.new_segment()
    kept = []
    for number in range(3):
        kept.append(volume.locator(segment, epoch))
        assert put_on(spread, spread.sessions[0], 0, f"hop{number}", kept[-1]) is None
    ends, scans = (spread.by_worker[0][0], spread.by_worker[1][0]), 0

    def hop(number: int) -> int:
        hops = 0
        with closing(target.connect()) as session:
            for source, to in cycle([ends, ends[::-1]]):
                if scans >= SCANS:
                    return hops
                op = Op("rename_object", source, f"hop{number}", dst_pid=to, dst_name=f"hop{number}")
                assert spread.call(session, op).code is None
                hops += 1
        return hops

    hopping = [later(hop, number) for number in range(3)]
    missed: list[set[str]] = []
    looked = 0
    try:
        for _ in range(SCANS):
            with suppress(psycopg.errors.LockNotAvailable):
                missed.append(set(kept) - volume.scan(segment, epoch, page=2))
                looked += 1
            scans += 1
    finally:
        scans = SCANS
    assert min(one.result(BOUND_S) for one in hopping) > 0
    assert looked > 0
    assert not any(missed)


def test_each_node_frees_its_own(target, spread, volume):
    """Wherever the delete comes from, and whoever asks. A rename to another node frees what it replaces there."""
    segment, epoch = volume.new_segment()
    made = {worker: [volume.locator(segment, epoch) for _ in range(3)] for worker in WORKERS}
    for worker in WORKERS:
        for number, locator in enumerate(made[worker]):
            assert put_on(spread, spread.coordinator, worker, f"gone{number}", locator) is None
    first, second = (spread.by_worker[worker][0] for worker in WORKERS)
    assert copies.delete(spread.coordinator, spread.ns, first, "gone0") == (None, None)
    assert copies.delete(spread.sessions[0], spread.ns, second, "gone0") == (None, None)
    op = Op("rename_object", first, "gone1", dst_pid=second, dst_name="gone1", overwrite=True)
    assert spread.call(spread.coordinator, op).code is None
    freed = [[made[0][0]], sorted([made[1][0], made[1][1]])]
    assert volume.scan(segment, epoch) == {locator for some in made.values() for locator in some}
    nodes = by_worker(spread, volume)
    for worker in WORKERS:
        assert volume.take(nodes[worker], spread.coordinator) == [], "only what an earlier call has seen to end"
        assert sorted(volume.take(nodes[worker], spread.sessions[1 - worker])) == freed[worker]
        assert volume.take(nodes[worker]) == []
    assert volume.scan(segment, epoch) == locators(spread.coordinator, spread.ns)


def put_manifest(spread: SpreadNamespace, session: psycopg.Connection, worker: int, name: str, at: int, locator: str):
    """An object on a worker; its manifest, which is returned, is on the worker `at`."""
    upload = spread.new_id()
    while spread.worker_of(upload) != at:
        upload = spread.new_id()
    made = "SELECT mantle.create_manifest_delegated(%s, %s, 7, 7, ARRAY[%s], '{0}', '{1}', NULL)"
    assert session.execute(made, (upload, spread.ns, locator)).fetchone() == (None,)
    assert put_on(spread, session, worker, name, f"manifest:{upload}") is None
    return upload


def freed_at(target, worker: int, volume: Volume) -> list[str]:
    with node(target, worker) as session:
        rows = session.execute("SELECT locator FROM mantle.freed WHERE volume = %s ORDER BY 1", (volume.number,))
        return [locator for (locator,) in rows.fetchall()]


def test_a_manifest_on_another_node_is_freed(target, spread, volume):
    """By a delete, an overwrite and a rename, where the manifest is. What was sent on leaves it to the sweeper."""
    segment, epoch = volume.new_segment()
    made = [volume.locator(segment, epoch) for _ in range(5)]
    pid = spread.by_worker[0][0]
    with node(target, 0) as session:
        put_manifest(spread, session, 0, "gone", 1, made[0])
        assert copies.delete(session, spread.ns, pid, "gone")[0] is None
        assert freed_at(target, 1, volume) == [made[0]]
        put_manifest(spread, session, 0, "over", 1, made[1])
        put_manifest(spread, session, 0, "over", 1, made[2])
        assert freed_at(target, 1, volume) == made[:2]
        op = Op("rename_object", spread.by_worker[1][0], "by", dst_pid=pid, dst_name="over", overwrite=True)
        assert put_on(spread, session, 1, "by", "objects/00/by") is None
        assert spread.call(session, op).code is None
        assert freed_at(target, 1, volume) == made[:3]
    for name, at, locator in [("third", 1, made[3]), ("here", 0, made[4])]:
        put_manifest(spread, spread.coordinator, 0, name, at, locator)
        assert copies.delete(spread.coordinator, spread.ns, pid, name)[0] is None
    target.settle()
    assert (freed_at(target, 0, volume), freed_at(target, 1, volume)) == ([], made[:3])
    assert volume.scan(segment, epoch) == set(made), "a manifest that is left still names its bytes"


@pytest.mark.parametrize("dies", [False, True], ids=["", "gateway dies in between"])
def test_bytes_that_nodes_shared_are_freed_once(target, spread, volume, dies):
    segment, epoch = volume.new_segment()
    locator = volume.locator(segment, epoch)
    pids = [spread.by_worker[worker][0] for worker in WORKERS]
    assert put_on(spread, spread.coordinator, 0, "shared", locator) is None
    copied = copies.copy(spread.coordinator, spread.ns, (pids[0], "shared"), (pids[1], "shared"), spread.new_id())
    assert copied.code is None
    nodes, session = by_worker(spread, volume), spread.coordinator
    shared = lambda at: session.execute("SELECT mantle.shared_freed_delegated(%s, %s)", (at, [locator])).fetchone()[0]
    assert copies.delete(session, spread.ns, pids[0], "shared") == (None, None)
    assert [shared(at) for at in nodes] == [[locator], []]
    assert copies.delete(session, spread.ns, pids[1], "shared") == (None, None)
    assert [shared(at) for at in nodes] == [[locator], [locator]]
    assert volume.scan(segment, epoch) == {locator}
    for at in nodes:
        assert [volume.take(at) for _ in range(2)] == [[], []], "nobody has said that no row names them"
    change = lambda what, at: session.execute(
        f"SELECT mantle.{what}_delegated(%s, %s, %s, %s)", (at, volume.number, volume.mount_epoch, [locator])
    ).fetchone()
    assert change("forget_freed", nodes[0]) == (1,)
    if dies:
        volume.mount()
        volume.horizons.clear()
        epoch = volume.take_over(segment)
        volume.admit(segment, epoch)
        assert volume.scan(segment, epoch) == {locator}, "the next gateway keeps the blocks"
        assert [shared(at) for at in nodes] == [[], [locator]]
    assert change("settle_shared", nodes[1]) == (1,)
    assert [volume.take(at) for at in nodes] == [[], []]
    assert [volume.take(at) for at in nodes] == [[], [locator]]
    assert volume.scan(segment, epoch) == set()


def test_a_node_without_shards_admits_nothing(target):
    """The coordinator has none: what it has admitted or freed goes in the worker's next round."""
    with closing(target.coordinator()) as session:
        session.execute("INSERT INTO mantle.admitted_segments VALUES (9999, 1, 1, 1, mantle.lineage())")
        session.execute("INSERT INTO mantle.freed (locator, volume, segment) VALUES ('v1:9999.1.1/1.1/0+1', 9999, 1)")
        assert session.execute("SELECT mantle.run_maintenance('purge_freed')").fetchone()[0] >= 2
        for table in ("admitted_segments", "freed"):
            assert session.execute(f"SELECT count(*) FROM mantle.{table}").fetchone() == (0,)
    with node(target, 0) as session:
        session.execute("INSERT INTO mantle.admitted_segments VALUES (9999, 1, 1, 1, mantle.lineage())")
        session.execute("SELECT mantle.run_maintenance('purge_freed')")
        kept = session.execute("SELECT count(*) FROM mantle.admitted_segments WHERE volume = 9999").fetchone()
    assert kept == (1,)
