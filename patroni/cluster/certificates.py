"""TLS for etcd: an authority of the cluster's own, a certificate for etcd's members, and one for Patroni.

Invariant: made once, stored with the secrets (0600), valid for this cluster's etcd only. In production use your own
authority. It must sign no other clients.
"""

import ssl

from stack.account import Account
from stack.terminal import run

from .layout import ClusterLayout

DAYS = 3650


def make_missing(layout: ClusterLayout, account: Account) -> None:
    folder = layout.certificates
    if (folder / "patroni.key").exists():
        return
    account.own_folder(folder, 0o700)
    authority = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign"]
    _make(layout, "ca", f"/CN=mantle {layout.tag}", authority, signed=False)
    # A member's address must be in its certificate, also the one that the others see. With loopback hosts that is this
    # machine's own.
    addresses = [*(host.address for host in layout.etcd_hosts), layout.own_address]
    names = "subjectAltName=" + ",".join(f"IP:{address}" for address in addresses)
    # Members are clients of each other.
    _make(layout, "etcd", "/CN=etcd", [names, "extendedKeyUsage=serverAuth,clientAuth"])
    _make(layout, "patroni", "/CN=patroni", ["extendedKeyUsage=clientAuth"])
    for path in folder.iterdir():
        path.chmod(0o600)
        account.own(path)


def _make(layout: ClusterLayout, name: str, subject: str, extensions: list[str], *, signed: bool = True) -> None:
    path = lambda file: str(layout.certificates / file)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    command += ["-days", str(DAYS), "-subj", subject, "-keyout", path(f"{name}.key"), "-out", path(f"{name}.crt")]
    if signed:
        command += ["-CA", path("ca.crt"), "-CAkey", path("ca.key")]
        extensions = ["basicConstraints=critical,CA:FALSE", *extensions]
    run([*command, *(part for extension in extensions for part in ("-addext", extension))], "making a certificate")


def client_context(layout: ClusterLayout) -> ssl.SSLContext:
    """The context of a client with Patroni's certificate."""
    context = ssl.create_default_context(cafile=str(layout.certificates / "ca.crt"))
    context.load_cert_chain(layout.certificates / "patroni.crt", layout.certificates / "patroni.key")
    return context
