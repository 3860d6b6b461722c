"""Objects over S3: bytes, ranges, conditions, overwriting, deleting; buckets."""

import os

import botocore.exceptions
import pytest

from stack.poll import wait_until

from .clients import s3_client

BODY = bytes(range(256)) * 40  # 10,240 bytes


def code_of(refused) -> tuple[int, str]:
    answer = refused.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


@pytest.fixture
def stored(bucket, s3) -> str:
    s3.put_object(Bucket=bucket, Key="x/y/object", Body=BODY, ContentType="text/x-test", Metadata={"colour": "blue"})
    return bucket


def test_what_was_put_is_got(stored, s3):
    got = s3.get_object(Bucket=stored, Key="x/y/object")
    assert got["Body"].read() == BODY
    head = s3.head_object(Bucket=stored, Key="x/y/object")
    assert (head["ContentLength"], head["ContentType"], head["Metadata"]) == (
        len(BODY),
        "text/x-test",
        {"colour": "blue"},
    )
    assert head["ETag"] == got["ETag"]


def test_an_empty_object(bucket, s3):
    s3.put_object(Bucket=bucket, Key="empty", Body=b"")
    assert s3.get_object(Bucket=bucket, Key="empty")["Body"].read() == b""


def test_a_body_of_several_megabytes(bucket, s3):
    body = os.urandom(5_000_000)
    s3.put_object(Bucket=bucket, Key="big", Body=body)
    assert s3.get_object(Bucket=bucket, Key="big")["Body"].read() == body


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=5-99", 5, 99),
        ("bytes=10000-", 10000, 10239),
        ("bytes=-7", 10233, 10239),
        ("bytes=10-99999", 10, 10239),
    ],
)
def test_ranges(stored, s3, asked, first, last):
    got = s3.get_object(Bucket=stored, Key="x/y/object", Range=asked)
    assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert got["ContentRange"] == f"bytes {first}-{last}/{len(BODY)}"
    assert got["Body"].read() == BODY[first : last + 1]


def test_a_range_outside(stored, s3):
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        s3.get_object(Bucket=stored, Key="x/y/object", Range="bytes=20000-")
    assert code_of(refused) == (416, "InvalidRange")


def test_overwrite_and_delete_keep_the_counts(stored, s3, rest, sql):
    s3.put_object(Bucket=stored, Key="x/y/object", Body=b"short")
    assert s3.get_object(Bucket=stored, Key="x/y/object")["Body"].read() == b"short"
    assert sql.execute("SELECT objects, bytes FROM mantle.du(%s, '')", (stored,)).fetchone() == (1, 5)
    s3.delete_object(Bucket=stored, Key="x/y/object")
    s3.delete_object(Bucket=stored, Key="x/y/object")  # S3 answers 204 for a missing key
    assert s3.list_objects_v2(Bucket=stored)["KeyCount"] == 0
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        s3.get_object(Bucket=stored, Key="x/y/object")
    assert code_of(refused) == (404, "NoSuchKey")


def test_if_none_match(bucket, s3):
    s3.put_object(Bucket=bucket, Key="once", Body=b"1", IfNoneMatch="*")
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        s3.put_object(Bucket=bucket, Key="once", Body=b"2", IfNoneMatch="*")
    assert code_of(refused) == (412, "PreconditionFailed")
    assert s3.get_object(Bucket=bucket, Key="once")["Body"].read() == b"1"


def test_if_match(bucket, s3):
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"1")["ETag"]
    s3.put_object(Bucket=bucket, Key="k", Body=b"2", IfMatch=etag)
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        s3.put_object(Bucket=bucket, Key="k", Body=b"3", IfMatch=etag)
    assert code_of(refused) == (412, "PreconditionFailed")


def test_head_of_a_directory_is_404(stored, s3):
    for key in ("x", "x/y", "x/y/"):
        with pytest.raises(botocore.exceptions.ClientError) as refused:
            s3.head_object(Bucket=stored, Key=key)
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


def test_explicit_directories_are_keys(bucket, s3, rest):
    rest.mkdir(bucket, "made/")
    s3.put_object(Bucket=bucket, Key="marker/", Body=b"")
    s3.put_object(Bucket=bucket, Key="implicit/object", Body=b"1")
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert keys == ["implicit/object", "made/", "marker/"]
    s3.delete_object(Bucket=bucket, Key="marker/")
    assert not rest.exists(bucket, "marker/")


def test_a_marker_above_objects_can_be_deleted(bucket, s3, rest):
    """The key disappears at once, the directory with its last object."""
    s3.put_object(Bucket=bucket, Key="d/", Body=b"")
    s3.put_object(Bucket=bucket, Key="d/o", Body=b"1")
    for _ in range(2):  # a deleted key can be deleted again
        s3.delete_object(Bucket=bucket, Key="d/")
        assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["d/o"]
    s3.delete_object(Bucket=bucket, Key="d/o")
    wait_until(lambda: not rest.exists(bucket, "d/"), "the implicit directory to be pruned", 30)


def test_buckets(s3, bucket):
    assert bucket in [entry["Name"] for entry in s3.list_buckets()["Buckets"]]
    s3.head_bucket(Bucket=bucket)
    s3.create_bucket(Bucket=bucket)  # as in S3's own region: creating one's own bucket again succeeds
    s3.put_object(Bucket=bucket, Key="k", Body=b"1")
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        s3.delete_bucket(Bucket=bucket)
    assert code_of(refused) == (409, "BucketNotEmpty")
    s3.delete_object(Bucket=bucket, Key="k")
    s3.delete_bucket(Bucket=bucket)
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        s3.head_bucket(Bucket=bucket)
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


def test_presigned_url(stored, stack, s3):
    import urllib.request

    import botocore.config

    signer = s3_client(stack, config=botocore.config.Config(signature_version="s3v4", s3={"addressing_style": "path"}))
    url = signer.generate_presigned_url("get_object", Params={"Bucket": stored, "Key": "x/y/object"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as answer:
        assert answer.read() == BODY


@pytest.mark.allows("gateway", "an object's bytes are missing")
def test_lost_bytes_are_an_error_and_counted(stack, stored, s3, sql):
    counted = lambda: stack.gateway.metrics()["mantle_gateway_bytes_missing_total"]
    (locator,) = sql.execute(
        "SELECT m.locator FROM mantle.meta m JOIN mantle.namespaces n USING (ns)"
        " WHERE n.name = %s AND m.name = 'object'",
        (stored,),
    ).fetchone()
    file = stack.gateway.data / locator
    kept = file.rename(file.with_name("kept"))
    before = counted()
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        s3.get_object(Bucket=stored, Key="x/y/object")
    assert code_of(refused) == (500, "InternalError")
    assert "bytes are missing" in refused.value.response["Error"]["Message"]
    assert counted() > before
    assert s3.head_object(Bucket=stored, Key="x/y/object")["ContentLength"] == len(BODY)
    kept.rename(file)
    assert s3.get_object(Bucket=stored, Key="x/y/object")["Body"].read() == BODY
