"""The extension's background worker beside other services."""

import signal

import pytest

from stack.poll import wait_until
from tests.support import absent_standby

from .inspection import READY_BOUND_S

pytestmark = pytest.mark.server


@pytest.mark.faults
@pytest.mark.usefixtures("whole")
@pytest.mark.allows("postgresql", r"canceling (the )?wait for synchronous replication")
def test_a_worker_whose_commit_waits_for_a_standby_does_not_keep_the_server_from_stopping(
    stack, bucket, rest, superuser, connect
):
    """As on a primary that was cut off from its standby, and is to be demoted."""
    server = stack.postgresql
    directory = rest.mkdir(bucket, "counted").body["id"]
    ns = superuser.execute("SELECT ns FROM mantle.namespaces WHERE name = %s", (bucket,)).fetchone()[0]
    superuser.execute("SET synchronous_commit = local")
    try:
        absent_standby.demand(lambda: connect("postgres", "superuser"))
        superuser.execute(
            "INSERT INTO mantle.meta (pid, name, ts, ns, entries, subdirectories, bytes, modified)"
            " VALUES (%s, '/_ATTR', 1, %s, 0, 0, 0, now())",
            (directory, ns),
        )
        waits = "SELECT FROM pg_stat_activity WHERE backend_type = 'mantle worker' AND wait_event = 'SyncRep'"
        wait_until(
            lambda: superuser.execute(waits).fetchone() is not None, "the worker to wait for a standby", READY_BOUND_S
        )
        has_stopped = server.process.signal(signal.SIGINT, READY_BOUND_S)
    finally:
        settings = server.data / "postgresql.auto.conf"
        kept = [
            line
            for line in settings.read_text(encoding="utf-8").splitlines()
            if "synchronous_standby_names" not in line
        ]
        settings.write_text("\n".join(kept) + "\n", encoding="utf-8")
        server.process.kill()
    assert has_stopped
