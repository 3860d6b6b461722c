"""The database of a cluster: extension, roles, distribution. Everything may be done again.

Invariant: it is done at the primary of the first group, once every worker has joined; Citus sends it to the others.
"""

from stack.failure import Failure
from stack.layout import DATABASE
from stack.poll import wait_until

from .layout import COORDINATOR, Shape
from .member import Member

WORKERS_BOUND_S = 120.0
# A shard is what moves when a worker is added; a few for each worker that may come.
SHARDS = 32
NODES = "SELECT count(*) FROM pg_dist_node WHERE noderole = 'primary' AND isactive"


def await_workers(coordinator: Member, shape: Shape) -> None:
    """Patroni has told the coordinator of every group."""

    def are_there() -> bool:
        try:
            return int(coordinator.psql(NODES)) == len(shape.groups)
        except Failure:
            return False

    wait_until(are_there, "the workers to join", WORKERS_BOUND_S)


def set_up(coordinator: Member, shape: Shape) -> None:
    """Extension, roles and, with Citus, the distribution."""
    coordinator.set_up()
    if shape.is_citus and coordinator.psql("SELECT mantle.is_distributed()").strip() == "f":
        coordinator.psql(f"SET citus.shard_count = {SHARDS}; SELECT mantle.distribute()")


def problems(leaders: dict[int, Member]) -> list[str]:
    """What `mantle.check_cluster()` finds missing, on which node."""
    rows = leaders[COORDINATOR].psql("SELECT node, problem, detail FROM mantle.check_cluster()", database=DATABASE)
    return rows.strip().splitlines()
