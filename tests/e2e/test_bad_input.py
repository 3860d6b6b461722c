"""Bad input gets the error of docs/errors.md, over S3 and over the native API, and changes nothing."""

import uuid

import botocore.exceptions
import pytest

from tests.support.rest import quote

from .clients import s3_client

LONG_NAME = "n" * 256
LONG_KEY = "/".join(["k" * 200] * 6)  # 1,205 bytes, every name within its limit
DEEP_KEY = "/".join(["d"] * 129)

# key, REST code, S3 code
BAD_KEYS = [
    pytest.param("a//b", "invalid_name", "InvalidArgument", id="doubled slash"),
    pytest.param("/a", "invalid_name", "InvalidArgument", id="leading slash"),
    pytest.param("a/./b", "invalid_name", "InvalidArgument", id="dot"),
    pytest.param("a/../b", "invalid_name", "InvalidArgument", id="dot dot"),
    pytest.param("..", "invalid_name", "InvalidArgument", id="dot dot alone"),
    pytest.param("a\0b", "invalid_name", "InvalidArgument", id="NUL"),
    pytest.param(LONG_NAME, "name_too_long", "KeyTooLongError", id="name over 255"),
    pytest.param("ü" * 128, "name_too_long", "KeyTooLongError", id="name over 255 bytes, not characters"),
    pytest.param(LONG_KEY, "key_too_long", "KeyTooLongError", id="key over 1024"),
    pytest.param(DEEP_KEY, "path_too_deep", "KeyTooLongError", id="too deep"),
]


def escape_dots(key: str) -> str:
    """Percent-encoded, so that no client library normalizes the path."""
    return quote(key).replace("/./", "/%2E/").replace("..", "%2E%2E")


@pytest.mark.parametrize(("key", "code", "_s3_code"), BAD_KEYS)
def test_native_api(bucket, rest, key, code, _s3_code):
    calls = [
        ("PUT", f"/v1/ns/{bucket}/dirs/{escape_dots(key)}?parents=true", None),
        ("DELETE", f"/v1/ns/{bucket}/dirs/{escape_dots(key)}", None),
        ("GET", f"/v1/ns/{bucket}/entries/{escape_dots(key)}", None),
        ("GET", f"/v1/ns/{bucket}/list/{escape_dots(key)}", None),
        ("POST", f"/v1/ns/{bucket}/rename", {"src": f"{key}/", "dst": "fine/"}),
        ("POST", f"/v1/ns/{bucket}/rename", {"src": "fine/", "dst": f"{key}/"}),
    ]
    for method, target, body in calls:
        answer = rest.call(method, target, body)
        assert (answer.status, answer.code) == (400, code), (method, target[:80], body)
        assert answer.headers["content-type"].startswith("application/problem+json")
    assert rest.list(bucket, "") == []


@pytest.mark.parametrize(("key", "_code", "s3_code"), BAD_KEYS)
def test_s3(bucket, s3, rest, key, _code, s3_code):
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        s3.put_object(Bucket=bucket, Key=key, Body=b"1")
    error = refused.value.response
    assert (error["ResponseMetadata"]["HTTPStatusCode"], error["Error"]["Code"]) == (400, s3_code)
    assert rest.list(bucket, "") == []


def test_limits_themselves_are_allowed(bucket, s3, rest):
    keys = ["n" * 255, "/".join(["k" * 204] * 5), "/".join(["d"] * 128)]
    assert len(keys[1]) == 1024
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"1")
        assert rest.stat(bucket, key)["size"] == 1


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"src": "a/"}', b'{"src": 1, "dst": "b/"}', b'{"src": "a/", "dst": "b"}']
)
def test_rename_bodies(bucket, rest, body):
    answer = rest.call("POST", f"/v1/ns/{bucket}/rename", body)
    assert (answer.status, answer.code) == (400, "invalid_argument")


def test_unknown_namespace(rest, s3):
    ns = f"none-{uuid.uuid4().hex[:8]}"
    for method, target, body in [
        ("PUT", f"/v1/ns/{ns}/dirs/a", None),
        ("GET", f"/v1/ns/{ns}/entries/a", None),
        ("GET", f"/v1/ns/{ns}/list/", None),
        ("POST", f"/v1/ns/{ns}/rename", {"src": "a/", "dst": "b/"}),
        ("DELETE", f"/v1/ns/{ns}", None),
    ]:
        answer = rest.call(method, target, body)
        assert (answer.status, answer.code) == (404, "namespace_not_found"), (method, target)
    for call in (
        lambda: s3.put_object(Bucket=ns, Key="k", Body=b"1"),
        lambda: s3.get_object(Bucket=ns, Key="k"),
        lambda: s3.list_objects_v2(Bucket=ns),
        lambda: s3.delete_bucket(Bucket=ns),
    ):
        with pytest.raises(botocore.exceptions.ClientError) as refused:
            call()
        assert refused.value.response["Error"]["Code"] == "NoSuchBucket"


@pytest.mark.parametrize("name", ["ab", "Upper", "under_score", "-start", "a..b", "192.168.0.1", "x" * 64])
def test_namespace_names(rest, name):
    answer = rest.call("PUT", f"/v1/ns/{name}")
    assert (answer.status, answer.code) == (400, "invalid_namespace_name")


def test_bad_signature_and_unknown_key(stack, bucket):
    wrong = s3_client(stack, aws_secret_access_key="0" * 40)
    stranger = s3_client(stack, aws_access_key_id="AKIAUNKNOWNUNKNOWN00")
    for client, code in ((wrong, "SignatureDoesNotMatch"), (stranger, "InvalidAccessKeyId")):
        with pytest.raises(botocore.exceptions.ClientError) as refused:
            client.list_objects_v2(Bucket=bucket)
        error = refused.value.response
        assert (error["ResponseMetadata"]["HTTPStatusCode"], error["Error"]["Code"]) == (403, code)


def test_bad_token(rest, bucket):
    intruder = rest.twin()
    intruder.token = "guess"
    for method, target in (("GET", f"/v1/ns/{bucket}/list/"), ("PUT", f"/v1/ns/{bucket}/dirs/a"), ("GET", "/v1/ns")):
        answer = intruder.call(method, target)
        assert (answer.status, answer.code) == (401, "unauthenticated")
    assert rest.list(bucket, "") == []


def test_a_path_through_an_object(bucket, s3, rest):
    s3.put_object(Bucket=bucket, Key="file", Body=b"1")
    answer = rest.call("PUT", f"/v1/ns/{bucket}/dirs/file/below")
    assert (answer.status, answer.code) == (409, "parent_is_object")
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        s3.put_object(Bucket=bucket, Key="file/below", Body=b"1")
    error = refused.value.response
    assert (error["ResponseMetadata"]["HTTPStatusCode"], error["Error"]["Code"]) == (409, "ParentIsObject")


def test_an_object_where_a_directory_is_and_the_other_way(bucket, s3, rest):
    rest.mkdir(bucket, "dir")
    s3.put_object(Bucket=bucket, Key="file", Body=b"1")
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        s3.put_object(Bucket=bucket, Key="dir", Body=b"1")
    error = refused.value.response
    assert (error["ResponseMetadata"]["HTTPStatusCode"], error["Error"]["Code"]) == (409, "KeyIsDirectory")
    answer = rest.call("PUT", f"/v1/ns/{bucket}/dirs/file")
    assert (answer.status, answer.code) == (409, "is_object")


def test_refusals_of_directories(bucket, rest):
    rest.mkdir(bucket, "a/b/c", parents=True)
    for method, target, body, wanted in [
        ("PUT", f"/v1/ns/{bucket}/dirs/a/b/c", None, (409, "already_exists")),
        ("PUT", f"/v1/ns/{bucket}/dirs/missing/child", None, (404, "not_found")),
        ("DELETE", f"/v1/ns/{bucket}/dirs/a", None, (409, "not_empty")),
        ("DELETE", f"/v1/ns/{bucket}/dirs/missing", None, (404, "not_found")),
        ("POST", f"/v1/ns/{bucket}/rename", {"src": "a/", "dst": "a/b/x/"}, (409, "rename_loop")),
        ("POST", f"/v1/ns/{bucket}/rename", {"src": "missing/", "dst": "x/"}, (404, "not_found")),
        ("POST", f"/v1/ns/{bucket}/rename", {"src": "a/", "dst": "missing/x/"}, (404, "not_found")),
        ("DELETE", f"/v1/ns/{bucket}", None, (409, "not_empty")),
    ]:
        answer = rest.call(method, target, body)
        assert (answer.status, answer.code) == wanted, (method, target, body)


@pytest.mark.parametrize("query", ["renameObject", "acl", "policy", "tagging", "versioning", "torrent"])
def test_unknown_subresources_are_refused_not_taken_for_objects(wire, bucket, rest, query):
    """`PUT key?renameObject` once became an empty object with status 200."""
    answer = wire.call("PUT", f"/{bucket}/victim?{query}")
    assert answer.status in (400, 404, 405, 501), answer
    assert rest.list(bucket, "") == []
