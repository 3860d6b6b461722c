"""The gateway of a stack; the bench starts more of them."""

import os
from pathlib import Path

from . import secret
from .account import Account
from .layout import LOOPBACK, PROBES_OFFSET, REGION, Host, Layout
from .service import LOGGING, Service

OWNER_UID = 1000
# A volume begins with this many segments and grows by as many: 128 MiB, since machines for development are small.
SEGMENT_BYTES = 64 << 20
GROWTH_SEGMENTS = 2
THREADS = max(1, (os.cpu_count() or 1) // 2)  # all services share the machine's processors


class Gateway(Service):
    """One gateway: its settings, its directory of object bytes, its process. `replicas`: the IndexNodes it asks."""

    def __init__(
        self,
        layout: Layout,
        account: Account,
        name: str = "gateway",
        *,
        host: Host = LOOPBACK,
        port: int | None = None,
        replicas: list[str] | None = None,
        batch_elements_max: int | None = None,
    ):
        program = [layout.binaries / "mantle-gateway", "--config"]
        super().__init__(layout, account, name, program, host=host, environment=LOGGING)
        self.port = port or layout.gateway_port
        self.url = f"http://{host.address}:{self.port}"
        self.probes_listen = f"{host.address}:{self.port + PROBES_OFFSET}"
        self.probe = f"http://{self.probes_listen}"
        self.replicas = replicas or layout.index_addresses
        self.database_port = layout.pgbouncer_port
        self.batch_elements_max = batch_elements_max
        self.threads: int | None = THREADS
        self.owner_name = "mantle"
        self.region = REGION
        self.data = layout.data / "objects"
        self.volume: Path | None = None  # the folder of a volume, which then takes new bytes
        self.growth_segments = GROWTH_SEGMENTS
        self.inline_bytes_max = 0  # objects up to this size are kept inside PostgreSQL
        self.credentials = layout.config / "credentials.toml"

    def prepare(self) -> None:
        super().prepare()
        if self.volume is not None:
            self.account.own_folder(self.volume, 0o700)
        read = lambda name: secret.read(self.layout, name)
        credential = f"""[[credential]]
access_key = "{read("access_key")}"
secret_key = "{read("secret_key")}"
token = "{read("token")}"
uid = {OWNER_UID}
gids = [{OWNER_UID}]
"""
        self.account.write(self.credentials, credential)

    def settings(self) -> str:
        replicas = ", ".join(f'"{address}"' for address in self.replicas)
        threads = "" if self.threads is None else f"threads = {self.threads}\n"
        stores = "" if self.volume is None else 'new_bytes = "volumes"\n'
        volume = "" if self.volume is None else self._volume_settings()
        batches = "" if self.batch_elements_max is None else f"batch_elements_max = {self.batch_elements_max}\n"
        limits = f"\n[limits]\ninline_bytes_max = {self.inline_bytes_max}\n" if self.inline_bytes_max else ""
        return f"""listen = "{self.host.address}:{self.port}"
probes_listen = "{self.probes_listen}"
data_dir = "{self.data}"
{stores}{threads}region = "{self.region}"
credentials_file = "{self.credentials}"
owner_name = "{self.owner_name}"

{self.database_settings(self.database_port, "gateway")}pool_size = 16
{batches}
[index]
replicas = [{replicas}]
{volume}{limits}"""

    def _volume_settings(self) -> str:
        return f"""
[volumes]
folder = "{self.volume}"
segment_bytes = {SEGMENT_BYTES}
growth_segments = {self.growth_segments}
"""
