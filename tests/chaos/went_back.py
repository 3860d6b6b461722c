"""Folders of index replicas that go back to an older copy, as when an operator restores one, or a machine's snapshot
(P48, P49). Each function causes a fault and returns the function that undoes it, as those of catalogue.py do.

Invariant: a minute after the fault every replica answers. Then `mantle fsck` finds no difference (run.py judges that).
"""

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import faults
from cluster.cluster import Cluster
from cluster.layout import VOTERS
from stack.indexnode import IndexNode
from stack.poll import wait_until

from .index_group import index_follower, index_leader

Undo = Callable[[], None]
READY_BOUND_S = 60.0
BOUND_S = 60.0
ENTRIES = 200.0  # the copy is older by at least as many log entries
# Below a group's folder.
PARTS = ("raft/log/vote", "raft/log", "raft/snapshots")


def entries(replica: IndexNode) -> float:
    return replica.metric("mantle_index_raft_applied_index") or 0


def await_entries(replica: IndexNode) -> None:
    """Waits until the replica has many more entries, so that what goes back is missed."""
    wanted = entries(replica) + ENTRIES
    wait_until(lambda: entries(replica) >= wanted, "entries of the log", BOUND_S)


@contextmanager
def copied(replica: IndexNode) -> Iterator[Path]:
    """A copy of the folder as it is now; what a running process changes meanwhile may be there in part."""
    copy = replica.data.with_name(f"{replica.data.name}.copy")
    shutil.rmtree(copy, ignore_errors=True)
    # A file that the process removes meanwhile is missing in the copy.
    subprocess.run(["cp", "-a", str(replica.data), str(copy)], capture_output=True, check=False)
    try:
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def put_back(replica: IndexNode, copy: Path, part: str = "") -> None:
    """Replaces the folder, or a part of each group's, by the copy's. The process does not run."""
    for group in sorted(copy.glob("group-*")) if part else [copy]:
        source, target = group / part, replica.data / group.relative_to(copy) / part
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        if source.exists():
            subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def await_ready(cluster: Cluster) -> None:
    """Every replica answers. The judge compares them afterwards, without load (`mantle fsck`)."""
    for replica in cluster.replicas:
        wait_until(replica.is_ready, f"{replica.name} to answer", READY_BOUND_S)


def folder(cluster: Cluster, _draw: random.Random) -> Undo:
    """A follower's whole folder goes back. The leader remembers what it acknowledged."""
    replica = index_follower(cluster)
    with copied(replica) as copy:
        await_entries(replica)
        replica.process.stop()
        put_back(replica, copy)
    replica.start()

    def undo() -> None:
        await_ready(cluster)
        wait_until(lambda: (replica.metric("mantle_index_joins_anew_total") or 0) > 0, "it to join anew", BOUND_S)

    return undo


def parts(cluster: Cluster, _draw: random.Random) -> Undo:
    """The vote, the log and the snapshot of a follower go back, one after the other, each alone."""
    for part in PARTS:
        replica = index_follower(cluster)
        with copied(replica) as copy:
            await_entries(replica)
            replica.process.stop()
            put_back(replica, copy, part)
        replica.start()
        wait_until(replica.is_ready, f"{replica.name} to answer after {part} went back", BOUND_S)
    return lambda: await_ready(cluster)


def without_quorum(cluster: Cluster, _draw: random.Random) -> Undo:
    """A follower's folder goes back while the other follower is down. It cannot join anew before that one is back."""
    leader = index_leader(cluster)
    restored, down = (replica for replica in cluster.replicas[:VOTERS] if replica is not leader)
    with copied(restored) as copy:
        await_entries(restored)
        restored.process.stop()
        put_back(restored, copy)
    down.process.kill()
    restored.start()
    wait_until(lambda: restored.metric("mantle_index_log_lost"), "the replica to notice", BOUND_S)

    def undo() -> None:
        down.start()
        await_ready(cluster)

    return undo


def unremembered(cluster: Cluster, _draw: random.Random) -> Undo:
    """A follower's folder goes back, and those who remember what it acknowledged are gone: the leader dies and the
    learner is frozen. The other follower was frozen meanwhile. The two elect a leader without the lost entries.
    """
    leader = index_leader(cluster)
    restored, behind = (replica for replica in cluster.replicas[:VOTERS] if replica is not leader)
    learner = cluster.replicas[-1]
    restored.process.stop()
    with copied(restored) as copy:
        restored.start()
        restored.await_ready()
        faults.freeze(behind.process)
        await_entries(restored)  # the other follower misses them
        restored.process.stop()
        put_back(restored, copy)
    faults.freeze(learner.process)
    leader.process.kill()
    restored.start()
    faults.thaw([behind.process], [])

    def undo() -> None:
        faults.thaw([learner.process], [])
        leader.start()
        await_ready(cluster)

    return undo
