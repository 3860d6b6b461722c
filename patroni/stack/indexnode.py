"""An IndexNode process of a stack."""

from . import http
from .account import Account
from .layout import DATABASE, INDEX_GROUPS, Layout
from .poll import wait_until
from .process import Process
from .terminal import write_private

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
        self.process = Process(
            name=self.name,
            command=[str(layout.binaries / "mantle-indexnode"), "--config", str(self.config)],
            account=account,
            pid_file=layout.pids / self.name,
            log_file=layout.logs / f"{self.name}.log",
            environment={"RUST_BACKTRACE": "1", "RUST_LOG": "info"},
        )

    @property
    def probe(self) -> str:
        return f"http://{self.http_listen}"

    def prepare(self) -> None:
        self.data.mkdir(mode=0o700, exist_ok=True)
        self.account.own(self.data)
        write_private(self.config, self.settings())
        self.account.own(self.config)

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
