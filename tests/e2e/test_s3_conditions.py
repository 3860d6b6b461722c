"""Conditions of deletes, and of keys that end in a slash: checked in one step with the change."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from stack.poll import wait_until
from tests.support.s3_wire import code, md5

from .clients import connect_as

EMPTY = '"d41d8cd98f00b204e9800998ecf8427e"'
OLD = "Mon, 01 Jan 2024 00:00:00 GMT"
TIME, SIZE = "x-amz-if-match-last-modified-time", "x-amz-if-match-size"
BOUND_S = 30.0


@pytest.fixture(params=["k", "a/b/k", "d/"])
def there(request, wire, bucket) -> tuple[str, dict[str, str]]:
    """An object, or a directory that was made by request; with its headers."""
    target = f"/{bucket}/{request.param}"
    assert wire.call("PUT", target, b"" if target.endswith("/") else b"bytes").status == 200
    return target, wire.call("HEAD", target).headers


# With the object's own values in braces, and whether they hold.
CONDITIONS = [
    ({"if-match": '"other"'}, False),
    ({"if-match": "W/{etag}"}, False),
    ({"if-match": "{etag}"}, True),
    ({"if-match": "{bare_etag}"}, True),
    ({"if-match": "*"}, True),
    ({TIME: OLD}, False),
    ({TIME: "{time}"}, True),
    ({SIZE: "9"}, False),
    ({SIZE: "{size}"}, True),
    ({"if-match": "{etag}", TIME: OLD}, False),
    ({"if-match": "{etag}", SIZE: "9"}, False),
    ({"if-match": '"other"', TIME: "{time}", SIZE: "{size}"}, False),
    ({"if-match": "{etag}", TIME: "{time}", SIZE: "{size}"}, True),
]


@pytest.mark.parametrize(("conditions", "are_right"), CONDITIONS)
def test_a_delete_with_a_condition(wire, there, conditions, are_right):
    target, headers = there
    etag = headers["etag"]
    own = {
        "etag": etag,
        "bare_etag": etag.strip('"'),
        "time": headers["last-modified"],
        "size": headers["content-length"],
    }
    answer = wire.call("DELETE", target, headers={name: value.format(**own) for name, value in conditions.items()})
    assert (answer.status, wire.exists(target)) == ((204, False) if are_right else (412, True))
    if not are_right:
        name = "If-Match" if "if-match" in conditions else next(iter(conditions))
        assert code(answer) == "PreconditionFailed" and f"<Condition>{name}</Condition>" in answer.text


@pytest.mark.parametrize(
    ("conditions", "status"),
    [({"if-match": "*"}, 404), ({"if-match": EMPTY}, 404), ({TIME: OLD}, 204), ({SIZE: "9"}, 204)],
)
@pytest.mark.parametrize("key", ["k", "a/k", "d/"])
def test_a_delete_of_what_is_not_there(wire, bucket, key, conditions, status):
    """AWS answers 404 to If-Match, and 204 to the conditions of its directory buckets."""
    assert wire.call("DELETE", f"/{bucket}/{key}", headers=conditions).status == status


@pytest.mark.parametrize(
    ("name", "value"),
    [(TIME, "yesterday"), (TIME, "0"), (TIME, ""), (SIZE, "-1"), (SIZE, "x"), (SIZE, ""), (SIZE, "9" * 30)],
)
def test_a_condition_that_is_malformed(wire, there, name, value):
    target, _ = there
    answer = wire.call("DELETE", target, headers={name: value})
    assert (answer.status, code(answer)) == (400, "InvalidArgument") and wire.exists(target)


@pytest.mark.parametrize("headers", [{"if-none-match": "*"}, {"if-modified-since": OLD}, {"if-unmodified-since": OLD}])
def test_a_condition_that_deletes_do_not_have(wire, there, headers):
    target, _ = there
    assert wire.call("DELETE", target, headers=headers).status == 501 and wire.exists(target)


def test_conditions_in_a_batch(wire, bucket):
    conditions = {
        "no": "",
        "etag": "<ETag>x</ETag>",
        "time": f"<LastModifiedTime>{OLD}</LastModifiedTime>",
        "size": "<Size>9</Size>",
        "negative": "<Size>-1</Size>",
        "version": "<VersionId>1</VersionId>",
        "right": "{etag}{time}<Size>5</Size>",
        "any": "<ETag>*</ETag>",
        "absent": "<ETag>x</ETag>",
        "d/": f"<ETag>{EMPTY}</ETag><Size>0</Size>",
        "e/": "<ETag>x</ETag>",
    }
    for key in conditions.keys() - {"absent"}:
        wire.call("PUT", f"/{bucket}/{key}", b"" if key.endswith("/") else b"bytes")
    there = wire.call("HEAD", f"/{bucket}/right").headers
    etag, time = f"<ETag>{there['etag']}</ETag>", f"<LastModifiedTime>{there['last-modified']}</LastModifiedTime>"
    objects = "".join(
        f"<Object><Key>{key}</Key>{condition.format(etag=etag, time=time)}</Object>"
        for key, condition in conditions.items()
    )
    body = f"<Delete>{objects}</Delete>".encode()
    answer = wire.call("POST", f"/{bucket}?delete", body, {"content-md5": md5(body)})
    found = {}
    for error in answer.text.split("<Error>")[1:]:
        texts = [error.split(f"<{name}>")[1].split("<")[0] for name in ("Key", "Code")]
        found[texts[0]] = texts[1]
    assert found == {
        "etag": "PreconditionFailed",
        "time": "PreconditionFailed",
        "size": "PreconditionFailed",
        "negative": "InvalidArgument",
        "version": "NotImplemented",
        "absent": "NoSuchKey",
        "e/": "PreconditionFailed",
    }
    left = [key for key in conditions if wire.exists(f"/{bucket}/{key}")]
    assert left == ["etag", "time", "size", "negative", "version", "e/"]


@pytest.mark.parametrize("changed", ["version", "id"])
@pytest.mark.faults
def test_what_changed_since_the_check_stays(stack, superuser, wire, bucket, changed):
    """The delete has read the object, and waits for its name's latch while another object takes its place."""
    target = f"/{bucket}/k"
    etag = wire.call("PUT", target, b"bytes").headers["etag"]
    (ns,) = superuser.execute("SELECT n.ns FROM mantle.namespaces n WHERE n.name = %s", (bucket,)).fetchone()
    waiting = "SELECT count(*) FROM mantle.latches l WHERE %s = ANY (l.blocked_by)"
    change = (
        f"UPDATE mantle.meta SET etag = 'other', {changed} = {changed} + 1 WHERE pid = %s AND name = 'k' AND ts = 0"
    )
    with connect_as(stack, "postgres", "superuser") as holder, ThreadPoolExecutor(1) as pool:
        with holder.transaction():
            holder.execute("SELECT mantle.latch_entries(ARRAY[%s]::bigint[], ARRAY['k'], NULL)", (ns,))
            late = pool.submit(wire.call, "DELETE", target, headers={"if-match": etag})
            blocked = lambda: superuser.execute(waiting, (holder.info.backend_pid,)).fetchone()[0]
            wait_until(blocked, "the delete to wait", BOUND_S)
            holder.execute(change, (ns,))
        assert late.result(BOUND_S).status == 412
    assert wire.exists(target)
    wire.call("DELETE", target)  # Another entry may get the id.


def repeat_delete(wire, target: str, etag: str) -> None:
    again = {"if-match": etag, "idempotency-key": str(uuid.uuid4())}
    for _ in range(2):
        assert wire.call("DELETE", target, headers=again).status == 204
        assert not wire.exists(target)
    assert wire.call("PUT", target, b"").status == 200
    assert wire.call("DELETE", target, headers=again).status == 204
    assert wire.call("DELETE", target, headers={**again, "if-match": "*"}).status == 422
    assert wire.exists(target)


def test_a_delete_is_repeated_by_its_request_id(wire, there):
    target, headers = there
    repeat_delete(wire, target, headers["etag"])


def test_a_delete_of_a_full_directory_is_repeated_by_its_request_id(wire, bucket):
    for target in (f"/{bucket}/d/", f"/{bucket}/d/k"):
        wire.call("PUT", target)
    repeat_delete(wire, f"/{bucket}/d/", EMPTY)


def test_only_one_of_many_makes_a_directory(wire, bucket):
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(wire.call, "PUT", f"/{bucket}/d/", b"", {"if-none-match": "*"}) for _ in range(8)]
        assert sorted(one.result(BOUND_S).status for one in asked) == [200] + [412] * 7


def test_a_directory_that_is_no_key_may_become_one(wire, bucket):
    target = f"/{bucket}/d/"
    wire.call("PUT", f"/{bucket}/d/k", b"bytes")
    assert not wire.exists(target)
    for absent in ("*", EMPTY, '"x"'):
        assert wire.call("PUT", target, b"", {"if-match": absent}).status == 404
    assert wire.call("PUT", target, b"", {"if-none-match": "*", "x-amz-meta-a": "1"}).status == 200
    assert wire.call("HEAD", target).headers["x-amz-meta-a"] == "1"
    for refused in ({"if-none-match": "*"}, {"if-none-match": EMPTY}, {"if-match": '"x"'}):
        assert wire.call("PUT", target, b"", {**refused, "x-amz-meta-a": "2"}).status == 412
    assert wire.call("HEAD", target).headers["x-amz-meta-a"] == "1"
    for number, held in enumerate(({"if-match": "*"}, {"if-match": EMPTY}, {"if-none-match": '"x"'})):
        assert wire.call("PUT", target, b"", {**held, "x-amz-meta-a": str(number)}).status == 200
        assert wire.call("HEAD", target).headers["x-amz-meta-a"] == str(number)
