"""An IndexNode process of a stack."""

from . import http
from .account import Account
from .layout import DATABASE, INDEX_GROUPS, Layout
from .poll import wait_until
from .process import SERVICE_ENVIRONMENT, Process

READY_BOUND_S = 120.0  # includes a rebuild of some million directories


class IndexNode:
    """One process, with a replica of each index group."""

    def __init__(self, layout: Layout, account: Account, replica: int, groups: tuple[int, ...]):
        self.layout = layout
        self.account = account
        self.replica = replica
        self.groups = groups
        self.name = f"indexnode-{replica}"
        self.data = layout.data / self.name
        self.config = layout.config / f"{self.name}.toml"
        self.listen = f"127.0.0.1:{layout.grpc_port(replica)}"
        self.http_listen = f"127.0.0.1:{layout.http_port(replica)}"
        self.database = ("127.0.0.1", layout.postgresql_port)
        command = [str(layout.binaries / "mantle-indexnode"), "--config", str(self.config)]
        self.process = Process.of(layout, account, self.name, command, environment=SERVICE_ENVIRONMENT)

    @property
    def probe(self) -> str:
        return f"http://{self.http_listen}"

    def prepare(self) -> None:
        self.account.make(self.data, 0o700)
        self.account.write(self.config, self.settings())

    def settings(self) -> str:
        peers = ", ".join(f'"{address}"' for address in self.layout.index_addresses)
        host, port = self.database
        return f"""groups = {list(self.groups)}
data_dir = "{self.data}"
listen = "{self.listen}"
http_listen = "{self.http_listen}"
peers = [{peers}]

[postgres]
host = "{host}"
port = {port}
database = "{DATABASE}"
user = "index"
password_file = "{self.layout.secrets / "index"}"
"""

    def start(self) -> None:
        self.process.start()

    def await_ready(self, bound_s: float = READY_BOUND_S) -> None:
        wait_until(self.is_ready, f"{self.name} to answer lookups", bound_s, self.process.why_dead)

    def is_ready(self) -> bool:
        return http.is_ready(f"{self.probe}/readyz")

    def metrics(self) -> dict[str, float]:
        return http.metrics(f"{self.probe}/metrics")

    def metric(self, name: str, group: int = INDEX_GROUPS[0]) -> float | None:
        """One sample of an index group; None where the process does not answer."""
        return self.metrics().get(f'{name}{{group="{group}"}}')
