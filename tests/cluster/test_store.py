"""The bytes of objects are in a store of their own: the loss of a gateway's machine costs none, and the loss of the
store's machine costs nothing but time.
"""

import json
import os
import subprocess
import tomllib
from pathlib import Path

import botocore.exceptions
import pytest

from cluster import certificates, faults, store
from cluster.cluster import Cluster
from stack import packages, secret
from tests.support.rest import Rest

from . import runbook
from .clients import BytesBucket, rest_of, s3_of

MIB = 1 << 20
PART = 5 * MIB
SIZES = (0, 1, 4096, 300_000, 9 * MIB)  # the gateway sends the last one to its bucket in parts
STARTING = "Starting a dead machine's services again"
UNITS_OF_STORE = "postgresql mantle-indexnode mantle-gateway"


def put_some(s3, ns: str, folder: str) -> dict[str, bytes]:
    """Objects of each size, and one that is uploaded in parts; their bytes by their keys."""
    bodies = {f"{folder}/{size}": os.urandom(size) for size in SIZES}
    for key, body in bodies.items():
        s3.put_object(Bucket=ns, Key=key, Body=body)
    parts = [os.urandom(PART), os.urandom(1000)]
    upload = {"Bucket": ns, "Key": f"{folder}/parts"}
    upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
    made = [
        {"PartNumber": number, "ETag": s3.upload_part(**upload, PartNumber=number, Body=part)["ETag"]}
        for number, part in enumerate(parts, 1)
    ]
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": made})
    return {**bodies, upload["Key"]: b"".join(parts)}


def assert_all_read(s3, ns: str, bodies: dict[str, bytes]) -> None:
    for key, body in bodies.items():
        assert s3.get_object(Bucket=ns, Key=key)["Body"].read() == body, key


def refused(call, **given) -> tuple[int, str]:
    """Status and code of a refusal."""
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        call(**given)
    response = caught.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def test_the_loss_of_a_gateways_machine(cluster: Cluster, ns: str) -> None:
    """It ends without a warning, and nothing of it can be reached. The other gateway has every byte, and removes those
    of what it replaces.
    """
    lost, bucket = cluster.layout.gateway_hosts[0], BytesBucket(cluster)
    second = s3_of(cluster, 1)
    bodies = put_some(s3_of(cluster, 0), ns, "before")
    cluster.network.partition(lost)
    try:
        faults.kill_services(cluster.services_on(lost))
        assert_all_read(second, ns, bodies)
        bodies |= put_some(second, ns, "meanwhile")
        there = bucket.locators()
        second.put_object(Bucket=ns, Key="before/1", Body=b"replaced")
        second.delete_object(Bucket=ns, Key="before/4096")
        bodies["before/1"] = b"replaced"
        del bodies["before/4096"]
        (new,) = bucket.locators() - there
        assert (bucket.read(new), len(there - bucket.locators())) == (b"replaced", 2)
    finally:
        cluster.network.heal()
        runbook.typed(cluster, STARTING, HOST=lost.name, UNITS="haproxy mantle-gateway")
    cluster.gateways[0].await_ready()
    first = s3_of(cluster, 0)
    assert_all_read(first, ns, bodies)
    assert refused(first.get_object, Bucket=ns, Key="before/4096") == (404, "NoSuchKey")


def test_the_stores_machine_is_away(cluster: Cluster, ns: str) -> None:
    """Objects are neither put nor read, and everything else goes on. Later all bytes are there."""
    rest, s3 = rest_of(cluster), s3_of(cluster, 1)
    bodies = put_some(s3, ns, "kept")
    faults.kill_services(cluster.store.services())
    try:
        unavailable = 503, "ServiceUnavailable"  # bytes_unavailable, in S3's words
        assert refused(s3.put_object, Bucket=ns, Key="kept/new", Body=b"bytes") == unavailable
        assert refused(s3.put_object, Bucket=ns, Key="kept/1", Body=b"bytes") == unavailable
        assert refused(s3.get_object, Bucket=ns, Key="kept/4096") == unavailable
        assert s3.head_object(Bucket=ns, Key="kept/4096")["ContentLength"] == 4096
        rest.mkdir(ns, "made")
        rest.rename(ns, "kept/", "moved/")
        assert rest.list(ns, "moved/") == sorted(key.removeprefix("kept/") for key in bodies)
    finally:
        runbook.typed(cluster, STARTING, HOST=cluster.store.gateway.host.name, UNITS=UNITS_OF_STORE)
    cluster.store.gateway.await_ready()
    assert_all_read(s3, ns, {key.replace("kept/", "moved/"): body for key, body in bodies.items()})
    s3.put_object(Bucket=ns, Key="made/new", Body=b"bytes")
    assert s3.get_object(Bucket=ns, Key="made/new")["Body"].read() == b"bytes"


def test_gateways_share_a_bucket_alone(cluster: Cluster) -> None:
    """No folder is in their settings. Their key opens nothing but the bucket. Files of mode 0600 have it, and no
    command line.
    """
    for gateway in cluster.gateways:
        settings = tomllib.loads(gateway.config.read_text(encoding="utf-8"))
        assert (settings["new_bytes"], settings.keys() & {"data_dir", "volumes"}) == (store.NAME, set())
    assert not (cluster.layout.data / "objects").exists()
    kept = cluster.store
    trusted = certificates.path(cluster.layout, f"{certificates.AUTHORITY}.crt")
    token = secret.read(kept.layout, f"{store.KEY}token")
    rest = Rest(kept.gateway.host.address, kept.gateway.port, token, trusted)
    root = f"/v1/ns/{store.BUCKET}"
    for method, target, body in (
        ("PATCH", f"{root}/entries/", {"mode": "0777"}),
        ("PATCH", root, {"umask": "000"}),
        ("DELETE", root, None),
    ):
        answer = rest.call(method, target, body)
        assert (answer.status, answer.code) == (403, "access_denied"), (method, target)
    files = [*kept.layout.secrets.iterdir(), store.bucket_of(cluster.layout).secrets_file, kept.gateway.credentials]
    for file in files:
        assert file.stat().st_mode & 0o077 == 0, file
    secrets = [secret.read(kept.layout, name) for name in kept.SECRETS]
    for service in cluster.services():
        for what in ("cmdline", "environ"):
            shown = Path(f"/proc/{service.process.pid()}/{what}").read_text(encoding="utf-8")
            assert not [text for text in secrets if text in shown], (service.name, what)


def test_a_cluster_that_an_older_version_made_keeps_its_folder(tmp_path: Path) -> None:
    """Its shape says nothing of a store, so it gets none: its gateways go on with their folder."""
    shape = {"network": "198.18.63", "has_namespaces": True, "is_citus": False, "workers": 0}
    (tmp_path / "shape.json").write_text(json.dumps(shape), encoding="ascii")
    older = Cluster(tmp_path)
    assert older.store is None
    assert [host.name for host in older.layout.hosts if host.name == "store"] == []
    for folder in (older.layout.data, older.layout.config):
        older.account.own_folder(folder)
    secret.make_missing(older.layout, older.account, older.SECRETS)
    certificates.make_missing(older.layout, older.account)
    gateway = older.gateways[0]
    gateway.prepare()
    read = tomllib.loads(gateway.config.read_text(encoding="utf-8"))
    assert (read["data_dir"], "buckets" in read) == (str(tmp_path / "data" / "objects"), False)
    check = [packages.target() / "release" / "mantle-gateway", "--config", gateway.config, "--check-config"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
