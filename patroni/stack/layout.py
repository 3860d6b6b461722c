"""The paths and ports of a stack.

Invariant: a stack writes only below `folder`. Ports are `base + fixed offset`, so two stacks whose bases differ by 100
do not collide. The directory may be a link to a place that the unprivileged account can reach (account.py).
"""

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "patroni" / "config"
REPLICAS = (1, 2, 3)
POSTGRESQL_MAJOR = "15"
DATABASE = "mantle"
INDEX_GROUPS = (1,)  # those of `make run`
REGION = "us-east-1"

PORT_GATEWAY = 0
PORT_PGBOUNCER = 1
PORT_POSTGRESQL = 2
PORT_MORE_GATEWAYS = 1  # + number, from 2 on
PORT_INDEX_GRPC = 10  # + replica
PORT_INDEX_HTTP = 20  # + replica


def _below(*parts: str) -> property:
    """A path below the layout's directory."""
    return property(lambda layout: layout.folder.joinpath(*parts))


@dataclass(frozen=True)
class Layout:
    """Paths and ports of one stack."""

    folder: Path
    port_base: int

    @property
    def gateway_port(self) -> int:
        return self.gateway_port_of(1)

    def gateway_port_of(self, number: int) -> int:
        """Gateways after the first one are started by the bench only."""
        return self.port_base + (PORT_GATEWAY if number == 1 else PORT_MORE_GATEWAYS + number)

    @property
    def pgbouncer_port(self) -> int:
        return self.port_base + PORT_PGBOUNCER

    @property
    def postgresql_port(self) -> int:
        return self.port_base + PORT_POSTGRESQL

    def grpc_port(self, replica: int) -> int:
        return self.port_base + PORT_INDEX_GRPC + replica

    def http_port(self, replica: int) -> int:
        return self.port_base + PORT_INDEX_HTTP + replica

    def ports(self) -> dict[str, int]:
        """Every port, by the name of its service."""
        ports = {"gateway": self.gateway_port, "pgbouncer": self.pgbouncer_port, "postgresql": self.postgresql_port}
        for replica in REPLICAS:
            ports[f"indexnode-{replica}"] = self.grpc_port(replica)
            ports[f"indexnode-{replica} http"] = self.http_port(replica)
        return ports

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}"

    @property
    def index_addresses(self) -> list[str]:
        return [f"127.0.0.1:{self.grpc_port(replica)}" for replica in REPLICAS]

    # Directories. Services own data, config and secrets; root owns pids, binaries and the environment file.
    data = _below("data")
    config = _below("config")
    secrets = _below("secrets")
    logs = _below("logs")
    pids = _below("pids")
    binaries = _below("bin")
    postgresql_tree = _below("pg")
    postgresql_bin = _below("pg", "lib", "postgresql", POSTGRESQL_MAJOR, "bin")
    environment_file = _below("env")
    marks = _below("marks")  # one file for each step that is done once in a stack's life, such as an import
