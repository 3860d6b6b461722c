"""On several nodes too, a listing of S3 shows no directory that holds nothing, while the worker prunes (P54)."""

import threading
import uuid
from contextlib import closing, suppress

import psycopg
import pytest

from stack import citus

from .copies import delete
from .distributed import SpreadNamespace, distributed_target
from .tree import Op

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

ROUNDS = 25
DEPTH = 4
CLIENTS = 3
LIST = "SELECT name FROM mantle.list_filled(%s, %s, NULL, '', 1000)"


def set_everywhere(target, change: str) -> None:
    for node in target.all:
        with psycopg.connect(**node, autocommit=True) as session:
            session.execute(f"ALTER SYSTEM {change}")
            session.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="module")
def target(citus_cluster):
    """Its directories are pruned as soon as they are empty."""
    with distributed_target(citus_cluster, "mantle_ghosts") as target:
        set_everywhere(target, "SET mantle.prune_grace_ms = 0")
        yield target
        set_everywhere(target, "RESET mantle.prune_grace_ms")


def make_chain(spread: SpreadNamespace, session: psycopg.Connection, ids: list[int], top: int, name: str) -> int | None:
    """Implicit directories from the top down; the last one, or None if the worker took one meanwhile."""
    pid = top
    for id in ids:
        if spread.call(session, Op("mkdir", pid, f"{name}/", id, explicit=False)).code is not None:
            return None
        pid, name = id, f"c{id}"
    return pid


def prune(target, node: int, ended: threading.Event, faults: list[BaseException]) -> None:
    """What the worker of a node does, without its pauses."""
    try:
        with closing(psycopg.connect(**target.all[node], autocommit=True)) as session:
            while not ended.is_set():
                with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                    session.execute("SELECT mantle.run_maintenance('prune')")
    except BaseException as fault:
        faults.append(fault)


@pytest.mark.parametrize("empties", ["the worker", "a caller"])
def test_no_ghost_after_a_delete(target, spread, empties):
    """Clients make chains across the nodes, empty them, and list from other nodes."""
    top, ended, faults = spread.by_worker[0][0], threading.Event(), []
    ids = {number: [[spread.new_id() for _ in range(DEPTH)] for _ in range(ROUNDS)] for number in range(CLIENTS)}
    emptied: set[str] = set()
    objects = {number: [spread.new_id() for _ in range(ROUNDS)] for number in range(CLIENTS)}

    def work(number: int) -> None:
        try:
            with closing(target.connect()) as session, closing(target.connect()) as reader:
                for round_, chain in enumerate(ids[number]):
                    name = f"t{number}-{round_}"
                    last = make_chain(spread, session, chain, top, name)
                    put = Op("put_object", last or 0, "o", objects[number][round_], locator=f"l{uuid.uuid4()}")
                    if last is None or spread.call(session, put).code is not None:
                        continue
                    assert (f"{name}/",) in reader.execute(LIST, (spread.ns, top)).fetchall(), "the key is listed"
                    assert delete(session, spread.ns, last, "o")[0] is None
                    emptied.add(f"{name}/")
                    gone = set(emptied)
                    shown = {name for (name,) in reader.execute(LIST, (spread.ns, top)).fetchall()}
                    assert not shown & gone, "a ghost"
                    if empties == "a caller":
                        remove = "SELECT mantle.prune_tree(%s, false)"
                        state = reader.execute(remove, (chain[0],)).fetchone()[0]
                        assert state in ("gone", "more")
        except BaseException as fault:
            faults.append(fault)

    pruners = [threading.Thread(target=prune, args=(target, node, ended, faults)) for node in range(len(target.all))]
    clients = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in [*pruners, *clients]:
        thread.start()
    for thread in clients:
        thread.join()
    ended.set()
    for thread in pruners:
        thread.join()
    assert faults == []
    assert spread.coordinator.execute("SELECT * FROM mantle.check()").fetchall() == []


def test_a_directory_stays_queued_until_it_is_gone_on_every_node(spread):
    """A listing may miss the row on the one node and still see the directory on the other, whose part is in doubt."""
    top, id = spread.by_worker[0][0], spread.new_id()
    while spread.worker_of(id) == 0:
        id = spread.new_id()
    assert spread.call(spread.coordinator, Op("mkdir", top, "one/", id, explicit=False)).code is None
    there = lambda: spread.coordinator.execute("SELECT m.id FROM mantle.meta m WHERE m.id = %s", (id,)).fetchone()
    queued = lambda: spread.coordinator.execute(
        "SELECT q.id FROM mantle.prune_queue q WHERE q.id = %s", (id,)
    ).fetchall()

    def step() -> None:
        for session in (spread.coordinator, *spread.sessions):
            session.execute("SELECT mantle.run_maintenance('prune')")

    steps = 0
    while there():
        before = queued()
        step()
        steps += 1
        assert steps < 1000
        assert not (there() is None and before and not queued()), "it left the queue with the step that removed it"
    while queued():
        step()
        steps += 1
        assert steps < 1000
