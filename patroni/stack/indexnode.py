"""An IndexNode replica of a stack."""

from . import http
from .account import Account
from .layout import DATABASE, INDEX_GROUP, Layout
from .poll import wait_until
from .process import Process
from .terminal import write_private

READY_BOUND_S = 120.0  # a rebuild of some million directories included


class IndexNode:
    """One replica: its settings, its folder, its process."""

    def __init__(self, layout: Layout, account: Account, replica: int):
        self.layout = layout
        self.account = account
        self.replica = replica
        self.name = f"indexnode-{replica}"
        self.data = layout.data / self.name
        self.config = layout.config / f"{self.name}.toml"
        self.probe = f"http://127.0.0.1:{layout.http_port(replica)}"
        self.process = Process(
            name=self.name,
            command=[str(layout.binaries / "mantle-indexnode"), "--config", str(self.config)],
            account=account,
            pid_file=layout.pids / self.name,
            log_file=layout.logs / f"{self.name}.log",
            environment={"RUST_BACKTRACE": "1", "RUST_LOG": "info"},
        )

    def prepare(self) -> None:
        self.data.mkdir(mode=0o700, exist_ok=True)
        self.account.own(self.data)
        peers = ", ".join(f'"{address}"' for address in self.layout.index_addresses)
        text = f"""group = {INDEX_GROUP}
data_dir = "{self.data}"
listen = "127.0.0.1:{self.layout.grpc_port(self.replica)}"
http_listen = "127.0.0.1:{self.layout.http_port(self.replica)}"
peers = [{peers}]

[postgres]
host = "127.0.0.1"
port = {self.layout.postgresql_port}
database = "{DATABASE}"
user = "index"
password_file = "{self.layout.secrets / "index"}"
"""
        write_private(self.config, text)
        self.account.own(self.config)

    def start(self) -> None:
        self.process.start()

    def await_ready(self, bound_s: float = READY_BOUND_S) -> None:
        wait_until(self.is_ready, f"{self.name} to answer lookups", bound_s, self.process.why_dead)

    def is_ready(self) -> bool:
        return http.is_ready(f"{self.probe}/readyz")

    def metrics(self) -> dict[str, float]:
        return http.metrics(f"{self.probe}/metrics")
