"""Gateways that die in the middle of a put, and one that continues after another gateway has taken its volume over."""

import http.client
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import botocore.exceptions
import psycopg
import pytest

from stack.poll import wait_until
from tests.support.s3_wire import Wire
from tests.support.volume_blocks import blocks

from .another_gateway import running
from .clients import connect_as
from .inspection import blocked_by
from .uploads import refused
from .volume_gateway import BOUND_S, KIB, VolumeGateway, assert_all_read, make, put_some

OLD, NEW = [30 * KIB] * 10, [60 * KIB] * 10
HELD = "SELECT mantle.latch_entries(ARRAY[%s]::bigint[], ARRAY['k'], NULL)"


@pytest.fixture
def gateway(stack, folder) -> VolumeGateway:
    return make(stack, folder=folder, volumes=("doubt_ms = 500",))


@pytest.fixture
def holder(stack) -> Iterator[psycopg.Connection]:
    """A session that holds latches."""
    with connect_as(stack, "postgres", "superuser") as session:
        yield session


def hold(sql, holder: psycopg.Connection, bucket: str) -> None:
    """Holds the latch of the key `k`, in the holder's transaction."""
    ns = sql.execute("SELECT n.ns FROM mantle.namespaces n WHERE n.name = %s", (bucket,)).fetchone()[0]
    holder.execute(HELD, (ns,))


def waiter(sql, holder: psycopg.Connection) -> int | None:
    """The session that waits for the holder."""
    found = sql.execute(
        "SELECT l.backend FROM mantle.latches l WHERE %s = ANY (l.blocked_by)", (holder.info.backend_pid,)
    ).fetchone()
    return found[0] if found else None


class Put:
    """A put of the key `k` in another thread."""

    def __init__(self, stack, gateway: VolumeGateway, bucket: str, body: bytes):
        self.status: int | None = None

        def ask() -> None:
            with suppress(botocore.exceptions.BotoCoreError):
                try:
                    answer = gateway.s3(stack).put_object(Bucket=bucket, Key="k", Body=body)
                    self.status = answer["ResponseMetadata"]["HTTPStatusCode"]
                except botocore.exceptions.ClientError as error:
                    self.status = error.response["ResponseMetadata"]["HTTPStatusCode"]

        self.thread = threading.Thread(target=ask)
        self.thread.start()

    def join(self) -> int | None:
        self.thread.join(BOUND_S)
        assert not self.thread.is_alive()
        return self.status


def half_sent(gateway: VolumeGateway, bucket: str, body: bytes) -> http.client.HTTPConnection:
    """A put of the key `k` of whose body half is sent."""
    wire = Wire(SimpleNamespace(gateway=gateway, layout=gateway.layout))
    target = f"/{bucket}/k"
    connection = http.client.HTTPConnection(wire.host, wire.port, timeout=BOUND_S)
    connection.putrequest("PUT", target)
    for name, value in {**wire.signed("PUT", target), "Content-Length": str(len(body))}.items():
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(body[: len(body) // 2])
    return connection


@contextmanager
def stopped(gateway: VolumeGateway) -> Iterator[None]:
    """The gateway does nothing meanwhile."""
    pid = gateway.process.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def successor(stack, gateway: VolumeGateway) -> VolumeGateway:
    """A gateway on another machine, to which the volume is attached as it is now. No lock of a file reaches so far."""
    copied = gateway.folder.with_name(gateway.folder.name + "-elsewhere")
    shutil.copytree(gateway.folder, copied)
    for path in [copied, *copied.iterdir()]:
        owner = gateway.folder.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
    return make(stack, 1, folder=copied)


@contextmanager
def taken_over(stack, gateway: VolumeGateway, bucket: str) -> Iterator[tuple[VolumeGateway, dict[str, bytes]]]:
    """A second gateway, and what it has put while the first stood still. Then the first one goes on."""
    with stopped(gateway):
        second = successor(stack, gateway)
        second.prepare()
        second.start()
        second.await_ready()
        bodies = put_some(second.s3(stack), bucket, "new", NEW)
    try:
        yield second, bodies
    finally:
        second.process.stop()


@contextmanager
def stopped_behind_the_fence(stack, sql, holder, gateway: VolumeGateway, bucket: str, body: bytes):
    """A put that waited with its latches until a second gateway waited for it. Its own gateway stands still."""
    with ExitStack() as until_resumed:
        with holder.transaction():
            holder.execute("LOCK TABLE mantle.meta IN SHARE MODE")
            put = Put(stack, gateway, bucket, body)
            waiting = wait_until(lambda: blocked_by(sql, holder.info.backend_pid), "the put", BOUND_S)
            until_resumed.enter_context(stopped(gateway))
            second = successor(stack, gateway)
            second.prepare()
            second.start()
            wait_until(lambda: blocked_by(sql, waiting), "the new epoch, which waits for the put", BOUND_S)
        yield put, second


@pytest.mark.faults
def test_killed_in_the_middle_of_a_body(stack, gateway, bucket):
    with running(gateway):
        connection = half_sent(gateway, bucket, os.urandom(3 << 20))
        wait_until(lambda: gateway.bytes_of("used") > 0, "a part of the body in the volume", BOUND_S)
        gateway.process.kill()
        connection.close()
    with running(gateway):
        gateway.await_used(0)
        assert refused(gateway.s3(stack).head_object, Bucket=bucket, Key="k")[1] == 404


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.faults
def test_killed_between_the_bytes_and_the_row(stack, superuser, holder, gateway, bucket, is_committed):
    body = os.urandom(9000)
    with running(gateway), holder.transaction():
        hold(superuser, holder, bucket)
        put = Put(stack, gateway, bucket, body)
        waiting = wait_until(lambda: waiter(superuser, holder), "the put", BOUND_S)
        gateway.process.kill()
        put.join()
        if not is_committed:
            superuser.execute("SELECT pg_terminate_backend(%s)", (waiting,))
            wait_until(lambda: waiter(superuser, holder) is None, "the end of the session", BOUND_S)
    with running(gateway):
        gateway.await_used(blocks(9000) if is_committed else 0)
        s3 = gateway.s3(stack)
        if is_committed:
            assert_all_read(s3, bucket, {"k": body})
        else:
            assert refused(s3.head_object, Bucket=bucket, Key="k")[1] == 404


@pytest.mark.faults
def test_an_unknown_outcome_keeps_its_blocks_until_postgresql_has_answered(stack, superuser, holder, gateway, bucket):
    with running(gateway):
        with holder.transaction():
            hold(superuser, holder, bucket)
            put = Put(stack, gateway, bucket, os.urandom(9000))
            ended: set[int] = set()
            while put.thread.is_alive():
                waiting = waiter(superuser, holder)
                if waiting is not None and waiting not in ended:
                    ended.add(waiting)
                    superuser.execute("SELECT pg_terminate_backend(%s)", (waiting,))
                put.thread.join(0.01)
            assert put.join() == 503 and len(ended) > 1
            gateway.await_used(blocks(9000))
        wait_until(lambda: gateway.bytes_of("used") == 0, "PostgreSQL's answer", BOUND_S)
        assert gateway.bytes_of("in_doubt") == 0


@pytest.mark.allows("gateway", "the volume is not used any more|the volume is not mounted")
@pytest.mark.allows("gateway", "the volume cannot be looked after")
@pytest.mark.allows("postgresql", "volume_superseded")
@pytest.mark.faults
def test_a_stale_owner_that_is_stopped_before_it_writes(stack, gateway, bucket):
    with running(gateway):
        bodies = put_some(gateway.s3(stack), bucket, "old", OLD)
        late = os.urandom(100 * KIB)
        connection = half_sent(gateway, bucket, late)
        with taken_over(stack, gateway, bucket) as (second, new):
            s3 = second.s3(stack)
            connection.send(late[len(late) // 2 :])
            assert connection.getresponse().status == 503
            wait_until(lambda: not gateway.is_mounted(), "the end of the stale owner", BOUND_S)
            assert refused(gateway.s3(stack).put_object, Bucket=bucket, Key="x", Body=b"x")[1] == 503
            assert refused(s3.head_object, Bucket=bucket, Key="k")[1] == 404
            assert_all_read(s3, bucket, {**bodies, **new})


@pytest.mark.allows("gateway", "the volume is not used any more|the volume is not mounted")
@pytest.mark.allows("gateway", "the volume cannot be looked after")
@pytest.mark.allows("postgresql", "volume_superseded")
@pytest.mark.faults
def test_a_put_that_waits_before_the_fence_is_refused(stack, superuser, holder, gateway, bucket):
    """Its bytes are written, and its statement waits for the key. Another gateway takes the segment over meanwhile."""
    with running(gateway), ExitStack() as until_stopped:
        with holder.transaction():
            hold(superuser, holder, bucket)
            put = Put(stack, gateway, bucket, os.urandom(20 * KIB))
            wait_until(lambda: waiter(superuser, holder), "the put", BOUND_S)
            second, bodies = until_stopped.enter_context(taken_over(stack, gateway, bucket))
        assert put.join() == 503
        s3 = second.s3(stack)
        assert refused(s3.head_object, Bucket=bucket, Key="k")[1] == 404
        assert_all_read(s3, bucket, bodies)


@pytest.mark.allows("gateway", "the volume is not used any more|the volume is not mounted")
@pytest.mark.allows("gateway", "the volume cannot be looked after")
@pytest.mark.allows("postgresql", "volume_superseded")
@pytest.mark.faults
def test_a_put_that_waits_behind_the_fence_is_seen(stack, superuser, holder, gateway, bucket):
    """It has latched the segment, so the new epoch waits for its commit. The scan afterwards finds its row."""
    body = os.urandom(20 * KIB)
    with running(gateway):
        with stopped_behind_the_fence(stack, superuser, holder, gateway, bucket, body) as (put, second):
            wait_until(lambda: second.bytes_of("leased") > 0, "the take-over", BOUND_S)
            assert second.bytes_of("used") == blocks(20 * KIB)
            bodies = {"k": body, **put_some(second.s3(stack), bucket, "new", NEW)}
        try:
            assert put.join() == 200
            assert_all_read(second.s3(stack), bucket, bodies)
        finally:
            second.process.stop()
