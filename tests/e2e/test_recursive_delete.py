"""A directory is removed with its whole subtree: hidden from every interface at once, emptied in the background.

`mantle.check()` after each test verifies counts and parents, even while the trash is not empty.
"""

import concurrent.futures
import uuid

import pytest

from stack.poll import wait_until
from tests.support.rest import Refused, quote

from . import import_command
from .trees import directories, documents, write_listing

PACKAGES = 2_000
EMPTIED_BOUND_S = 180.0


def remove(rest, ns: str, path: str, key: str | None = None) -> dict:
    """Starts a removal; returns its operation."""
    answer = rest.insist("DELETE", f"/v1/ns/{ns}/dirs/{quote(path)}?recursive=true", key=key)
    assert answer.status == 202
    assert answer.headers["location"] == f"/v1/operations/{answer.body['id']}"
    return answer.body


def finished(rest, operation: dict) -> dict:
    """The operation at its end."""

    def look() -> dict | None:
        document = rest.insist("GET", f"/v1/operations/{operation['id']}").body
        return document if document["state"] == "done" else None

    return wait_until(look, "the end of the removal", EMPTIED_BOUND_S)


def keys_below(s3, ns: str, prefix: str) -> list[str]:
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket=ns, Prefix=prefix).get("Contents", [])]


def entries_of(sql, ns: str) -> int:
    """All entries of a namespace except its root, in any directory."""
    query = (
        "SELECT count(*) FROM mantle.meta WHERE id IS NOT NULL AND pid <> 0"
        " AND ns = (SELECT ns FROM mantle.namespaces WHERE name = %s)"
    )
    return sql.execute(query, (ns,)).fetchone()[0]


def test_a_big_tree_is_gone_at_once_and_emptied(stack, bucket, rest, s3, sql, tmp_path):
    tree = documents(PACKAGES)
    import_command.whole(stack, bucket, write_listing(tmp_path / "tree.list", tree))
    rest.mkdir(bucket, "kept")
    operation = remove(rest, bucket, "usr/")
    # Acknowledged: no interface shows it, and its name is free.
    assert keys_below(s3, bucket, "usr/") == []
    assert rest.list(bucket, "") == ["kept/"]
    assert not rest.exists(bucket, "usr/share/doc/")
    assert sql.execute("SELECT objects, directories FROM mantle.du(%s, '')", (bucket,)).fetchone() == (0, 1)
    rest.mkdir(bucket, "usr")
    done = finished(rest, operation)
    below = len(directories(tree))
    assert (done["objects"], done["directories"]) == (len(tree), below)
    assert done["finished"] >= done["created"]
    assert rest.list(bucket, "") == ["kept/", "usr/"]
    assert entries_of(sql, bucket) == 2


def test_a_retry_names_the_same_operation(bucket, rest):
    rest.mkdir(bucket, "a/b/c", parents=True)
    key = str(uuid.uuid4())
    first = remove(rest, bucket, "a", key=key)
    rest.mkdir(bucket, "a")
    assert remove(rest, bucket, "a", key=key)["id"] == first["id"]
    assert rest.exists(bucket, "a/")  # the second directory of that name
    with pytest.raises(Refused) as refused:
        rest.insist("DELETE", f"/v1/ns/{bucket}/dirs/other?recursive=true", key=key)
    assert refused.value.code == "request_mismatch"
    finished(rest, first)


def test_what_cannot_be_removed(bucket, rest, s3):
    s3.put_object(Bucket=bucket, Key="o", Body=b"1")
    for path, status in [("missing", 404), ("missing/deep", 404), ("", 400), ("o", 404)]:
        with pytest.raises(Refused) as refused:
            rest.insist("DELETE", f"/v1/ns/{bucket}/dirs/{path}?recursive=true")
        assert refused.value.status == status, path
    for operation in [uuid.uuid4(), "no-id"]:
        with pytest.raises(Refused) as refused:
            rest.insist("GET", f"/v1/operations/{operation}")
        assert refused.value.code == "not_found"


def test_a_namespace_can_go_before_its_trash_is_emptied(bucket, rest):
    rest.mkdir(bucket, "a/b/c", parents=True)
    operation = remove(rest, bucket, "a")
    rest.delete_namespace(bucket)
    assert finished(rest, operation)["directories"] == 3


def test_writes_that_race_a_removal_leave_nothing_in_between(bucket, rest, sql):
    """A write below the removed directory either precedes the removal or is refused: the directory does not exist."""
    clients = [rest.twin() for _ in range(4)]
    for number in range(10):
        top = f"t{number}"
        rest.mkdir(bucket, f"{top}/a/b", parents=True)

        def make(client, name: str, top: str = top):
            try:
                client.mkdir(bucket, f"{top}/a/b/{name}")
            except Refused as refused:
                assert refused.code == "not_found", refused

        with concurrent.futures.ThreadPoolExecutor(len(clients) + 1) as pool:
            makers = [pool.submit(make, client, f"c{i}") for i, client in enumerate(clients)]
            operation = remove(rest, bucket, top)
            for maker in makers:
                maker.result()
        assert not rest.exists(bucket, f"{top}/")
        assert finished(rest, operation)["directories"] >= 3
    assert entries_of(sql, bucket) == 0


def test_usage_by_level(bucket, rest, s3):
    for key, size in [("a/x", 1), ("a/b/x", 10), ("a/b/y", 20), ("a/b/c/x", 100), ("z/x", 1000)]:
        s3.put_object(Bucket=bucket, Key=key, Body=b"." * size)

    def usage(path: str, depth: int) -> dict:
        return rest.insist("GET", f"/v1/ns/{bucket}/usage/{path}?depth={depth}").body

    a = {"path": "a/", "objects": 4, "directories": 2, "bytes": 131}
    b = {"path": "a/b/", "objects": 3, "directories": 1, "bytes": 130}
    c = {"path": "a/b/c/", "objects": 1, "directories": 0, "bytes": 100}
    z = {"path": "z/", "objects": 1, "directories": 0, "bytes": 1000}
    uploads = {"unfinished_uploads": 0, "unfinished_upload_bytes": 0}
    total = {"objects": 5, "directories": 4, "bytes": 1131, "truncated": False, **uploads}
    assert usage("", 1) == {**total, "below": [a, z]}
    assert usage("", 9) == {**total, "below": [a, b, c, z]}
    assert usage("a/b", 1) == {"objects": 3, "directories": 1, "bytes": 130, "below": [c], "truncated": False}
    assert usage("a", 0) == {"objects": 1, "directories": 1, "bytes": 1}
