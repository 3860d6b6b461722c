"""S3 shows no directory that holds nothing, and none is in the way, although the worker removes it later (P54)."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from stack.poll import wait_until
from tests.support import s3_ghosts
from tests.support.s3_ghosts import shown

from .another_gateway import another_gateway
from .uploads import refused

BOUND_S = 30.0
CLIENTS = 8
ROUNDS = 15  # of each client, before a gateway is killed


@pytest.fixture
def lazy(superuser):
    """A worker that prunes nothing during the test."""
    superuser.execute("ALTER SYSTEM SET mantle.prune_grace_ms = 3600000")
    superuser.execute("SELECT pg_reload_conf()")
    yield
    superuser.execute("ALTER SYSTEM RESET mantle.prune_grace_ms")
    superuser.execute("SELECT pg_reload_conf()")


def emptied(s3, bucket: str, *keys: str) -> None:
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"1")
    for key in keys:
        s3.delete_object(Bucket=bucket, Key=key)


@pytest.mark.usefixtures("lazy")
def test_an_emptied_directory_is_not_listed(s3, bucket):
    emptied(s3, bucket, "a/b/c/d/o", "a/b/x", "z/o")
    assert shown(s3, bucket) == []
    s3.put_object(Bucket=bucket, Key="a/b/c/k", Body=b"")
    assert shown(s3, bucket) == ["a/"]
    assert shown(s3, bucket, Prefix="a/b/") == ["a/b/c/"]
    assert shown(s3, bucket, Prefix="a/b/c/") == ["a/b/c/k"]
    versions = s3.list_object_versions(Bucket=bucket, Delimiter="/")
    assert [p["Prefix"] for p in versions["CommonPrefixes"]] == ["a/"]


@pytest.mark.usefixtures("lazy")
def test_an_explicit_directory_is_a_key(s3, bucket, rest):
    rest.mkdir(bucket, "kept/below/", parents=True)
    emptied(s3, bucket, "kept/below/deep/o", "gone/o")
    assert shown(s3, bucket) == ["kept/"]
    assert shown(s3, bucket, Prefix="kept/below/") == ["kept/below/"]


@pytest.mark.usefixtures("lazy")
def test_pages_are_full_without_the_ghosts(s3, bucket):
    for number in range(30):
        s3.put_object(Bucket=bucket, Key=f"p{number:02}/o", Body=b"")
    for number in range(0, 30, 3):
        s3.delete_object(Bucket=bucket, Key=f"p{number:02}/o")
    wanted = [f"p{number:02}/" for number in range(30) if number % 3]
    found, token = [], {}
    while True:
        page = s3.list_objects_v2(Bucket=bucket, Delimiter="/", MaxKeys=7, **token)
        found.append([p["Prefix"] for p in page["CommonPrefixes"]])
        if not page["IsTruncated"]:
            break
        token = {"ContinuationToken": page["NextContinuationToken"]}
    assert [len(names) for names in found] == [7, 7, 6]
    assert [name for names in found for name in names] == wanted


@pytest.mark.usefixtures("lazy")
@pytest.mark.parametrize("key", ["d/o", "d/e/f/g/o"])
def test_an_object_takes_the_name(s3, bucket, rest, key):
    make = {
        "put": lambda: s3.put_object(Bucket=bucket, Key="d", Body=b"1"),
        "copy": lambda: s3.copy_object(Bucket=bucket, Key="d", CopySource={"Bucket": bucket, "Key": "source"}),
        "rename": lambda: rest.rename(bucket, "source", "d"),
    }
    for how, take in make.items():
        s3.put_object(Bucket=bucket, Key="source", Body=b"1")
        emptied(s3, bucket, key)
        take()
        assert s3.get_object(Bucket=bucket, Key="d")["Body"].read() == b"1", how
        s3.delete_object(Bucket=bucket, Key="d")
        s3.put_object(Bucket=bucket, Key=key, Body=b"2")
        assert refused(s3.put_object, Bucket=bucket, Key="d", Body=b"")[1] == 409
        s3.delete_object(Bucket=bucket, Key=key)


@pytest.mark.usefixtures("lazy")
def test_a_directory_takes_the_name(s3, bucket, rest):
    rest.mkdir(bucket, "src/")
    emptied(s3, bucket, "h/i/o")
    rest.rename(bucket, "src/", "h/")
    assert rest.exists(bucket, "h/") and not rest.exists(bucket, "h/i/")
    rest.mkdir(bucket, "src/")
    assert rest.call("POST", f"/v1/ns/{bucket}/rename", {"src": "src/", "dst": "h/"}).status == 409, "it is explicit"


@pytest.mark.usefixtures("lazy")
def test_a_bucket_of_ghosts_is_empty(s3, bucket):
    keys = [f"p{number}/q/o" for number in range(600)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: s3.put_object(Bucket=bucket, Key=key, Body=b""), keys))
    s3.put_object(Bucket=bucket, Key="p7/kept", Body=b"")
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})
    assert shown(s3, bucket) == ["p7/"]
    assert refused(s3.delete_bucket, Bucket=bucket) == ("BucketNotEmpty", 409)
    s3.delete_object(Bucket=bucket, Key="p7/kept")
    s3.delete_bucket(Bucket=bucket)


def test_the_worker_leaves_nothing(s3, bucket, sql, superuser):
    """What callers removed, and what they left, is gone in the end, with the queue."""
    emptied(s3, bucket, "a/b/o", "d/o")
    s3.put_object(Bucket=bucket, Key="d", Body=b"")
    left = "SELECT count(*) FROM mantle.meta m JOIN mantle.namespaces n USING (ns) WHERE n.name = %s AND NOT m.explicit"
    wait_until(lambda: superuser.execute(left, (bucket,)).fetchone() == (0,), "the end of the directories", BOUND_S)
    assert sql.execute("SELECT * FROM mantle.check()").fetchall() == []


@pytest.mark.faults
def test_no_ghost_after_an_acknowledgement(stack, s3, bucket):
    """Clients put and delete in chains, another gateway lists after each acknowledgement, and one gateway is killed."""
    with another_gateway(stack) as gateway:
        beside = gateway.s3(stack)
        pairs = [(s3, beside) if number % 2 else (beside, s3) for number in range(CLIENTS)]
        s3_ghosts.play(pairs, bucket, ROUNDS, gateway.process.kill)
    for prefix in shown(s3, bucket):
        assert s3.list_objects_v2(Bucket=bucket, Prefix=prefix)["KeyCount"] > 0, prefix
