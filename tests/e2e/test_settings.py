"""Settings of the database and of roles (ALTER DATABASE, ALTER ROLE), which affect the sessions of services.

The settings that the services' roles depend on are pinned, so other settings do no harm. If they are not pinned, a
mutation gets a clear answer, readiness and check_cluster say why, and everything recovers once they are.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from stack import http, secret
from stack.poll import wait_until
from stack.service import start_each
from tests.cluster import runbook
from tests.support import absent_standby

from . import hostile_schema
from .clients import await_all_ready, connect_as
from .inspection import READY_BOUND_S

pytestmark = pytest.mark.server

SERVICES = ("gateway", "index", "importer")
# With these, mutations fail in a session, or go wrong. With it, what readiness says of it: a statement that is cut off
# says nothing.
HARMFUL = {
    "default_transaction_isolation": ("serializable", "MT041"),
    "default_transaction_read_only": ("on", "25006"),
    "synchronous_commit": ("off", "MT042"),
    "exit_on_error": ("on", "exit_on_error"),
    "plpgsql.extra_errors": ("all", "extra_errors"),
    "statement_timeout": ("1ms", ""),
}
OTHERS = {
    "default_transaction_deferrable": "on",
    "session_replication_role": "replica",
    "row_security": "off",
    "lock_timeout": "1ms",
    "client_min_messages": "error",
    "idle_in_transaction_session_timeout": "1ms",
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kolkata",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "check_function_bodies": "off",
    "plpgsql.variable_conflict": "use_column",
    "jit": "on",
    "jit_above_cost": "0",
    "enable_indexscan": "off",
    "enable_nestloop": "off",
    "plan_cache_mode": "force_custom_plan",
    "work_mem": "64kB",
    "track_activities": "off",
    "search_path": "nowhere",
}
LEFT = """
    SELECT (SELECT count(*) FROM mantle.prune_queue) + (SELECT count(*) FROM mantle.meta WHERE ts > 0)
         + (SELECT count(*) FROM mantle.operations WHERE state = 'running')
"""
WORKER = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'mantle worker' AND datname = 'mantle'"


def restarts(test):
    """What a test that restarts services makes them complain about."""
    for service, pattern in (
        ("indexnode", r"to-Raft tx send error"),
        ("postgresql", r"terminating background worker .mantle worker. due to administrator command"),
    ):
        test = pytest.mark.allows(service, pattern)(test)
    return test


def probe(stack) -> tuple[int, str]:
    return http.call("GET", f"{stack.gateway.probe}/readyz")


def named(superuser, setting: str) -> list[str]:
    """What check_cluster says of a setting."""
    rows = superuser.execute("SELECT detail FROM mantle.check_cluster() WHERE problem = 'settings'").fetchall()
    return [detail for (detail,) in rows if f" has {setting} = " in detail]


def worker(superuser) -> int | None:
    row = superuser.execute(WORKER).fetchone()
    return row and row[0]


def pin(superuser) -> None:
    """As the runbook says."""
    for statement in runbook.statements("Settings that stop changes"):
        superuser.execute(statement)


def alter(superuser, what: str, setting: str, value: str) -> None:
    superuser.execute(f"ALTER {what} SET {setting} = {sql.Literal(value).as_string(superuser)}")


def reconnect(stack, superuser) -> None:
    """Every service, and the worker, gets new sessions."""
    before = worker(superuser)
    superuser.execute("SELECT pg_terminate_backend(%s)", (before,))
    services = (stack.pgbouncer, *stack.indexnodes.values())
    for service in services:
        service.process.stop()
    start_each(services)  # not the whole stack: its superuser would have the database's settings
    await_all_ready(stack)
    wait_until(lambda: worker(superuser) not in (None, before), "another worker", READY_BOUND_S)


def await_work_done(superuser) -> None:
    wait_until(lambda: superuser.execute(LEFT).fetchone() == (0,), "the worker to do its work", READY_BOUND_S)
    assert superuser.execute("SELECT mantle.worker_problems()").fetchall() == []


def change_everything(rest, s3, bucket) -> None:
    """Changes by many kinds of statements, over REST and S3."""
    name = uuid.uuid4().hex[:8]
    rest.mkdir(bucket, f"d-{name}")
    rest.mkdir(bucket, f"d-{name}/below")
    rest.rename(bucket, f"d-{name}/", f"e-{name}/")
    s3.put_object(Bucket=bucket, Key=f"i-{name}/object", Body=b"bytes")
    s3.copy_object(Bucket=bucket, Key=f"c-{name}", CopySource={"Bucket": bucket, "Key": f"i-{name}/object"})
    upload = s3.create_multipart_upload(Bucket=bucket, Key=f"u-{name}")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key=f"u-{name}", UploadId=upload, PartNumber=1, Body=b"part")["ETag"]
    parts = {"Parts": [{"ETag": part, "PartNumber": 1}]}
    s3.complete_multipart_upload(Bucket=bucket, Key=f"u-{name}", UploadId=upload, MultipartUpload=parts)
    assert s3.get_object(Bucket=bucket, Key=f"u-{name}")["Body"].read() == b"part"
    s3.delete_object(Bucket=bucket, Key=f"i-{name}/object")
    assert f"e-{name}/" in rest.list(bucket, "")
    assert not rest.exists(bucket, f"missing-{name}/")
    rest.rmdir(bucket, f"e-{name}/below")
    rest.insist("DELETE", f"/v1/ns/{bucket}/dirs/e-{name}?recursive=true")


@restarts
@pytest.mark.timeout(300)
@pytest.mark.faults
@pytest.mark.usefixtures("whole")
def test_settings_of_the_database_reach_no_service(stack, bucket, rest, s3, superuser):
    """All at once, in new sessions."""
    everything = {name: value for name, (value, _) in HARMFUL.items()} | OTHERS
    if superuser.info.server_version >= 170_000:
        everything["transaction_timeout"] = "1ms"
    try:
        for name, value in everything.items():
            alter(superuser, "DATABASE mantle", name, value)
        for user in SERVICES:
            with connect_as(stack, user, user) as session:
                assert session.execute("SHOW default_transaction_isolation").fetchone() == ("read committed",)
        reconnect(stack, superuser)
        change_everything(rest, s3, bucket)
        assert probe(stack)[0] == 200
        assert superuser.execute("SELECT * FROM mantle.setting_problems()").fetchall() == []
        await_work_done(superuser)
    finally:
        superuser.execute("ALTER DATABASE mantle RESET ALL")


@contextmanager
def unpinned(superuser, setting: str, value: str) -> Iterator[None]:
    """A role of gateways has this in the database, until it is pinned again."""
    alter(superuser, "ROLE gateway IN DATABASE mantle", setting, value)
    try:
        yield
    finally:
        pin(superuser)


@pytest.mark.timeout(300)
@pytest.mark.faults
@pytest.mark.usefixtures("whole")
@pytest.mark.allows("gateway", r"the database refuse[ds]|unexpected database error|could not sweep")
@pytest.mark.allows("postgresql", r"gateway@mantle ")
@pytest.mark.parametrize("setting", HARMFUL)
def test_what_is_not_pinned_is_told_and_heals(stack, bucket, rest, superuser, setting):
    value, reason = HARMFUL[setting]
    rest.mkdir(bucket, "before")
    with unpinned(superuser, setting, value):
        stack.pgbouncer.process.stop()
        start_each((stack.pgbouncer,))
        said = wait_until(lambda: not_ready(stack, reason), "readiness to say why", READY_BOUND_S)
        (detail,) = named(superuser, setting)
        assert "role gateway" in detail and (not reason or detail in said), (detail, said)
        answer = rest.call("PUT", f"/v1/ns/{bucket}/dirs/during", key=str(uuid.uuid4()))
        assert answer.status in (201, 500, 503) and (answer.status == 201 or answer.code), answer
    # Sessions that began before are still there.
    wait_until(lambda: probe(stack)[0] == 200, "readiness", READY_BOUND_S)
    assert named(superuser, setting) == []
    for number in range(20):
        path = f"/v1/ns/{bucket}/dirs/after-{number}"
        wait_until(lambda path=path: rest.call("PUT", path).status in (201, 409), "a mkdir", READY_BOUND_S)
    change = rest.call("PUT", f"/v1/ns/{bucket}/dirs/at-last")
    assert change.status == 201, change


def not_ready(stack, reason: str) -> str | None:
    """What readiness answers, if it is 503 for this reason. Quotes are escaped there."""
    status, body = probe(stack)
    return body if status == 503 and reason in body else None


@pytest.mark.faults
@pytest.mark.allows("gateway", r"the database refuse[ds]|the connection broke|the database is unavailable")
@pytest.mark.allows("postgresql", r"gateway@mantle ")
@pytest.mark.allows("pgbouncer", r"terminating connection|server conn crashed|got packet 'E' from server")
@pytest.mark.parametrize(
    "left",
    [
        "default_transaction_isolation = 'serializable'",
        "synchronous_commit = off",
        "default_transaction_read_only = on",
    ],
)
def test_a_set_that_a_client_left_in_the_pooler_heals(stack, bucket, rest, left):
    """No setting of the role is to blame, so its session is ended."""
    with through_pooler(stack) as client:
        client.execute(f"SET {left}")
        assert client.execute("SELECT mantle.mutation_fault_code() IS NOT NULL").fetchone() == (True,)
    for number in range(10):
        rest.mkdir(bucket, f"after-{number}")
    wait_until(lambda: probe(stack)[0] == 200, "readiness", READY_BOUND_S)


@pytest.mark.faults
@pytest.mark.allows("gateway", r"the database refuse[ds]")
@pytest.mark.allows("postgresql", r"gateway@mantle ")
@pytest.mark.allows("pgbouncer", r"terminating connection|server conn crashed|got packet 'E' from server")
def test_a_slow_session_that_refuses_is_ended_and_no_other(stack, bucket, rest, superuser):
    """PostgreSQL sends an error before its session is ready again. Meanwhile the pooler offers other sessions."""
    with through_pooler(stack) as refusing, through_pooler(stack) as sound, refusing.transaction():
        pid = refusing.execute("SELECT pg_backend_pid()").fetchone()[0]
        refusing.execute("SET default_transaction_isolation = 'serializable'")
        with sound.transaction():
            assert sound.execute("SELECT pg_backend_pid()").fetchone()[0] != pid
    # The pooler offers first what was given back last.
    sessions = superuser.execute("SELECT pid FROM pg_stat_activity WHERE usename = 'gateway' AND pid <> %s", (pid,))
    others = [stack.pgbouncer.process.pid(), stack.gateway.process.pid(), *(other for (other,) in sessions)]
    with last_on_one_processor(pid, others):
        rest.mkdir(bucket, "after")
    ended = sql.SQL("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {})").format(pid)
    wait_until(lambda: superuser.execute(ended).fetchone()[0], "the end of the session", READY_BOUND_S)
    wait_until(lambda: probe(stack)[0] == 200, "readiness", READY_BOUND_S)


def through_pooler(stack) -> psycopg.Connection:
    """A client of PgBouncer beside the gateway, with the same role."""
    where = {"host": "127.0.0.1", "port": stack.layout.pgbouncer_port, "dbname": "mantle", "user": "gateway"}
    return psycopg.connect(
        **where, password=secret.read(stack.layout, "gateway"), autocommit=True, prepare_threshold=None
    )


@contextmanager
def last_on_one_processor(pid: int, others: list[int]) -> Iterator[None]:
    """All of these processes get one processor, and the first goes on only when no other has anything to do."""
    processors = os.sched_getaffinity(0)
    threads = [int(thread.name) for of in (pid, *others) for thread in Path(f"/proc/{of}/task").iterdir()]
    for thread in threads:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread, {min(processors)})
    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    try:
        yield
    finally:
        for thread in threads:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, processors)


@restarts
@pytest.mark.timeout(300)
@pytest.mark.faults
@pytest.mark.usefixtures("whole")
def test_a_hostile_search_path_reaches_no_statement(stack, bucket, rest, s3, superuser):
    """Of gateways, IndexNodes and the worker, even where it is not pinned. What is used says so in the log."""
    superuser.execute(hostile_schema.script())
    try:
        with superuser.transaction(force_rollback=True):
            superuser.execute(
                f"SET LOCAL log_min_messages = error; SET LOCAL search_path = {hostile_schema.NAME}, pg_catalog"
            )
            assert superuser.execute("SELECT 1::pg_catalog.int8 = 2::pg_catalog.int8").fetchone() == (True,)
        for what in ("DATABASE mantle", *(f"ROLE {role} IN DATABASE mantle" for role in SERVICES)):
            superuser.execute(f"ALTER {what} SET search_path = {hostile_schema.NAME}, pg_catalog")
        reconnect(stack, superuser)
        change_everything(rest, s3, bucket)
        assert probe(stack)[0] == 200
        await_work_done(superuser)
    finally:
        superuser.execute("ALTER DATABASE mantle RESET search_path")
        pin(superuser)
        superuser.execute(f"DROP SCHEMA {hostile_schema.NAME} CASCADE")


@pytest.mark.timeout(300)
@pytest.mark.faults
@pytest.mark.usefixtures("whole")
@pytest.mark.allows("gateway", r"the database refuse[ds]|unexpected database error|could not sweep|held up")
@pytest.mark.allows("postgresql", r"gateway@mantle |canceling wait for synchronous replication")
def test_a_session_that_hides_warnings_changes_nothing(stack, bucket, rest, superuser, connect):
    """A warning says that the wait for a standby was cancelled. A session that does not send it would answer such a
    change as done (P18).
    """
    key = str(uuid.uuid4())
    with unpinned(superuser, "client_min_messages", "error"):
        stack.pgbouncer.process.stop()
        start_each((stack.pgbouncer,))
        made = lambda: rest.call("PUT", f"/v1/ns/{bucket}/dirs/before").status in (201, 409)
        wait_until(made, "a mkdir: without standbys nothing waits", READY_BOUND_S)
        try:
            absent_standby.demand(lambda: connect("postgres", "superuser"))
            refused = rest.call("PUT", f"/v1/ns/{bucket}/dirs/hidden", key=key)
            assert refused.status in (500, 503), refused
            wait_until(lambda: not_ready(stack, "client_min_messages"), "readiness to say why", READY_BOUND_S)
            (detail,) = named(superuser, "client_min_messages")
            assert "role gateway" in detail
        finally:
            absent_standby.lift(superuser)
        recorded = superuser.execute("SELECT count(*) FROM mantle.requests WHERE request_id = %s", (key,))
        assert recorded.fetchone() == (0,), "nothing was carried out"
    wait_until(lambda: probe(stack)[0] == 200, "readiness", READY_BOUND_S)
    assert rest.insist("PUT", f"/v1/ns/{bucket}/dirs/hidden", key=key).status == 201
