"""A retry with the same idempotency key gets the first answer; with other parameters 422. Nothing happens twice."""

import uuid

import pytest

from tests.support.rest import Refused


def key() -> str:
    return str(uuid.uuid4())


def test_mkdir_twice(bucket, rest):
    same = key()
    first = rest.mkdir(bucket, "a", key=same)
    again = rest.mkdir(bucket, "a", key=same)
    assert (first.status, again.status) == (201, 201)
    assert first.body == again.body
    with pytest.raises(Refused) as refused:
        rest.mkdir(bucket, "a", key=key())
    assert refused.value.code == "already_exists"


def test_mkdir_with_parents_twice(bucket, rest):
    same = key()
    first = rest.mkdir(bucket, "p/q/r", parents=True, key=same)
    again = rest.mkdir(bucket, "p/q/r", parents=True, key=same)
    assert first.body == again.body


def test_the_first_answer_stands_even_after_the_world_changed(bucket, rest):
    same = key()
    first = rest.mkdir(bucket, "a", key=same)
    rest.rename(bucket, "a/", "b/")
    again = rest.mkdir(bucket, "a", key=same)  # a late retry must not make a second directory
    assert again.body == first.body
    assert rest.list(bucket, "") == ["b/"]


def test_rmdir_twice(bucket, rest):
    rest.mkdir(bucket, "a")
    same = key()
    assert rest.rmdir(bucket, "a", key=same).status == 204
    assert rest.rmdir(bucket, "a", key=same).status == 204
    with pytest.raises(Refused) as refused:
        rest.rmdir(bucket, "a", key=key())
    assert refused.value.code == "not_found"


def test_rename_of_a_directory_twice(bucket, rest):
    rest.mkdir(bucket, "a")
    same = key()
    first = rest.rename(bucket, "a/", "b/", key=same)
    again = rest.rename(bucket, "a/", "b/", key=same)
    assert (first.status, first.body) == (again.status, again.body)
    assert rest.list(bucket, "") == ["b/"]


def test_rename_of_an_object_twice(bucket, rest, s3):
    s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    same = key()
    first = rest.rename(bucket, "a", "b", key=same)
    again = rest.rename(bucket, "a", "b", key=same)
    assert (first.status, first.body) == (again.status, again.body)
    assert rest.list(bucket, "") == ["b"]
    assert s3.get_object(Bucket=bucket, Key="b")["Body"].read() == b"1"


def test_other_parameters_are_refused(bucket, rest):
    same = key()
    rest.mkdir(bucket, "a", key=same)
    for method, target, body in [
        ("PUT", f"/v1/ns/{bucket}/dirs/b", None),
        ("PUT", f"/v1/ns/{bucket}/dirs/a?parents=true", None),
        ("DELETE", f"/v1/ns/{bucket}/dirs/a", None),
        ("POST", f"/v1/ns/{bucket}/rename", {"src": "a/", "dst": "b/"}),
    ]:
        answer = rest.call(method, target, body, key=same)
        assert (answer.status, answer.code) == (422, "request_mismatch"), (method, target)
    assert rest.list(bucket, "") == ["a/"]


def test_keys_of_two_namespaces_do_not_meet(bucket, rest):
    other = f"t-{uuid.uuid4().hex[:12]}"
    rest.create_namespace(other)
    same = key()
    rest.mkdir(bucket, "a", key=same)
    rest.mkdir(other, "b", key=same)
    assert (rest.list(bucket, ""), rest.list(other, "")) == (["a/"], ["b/"])


def test_a_key_that_is_no_uuid(bucket, rest):
    answer = rest.call("PUT", f"/v1/ns/{bucket}/dirs/a", key="not-a-uuid")
    assert (answer.status, answer.code) == (400, "invalid_argument")


def test_namespaces(rest):
    ns = f"t-{uuid.uuid4().hex[:12]}"
    same = key()
    first = rest.call("PUT", f"/v1/ns/{ns}", key=same)
    again = rest.call("PUT", f"/v1/ns/{ns}", key=same)
    assert first.status in (200, 201)
    assert (first.status, first.body) == (again.status, again.body)
    rest.delete_namespace(ns)
    assert rest.call("GET", f"/v1/ns/{ns}/list/").code == "namespace_not_found"
