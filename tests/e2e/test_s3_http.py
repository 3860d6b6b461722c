"""Conditions, ranges, times and connections of S3."""

import email.utils
import socket
import xml.etree.ElementTree as ET

import botocore.exceptions
import pytest

from tests.support.s3_wire import code, md5

from .clients import s3_client
from .uploads import refused

OLD = "Mon, 01 Jan 2024 00:00:00 GMT"
REFUSED_BYTES = 10 << 20


@pytest.mark.parametrize("ask", ["items=0-1", "bytes=5-2", "bytes=abc", "bytes=", "bytes=-", "bytes=0-0,2-3", "none"])
def test_ranges_that_are_ignored(wire, key, ask):
    answer = wire.call("GET", key, headers={"range": ask})
    assert (answer.status, answer.body) == (200, b"old")


def test_ranges_beyond_the_end(wire, key):
    answer = wire.call("GET", key, headers={"range": "bytes=3-"})
    assert (answer.status, answer.headers["content-range"], code(answer)) == (416, "bytes */3", "InvalidRange")
    answer = wire.call("GET", key, headers={"range": "bytes=1-9223372036854775808"})
    assert (answer.status, answer.body) == (206, b"ld")


def test_a_resumed_download(wire, key):
    old = wire.call("HEAD", key).headers
    wire.call("PUT", key, b"new")
    new = wire.call("HEAD", key).headers
    for version, status in ((old["etag"], 200), (OLD, 200), ("W/" + new["etag"], 200), (new["etag"], 206)):
        assert wire.call("GET", key, headers={"range": "bytes=1-", "if-range": version}).status == status, version


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_conditions(wire, key, method):
    headers = wire.call("HEAD", key).headers
    tag, modified = headers["etag"], email.utils.parsedate_to_datetime(headers["last-modified"])
    for name, value, status in [
        ("if-none-match", f'"x", {tag}', 304),
        ("if-none-match", "W/" + tag, 304),
        ("if-match", f'"x", {tag}', 200),
        ("if-match", "W/" + tag, 412),
        ("if-modified-since", "yesterday", 200),
        ("if-unmodified-since", "0", 200),
        ("if-modified-since", modified.strftime("%A, %d-%b-%y %H:%M:%S GMT"), 304),
        ("if-modified-since", modified.strftime("%a %b %d %H:%M:%S %Y"), 304),
    ]:
        answer = wire.call(method, key, headers={name: value})
        assert answer.status == status, (name, value, answer)
        if status == 304:
            assert (answer.headers["etag"], answer.headers["last-modified"]) == (tag, headers["last-modified"])
        if status == 412 and method == "GET":
            assert ET.fromstring(answer.body).findtext("Condition") == "If-Match"


def test_conditions_of_a_put(wire, key):
    tag = wire.call("HEAD", key).headers["etag"]
    for condition in ("W/" + tag, f'"x", {tag}', '"x"'):
        assert wire.call("PUT", key, b"new", {"if-match": condition}).status in (412, 501), condition
    assert wire.call("GET", key).body == b"old"
    assert wire.call("PUT", key, b"new", {"if-match": tag}).status == 200


def test_a_put_may_ask_for_another_etag(s3, bucket):
    place = {"Bucket": bucket, "Key": "k"}
    etag = s3.put_object(**place, Body=b"1", IfNoneMatch='"absent"')["ETag"]
    assert refused(s3.put_object, **place, Body=b"2", IfNoneMatch=etag) == ("PreconditionFailed", 412)
    s3.put_object(**place, Body=b"2", IfNoneMatch='"other"')
    for condition in (etag, "*"):
        absent = {"Bucket": bucket, "Key": "absent", "Body": b"", "IfMatch": condition}
        assert refused(s3.put_object, **absent) == ("NoSuchKey", 404)
    assert s3.get_object(**place)["Body"].read() == b"2"


def test_ranges_with_spaces_are_none(wire, key):
    for none in ("bytes= -1", "bytes=0 -1", "bytes= 0-1"):
        assert wire.call("GET", key, headers={"range": none}).status == 200, none
    assert wire.call("GET", key, headers={"range": "bytes=0-1"}).status == 206


def test_attributes_that_are_not_named(wire, bucket, key):
    def asked(target: str, names: str) -> tuple[int, str]:
        answer = wire.call("GET", f"{target}?attributes", headers={"x-amz-object-attributes": names})
        return answer.status, code(answer)

    assert asked(key, "") == (400, "InvalidRequest")
    assert asked(key, "Nonsense") == (400, "InvalidArgument")
    assert asked(f"/{bucket}/absent", "ETag") == (404, "NoSuchKey")
    assert asked("/t-there-is-none/k", "Nonsense") == (404, "NoSuchBucket")


def test_how_many_buckets(wire):
    for many in ("0", "-1", "10001"):
        assert code(wire.call("GET", f"/?max-buckets={many}")) == "InvalidArgument", many


def test_a_directory_s_key_has_a_checksum(wire, bucket):
    """S3's default, or the client's."""
    target, asked = f"/{bucket}/d/", {"x-amz-checksum-mode": "ENABLED"}
    for name, value, given in (("crc64nvme", "AAAAAAAAAAA=", False), ("crc32", "AAAAAA==", True)):
        put = wire.call("PUT", target, b"", {f"x-amz-checksum-{name}": value} if given else {}).headers
        head = wire.call("HEAD", target, headers=asked).headers
        kept = [header for header in head if header.startswith("x-amz-checksum-")]
        assert sorted(kept) == [f"x-amz-checksum-{name}", "x-amz-checksum-type"]
        assert put[f"x-amz-checksum-{name}"] == head[f"x-amz-checksum-{name}"] == value
        assert (put["x-amz-object-size"], head["x-amz-checksum-type"]) == ("0", "FULL_OBJECT")


def test_a_wrong_secret_is_said_in_words(stack, bucket):
    wrong = s3_client(stack, aws_secret_access_key="wrong")
    with pytest.raises(botocore.exceptions.ClientError, match="The request signature we calculated does not match"):
        wrong.get_object(Bucket=bucket, Key="k")


def test_tagging_a_bucket_has_no_content(wire, bucket):
    document = b"<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>"
    assert wire.call("PUT", f"/{bucket}?tagging", document, {"content-md5": md5(document)}).status == 204


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_only_part(wire, key, method):
    answer = wire.call(method, f"{key}?partNumber=1")
    assert (answer.status, answer.headers["content-range"]) == (206, "bytes 0-2/3")
    assert wire.call(method, f"{key}?partNumber=2").status == 416


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_headers_that_the_client_demands(wire, key, method):
    target = f"{key}?response-content-type=text%2Fplain&response-cache-control=no-store"
    headers = wire.call(method, target).headers
    assert (headers["content-type"], headers["cache-control"]) == ("text/plain", "no-store")


def test_a_refused_upload_leaves_the_connection_usable(wire, key):
    for target in ("/t-there-is-none/k", key.removesuffix("k") + "a//b"):
        assert wire.call("PUT", target, b"x" * REFUSED_BYTES).status in (400, 404)
    connection = wire.connection()
    assert wire.call("PUT", "/t-there-is-none/k", b"x" * 100_000, connection=connection).status == 404
    assert wire.call("GET", key, connection=connection).body == b"old"


def test_a_body_that_is_refused_is_not_invited(wire, key):
    target = key + "/below"
    headers = {
        **wire.signed("PUT", target),
        "Content-Length": "5",
        "Expect": "100-continue",
        "Host": f"{wire.host}:{wire.port}",
    }
    with socket.create_connection((wire.host, wire.port), timeout=10) as connection:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.sendall(f"PUT {target} HTTP/1.1\r\n{lines}\r\n".encode())
        assert b" 409 " in connection.recv(200).split(b"\r\n")[0]


def test_a_time_is_the_same_everywhere(wire, bucket, key):
    listed = next(element.text for element in ET.fromstring(wire.call("GET", f"/{bucket}?list-type=2").body).iter()
                  if element.tag.endswith("LastModified"))  # fmt: skip
    at = email.utils.parsedate_to_datetime(wire.call("HEAD", key).headers["last-modified"])
    assert listed == at.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def test_an_encoded_slash_divides_bucket_and_key(wire, key):
    """A request is judged by what the path says once it is decoded, as its signature is."""
    target = key.replace("/k", "%2Fk")
    assert wire.plain("GET", target, headers=wire.signed("GET", key)).body == b"old"
    refused = wire.plain("PUT", f"{target}?location", b"new", wire.signed("PUT", f"{key}?location"))
    assert (refused.status, code(refused)) == (501, "NotImplemented")
    assert wire.call("GET", key).body == b"old"
