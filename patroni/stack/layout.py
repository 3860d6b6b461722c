"""The paths and ports of a stack.

Invariant: a stack writes only below `folder`. Ports are `base + fixed offset`, so two stacks whose bases differ by 100
do not collide. The directory may be a link to a place that the unprivileged account can reach (account.py).
"""

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "patroni" / "config"
REPLICAS = (1, 2, 3)
DATABASE = "mantle"
INDEX_GROUPS = (1,)  # those of `make run`
REGION = "us-east-1"
PROBES_OFFSET = 30  # from a gateway's port for users to the one of its probes and metrics


@dataclass(frozen=True)
class Host:
    """A machine, or this one. `namespace`: its network namespace."""

    name: str
    address: str
    namespace: str | None = None


LOOPBACK = Host("", "127.0.0.1")  # without a name: its server's data is not below a directory of a host


def path_below(*parts: str) -> property:
    """A path below the stack's directory."""
    return property(lambda layout: layout.folder.joinpath(*parts))


def _port(offset: int) -> property:
    return property(lambda layout: layout.port_base + offset)


@dataclass(frozen=True)
class Layout:
    """Paths and ports of one stack."""

    folder: Path
    port_base: int

    gateway_port = _port(0)
    pgbouncer_port = _port(1)
    postgresql_port = _port(2)

    def more_gateway_port(self, number: int) -> int:
        """The port of a gateway that the bench starts, from 2 on."""
        return self.port_base + 1 + number

    def grpc_port(self, replica: int) -> int:
        return self.port_base + 10 + replica

    def http_port(self, replica: int) -> int:
        return self.port_base + 20 + replica

    def ports(self) -> dict[str, int]:
        """Every port, by the name of its service."""
        ports = {
            "gateway": self.gateway_port,
            "gateway probes": self.gateway_port + PROBES_OFFSET,
            "pgbouncer": self.pgbouncer_port,
            "postgresql": self.postgresql_port,
        }
        for replica in REPLICAS:
            ports[f"indexnode-{replica}"] = self.grpc_port(replica)
            ports[f"indexnode-{replica} http"] = self.http_port(replica)
        return ports

    @property
    def index_addresses(self) -> list[str]:
        return [f"127.0.0.1:{self.grpc_port(replica)}" for replica in REPLICAS]

    # Directories. Services own data, config and secrets; root owns pids, binaries and the environment file.
    data = path_below("data")
    config = path_below("config")
    secrets = path_below("secrets")
    certificates = path_below("secrets", "tls")  # of deployments that speak TLS
    logs = path_below("logs")
    pids = path_below("pids")
    binaries = path_below("bin")
    postgresql_tree = path_below("pg")
    postgresql_extensions = path_below("pg", "extension")
    postgresql_bin = path_below("pg", "bin")
    environment_file = path_below("env")
    client = path_below("client")  # the Python environment of S3 clients
    marks = path_below("marks")  # one file for each step that is done once in a stack's life, such as an import
