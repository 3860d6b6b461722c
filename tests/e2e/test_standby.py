"""A gateway that finds a standby where the primary was (it was demoted, and the proxy or pg_dist_node does not say so yet) has no
answer from it: a standby may lack what was acknowledged, and knows nothing of changes that are half done."""

import signal
from collections.abc import Iterator

import botocore.exceptions
import pytest

from moves import READY_BOUND_S
from stack.failure import Failure
from stack.poll import wait_until

EACH = 2


@pytest.fixture
def demote(stack) -> Iterator:
    """Restarts PostgreSQL as a hot standby without a primary; it is a primary again at the end, on the same timeline."""
    mark = stack.postgresql.data / "standby.signal"

    def is_standby() -> bool | None:
        try:
            return stack.postgresql.psql("SELECT pg_is_in_recovery()").strip() == "t"
        except Failure:  # it does not answer yet
            return None

    def restart() -> None:
        assert stack.postgresql.process.stop_signal == signal.SIGINT  # a clean end, so that it is consistent at once
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


@pytest.mark.faults
@pytest.mark.usefixtures("whole")
@pytest.mark.allows("postgresql", r"read-only transaction|specified neither primary_conninfo|terminating background worker .mantle worker.")
@pytest.mark.allows("indexnode", r"source::lead: cannot write an abort record")
def test_a_standby_answers_nobody(bucket, rest, s3, demote):
    rest.mkdir(bucket, "directory")
    rest.mkdir(bucket, "other")
    key = "0190b5a0-0000-7000-8000-000000000001"
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
        # Those that would change nothing: a refusal may be as false as what is read.
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
    # Its answer of before is there, and may not be given either: whether it is on other nodes by now cannot be told here.
    given["keyed"] = {rest.call("PUT", f"/v1/ns/{bucket}/dirs/keyed", key=key).status for _ in range(EACH)}
    for refused in (
        lambda: s3.list_objects_v2(Bucket=bucket),
        lambda: s3.delete_object(Bucket=bucket, Key="no-object"),
        lambda: s3.put_object(Bucket=bucket, Key="object", Body=b"", IfNoneMatch="*"),
    ):
        with pytest.raises(botocore.exceptions.ClientError, match="ServiceUnavailable|SlowDown|503"):
            refused()
    assert given == dict.fromkeys(given, {503})
