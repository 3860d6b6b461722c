"""A gateway that keeps the objects' bytes in a bucket of another object store. That is Mantle's own S3; or the service
that MANTLE_TEST_S3_URL names, with its keys in MANTLE_TEST_S3_ACCESS_KEY and MANTLE_TEST_S3_SECRET_KEY.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import botocore.exceptions
import pytest

from stack import secret
from stack.gateway import Bucket, bucket_keys
from stack.poll import wait_until

from .another_gateway import OFFSET, LimitedGateway, running
from .clients import s3_client

MIB = 1 << 20
BOUND_S = 60
NAME, PREFIX = "elsewhere", "a/prefix"
GIVEN = "MANTLE_TEST_S3_"


@dataclass(frozen=True)
class Service:
    """The object store that has the bucket."""

    url: str
    access_key: str
    secret_key: str

    @classmethod
    def of(cls, stack) -> "Service":
        if f"{GIVEN}URL" in os.environ:
            return cls(*(os.environ[GIVEN + name] for name in ("URL", "ACCESS_KEY", "SECRET_KEY")))
        return cls(stack.gateway.url, *(secret.read(stack.layout, name) for name in ("access_key", "secret_key")))

    def client(self, stack):
        given = {"aws_access_key_id": self.access_key, "aws_secret_access_key": self.secret_key}
        return s3_client(stack, endpoint_url=self.url, **given)


@contextmanager
def bucket_gateway(stack, bucket: str, endpoint: str | None = None, number: int = 0, **limits: int):
    """A gateway without a folder. `endpoint`: another address than that of the service that has the bucket."""
    service = Service.of(stack)
    layout, port = stack.layout, stack.layout.port_base + OFFSET + 2 + number
    gateway = LimitedGateway(layout, stack.account, f"gateway-bucket-{number}", port=port)
    keys = layout.config / f"{gateway.name}-secrets.toml"
    stack.account.write(keys, bucket_keys(service.access_key, service.secret_key))
    gateway.data, gateway.limits = None, limits
    gateway.bucket = Bucket(NAME, f"s3://{bucket}/{PREFIX}", endpoint or service.url, keys)
    with running(gateway):
        yield gateway


@pytest.fixture
def outside(stack):
    """A client of the service that has the bucket."""
    return Service.of(stack).client(stack)


@pytest.fixture
def outer(outside) -> str:
    """The bucket that has the bytes."""
    name = f"bytes-{uuid.uuid4().hex[:12]}"
    outside.create_bucket(Bucket=name)
    return name


@pytest.fixture
def keys(outside, outer) -> Callable[[], list[str]]:
    """Lists the bucket that has the bytes."""
    return lambda: [found["Key"] for found in outside.list_objects_v2(Bucket=outer).get("Contents", [])]


@pytest.fixture
def beside(stack, outer) -> Iterator:
    """A client of a gateway that keeps bytes in that bucket."""
    with bucket_gateway(stack, outer) as gateway:
        yield gateway.s3(stack)


@pytest.mark.parametrize("size", [0, 1, 1000, 8 * MIB - 1, 8 * MIB, 20 * MIB + 5])
def test_bytes_are_in_the_bucket_and_come_back(beside, bucket, keys, size):
    body = os.urandom(size)
    beside.put_object(Bucket=bucket, Key="x/y", Body=body)
    (key,) = keys()
    assert key.startswith(f"{PREFIX}/")
    assert beside.get_object(Bucket=bucket, Key="x/y")["Body"].read() == body
    if size > 1:
        part = beside.get_object(Bucket=bucket, Key="x/y", Range=f"bytes={size // 2}-{size - 1}")
        assert part["Body"].read() == body[size // 2 :]
    beside.delete_object(Bucket=bucket, Key="x/y")
    assert keys() == []


def test_another_gateway_reads_them_with_nothing_shared(stack, beside, bucket, outer):
    beside.put_object(Bucket=bucket, Key="k", Body=b"one")
    with bucket_gateway(stack, outer, number=1) as another:
        assert another.s3(stack).get_object(Bucket=bucket, Key="k")["Body"].read() == b"one"
        another.s3(stack).put_object(Bucket=bucket, Key="k", Body=b"two")
        assert beside.get_object(Bucket=bucket, Key="k")["Body"].read() == b"two"


def test_uploads_copies_and_overwrites(beside, bucket, keys):
    upload = {"Bucket": bucket, "Key": "parts"}
    upload["UploadId"] = beside.create_multipart_upload(**upload)["UploadId"]
    bodies = [os.urandom(5 * MIB), os.urandom(1000)]
    parts = [
        {"PartNumber": n, "ETag": beside.upload_part(**upload, PartNumber=n, Body=body)["ETag"]}
        for n, body in enumerate(bodies, 1)
    ]
    beside.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    assert beside.get_object(Bucket=bucket, Key="parts")["Body"].read() == b"".join(bodies)
    beside.put_object(Bucket=bucket, Key="k", Body=b"old")
    beside.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k"})
    beside.put_object(Bucket=bucket, Key="k", Body=b"new")
    assert beside.get_object(Bucket=bucket, Key="copy")["Body"].read() == b"old"
    before = keys()
    beside.put_object(Bucket=bucket, Key="k", Body=b"newer")
    after = keys()
    assert len(before) == len(after) == 4 and len(set(before) - set(after)) == 1, "the replaced bytes are gone"


def test_a_refused_put_leaves_nothing(beside, bucket, keys):
    beside.put_object(Bucket=bucket, Key="k", Body=b"first", IfNoneMatch="*")
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        beside.put_object(Bucket=bucket, Key="k", Body=b"second", IfNoneMatch="*")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
    assert len(keys()) == 1


def test_the_sweeper_removes_what_its_own_database_does_not_name(stack, outside, bucket, outer, keys):
    quick = {"orphan_grace_ms": 20_000, "sweep_interval_ms": 200}
    with bucket_gateway(stack, outer, **quick) as gateway:
        gateway.s3(stack).put_object(Bucket=bucket, Key="k", Body=b"used")
        (used,) = keys()
        cluster, folder, name = used.removeprefix(f"{PREFIX}/").split("/")
        orphan = f"{PREFIX}/{cluster}/{folder}/{uuid.uuid4().hex}"
        foreign = f"{PREFIX}/{uuid.uuid4().hex}/{folder}/{name}"
        for key in [orphan, foreign, f"{cluster}/{folder}/{name}"]:
            outside.put_object(Bucket=outer, Key=key, Body=b"unused")
        wait_until(lambda: orphan not in keys(), "the end of the orphan", BOUND_S)
        assert sorted(keys()) == sorted([used, foreign, f"{cluster}/{folder}/{name}"])
        assert gateway.s3(stack).get_object(Bucket=bucket, Key="k")["Body"].read() == b"used"


@pytest.mark.allows("gateway", "the bucket of the objects' bytes failed")
@pytest.mark.allows("gateway", "could not remove bytes; the sweeper will")
def test_a_bucket_that_does_not_answer(stack, beside, bucket, outer):
    beside.put_object(Bucket=bucket, Key="k", Body=b"kept")
    with bucket_gateway(stack, outer, endpoint="http://127.0.0.1:9", number=1) as gateway:
        lost = gateway.s3(stack)
        for call in [
            lambda: lost.put_object(Bucket=bucket, Key="k", Body=b"new"),
            lambda: lost.get_object(Bucket=bucket, Key="k"),
        ]:
            with pytest.raises(botocore.exceptions.ClientError) as refused:
                call()
            answer = refused.value.response
            assert answer["ResponseMetadata"]["HTTPStatusCode"] == 503
            assert answer["Error"]["Code"] == "ServiceUnavailable"
        assert lost.head_object(Bucket=bucket, Key="k")["ContentLength"] == 4, "the metadata needs no bucket"
    assert beside.get_object(Bucket=bucket, Key="k")["Body"].read() == b"kept"


@pytest.mark.allows("gateway", "a locator names no store of this gateway's configuration")
def test_a_gateway_that_does_not_have_the_store(s3, beside, bucket):
    beside.put_object(Bucket=bucket, Key="k", Body=b"kept")
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        s3.get_object(Bucket=bucket, Key="k")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    assert s3.head_object(Bucket=bucket, Key="k")["ContentLength"] == 4
