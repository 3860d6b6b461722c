"""A removal of a directory waits at most 2 s for writers in it, and any change waits at most 2 s for a lock on a table.
After that it has changed nothing, and may be retried (P11, P18). The failpoints of the other suites lift that bound.
"""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from stack.poll import wait_until

from . import state, verbs
from .tree import Op, Tree
from .verbs import Answer, Key

BOUND_S = 2.0
LATE_S = 10.0  # tolerance for a busy machine
WAITS = (
    "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s) AND wait_event_type = 'Lock'"
    " AND wait_event = 'advisory'"
)


@pytest.fixture
def target(make_target):
    return make_target("bounds")


def timed(call) -> tuple[Answer, float]:
    began = time.monotonic()
    answer = call()
    return answer, time.monotonic() - began


def test_a_removal_does_not_wait_for_a_create_for_long(target):
    """An rmdir, a rename over an empty directory, the removal of a namespace: a create is in progress in each."""
    with target.connect() as watcher, target.connect() as creator:
        ns, other = verbs.create_namespace(watcher, "bounds"), verbs.create_namespace(watcher, "bounds-gone")
        first = verbs.allocate_ids(watcher, 6)
        removed, replaced, moved = range(first, first + 3)
        for name, id in (("removed/", removed), ("replaced/", replaced), ("moved/", moved)):
            assert verbs.call(watcher, ns, [Op("mkdir", ns, name, id)], [Key(uuid.uuid4())])[0].code is None
        before = state.read_tree(watcher, ns)
        keys = [Key(uuid.uuid4()) for _ in range(3)]
        sessions = [target.connect() for _ in keys]
        rmdir = Op("rmdir", ns, "removed/", removed)
        rename = Op("rename_directory", ns, "moved/", moved, dst_pid=ns, dst_name="replaced/", victim=replaced)
        calls = (
            lambda: verbs.call_one(sessions[0], ns, rmdir, keys[0]),
            lambda: verbs.call_one(sessions[1], ns, rename, keys[1]),
            lambda: verbs.tried(lambda: verbs.delete_namespace(sessions[2], "bounds-gone", keys[2])),
        )
        creator.execute("BEGIN")
        for at, pid in ((ns, removed), (ns, replaced), (other, other)):
            first += 1
            assert (
                verbs.call(creator, at, [Op("put_object", pid, "o", first + 2, size=1)], [Key(uuid.uuid4())])[0].code
                is None
            )
        with ThreadPoolExecutor(len(calls)) as pool:
            running = [pool.submit(timed, call) for call in calls]
            backends = [session.info.backend_pid for session in sessions]
            wait_until(lambda: watcher.execute(WAITS, (backends,)).fetchone() == (3,), "all three to wait", LATE_S)
            for answer, took in (future.result(LATE_S) for future in running):
                assert answer.code == "55P03"
                assert BOUND_S <= took < LATE_S
        assert state.differences(watcher, ns, before) == [], "nothing is done"
        creator.execute("ROLLBACK")
        assert [call().code for call in calls] == [None, None, None], "again, when nobody is there"
        assert state.differences(watcher, ns, expected_after(before, rmdir, rename)) == []


def expected_after(tree: Tree, *ops: Op) -> Tree:
    for op in ops:
        assert tree.apply(op).code is None
    return tree


def test_no_change_waits_for_a_lock_for_long(target):
    """As behind an ALTER TABLE that waits for something itself. mkdir and put_object in both of their paths."""
    with target.connect() as watcher, target.connect() as holder:
        ns = verbs.create_namespace(watcher, "bounds-locked")
        ids = iter(range(verbs.allocate_ids(watcher, 40), 2**63))
        made = {name: Op("mkdir", ns, name, next(ids)) for name in ("empty/", "moved/", "tree/", "attributes/")}
        made["implicit/"] = Op("mkdir", ns, "implicit/", next(ids), explicit=False)
        made |= {
            name: Op("put_object", ns, name, next(ids), size=1) for name in ("deleted", "renamed", "written", "changed")
        }
        for op in made.values():
            assert verbs.call_one(watcher, ns, op, Key(uuid.uuid4())).code is None
        before = state.read_tree(watcher, ns)
        id = lambda name: made[name].id
        ops = [
            Op("mkdir", ns, "new/", next(ids)),
            Op("mkdir", ns, "implicit/", next(ids)),
            Op("put_object", ns, "new-object", next(ids), size=1),
            Op("put_object", ns, "written", next(ids), size=2),
            Op("delete_object", ns, "deleted"),
            Op("set_attributes", ns, "changed", id("changed"), mode=0o600),
            Op("set_attributes", ns, "attributes/", id("attributes/"), mode=0o700),
            Op("rename_object", ns, "renamed", dst_pid=ns, dst_name="renamed-new"),
            Op("rename_directory", ns, "moved/", id("moved/"), dst_pid=ns, dst_name="moved-new/"),
            Op("rmdir", ns, "empty/", id("empty/")),
            Op("remove_tree", ns, "tree/", id("tree/")),
        ]
        keys = [Key(uuid.uuid4()) for _ in ops]
        sessions = [target.connect() for _ in range(len(ops) + 2)]
        calls = [
            partial(verbs.call_one, session, ns, op, key) for session, op, key in zip(sessions, ops, keys, strict=False)
        ]
        root = next(ids)
        calls.append(
            partial(verbs.tried, partial(verbs.make_namespace, sessions[-2], "bounds-2", root, Key(uuid.uuid4())))
        )
        calls.append(
            partial(verbs.tried, partial(verbs.delete_namespace, sessions[-1], "bounds-locked", Key(uuid.uuid4())))
        )
        with ThreadPoolExecutor(len(calls)) as pool:
            holder.execute("BEGIN")
            holder.execute("LOCK TABLE mantle.meta IN ACCESS EXCLUSIVE MODE")
            try:
                answers = [future.result(LATE_S) for future in [pool.submit(timed, call) for call in calls]]
            finally:
                holder.execute("ROLLBACK")
        for call, (answer, took) in zip(calls, answers, strict=True):
            assert (answer.code, BOUND_S <= took < LATE_S) == ("55P03", True), (call, answer, took)
        assert state.differences(watcher, ns, before) == [], "nothing is done"
        assert [call().code for call in calls[: len(ops)]] == [None] * len(ops), "again, when nobody holds it"
