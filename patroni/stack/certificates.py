"""Authorities and certificates, made by openssl, for deployments that speak TLS.

Invariant: each is made once, stored with the secrets (0600), valid for this deployment only. In production use your own
authorities. A certificate's organizational unit is the role of a Mantle process; its common name is the database role,
where PostgreSQL asks for a certificate.
"""

import os
from pathlib import Path

from .account import Account
from .failure import Failure
from .layout import Layout
from .terminal import run

DAYS = 3650
AUTHORITY = "services-ca"
BOTH = "extendedKeyUsage=serverAuth,clientAuth"
SERVER = ["extendedKeyUsage=serverAuth"]


def make_authority(layout: Layout, account: Account, name: str, subject: str) -> None:
    """Makes an authority, unless there is one."""
    if path(layout, f"{name}.key").exists():
        return
    extensions = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign"]
    _openssl(layout, account, name, subject, extensions, [])


def make(
    layout: Layout,
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


def path(layout: Layout, file: str) -> Path:
    return layout.certificates / file


def files(layout: Layout, name: str) -> dict[str, str]:
    """The paths of a certificate, its key, and the authority, as templates name them."""
    if not path(layout, f"{name}.key").exists():
        raise Failure(f"{name} has no certificate")
    return {
        "authority": str(path(layout, f"{AUTHORITY}.crt")),
        "certificate": str(path(layout, f"{name}.crt")),
        "key": str(path(layout, f"{name}.key")),
    }


def _openssl(
    layout: Layout,
    account: Account,
    name: str,
    subject: str,
    extensions: list[str],
    signer: list[str],
    *,
    days: int = DAYS,
    environment: dict[str, str] | None = None,
) -> None:
    """Runs openssl. New files get their names by a rename, because processes read them while they run."""
    new = {suffix: path(layout, f"{name}.{suffix}.new") for suffix in ("key", "crt")}
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    command += ["-days", str(days), "-subj", subject, "-keyout", str(new["key"]), "-out", str(new["crt"]), *signer]
    command += [part for extension in extensions for part in ("-addext", extension)]
    run(command, "making a certificate", env={**os.environ, **(environment or {})})
    for suffix, written in new.items():
        written.chmod(0o600)
        account.own(written)
        written.rename(path(layout, f"{name}.{suffix}"))
