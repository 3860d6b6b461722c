"""An IndexNode process of a stack."""

from .account import Account
from .layout import INDEX_GROUPS, LOOPBACK, Host, Layout
from .service import LOGGING, Service


class IndexNode(Service):
    """One process, with a replica of each index group."""

    READY_BOUND_S = 120.0  # includes a rebuild of some million directories

    def __init__(
        self,
        layout: Layout,
        account: Account,
        replica: int,
        groups: tuple[int, ...],
        host: Host = LOOPBACK,
        name: str | None = None,
    ):
        program = [layout.binaries / "mantle-indexnode", "--config"]
        super().__init__(layout, account, name or f"indexnode-{replica}", program, host=host, environment=LOGGING)
        self.replica, self.groups = replica, groups
        self.data = layout.data / self.name
        self.port, http_port = layout.grpc_port(replica), layout.http_port(replica)
        self.listen, self.http_listen = f"{host.address}:{self.port}", f"{host.address}:{http_port}"
        self.probe = f"http://{self.http_listen}"
        self.peers = layout.index_addresses
        self.database_port = layout.postgresql_port

    def settings(self) -> str:
        peers = ", ".join(f'"{address}"' for address in self.peers)
        return f"""groups = {list(self.groups)}
data_dir = "{self.data}"
listen = "{self.listen}"
http_listen = "{self.http_listen}"
peers = [{peers}]

{self.database_settings(self.database_port, "index")}"""

    def metric(self, name: str, group: int = INDEX_GROUPS[0]) -> float | None:
        """One sample of an index group; None where the process does not answer."""
        return self.metrics().get(f'{name}{{group="{group}"}}')
