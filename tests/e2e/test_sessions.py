"""Sessions of people: the pooler has an administrator of its own, and the logs say who came."""

import uuid

import psycopg
import pytest

from stack import secret
from stack.poll import wait_until

pytestmark = pytest.mark.server

LOGGED_BOUND_S = 30.0


def session(stack, port: int, user: str, database: str, **more: str) -> psycopg.Connection:
    password = secret.read(stack.layout, user)
    return psycopg.connect(
        host="127.0.0.1", port=port, dbname=database, user=user, password=password, autocommit=True, **more
    )


@pytest.mark.allows("pgbouncer", "not allowed|no such user|admin access")
def test_the_pooler_has_an_administrator(stack) -> None:
    port = stack.layout.pgbouncer_port
    with session(stack, port, "pgbouncer", "pgbouncer") as console:
        pools = console.execute("SHOW POOLS").fetchall()
        assert ("mantle", "gateway") in {pool[:2] for pool in pools}
        console.execute("RELOAD")
    # Nobody else.
    with pytest.raises(psycopg.OperationalError):
        session(stack, port, "operator", "pgbouncer")


def test_the_logs_say_who_came(stack) -> None:
    """PostgreSQL's with the name of the program, PgBouncer's with or without TLS."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    of = lambda service: service.process.log_file.read_text(encoding="utf-8", errors="replace")
    attempt = "login attempt: db=mantle user=operator tls=no"
    before = of(stack.pgbouncer).count(attempt)
    session(stack, stack.layout.postgresql_port, "operator", "mantle", application_name=name).close()
    session(stack, stack.layout.pgbouncer_port, "operator", "mantle").close()
    authorized = f"connection authorized: user=operator database=mantle application_name={name}"
    wait_until(lambda: authorized in of(stack.postgresql), "the session in PostgreSQL's log", LOGGED_BOUND_S)
    wait_until(lambda: of(stack.pgbouncer).count(attempt) > before, "the session in PgBouncer's log", LOGGED_BOUND_S)
