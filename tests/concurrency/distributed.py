"""A Citus cluster for these suites: a coordinator and two workers, each a server as in server.py, and databases whose
MetaTable is distributed.

Sessions connect to every node in turn, whether it has the directory or not: a client may be connected to any node. With
one worker all directories are on one node, and all sessions connect to it.
"""

import itertools
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from stack import citus
from stack.poll import wait_until

from . import verbs
from .server import SuiteServer
from .target import PlainTarget
from .tree import Op
from .verbs import Key

# The database in which workers run. In the others the tests call the steps of maintenance.
WORKED_DATABASE = "mantle_worked"
SETTINGS = {
    **citus.SETTINGS,
    "citus.shard_count": "8",
    "citus.shard_replication_factor": "2",  # distribute() makes one copy, whatever a server's setting is
    "citus.enable_unsafe_triggers": "on",  # for the failpoints
    "citus.recover_2pc_interval": "1s",
    "track_functions": "all",  # shows which node was asked
    "mantle.compaction_databases": WORKED_DATABASE,
}
RECOVERY_BOUND_S = 60.0
# Citus' own errors for a shard that leaves during a call: a missing table, a missing intermediate result, a nested
# query that is not local any more, a row that was searched at the shard's old place and inserted at its new one. All
# are errors, so the call is rolled back.
MOVED_CODES = ("42P01", "CIINF", "XX000", "23505")


class CitusCluster:
    """Three servers."""

    def __init__(self):
        password = secrets.token_urlsafe(24)  # one for all: each logs in at the others
        self.servers = [SuiteServer(number, SETTINGS, password) for number in range(1, citus.WORKERS + 2)]
        self.parameters = [server.parameters for server in self.servers]

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


class CitusTarget(PlainTarget):
    """One database on every node. `workers` of them have directories."""

    # Tombstones do not say what left them. Transactions across nodes have no common order but their requests' times.
    tells_pruning_apart = False
    knows_requests_everywhere = False

    def __init__(self, nodes: list[dict[str, str]], database: str, workers: int):
        super().__init__(nodes[0], database)
        self.all = [{**node, "dbname": database} for node in nodes[: workers + 1]]
        self.turn = itertools.cycle(self.all if workers > 1 else self.all[1:])

    def connect(self, _pid: int | None = None, **arguments) -> psycopg.Connection:
        return psycopg.connect(**next(self.turn), **{"autocommit": True, **arguments})

    def on_all_nodes(self, work) -> None:
        """Each node gets its own changes: Citus would send DDL to all nodes, or refuse it on a worker."""
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


@contextmanager
def distributed_target(cluster: CitusCluster, database: str, workers: int = citus.WORKERS) -> Iterator[CitusTarget]:
    """A new, empty distributed database."""
    citus.make_databases(cluster.servers, database)
    citus.join(cluster.servers, database, workers)
    yield CitusTarget(cluster.parameters, database, workers)
    citus.drop(cluster.servers, database)


# Shards of the MetaTable, and the single node of each.
# The steps of mantle.run_maintenance.
STEPS = (
    "compact",
    "compact_busy",
    "prune",
    "empty_trash",
    "purge_operations",
    "purge_requests",
    "purge_tombstones",
    "purge_attempts",
    "purge_freed",
)
PLACEMENTS = """
    SELECT s.shardid, n.nodename, n.nodeport FROM pg_dist_shard s JOIN pg_dist_placement p ON p.shardid = s.shardid
      JOIN pg_dist_node n ON n.groupid = p.groupid WHERE s.logicalrelid = 'mantle.meta'::regclass ORDER BY s.shardid
"""


def move(coordinator: psycopg.Connection, shard: int, source: tuple[str, int], to: tuple[str, int], mode: str) -> None:
    coordinator.execute(
        "SELECT citus_move_shard_placement(%s, %s, %s, %s, %s, shard_transfer_mode => %s)", (shard, *source, *to, mode)
    )


class SpreadNamespace:
    """Directories of a namespace by the worker that has them, and a session on each worker."""

    def __init__(self, target: CitusTarget):
        self.target = target
        self.sessions = [psycopg.connect(**node, autocommit=True) for node in target.all[1:]]
        self.coordinator = target.coordinator()
        self.ns = verbs.create_namespace(self.coordinator, f"spread-{uuid.uuid4().hex[:12]}")
        self.next_id = verbs.allocate_ids(self.coordinator, 1000)
        self.by_worker: list[list[int]] = [[], []]
        while min(len(ids) for ids in self.by_worker) < 3:
            id = self.new_id()
            self.call(self.coordinator, Op("mkdir", self.ns, f"d{id}/", id, explicit=True))
            self.by_worker[self.worker_of(id)].append(id)

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def shard_of(self, pid: int) -> int:
        return self.coordinator.execute(
            "SELECT get_shard_id_for_distribution_column('mantle.meta', %s::bigint)", (pid,)
        ).fetchone()[0]

    def worker_of(self, pid: int) -> int:
        shard = self.shard_of(pid)
        port = next(port for id, _, port in self.coordinator.execute(PLACEMENTS).fetchall() if id == shard)
        return [int(node["port"]) for node in self.target.all[1:]].index(port)

    def port(self, worker: int) -> int:
        return int(self.target.all[1 + worker]["port"])

    def call(self, session: psycopg.Connection, op: Op, key: Key | None = None) -> verbs.Answer:
        return verbs.call(session, self.ns, [op], [key or Key(uuid.uuid4())])[0]

    def name(self, id: int) -> str:
        return f"d{id}/"
