"""The database under test behind one class: it chooses the node of a session, and knows all nodes.

Here: one plain PostgreSQL, which has every directory. distributed.py has a class with the same methods for a Citus
cluster.
Invariant: tests reach the database through a target only.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from stack.poll import wait_until

TEMPLATE = "mantle_pristine"
CONNECT_BOUND_S = 60.0


class PlainTarget:
    """One database in one server."""

    # Tombstones of pruned directories can be told from those of requests.
    tells_pruning_apart = True
    # The verb itself refuses a request id that was used in another directory, not only mantle.replay.
    knows_requests_everywhere = True
    # SQLSTATEs, not Mantle's, of calls that met the move of a shard and were rolled back.
    moved_codes: tuple[str, ...] = ()

    def __init__(self, parameters: dict[str, str], database: str):
        self.parameters = {**parameters, "dbname": database}
        self.database = database

    def node_of(self, _pid: int) -> str:
        """The node that has a directory. Elements of one batch belong to one node."""
        return "0"

    def nodes(self) -> list[str]:
        return ["0"]

    def connect(self, _pid: int | None = None, **arguments) -> psycopg.Connection:
        """A session for operations on one directory (None: for reading). The caller may reuse it for directories of the
        same node.
        """
        return psycopg.connect(**self.parameters, **{"autocommit": True, **arguments})

    def connect_when_up(self, pid: int | None = None) -> psycopg.Connection:
        """The same after a crash: waits for the server to answer."""

        def attempt() -> psycopg.Connection | None:
            try:
                return self.connect(pid)
            except psycopg.OperationalError:
                return None

        return wait_until(attempt, f"a session in {self.database}", CONNECT_BOUND_S)

    def settle(self) -> None:
        """Waits until no transaction is in doubt; on one server none ever is."""

    def on_all_nodes(self, work) -> None:
        """Calls `work(connection)` on each node, to install failpoints and broken steps, which are functions there."""
        for _node in self.nodes():
            with self.connect() as connection:
                work(connection)


def make_template(parameters: dict[str, str]) -> None:
    """A database with the extension, to be copied: a copy takes a tenth of a second."""
    with psycopg.connect(**parameters, dbname="postgres", autocommit=True) as admin:
        if admin.execute("SELECT FROM pg_database WHERE datname = %s", (TEMPLATE,)).fetchone() is None:
            admin.execute(f"CREATE DATABASE {TEMPLATE}_new")
            with psycopg.connect(**parameters, dbname=f"{TEMPLATE}_new", autocommit=True) as fresh:
                fresh.execute("CREATE EXTENSION mantle")
            admin.execute(f"ALTER DATABASE {TEMPLATE}_new RENAME TO {TEMPLATE}")


@contextmanager
def fresh_target(parameters: dict[str, str], database: str) -> Iterator[PlainTarget]:
    """A new database with the extension and nothing else."""
    with psycopg.connect(**parameters, dbname="postgres", autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {database} TEMPLATE {TEMPLATE}")
    yield PlainTarget(parameters, database)
    with psycopg.connect(**parameters, dbname="postgres", autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
