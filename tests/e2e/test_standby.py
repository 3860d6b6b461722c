"""Standbys, as a gateway meets them.

A demoted primary that the proxy or pg_dist_node still names must not answer: it may lack acknowledged changes, and
knows nothing of changes whose parts are only prepared. A commit whose wait for a synchronous standby was cancelled is
no success (P18).
"""

import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import botocore.exceptions
import pytest

from stack.failure import Failure
from stack.poll import wait_until
from tests.support import absent_standby

from .inspection import READY_BOUND_S, locks

pytestmark = pytest.mark.server

EACH = 2


@pytest.fixture
def demote(stack) -> Iterator:
    """Restarts PostgreSQL as a hot standby without a primary. Then it is a primary again, on the same timeline."""
    mark = stack.postgresql.data / "standby.signal"

    def is_standby() -> bool | None:
        try:
            return stack.postgresql.psql("SELECT pg_is_in_recovery()").strip() == "t"
        except Failure:  # it does not answer yet
            return None

    def restart() -> None:
        # a clean shutdown, so that it is consistent at once
        assert stack.postgresql.process.stop_signal == signal.SIGINT
        stack.postgresql.process.stop()
        stack.postgresql.start()
        wait_until(lambda: is_standby() is mark.exists(), "its new role", READY_BOUND_S)

    def as_standby() -> None:
        mark.touch()
        stack.account.own(mark)
        restart()

    yield as_standby
    mark.unlink(missing_ok=True)
    restart()
    # A rename whose outcome its gateway did not learn leaves its lock to the leader, which needs a primary to release
    # it.
    wait_until(lambda: locks(stack) == 0, "the end of every lock", READY_BOUND_S)


@pytest.mark.faults
@pytest.mark.usefixtures("whole")
@pytest.mark.allows(
    "postgresql",
    r"read-only transaction|specified neither .?primary_conninfo|terminating background worker .mantle worker.",
)
@pytest.mark.allows("indexnode", r"source::rename_locks: (cannot write an abort record|a rename lock expired)")
def test_a_standby_does_not_answer(bucket, rest, s3, demote):
    rest.mkdir(bucket, "directory")
    rest.mkdir(bucket, "other")
    key = str(uuid.uuid4())
    rest.mkdir(bucket, "keyed", key=key)
    s3.put_object(Bucket=bucket, Key="object", Body=b"bytes")
    reads = [
        "/v1/ns",
        f"/v1/ns/{bucket}/entries/directory/",
        f"/v1/ns/{bucket}/entries/no-object",
        f"/v1/ns/{bucket}/list/",
        f"/v1/ns/{bucket}/usage/",
    ]
    changes = [
        ("PUT", f"/v1/ns/{bucket}/dirs/new", None),
        ("DELETE", f"/v1/ns/{bucket}/dirs/other", None),
        ("POST", f"/v1/ns/{bucket}/rename", {"src": "other/", "dst": "directory/other/", "overwrite": False}),
        # Calls that would change nothing: a refusal may be as false as what is read.
        ("PUT", f"/v1/ns/{bucket}/dirs/directory", None),
        ("DELETE", f"/v1/ns/{bucket}/dirs/nothing", None),
        ("POST", f"/v1/ns/{bucket}/rename", {"src": "no-object", "dst": "directory/object", "overwrite": False}),
        ("DELETE", "/v1/ns/no-namespace", None),
    ]
    for target in reads:
        assert rest.call("GET", target).status in (200, 404), target
    demote()
    requests = [("GET", target, None) for target in reads] + changes
    given = {str(request): {rest.call(*request).status for _ in range(EACH)} for request in requests}
    # A standby may not return the recorded answer: it cannot know whether the change is on other nodes.
    given["keyed"] = {rest.call("PUT", f"/v1/ns/{bucket}/dirs/keyed", key=key).status for _ in range(EACH)}
    for refused in (
        lambda: s3.list_objects_v2(Bucket=bucket),
        lambda: s3.delete_object(Bucket=bucket, Key="no-object"),
        lambda: s3.put_object(Bucket=bucket, Key="object", Body=b"", IfNoneMatch="*"),
    ):
        with pytest.raises(botocore.exceptions.ClientError, match=r"ServiceUnavailable|SlowDown|503"):
            refused()
    assert given == {call: {503} for call in given}


@pytest.fixture
def standby_is_gone(connect, superuser) -> Iterator[Callable[[], None]]:
    """Commits wait for an absent synchronous standby, until the callable is called."""
    try:
        absent_standby.demand(lambda: connect("postgres", "superuser"))
        yield lambda: absent_standby.lift(superuser)
    finally:
        absent_standby.lift(superuser)


WAITS = "SELECT pid FROM pg_stat_activity WHERE usename = 'gateway' AND wait_event = 'SyncRep'"
RENAME = {"src": "object", "dst": "new", "overwrite": False}


@pytest.mark.allows("postgresql", r"WARNING:  canceling wait for synchronous replication due to user request")
@pytest.mark.allows("gateway", r"PostgreSQL warns")
@pytest.mark.parametrize(
    ("method", "path", "body", "status", "listed"),
    [("PUT", "dirs/new", None, 201, ["new/", "object"]), ("POST", "rename", RENAME, 200, ["new"])],
    ids=["mkdir", "rename of an object"],
)
def test_a_commit_that_was_not_waited_for_is_unknown(
    bucket, rest, s3, superuser, request, method, path, body, status, listed
):
    s3.put_object(Bucket=bucket, Key="object", Body=b"bytes")
    # By now the gateway has done its periodic work (ids, assignments).
    rest.mkdir(bucket, "other")
    rest.rmdir(bucket, "other")
    standby_returns, key, other = request.getfixturevalue("standby_is_gone"), str(uuid.uuid4()), rest.twin()
    asked = (method, f"/v1/ns/{bucket}/{path}", body)
    with ThreadPoolExecutor() as pool:
        under_way = pool.submit(other.call, *asked, key=key)

        def early() -> str | None:
            return f"it was answered: {under_way.result()}" if under_way.done() else None

        (waiting,) = wait_until(lambda: superuser.execute(WAITS).fetchone(), "the commit to wait", READY_BOUND_S, early)
        assert superuser.execute("SELECT pg_cancel_backend(%s)", (waiting,)).fetchone() == (True,)
        answer = under_way.result()
    assert (answer.status, answer.code) == (503, "unknown_outcome"), answer
    assert answer.body["request_id"] == key and answer.body["retry_with_same_request_id"] is True
    recorded = "SELECT count(*), min(id) FROM mantle.requests WHERE request_id = %s"
    count, id = superuser.execute(recorded, (key,)).fetchone()
    assert count == 1, "it was carried out"
    standby_returns()
    retried = [rest.insist(*asked, key=key) for _ in range(2)]
    assert [again.status for again in retried] == [status, status]
    assert retried[0].body == retried[1].body
    assert superuser.execute(recorded, (key,)).fetchone() == (1, id), "and once"
    assert rest.list(bucket, "") == listed
    assert rest.call(*asked, key=str(uuid.uuid4())).status in (404, 409), "another request finds it done"
