"""The services of each host, the leader of each group, and the position of each replica."""

from stack.failure import Failure
from stack.service import Service
from stack.status import resident_mib, show_replicas, show_services
from stack.terminal import say

from . import patronictl, tafdb
from .cluster import Cluster
from .faults import tree
from .layout import COORDINATOR


def show(cluster: Cluster) -> bool:
    """Prints the tables; true when all services are healthy, or none runs."""

    def cells(service: Service, pid: int | None) -> str:
        memory = f"{sum(map(resident_mib, tree(pid))):.0f}" if pid else ""
        return f"  {service.host.address:<16}{memory:>6}"

    say(f"{'service':<26}{'state':<12}{'pid':>8}  {'address':<16}{'MiB':>6}")
    states = show_services(cluster.services(), cells)
    if states == {"stopped"}:
        return True
    is_healthy = states == {"ready"} and _show_groups(cluster)
    show_replicas(cluster.layout)
    return is_healthy


def _show_groups(cluster: Cluster) -> bool:
    """Roles as Patroni reports them, and the problems that the database finds."""
    say(f"\n{'group':<7}{'server':<16}{'role':<16}{'state':<12}{'timeline':>8}")
    is_healthy = True
    for number, group in cluster.groups.items():
        rows = next(filter(None, (patronictl.members(member) for member in group)), [])
        is_healthy &= len(rows) == len(group) and any(row["role"] == "sync_standby" for row in rows)
        for row in rows:
            say(f"{number:<7}{row['name']:<16}{row['role']:<16}{row['state']:<12}{row.get('timeline', ''):>8}")
    try:
        problems = tafdb.problems(cluster.leader(COORDINATOR, 1.0))
    except Failure as failure:
        problems = [str(failure)]
    for problem in problems:
        say(f"check_cluster: {problem}")
    return is_healthy and not problems
