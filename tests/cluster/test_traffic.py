"""What passes between hosts. Nothing secret passes in clear, and only the named ports answer without TLS."""

import base64
import re
import secrets
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from cluster import certificates, monitoring, patronictl
from cluster.cluster import Cluster
from cluster.layout import (
    COORDINATOR,
    PORT_ETCD_METRICS,
    PORT_GATEWAY,
    PORT_HAPROXY_METRICS,
    PORT_INDEX_GRPC,
    PORT_PATRONI,
    PORT_PGBOUNCER,
    PORT_POSTGRESQL,
)
from stack import http, secret
from stack.layout import PROBES_OFFSET, REPOSITORY, Host
from stack.poll import wait_until

from .clients import rest_of, s3_of
from .clients import session as session_of_superuser
from .load import Load, Probe
from .oracle import await_no_problem

LINE = 41  # bytes of a line of an object
CONTENT = 5_000 * LINE
PART = 130_000 * LINE  # S3's least is 5 MiB
SAMPLE = 50  # of the load's names
# Pages for Prometheus and probes, which have no names, no keys and no bytes of objects.
PLAIN = {
    "etcd": {PORT_ETCD_METRICS},
    "index": {PORT_INDEX_GRPC + 10, PORT_HAPROXY_METRICS},
    "gateway": {PORT_GATEWAY + PROBES_OFFSET, PORT_HAPROXY_METRICS},
    "store": {PORT_GATEWAY + PROBES_OFFSET, PORT_INDEX_GRPC + 10},
}
FILES = {"sslcert": "crt", "sslkey": "key"}  # of libpq, and of the certificates
SSL_REQUEST = bytes.fromhex("0000000804d2162f")


@pytest.fixture(autouse=True)
def _namespaces(cluster: Cluster) -> None:
    if not cluster.network.is_real:
        pytest.skip("network namespaces are not permitted here")


@contextmanager
def captured(cluster: Cluster, folder: Path) -> Iterator[Path]:
    """The frames of all hosts, in a file that is complete when the block has ended."""
    path = folder / "frames"
    program = [sys.executable, str(REPOSITORY / "tests" / "cluster" / "capture.py"), str(path)]
    command = ["ip", "netns", "exec", cluster.network.switch, *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield path
            # What was sent last is there when a later frame is.
            mark = f"mark{secrets.token_hex(16)}".encode()
            replica = cluster.replicas[0].host.address

            def is_written() -> bool:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packets:
                    packets.sendto(mark, (replica, 9))
                return mark in path.read_bytes()

            wait_until(is_written, "the capture to catch up", 60.0)
        finally:
            process.terminate()


def secrets_of(cluster: Cluster) -> dict[str, bytes]:
    """Every password, token and key of the cluster, by its name."""
    found = {name: secret.read(cluster.layout, name).encode() for name in cluster.SECRETS}
    of_store = {name: secret.read(cluster.store.layout, name).encode() for name in cluster.store.SECRETS}
    found |= {f"the store's {name}": text for name, text in of_store.items()}
    basic = base64.b64encode(b"patroni:" + found["restapi"])
    return {**found, "restapi, as HTTP sends it": basic.rstrip(b"=")[:-1]}


def lines(mark: str, size: int) -> bytes:
    """Content in which every piece of two lines has the mark."""
    return b"".join(f"{mark} {number:07}\n".encode() for number in range(size // LINE))


def write_and_read(cluster: Cluster, bucket: str, mark: str) -> None:
    """An object, one that is uploaded in parts, both read; directories, one renamed; an analyst's session; a reload."""
    rest, s3 = rest_of(cluster), s3_of(cluster, 1)
    whole, parts = {"Bucket": bucket, "Key": f"a/object-{mark}"}, {"Bucket": bucket, "Key": f"a/parts-{mark}"}
    s3.put_object(**whole, Body=lines(mark, CONTENT), Metadata={"m": f"metadata-{mark}"})
    upload = {**parts, "UploadId": s3.create_multipart_upload(**parts)["UploadId"]}
    bodies = [lines(mark, PART), lines(mark, CONTENT)]
    made = [s3.upload_part(**upload, PartNumber=at, Body=body)["ETag"] for at, body in enumerate(bodies, 1)]
    listed = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(made, 1)]
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": listed})
    assert s3.get_object(**whole)["Body"].read() == lines(mark, CONTENT)
    assert s3.get_object(**parts)["Body"].read() == b"".join(bodies)
    for number in range(2):
        assert rest.insist("PUT", f"/v1/ns/{bucket}/dirs/directory-{mark}-{number}").status in (200, 201)
    body = {"src": f"directory-{mark}-0/", "dst": f"directory-{mark}-renamed/"}
    assert rest.insist("POST", f"/v1/ns/{bucket}/rename", body).status == 200
    assert f"directory-{mark}-renamed/" in rest.list(bucket, "")
    with psycopg.connect(**session(cluster, "operator", PORT_PGBOUNCER)) as connection:
        found = connection.execute("SELECT count(*) FROM mantle.du(%s, '')", (bucket,)).fetchone()
        assert found == (1,)
    member = cluster.groups[COORDINATOR][0]
    patronictl.run(cluster.layout, member, "reload", "mantle", *group_of(cluster), "--force")


def plain_pages(cluster: Cluster) -> dict[str, str]:
    """The text of every page without TLS, by its URL."""
    urls = [url for of_job in monitoring.metric_pages(cluster).values() for url in of_job if url.startswith("http:")]
    urls = [url for url in urls if not url.endswith(f":{monitoring.PORT_NODE_EXPORTER}/metrics")]
    urls += [f"{service.probe}/readyz" for service in (*cluster.gateways, *cluster.replicas)]
    urls += [f"http://{host.address}:{PORT_ETCD_METRICS}/health" for host in cluster.layout.etcd_hosts]
    shown = {url: http.call("GET", url) for url in urls}
    assert [url for url, (status, _) in shown.items() if status not in (200, 503)] == []
    return {url: body for url, (_, body) in shown.items()}


@contextmanager
def a_culprit(cluster: Cluster, bucket: str) -> Iterator[str]:
    """A transaction that stays open, of an application with a bucket's name. The metrics name the process."""
    with session_of_superuser(cluster) as connection:
        connection.execute("ALTER SYSTEM SET mantle.transaction_age_max_s = 1")
        connection.execute("SELECT pg_reload_conf()")
        try:
            arguments = {**session(cluster, "operator", PORT_POSTGRESQL), "application_name": bucket}
            with psycopg.connect(**arguments) as held:
                held.execute("SELECT count(*) FROM mantle.du(%s, '')", (bucket,))
                yield f'culprit="process {held.info.backend_pid} '
        finally:
            connection.execute("ALTER SYSTEM RESET mantle.transaction_age_max_s")
            connection.execute("SELECT pg_reload_conf()")


def test_a_stranger_reads_nothing(cluster: Cluster, tmp_path: Path, ns: str, probes: dict[int, list[Probe]]) -> None:
    """Under load, while services log in anew, a primary hands over, and a transaction is a culprit: no password, no
    token, no name, no byte of an object. Not between a gateway and the store, and not in the pages without TLS.
    """
    mark, of_load, group = secrets.token_hex(16), [probe for each in probes.values() for probe in each], max(probes)
    with captured(cluster, tmp_path) as frames, Load(of_load) as load:
        load.await_progress()
        with a_culprit(cluster, ns) as culprit:
            write_and_read(cluster, ns, mark)
            gateway = cluster.gateways[1]
            is_named = lambda: culprit in http.call("GET", f"{gateway.probe}/metrics")[1]
            wait_until(is_named, "the metrics to name the culprit", 60.0)
            pages = plain_pages(cluster)
        for service in (cluster.gateways[0], cluster.replicas[0], cluster.poolers[0]):
            service.process.stop()
            service.start()
            service.await_ready()
        cluster.switchover(group)
        load.await_progress()
        pages |= {f"{url}, later": body for url, body in plain_pages(cluster).items()}
    seen = frames.read_bytes()
    for name in ("mantle_index_resident_bytes", "mantle_gateway_server_problem{", "etcd_server_", "haproxy_", culprit):
        assert any(name in body for body in pages.values()) and name.encode() in seen, f"{name} was not captured"
    made = [name for path in load.acknowledged[:: len(load.acknowledged) // SAMPLE] for name in path.split("/")]
    words = {what: what.encode() for what in (mark, ns, *made)}
    in_clear = {what for what, text in {**secrets_of(cluster), **words}.items() if text in seen}
    assert in_clear == set(), f"{mark} is in every name, key, metadata and line"
    await_no_problem(cluster)


def group_of(cluster: Cluster) -> list[str]:
    return ["--group", str(COORDINATOR)] if cluster.shape.is_citus else []


def session(cluster: Cluster, role: str, port: int) -> dict:
    """psycopg's arguments for a session through the first gateway's proxy."""
    return {
        "host": certificates.TAFDB, "hostaddr": cluster.layout.gateway_hosts[0].address, "port": port,
        "dbname": "mantle", "user": role, "password": secret.read(cluster.layout, role), "sslmode": "verify-full",
        "sslrootcert": str(certificates.path(cluster.layout, f"{certificates.AUTHORITY}.crt")),
    }  # fmt: skip


def listening(cluster: Cluster, host: Host) -> set[int]:
    """The TCP ports on which a host listens for others."""
    command = ["ip", "netns", "exec", host.namespace, "ss", "-Hltn"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = (re.fullmatch(r"(.*):(\d+)", line.split()[3]) for line in lines)
    return {int(at[2]) for at in found if not at[1].startswith(("127.", "[::1]"))}


def speaks_tls(address: str, port: int) -> bool:
    """Whether the port answers a TLS handshake, which on PostgreSQL's ports a request comes before."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((address, port), timeout=10) as stream:
        if port in (PORT_POSTGRESQL, PORT_PGBOUNCER):
            stream.sendall(SSL_REQUEST)
            assert stream.recv(1) == b"S", f"{address}:{port} refuses TLS"
        try:
            with context.wrap_socket(stream) as shaken:
                return bool(shaken.version())
        except ssl.SSLError as error:
            return "ALERT" in str(error).upper()  # it asks for a certificate
        except OSError:
            return False


def test_every_port_speaks_tls(cluster: Cluster) -> None:
    """Except those of probes and of pages for Prometheus."""
    plain = {}
    for host in cluster.layout.hosts:
        ports = listening(cluster, host)
        assert ports, host
        allowed = next((ports for name, ports in PLAIN.items() if host.name.startswith(name)), set())
        wrong = {port for port in ports if not speaks_tls(host.address, port)} - allowed
        if wrong:
            plain[host.name] = wrong
    assert plain == {}


def test_plain_sessions_are_refused(cluster: Cluster) -> None:
    """By PostgreSQL, by PgBouncer, and by the gateway and Patroni, which speak nothing but TLS."""
    for port in (PORT_POSTGRESQL, PORT_PGBOUNCER):
        arguments = {**session(cluster, "operator", port), "sslmode": "disable", "sslrootcert": None}
        with pytest.raises(psycopg.OperationalError, match=r"no encryption|SSL required"):
            psycopg.connect(**arguments)
    gateway = cluster.gateways[0]
    for address, port in ((gateway.host.address, gateway.port), (cluster.members[0].host.address, PORT_PATRONI)):
        assert http.call("GET", f"http://{address}:{port}/") == (0, ""), port


def test_an_index_session_needs_a_certificate(cluster: Cluster) -> None:
    """Its password alone is not enough, and neither is another holder's certificate."""
    layout = cluster.layout
    arguments = session(cluster, "index", PORT_POSTGRESQL)
    with pytest.raises(psycopg.OperationalError, match="certificate"):
        psycopg.connect(**arguments)
    for name, is_allowed in ((layout.gateway_hosts[0].name, False), (layout.index_hosts[0].name, True)):
        own = {kind: str(certificates.path(layout, f"{name}.{suffix}")) for kind, suffix in FILES.items()}
        if is_allowed:
            psycopg.connect(**arguments, **own).close()
        else:
            with pytest.raises(psycopg.OperationalError, match="authentication failed"):  # by the certificate's name
                psycopg.connect(**arguments, **own)
