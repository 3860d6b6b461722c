"""Every client refuses a server whose certificate has another name, or is of another authority, before it says a word;
and those that can refuse one that asks for their password without channel binding.

Each client is the program with the cluster's settings; only the server's address is an impostor's, whose certificate is
one of three. The right one shows that the client would have talked.
"""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from cluster import certificates, environment
from cluster.cluster import Cluster
from cluster.layout import COORDINATOR, PORT_PATRONI, PORT_POSTGRESQL
from cluster.services import ClusterGateway, Pooler, Proxy, Replica
from stack import secret
from stack.indexnode import IndexNode
from stack.layout import INDEX_GROUPS
from stack.service import Service

from .clients import session
from .tls import Impostor, impostor, parameters, shown_certificates

OTHER_PORT = 7490  # where nothing listens
ADDRESS = "127.0.0.1"
CONNINFO = "SELECT setting FROM pg_settings WHERE name = 'primary_conninfo'"


@pytest.fixture(autouse=True)
def _namespaces(cluster: Cluster) -> None:
    if not cluster.network.is_real:
        pytest.skip("network namespaces are not permitted here")


class OtherReplica(Replica):
    """An IndexNode that is in no group: without a session in PostgreSQL it can join none."""

    def __init__(self, cluster: Cluster):
        host = cluster.layout.index_hosts[0]
        IndexNode.__init__(self, cluster.layout, cluster.account, 1, INDEX_GROUPS[:1], host, "test-index")
        self.listen, self.http_listen = f"{host.address}:{OTHER_PORT}", f"{host.address}:{OTHER_PORT + 1}"
        self.is_learner, self.peers = False, [self.listen]


class ProxyBefore(Proxy):
    """An HAProxy that asks an impostor which server is the primary."""

    def __init__(self, cluster: Cluster, server: Impostor):
        host = replace(cluster.layout.gateway_hosts[0], name="test-proxy")
        make = certificates.make
        make(cluster.layout, cluster.account, host.name, "/CN=test", [host.address], [certificates.BOTH])
        super().__init__(cluster.layout, cluster.account, host)
        self.server = server

    def settings(self) -> str:
        text = super().settings().replace(f"bind {self.host.address}", f"bind {ADDRESS}")
        asked = f"check port {PORT_PATRONI}"
        assert asked in text
        return text.replace(asked, f"check addr {self.server.address} port {self.server.port}")


class PoolerBefore(Pooler):
    """A PgBouncer of an impostor."""

    def __init__(self, cluster: Cluster, server: Impostor):
        super().__init__(cluster.layout, cluster.account, cluster.groups[COORDINATOR][0], "test-pooler")
        self.port, self.server = OTHER_PORT, server

    def settings(self) -> str:
        text, own = super().settings(), f"host={self.host.address} port={PORT_POSTGRESQL}"
        assert own in text
        return text.replace(own, f"host={self.server.address} port={self.server.port}")


@contextmanager
def running(service: Service) -> Iterator[None]:
    service.prepare()
    service.start()
    try:
        yield
    finally:
        service.process.stop()


@contextmanager
def of(service: Service, server: Impostor) -> Iterator[None]:
    """A service that looks for PostgreSQL at the impostor."""
    service.database_address, service.database_port = server.address, server.port
    with running(service):
        yield


@contextmanager
def pooler(cluster: Cluster, server: Impostor) -> Iterator[None]:
    """It connects when a client does, whom it lets wait."""
    service = PoolerBefore(cluster, server)
    arguments = parameters(cluster.layout, service.host, "operator", secret.read(cluster.layout, "operator"))

    def ask() -> None:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(**{**arguments, "port": service.port})

    with running(service):
        service.await_ready()
        client = threading.Thread(target=ask)
        client.start()
        yield
    client.join()


@contextmanager
def command_line(cluster: Cluster, server: Impostor) -> Iterator[None]:
    variables = environment.variables(cluster)
    url = variables["DATABASE_URL"].replace(f":{PORT_POSTGRESQL}/", f":{server.port}/")
    variables["DATABASE_URL"] = url.replace(cluster.layout.gateway_hosts[0].address, server.address)
    command = [str(cluster.layout.binaries / "mantle"), "namespaces"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    assert done.returncode != 0
    yield


@contextmanager
def node_of_citus(cluster: Cluster, server: Impostor) -> Iterator[None]:
    if not cluster.shape.is_citus:
        pytest.skip("there is one node")
    with session(cluster) as coordinator:
        given = server.address, server.port
        assert coordinator.execute("SELECT citus_check_connection_to_node(%s, %s)", given).fetchone() == (False,)
    yield


def common(_cluster: Cluster) -> str:
    return certificates.TAFDB


def address(cluster: Cluster) -> str:
    """Of impostors."""
    return cluster.layout.own_address


def host_name(cluster: Cluster) -> str:
    return cluster.groups[COORDINATOR][0].host.name


CLIENTS: dict[str, tuple[Callable, Callable[[Cluster], str], bool]] = {
    # The client, the name that it verifies, whether it sends its password only with channel binding.
    "gateway": (lambda c, s: of(ClusterGateway(c.layout, c.account, 11, "test-gateway"), s), common, False),
    "IndexNode": (lambda c, s: of(OtherReplica(c), s), common, True),
    "command line": (command_line, common, True),
    "PgBouncer": (pooler, address, False),
    "Citus": (node_of_citus, address, True),
    "HAProxy": (lambda c, s: running(ProxyBefore(c, s)), host_name, False),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_talks_to_its_server_only(cluster: Cluster, name: str) -> None:
    client, wanted, is_bound = CLIENTS[name]
    other = common if wanted is address else address
    for what, (certificate, is_right) in shown_certificates(cluster, wanted(cluster), other(cluster)).items():
        with impostor(address(cluster), certificate) as server, client(cluster, server):
            server.await_a_client()
        if is_right:
            assert server.heard, (what, server)
            assert bool(server.logins) is not (is_bound or name == "HAProxy"), (what, server)
        else:
            assert (server.heard, server.logins) == ([], []), what
            assert server.refused, what


def test_standbys_verify_their_primaries(cluster: Cluster) -> None:
    for group, members in cluster.groups.items():
        leader = cluster.leader(group)
        for member in members:
            if member is not leader:
                conninfo = member.psql(CONNINFO)
                for wanted in ("sslmode=verify-full", "sslrootcert=", "channel_binding=require"):
                    assert wanted in conninfo, (member.name, conninfo)
        walsenders = leader.psql("SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_replication USING (pid)")
        assert walsenders.strip() == "t", leader.name
