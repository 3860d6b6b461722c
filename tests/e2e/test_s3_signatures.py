"""Signatures and hosts that S3 would not accept."""

import hashlib
import hmac
import time
import uuid
from urllib.parse import quote

import pytest

from tests.support.s3_wire import b64, code

OLD = "Mon, 01 Jan 2024 00:00:00 GMT"


@pytest.mark.parametrize("date", [OLD, "no date"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_the_old_signature_is_off(wire, key, method, date):
    mac = hmac.new(wire.keys.secret_key.encode(), f"{method}\n\n\n{date}\n{key}".encode(), hashlib.sha1)
    headers = {"Date": date, "Authorization": f"AWS {wire.keys.access_key}:{b64(mac.digest())}"}
    answer = wire.plain(method, key, b"new" if method == "PUT" else b"", headers)
    assert (answer.status, code(answer)) == (400, "InvalidRequest")
    assert wire.call("GET", key).body == b"old"


def test_the_old_signature_in_the_query_is_off(wire, key):
    expires = int(time.time()) + 3600
    mac = hmac.new(wire.keys.secret_key.encode(), f"GET\n\n\n{expires}\n{key}".encode(), hashlib.sha1).digest()
    target = f"{key}?AWSAccessKeyId={wire.keys.access_key}&Signature={quote(b64(mac), safe='')}&Expires={expires}"
    assert code(wire.plain("GET", target)) == "InvalidRequest"


@pytest.mark.parametrize(
    ("place", "wrong"), [("region", {"region": "moon-1"}), ("service", {"service": "sts"})], ids=["region", "service"]
)
def test_the_scope_is_checked(wire, key, place, wrong):
    answer = wire.plain("GET", key, headers=wire.signed("GET", key, **wrong))
    assert (answer.status, code(answer)) == (400, "AuthorizationHeaderMalformed")
    assert place in answer.text


def test_headers_cannot_be_added_to_a_signature(wire, key):
    headers = wire.signed("PUT", key) | {"x-amz-meta-added": "later"}
    answer = wire.plain("PUT", key, b"new", headers)
    assert (answer.status, code(answer)) == (403, "AccessDenied")
    assert wire.call("GET", key).body == b"old"


@pytest.mark.parametrize("name", ["x-amz-meta-added", "cache-control", "content-disposition", "content-encoding"])
def test_headers_cannot_be_added_to_a_presigned_put(wire, key, name):
    answer = wire.plain("PUT", wire.presigned("PUT", key, 60), b"new", {name: "x"})
    assert (answer.status, code(answer)) == (403, "AccessDenied")
    assert wire.call("GET", key).body == b"old"


def test_a_presigned_put(wire, key):
    assert wire.plain("PUT", wire.presigned("PUT", key, 60), b"new", {"content-type": "text/plain"}).status == 200
    answer = wire.plain("GET", wire.presigned("GET", key, 604_800))
    assert (answer.body, answer.headers["content-type"]) == (b"new", "text/plain")


@pytest.mark.parametrize("life", [0, -1, 604_801, 4_294_967_295])
def test_how_long_a_presigned_url_may_live(wire, key, life):
    answer = wire.plain("GET", wire.presigned("GET", key, life))
    assert (answer.status, code(answer)) == (400, "AuthorizationQueryParametersError")


def test_one_signature_a_request(wire, key):
    answer = wire.plain("GET", wire.presigned("GET", key, 60), headers=wire.signed("GET", key))
    assert code(answer) == "InvalidArgument"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text.replace("Credential=", "Key="), "AuthorizationHeaderMalformed"),
        (lambda text: text.replace("aws4_request", "aws5_request"), "AuthorizationHeaderMalformed"),
        (lambda text: text.replace("SignedHeaders=host;", "SignedHeaders="), "AuthorizationHeaderMalformed"),
        (lambda text: text.split(", Signature")[0], "AuthorizationHeaderMalformed"),
        (lambda text: text.replace("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), "InvalidRequest"),
        (lambda text: "Basic x", "InvalidArgument"),
        (lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"), "SignatureDoesNotMatch"),
    ],
)
def test_malformed_signatures(wire, key, change, expected):
    headers = wire.signed("GET", key)
    headers["Authorization"] = change(headers["Authorization"])
    assert code(wire.plain("GET", key, headers=headers)) == expected


@pytest.mark.parametrize("host", ["photos.mantle.test", "evil.example", "localhost.evil.example:80"])
def test_an_unknown_host_changes_nothing(wire, bucket, host):
    name = f"t-{uuid.uuid4().hex[:12]}"
    for method, target in (("PUT", f"/{name}"), ("DELETE", f"/{bucket}"), ("GET", "/"), ("GET", "/v1/ns")):
        answer = wire.plain(method, target, headers=wire.signed(method, target, {"host": host}))
        assert answer.status == 400, answer
        assert host in answer.text
    assert wire.exists(f"/{bucket}")
    assert not wire.exists(f"/{name}")
