"""A Citus cluster on one machine: servers of which the first is the coordinator and the others are workers, and databases in
it whose MetaTable is distributed. For the tests and the bench; Citus itself must be installed.
"""

from collections.abc import Sequence

from .build import postgresql_tree
from .failure import Failure
from .poll import wait_until
from .server import Server

# What every node needs.
SETTINGS = {
    "shared_preload_libraries": "citus,mantle",
    "citus.node_conninfo": "sslmode=disable",
    "max_connections": "200",
    "max_prepared_transactions": "200",
    "max_worker_processes": "32",
}
WORKERS = 2
IN_USE = "is being accessed by other users"
DROP_BOUND_S = 60
NOT_FOUND = "Citus: not found; on Debian its package belongs to this PostgreSQL's major version"


def is_installed() -> bool:
    """Is Citus among the server's extensions?"""
    return any(postgresql_tree().glob("share/postgresql/*/extension/citus.control"))


def make_databases(servers: Sequence[Server], database: str) -> None:
    """On every node, with both extensions, and a way for each to log in at the others; not a cluster yet."""
    drop(servers, database)
    for server in servers:
        server.postgresql.psql(f"CREATE DATABASE {database}", database="postgres")
        password = server.parameters["password"]
        server.postgresql.psql(
            "CREATE EXTENSION citus; CREATE EXTENSION mantle;"
            f"INSERT INTO pg_dist_authinfo VALUES (0, 'postgres', 'password={password}')",
            database=database,
        )


def join(servers: Sequence[Server], database: str, workers: int = WORKERS) -> None:
    """Makes so many workers a cluster with the coordinator, and what that holds a distributed TafDB."""
    add = "".join(
        f"SELECT citus_add_node('{node['host']}', {node['port']}) IS NULL;"
        for node in (s.parameters for s in servers[1 : workers + 1])
    )
    coordinator = servers[0].parameters
    servers[0].postgresql.psql(
        f"SELECT citus_set_coordinator_host('{coordinator['host']}', {coordinator['port']}); {add} SELECT mantle.distribute()",
        database=database,
    )


def drop(servers: Sequence[Server], database: str) -> None:
    """Again while somebody comes back who was told to go: Citus' maintenance daemon starts anew."""

    def is_gone(server: Server) -> bool:
        try:
            server.postgresql.psql(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)", database="postgres")
        except Failure as failure:
            if IN_USE not in str(failure):
                raise
            return False
        return True

    for server in servers:
        wait_until(lambda server=server: is_gone(server), f"{database} to be dropped", DROP_BOUND_S)
