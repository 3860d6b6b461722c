"""Buckets as hosts, end to end, and uploads that fall silent."""

import http.client
import socket
from urllib.parse import urlsplit

import botocore.auth
import botocore.awsrequest
import pytest

from stack.layout import REGION
from tests.support.s3_wire import UNSIGNED, Answer, Signer, code

from .another_gateway import another_gateway

DOMAIN = "s3.example"


@pytest.fixture
def at_host(stack, wire):
    """Calls a gateway that has a domain, with any Host header, which is signed."""
    with another_gateway(stack, domains=(DOMAIN,)) as gateway:
        address = urlsplit(gateway.url)

        def call(method: str, host: str, path: str, body: bytes = b"") -> Answer:
            request = botocore.awsrequest.AWSRequest(
                method, f"http://{host}{path}", headers={"x-amz-content-sha256": UNSIGNED}
            )
            Signer(wire.keys, "s3", REGION).add_auth(request)
            connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
            connection.request(method, path, body, {**dict(request.headers.items()), "Host": host})
            response = connection.getresponse()
            read = response.read()
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, read)

        yield call


def test_a_bucket_may_be_the_host(at_host, s3, bucket):
    host = f"{bucket}.{DOMAIN}"
    assert at_host("PUT", host, "/a/k", b"bytes").status == 200
    assert s3.get_object(Bucket=bucket, Key="a/k")["Body"].read() == b"bytes"
    assert at_host("GET", host, "/a/k").body == b"bytes"
    assert b"<Key>a/k</Key>" in at_host("GET", host, "/?list-type=2").body
    assert code(at_host("GET", host, f"/{bucket}/a/k")) == "NoSuchKey", "the path is the key alone"
    assert at_host("GET", DOMAIN, f"/{bucket}/a/k").body == b"bytes"
    assert at_host("DELETE", host, "/a/k").status == 204


def test_another_host_changes_nothing(at_host, s3, bucket):
    for host in (f"{bucket}.other.example", "other.example", f"{bucket}.{DOMAIN}.example"):
        assert at_host("PUT", host, "/k", b"bytes").status == 400, host
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_an_upload_that_falls_silent_is_ended(stack, s3, bucket, wire):
    with another_gateway(stack, body_idle_ms=300) as gateway:
        address = urlsplit(gateway.url)
        target = f"/{bucket}/k"
        request = botocore.awsrequest.AWSRequest(
            "PUT", gateway.url + target, headers={"x-amz-content-sha256": UNSIGNED}
        )
        Signer(wire.keys, "s3", REGION).add_auth(request)
        headers = {"Host": address.netloc, "Content-Length": "100000", **dict(request.headers.items())}
        with socket.create_connection((address.hostname, address.port), timeout=30) as client:
            lines = [f"PUT {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
            client.sendall("\r\n".join(lines).encode() + b"some bytes")
            response = http.client.HTTPResponse(client)
            response.begin()
            answer = Answer(response.status, {}, response.read())
    assert (answer.status, code(answer)) == (400, "RequestTimeout")
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)
