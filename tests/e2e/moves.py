"""What the tests of directory renames share: where every directory is by PostgreSQL and by the index, and who holds locks."""

import subprocess

from rest import Rest
from stack.layout import REPLICAS
from stack.poll import wait_until

READY_BOUND_S = 60.0


def replicas(stack) -> dict[int, dict[str, str]]:
    """What `mantle status` shows of each replica that answers, by heading."""
    shown = subprocess.run(
        [str(stack.layout.binaries / "mantle"), "status"],
        env={"MANTLE_INDEX": ",".join(stack.layout.index_addresses)},
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    columns = [(heading, shown[0].index(heading)) for heading in ("replica", "role", "term", "locks", "directories")]
    numbers = dict(zip(stack.layout.index_addresses, REPLICAS, strict=True))
    found = {}
    for line in shown[1:]:
        cells = {heading: line[at:].split("  ")[0].strip() for heading, at in columns}
        if cells["locks"]:
            found[numbers[cells["replica"]]] = cells
    return found


def leader(stack) -> int:
    """The replica that leads, once there is one."""
    return wait_until(
        lambda: next((number for number, row in replicas(stack).items() if row["role"] == "leader"), None), "a leader", READY_BOUND_S
    )


def locks(stack) -> int | None:
    """How many directories are locked, as the leader knows it."""
    return next((int(row["locks"]) for row in replicas(stack).values() if row["role"] == "leader"), None)


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
    """Ids of all directories of a namespace, each as often as an entry has it; without the root."""
    rows = superuser.execute(
        "SELECT m.id FROM mantle.meta m JOIN mantle.namespaces n USING (ns)"
        " WHERE n.name = %s AND m.explicit IS NOT NULL AND m.pid <> 0 ORDER BY m.id",
        (ns,),
    )
    return [id for (id,) in rows.fetchall()]
