"""How tests speak TLS to a cluster by hand: with another certificate, or as a server that shows another one."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cluster import certificates
from cluster.cluster import Cluster
from cluster.layout import PORT_POSTGRESQL, ClusterLayout
from stack.layout import DATABASE, Host
from stack.poll import wait_until

BOUND_S = 10.0


class Refused(Exception):
    """The other end left in place of an answer."""


def answer(layout: ClusterLayout, address: tuple[str, int], name: str | None, path: str) -> bytes:
    """The begin of what etcd's port answers to GET, with this certificate.

    Raises Refused when it ends the connection: with TLS 1.3 a client learns only then that it is not let in.
    """
    context = ssl.create_default_context(cafile=str(certificates.path(layout, f"{certificates.ETCD_AUTHORITY}.crt")))
    if name:
        context.load_cert_chain(certificates.path(layout, f"{name}.crt"), certificates.path(layout, f"{name}.key"))
    with socket.create_connection(address, timeout=BOUND_S) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=address[0]) as stream:
                stream.sendall(f"GET {path} HTTP/1.0\r\nHost: {address[0]}\r\n\r\n".encode())
                found = stream.recv(4096)
        except (ssl.SSLError, ConnectionError) as error:
            raise Refused(str(error)) from error
    if not found:
        raise Refused("no answer")
    return found


def own_certificate(layout: ClusterLayout, name: str) -> dict[str, str]:
    """libpq's parameters for a client's certificate."""
    kinds = {"sslcert": "crt", "sslkey": "key"}
    return {kind: str(certificates.path(layout, f"{name}.{suffix}")) for kind, suffix in kinds.items()}


def parameters(layout: ClusterLayout, host: Host, role: str, password: str, port: int = PORT_POSTGRESQL) -> dict:
    """psycopg's arguments for a verified session at one server."""
    authority = str(certificates.path(layout, f"{certificates.AUTHORITY}.crt"))
    return {
        "host": host.address, "port": port, "dbname": DATABASE, "user": role, "password": password,
        "sslmode": "verify-full", "sslrootcert": authority, "connect_timeout": int(BOUND_S),
    }  # fmt: skip


FOREIGN = "test-foreign"  # an authority that nobody trusts
SSL_REQUEST = bytes.fromhex("0000000804d2162f")
# PostgreSQL's message that asks for a password which is not bound to the TLS connection.
UNBOUND = b"R" + (4 + 4 + 15).to_bytes(4) + (10).to_bytes(4) + b"SCRAM-SHA-256\0\0"


@dataclass
class Impostor:
    """A server that shows a certificate. To HTTP's clients it answers `200 OK`; PostgreSQL's clients it asks for a
    password, without channel binding.
    """

    address: str
    port: int
    refused: list[str] = field(default_factory=list)  # how clients left that said nothing
    heard: list[bytes] = field(default_factory=list)  # what they said after it
    logins: list[bytes] = field(default_factory=list)  # what they answered to the question for a password

    def await_a_client(self) -> None:
        wait_until(lambda: self.refused or self.heard, f"a client at {self.address}:{self.port}", 60.0)


def shown_certificates(cluster: Cluster, name: str, other: str) -> dict[str, tuple[Path, bool]]:
    """The certificates of an impostor, and whether a client that wants a server of this name accepts each. `other`: a
    name that is a server's too, but not of the one that the client wants.
    """
    certificates.make_authority(cluster.layout, cluster.account, FOREIGN)
    wanted = {
        "of another authority": (name, FOREIGN), "of another name": (other, certificates.AUTHORITY),
        "right": (name, certificates.AUTHORITY),
    }  # fmt: skip
    found = {}
    for number, (what, (host, authority)) in enumerate(wanted.items()):
        file = f"test-impostor-{number}"
        make = lambda *arguments: certificates.make(cluster.layout, cluster.account, *arguments, replaces=True)
        make(file, "/CN=test", [host], certificates.SERVER, authority)
        found[what] = certificates.path(cluster.layout, f"{file}.crt"), what == "right"
    return found


@contextmanager
def impostor(address: str, certificate: Path) -> Iterator[Impostor]:
    """Listens while the block runs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with socket.create_server((address, 0)) as listener:
        found = Impostor(address, listener.getsockname()[1])

        def serve() -> None:
            while True:
                try:
                    plain, _ = listener.accept()
                except OSError:  # the end
                    return
                threading.Thread(target=_meet, args=(found, context, plain), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield found
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _meet(found: Impostor, context: ssl.SSLContext, plain: socket.socket) -> None:
    with plain:
        plain.settimeout(BOUND_S)
        try:
            if plain.recv(len(SSL_REQUEST), socket.MSG_PEEK) == SSL_REQUEST:
                plain.recv(len(SSL_REQUEST))
                plain.sendall(b"S")
            with context.wrap_socket(plain, server_side=True) as stream:
                said = stream.recv(4096)
                if said:
                    _answer(found, stream, said)
                else:  # libpq looks at the name after the handshake
                    found.refused.append("left after the handshake")
        except OSError as error:  # also of TLS
            found.refused.append(str(error))


def _answer(found: Impostor, stream: ssl.SSLSocket, said: bytes) -> None:
    try:
        if b"HTTP/" in said:
            stream.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        else:
            stream.sendall(UNBOUND)
            found.logins += filter(None, [stream.recv(4096)])
    finally:
        found.heard.append(said)
