"""Faults that clients hardly notice, so only alerts tell of them. Each function causes one and returns the function
that undoes it, as those of catalogue.py do.
"""

import random
import subprocess
import threading
from collections.abc import Callable

from cluster import faults, monitoring
from cluster.cluster import Cluster
from tests.cluster import runbook
from tests.cluster.clients import session
from tests.cluster.etcdctl import FILLER, alarms, etcdctl, fill

Undo = Callable[[], None]
FILLING_MB = 64
LAG_MB = 80  # the alert looks for 64 MiB
FLUSH_US = 400_000  # shorter than an election's timeout


def etcd_filled(cluster: Cluster, _draw: random.Random) -> Undo:
    """etcd's quota is met. An operator follows the runbook."""
    fill(cluster)

    def undo() -> None:
        runbook.typed(cluster, "etcd out of space")
        etcdctl(cluster, "del", FILLER)
        assert alarms(cluster) == ""

    return undo


def etcd_flushes_slowly(cluster: Cluster, draw: random.Random) -> Undo:
    """One member's disk seems slow: each of its flushes is held up by strace."""
    pid = draw.choice(cluster.etcd).process.pid()
    inject = f"inject=fdatasync,fsync:delay_exit={FLUSH_US}"
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", inject, "-p", str(pid)]
    tracer = subprocess.Popen(command)

    def undo() -> None:
        tracer.terminate()
        tracer.wait()

    return undo


def disk_fills(cluster: Cluster, _draw: random.Random) -> Undo:
    """A file system of its own, nearly full, fills slowly."""
    place = cluster.layout.folder / "filling"
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={FILLING_MB}m", "mantle-chaos", str(place)], check=True)
    end = threading.Event()

    def write() -> None:
        with (place / "filler").open("wb", buffering=0) as file:
            file.write(bytes(FILLING_MB * 85 // 100 << 20))
            while not end.wait(0.5):
                file.write(bytes(1 << 14))

    thread = threading.Thread(target=write)
    thread.start()

    def undo() -> None:
        end.set()
        thread.join()
        subprocess.run(["umount", str(place)], check=True)
        place.rmdir()

    return undo


def standby_frozen(cluster: Cluster, draw: random.Random) -> Undo:
    """PostgreSQL of a standby is connected and confirms nothing, while its primary writes much WAL."""
    group = draw.choice([group for group in cluster.groups if cluster.groups[group][0].is_source])
    primary = cluster.leader(group)
    late = next(member for member in cluster.groups[group] if member is not primary)
    faults.freeze_postgresql(late)
    with session(cluster, group) as connection:
        # Not in the stream's format, and not transactional: nothing waits for the standby.
        connection.execute(
            "SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1 << 20)) FROM generate_series(1, %s)",
            (LAG_MB,),
        )
    return lambda: faults.thaw([], [late])


def stream_may_be_forged(cluster: Cluster, _draw: random.Random) -> Undo:
    """A role is granted what makes it able to write into the change stream. The runbook takes it back."""
    with session(cluster) as connection:
        connection.execute("GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text) TO PUBLIC")

    def undo() -> None:
        with session(cluster) as connection:
            for statement in runbook.statements("A role that may forge the change stream"):
                connection.execute(statement)

    return undo


def worker_disabled(cluster: Cluster, draw: random.Random) -> Undo:
    """A node's background worker is switched off by a setting."""
    group = draw.choice(sorted(cluster.groups))

    def change(statement: str) -> None:
        with session(cluster, group) as connection:
            connection.execute(statement)
            connection.execute("SELECT pg_reload_conf()")

    change("ALTER SYSTEM SET mantle.compaction_databases = 'another'")
    return lambda: change("ALTER SYSTEM RESET mantle.compaction_databases")


def paused(cluster: Cluster, _draw: random.Random) -> Undo:
    """Patroni leaves a group alone, and is forgotten like that."""
    group = runbook.group(cluster, max(cluster.groups))
    runbook.shell(cluster, "patronictl pause mantle ${GROUP:+--group $GROUP} --wait", GROUP=group)
    return lambda: runbook.shell(cluster, "patronictl resume mantle ${GROUP:+--group $GROUP} --wait", GROUP=group)


def targets_changed(change: Callable[[monitoring.Targets], monitoring.Targets], job: str) -> Callable:
    """Somebody edits Prometheus' list of a job."""

    def cause(cluster: Cluster, _draw: random.Random) -> Undo:
        before = monitoring.targets(cluster)[job]
        monitoring.write_targets(cluster, job, change(before))
        return lambda: monitoring.write_targets(cluster, job, before)

    return cause


without_labels = targets_changed(lambda before: [(addresses, {}) for addresses, _ in before], "patroni")
without_targets = targets_changed(lambda _: [], "haproxy")
