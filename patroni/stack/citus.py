"""A Citus cluster on one machine, for the tests and the bench: a coordinator, workers, and databases whose MetaTable is
distributed. Citus must be installed.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from . import servers
from .build import postgresql_tree
from .failure import Failure
from .poll import wait_until
from .server import Server

# Settings that every node needs.
SETTINGS = {
    "shared_preload_libraries": "citus,mantle",
    "citus.node_conninfo": "sslmode=disable",
    "max_connections": "200",
    "max_prepared_transactions": "200",
    "max_worker_processes": "32",
}
WORKERS = 2
MAJORS = ("15", "16", "17")  # that Citus 13.2 exists for
NOT_FOUND = "Citus: not found; on Debian its package belongs to this PostgreSQL's major version"


def absence() -> str:
    """Why there is no Citus."""
    major = servers.major()
    return NOT_FOUND if major in MAJORS else f"Citus: there is none for PostgreSQL {major} (13.2 is for 15 to 17)"


def is_installed() -> bool:
    """Checks that Citus is among the server's extensions."""
    return (postgresql_tree() / "extension" / "citus.control").exists()


def make_databases(servers: Sequence[Server], database: str) -> None:
    """Makes a database on every node, with both extensions and logins between nodes. The nodes are no cluster yet."""
    drop(servers, database)

    def make(server: Server) -> None:
        server.postgresql.psql(f"CREATE DATABASE {database}", database="postgres")
        password = server.parameters["password"]
        server.postgresql.psql(
            "CREATE EXTENSION citus; CREATE EXTENSION mantle;"
            f"INSERT INTO pg_dist_authinfo VALUES (0, 'postgres', 'password={password}')",
            database=database,
        )

    _on_each(make, servers)


def _on_each(work: Callable[[Server], None], servers: Sequence[Server]) -> None:
    """On all servers at once: each has its own files and processes."""
    with ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(work, servers))


def join(servers: Sequence[Server], database: str, workers: int = WORKERS) -> None:
    """Joins this many workers to the coordinator, and distributes the TafDB in the database."""
    address = lambda server: f"'{server.parameters['host']}', {server.parameters['port']}"
    add = "".join(f"SELECT citus_add_node({address(node)}) IS NULL;" for node in servers[1 : workers + 1])
    first = f"SELECT citus_set_coordinator_host({address(servers[0])});"
    servers[0].postgresql.psql(f"{first} {add} SELECT mantle.distribute()", database=database)


def drop(servers: Sequence[Server], database: str) -> None:
    """Retries, since Citus' maintenance daemon reconnects after it was terminated."""

    def is_gone(server: Server) -> bool:
        try:
            server.postgresql.psql(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)", database="postgres")
        except Failure as failure:
            if "is being accessed by other users" not in str(failure):
                raise
            return False
        return True

    _on_each(lambda server: wait_until(lambda: is_gone(server), f"{database} to be dropped", 60), servers)
