"""The database of a cluster: extension, roles, distribution. Every step may be repeated.

Invariant: the steps run at the primary of the first group, after every worker has joined; Citus sends them to the
others.
"""

from stack.failure import Failure
from stack.layout import DATABASE
from stack.poll import wait_until

from .layout import Shape
from .member import Member

# Shards move to a new worker, so there are a few for each worker that may be added.
SHARDS = 32
NODES = "SELECT count(*) FROM pg_dist_node WHERE noderole = 'primary' AND isactive"


def await_workers(coordinator: Member, shape: Shape) -> None:
    """Waits until Patroni has added every group at the coordinator."""

    def are_there() -> bool:
        try:
            return int(coordinator.psql(NODES)) == len(shape.groups)
        except Failure:
            return False

    wait_until(are_there, "the workers to join", 120.0)


def set_up(coordinator: Member, shape: Shape) -> None:
    """Creates extension and roles and, with Citus, distributes the MetaTable."""
    coordinator.set_up()
    if shape.is_citus and coordinator.psql("SELECT mantle.is_distributed()").strip() == "f":
        coordinator.psql(f"SET citus.shard_count = {SHARDS}; SELECT mantle.distribute()")


def problems(coordinator: Member) -> list[str]:
    """The problems that `mantle.check_cluster()` finds, by node; an open namespace may be meant."""
    found = "SELECT node, problem, detail FROM mantle.check_cluster() WHERE problem <> 'open_namespace'"
    rows = coordinator.psql(found, database=DATABASE)
    return rows.strip().splitlines()
