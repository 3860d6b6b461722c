"""Every verb overtaken by a shard that moves. The verb is held when all is latched, while the shard that it is about to
write moves to another node. Its row would be written there and its message here, or others there could change what it
latched here. So it fails and may be retried (P14). Each case also runs without the check that finds it: then the call
is carried out.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from stack import citus
from tests.support.sql_wrappers import put_at_beginning, put_before, wrap

from . import failpoints, state
from .distributed import PLACEMENTS, CitusTarget, SpreadNamespace, distributed_target
from .shard_moves import ALL_READ, shard_moves_during
from .tree import Op
from .verbs import WITHOUT_REQUEST, Key

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

# The checks of a part on its own node, and of the session that sends the parts at their end.
OF_PART, OF_SESSION = "placement_fault", "placements_fault"
CHECKS = (OF_PART, OF_SESSION)
# Reached when a part of a change is on its node, before it does anything.
BEGUN = "part_has_begun"
PARTS = (
    "remove_entry_delegated",
    "insert_entry_delegated",
    "record_request_delegated",
    "record_attempt_delegated",
    "write_tombstone_delegated",
    "rmdir_delegated",
)


@dataclass
class Overtaken:
    """A database with failpoints, whose placement checks can be removed."""

    target: CitusTarget
    spread: SpreadNamespace

    @contextmanager
    def without(self, checks: tuple[str, ...]) -> Iterator[None]:
        def let_pass(before: str) -> None:
            for check in checks:
                self.target.on_all_nodes(
                    lambda node, check=check: put_before(node, check, "test_citus_overtaken", before)
                )

        let_pass("RETURN NULL;")
        try:
            yield
        finally:
            let_pass("")

    def settle(self) -> None:
        """Removes the remains of a move, which would prevent the move back."""
        self.spread.coordinator.execute("CALL citus_cleanup_orphaned_resources()")

    def fuller_worker(self) -> int:
        """The worker with more shards: each case moves one away."""
        ports = [port for _, _, port in self.spread.coordinator.execute(PLACEMENTS)]
        return max((0, 1), key=lambda worker: ports.count(self.spread.port(worker)))

    def directory(self, worker: int, besides: tuple[int, ...] = ()) -> int:
        """A new directory on that worker, in the root of the namespace, in another shard than the given ones."""
        spread = self.spread
        shards = {spread.shard_of(pid) for pid in besides}
        id = spread.new_id()
        while spread.worker_of(id) != worker or spread.shard_of(id) in shards:
            id = spread.new_id()
        assert spread.call(spread.coordinator, Op("mkdir", spread.ns, spread.name(id), id, explicit=True)).code is None
        return id

    def epoch(self) -> int:
        return self.spread.coordinator.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()[0]


@pytest.fixture(scope="module")
def overtaken(citus_cluster):
    with distributed_target(citus_cluster, "mantle_overtaken") as target:
        for check in CHECKS:
            target.on_all_nodes(lambda node, check=check: put_before(node, check, "test_citus_overtaken", ""))
        target.on_all_nodes(failpoints.install_steps)
        target.on_all_nodes(
            lambda node: wrap(node, "lease_fault", "ALL_READ", before=f"PERFORM failpoint.reach('{ALL_READ}');")
        )
        for part in PARTS:
            reach = f"PERFORM failpoint.reach('{BEGUN}_{part}');"
            target.on_all_nodes(lambda node, part=part, reach=reach: put_at_beginning(node, part, "BEGUN", reach))
        spread = SpreadNamespace(target)
        spread.coordinator.execute("SET lock_timeout = '30s'")  # for a move that waits for the call that waits for it
        yield Overtaken(target, spread)


def fill(spread: SpreadNamespace, pid: int) -> None:
    """An object o, a directory s/, an implicit one i/, and delta records."""
    with spread.coordinator.transaction():
        spread.coordinator.execute("SET LOCAL mantle.delta_records = always")
        for op in (
            Op("put_object", pid, "o", spread.new_id(), size=3, mode=420, etag="e"),
            Op("mkdir", pid, "s/", spread.new_id(), explicit=True),
            Op("mkdir", pid, "i/", spread.new_id(), explicit=False),
        ):
            assert spread.call(spread.coordinator, op).code is None


def id_of(spread: SpreadNamespace, pid: int, name: str) -> int:
    return spread.coordinator.execute(
        "SELECT id FROM mantle.meta WHERE pid = %s AND name = %s", (pid, name)
    ).fetchone()[0]


def with_bytes(spread: SpreadNamespace, pid: int, name: str) -> Op:
    return Op("put_object", pid, name, spread.new_id(), size=5, mode=420, inline=b"bytes")


def put_bytes(spread: SpreadNamespace, pid: int) -> str:
    """The name of a new object whose bytes are inside PostgreSQL."""
    assert spread.call(spread.coordinator, with_bytes(spread, pid, "bytes")).code is None
    return "bytes"


IN_ONE_DIRECTORY: dict[str, Callable[[SpreadNamespace, int], Op]] = {
    "mkdir": lambda spread, pid: Op("mkdir", pid, "late/", spread.new_id(), explicit=True),
    "mkdir of an implicit one": lambda spread, pid: Op("mkdir", pid, "i/", spread.new_id(), explicit=True),
    "put_object": lambda spread, pid: Op("put_object", pid, "late", spread.new_id(), size=1, mode=420),
    "put_object over another": lambda spread, pid: Op("put_object", pid, "o", spread.new_id(), size=1, mode=420),
    "put_object with bytes": lambda spread, pid: Op("put_object", pid, "late", spread.new_id(), size=1, inline=b"x"),
    "put_object with bytes over another": lambda spread, pid: with_bytes(spread, pid, "o"),
    "delete_object": lambda spread, pid: Op("delete_object", pid, "o"),
    "delete_object with bytes": lambda spread, pid: Op("delete_object", pid, put_bytes(spread, pid)),
    "set_attributes of an object": lambda spread, pid: Op(
        "set_attributes", pid, "o", id_of(spread, pid, "o"), mode=384
    ),
    "set_attributes of a directory": lambda spread, pid: Op(
        "set_attributes", pid, "s/", id_of(spread, pid, "s/"), mode=448
    ),
    "compact": lambda spread, pid: Op("compact", pid),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("verb", IN_ONE_DIRECTORY)
def test_a_call_in_one_directory(overtaken, verb, checked):
    spread = overtaken.spread
    overtaken.settle()
    here = overtaken.fuller_worker()
    pid = overtaken.directory(here)
    fill(spread, pid)
    op, key, session = IN_ONE_DIRECTORY[verb](spread, pid), Key(uuid.uuid4()), spread.sessions[here]
    with ExitStack() as taken_out:
        if not checked:
            # A change of attributes may be on two nodes, so the session checks at its end.
            taken_out.enter_context(overtaken.without((OF_PART, OF_SESSION)))
        with shard_moves_during(overtaken.target, spread, (session, op, key), failpoints.AFTER_LATCHES, pid) as outcome:
            pass
    assert outcome == (["MT043"] if checked else [None])
    if checked:
        assert spread.call(session, op, key).code is None, "again, from where it is not"
        if op.verb not in WITHOUT_REQUEST:
            assert spread.call(spread.sessions[1 - here], op, key).replayed, "and from where it is"
    assert state.damage(spread.coordinator) == []


@dataclass
class Sides:
    """A directory whose shard is about to move, and one on the other worker."""

    moving: int
    other: int


def rename_of_object(spread: SpreadNamespace, source: int, destination: int, name: str = "o") -> Op:
    return Op("rename_object", source, name, dst_pid=destination, dst_name="late")


def rename_of_directory(spread: SpreadNamespace, source: int, destination: int, epoch: int, victim: int = 0) -> Op:
    name = spread.name(victim) if victim else "late/"
    id = id_of(spread, source, "s/")
    return Op("rename_directory", source, "s/", id, dst_pid=destination, dst_name=name, victim=victim, epoch=epoch)


ACROSS: dict[str, Callable[[SpreadNamespace, Sides, int], Op]] = {
    "rename_object from what moves": lambda spread, at, _: rename_of_object(spread, at.moving, at.other),
    "rename_object to what moves": lambda spread, at, _: rename_of_object(spread, at.other, at.moving),
    "rename_object with bytes from what moves": lambda spread, at, _: rename_of_object(
        spread, at.moving, at.other, put_bytes(spread, at.moving)
    ),
    "rename_object with bytes to what moves": lambda spread, at, _: rename_of_object(
        spread, at.other, at.moving, put_bytes(spread, at.other)
    ),
    "rename_directory from what moves": lambda spread, at, epoch: rename_of_directory(
        spread, at.moving, at.other, epoch
    ),
    "rename_directory to what moves": lambda spread, at, epoch: rename_of_directory(spread, at.other, at.moving, epoch),
    "remove_tree out of what moves": lambda spread, at, epoch: Op(
        "remove_tree", at.moving, "s/", id_of(spread, at.moving, "s/"), epoch=epoch
    ),
    "rmdir in what moves": lambda spread, at, _: Op("rmdir", at.moving, "s/", id_of(spread, at.moving, "s/")),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("verb", ACROSS)
def test_a_change_of_several_directories(overtaken, verb, checked):
    spread = overtaken.spread
    overtaken.settle()
    here = overtaken.fuller_worker()
    moving = overtaken.directory(here, (spread.ns,))
    other = overtaken.directory(1 - here)
    for pid in (moving, other):
        fill(spread, pid)
    op, key, session = (
        ACROSS[verb](spread, Sides(moving, other), overtaken.epoch()),
        Key(uuid.uuid4()),
        spread.sessions[here],
    )
    with ExitStack() as taken_out:
        if not checked:
            taken_out.enter_context(overtaken.without((OF_SESSION,)))
        with shard_moves_during(overtaken.target, spread, (session, op, key), ALL_READ, moving) as outcome:
            pass
    assert outcome == (["MT043"] if checked else [None])
    if checked:
        assert spread.call(session, op, key).code is None, "again, from where it is not"
        assert spread.call(spread.sessions[1 - here], op, key).replayed, "and from where it is"
    assert state.damage(spread.coordinator) == []


def over_another(spread: SpreadNamespace, at: Sides, epoch: int) -> Op:
    """From the other worker to the root, over a directory that is about to move."""
    return rename_of_directory(spread, at.other, spread.ns, epoch, at.moving)


# The parts of a change that are the first to write to the moving shard. From then on the shard stays.
WRITING: dict[str, tuple[str, Callable[[SpreadNamespace, Sides, int], Op]]] = {
    "rename_object, the source": ("remove_entry_delegated", ACROSS["rename_object from what moves"]),
    "rename_object, the request": ("record_request_delegated", ACROSS["rename_object to what moves"]),
    "rename_directory, the source": ("remove_entry_delegated", ACROSS["rename_directory from what moves"]),
    "rename_directory, the destination": ("insert_entry_delegated", ACROSS["rename_directory to what moves"]),
    "rename_directory, what it replaces": ("write_tombstone_delegated", over_another),
    "remove_tree, the source": ("remove_entry_delegated", ACROSS["remove_tree out of what moves"]),
    "rmdir, the parent": ("rmdir_delegated", ACROSS["rmdir in what moves"]),
    "rmdir, the directory": (
        "write_tombstone_delegated",
        lambda spread, at, _: Op("rmdir", spread.ns, spread.name(at.moving), at.moving),
    ),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("which", WRITING)
def test_a_part_of_a_change(overtaken, which, checked):
    """Overtaken on its own node, when all else is done: the part checks by itself, whatever the session that sent it
    does.
    """
    spread, (part, make) = overtaken.spread, WRITING[which]
    overtaken.settle()
    here = overtaken.fuller_worker()
    moving = overtaken.directory(here, (spread.ns,))
    other = overtaken.directory(1 - here)
    fill(spread, other)
    if part != "write_tombstone_delegated":
        fill(spread, moving)
    op, key, session = make(spread, Sides(moving, other), overtaken.epoch()), Key(uuid.uuid4()), spread.sessions[here]
    with (
        overtaken.without((OF_SESSION,) if checked else CHECKS),
        shard_moves_during(overtaken.target, spread, (session, op, key), f"{BEGUN}_{part}", moving) as outcome,
    ):
        pass
    assert outcome == (["MT043"] if checked else [None])
    if checked:
        assert spread.call(session, op, key).code is None, "again, from where it is not"
    assert state.damage(spread.coordinator) == []
