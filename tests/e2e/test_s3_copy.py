"""CopyObject: the copy shares the bytes of its source, and each outlives the other."""

import hashlib
import uuid
from pathlib import Path

import botocore.exceptions
import pytest

from tests.support.s3_wire import b64, code


def refused(call, *arguments, **given) -> str:
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        call(*arguments, **given)
    return caught.value.response["Error"]["Code"]


def files(stack) -> set[Path]:
    return {path for path in (stack.gateway.data / "objects").rglob("*") if path.is_file()}


def test_a_copy_has_what_its_source_has(s3, bucket, stack):
    s3.put_object(
        Bucket=bucket, Key="a/k", Body=b"bytes", ContentType="text/plain", CacheControl="no-store",
        Metadata={"colour": "blue"},
    )  # fmt: skip
    before = files(stack)
    result = s3.copy_object(Bucket=bucket, Key="b/copy of it", CopySource={"Bucket": bucket, "Key": "a/k"})
    assert files(stack) == before
    source, copy = s3.head_object(Bucket=bucket, Key="a/k"), s3.get_object(Bucket=bucket, Key="b/copy of it")
    assert copy["Body"].read() == b"bytes"
    for name in ("ContentType", "CacheControl", "Metadata", "ETag", "ContentLength"):
        assert copy[name] == source[name], name
    assert result["CopyObjectResult"]["ETag"] == source["ETag"]


def test_each_outlives_the_other(s3, bucket):
    for first, second in (("s", "c"), ("c", "s")):
        s3.put_object(Bucket=bucket, Key="s", Body=b"bytes")
        s3.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "s"})
        s3.delete_object(Bucket=bucket, Key=first)
        assert s3.get_object(Bucket=bucket, Key=second)["Body"].read() == b"bytes"
        s3.put_object(Bucket=bucket, Key=second, Body=b"others")
        assert s3.get_object(Bucket=bucket, Key=second)["Body"].read() == b"others"
        s3.delete_object(Bucket=bucket, Key=second)


def test_an_overwritten_source_leaves_the_copy(s3, bucket):
    s3.put_object(Bucket=bucket, Key="s", Body=b"old")
    s3.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "s"})
    s3.put_object(Bucket=bucket, Key="s", Body=b"new")
    assert s3.get_object(Bucket=bucket, Key="c")["Body"].read() == b"old"
    s3.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "s"})
    assert s3.get_object(Bucket=bucket, Key="c")["Body"].read() == b"new"


def test_a_directory_s_key_is_copied(s3, wire, bucket):
    """Its metadata and tags, and nothing below it."""
    s3.put_object(Bucket=bucket, Key="d/", Body=b"", Metadata={"colour": "blue"}, Tagging="t=1")
    s3.put_object(Bucket=bucket, Key="d/k", Body=b"below")
    result = s3.copy_object(Bucket=bucket, Key="a/b/", CopySource=f"{bucket}/d/")
    assert result["CopyObjectResult"]["ETag"] == s3.head_object(Bucket=bucket, Key="d/")["ETag"]
    assert s3.head_object(Bucket=bucket, Key="a/b/")["Metadata"] == {"colour": "blue"}
    assert s3.get_object_tagging(Bucket=bucket, Key="a/b/")["TagSet"] == [{"Key": "t", "Value": "1"}]
    assert not wire.exists(f"/{bucket}/a/b/k")
    for _ in range(2):  # onto another one, and onto itself
        s3.copy_object(
            Bucket=bucket, Key="d/", CopySource=f"{bucket}/a/b/", MetadataDirective="REPLACE", Metadata={"b": "2"}
        )
        s3.copy_object(
            Bucket=bucket, Key="a/b/", CopySource=f"{bucket}/a/b/", MetadataDirective="REPLACE", Metadata={"b": "2"}
        )
    assert [s3.head_object(Bucket=bucket, Key=key)["Metadata"] for key in ("d/", "a/b/")] == [{"b": "2"}] * 2
    assert s3.get_object(Bucket=bucket, Key="d/k")["Body"].read() == b"below"
    with pytest.raises(botocore.exceptions.ClientError, match="PreconditionFailed"):
        s3.copy_object(Bucket=bucket, Key="d/", CopySource=f"{bucket}/a/b/", IfNoneMatch="*")
    for source, key in (("d/", "k"), ("d/k", "e/")):
        assert refused(s3.copy_object, Bucket=bucket, Key=key, CopySource=f"{bucket}/{source}") == "InvalidArgument"
    for absent in ("x/", "a/"):  # `a/` is a directory, and no key
        assert refused(s3.copy_object, Bucket=bucket, Key="y/", CopySource=f"{bucket}/{absent}") == "NoSuchKey"


def test_metadata_is_replaced(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"1", ContentType="text/plain", Metadata={"a": "1"}, CacheControl="x")
    for key in ("c", "k"):  # onto itself too
        s3.copy_object(
            Bucket=bucket, Key=key, CopySource=f"{bucket}/k", MetadataDirective="REPLACE", Metadata={"b": "2"},
            ContentType="text/html",
        )  # fmt: skip
        head = s3.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        assert (head["Metadata"], head["ContentType"]) == ({"b": "2"}, "text/html")
        assert "CacheControl" not in head
        assert head["ChecksumType"] == "FULL_OBJECT"
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"1"


def test_onto_itself_unchanged_is_refused(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"1")
    assert refused(s3.copy_object, Bucket=bucket, Key="k", CopySource=f"{bucket}/k") == "InvalidRequest"


def test_across_buckets(s3, bucket):
    other = f"t-{uuid.uuid4().hex[:12]}"
    s3.create_bucket(Bucket=other)
    s3.put_object(Bucket=bucket, Key="k", Body=b"1")
    s3.copy_object(Bucket=other, Key="deep/er/k", CopySource={"Bucket": bucket, "Key": "k"})
    s3.delete_object(Bucket=bucket, Key="k")
    assert s3.get_object(Bucket=other, Key="deep/er/k")["Body"].read() == b"1"


@pytest.mark.parametrize("key", ["a b", "a+b", "a%b", "ä/ö", "a?b", "a&b=c"])
def test_names_of_sources(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": key})
    assert s3.get_object(Bucket=bucket, Key="copy")["Body"].read() == key.encode()


def test_conditions_of_the_source(s3, bucket, wire):
    s3.put_object(Bucket=bucket, Key="k", Body=b"1")
    etag = s3.head_object(Bucket=bucket, Key="k")["ETag"]
    for name, value, status in [
        ("if-match", etag, 200),
        ("if-match", f'"x", {etag}', 200),
        ("if-match", '"x"', 412),
        ("if-none-match", '"x"', 200),
        ("if-none-match", etag, 412),
        ("if-unmodified-since", "Mon, 01 Jan 2024 00:00:00 GMT", 412),
        ("if-modified-since", "Mon, 01 Jan 2024 00:00:00 GMT", 200),
    ]:
        headers = {"x-amz-copy-source": f"/{bucket}/k", f"x-amz-copy-source-{name}": value}
        assert wire.call("PUT", f"/{bucket}/c", headers=headers).status == status, (name, value)


def test_conditions_of_the_copy(s3, bucket, wire):
    for key in ("k", "taken"):
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    headers = {"x-amz-copy-source": f"/{bucket}/k", "if-none-match": "*"}
    assert code(wire.call("PUT", f"/{bucket}/taken", headers=headers)) == "PreconditionFailed"
    assert s3.get_object(Bucket=bucket, Key="taken")["Body"].read() == b"taken"
    assert wire.call("PUT", f"/{bucket}/free", headers=headers).status == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-amz-copy-source": "/{0}/absent"}, "NoSuchKey"),
        ({"x-amz-copy-source": "/t-there-is-none/k"}, "NoSuchBucket"),
        ({"x-amz-copy-source": "/{0}/k?versionId=3"}, "InvalidArgument"),
        ({"x-amz-copy-source": "k"}, "InvalidArgument"),
        ({"x-amz-copy-source": "/{0}/d/"}, "InvalidArgument"),
        ({"x-amz-copy-source": "/{0}/k", "x-amz-metadata-directive": "NEW"}, "InvalidArgument"),
        ({"x-amz-copy-source": "/{0}/k", "x-amz-source-expected-bucket-owner": "9"}, "AccessDenied"),
        ({"x-amz-copy-source": "/{0}/k", "x-amz-copy-source-range": "bytes=0-0"}, "NotImplemented"),
        ({"x-amz-copy-source": "/{0}/k", "x-amz-server-side-encryption": "AES256"}, "NotImplemented"),
        ({"x-amz-copy-source": "/{0}/k", "x-amz-checksum-algorithm": "CRC16"}, "InvalidRequest"),
        ({"x-amz-copy-source": "/{0}/k", "x-amz-tagging-directive": "NEW"}, "InvalidArgument"),
    ],
)
def test_copies_that_are_refused(wire, bucket, key, headers, expected):
    wire.call("PUT", f"/{bucket}/d/")
    answer = wire.call("PUT", f"/{bucket}/c", headers={name: text.format(bucket) for name, text in headers.items()})
    assert code(answer) == expected
    assert not wire.exists(f"/{bucket}/c")


def test_a_retry_is_one_copy(wire, rest, bucket, key):
    headers = {"x-amz-copy-source": f"/{bucket}/k", "Idempotency-Key": str(uuid.uuid4())}
    assert wire.call("PUT", f"/{bucket}/c", headers=headers).status == 200
    first = rest.call("GET", f"/v1/ns/{bucket}/entries/c").body
    assert wire.call("PUT", f"/{bucket}/c", headers=headers).status == 200
    assert rest.call("GET", f"/v1/ns/{bucket}/entries/c").body == first


def test_the_checksum_is_copied(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"abc", ChecksumAlgorithm="SHA256")
    s3.copy_object(Bucket=bucket, Key="c", CopySource=f"{bucket}/k", ChecksumAlgorithm="SHA256")
    head = s3.head_object(Bucket=bucket, Key="c", ChecksumMode="ENABLED")
    assert head["ChecksumSHA256"] == b64(hashlib.sha256(b"abc").digest())


def test_a_copy_may_have_another_checksum(s3, wire, bucket):
    """Of an object in one piece and of one in parts; the parts' checksums are then not of the copy's algorithm."""
    s3.put_object(Bucket=bucket, Key="k", Body=b"abc", ChecksumAlgorithm="CRC32")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="p", ChecksumAlgorithm="SHA1")["UploadId"]
    target = {"Bucket": bucket, "Key": "p", "UploadId": upload}
    part = s3.upload_part(**target, PartNumber=1, Body=b"abc", ChecksumAlgorithm="SHA1")
    parts = [{"PartNumber": 1, "ETag": part["ETag"], "ChecksumSHA1": part["ChecksumSHA1"]}]
    s3.complete_multipart_upload(**target, MultipartUpload={"Parts": parts})
    wire.call("PUT", f"/{bucket}/d/")
    for source, destination, data in (("k", "c", b"abc"), ("p", "q", b"abc"), ("k", "k", b"abc"), ("d/", "e/", b"")):
        sha512 = b64(hashlib.sha512(data).digest())
        headers = {
            "x-amz-copy-source": f"/{bucket}/{source}",
            "x-amz-checksum-algorithm": "SHA512",
            "x-amz-metadata-directive": "REPLACE",
        }
        copied = wire.call("PUT", f"/{bucket}/{destination}", headers=headers)
        assert f"<ChecksumSHA512>{sha512}</ChecksumSHA512>" in copied.text
        assert "<ChecksumType>FULL_OBJECT</ChecksumType>" in copied.text
        head = wire.call("HEAD", f"/{bucket}/{destination}", headers={"x-amz-checksum-mode": "ENABLED"})
        assert head.headers["x-amz-checksum-sha512"] == sha512
        assert "x-amz-checksum-crc32" not in head.headers
    for key, listed in (("p", True), ("q", False)):
        part = wire.call("GET", f"/{bucket}/{key}?partNumber=1", headers={"x-amz-checksum-mode": "ENABLED"})
        assert ("x-amz-checksum-sha1" in part.headers) == listed
        assert "x-amz-checksum-sha512" not in part.headers, "it is not the part's"
        attributes = {"x-amz-object-attributes": "Checksum,ObjectParts"}
        text = wire.call("GET", f"/{bucket}/{key}?attributes", headers=attributes).text
        assert ("ChecksumSHA1" in text.split("<ObjectParts>")[1]) == listed, text
        assert "ChecksumSHA512" not in text.split("<ObjectParts>")[1]


def test_a_copy_of_an_object_in_parts_may_have_the_checksum_of_its_bytes(s3, wire, bucket, rest):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="p", ChecksumAlgorithm="SHA256")["UploadId"]
    target = {"Bucket": bucket, "Key": "p", "UploadId": upload}
    part = s3.upload_part(**target, PartNumber=1, Body=b"abc", ChecksumAlgorithm="SHA256")
    s3.complete_multipart_upload(**target, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    place = {"Bucket": bucket, "Key": "p"}
    kept = s3.copy_object(Bucket=bucket, Key="kept", CopySource=place)["CopyObjectResult"]
    assert (kept["ChecksumType"], kept["ChecksumSHA256"][-2:]) == ("COMPOSITE", "-1")
    own = s3.copy_object(Bucket=bucket, Key="own", CopySource=place, ChecksumAlgorithm="SHA256")["CopyObjectResult"]
    assert own["ChecksumType"] == "FULL_OBJECT"
    assert own["ChecksumSHA256"] == b64(hashlib.sha256(b"abc").digest())
    assert "own-checksum" not in str(rest.call("GET", f"/v1/ns/{bucket}/entries/own").body)
