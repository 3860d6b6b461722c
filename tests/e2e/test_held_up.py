"""A transaction that somebody leaves open on the server, in any database, delays nothing without a bound or without a
message.

PostgreSQL makes a logical slot only after every open transaction has ended. So while one is forgotten, log, `mantle
status`, `check_cluster()` and the gateways' metrics name it, and the attempts are bounded. Old snapshots, resources
that are nearly used up, and certificates that expire soon are named before they do harm.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg
import pytest

from stack import secret
from stack.poll import wait_until
from tests.support.slots import drop_slot, slot_name

from .inspection import READY_BOUND_S, command_line
from .logs import COLOUR

pytestmark = [pytest.mark.server, pytest.mark.faults]
# "within 30 s"
NAMED_BOUND_S = 30.0
OTHER = "held_up_other"
# Of the stack's settings (patroni/config/mantle.conf).
LIMITED = 4


@dataclass
class Culprit:
    """What holds the server up: how it is named, and how it ends."""

    name: str
    end: Callable[[], None]


def connect_to(stack, database: str, user: str = "postgres", **more) -> psycopg.Connection:
    return psycopg.connect(
        host="127.0.0.1",
        port=stack.layout.postgresql_port,
        dbname=database,
        user=user,
        password=secret.read(stack.layout, "superuser" if user == "postgres" else user),
        autocommit=True,
        **more,
    )


@pytest.fixture
def other_database(superuser) -> Iterator[str]:
    """A database that has nothing to do with Mantle."""
    superuser.execute(f"CREATE DATABASE {OTHER}")
    yield OTHER
    superuser.execute(f"DROP DATABASE {OTHER} WITH (FORCE)")


@pytest.fixture
def forgotten(stack, other_database) -> Iterator[Callable[[str], Culprit]]:
    """Leaves a transaction open in another database, prepared or in a session."""
    with ExitStack() as undone:

        def leave(kind: str) -> Culprit:
            session = undone.enter_context(connect_to(stack, other_database))
            session.execute("BEGIN")
            session.execute("SELECT pg_current_xact_id()")
            if kind == "session":
                return Culprit(f"process {session.info.backend_pid} in", lambda: session.execute("ROLLBACK"))
            gid = f"forgotten-{uuid.uuid4().hex[:8]}"
            session.execute(f"PREPARE TRANSACTION '{gid}'")

            def end() -> None:
                if session.execute("SELECT FROM pg_prepared_xacts WHERE gid = %s", (gid,)).fetchone() is not None:
                    session.execute(f"ROLLBACK PREPARED '{gid}'")

            undone.callback(end)
            return Culprit(gid, end)

        yield leave


def problems(superuser) -> list[tuple[str, str]]:
    return superuser.execute("SELECT problem, detail FROM mantle.check_cluster()").fetchall()


def shown(stack, kind: str) -> list[str]:
    """The series of problems of a kind that the gateway shows."""
    return [
        name
        for name, value in stack.gateway.metrics().items()
        if name.startswith("mantle_gateway_server_problem{") and f'problem="{kind}"' in name and value == 1
    ]


def logged(stack, text: str) -> bool:
    """Whether an IndexNode has complained of this."""
    logs = stack.layout.logs.glob("indexnode*.log")
    lines = (line for log in logs for line in COLOUR.sub("", log.read_text("utf-8", "replace")).splitlines())
    return any(text in line and "WARN" in line for line in lines)


def status_names(stack, text: str) -> bool:
    told = command_line(stack, "--json", "status", "--seconds", "0").stdout
    return bool(told) and any(text in problem for problem in json.loads(told)["problems"])


def rebuilds(stack) -> float:
    return sum(node.metric("mantle_index_rebuilds_completed_total") or 0 for node in stack.indexnodes.values())


@pytest.mark.usefixtures("whole")
@pytest.mark.allows(
    "indexnode",
    r"slot cannot be made|terminating connection due to admin|replication slot .* is active|rebuilding the index",
)
@pytest.mark.allows(
    "postgresql", r"replication slot .* is active|canceling statement due to lock timeout|superuser process"
)
@pytest.mark.allows("gateway", r"held up, or runs out")
@pytest.mark.parametrize("kind", ["prepared", "session"])
def test_whoever_keeps_a_slot_from_being_made_is_named(stack, bucket, rest, superuser, forgotten, kind):
    rest.mkdir(bucket, "before")
    culprit, before = forgotten(kind), rebuilds(stack)
    wait_until(lambda: drop_slot(superuser), "the slot to be dropped", READY_BOUND_S)
    wait_until(lambda: logged(stack, culprit.name), f"a log that names {culprit.name}", NAMED_BOUND_S)
    wait_until(
        lambda: any(culprit.name in series for series in shown(stack, "slot_waits")),
        "a metric that an alert can name",
        NAMED_BOUND_S,
    )
    assert status_names(stack, culprit.name), "mantle status"
    wait_until(
        lambda: any(kind == "slot_waits" and culprit.name in detail for kind, detail in problems(superuser)),
        "check_cluster",
        NAMED_BOUND_S,
    )
    # The index that there is goes on.
    assert rest.exists(bucket, "before/")
    # The attempt ends, and a longer one begins: nothing waits on the server for ever.
    waiting = "SELECT a.pid FROM pg_stat_activity a WHERE a.backend_type = 'walsender' AND a.wait_event_type = 'Lock'"
    first = superuser.execute(waiting).fetchone()
    wait_until(
        lambda: superuser.execute(waiting).fetchone() not in (None, first), "another attempt at the slot", READY_BOUND_S
    )
    assert rebuilds(stack) == before
    culprit.end()
    wait_until(lambda: rebuilds(stack) > before, "the index to be rebuilt", READY_BOUND_S)
    rest.mkdir(bucket, "after")
    assert rest.exists(bucket, "before/") and rest.exists(bucket, "after/")
    wait_until(lambda: not shown(stack, "slot_waits"), "the metric to end", NAMED_BOUND_S)


@contextmanager
def settings(superuser, **values) -> Iterator[None]:
    """Changes settings of the server for a while."""
    for name, value in values.items():
        superuser.execute(f"ALTER SYSTEM SET mantle.{name} = {value}")
    superuser.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        for name in values:
            superuser.execute(f"ALTER SYSTEM RESET mantle.{name}")
        superuser.execute("SELECT pg_reload_conf()")


def await_named(stack, superuser, kind: str, name: str) -> None:
    wait_until(
        lambda: any(name in series for series in shown(stack, kind)), f"a metric that names {name}", NAMED_BOUND_S
    )
    assert any(problem == kind and name in detail for problem, detail in problems(superuser)), "check_cluster"


def await_silence(stack, kind: str) -> None:
    wait_until(lambda: not shown(stack, kind), "the metric to end", NAMED_BOUND_S)


@pytest.mark.allows("gateway", r"held up, or runs out")
@pytest.mark.parametrize(("kind", "problem"), [("prepared", "prepared_transaction"), ("session", "open_transaction")])
def test_an_old_transaction_is_named_before_it_hurts(stack, superuser, forgotten, kind, problem):
    with settings(superuser, prepared_age_max_s=1, transaction_age_max_s=1):
        culprit = forgotten(kind)
        await_named(stack, superuser, problem, culprit.name)
        culprit.end()
        wait_until(
            lambda: not any(culprit.name in series for series in shown(stack, problem)), "its end", NAMED_BOUND_S
        )


@pytest.mark.allows("gateway", r"held up, or runs out")
def test_an_old_snapshot_is_named_by_its_age_in_transactions(stack, superuser, other_database):
    with connect_to(stack, other_database) as reader, settings(superuser, snapshot_age_max_xids=20):
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        # A slot keeps a snapshot too: of the catalogs.
        superuser.execute("SELECT pg_create_physical_replication_slot('held_up_unread', true)")
        try:
            for _ in range(30):
                superuser.execute("SELECT pg_current_xact_id()")
            await_named(stack, superuser, "open_transaction", f"process {reader.info.backend_pid} in")
            reader.execute("ROLLBACK")
        finally:
            superuser.execute("SELECT pg_drop_replication_slot('held_up_unread')")
    await_silence(stack, "open_transaction")


@pytest.fixture
def limited(superuser) -> Iterator[str]:
    """A role that may log in a few times."""
    role = f"limited_{uuid.uuid4().hex[:8]}"
    superuser.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'limited' CONNECTION LIMIT {LIMITED}")
    superuser.execute(f"GRANT CONNECT ON DATABASE mantle TO {role}")
    yield role
    superuser.execute(f"REVOKE CONNECT ON DATABASE mantle FROM {role}")
    superuser.execute(f"DROP ROLE {role}")


@pytest.mark.allows("gateway", r"held up, or runs out")
@pytest.mark.allows("postgresql", r"too many connections for role")
def test_used_up_connections_are_named(stack, superuser, limited):
    place = {"host": "127.0.0.1", "port": stack.layout.postgresql_port, "dbname": "mantle", "password": "limited"}
    with ExitStack() as sessions:
        for _ in range(LIMITED):
            sessions.enter_context(psycopg.connect(user=limited, **place))
        with pytest.raises(psycopg.OperationalError, match="too many connections"):
            psycopg.connect(user=limited, **place)
        await_named(stack, superuser, "connections", f"CONNECTION LIMIT of role {limited}")
        superuser.execute(f"ALTER ROLE {limited} NOLOGIN")
        await_named(stack, superuser, "login", f"role {limited}")
    with settings(superuser, connections_max_percent=1):
        await_named(stack, superuser, "connections", "max_connections")
    await_silence(stack, "connections")
    await_silence(stack, "login")


@pytest.mark.allows("gateway", r"held up, or runs out")
@pytest.mark.allows("postgresql", r"all replication slots are in use")
def test_used_up_slots_are_named(stack, superuser):
    most = int(superuser.execute("SHOW max_replication_slots").fetchone()[0])
    names = [f"held_up_{number}" for number in range(most)]
    made = []
    try:
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            for name in names:
                superuser.execute("SELECT pg_create_physical_replication_slot(%s)", (name,))
                made.append(name)
        await_named(stack, superuser, "slots", "max_replication_slots")
        told = superuser.execute("SELECT detail FROM mantle.server_problems() WHERE problem = 'slots'").fetchone()[0]
        assert made and all(name in told for name in made), "those that nobody reads"
        assert slot_name(superuser) not in told
    finally:
        for name in made:
            superuser.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    await_silence(stack, "slots")


@pytest.mark.allows("gateway", r"held up, or runs out")
@pytest.mark.allows("postgresql", r"number of requested standby connections exceeds .?max_wal_senders")
def test_used_up_walsenders_are_named(stack, superuser):
    with ExitStack() as senders:
        with pytest.raises(psycopg.OperationalError, match="max_wal_senders"):
            while True:
                senders.enter_context(connect_to(stack, "mantle", replication="database"))
        await_named(stack, superuser, "wal_senders", "max_wal_senders")
    await_silence(stack, "wal_senders")


@contextmanager
def tls_of_the_server(superuser, days: int) -> Iterator[Callable[[int], None]]:
    """The server speaks TLS by a certificate that lives for so many days; the function writes another one."""

    def write(days: int) -> None:
        # By the server's account, into its data folder.
        subject = "-subj /CN=held-up -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc"
        command = f"openssl req -x509 {subject} -days {days} -keyout held_up.key -out held_up.crt"
        superuser.execute(f"COPY (SELECT) TO PROGRAM '{command}'")

    write(days)
    values = {"ssl_cert_file": "held_up.crt", "ssl_key_file": "held_up.key", "ssl": "on"}
    for name, value in values.items():
        superuser.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    superuser.execute("SELECT pg_reload_conf()")
    try:
        yield write
    finally:
        for name in values:
            superuser.execute(f"ALTER SYSTEM RESET {name}")
        superuser.execute("SELECT pg_reload_conf()")
        superuser.execute("COPY (SELECT) TO PROGRAM 'rm held_up.key held_up.crt'")


@pytest.mark.allows("gateway", r"held up, or runs out")
def test_a_certificate_that_expires_soon_is_named(stack, superuser):
    if superuser.execute("SHOW ssl_library").fetchone() == ("",):
        pytest.skip("this server was built without TLS")
    told = "SELECT detail FROM mantle.server_problems() WHERE problem = 'certificate' AND culprit = 'ssl_cert_file'"
    with tls_of_the_server(superuser, days=10) as write:
        await_named(stack, superuser, "certificate", "ssl_cert_file")
        assert re.search(r"expires at .*, in (9\.9|10\.0) days$", superuser.execute(told).fetchone()[0])
        with settings(superuser, certificate_days_min=9):
            await_silence(stack, "certificate")
        write(400)
        await_named(stack, superuser, "certificate", "ssl_cert_file")
        assert "is not loaded: SELECT pg_reload_conf()" in superuser.execute(told).fetchone()[0]
        superuser.execute("SELECT pg_reload_conf()")
        await_silence(stack, "certificate")
        superuser.execute("COPY (SELECT 'no certificate') TO PROGRAM 'cat > held_up.crt'")
        await_named(stack, superuser, "certificate", "ssl_cert_file")
        assert "no certificate that can be read" in superuser.execute(told).fetchone()[0]
        write(400)
    await_silence(stack, "certificate")


def test_nothing_is_named_on_a_server_in_order(superuser):
    assert superuser.execute("SELECT * FROM mantle.server_problems()").fetchall() == []
