"""A Citus cluster of these suites' own: a coordinator and two workers, each a PostgreSQL as in cluster.py, and databases in it
whose MetaTable is distributed.

Sessions go to every node in turn, whether it has the directory or not: a client of the product may be connected to any. With
one worker all directories are on one node, whose sessions carry everything out there.
"""

import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from cluster import Cluster
from stack.build import postgresql_tree
from stack.poll import wait_until
from target import PlainTarget

SETTINGS = {
    "shared_preload_libraries": "citus,mantle",
    "citus.node_conninfo": "sslmode=disable",
    "citus.shard_count": "8",
    "citus.enable_unsafe_triggers": "on",  # the failpoints'
    "citus.recover_2pc_interval": "1s",
    "track_functions": "all",  # which node was asked
    "max_connections": "200",
    "max_prepared_transactions": "200",
    "max_worker_processes": "32",
}
WORKERS = 2
RECOVERY_BOUND_S = 60.0
# Citus' own words for a shard that leaves during a call: a table that is gone, an intermediate result that went with it, a
# nested query that is not local any more. All are errors, so the call is rolled back.
MOVED_CODES = ("42P01", "CIINF", "XX000")


def is_installed() -> bool:
    """Is Citus among the server's extensions?"""
    return any(postgresql_tree().glob("share/postgresql/*/extension/citus.control"))


class CitusCluster:
    """Three servers."""

    def __init__(self):
        password = secrets.token_urlsafe(24)  # one for all: each has to log in at the others
        self.servers = [Cluster(number, SETTINGS, password) for number in range(1, WORKERS + 2)]
        self.parameters = [server.parameters for server in self.servers]

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


class CitusTarget(PlainTarget):
    """One database on every node. `workers` of them have directories."""

    # Tombstones do not say who left them, and transactions of several nodes have no common order but their requests' times.
    tells_pruning_apart = False
    knows_requests_everywhere = False

    def __init__(self, nodes: list[dict[str, str]], database: str, workers: int):
        super().__init__(nodes[0], database)
        self.all = [{**node, "dbname": database} for node in nodes[: workers + 1]]
        self.turn = itertools.cycle(self.all if workers > 1 else self.all[1:])

    def connect(self, _pid: int | None = None, **arguments) -> psycopg.Connection:
        return psycopg.connect(**next(self.turn), **{"autocommit": True, **arguments})

    def on_all_nodes(self, work) -> None:
        """What `work` makes is each node's own: Citus would send it to all, or refuse it on a worker."""
        for node in self.all:
            with psycopg.connect(**node, autocommit=True) as connection:
                connection.execute("SET citus.enable_ddl_propagation = off")
                work(connection)

    def coordinator(self) -> psycopg.Connection:
        return psycopg.connect(**self.all[0], autocommit=True)

    def settle(self) -> None:
        """Waits until no transaction is in doubt."""
        with self.coordinator() as connection:
            wait_until(lambda: self._is_settled(connection), "the end of transactions in doubt", RECOVERY_BOUND_S)

    def _is_settled(self, connection: psycopg.Connection) -> bool:
        left = connection.execute(
            "SELECT sum(result::int) FROM run_command_on_all_nodes("
            "'SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()')"
        ).fetchone()[0]
        if left:
            connection.execute("SELECT run_command_on_all_nodes('SELECT recover_prepared_transactions()')")
        return left == 0


def make_databases(nodes: list[dict[str, str]], database: str) -> None:
    """On every node, with both extensions; not a cluster yet."""
    drop(nodes, database)
    for node in nodes:
        with psycopg.connect(**node, dbname="postgres", autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {database}")
        with psycopg.connect(**node, dbname=database, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION citus")
            connection.execute("CREATE EXTENSION mantle")
            password = f"password={node['password']}"
            connection.execute("INSERT INTO pg_dist_authinfo VALUES (0, 'postgres', %s)", (password,))


def join(coordinator: psycopg.Connection, nodes: list[dict[str, str]], workers: int) -> None:
    """Makes the nodes a cluster, and what the coordinator holds a distributed TafDB."""
    coordinator.execute("SELECT citus_set_coordinator_host(%s, %s)", (nodes[0]["host"], int(nodes[0]["port"])))
    for worker in nodes[1 : workers + 1]:
        coordinator.execute("SELECT citus_add_node(%s, %s)", (worker["host"], int(worker["port"])))
    coordinator.execute("SELECT mantle.distribute()")


def drop(nodes: list[dict[str, str]], database: str) -> None:
    for node in nodes:
        with psycopg.connect(**node, dbname="postgres", autocommit=True) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")


@contextmanager
def distributed_target(cluster: CitusCluster, database: str, workers: int = WORKERS) -> Iterator[CitusTarget]:
    """A distributed database of the caller's own, and nothing in it."""
    make_databases(cluster.parameters, database)
    target = CitusTarget(cluster.parameters, database, workers)
    with target.coordinator() as coordinator:
        join(coordinator, cluster.parameters, workers)
    yield target
    drop(cluster.parameters, database)
