"""What an S3 request says by headers and documents is obeyed, or refused by name with nothing changed."""

import hashlib
import uuid
import xml.etree.ElementTree as ET
from urllib.parse import quote

import pytest

from tests.support.s3_wire import Answer, Wire, b64, code, crc32, md5

OLD = "Mon, 01 Jan 2024 00:00:00 GMT"


def delete_all(wire: Wire, bucket: str, document: str, headers: dict[str, str] | None = None) -> Answer:
    body = document.encode()
    return wire.call("POST", f"/{bucket}?delete", body, {"content-md5": md5(body)} if headers is None else headers)


@pytest.mark.parametrize(
    ("method", "target"),
    [(method, target) for method in ("PUT", "GET", "HEAD", "DELETE") for target in ("/k", "/d/")]
    + [("GET", "?list-type=2"), ("GET", ""), ("HEAD", ""), ("GET", "?location")],
)
def test_another_owner_is_expected(wire, bucket, key, method, target):
    answer = wire.call(method, f"/{bucket}{target}", b"", {"x-amz-expected-bucket-owner": "999999999999"})
    assert answer.status == 403
    assert wire.call("GET", key).body == b"old"


def test_the_owner_that_is_expected(wire, bucket, key, s3):
    owner = s3.list_buckets()["Owner"]["ID"]
    assert wire.call("GET", key, headers={"x-amz-expected-bucket-owner": owner}).body == b"old"


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("DELETE", "x-amz-mfa", "1 1"),
        ("DELETE", "if-unmodified-since", OLD),
        ("PUT", "content-range", "bytes 1-2/3"),
        ("PUT", "x-amz-storage-class", "NONSENSE"),
        ("PUT", "x-amz-server-side-encryption", "AES256"),
        ("PUT", "x-amz-server-side-encryption-context", "e30="),
        ("PUT", "x-amz-object-lock-event-hold", "ON"),
        ("PUT", "x-amz-acl", "public-read"),
        ("PUT", "x-amz-grant-read", "id=1"),
        ("PUT", "x-amz-write-offset-bytes", "3"),
    ],
)
def test_headers_that_are_not_offered(wire, key, method, name, value):
    answer = wire.call(method, key, b"new" if method == "PUT" else b"", {name: value})
    assert answer.status >= 400, answer
    assert name in answer.text or "ACL" in answer.text or "storage class" in answer.text
    assert wire.call("GET", key).body == b"old"


@pytest.mark.parametrize(
    ("headers", "document"),
    [
        ({"x-amz-acl": "public-read"}, ""),
        ({"x-amz-grant-read": "id=1"}, ""),
        ({"x-amz-bucket-object-lock-enabled": "true"}, ""),
        ({"x-amz-object-ownership": "ObjectWriter"}, ""),
        ({}, "<LocationConstraint>moon-1</LocationConstraint>"),
        ({}, "<Tags><Tag><Key>a</Key><Value>b</Value></Tag></Tags>"),
    ],
)
def test_buckets_of_a_kind_that_is_not_offered(wire, headers, document):
    target = f"/t-{uuid.uuid4().hex[:12]}"
    body = f"<CreateBucketConfiguration>{document}</CreateBucketConfiguration>".encode() if document else b""
    assert wire.call("PUT", target, body, headers).status >= 400
    assert not wire.exists(target)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("a<![CDATA[b]]>", "ab"),
        ("<![CDATA[a]]>b", "ab"),
        ("<![CDATA[a&b]]>", "a&b"),
        ("a&amp;b", "a&b"),
        ("&#128578;", "\U0001f642"),
        ("&#x1F642;", "\U0001f642"),
    ],
)
def test_keys_in_a_batch_delete(wire, bucket, written, meant):
    names = ["a", "b", "ab", "a&b", "\U0001f642"]
    for name in names:
        wire.call("PUT", f"/{bucket}/{quote(name)}", b"1")
    assert delete_all(wire, bucket, f"<Delete><Object><Key>{written}</Key></Object></Delete>").status == 200
    assert [name for name in names if not wire.exists(f"/{bucket}/{quote(name)}")] == [meant]


@pytest.mark.parametrize(
    "document",
    [
        "<Delete><Object><Key>k</Key></Object></Delete>garbage",
        "<Delete><Object><Key>k</Key></Object></Delete><Delete/>",
        "<Delete><Object><Key>k</Key><New/></Object></Delete>",
        '<Delete xmlns="urn:other"><Object><Key>k</Key></Object></Delete>',
        "<!DOCTYPE Delete><Delete><Object><Key>k</Key></Object></Delete>",
    ],
)
def test_documents_that_are_not_understood(wire, bucket, key, document):
    assert code(delete_all(wire, bucket, document)) == "MalformedXML"
    assert wire.exists(key)


DELETE_K = "<Delete><Object><Key>k</Key></Object></Delete>"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-md5": md5(b"other")},
        {"content-md5": "x"},
        {"x-amz-checksum-crc32": crc32(b"other")},
        {"x-amz-checksum-crc32c": "AAAAAA=="},
        {"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="},
        {"x-amz-checksum-sha1": b64(hashlib.sha1(b"other").digest())},
        {"x-amz-checksum-sha256": b64(hashlib.sha256(b"other").digest())},
        {"x-amz-checksum-sha512": b64(hashlib.sha512(b"other").digest())},
        {"content-md5": md5(DELETE_K.encode()), "x-amz-content-sha256": hashlib.sha256(b"other").hexdigest()},
    ],
)
def test_digests_of_a_batch_delete(wire, bucket, key, headers):
    assert delete_all(wire, bucket, DELETE_K, headers).status == 400
    assert wire.exists(key)


def test_a_batch_delete_with_a_trailer(wire, bucket, key):
    body = DELETE_K.encode()
    framed = f"{len(body):x}\r\n{DELETE_K}\r\n0\r\nx-amz-checksum-crc32:{crc32(body)}\r\n\r\n".encode()
    headers = {
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-decoded-content-length": str(len(body)),
        "x-amz-trailer": "x-amz-checksum-crc32",
    }
    assert wire.call("POST", f"/{bucket}?delete", framed, headers).status == 200
    assert not wire.exists(key)


def test_the_digest_of_a_buckets_document(wire):
    target = f"/t-{uuid.uuid4().hex[:12]}"
    answer = wire.call("PUT", target, b"<CreateBucketConfiguration/>", {"content-md5": md5(b"other")})
    assert code(answer) == "BadDigest"
    assert not wire.exists(target)


@pytest.mark.parametrize("name", ["a\x01b", "a\x1fb", "\ufffe", "\uffff"])
def test_every_answer_can_be_read(wire, bucket, name):
    """A key that no document can hold is refused, and no answer repeats it."""
    target = f"/{bucket}/{quote(name)}"
    assert code(wire.call("PUT", target, b"1")) == "InvalidArgument"
    for query in ("list-type=2", "", "list-type=2&encoding-type=url", f"list-type=2&prefix={quote(name)}"):
        ET.fromstring(wire.call("GET", f"/{bucket}?{query}").body)
    ET.fromstring(wire.call("GET", target).body)
    ET.fromstring(delete_all(wire, bucket, f"<Delete><Object><Key>{name}</Key></Object></Delete>").body)


def test_a_carriage_return_comes_back(wire, bucket, s3):
    s3.put_object(Bucket=bucket, Key="a\rb", Body=b"1")
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["a\rb"]


def test_repeated_metadata_is_joined(wire, key):
    headers = wire.signed("PUT", key, {"x-amz-meta-a": "1,2"})
    del headers["x-amz-meta-a"]
    connection = wire.connection()
    connection.putrequest("PUT", key)
    for name, value in [*headers.items(), ("x-amz-meta-a", "1"), ("X-Amz-Meta-A", "2"), ("content-length", "0")]:
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 200
    assert wire.call("HEAD", key).headers["x-amz-meta-a"] == "1,2"


@pytest.mark.parametrize(("size", "status"), [(2048, 200), (2049, 400)])
def test_user_metadata_is_bounded(wire, key, size, status):
    assert wire.call("PUT", key, b"new", {"x-amz-meta-a": "v" * (size - 1)}).status == status


def test_a_change_of_user_metadata_keeps_the_rest(wire, rest, bucket, key):
    wire.call("PUT", key, b"new", {"content-encoding": "gzip", "cache-control": "no-store", "x-amz-meta-a": "1"})
    shown = rest.call("GET", f"/v1/ns/{bucket}/entries/k").body
    assert shown["user_metadata"] == {"a": "1"}
    assert shown["headers"]["cache-control"] == "no-store"
    for new in (shown["user_metadata"], {"colour": "blue"}):
        assert rest.call("PATCH", f"/v1/ns/{bucket}/entries/k", {"user_metadata": new}).status == 200
    headers = wire.call("HEAD", key, headers={"x-amz-checksum-mode": "ENABLED"}).headers
    assert (headers["content-encoding"], headers["x-amz-meta-colour"]) == ("gzip", "blue")
    assert "x-amz-meta-a" not in headers
    assert "x-amz-checksum-crc64nvme" in headers


def test_a_directory_is_put_again(wire, bucket):
    target = f"/{bucket}/d/"
    wire.call("PUT", target, b"", {"x-amz-meta-a": "1", "cache-control": "no-store"})
    assert wire.call("PUT", target, b"", {"x-amz-meta-b": "2"}).status == 200
    headers = wire.call("HEAD", target).headers
    assert headers["x-amz-meta-b"] == "2"
    assert "x-amz-meta-a" not in headers
    assert "cache-control" not in headers
