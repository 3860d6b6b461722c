"""Reads the state of the stack: the command line, an index group's leader and locks, all directories by PostgreSQL and
by the index.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from stack.layout import REPLICAS
from stack.poll import wait_until
from tests.support.rest import Rest

READY_BOUND_S = 60.0


@contextmanager
def frozen(process: int) -> Iterator[None]:
    """Stops a process with SIGSTOP. Continues it at the end unless the test has killed it."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


WALSENDERS = "SELECT active_pid FROM pg_replication_slots WHERE slot_type = 'logical' AND active_pid IS NOT NULL"


@contextmanager
def behind(superuser) -> Iterator[None]:
    """No commit reaches the index while the block runs."""
    with ExitStack() as still:
        for (walsender,) in superuser.execute(WALSENDERS).fetchall():
            still.enter_context(frozen(walsender))
        yield


def command_line(stack, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `mantle` with the stack's replicas."""
    return subprocess.run(
        [str(stack.layout.binaries / "mantle"), *arguments],
        env={"MANTLE_INDEX": ",".join(stack.layout.index_addresses), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def replicas(stack, group: int = 1) -> dict[int, dict[str, str]]:
    """The rows of `mantle status` for the replicas of a group that answer, by heading."""
    shown, _, _ = command_line(stack, "status", "--group", str(group), "--seconds", "0").stdout.partition("\n\n")
    shown = shown.splitlines()
    columns = [(heading, shown[0].index(heading)) for heading in ("replica", "role", "locks")]
    numbers = dict(zip(stack.layout.index_addresses, REPLICAS, strict=True))
    found = {}
    for line in shown[1:]:
        cells = {heading: line[at:].split("  ")[0].strip() for heading, at in columns}
        if cells["locks"]:
            found[numbers[cells["replica"]]] = cells
    return found


def leader(stack, group: int = 1) -> int:
    """The replica that leads a group, once there is one."""
    return wait_until(
        lambda: next((number for number, row in replicas(stack, group).items() if row["role"] == "leader"), None),
        "a leader",
        READY_BOUND_S,
    )


def locks(stack, group: int = 1) -> int | None:
    """The number of locked directories, by a group's leader."""
    return next((int(row["locks"]) for row in replicas(stack, group).values() if row["role"] == "leader"), None)


def walk(rest: Rest, ns: str) -> set[str]:
    """Paths of all directories, found from the root down: each level is a lookup by the index and a listing."""
    found: set[str] = set()
    waiting = [""]
    while waiting:
        path = waiting.pop()
        below = [path + name for name in rest.list(ns, path) if name.endswith("/")]
        found.update(below)
        waiting += below
    return found


def ids(superuser, ns: str) -> list[int]:
    """Ids of all directories of a namespace except its root, once for each entry."""
    rows = superuser.execute(
        "SELECT m.id FROM mantle.meta m JOIN mantle.namespaces n USING (ns)"
        " WHERE n.name = %s AND m.explicit IS NOT NULL AND m.pid <> 0 ORDER BY m.id",
        (ns,),
    )
    return [id for (id,) in rows.fetchall()]


def blocked_by(sql, process: int) -> int | None:
    """A client's session that waits for a lock of this one."""
    found = sql.execute(
        "SELECT a.pid FROM pg_stat_activity a"
        " WHERE a.backend_type = 'client backend' AND %s = ANY (pg_blocking_pids(a.pid)) ORDER BY a.pid LIMIT 1",
        (process,),
    ).fetchone()
    return found[0] if found else None
