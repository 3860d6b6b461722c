"""TLS of a cluster: two authorities of its own, and a certificate for each use on each host.

Invariant: etcd's authority signs etcd's members and Patroni, and nobody else: a client that etcd knows can promote a
stale standby. The other one signs the services.
"""

import ssl

from stack import certificates
from stack.account import Account
from stack.certificates import AUTHORITY, BOTH, SERVER, make, path
from stack.layout import Host

from .layout import PORT_ETCD, PORT_ETCD_PEER, PORT_PATRONI, PORT_PGBOUNCER, PORT_POSTGRESQL, ClusterLayout

ETCD_AUTHORITY = "ca"
ADMINISTRATOR = "administrator"
# The name that every PostgreSQL server of the cluster has: which one is behind a proxy changes with each failover.
TAFDB = "tafdb"


def make_missing(layout: ClusterLayout, account: Account) -> None:
    """Makes what is not there: after a host was added, that host's."""
    account.own_folder(layout.certificates, 0o700)
    for authority in (ETCD_AUTHORITY, AUTHORITY):
        make_authority(layout, account, authority)
    make_etcd(layout, account)
    make(layout, account, "patroni", "/CN=patroni", [], ["extendedKeyUsage=clientAuth"], ETCD_AUTHORITY)
    make_administrator(layout, account)
    for host in (*layout.index_hosts, *layout.gateway_hosts, *layout.store_hosts, *layout.database_hosts):
        make_for(layout, account, host)


def make_etcd(layout: ClusterLayout, account: Account, **options) -> None:
    """Makes the certificate of etcd's members, who are clients of each other; the options are those of `make`."""
    # A member's address must be in its certificate, also the one that the others see. With loopback hosts that is this
    # machine's own.
    addresses = [*(host.address for host in layout.etcd_hosts), layout.own_address]
    make(layout, account, "etcd", "/CN=etcd", addresses, [BOTH], ETCD_AUTHORITY, **options)


def make_administrator(layout: ClusterLayout, account: Account, **options) -> None:
    """Makes the certificate of the person at the terminal; the options are those of `make`."""
    make(layout, account, ADMINISTRATOR, "/OU=mantle-administrator/CN=administrator", [], [BOTH], **options)


def make_for(layout: ClusterLayout, account: Account, host: Host, **options) -> None:
    """Makes what a host needs; the options are those of `make`."""
    if host in layout.index_hosts:
        make(layout, account, host.name, "/OU=mantle-peer/CN=index", [host.address], [BOTH], **options)
    elif host in layout.gateway_hosts:
        make(layout, account, host.name, "/OU=mantle-gateway/CN=gateway", [host.address], [BOTH], **options)
        make_https(layout, account, host, **options)
    elif host in layout.store_hosts:
        make_https(layout, account, host, **options)
    else:
        # PostgreSQL, PgBouncer and Patroni's REST interface. Citus reaches its own node at localhost.
        names = [host.address, "127.0.0.1", host.name, "localhost", TAFDB]
        make(layout, account, host.name, f"/CN={host.name}", names, [BOTH], **options)


def make_https(layout: ClusterLayout, account: Account, host: Host, **options) -> None:
    """Makes the certificate that S3's users see."""
    names = [host.address, host.name]
    make(layout, account, f"{host.name}-https", f"/CN={host.name}", names, SERVER, **options)


def make_authority(layout: ClusterLayout, account: Account, name: str) -> None:
    certificates.make_authority(layout, account, name, f"/CN=mantle {layout.tag} {name}")


def client_context(layout: ClusterLayout, authority: str = AUTHORITY) -> ssl.SSLContext:
    """The context of a client that trusts an authority; etcd's members ask for a certificate too."""
    context = ssl.create_default_context(cafile=str(path(layout, f"{authority}.crt")))
    if authority == ETCD_AUTHORITY:
        context.load_cert_chain(path(layout, "patroni.crt"), path(layout, "patroni.key"))
    return context


def of(layout: ClusterLayout, host: Host, suffix: str = "") -> dict[str, str]:
    """The paths of a host's certificate, its key, and the authority, as templates name them."""
    return certificates.files(layout, f"{host.name}{suffix}")


def watched(layout: ClusterLayout) -> str:
    """The list of monitoring/certificates.sh: files that no process of Mantle's reports, and ports that show them."""
    lines = {name: [] for name in (ETCD_AUTHORITY, AUTHORITY, "patroni", ADMINISTRATOR)}
    lines["etcd"] = [f"{host.address}:{port}" for host in layout.etcd_hosts for port in (PORT_ETCD, PORT_ETCD_PEER)]
    for host in layout.database_hosts:
        sessions = (f"postgres://{host.address}:{port}" for port in (PORT_POSTGRESQL, PORT_PGBOUNCER))
        lines[host.name] = [f"{host.address}:{PORT_PATRONI}", *sessions]
    return "".join(f"{' '.join([str(path(layout, f'{name}.crt')), *ports])}\n" for name, ports in lines.items())
