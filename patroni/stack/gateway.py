"""The gateway of a stack; the bench starts more of them."""

import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from . import http, secret
from .account import Account
from .failure import Failure
from .layout import LOOPBACK, PROBES_OFFSET, REGION, Host, Layout
from .poll import wait_until
from .service import LOGGING, Service

OWNER_UID = 1000
# A volume begins with this many segments and grows by as many: 128 MiB, since machines for development are small.
SEGMENT_BYTES = 64 << 20
GROWTH_SEGMENTS = 2
THREADS = max(1, (os.cpu_count() or 1) // 2)  # all services share the machine's processors
NAMESPACE_BOUND_S = 30.0


@dataclass(frozen=True)
class Bucket:
    """A bucket of another object store for the bytes of objects. `secrets_file`: its keys. `authority`: the one that
    signs the store's certificate, where the endpoint is HTTPS.
    """

    name: str
    url: str
    endpoint: str
    secrets_file: Path
    authority: str | None = None

    def settings(self) -> str:
        """Its section of a gateway's settings."""
        options = {"aws_endpoint": self.endpoint, "aws_region": REGION}
        if self.authority is None:
            options["aws_allow_http"] = "true"
        listed = ", ".join(f'{name} = "{value}"' for name, value in options.items())
        authority = "" if self.authority is None else f'ca_file = "{self.authority}"\n'
        return f"""
[buckets.{self.name}]
url = "{self.url}"
options = {{ {listed} }}
secrets_file = "{self.secrets_file}"
{authority}"""


def bucket_keys(access_key: str, secret_key: str) -> str:
    """The text of a bucket's `secrets_file`."""
    return f'aws_access_key_id = "{access_key}"\naws_secret_access_key = "{secret_key}"\n'


class Gateway(Service):
    """One gateway: its settings, its stores of object bytes, its process. `replicas`: the IndexNodes it asks."""

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
        self.data: Path | None = layout.data / "objects"  # the folder of a file an object
        self.bucket: Bucket | None = None  # takes new bytes, if there is one
        self.volume: Path | None = None  # the folder of a volume, which takes them before a bucket
        self.volume_settings = {"segment_bytes": SEGMENT_BYTES, "growth_segments": GROWTH_SEGMENTS}
        self.inline_bytes_max = 0  # objects up to this size are kept inside PostgreSQL
        self.credentials = layout.config / "credentials.toml"

    def prepare(self) -> None:
        super().prepare()
        if self.volume is not None:
            self.account.own_folder(self.volume, 0o700)
        self.account.write(self.credentials, self.known_callers())

    def known_callers(self) -> str:
        """The text of the credentials' file."""
        return self.caller(OWNER_UID, [OWNER_UID])

    def caller(self, uid: int, gids: list[int], secrets: str = "") -> str:
        """A caller, whose secrets have names that begin so."""
        read = lambda name: secret.read(self.layout, f"{secrets}{name}")
        return f"""[[credential]]
access_key = "{read("access_key")}"
secret_key = "{read("secret_key")}"
token = "{read("token")}"
uid = {uid}
gids = {gids}
"""

    def settings(self) -> str:
        replicas = ", ".join(f'"{address}"' for address in self.replicas)
        threads = "" if self.threads is None else f"threads = {self.threads}\n"
        folder = "" if self.data is None else f'data_dir = "{self.data}"\n'
        takes_new = "volumes" if self.volume is not None else self.bucket.name if self.bucket is not None else None
        chosen = "" if takes_new is None else f'new_bytes = "{takes_new}"\n'
        stores = "" if self.volume is None else self._volume_settings()
        stores += "" if self.bucket is None else self.bucket.settings()
        batches = "" if self.batch_elements_max is None else f"batch_elements_max = {self.batch_elements_max}\n"
        limits = f"\n[limits]\ninline_bytes_max = {self.inline_bytes_max}\n" if self.inline_bytes_max else ""
        return f"""listen = "{self.host.address}:{self.port}"
probes_listen = "{self.probes_listen}"
{folder}{chosen}{threads}region = "{self.region}"
credentials_file = "{self.credentials}"
owner_name = "{self.owner_name}"

{self.database_settings(self.database_port, "gateway")}pool_size = 16
{batches}
[index]
replicas = [{replicas}]
{stores}{limits}"""

    def _volume_settings(self) -> str:
        settings = "".join(f"{name} = {value}\n" for name, value in self.volume_settings.items())
        return f"""
[volumes]
folder = "{self.volume}"
{settings}"""

    def create_namespace(
        self, name: str, token: str, *, mode: int | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        """Creates a namespace on a gateway that runs, unless it exists. `mode`: of its root."""
        target = f"{self.url}/v1/ns/{name}" + ("" if mode is None else f"?mode={mode:04o}")

        def create() -> tuple[int, str] | None:
            answer = http.call("PUT", target, token, tls=tls)
            return None if answer[0] in (0, 503) else answer

        status, body = wait_until(create, f"the namespace `{name}` to be made", NAMESPACE_BOUND_S)
        if status not in (200, 201, 409):
            raise Failure(f"the gateway refuses to make the namespace `{name}`: {status} {body}")
