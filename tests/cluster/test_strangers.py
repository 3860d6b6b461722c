"""Every port refuses whoever does not show who they are: etcd, Patroni's REST interface, each PostgreSQL server to each
role, each PgBouncer.

Invariant: each refusal is beside a call that differs only in what is missing, and is answered.
"""

import json
import urllib.error
import urllib.request

import psycopg
import pytest

from cluster import certificates
from cluster.cluster import Cluster
from cluster.layout import PORT_ETCD, PORT_ETCD_PEER, PORT_PGBOUNCER
from stack import pgbouncer, secret
from stack.layout import DATABASE

from .clients import session as session_of_superuser
from .tls import Refused, answer, own_certificate, parameters

# What changes a member's or a group's state. The bodies change nothing if they are let in.
CHANGES = [
    ("POST", "switchover", {}), ("POST", "failover", {}), ("DELETE", "switchover", {}),
    ("PATCH", "config", {}), ("PUT", "config", {}), ("POST", "restart", {"role": "nobody"}), ("DELETE", "restart", {}),
    ("POST", "reload", {}), ("POST", "failsafe", {}), ("POST", "citus", {}),
]  # fmt: skip
WITHOUT_CREDENTIALS = ({}, {"Authorization": "Basic cGF0cm9uaTp3cm9uZw=="})  # the other one has a wrong password
SECRETS = {"postgres": "superuser", "replicator": "replication"}  # of roles whose password has another name
PASSED_ON = {"gateway", "operator", "importer", "analyst"}  # the roles that PgBouncer knows


@pytest.fixture(autouse=True)
def _namespaces(cluster: Cluster) -> None:
    if not cluster.network.is_real:
        pytest.skip("network namespaces are not permitted here")


def rest_status(cluster: Cluster, url: str, method: str, body: dict, headers: dict[str, str]) -> int:
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    context = certificates.client_context(cluster.layout)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def test_patroni_changes_nothing_for_a_stranger(cluster: Cluster) -> None:
    """It asks nobody for a certificate, and shows its state to all; every change needs its password."""
    for member in cluster.members:
        for method, path, body in CHANGES:
            for headers in WITHOUT_CREDENTIALS:
                status = rest_status(cluster, f"{member.rest}/{path}", method, body, headers)
                assert status == 401, f"{method} {member.rest}/{path}"
        assert member.answers("health")
        assert member.answers("cluster")


def test_etcd_answers_members_and_patroni_only(cluster: Cluster) -> None:
    """Whoever has no certificate, or one of the services' authority, reaches neither clients' nor members' port."""
    layout = cluster.layout
    strangers = [None, certificates.ADMINISTRATOR, layout.index_hosts[0].name, layout.database_hosts[0].name]
    for host in layout.etcd_hosts:
        for port, known in ((PORT_ETCD, "patroni"), (PORT_ETCD_PEER, "etcd")):
            address = host.address, port
            assert b" 200 OK" in answer(layout, address, known, "/version")
            for stranger in strangers:
                with pytest.raises(Refused):
                    answer(layout, address, stranger, "/version")


def login_roles(cluster: Cluster) -> list[str]:
    with session_of_superuser(cluster) as connection:
        roles = [role for (role,) in connection.execute("SELECT rolname FROM pg_roles WHERE rolcanlogin ORDER BY 1")]
    assert {"postgres", "replicator", "rewind", "index", *PASSED_ON} <= set(roles)
    return roles


def password(cluster: Cluster, role: str) -> str:
    return secret.read(cluster.layout, SECRETS.get(role, role))


def refusal(**arguments) -> str:
    """Why a session is refused; empty if it is not."""
    try:
        psycopg.connect(**arguments).close()
    except psycopg.OperationalError as error:
        return str(error)
    return ""


def test_no_server_takes_a_plain_session(cluster: Cluster) -> None:
    """Of any role, at any member: primaries and standbys, sessions and replication."""
    roles, taken = login_roles(cluster), {}
    for member in cluster.members:
        for role in roles:
            for replication in ({}, {"replication": "database"}, {"replication": "true"}):
                arguments = {**parameters(cluster.layout, member.host, role, password(cluster, role)), **replication}
                why = refusal(**{**arguments, "sslmode": "disable"})
                if "no encryption" not in why:
                    taken[member.name, role, *replication.values()] = why or "taken"
        assert refusal(**parameters(cluster.layout, member.host, "operator", password(cluster, "operator"))) == ""
    assert taken == {}


def test_replication_is_for_its_roles(cluster: Cluster) -> None:
    """An index shows a certificate of its role for it too, and copies no whole server. Standbys need theirs."""
    layout, index = cluster.layout, password(cluster, "index")
    own = own_certificate(layout, layout.index_hosts[0].name)
    of_gateway = own_certificate(layout, layout.gateway_hosts[0].name)
    for member in cluster.members:
        arguments = parameters(layout, member.host, "index", index)
        logical = {**arguments, "replication": "database"}
        assert refusal(**logical, **own) == ""
        assert "certificate" in refusal(**logical), member.name
        assert "authentication failed" in refusal(**logical, **of_gateway), member.name
        assert "no pg_hba.conf entry" in refusal(**arguments, **own, replication="true"), member.name
        physical = {**parameters(layout, member.host, "replicator", password(cluster, "replicator"))}
        assert refusal(**physical, replication="true") == ""
        assert "no pg_hba.conf entry" in refusal(**physical), member.name
        for role in PASSED_ON:
            arguments = parameters(layout, member.host, role, password(cluster, role))
            assert refusal(**arguments, replication="database") != "", (member.name, role)


def test_poolers_take_their_roles_with_tls_only(cluster: Cluster) -> None:
    roles = [*login_roles(cluster), pgbouncer.ADMINISTRATOR]
    for pooler in cluster.poolers:
        for role in roles:
            for database in (DATABASE, "pgbouncer"):
                arguments = {
                    **parameters(cluster.layout, pooler.host, role, password(cluster, role), PORT_PGBOUNCER),
                    "dbname": database,
                }
                where = pooler.name, role, database
                assert "SSL required" in refusal(**{**arguments, "sslmode": "disable"}), where
                allowed = PASSED_ON if database == DATABASE else {pgbouncer.ADMINISTRATOR}
                # The database of the pooler's user knows no such role, so a session of it fails later.
                if role != pgbouncer.ADMINISTRATOR or database != DATABASE:
                    assert (refusal(**arguments) == "") == (role in allowed), where
