"""The gateway of a stack; the bench starts more of them."""

import os

from . import http, secret
from .account import Account
from .layout import DATABASE, REGION, Layout
from .poll import wait_until
from .process import SERVICE_ENVIRONMENT, Process

READY_BOUND_S = 60.0
OWNER_UID = 1000
THREADS = max(1, (os.cpu_count() or 1) // 2)  # all services share the machine's processors


class Gateway:
    """One gateway: its settings, its directory of object bytes, its process."""

    def __init__(self, layout: Layout, account: Account, number: int = 1, batch_elements_max: int | None = None):
        name = "gateway" if number == 1 else f"gateway-{number}"
        self.layout = layout
        self.account = account
        self.listen = f"127.0.0.1:{layout.gateway_port_of(number)}"
        self.url = f"http://{self.listen}"
        self.database = ("127.0.0.1", layout.pgbouncer_port)
        self.replicas = layout.index_addresses
        self.batch_elements_max = batch_elements_max
        self.threads: int | None = THREADS
        self.owner_name = "mantle"
        self.data = layout.data / "objects"
        self.config = layout.config / f"{name}.toml"
        self.credentials = layout.config / "credentials.toml"
        command = [str(layout.binaries / "mantle-gateway"), "--config", str(self.config)]
        self.process = Process.of(layout, account, name, command, environment=SERVICE_ENVIRONMENT)

    def prepare(self) -> None:
        self.account.make(self.data, 0o700)
        self.account.write(self.credentials, self._credentials())
        self.account.write(self.config, self.settings())

    def settings(self) -> str:
        host, port = self.database
        replicas = ", ".join(f'"{address}"' for address in self.replicas)
        threads = "" if self.threads is None else f"threads = {self.threads}\n"
        batches = "" if self.batch_elements_max is None else f"batch_elements_max = {self.batch_elements_max}\n"
        return f"""listen = "{self.listen}"
data_dir = "{self.data}"
{threads}region = "{REGION}"
credentials_file = "{self.credentials}"
owner_name = "{self.owner_name}"

[postgres]
host = "{host}"
port = {port}
database = "{DATABASE}"
user = "gateway"
password_file = "{self.layout.secrets / "gateway"}"
pool_size = 16
{batches}
[index]
replicas = [{replicas}]
"""

    def _credentials(self) -> str:
        return f"""[[credential]]
access_key = "{secret.read(self.layout, "access_key")}"
secret_key = "{secret.read(self.layout, "secret_key")}"
token = "{secret.read(self.layout, "token")}"
uid = {OWNER_UID}
gids = [{OWNER_UID}]
"""

    def start(self) -> None:
        self.process.start()

    def await_ready(self, bound_s: float = READY_BOUND_S) -> None:
        wait_until(self.is_ready, "the gateway", bound_s, self.process.why_dead)

    def is_ready(self) -> bool:
        return http.is_ready(f"{self.url}/readyz")

    def metrics(self) -> dict[str, float]:
        return http.metrics(f"{self.url}/metrics")
