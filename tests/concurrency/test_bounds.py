"""A removal of a directory waits for writers in it for at most 2 s. Then it has done nothing, and may be retried (P11).
The failpoints of the other suites lift that bound.
"""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

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
