"""The database's roles: what each may do, and may not."""

import uuid

import psycopg
import pytest

from stack import http
from stack.poll import wait_until

pytestmark = [pytest.mark.server, pytest.mark.allows("postgresql", "permission denied for")]

READS = ["mantle.meta", "mantle.namespaces"]

NOTICED_BOUND_S = 60


def refused(connection, statement: str) -> bool:
    try:
        connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


def test_an_analyst_reads_and_nothing_more(bucket, rest, sql):
    rest.mkdir(bucket, "a")
    for table in READS:
        assert sql.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > 0
    assert [row[0] for row in sql.execute("SELECT name FROM mantle.ls(%s, '')", (bucket,))] == ["a/"]
    for statement in [
        "DELETE FROM mantle.meta",
        "UPDATE mantle.meta SET owner = 0",
        "INSERT INTO mantle.namespaces SELECT * FROM mantle.namespaces",
        "SELECT mantle.allocate_ids('me', 1)",
        "SELECT mantle.raise_epoch(1, 1, 'x')",
        "SELECT mantle.compact(0)",
        "SELECT mantle.list_namespaces()",
        "SELECT mantle.grant_namespace('*', 'analyst')",
        "CREATE TABLE public.mine (a int)",
        "CREATE TABLE mantle.mine (a int)",
    ]:
        assert refused(sql, statement), statement


def test_an_analyst_sees_what_was_granted(bucket, rest, stack, sql):
    """After a revocation nothing is visible, even in an open session. Single grants leave other namespaces hidden."""
    other = f"t-{uuid.uuid4().hex[:12]}"
    rest.create_namespace(other)
    names = "SELECT array_agg(name) FROM mantle.namespaces WHERE name IN (%s, %s)"
    assert sorted(sql.execute(names, (bucket, other)).fetchone()[0]) == sorted([bucket, other])
    try:
        stack.postgresql.psql("SELECT mantle.revoke_namespace('*', 'analyst')")
        assert sql.execute(names, (bucket, other)).fetchone()[0] is None
        assert sql.execute("SELECT count(*) FROM mantle.meta").fetchone()[0] == 0
        stack.postgresql.psql(f"SELECT mantle.grant_namespace('{bucket}', 'analyst')")
        assert sql.execute(names, (bucket, other)).fetchone()[0] == [bucket]
    finally:
        stack.postgresql.psql(
            f"SELECT mantle.revoke_namespace('{bucket}', 'analyst'); SELECT mantle.grant_namespace('*', 'analyst')"
        )


@pytest.mark.parametrize("user", ["analyst", "gateway", "operator"])
def test_nobody_forges_the_change_stream(connect, user):
    with connect(user) as connection:
        assert refused(connection, "SELECT pg_logical_emit_message(true, 'mantle', 'x')")
        assert refused(connection, "SELECT pg_logical_emit_message(true, 'mantle', 'x'::bytea)")


def test_a_gateway_executes_and_touches_no_table(connect):
    with connect("gateway") as connection:
        for statement in [
            "SELECT FROM mantle.meta",
            "DELETE FROM mantle.meta",
            "UPDATE mantle.index_groups SET epoch = 9",
        ]:
            assert refused(connection, statement), statement
        assert refused(connection, "SELECT mantle.raise_epoch(1, 1, 'x')")
        first, last = connection.execute("SELECT first_id, last_id FROM mantle.allocate_ids('test', 10)").fetchone()
        assert last - first == 9


def test_an_index_reads_directories_only(connect):
    with connect("index") as connection:
        connection.execute("SELECT count(*) FROM mantle.directories").fetchone()
        for statement in ["DELETE FROM mantle.meta", "SELECT mantle.allocate_ids('test', 1)"]:
            assert refused(connection, statement), statement


def test_advisory_locks_of_others_do_not_block_creates(bucket, rest, sql):
    """The latches are in a lock class that SQL cannot reach."""
    sql.execute("BEGIN")
    ns = sql.execute("SELECT ns FROM mantle.namespaces WHERE name = %s", (bucket,)).fetchone()[0]
    sql.execute(
        "SELECT pg_advisory_xact_lock(%s), pg_advisory_xact_lock(0, %s::int), pg_advisory_xact_lock(1, %s::int)",
        (ns, ns, ns),
    )
    try:
        assert rest.mkdir(bucket, "a").status == 201
    finally:
        sql.execute("ROLLBACK")


@pytest.mark.allows("gateway", "roles may call pg_logical_emit_message: revoke it")
def test_readiness_notices_who_may_forge_the_change_stream(stack, superuser):
    functions = [row[0] for row in superuser.execute("SELECT f::text FROM mantle.message_functions() AS f")]
    given = list(zip(functions, ("PUBLIC", "analyst"), strict=True))

    def probe() -> tuple[int, str]:
        return http.call("GET", f"{stack.gateway.probe}/readyz")

    def forgers() -> float:
        return stack.gateway.metrics()["mantle_gateway_stream_forgers"]

    assert (probe()[0], forgers()) == (200, 0)
    try:
        for signature, role in given:
            superuser.execute(f"GRANT EXECUTE ON FUNCTION {signature} TO {role}")
        wait_until(lambda: forgers() == len(given), "the gateway to notice", NOTICED_BOUND_S)
        status, body = probe()
        assert status == 503
        assert all(f"{role} at " in body for _, role in given), body
    finally:
        for signature, role in given:
            superuser.execute(f"REVOKE EXECUTE ON FUNCTION {signature} FROM {role}")
    wait_until(lambda: probe()[0] == 200, "readiness to be mended", NOTICED_BOUND_S)
    assert forgers() == 0
