"""Faults of certificates, and of a stranger who talks to the index. Each function causes one and returns the function
that undoes it, as those of catalogue.py do.
"""

import os
import random
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from cluster import certificates, monitoring
from cluster.cluster import Cluster
from cluster.layout import Host
from stack import http
from stack.poll import wait_until
from tests.cluster.clients import index_channel

from . import clocks
from .index_group import index_follower

Undo = Callable[[], None]
BOUND_S = 60.0
LONG_AGO = "-400d"  # the certificate's days end long before today
LIFE_DAYS = 30
CALLS_S = 0.1
NEXT = "next-ca"  # the authority that comes
# An append of Raft by a leader that nobody elected, in openraft's types and postcard.
LAST_TERM = 2**64 - 1
NOBODY = 666
IS_COMMITTED = b"\1"
NO_ENTRIES = b"\0\0\0"
index, index_services = grpc.protos_and_services("index.proto")
peer, peer_services = grpc.protos_and_services("peer.proto")


def expired(cluster: Cluster, draw: random.Random) -> Undo:
    """The certificates of a follower and of a gateway have expired, and both are restarted with them."""
    replica, gateway = index_follower(cluster), draw.choice(cluster.gateways)
    old = {"LD_PRELOAD": str(clocks.library()), "FAKETIME": LONG_AGO}
    _replace(cluster, [replica.host, gateway.host], days=LIFE_DAYS, environment=old)
    for service in (replica, gateway):
        service.process.stop()
        service.process.start()
    return lambda: _replace(cluster, [replica.host, gateway.host])


def do_not_fit(cluster: Cluster, draw: random.Random) -> Undo:
    """The key of a gateway is another one's: it goes on with what it has read."""
    gateway = draw.choice(cluster.gateways)
    key = certificates.path(cluster.layout, f"{gateway.host.name}.key")
    kept = key.read_text()
    key.write_text(certificates.path(cluster.layout, f"{gateway.host.name}-https.key").read_text())

    def undo() -> None:
        key.write_text(kept)

    return undo


def authority_replaced(cluster: Cluster, _draw: random.Random) -> Undo:
    """By the runbook "Replacing certificates": both are trusted, every certificate is replaced, the old one goes."""
    layout, account = cluster.layout, cluster.account
    trusted, own = (certificates.path(layout, f"{certificates.AUTHORITY}.{suffix}") for suffix in ("crt", "key"))
    certificates.make_authority(layout, account, NEXT)
    certificate, key = (certificates.path(layout, f"{NEXT}.{suffix}") for suffix in ("crt", "key"))
    with _all_read_again(cluster):
        _trust(cluster, trusted.read_text() + certificate.read_text())
    for gateway in cluster.gateways:  # it reads the authority of its bucket when it starts
        gateway.process.stop()
        gateway.start()
        gateway.await_ready()
    hosts = [*layout.index_hosts, *layout.gateway_hosts, *layout.store_hosts, *layout.database_hosts]
    with _all_read_again(cluster):
        _replace(cluster, hosts, authority=NEXT)
        certificates.make_administrator(layout, account, replaces=True, authority=NEXT)
    _await_certificates_of(cluster, certificate)
    with _all_read_again(cluster):
        _trust(cluster, certificate.read_text())
    _write(cluster, own, key.read_text())
    for path in (certificate, key, *layout.certificates.glob("test-*")):
        path.unlink()
    return lambda: None


def forged(cluster: Cluster, draw: random.Random) -> Undo:
    """Somebody without a certificate calls the index again and again. Somebody with a peer's certificate sends messages
    of a leader whose term no election can reach.
    """
    replica, ended = draw.choice(cluster.replicas), threading.Event()
    answered: list[str] = []
    with index_channel(cluster, replica.listen, "administrator") as channel:
        status = index_services.IndexStub(channel).Status(index.StatusRequest(group=1), timeout=BOUND_S)
    to = peer.Destination(cluster_id=status.cluster_id, node_id=status.node_id, group=1)
    body = number(LAST_TERM) + number(NOBODY) + IS_COMMITTED + NO_ENTRIES
    message = peer.RaftMessage(to=to, body=body)

    def call() -> None:
        with (
            index_channel(cluster, replica.listen) as stranger,
            index_channel(cluster, replica.listen, "peer") as forger,
        ):
            while not ended.wait(CALLS_S):
                request = index.DirectoriesRequest(group=1)
                with suppress(grpc.RpcError):
                    index_services.IndexStub(stranger).Directories(request, timeout=BOUND_S)
                    answered.append("a call without a certificate")
                with suppress(grpc.RpcError):
                    peer_services.PeerStub(forger).Append(message, timeout=BOUND_S)
                    answered.append("a forged append")

    thread = threading.Thread(target=call)
    thread.start()

    def undo() -> None:
        ended.set()
        thread.join()
        assert answered == []

    return undo


def number(value: int) -> bytes:
    """A number as postcard encodes it."""
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def _replace(cluster: Cluster, hosts: list[Host], **options) -> None:
    for host in hosts:
        certificates.make_for(cluster.layout, cluster.account, host, replaces=True, **options)


def _trust(cluster: Cluster, authorities: str) -> None:
    _write(cluster, certificates.path(cluster.layout, f"{certificates.AUTHORITY}.crt"), authorities)
    monitoring.write(cluster)  # Prometheus has a copy


def _write(cluster: Cluster, path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    cluster.account.own(new)
    new.rename(path)


def _await_certificates_of(cluster: Cluster, authority: Path) -> None:
    """Waits until nobody shows a certificate of the old authority: Patroni reads its files in its next round, the
    store's gateway within seconds.
    """
    trusting = ssl.create_default_context(cafile=str(authority))
    store = cluster.store.gateway
    wait_until(lambda: http.call("GET", store.url, tls=trusting)[0] != 0, "the store's new certificate", BOUND_S)
    for member in cluster.members:
        if member.process.pid() is not None:
            shows = lambda member=member: http.call("GET", f"{member.rest}/liveness", tls=trusting)[0] == 200
            wait_until(shows, f"the new certificate of {member.name}", BOUND_S)


@contextmanager
def _all_read_again(cluster: Cluster) -> Iterator[None]:
    """After a change every process reads its files again: Mantle's by themselves, the others are told."""
    reloads = 'mantle_tls_reloads_total{file="authority"}'
    services = [*cluster.replicas, *cluster.gateways]
    before = [service.metrics().get(reloads, 0) for service in services]
    yield
    for service in (*cluster.members, *cluster.poolers):
        pid = service.process.pid()
        if pid is not None:
            os.kill(pid, signal.SIGHUP)
    for proxy in cluster.proxies:
        proxy.process.stop()
        proxy.start()
    for service, count in zip(services, before, strict=True):
        wait_until(
            lambda service=service, count=count: service.metrics().get(reloads, 0) > count,
            f"{service.name} to read its certificates again",
            BOUND_S,
        )
