"""Digests of objects: announced, compared, kept and given back."""

import hashlib
import xml.etree.ElementTree as ET

import pytest

from tests.support.s3_wire import b64, crc32, md5


def chunked(body: bytes, checksum: str) -> bytes:
    return b"%x\r\n%b\r\n0\r\nx-amz-checksum-crc32:%b\r\n\r\n" % (len(body), body, checksum.encode())


FRAMED = {
    "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "x-amz-decoded-content-length": "3",
    "x-amz-trailer": "x-amz-checksum-crc32",
    "content-encoding": "aws-chunked",
}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (chunked(b"abc", crc32(b"xyz")), FRAMED),
        (chunked(b"abc", crc32(b"xyz")), {**FRAMED, "x-amz-checksum-crc32": crc32(b"abc")}),
        (chunked(b"abc", crc32(b"abc")), {**FRAMED, "x-amz-sdk-checksum-algorithm": "SHA1"}),
        (chunked(b"abc", crc32(b"abc")), {**FRAMED, "x-amz-trailer": "x-amz-checksum-crc16"}),
        (b"abc", {"x-amz-sdk-checksum-algorithm": "SHA256"}),
        (b"abc", {"x-amz-checksum-crc32": crc32(b"abc"), "x-amz-checksum-sha1": "AAAA"}),
        *(
            (b"abc", {f"x-amz-checksum-{name}": "AAAA"})
            for name in ("md5", "sha512", "xxhash64", "xxhash3", "xxhash128")
        ),
    ],
)
def test_digests_that_do_not_hold(wire, bucket, body, headers):
    target = f"/{bucket}/digest"
    assert wire.call("PUT", target, body, headers).status == 400
    assert not wire.exists(target)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("content-md5", md5(b"x")),
        ("x-amz-checksum-crc32", crc32(b"x")),
        ("x-amz-checksum-sha256", b64(hashlib.sha256(b"x").digest())),
    ],
)
def test_digests_of_a_directory(wire, bucket, name, value):
    target = f"/{bucket}/directory/"
    assert wire.call("PUT", target, b"", {name: value}).status == 400
    assert not wire.exists(target)


@pytest.mark.parametrize(
    ("headers", "algorithm", "value"),
    [
        ({}, "crc64nvme", "tHrzfw7a1s4="),
        ({"x-amz-checksum-crc32": crc32(b"abc")}, "crc32", crc32(b"abc")),
        ({"x-amz-checksum-sha256": b64(hashlib.sha256(b"abc").digest())}, "sha256", None),
        ({"x-amz-checksum-sha512": b64(hashlib.sha512(b"abc").digest())}, "sha512", None),
        ({"x-amz-checksum-md5": md5(b"abc")}, "md5", None),
    ],
)
def test_the_checksum_comes_back(wire, bucket, headers, algorithm, value):
    target, name = f"/{bucket}/sum", f"x-amz-checksum-{algorithm}"
    put = wire.call("PUT", target, b"abc", headers)
    assert put.status == 200
    expected = headers.get(name, value)
    if algorithm != "crc64nvme":
        assert put.headers[name] == expected
    for method in ("GET", "HEAD"):
        answer = wire.call(method, target, headers={"x-amz-checksum-mode": "ENABLED"})
        assert answer.headers[name] == put.headers[name]
        assert answer.headers["x-amz-checksum-type"] == "FULL_OBJECT"
        assert name not in wire.call(method, target).headers
    listing = ET.fromstring(wire.call("GET", f"/{bucket}?list-type=2&prefix=sum").body)
    assert algorithm.upper() in [
        element.text for element in listing.iter() if element.tag.endswith("ChecksumAlgorithm")
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-checksum-crc32": crc32(b"{}")},
        {"x-amz-content-sha256": FRAMED["x-amz-content-sha256"], "x-amz-trailer": "x-amz-checksum-crc32"},
    ],
)
def test_the_native_api_takes_no_checksum(wire, bucket, headers):
    """It compares none, so it refuses what it would ignore."""
    target, body = f"/v1/ns/{bucket}/dirs/d", b""
    if "x-amz-trailer" in headers:
        body = b"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
        headers["x-amz-decoded-content-length"] = "0"
    answer = wire.call("PUT", target, body, headers)
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    assert not wire.exists(f"/{bucket}/d/")


def test_the_checksum_of_completes_document(wire, bucket):
    target = f"/{bucket}/k"
    upload = ET.fromstring(wire.call("POST", f"{target}?uploads").body).findtext("{*}UploadId")
    etag = wire.call("PUT", f"{target}?partNumber=1&uploadId={upload}", b"abc").headers["etag"]
    part = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    document = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()
    place = f"{target}?uploadId={upload}"
    headers = {**FRAMED, "x-amz-decoded-content-length": str(len(document))}
    assert wire.call("POST", place, chunked(document, "AAAAAA=="), headers).status == 400
    assert not wire.exists(target)
    assert wire.call("POST", place, chunked(document, crc32(document)), headers).status == 200


def test_checksums_of_older_clients_framing_is_not_stored(wire, bucket):
    target = f"/{bucket}/framing"
    wire.call("PUT", target, b"abc", {"content-encoding": "AWS-Chunked"})
    assert "content-encoding" not in wire.call("HEAD", target).headers
