"""Hosts, addresses and ports of a cluster.

Invariant: a directory keeps the shape and the network of its first start (`shape.json`): etcd and the Raft group know
their members by address. Ports are the usual ones, since every host has its own address.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from stack.layout import DATABASE, Host, Layout, path_below

ETCD = 3
VOTERS = 3
GATEWAYS = 2
COORDINATOR = 0

PORT_ETCD = 2379
PORT_ETCD_PEER = 2380
PORT_ETCD_METRICS = 2381
PORT_POSTGRESQL = 5432
PORT_PGBOUNCER = 6432
PORT_PATRONI = 8008
PORT_HAPROXY_METRICS = 8405
PORT_INDEX_GRPC = 7410
PORT_GATEWAY = 7400

# The slot of the first index group in a new database, named as by `mantle.new_slot_name(1)`.
SLOT = f"mantle_index_1_{hashlib.sha256(DATABASE.encode()).hexdigest()[:8]}"
# What the shape of a cluster that an older release made does not say.
BEFORE = {"slot": "mantle_index_1", "has_store": False}

# The last part of an address. Permits seven groups of nine servers, nine replicas, nine gateways and a store.
AT_US = 1
AT_ETCD = 10
AT_GROUP = 20
AT_GROUP_STEP = 10
AT_INDEX = 100
AT_GATEWAY = 110
AT_STORE = 121


@dataclass(frozen=True)
class Shape:
    """The number of servers of each kind."""

    network: str  # the first three parts of every address
    has_namespaces: bool
    is_citus: bool
    workers: int
    standbys: int = 1
    learners: int = 1
    slot: str = SLOT
    has_store: bool = True  # of the objects' bytes, on a host of its own

    @property
    def groups(self) -> list[int]:
        """PostgreSQL's groups; 0 is the coordinator, or the only one."""
        return list(range(self.workers + 1 if self.is_citus else 1))


@dataclass(frozen=True)
class ClusterLayout(Layout):
    """Paths as in a stack; hosts by name."""

    shape: Shape

    # Every host has an address of its own, so the ports are the same everywhere.
    pgbouncer_port = PORT_PGBOUNCER
    postgresql_port = PORT_POSTGRESQL

    def grpc_port(self, replica: int) -> int:
        return PORT_INDEX_GRPC

    def http_port(self, replica: int) -> int:
        return PORT_INDEX_GRPC + 10

    @property
    def tag(self) -> str:
        """Distinguishes this cluster's kernel objects from those of others."""
        return hashlib.sha256(str(self.folder).encode()).hexdigest()[:6]

    @property
    def own_address(self) -> str:
        """This machine's address as the hosts see it."""
        return f"{self.shape.network}.{AT_US}" if self.shape.has_namespaces else "127.0.0.1"

    @property
    def clients(self) -> str:
        """The network that connections may come from."""
        return f"{self.shape.network}.0/24" if self.shape.has_namespaces else "127.0.0.0/8"

    @property
    def nodes(self) -> list[str]:
        """The networks of PostgreSQL's servers: the addresses between etcd's and the IndexNodes'."""
        ranges = ("16/28", "32/27", "64/27", "96/30")
        return [f"{self.shape.network}.{part}" for part in ranges] if self.shape.has_namespaces else [self.clients]

    def host(self, name: str, number: int) -> Host:
        namespace = f"mantle-{self.tag}-{name}" if self.shape.has_namespaces else None
        return Host(name, f"{self.shape.network}.{number}", namespace)

    @property
    def etcd_hosts(self) -> list[Host]:
        return [self.host(f"etcd{n}", AT_ETCD + n) for n in range(1, ETCD + 1)]

    def group_hosts(self, group: int) -> list[Host]:
        name = "postgresql" if not self.shape.is_citus else f"worker{group}" if group else "coordinator"
        first = AT_GROUP + AT_GROUP_STEP * group
        return [self.host(f"{name}-{n}", first + n) for n in range(1, self.shape.standbys + 2)]

    @property
    def index_hosts(self) -> list[Host]:
        """Voters, then learners."""
        return [self.host(f"index{n}", AT_INDEX + n) for n in range(1, VOTERS + self.shape.learners + 1)]

    @property
    def gateway_hosts(self) -> list[Host]:
        return [self.host(f"gateway{n}", AT_GATEWAY + n) for n in range(1, GATEWAYS + 1)]

    @property
    def store_hosts(self) -> list[Host]:
        """The host of the store of objects' bytes, or none."""
        return [self.host("store", AT_STORE)] if self.shape.has_store else []

    @property
    def database_hosts(self) -> list[Host]:
        return [host for group in self.shape.groups for host in self.group_hosts(group)]

    @property
    def hosts(self) -> list[Host]:
        return [*self.etcd_hosts, *self.database_hosts, *self.index_hosts, *self.gateway_hosts, *self.store_hosts]

    @property
    def index_addresses(self) -> list[str]:
        """gRPC addresses of voters and learners."""
        return [f"{host.address}:{PORT_INDEX_GRPC}" for host in self.index_hosts]

    patroni = path_below("patroni")  # Patroni's Python environment


def read_shape(folder: Path) -> Shape | None:
    """The shape that a directory was made with, also by an older release; None for a new one."""
    try:
        return Shape(**{**BEFORE, **json.loads((folder / "shape.json").read_text(encoding="ascii"))})
    except FileNotFoundError:
        return None


def keep_shape(folder: Path, shape: Shape) -> None:
    (folder / "shape.json").write_text(json.dumps(asdict(shape)) + "\n", encoding="ascii")
