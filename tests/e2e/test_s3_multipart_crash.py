"""Multipart uploads whose gateway is killed, that several clients end at once, and that nobody ends (P53)."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import botocore.exceptions
import psycopg
import pytest

from stack.poll import wait_until
from tests.support.sql_wrappers import put_at_beginning

from .another_gateway import another_gateway
from .clients import connect_as
from .uploads import PART, begin, complete, etag_of, files, pieces, put, refused

BOUND_S = 30.0
ROUNDS = 12
HELD = 4712  # an advisory lock
# The shortest grace that a gateway accepts.
QUICK = {"orphan_grace_ms": 20_000, "sweep_interval_ms": 200, "read_grace_ms": 1}


@pytest.fixture
def holder(stack):
    """A session that holds latches."""
    with connect_as(stack, "postgres", "superuser") as session:
        yield session


def state_of(sql, upload: dict) -> str | None:
    row = sql.execute("SELECT u.state FROM mantle.uploads u WHERE u.id = %s", (int(upload["UploadId"], 16),)).fetchone()
    return row[0] if row else None


def waiter(sql, holder: psycopg.Connection) -> int | None:
    """The session that waits for the holder."""
    row = sql.execute(
        "SELECT l.backend FROM mantle.latches l WHERE %s = ANY (l.blocked_by)", (holder.info.backend_pid,)
    )
    found = row.fetchone()
    return found[0] if found else None


def await_waiter(sql, holder: psycopg.Connection) -> int:
    return wait_until(lambda: waiter(sql, holder), "a session that waits", BOUND_S)


@contextmanager
def completing(stack, bucket: str, gateway, upload: dict, parts: list[dict]):
    """Another thread completes the upload through a gateway that will die."""

    def ask() -> None:
        with suppress(botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
            complete(gateway.s3(stack), upload, parts)

    thread = threading.Thread(target=ask)
    thread.start()
    yield
    thread.join()


def killed_before_the_put(stack, sql, holder, bucket: str, upload: dict, parts: list[dict]) -> None:
    ns = sql.execute("SELECT n.ns FROM mantle.namespaces n WHERE n.name = %s", (bucket,)).fetchone()[0]
    with another_gateway(stack) as gateway, holder.transaction():
        holder.execute("SELECT mantle.latch_entries(ARRAY[%s]::bigint[], ARRAY['k'], NULL)", (ns,))
        with completing(stack, bucket, gateway, upload, parts):
            waiting = await_waiter(sql, holder)
            gateway.process.kill()
            holder.execute("SELECT pg_terminate_backend(%s)", (waiting,))
            wait_until(lambda: waiter(sql, holder) is None, "the end of the session", BOUND_S)
    assert state_of(sql, upload) == "sealed"


def killed_after_the_put(stack, sql, holder, bucket: str, upload: dict, parts: list[dict]) -> None:
    ns = sql.execute("SELECT n.ns FROM mantle.namespaces n WHERE n.name = %s", (bucket,)).fetchone()[0]
    number = int(upload["UploadId"], 16)
    with (
        ExitStack() as ending,
        another_gateway(stack) as gateway,
        connect_as(stack, "postgres", "superuser") as second,
        second.transaction(),
    ):
        with holder.transaction():
            holder.execute("SELECT mantle.latch_entries(ARRAY[%s]::bigint[], ARRAY['k'], NULL)", (ns,))
            ending.enter_context(completing(stack, bucket, gateway, upload, parts))
            await_waiter(sql, holder)
            second.execute("SELECT mantle.latch_pids(ARRAY[%s]::bigint[], '{}')", (number,))
        waiting = await_waiter(sql, second)
        gateway.process.kill()
        second.execute("SELECT pg_terminate_backend(%s)", (waiting,))
        wait_until(lambda: waiter(sql, second) is None, "the end of the session", BOUND_S)
    assert state_of(sql, upload) == "sealed"


@pytest.mark.parametrize("then", ["the same", "other parts", "abort"])
@pytest.mark.faults
def test_killed_after_the_manifest(stack, superuser, holder, s3, bucket, then):
    before, bodies = files(stack), pieces(PART, 3)
    upload = begin(s3, bucket, "k")
    parts = put(s3, upload, bodies)
    killed_before_the_put(stack, superuser, holder, bucket, upload, parts)
    assert refused(s3.head_object, Bucket=bucket, Key="k")[1] == 404
    assert refused(s3.upload_part, **upload, PartNumber=2, Body=b"late") == ("OperationAborted", 409)
    if then == "abort":
        s3.abort_multipart_upload(**upload)
        assert refused(s3.head_object, Bucket=bucket, Key="k")[1] == 404
        assert files(stack) == before and state_of(superuser, upload) is None
        return
    chosen = parts if then == "the same" else parts[1:]
    wanted = bodies if then == "the same" else bodies[1:]
    assert complete(s3, upload, chosen)["ETag"] == etag_of(wanted)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"".join(wanted)
    assert state_of(superuser, upload) == "done" and len(files(stack) - before) == len(wanted)


@pytest.mark.parametrize("then", ["the same", "other parts", "abort", "nothing"])
@pytest.mark.faults
def test_killed_after_the_row(stack, superuser, holder, s3, bucket, then):
    bodies = pieces(PART, 3)
    upload = begin(s3, bucket, "k")
    parts = put(s3, upload, bodies)
    killed_after_the_put(stack, superuser, holder, bucket, upload, parts)
    if then == "the same":
        s3.put_object(Bucket=bucket, Key="k", Body=b"newer")
        assert complete(s3, upload, parts)["ETag"] == etag_of(bodies)
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"newer"
        return
    if then == "other parts":
        assert refused(complete, s3, upload, parts[1:]) == ("NoSuchUpload", 404)
    elif then == "abort":
        assert refused(s3.abort_multipart_upload, **upload) == ("NoSuchUpload", 404)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"".join(bodies)
    assert state_of(superuser, upload) == ("sealed" if then == "nothing" else "done")


@pytest.mark.faults
def test_an_answer_that_was_purged_does_not_lose_the_object(stack, superuser, holder, s3, bucket):
    bodies = pieces(PART, 3)
    upload = begin(s3, bucket, "k")
    killed_after_the_put(stack, superuser, holder, bucket, upload, put(s3, upload, bodies))
    superuser.execute("DELETE FROM mantle.requests")
    assert refused(s3.abort_multipart_upload, **upload) == ("NoSuchUpload", 404)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"".join(bodies)


def attempt(call, *arguments, **given) -> str:
    try:
        call(*arguments, **given)
        return "done"
    except botocore.exceptions.ClientError as error:
        return error.response["Error"]["Code"]


def test_complete_against_abort(stack, s3, bucket):
    """The object is there whole, or not at all with all its bytes gone."""
    with another_gateway(stack) as second, ThreadPoolExecutor(2) as pool:
        beside = second.s3(stack)
        for round_ in range(ROUNDS):
            before, key, body = files(stack), f"k{round_}", b"bytes of one part"
            upload = begin(s3, bucket, key)
            parts = put(s3, upload, [body])
            completed = pool.submit(attempt, complete, s3, upload, parts)
            aborted = pool.submit(attempt, beside.abort_multipart_upload, **upload)
            both = completed.result(BOUND_S), aborted.result(BOUND_S)
            if both[0] == "done":
                assert both[1] in ("NoSuchUpload", "OperationAborted"), both
                assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == body
            else:
                assert both == ("NoSuchUpload", "done"), both
                assert refused(s3.head_object, Bucket=bucket, Key=key)[1] == 404
                assert files(stack) == before


def test_two_completes_with_different_parts(stack, s3, bucket):
    with another_gateway(stack) as second, ThreadPoolExecutor(2) as pool:
        beside = second.s3(stack)
        for round_ in range(ROUNDS):
            key, bodies = f"k{round_}", [b"one", b"another"]
            upload = begin(s3, bucket, key)
            parts = put(s3, upload, bodies)
            asked = [
                pool.submit(attempt, complete, client, upload, [part])
                for client, part in zip((s3, beside), parts, strict=True)
            ]
            ends = [end.result(BOUND_S) for end in asked]
            assert ends.count("done") == 1 and set(ends) <= {"done", "NoSuchUpload", "OperationAborted"}, ends
            assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == bodies[ends.index("done")]


@contextmanager
def first_read_waits(sql):
    """Calls read the upload's row, and go on when the block ends."""
    (whole,) = sql.execute("SELECT pg_get_functiondef('mantle.upload'::regproc)").fetchone()
    read = "RETURN QUERY SELECT * FROM mantle.uploads u WHERE u.id = p_upload AND u.ns = p_ns;"
    waiting = f"{read} PERFORM pg_advisory_xact_lock_shared({HELD}); RETURN;"
    sql.execute("SELECT pg_advisory_lock(%s)", (HELD,))
    try:
        put_at_beginning(sql, "upload", "test_s3_multipart_crash", waiting)
        yield
    finally:
        sql.execute(whole)
        sql.execute("SELECT pg_advisory_unlock_all()")


@pytest.mark.faults
@pytest.mark.parametrize(("chosen", "answer"), [(0, "done"), (1, "NoSuchUpload")], ids=["the same", "other parts"])
def test_an_upload_ends_between_two_reads_of_a_complete(stack, superuser, holder, s3, bucket, chosen, answer):
    """The first read sees it unfinished; the second finds no part that the object does not have."""
    bodies = [b"one", b"another"]
    upload = begin(s3, bucket, "k")
    parts = put(s3, upload, bodies)
    killed_after_the_put(stack, superuser, holder, bucket, upload, parts[:1])
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s"
    with ThreadPoolExecutor(1) as pool:
        with first_read_waits(superuser):
            late = pool.submit(attempt, complete, s3, upload, [parts[chosen]])
            wait_until(lambda: superuser.execute(waiting, (HELD,)).fetchone()[0], "the first read", BOUND_S)
            holder.execute("SELECT mantle.finish_upload_delegated(%s, 0)", (int(upload["UploadId"], 16),))
        assert late.result(BOUND_S) == answer
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == bodies[0]


def test_the_same_complete_twice_at_once(stack, s3, bucket):
    with another_gateway(stack) as second, ThreadPoolExecutor(2) as pool:
        beside = second.s3(stack)
        for round_ in range(ROUNDS):
            key, body = f"k{round_}", b"bytes"
            upload = begin(s3, bucket, key)
            parts = put(s3, upload, [body])
            asked = [pool.submit(attempt, complete, client, upload, parts) for client in (s3, beside)]
            assert [end.result(BOUND_S) for end in asked] == ["done", "done"]
            assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == body


def test_a_late_part_changes_no_object(stack, s3, bucket):
    with another_gateway(stack) as second, ThreadPoolExecutor(2) as pool:
        beside = second.s3(stack)
        for round_ in range(ROUNDS):
            key = f"k{round_}"
            upload = begin(s3, bucket, key)
            parts = put(s3, upload, [b"first"])
            late = pool.submit(attempt, beside.upload_part, **upload, PartNumber=1, Body=b"late!")
            completed = pool.submit(attempt, complete, s3, upload, parts)
            ends = late.result(BOUND_S), completed.result(BOUND_S)
            if ends[1] == "done":
                assert ends[0] in ("done", "NoSuchUpload", "OperationAborted"), ends
                assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == b"first"
            else:
                assert ends == ("done", "InvalidPart"), ends
                assert refused(s3.head_object, Bucket=bucket, Key=key)[1] == 404


def test_gateways_change_between_parts(stack, s3, bucket):
    bodies = pieces(PART, PART, 5)
    with another_gateway(stack) as second:
        beside = second.s3(stack)
        upload = begin(s3, bucket, "k")
        parts = []
        for number, (client, body) in enumerate(zip((beside, s3, beside), bodies, strict=True), 1):
            parts.append(
                {"PartNumber": number, "ETag": client.upload_part(**upload, PartNumber=number, Body=body)["ETag"]}
            )
        assert len(beside.list_parts(**upload)["Parts"]) == 3
        complete(beside, upload, parts)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"".join(bodies)


def test_bytes_go_after_their_object(stack, s3, bucket):
    """The sweeper removes a manifest that no object names, and not the bytes that a copied part uses."""
    before = files(stack)
    bodies = pieces(PART, 10)
    upload = begin(s3, bucket, "k")
    complete(s3, upload, put(s3, upload, bodies))
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k"})
    other = begin(s3, bucket, "part of it")
    copied = s3.upload_part_copy(
        **other, PartNumber=1, CopySource={"Bucket": bucket, "Key": "k"}, CopySourceRange=f"bytes={PART}-{PART + 9}"
    )
    complete(s3, other, [{"PartNumber": 1, "ETag": copied["CopyPartResult"]["ETag"]}])
    with another_gateway(stack, **QUICK):
        s3.delete_object(Bucket=bucket, Key="k")
        assert s3.get_object(Bucket=bucket, Key="copy")["Body"].read() == b"".join(bodies)
        s3.delete_object(Bucket=bucket, Key="copy")
        wait_until(lambda: len(files(stack) - before) == 1, "the end of the bytes that nothing uses", BOUND_S)
        assert s3.get_object(Bucket=bucket, Key="part of it")["Body"].read() == bodies[1]
        s3.put_object(Bucket=bucket, Key="part of it", Body=b"")
        wait_until(lambda: not any(map(holds_bytes, files(stack) - before)), "the end of the last", BOUND_S)


def holds_bytes(path: Path) -> bool:
    """False too if the sweeper has removed the file since it was listed."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def test_abandoned_uploads_end(stack, s3, bucket, rest, superuser):
    before = files(stack)
    abandoned = begin(s3, bucket, "k")
    put(s3, abandoned, pieces(100))
    with another_gateway(stack, **QUICK, upload_lifetime_s=1):
        wait_until(lambda: state_of(superuser, abandoned) is None, "the end of the upload", BOUND_S)
    assert files(stack) <= before
    gone = begin(s3, bucket, "k")
    put(s3, gone, pieces(100))
    rest.delete_namespace(bucket)
    with another_gateway(stack, **QUICK, upload_lifetime_s=0):
        wait_until(lambda: state_of(superuser, gone) is None, "the end of the removed bucket's upload", BOUND_S)
    assert files(stack) <= before
