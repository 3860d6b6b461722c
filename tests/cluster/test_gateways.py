"""Two gateways: behind HAProxy, as `patroni/config/haproxy-gateways.cfg` sets it up, and one of them killed."""

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import botocore.exceptions
import pytest

from cluster import certificates, template
from cluster.cluster import Cluster
from stack import http
from stack.poll import wait_until
from tests.support import s3_ghosts, s3_model

from .clients import s3_at, s3_of

ADDRESS, PORT = "127.0.0.1", 7890
CLIENTS = 16
ROUNDS = 10  # of each client, before a gateway is killed


@contextmanager
def haproxy(cluster: Cluster, folder) -> Iterator[str]:
    """The address of a proxy before both gateways."""
    servers = "\n".join(
        f"    server {gateway.host.name} {gateway.host.address}:{gateway.port}"
        f" port {gateway.probes_listen.split(':')[1]} verifyhost {gateway.host.name}"
        for gateway in cluster.gateways
    )
    layout = cluster.layout
    certificates.make(layout, cluster.account, "proxy", "/CN=proxy", [ADDRESS], certificates.SERVER)
    own = folder / "proxy.pem"
    own.write_text("".join(certificates.path(layout, f"proxy.{suffix}").read_text() for suffix in ("crt", "key")))
    values = {
        "address": ADDRESS, "port": PORT, "servers": servers, "certificate": own,
        "authority": certificates.path(layout, f"{certificates.AUTHORITY}.crt"),
    }  # fmt: skip
    settings = folder / "haproxy.cfg"
    settings.write_text(template.filled("haproxy-gateways.cfg", values))
    process = subprocess.Popen(["/usr/sbin/haproxy", "-db", "-f", str(settings)])
    try:
        wait_until(lambda: http.accepts(ADDRESS, PORT), "HAProxy", 10.0)
        yield f"https://{ADDRESS}:{PORT}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def s3(cluster: Cluster, tmp_path):
    with haproxy(cluster, tmp_path) as url:
        yield s3_at(cluster, url)


def test_random_operations_through_the_proxy(cluster, s3):
    bucket = f"t-{uuid.uuid4().hex[:12]}"
    s3.create_bucket(Bucket=bucket)
    s3_model.play([s3], bucket)


def test_no_ghost_after_an_acknowledgement(cluster):
    """Directories of one chain are on several nodes of Citus."""
    bucket = f"t-{uuid.uuid4().hex[:12]}"
    one, other = (s3_of(cluster, number) for number in range(2))
    one.create_bucket(Bucket=bucket)
    pairs = [(one, other) if number % 2 else (other, one) for number in range(CLIENTS)]
    killed = cluster.gateways[1]
    try:
        s3_ghosts.play(pairs, bucket, ROUNDS, killed.process.kill)
        for prefix in s3_ghosts.shown(one, bucket):
            assert one.list_objects_v2(Bucket=bucket, Prefix=prefix)["KeyCount"] > 0, prefix
    finally:
        killed.process.start()
        killed.await_ready()


def test_a_gateway_that_stops_is_left_out(cluster, s3):
    """Calls that begin after the proxy has noticed are answered."""
    bucket = f"t-{uuid.uuid4().hex[:12]}"
    s3.create_bucket(Bucket=bucket)
    upload = {"Bucket": bucket, "Key": "k", "UploadId": s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]}
    stopped = cluster.gateways[0]
    stopped.process.stop()
    try:
        wait_until(lambda: all(answers(s3, bucket) for _ in range(10)), "the other gateway alone", 30.0)
        part = s3.upload_part(**upload, PartNumber=1, Body=b"bytes")
    finally:
        stopped.process.start()
        stopped.await_ready()
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"bytes"


def answers(s3, bucket: str) -> bool:
    try:
        s3.head_bucket(Bucket=bucket)
    except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError):  # the proxy has not noticed yet
        return False
    return True
