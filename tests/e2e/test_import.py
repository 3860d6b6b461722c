"""`mantle import`: what it loads, what it refuses and reports, and that it may be interrupted and repeated."""

import collections

import botocore.exceptions
import pytest

from stack.poll import wait_until

from . import import_command
from .trees import children, documents, in_order, write_listing

pytestmark = pytest.mark.server

GOOD = ["usr/bin/a", "usr/bin/b\t12345", "usr/share/doc/x/copyright", "usr/share/doc/ü/ß\t7"]


def keys_of(s3, ns: str) -> list[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=ns)
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def counts(sql, ns: str) -> tuple[int, int, int]:
    return sql.execute("SELECT objects, directories, bytes FROM mantle.du(%s, '')", (ns,)).fetchone()


def test_given_sizes_are_kept_and_others_are_labelled(stack, bucket, tmp_path, s3, rest, sql):
    rows = import_command.whole(stack, bucket, write_listing(tmp_path / "l", GOOD))
    assert [(row.line, row.code) for row in rows] == [(4, "not_ascii")]
    assert keys_of(s3, bucket) == ["usr/bin/a", "usr/bin/b", "usr/share/doc/x/copyright", "usr/share/doc/ü/ß"]
    assert s3.head_object(Bucket=bucket, Key="usr/bin/b")["ContentLength"] == 12345
    assert rest.stat(bucket, "usr/share/doc/ü/ß")["size"] == 7
    query = """SELECT m.name, m.synthetic FROM mantle.meta m JOIN mantle.namespaces n USING (ns)
               WHERE n.name = %s AND m.size IS NOT NULL AND m.name NOT LIKE '%%/%%' ORDER BY m.name"""
    assert sql.execute(query, (bucket,)).fetchall() == [("a", True), ("b", False), ("copyright", True), ("ß", False)]


def test_reading_an_imported_object_is_refused(stack, bucket, tmp_path, s3):
    import_command.whole(stack, bucket, write_listing(tmp_path / "l", GOOD))
    with pytest.raises(botocore.exceptions.ClientError) as refused:
        s3.get_object(Bucket=bucket, Key="usr/bin/a")
    error = refused.value.response
    assert (error["ResponseMetadata"]["HTTPStatusCode"], error["Error"]["Code"]) == (403, "InvalidObjectState")


def test_warts_are_reported_not_dropped(stack, bucket, tmp_path, s3):
    lines = [
        "a/file",  # 1
        "a/file",  # 2: twice
        "a/b",  # 3: a file …
        "a/b/c",  # 4: … and a directory
        "n" * 256,  # 5
        "/".join(["k" * 200] * 6),  # 6
        "x//y",  # 7
        "x/../y",  # 8
        "/leading",  # 9
        b"bad\xff\xfebytes",  # 10
        "größe",  # 11: loaded, named
        "",  # 12
        "size\tmany",  # 13
        "fine/with space",  # 14
    ]
    rows = import_command.whole(stack, bucket, write_listing(tmp_path / "l", lines))
    by_line = {row.line: row.code for row in rows}
    loaded = keys_of(s3, bucket)
    assert by_line[2] == "duplicate"
    # The import chooses between the file and the directory. It reports the other one, with the code of its kind.
    assert (by_line.get(3), by_line.get(4)) in {("is_directory", None), (None, "parent_is_object")}
    assert ("a/b" in loaded) != ("a/b/c" in loaded)
    del by_line[2]
    by_line.pop(3, None)
    by_line.pop(4, None)
    assert by_line == {
        5: "name_too_long",
        6: "key_too_long",
        7: "invalid_name",
        8: "invalid_name",
        9: "invalid_name",
        10: "not_utf8",
        11: "not_ascii",
        12: "invalid_name",
        13: "invalid_argument",
    }
    assert [key for key in loaded if not key.startswith("a/b")] == ["a/file", "fine/with space", "größe"]


def test_directories_in_a_listing_stay(stack, bucket, tmp_path, s3, rest):
    import_command.whole(stack, bucket, write_listing(tmp_path / "l", ["empty/dir/", "full/", "full/x"]))
    assert keys_of(s3, bucket) == ["empty/dir/", "full/", "full/x"]
    assert rest.list(bucket, "empty/") == ["dir/"]


def test_again_changes_nothing(stack, bucket, tmp_path, s3, sql):
    tree = documents(500)
    listing = write_listing(tmp_path / "l", tree)
    first = import_command.whole(stack, bucket, listing)
    before = counts(sql, bucket)
    again = import_command.whole(stack, bucket, listing)
    assert [row for row in again if row.code != "not_ascii"] == [row for row in first if row.code != "not_ascii"] == []
    assert counts(sql, bucket) == before
    assert keys_of(s3, bucket) == in_order(tree)


def test_what_was_there_before_is_respected(stack, bucket, tmp_path, s3, sql):
    s3.put_object(Bucket=bucket, Key="usr/bin/a", Body=b"mine")
    import_command.whole(stack, bucket, write_listing(tmp_path / "l", GOOD))
    assert s3.get_object(Bucket=bucket, Key="usr/bin/a")["Body"].read() == b"mine"
    assert keys_of(s3, bucket) == ["usr/bin/a", "usr/bin/b", "usr/share/doc/x/copyright", "usr/share/doc/ü/ß"]


@pytest.mark.faults
def test_killed_in_the_middle_and_run_again(stack, bucket, tmp_path, s3, rest, sql):
    tree = documents(15_000)
    listing = write_listing(tmp_path / "l", tree)
    process = import_command.start(stack, bucket, listing)
    query = (
        "SELECT EXISTS (SELECT FROM mantle.meta m JOIN mantle.namespaces n USING (ns)"
        " WHERE n.name = %s AND m.size IS NOT NULL)"
    )
    wait_until(lambda: sql.execute(query, (bucket,)).fetchone()[0] or process.poll() is not None, "the first rows", 60)
    process.kill()
    process.communicate()
    import_command.whole(stack, bucket, listing)
    names = collections.Counter(keys_of(s3, bucket))
    assert set(names) == set(tree) and max(names.values()) == 1
    objects, _directories, _bytes = counts(sql, bucket)
    assert objects == len(tree)
    assert rest.list(bucket, "usr/share/doc/") == children(tree, "usr/share/doc/")


def test_unknown_namespace(stack, tmp_path):
    process = import_command.start(stack, "no-such-namespace", write_listing(tmp_path / "l", GOOD))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert b"no-such-namespace" in output
