"""Small objects, up to a setting, whose bytes are inside PostgreSQL (P62)."""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import botocore.exceptions
import psycopg
import pytest

from stack.poll import wait_until

from .another_gateway import OFFSET, LimitedGateway, another_gateway, running
from .clients import read
from .test_volume_data import migrate
from .uploads import PART, begin, complete, files, pieces, put, refused
from .volume_gateway import BOUND_S, KIB, locator_of, volume_folder, volume_gateway

LIMIT = 4 * KIB
KEPT = (
    "SELECT count(*), coalesce(sum(octet_length(i.bytes)), 0) FROM mantle.inline i"
    " JOIN mantle.meta m ON m.pid = i.pid AND m.locator = 'inline:' || i.id"
    " JOIN mantle.namespaces n ON n.ns = m.ns WHERE n.name = %s"
)
WAITS = "SELECT count(*) FROM pg_locks WHERE relation = 'mantle.inline'::regclass AND NOT granted"
WRITERS = "SELECT count(*) FROM pg_locks WHERE relation = 'mantle.inline'::regclass AND mode = 'RowExclusiveLock'"


@pytest.fixture(scope="module")
def gateway(stack) -> Iterator[LimitedGateway]:
    with another_gateway(stack, inline_bytes_max=LIMIT) as gateway:
        yield gateway


@contextmanager
def dying_gateway(stack) -> Iterator[LimitedGateway]:
    """One that a test kills, beside the module's."""
    gateway = LimitedGateway(stack.layout, stack.account, "gateway-dying", port=stack.layout.port_base + OFFSET + 1)
    gateway.limits = {"inline_bytes_max": LIMIT}
    with running(gateway):
        yield gateway


@pytest.fixture
def beside(stack, gateway):
    """Its client. The gateway of `s3` has the setting off."""
    return gateway.s3(stack)


def kept(superuser, bucket: str) -> tuple[int, int]:
    """Objects of a bucket with their bytes inside PostgreSQL, and how many bytes these have."""
    count, size = superuser.execute(KEPT, (bucket,)).fetchone()
    return count, int(size)


def statements(gateway: LimitedGateway, name: str) -> float:
    """How many statements of this name it has sent."""
    return sum(
        value
        for series, value in gateway.metrics().items()
        if series.startswith("mantle_gateway_sql_seconds_count") and f'statement="{name}"' in series
    )


@pytest.mark.parametrize("size", [0, 1, 100, 4095, LIMIT, LIMIT + 1, 100_000])
def test_what_is_put_comes_back(stack, beside, s3, superuser, bucket, size):
    """Through this gateway, and through one that has the setting off."""
    body, before = os.urandom(size), files(stack)
    answer = beside.put_object(Bucket=bucket, Key="k", Body=body, Metadata={"a": "b"}, ContentType="text/x")
    assert answer["ETag"].strip('"') == hashlib.md5(body).hexdigest()
    locator = locator_of(superuser, bucket, "k")
    if size == 0:
        assert locator == "empty:"
    else:
        assert locator.startswith("inline:") == (size <= LIMIT)
    assert len(files(stack) - before) == (size > LIMIT)
    for client in (beside, s3):
        found = client.get_object(Bucket=bucket, Key="k")
        assert found["Body"].read() == body
        assert (found["ContentLength"], found["Metadata"], found["ContentType"]) == (size, {"a": "b"}, "text/x")
        assert client.head_object(Bucket=bucket, Key="k")["ContentLength"] == size
        listed = client.list_objects_v2(Bucket=bucket)["Contents"]
        assert [(entry["Key"], entry["Size"]) for entry in listed] == [("k", size)]


def test_ranges(beside, s3, bucket):
    body = os.urandom(1000)
    beside.put_object(Bucket=bucket, Key="k", Body=body)
    for client in (beside, s3):
        for asked, expected in (
            ("0-0", body[:1]),
            ("10-19", body[10:20]),
            ("990-", body[990:]),
            ("-5", body[-5:]),
            ("999-5000", body[999:]),
        ):
            assert read(client, bucket, "k", Range=f"bytes={asked}") == expected, asked
        assert refused(client.get_object, Bucket=bucket, Key="k", Range="bytes=1000-") == ("InvalidRange", 416)


def test_a_digest_that_does_not_match_is_refused(beside, superuser, bucket):
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        beside.put_object(Bucket=bucket, Key="k", Body=b"right", ContentMD5="AAAAAAAAAAAAAAAAAAAAAA==")
    assert caught.value.response["Error"]["Code"] == "BadDigest"
    assert kept(superuser, bucket) == (0, 0)


def test_overwrites_in_both_directions(stack, beside, superuser, bucket):
    before = files(stack)
    for size, left in ((100, 100), (5000, 0), (200, 200), (LIMIT, LIMIT), (0, 0), (7, 7)):
        body = os.urandom(size)
        beside.put_object(Bucket=bucket, Key="k", Body=body)
        assert read(beside, bucket, "k") == body
        assert kept(superuser, bucket) == (int(left > 0), left)
    assert files(stack) == before, "the file of the larger one went with it"


def test_conditions(beside, bucket):
    beside.put_object(Bucket=bucket, Key="k", Body=b"one", IfNoneMatch="*")
    assert refused(beside.put_object, Bucket=bucket, Key="k", Body=b"two", IfNoneMatch="*")[1] == 412
    assert read(beside, bucket, "k") == b"one"
    etag = beside.head_object(Bucket=bucket, Key="k")["ETag"]
    beside.put_object(Bucket=bucket, Key="k", Body=b"three", IfMatch=etag)
    assert read(beside, bucket, "k") == b"three"


def test_renames_take_the_bytes_along(beside, s3, rest, superuser, bucket):
    for key in ("a/k", "b/replaced", "t/u/v"):
        beside.put_object(Bucket=bucket, Key=key, Body=key.encode())
    for source, to in (("a/k", "a/l"), ("a/l", "b/m"), ("b/m", "b/replaced")):
        rest.rename(bucket, source, to, overwrite=True)
        for client in (beside, s3):
            assert read(client, bucket, to) == b"a/k"
    rest.rename(bucket, "t/", "w/")
    assert read(beside, bucket, "w/u/v") == b"t/u/v"
    assert kept(superuser, bucket) == (2, 8)


def test_a_copy_has_bytes_of_its_own(beside, s3, superuser, bucket):
    beside.put_object(Bucket=bucket, Key="a/k", Body=b"bytes")
    for client, copy in ((beside, "b/c"), (s3, "a/d")):
        client.copy_object(Bucket=bucket, Key=copy, CopySource={"Bucket": bucket, "Key": "a/k"})
        assert read(client, bucket, copy) == b"bytes"
    # With another checksum than the source's, for which the bytes are read.
    source = {"Bucket": bucket, "Key": "a/k"}
    beside.copy_object(Bucket=bucket, Key="e", CopySource=source, ChecksumAlgorithm="SHA256")
    assert kept(superuser, bucket) == (4, 20)
    beside.delete_object(Bucket=bucket, Key="a/k")
    for copy in ("b/c", "a/d", "e"):
        assert read(s3, bucket, copy) == b"bytes"
    beside.copy_object(Bucket=bucket, Key="e", CopySource={"Bucket": bucket, "Key": "e"}, MetadataDirective="REPLACE")
    assert read(beside, bucket, "e") == b"bytes"


def test_a_part_that_is_copied_from_one(stack, beside, bucket):
    """It gets bytes in the store: parts are never inside PostgreSQL."""
    body = os.urandom(1000)
    beside.put_object(Bucket=bucket, Key="small", Body=body)
    upload = begin(beside, bucket, "parts")
    first = pieces(PART)
    made = put(beside, upload, first)
    source = {"Bucket": bucket, "Key": "small"}
    copied = beside.upload_part_copy(**upload, PartNumber=2, CopySource=source, CopySourceRange="bytes=100-999")
    beside.delete_object(Bucket=bucket, Key="small")
    complete(beside, upload, [*made, {"PartNumber": 2, "ETag": copied["CopyPartResult"]["ETag"]}])
    assert read(beside, bucket, "parts") == first[0] + body[100:]


def test_a_last_part_that_is_small_is_in_the_store(beside, superuser, bucket):
    upload = begin(beside, bucket, "parts")
    bodies = pieces(PART, 10)
    complete(beside, upload, put(beside, upload, bodies))
    assert read(beside, bucket, "parts") == b"".join(bodies)
    assert kept(superuser, bucket) == (0, 0)


def test_deletes_and_recursive_deletes(beside, rest, superuser, bucket):
    for number in range(20):
        beside.put_object(Bucket=bucket, Key=f"d/{number % 4}/{number}", Body=b"x")
    beside.delete_object(Bucket=bucket, Key="d/0/0")
    keys = [{"Key": f"d/1/{number}"} for number in (1, 5)]
    beside.delete_objects(Bucket=bucket, Delete={"Objects": keys})
    assert kept(superuser, bucket) == (17, 17)
    count = "SELECT count(*) FROM mantle.inline"
    (before,) = superuser.execute(count).fetchone()
    rest.insist("DELETE", f"/v1/ns/{bucket}/dirs/d/?recursive=true")
    wait_until(lambda: superuser.execute(count).fetchone()[0] == before - 17, "the trash to be emptied", BOUND_S)


def test_a_get_takes_one_statement(gateway, beside, bucket):
    beside.put_object(Bucket=bucket, Key="k", Body=b"bytes")
    assert read(beside, bucket, "k") == b"bytes"
    before = [statements(gateway, name) for name in ("stat_local", "inline_bytes")]
    assert before[0] > 0
    for _ in range(5):
        assert read(beside, bucket, "k") == b"bytes"
    after = [statements(gateway, name) for name in ("stat_local", "inline_bytes")]
    assert after == [before[0] + 5, before[1]]


@pytest.mark.allows("gateway", "an object's bytes are missing")
def test_bytes_that_are_lost_are_an_error(beside, s3, superuser, bucket):
    beside.put_object(Bucket=bucket, Key="k", Body=b"bytes")
    locator = locator_of(superuser, bucket, "k")
    (row,) = superuser.execute(
        "DELETE FROM mantle.inline WHERE id = %s RETURNING pid, id, bytes", (locator.partition(":")[2],)
    ).fetchall()
    for client in (beside, s3):
        assert refused(client.get_object, Bucket=bucket, Key="k") == ("InternalError", 500)
    superuser.execute("INSERT INTO mantle.inline VALUES (%s, %s, %s)", row)
    assert read(beside, bucket, "k") == b"bytes"


@pytest.mark.allows("postgresql", "permission denied for table inline")
def test_nobody_but_the_gateway_reads_them(beside, connect, superuser, bucket):
    beside.put_object(Bucket=bucket, Key="k", Body=b"secret")
    superuser.execute("SELECT mantle.grant_namespace(%s, 'mantle_analyst')", (bucket,))
    try:
        for role in ("analyst", "operator"):
            with connect(role) as session:
                for query in ("SELECT * FROM mantle.inline", "TABLE mantle.inline"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        session.execute(query)
    finally:
        superuser.execute("SELECT mantle.revoke_namespace(%s, 'mantle_analyst')", (bucket,))


def test_a_gateway_that_dies_in_a_put_leaves_all_of_it_or_nothing(stack, connect, s3, superuser, bucket):
    """Its transaction waits for a lock when it is killed."""
    with dying_gateway(stack) as gateway, ThreadPoolExecutor() as threads:
        client = gateway.s3(stack)
        client.put_object(Bucket=bucket, Key="k", Body=b"old")
        with connect("postgres", "superuser") as blocker, blocker.transaction():
            blocker.execute("LOCK TABLE mantle.inline IN SHARE MODE")
            putting = threads.submit(client.put_object, Bucket=bucket, Key="k", Body=b"newer")
            wait_until(lambda: putting.done() or superuser.execute(WAITS).fetchone()[0], "the put to wait", BOUND_S)
            assert not putting.done()
            gateway.process.kill()
        with pytest.raises(botocore.exceptions.BotoCoreError):
            putting.result(BOUND_S)
    wait_until(lambda: superuser.execute(WRITERS).fetchone()[0] == 0, "the transaction's end", BOUND_S)
    body = read(s3, bucket, "k")
    assert body in (b"old", b"newer")
    assert kept(superuser, bucket) == (1, len(body))


def test_bytes_are_moved_in_both_directions(stack, s3, superuser, bucket):
    """`mantle data migrate` moves them to where a put would store them now."""
    bodies = {f"d{number % 3}/k{number}": os.urandom(300 * number) for number in range(30)}
    small = {key: body for key, body in bodies.items() if 0 < len(body) <= LIMIT}
    with volume_folder(stack) as folder:
        with volume_gateway(stack, folder=folder, inline_bytes_max=LIMIT) as gateway:
            for key, body in bodies.items():
                s3.put_object(Bucket=bucket, Key=key, Body=body)
            assert migrate(stack, gateway, bucket)[0] == 0
            assert kept(superuser, bucket) == (len(small), sum(map(len, small.values())))
            assert migrate(stack, gateway, bucket)[0] == 0, "again"
        with volume_gateway(stack, folder=folder) as gateway:
            beside = gateway.s3(stack)
            for key, body in bodies.items():
                assert read(beside, bucket, key) == body, key
            assert migrate(stack, gateway, bucket)[0] == 0
            assert kept(superuser, bucket) == (0, 0)
            for key, body in bodies.items():
                assert read(beside, bucket, key) == body, key
                beside.delete_object(Bucket=bucket, Key=key)
