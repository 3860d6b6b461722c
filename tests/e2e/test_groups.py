"""Two index groups in each process: a namespace belongs to one, and moves to the other while it is used.

The gateway asks PostgreSQL about every miss of the index, so a lookup through REST alone would not show a gap in the
index. The replicas' counts show it, and the gateway's count of such queries.
"""

import signal
import subprocess
import uuid
from collections.abc import Iterator
from functools import partial

import pytest

from stack.poll import wait_until
from tests.support.rest import Refused, Rest

from .background import Repeated
from .inspection import READY_BOUND_S, command_line, ids, leader, locks, walk

MOVE_BOUND_S = 90.0
IN_DATABASE = "mantle_gateway_lookups_in_database_total"


class TreeLoad(Repeated):
    """Threads that make, list, rename and remove directories, each below its own, and look up the results.

    A directory is known by its name alone, so acknowledged and found directories can be compared. `plain`: no renames
    and removals, so no lookup has a reason to go to PostgreSQL.
    """

    def __init__(self, rest: Rest, ns: str, *, plain: bool = False, threads: int = 3):
        names = [f"w{number}-{uuid.uuid4().hex[:6]}" for number in range(threads)]
        super().__init__([partial(self._work, rest.twin(), name) for name in names])
        self.ns, self.plain, self.steps = ns, plain, 0
        self.kept: set[str] = set()
        for name in names:
            rest.mkdir(ns, name)
            self.kept.add(f"{name}/")

    def _work(self, rest: Rest, top: str, count: int) -> None:
        self._step(rest, top, count)
        self.steps += 1

    def _step(self, rest: Rest, top: str, count: int) -> None:
        made, below = f"{top}/d{count}", f"{top}/d{count}/below"
        rest.mkdir(self.ns, made)
        rest.mkdir(self.ns, below)
        assert rest.list(self.ns, f"{made}/") == ["below/"]
        assert rest.list(self.ns, f"{below}/") == []
        if self.plain:
            self.kept |= {f"{made}/", f"{below}/"}
            return
        moved = f"{top}/m{count}"
        rest.rename(self.ns, f"{made}/", f"{moved}/")
        assert not is_there(rest, self.ns, f"{below}/"), f"{below} after its parent was renamed"
        assert rest.list(self.ns, f"{moved}/below/") == []
        if count % 2:
            self.kept |= {f"{moved}/", f"{moved}/below/"}
            return
        rest.rmdir(self.ns, f"{moved}/below")
        assert not is_there(rest, self.ns, f"{moved}/below/")
        rest.rmdir(self.ns, moved)
        assert not is_there(rest, self.ns, f"{moved}/")

    def await_progress(self, more: int) -> None:
        self.await_more(lambda: self.steps, more, "steps", MOVE_BOUND_S)


def is_there(rest: Rest, ns: str, path: str) -> bool:
    """Looks the path itself up in the index, not an entry in its parent."""
    try:
        rest.list(ns, path)
    except Refused as refused:
        assert refused.status == 404, refused
        return False
    return True


def driver(stack, *arguments: str) -> subprocess.Popen:
    """The command line, with a role that may move namespaces."""
    return subprocess.Popen(
        [str(stack.layout.binaries / "mantle"), "namespaces", *arguments],
        env={"DATABASE_URL": stack.postgresql.url("operator")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def move(stack, ns: str, group: int) -> list[str]:
    """Moves a namespace; returns the phases that were seen."""
    done = driver(stack, "move", ns, str(group))
    out, error = done.communicate(timeout=MOVE_BOUND_S)
    assert (done.returncode, error) == (0, "")
    return out.split()


def assignment(superuser, ns: str) -> tuple:
    return superuser.execute(
        "SELECT index_group, other_group, move_phase FROM mantle.namespaces WHERE name = %s", (ns,)
    ).fetchone()


def await_phase(superuser, ns: str, *phases: str) -> None:
    wait_until(lambda: assignment(superuser, ns)[2] in phases, f"{ns} in {phases}", MOVE_BOUND_S)


def counted(stack, name: str, group: int) -> list[int]:
    label = f'{name}{{group="{group}"}}'
    return [int(node.metrics().get(label, -1)) for node in stack.indexnodes.values()]


def await_exact(stack, superuser) -> None:
    """Every replica of both groups has as many directories as PostgreSQL has in the group's namespaces, and no lock."""
    query = """SELECT count(*) FROM mantle.meta m JOIN mantle.namespaces n USING (ns)
                WHERE m.explicit IS NOT NULL AND n.index_group = %s AND n.other_group IS NULL"""

    def is_exact(group: int) -> bool:
        wanted = superuser.execute(query, (group,)).fetchone()[0]
        return counted(stack, "mantle_index_directories", group) == [wanted] * 3 and locks(stack, group) == 0

    for group in (1, 2):
        wait_until(lambda group=group: is_exact(group), f"group {group} to have what it should", READY_BOUND_S)


def in_database(stack) -> float:
    return stack.gateway.metrics().get(IN_DATABASE, 0)


@pytest.fixture
def grouped(rest: Rest) -> str:
    """A namespace in group 2."""
    name = f"g-{uuid.uuid4().hex[:12]}"
    rest.create_namespace(name, group=2)
    return name


@pytest.fixture(autouse=True)
def exact(stack, superuser) -> Iterator[None]:
    """Neither index was rebuilt to reach that state."""
    await_exact(stack, superuser)
    yield
    await_exact(stack, superuser)


def test_a_namespace_chooses_its_group(stack, superuser, rest, grouped, bucket):
    assert (assignment(superuser, grouped)[0], assignment(superuser, bucket)[0]) == (2, 1)
    with TreeLoad(rest, grouped) as first, TreeLoad(rest, bucket) as second:
        first.await_progress(10)
        second.await_progress(10)
    for ns, load in ((grouped, first), (bucket, second)):
        assert walk(rest, ns) == load.kept
    state, load = command_line(stack, "status", "--seconds", "0").stdout.split("\n\n")
    for table in (state, load):
        assert sorted(line.split()[0] for line in table.splitlines()[1:]) == ["1"] * 3 + ["2"] * 3
    assert len(command_line(stack, "members", "--group", "2").stdout.splitlines()) == 4
    assert rest.call("PUT", "/v1/ns/no-such-group?group=99").status == 400


def test_a_namespace_is_removed_and_made_again_in_another_group(rest, superuser):
    name = f"r-{uuid.uuid4().hex[:12]}"
    for group in (1, 2, 1):
        rest.create_namespace(name, group=group)
        assert assignment(superuser, name)[0] == group
        rest.mkdir(name, "a")
        assert rest.list(name, "a/") == []
        rest.rmdir(name, "a")
        rest.delete_namespace(name)
        assert not is_there(rest, name, "")


def test_lookups_are_answered_by_an_index_all_the_way(stack, rest, bucket):
    """Without renames, no lookup of an existing directory has a reason to go to PostgreSQL."""
    rebuilds = [counted(stack, "mantle_index_rebuilds_begun_total", group) for group in (1, 2)]
    with TreeLoad(rest, bucket, plain=True) as load:
        load.await_progress(20)
        before = in_database(stack)
        assert move(stack, bucket, 2)[-1] == "done"
        load.await_progress(20)
        assert move(stack, bucket, 1)[-1] == "done"
        load.await_progress(20)
        assert in_database(stack) == before
    assert walk(rest, bucket) == load.kept
    assert [counted(stack, "mantle_index_rebuilds_begun_total", group) for group in (1, 2)] == rebuilds


def test_moves_forth_and_back_under_load(stack, superuser, rest, bucket):
    with TreeLoad(rest, bucket) as load:
        load.await_progress(10)
        for group in (2, 1):
            phases = move(stack, bucket, group)
            assert phases[-1] == "done" and set(phases) <= {"copy", "both", "switched", "done"}
            assert assignment(superuser, bucket) == (group, None, None)
            load.await_progress(20)
    assert walk(rest, bucket) == load.kept
    found = ids(superuser, bucket)
    assert len(found) == len(set(found)) == len(load.kept)
    assert move(stack, bucket, 1) == ["done"]


def test_a_move_is_taken_back(stack, superuser, rest, bucket):
    with TreeLoad(rest, bucket) as load:
        load.await_progress(5)
        watching = driver(stack, "move", bucket, "2")
        await_phase(superuser, bucket, "both")
        aborting = driver(stack, "abort", bucket)
        assert (aborting.communicate(timeout=MOVE_BOUND_S)[0], aborting.returncode) == ("aborted\n", 0)
        assert "taken back" in watching.communicate(timeout=MOVE_BOUND_S)[1]
        assert watching.returncode == 1
        load.await_progress(10)
        assert assignment(superuser, bucket) == (1, None, None)
        await_exact(stack, superuser)
    assert walk(rest, bucket) == load.kept


@pytest.mark.faults
@pytest.mark.parametrize(("phase", "victim"), [("copy", "new"), ("both", "old"), ("switched", "new")])
def test_the_driver_and_a_leader_are_killed_in_the_middle(stack, superuser, rest, bucket, phase, victim):
    with TreeLoad(rest, bucket) as load:
        load.await_progress(10)
        watching = driver(stack, "move", bucket, "2")
        await_phase(superuser, bucket, phase, *(["both"] if phase == "copy" else []))
        watching.send_signal(signal.SIGKILL)
        watching.wait()
        number = leader(stack, 1 if victim == "old" else 2)
        stack.indexnodes[number].process.kill()
        load.await_progress(5)
        stack.indexnodes[number].start()
        stack.indexnodes[number].await_ready(READY_BOUND_S)
        assert move(stack, bucket, 2)[-1] == "done"
        load.await_progress(10)
    assert walk(rest, bucket) == load.kept
