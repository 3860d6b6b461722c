"""TLS of a cluster: two authorities of its own, and a certificate for each use on each host.

Invariant: made once, stored with the secrets (0600), valid for this cluster only. In production use your own
authorities. etcd's signs etcd's members and Patroni, and nobody else: a client that etcd knows can promote a stale
standby. The other one signs the services. A certificate's organizational unit is the role of a Mantle process; its
common name is the database role, where PostgreSQL asks for a certificate.
"""

import os
import ssl
from pathlib import Path

from stack.account import Account
from stack.failure import Failure
from stack.layout import Host
from stack.terminal import run

from .layout import ClusterLayout

DAYS = 3650
ETCD_AUTHORITY = "ca"
AUTHORITY = "services-ca"
ADMINISTRATOR = "administrator"
# The name that every PostgreSQL server of the cluster has: which one is behind a proxy changes with each failover.
TAFDB = "tafdb"
BOTH = "extendedKeyUsage=serverAuth,clientAuth"
SERVER = ["extendedKeyUsage=serverAuth"]


def make_missing(layout: ClusterLayout, account: Account) -> None:
    """Makes what is not there: after a host was added, that host's."""
    account.own_folder(layout.certificates, 0o700)
    for authority in (ETCD_AUTHORITY, AUTHORITY):
        make_authority(layout, account, authority)
    # A member's address must be in its certificate, also the one that the others see. With loopback hosts that is this
    # machine's own.
    etcd = [*(host.address for host in layout.etcd_hosts), layout.own_address]
    # Members are clients of each other.
    make(layout, account, "etcd", "/CN=etcd", etcd, [BOTH], ETCD_AUTHORITY)
    make(layout, account, "patroni", "/CN=patroni", [], ["extendedKeyUsage=clientAuth"], ETCD_AUTHORITY)
    make(layout, account, ADMINISTRATOR, "/OU=mantle-administrator/CN=administrator", [], [BOTH])
    for host in (*layout.index_hosts, *layout.gateway_hosts, *layout.database_hosts):
        make_for(layout, account, host)


def make_for(layout: ClusterLayout, account: Account, host: Host, **options) -> None:
    """Makes what a host needs; the options are those of `make`."""
    if host in layout.index_hosts:
        make(layout, account, host.name, "/OU=mantle-peer/CN=index", [host.address], [BOTH], **options)
    elif host in layout.gateway_hosts:
        make(layout, account, host.name, "/OU=mantle-gateway/CN=gateway", [host.address], [BOTH], **options)
        names = [host.address, host.name]
        make(layout, account, f"{host.name}-https", f"/CN={host.name}", names, SERVER, **options)
    else:
        # PostgreSQL, PgBouncer and Patroni's REST interface. Citus reaches its own node at localhost.
        names = [host.address, "127.0.0.1", host.name, "localhost", TAFDB]
        make(layout, account, host.name, f"/CN={host.name}", names, [BOTH], **options)


def make_authority(layout: ClusterLayout, account: Account, name: str) -> None:
    if path(layout, f"{name}.key").exists():
        return
    extensions = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign"]
    _openssl(layout, account, name, f"/CN=mantle {layout.tag} {name}", extensions, [])


def make(
    layout: ClusterLayout,
    account: Account,
    name: str,
    subject: str,
    hosts: list[str],
    extensions: list[str],
    authority: str = AUTHORITY,
    *,
    replaces: bool = False,
    **options,
) -> None:
    """Makes a certificate that the authority signs, unless there is one. `hosts`: names and addresses of its holder.
    `options`: `days` of its life, and the `environment` of openssl.
    """
    if path(layout, f"{name}.key").exists() and not replaces:
        return
    names = ",".join(f"{'IP' if host[0].isdigit() else 'DNS'}:{host}" for host in hosts)
    extensions = ["basicConstraints=critical,CA:FALSE", *extensions, *([f"subjectAltName={names}"] if names else [])]
    signer = ["-CA", str(path(layout, f"{authority}.crt")), "-CAkey", str(path(layout, f"{authority}.key"))]
    _openssl(layout, account, name, subject, extensions, signer, **options)


def path(layout: ClusterLayout, file: str) -> Path:
    return layout.certificates / file


def _openssl(
    layout: ClusterLayout,
    account: Account,
    name: str,
    subject: str,
    extensions: list[str],
    signer: list[str],
    *,
    days: int = DAYS,
    environment: dict[str, str] | None = None,
) -> None:
    """Writes beside and renames: processes read the files while they run."""
    new = {suffix: path(layout, f"{name}.{suffix}.new") for suffix in ("key", "crt")}
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    command += ["-days", str(days), "-subj", subject, "-keyout", str(new["key"]), "-out", str(new["crt"]), *signer]
    command += [part for extension in extensions for part in ("-addext", extension)]
    run(command, "making a certificate", env={**os.environ, **(environment or {})})
    for suffix, written in new.items():
        written.chmod(0o600)
        account.own(written)
        written.rename(path(layout, f"{name}.{suffix}"))


def client_context(layout: ClusterLayout, authority: str = AUTHORITY) -> ssl.SSLContext:
    """The context of a client that trusts an authority; etcd's members ask for a certificate too."""
    context = ssl.create_default_context(cafile=str(path(layout, f"{authority}.crt")))
    if authority == ETCD_AUTHORITY:
        context.load_cert_chain(path(layout, "patroni.crt"), path(layout, "patroni.key"))
    return context


def of(layout: ClusterLayout, host: Host, suffix: str = "") -> dict[str, str]:
    """The paths of a host's certificate, its key, and the authority, as templates name them."""
    name = f"{host.name}{suffix}"
    if not path(layout, f"{name}.key").exists():
        raise Failure(f"{host.name} has no certificate")
    return {
        "authority": str(path(layout, f"{AUTHORITY}.crt")),
        "certificate": str(path(layout, f"{name}.crt")),
        "key": str(path(layout, f"{name}.key")),
    }
