"""Shards of the MetaTable that move from one node of Citus to another while clients work. Each function moves some and
returns the function that undoes it, as those of catalogue.py do.
"""

import random
from collections.abc import Callable
from contextlib import suppress

import psycopg

from cluster.cluster import Cluster
from stack.failure import Failure
from stack.poll import wait_until
from tests.cluster.clients import session

MOVES = 5
STEPS_BOUND_S = 60.0
Undo = Callable[[], None]


def shard_moved(cluster: Cluster, draw: random.Random) -> Undo:
    with session(cluster) as connection:
        shard = draw.choice(list(placements(connection)))
        move(connection, shard, draw)
    return lambda: None


def busy_shards_moved(cluster: Cluster, draw: random.Random) -> Undo:
    """Moves shards back and forth: each time the shard of the directory whose attributes changed last, so the next
    change comes from another node.
    """
    with session(cluster) as connection:
        for _ in range(MOVES):
            (shard,) = connection.execute(
                "SELECT get_shard_id_for_distribution_column('mantle.meta', r.pid) FROM mantle.requests r"
                " WHERE r.verb = 'set_attributes' ORDER BY r.created DESC LIMIT 1"
            ).fetchone()
            move(connection, shard, draw)
    return lambda: None


def one_shard_left(cluster: Cluster, draw: random.Random) -> Undo:
    """A node keeps one shard; its background worker goes on, step by step. Then the shards come back."""
    with session(cluster) as connection:
        before = placements(connection)
        here, there = draw.sample(sorted(set(before.values())), 2)
        leaving = sorted(shard for shard, node in before.items() if node == here)[1:]
        for shard in leaving:
            transfer(connection, shard, here, there, "block_writes")
        (group,) = connection.execute(
            "SELECT groupid FROM pg_dist_node WHERE (nodename, nodeport) = (%s, %s)", here
        ).fetchone()
    print(f"    one shard left: {here[0]}", flush=True)
    await_every_step(cluster, group)

    def undo() -> None:
        with suppress(psycopg.Error), session(cluster) as connection:  # another fault may keep a node busy
            for shard in leaving:
                transfer(connection, shard, there, here, "block_writes")

    return undo


def await_every_step(cluster: Cluster, group: int) -> None:
    """Waits until each step of a node's background worker has succeeded once more."""
    with session(cluster, group) as connection:
        (begun,) = connection.execute("SELECT clock_timestamp()").fetchone()

        def have_succeeded() -> bool:
            done = connection.execute("SELECT bool_and(succeeded > %s) FROM mantle.worker_steps", (begun,))
            return done.fetchone()[0]

        try:
            wait_until(have_succeeded, "every step of the background worker", STEPS_BOUND_S)
        except Failure as failure:
            problems = connection.execute("SELECT mantle.worker_problems()").fetchall()
            raise AssertionError(f"{failure}: {problems}") from failure


def placements(connection: psycopg.Connection) -> dict[int, tuple[str, int]]:
    """The node of each shard."""
    rows = connection.execute(
        "SELECT s.shardid, n.nodename, n.nodeport FROM pg_dist_shard s JOIN pg_dist_placement p USING (shardid)"
        " JOIN pg_dist_node n ON n.groupid = p.groupid AND n.noderole = 'primary' "
        " WHERE s.logicalrelid = 'mantle.meta'::regclass"
    ).fetchall()
    return {shard: (host, port) for shard, host, port in rows}


def move(connection: psycopg.Connection, shard: int, draw: random.Random) -> None:
    """Moves it to another node that has shards."""
    nodes = placements(connection)
    here = nodes[shard]
    there = draw.choice(sorted(set(nodes.values()) - {here}))
    transfer(connection, shard, here, there, "force_logical")


def transfer(
    connection: psycopg.Connection, shard: int, here: tuple[str, int], there: tuple[str, int], mode: str
) -> None:
    connection.execute("SELECT citus_move_shard_placement(%s, %s, %s, %s, %s, %s)", (shard, *here, *there, mode))
