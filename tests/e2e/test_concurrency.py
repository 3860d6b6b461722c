"""Many clients at once: conflicting calls exclude each other, nothing is lost, no cycle appears.

`mantle.check()` after each test verifies entries, counts and cycles; the tests check the rest.
"""

import concurrent.futures
import threading
import time

import botocore.exceptions
import pytest

from stack.poll import wait_until
from tests.support.rest import Refused

ROUNDS = 40
# The gateway's limits.await_timeout_ms.
AWAIT_TIMEOUT_S = 5
MEMBERS = 6


def at_once(*calls):
    """Runs calls at the same moment; returns their results, exceptions included."""
    barrier = threading.Barrier(len(calls))

    def meet(call):
        barrier.wait()
        try:
            return call()
        except Exception as refusal:  # a refusal is a result here
            return refusal

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(meet, calls))


def assert_only_refused_with(results, *codes: str) -> None:
    for result in results:
        if isinstance(result, Refused):
            assert result.code in codes, result
        elif isinstance(result, botocore.exceptions.ClientError):
            assert result.response["Error"]["Code"] in codes, result
        elif isinstance(result, Exception):
            raise result


def test_an_object_and_a_directory_of_one_name_leave_one(bucket, rest, s3, sql):
    other = rest.twin()
    for number in range(ROUNDS):
        name = f"n{number}"
        results = at_once(lambda: s3.put_object(Bucket=bucket, Key=name, Body=b"1"), lambda: other.mkdir(bucket, name))
        assert_only_refused_with(results, "is_object", "KeyIsDirectory")
        assert sum(isinstance(result, Exception) for result in results) == 1
    names = [row[0].rstrip("/") for row in sql.execute("SELECT name FROM mantle.ls(%s, '')", (bucket,))]
    assert sorted(names) == sorted(f"n{number}" for number in range(ROUNDS))


def test_one_mkdir_of_many_wins(bucket, rest):
    clients = [rest.twin() for _ in range(MEMBERS)]
    for number in range(ROUNDS // 4):
        results = at_once(*(lambda client=client: client.mkdir(bucket, f"d{number}") for client in clients))
        assert sum(not isinstance(result, Exception) for result in results) == 1
        assert_only_refused_with(results, "already_exists")


def test_mkdir_against_rmdir_of_the_parent(bucket, rest):
    other = rest.twin()
    for number in range(ROUNDS):
        rest.mkdir(bucket, f"p{number}")
        made, removed = at_once(
            lambda: rest.mkdir(bucket, f"p{number}/child"), lambda: other.rmdir(bucket, f"p{number}")
        )
        assert_only_refused_with([made, removed], "not_found", "not_empty")
        assert isinstance(made, Exception) != isinstance(removed, Exception)
        assert rest.exists(bucket, f"p{number}/child/") == (not isinstance(made, Exception))


def test_crossing_renames_never_make_a_cycle(bucket, rest):
    """Two and three directories are moved into each other at once."""
    clients = [rest.twin() for _ in range(3)]
    for number in range(ROUNDS // 2):
        names = [f"r{number}{letter}" for letter in "abc"]
        for name in names:
            rest.mkdir(bucket, f"{name}/inside", parents=True)
        results = at_once(
            *(
                lambda client=client, src=names[i], dst=names[(i + 1) % 3]: client.rename(
                    bucket, f"{src}/", f"{dst}/inside/{src}/"
                )
                for i, client in enumerate(clients)
            )
        )
        assert_only_refused_with(results, "rename_loop", "not_found")
        assert any(isinstance(result, Exception) for result in results), "three moves in a ring cannot all be done"
        found = reachable_directories(rest, bucket, f"r{number}")
        assert sorted(found) == sorted([*names, "inside", "inside", "inside"])


def reachable_directories(rest, ns: str, prefix: str) -> list[str]:
    """Names of all directories reachable from the root through those whose name begins with `prefix`."""
    found, waiting = [], [f"{name}" for name in rest.list(ns, "") if name.startswith(prefix)]
    while waiting:
        path = waiting.pop()
        found.append(path.rstrip("/").rpartition("/")[2])
        waiting += [path + name for name in rest.list(ns, path)]
    return found


def test_one_rename_of_many_to_the_same_place_wins(bucket, rest):
    clients = [rest.twin() for _ in range(MEMBERS)]
    for number in range(ROUNDS // 8):
        for member in range(MEMBERS):
            rest.mkdir(bucket, f"s{number}-{member}")
        results = at_once(
            *(
                lambda c=client, m=member: c.rename(bucket, f"s{number}-{m}/", f"t{number}/")
                for member, client in enumerate(clients)
            )
        )
        assert sum(not isinstance(result, Exception) for result in results) == 1
        assert_only_refused_with(results, "already_exists")


def test_creations_below_a_directory_that_moves(bucket, rest):
    """Each acknowledged child is found under the directory's last name."""
    rest.mkdir(bucket, "moving-0")
    done = threading.Event()
    moved = [0]

    def move():
        try:
            for number in range(ROUNDS // 2):
                rest.rename(bucket, f"moving-{number}/", f"moving-{number + 1}/")
                moved[0] = number + 1
        finally:
            done.set()

    def create(client, member):
        acknowledged, count = [], 0
        while not done.is_set():
            try:
                client.mkdir(bucket, f"moving-{moved[0]}/{member}-{count}")
            except Refused as refused:
                assert refused.code == "not_found"
            else:
                acknowledged.append(f"{member}-{count}/")
            count += 1
        return acknowledged

    others = [rest.twin() for _ in range(3)]
    results = at_once(move, *(lambda m=member, c=other: create(c, m) for member, other in enumerate(others)))
    assert_only_refused_with(results)
    children = set(rest.list(bucket, f"moving-{moved[0]}/"))
    assert children >= {name for acknowledged in results[1:] for name in acknowledged}
    assert len(rest.list(bucket, "")) == 1


@pytest.mark.parametrize("size", [10, 1000])
def test_overwrites_at_once_keep_the_byte_count(bucket, s3, sql, size):
    s3.put_object(Bucket=bucket, Key="k", Body=b"")
    for _ in range(ROUNDS // 8):
        results = at_once(
            *(lambda n=n: s3.put_object(Bucket=bucket, Key="k", Body=b"x" * (size + n)) for n in range(MEMBERS))
        )
        assert_only_refused_with(results)
        length = s3.head_object(Bucket=bucket, Key="k")["ContentLength"]
        assert sql.execute("SELECT objects, bytes FROM mantle.du(%s, '')", (bucket,)).fetchone() == (1, length)
        assert len(s3.get_object(Bucket=bucket, Key="k")["Body"].read()) == length


def test_puts_create_their_missing_parents_once(bucket, s3, rest):
    results = at_once(
        *(lambda n=n: s3.put_object(Bucket=bucket, Key=f"p/q/r/{n}", Body=b"1") for n in range(MEMBERS * 2))
    )
    assert_only_refused_with(results)
    assert rest.list(bucket, "") == ["p/"]
    assert len(rest.list(bucket, "p/q/r/")) == MEMBERS * 2


@pytest.mark.allows("postgresql", r"canceling statement due to lock timeout|statement:")
def test_the_wait_for_the_index_counts_from_the_commit(bucket, rest, connect):
    """A mkdir is acknowledged although PostgreSQL holds it for longer than the gateway waits for the index."""
    ns = rest.stat(bucket, "")["id"]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%mantle.mkdir%%'"
    with connect("gateway") as holder, connect("gateway") as watcher, concurrent.futures.ThreadPoolExecutor(1) as pool:
        with holder.transaction(force_rollback=True):
            allocated = holder.execute("SELECT first_id FROM mantle.allocate_ids('test', 1)").fetchone()
            holder.execute(
                "SELECT * FROM mantle.mkdir"
                "('{5}', ARRAY[%s], ARRAY[%s], '{held/}', ARRAY[%s], '{0}', '{0}', '{511}', '{t}',"
                " ARRAY[NULL]::jsonb[], ARRAY[gen_random_uuid()], '{0}')",
                (ns, ns, allocated[0]),
            )
            answer = pool.submit(rest.call, "PUT", f"/v1/ns/{bucket}/dirs/held/")
            long = time.monotonic() + AWAIT_TIMEOUT_S + 0.5

            def waits_for_long() -> bool:
                """The gateway repeats a mkdir that gave up its wait for the lock, so no statement gets that old."""
                return watcher.execute(waiting).fetchone()[0] == 1 and time.monotonic() > long

            wait_until(waits_for_long, "mkdir to wait for long", 30)
        assert answer.result().status == 201
    assert rest.exists(bucket, "held/")
