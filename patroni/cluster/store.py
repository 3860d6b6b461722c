"""The store of the objects' bytes: a second, small Mantle on a host of its own. Both gateways use its S3 as a bucket.
So they share nothing, and the loss of a gateway's machine costs no bytes.

It is one machine, and the loss of that one is not survived: in production a bucket is on several (patroni/README.md).
Its services are those of a stack: a PostgreSQL without Citus, one IndexNode, and a gateway with a volume.

Invariant: other hosts reach its S3, over TLS, and its probes; all else listens for the host itself alone. The gateways'
key reads and writes one bucket, which belongs to somebody else.
"""

from stack import secret, tls
from stack.account import Account
from stack.gateway import Bucket, Gateway, bucket_keys
from stack.indexnode import IndexNode
from stack.layout import INDEX_GROUPS, path_below
from stack.postgresql import PostgreSQL
from stack.service import Service, command_on, start_each

from . import certificates
from .layout import PORT_GATEWAY, PORT_INDEX_GRPC, ClusterLayout

NAME = "main"  # of the bucket in the gateways' settings, and so in every locator
BUCKET = "bytes"
# The bucket is the administrator's. The gateways are in its group: they may use it, not remove it or open it to others.
ADMINISTRATOR_UID, GATEWAYS_UID = 0, 2000
BUCKET_MODE = 0o770
KEY = "gateways_"  # what the names of the gateways' secrets begin with

# Other services of this machine need its memory.
SETTINGS = """listen_addresses = '{address}'
shared_buffers = '32MB'
maintenance_work_mem = '32MB'
wal_buffers = '4MB'
min_wal_size = '80MB'
max_wal_size = '512MB'
"""


class StoreLayout(ClusterLayout):
    """The cluster's, with secrets of its own. `address`: at which its services reach each other, and no other host."""

    secrets = path_below("secrets", "store")

    @property
    def address(self) -> str:
        return "127.0.0.1" if self.shape.has_namespaces else self.store_hosts[0].address

    @property
    def index_addresses(self) -> list[str]:
        return [f"{self.address}:{PORT_INDEX_GRPC}"]


class StorePostgreSQL(PostgreSQL):
    """The server, which answers on its own host alone. So its clients run there."""

    ACCESS = """# This host only, passwords only. The IndexNode's replication names the database: this line covers it.
host all all 127.0.0.0/8 scram-sha-256
"""

    def __init__(self, layout: StoreLayout, account: Account):
        super().__init__(layout, account, layout.store_hosts[0])

    def prepare(self) -> None:
        self.account.own_folder(self.data.parent, 0o700)
        super().prepare()

    def settings(self) -> str:
        return super().settings() + SETTINGS.format(address=self.layout.address)

    def client_environment(self, *arguments, **options) -> dict[str, str]:
        return {**super().client_environment(*arguments, **options), "PGHOST": self.layout.address}

    def client_command(self, command: list) -> list:
        return command_on(self.host, self.account, command)[0]


class StoreIndexNode(IndexNode):
    """The only replica of the store's index."""

    def __init__(self, layout: StoreLayout, account: Account):
        super().__init__(layout, account, 1, INDEX_GROUPS[:1], layout.store_hosts[0], "store-indexnode")
        (self.listen,) = layout.index_addresses
        self.database_address = layout.address


class StoreGateway(Gateway):
    """The gateway, which keeps bytes in a volume."""

    def __init__(self, layout: StoreLayout, account: Account):
        super().__init__(layout, account, "store-gateway", host=layout.store_hosts[0], port=PORT_GATEWAY)
        self.url = f"https://{self.host.address}:{self.port}"
        # Directly: one gateway needs no pooler.
        self.database_address, self.database_port = layout.address, layout.postgresql_port
        self.data, self.volume = None, layout.data / "store-volume"
        self.credentials = layout.config / f"{self.name}-credentials.toml"
        self.owner_name = self.name

    def known_callers(self) -> str:
        # What the administrator makes gets the first of its groups.
        administrator = self.caller(ADMINISTRATOR_UID, [GATEWAYS_UID])
        return administrator + self.caller(GATEWAYS_UID, [GATEWAYS_UID], KEY)

    def settings(self) -> str:
        return f"{super().settings()}\n{tls.https(certificates.of(self.layout, self.host, '-https'))}"


class Store:
    """All of the store."""

    SECRETS = (
        *secret.ROLES,
        *(f"{whose}{name}" for whose in ("", KEY) for name in ("access_key", "secret_key", "token")),
    )

    def __init__(self, layout: ClusterLayout, account: Account):
        self.layout, self.account = StoreLayout(layout.folder, layout.port_base, layout.shape), account
        self.postgresql = StorePostgreSQL(self.layout, account)
        self.indexnode = StoreIndexNode(self.layout, account)
        self.gateway = StoreGateway(self.layout, account)

    def services(self) -> list[Service]:
        """In the order of their start."""
        return [self.postgresql, self.indexnode, self.gateway]

    def prepare(self) -> None:
        """Makes the secrets, and the file with the gateways' key."""
        secret.make_missing(self.layout, self.account, self.SECRETS)
        read = lambda name: secret.read(self.layout, f"{KEY}{name}")
        keys = bucket_keys(read("access_key"), read("secret_key"))
        self.account.write(bucket_of(self.layout).secrets_file, keys)

    def start(self) -> None:
        """Starts what does not run, and makes the bucket."""
        start_each([self.postgresql])
        self.postgresql.set_up()
        self.postgresql.psql(f"SELECT mantle.create_index_group({INDEX_GROUPS[0]})")
        start_each([self.indexnode])
        start_each([self.gateway])
        trusted = certificates.client_context(self.layout)
        self.gateway.create_namespace(BUCKET, secret.read(self.layout, "token"), mode=BUCKET_MODE, tls=trusted)


def bucket_of(layout: ClusterLayout) -> Bucket:
    """The bucket, as the gateways' settings name it."""
    (host,) = layout.store_hosts
    authority = str(certificates.path(layout, f"{certificates.AUTHORITY}.crt"))
    keys = layout.folder / "secrets" / "bucket.toml"
    return Bucket(NAME, f"s3://{BUCKET}", f"https://{host.address}:{PORT_GATEWAY}", keys, authority)
