"""Every call is answered in time, whatever holds it up: a lock on a table, a pooler that is paused or frozen, a server
that is frozen. Probes answer meanwhile. Afterwards everything works, and a request id gives the outcome of its request.

The server gives up before the commit, and the gateway stops waiting without cancelling a change (P18).
"""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import psycopg
import pytest

from stack import http, secret
from stack.layout import REPLICAS
from stack.poll import wait_until
from stack.process import children
from tests.support.rest import Answer, Rest

from .another_gateway import OFFSET, LimitedGateway, another_gateway, running
from .clients import connect_as
from .every_verb import EveryVerb, Keyed, Told
from .inspection import READY_BOUND_S, frozen
from .volume_gateway import volume_folder, volume_gateway

# The gateway's limits in these tests; by default they are longer.
ANSWER_WAIT_MS = 6000
LIMITS = {"answer_wait_ms": ANSWER_WAIT_MS, "connection_wait_ms": 1500, "await_timeout_ms": 2000}
# How late an answer may come on a busy machine.
LATE_S = 4.0
BOUND_S = ANSWER_WAIT_MS / 1000 + LATE_S
PROBE_BOUND_S = 5.0
SMALL_TABLES = (
    "SELECT string_agg(format('%I.%I', schemaname, tablename), ', ' ORDER BY tablename) FROM pg_tables"
    " WHERE schemaname = 'mantle' AND tablename <> 'meta'"
)
POOLER = "pgbouncer"


@contextmanager
def locked(stack, tables: str) -> Iterator[None]:
    """As an ALTER TABLE that waits for something, or a DBA's LOCK TABLE."""
    with connect_as(stack, "postgres", "superuser") as session, session.transaction():
        session.execute(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE")
        yield


@contextmanager
def meta_locked(stack) -> Iterator[None]:
    with locked(stack, "mantle.meta"):
        yield


@contextmanager
def small_tables_locked(stack) -> Iterator[None]:
    with connect_as(stack, "postgres", "superuser") as session:
        (tables,) = session.execute(SMALL_TABLES).fetchone()
    with locked(stack, tables):
        yield


@contextmanager
def pooler_paused(stack) -> Iterator[None]:
    with psycopg.connect(
        host="127.0.0.1",
        port=stack.layout.pgbouncer_port,
        dbname=POOLER,
        user=POOLER,
        password=secret.read(stack.layout, POOLER),
        autocommit=True,
    ) as console:
        console.execute("PAUSE")
        try:
            yield
        finally:
            console.execute("RESUME")


@contextmanager
def pooler_frozen(stack) -> Iterator[None]:
    with frozen(stack.pgbouncer.process.pid()):
        yield


@contextmanager
def server_frozen(stack) -> Iterator[None]:
    """The postmaster first, so that it starts no process meanwhile."""
    postmaster = stack.postgresql.process.pid()
    with ExitStack() as still:
        still.enter_context(frozen(postmaster))
        for child in children(postmaster):
            # A session may end by itself before its turn.
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGSTOP)
                still.callback(continued, child)
        yield


def continued(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


# What holds the calls up, and whether PostgreSQL itself still gives up before the commit.
HOLDS = {
    "meta locked": (meta_locked, True),
    "small tables locked": (small_tables_locked, True),
    "pooler paused": (pooler_paused, False),
    "pooler frozen": (pooler_frozen, False),
    "server frozen": (server_frozen, False),
}

# A gateway with a volume also leases segments, and asks what was freed.
CASES = [*((hold, False) for hold in HOLDS), ("small tables locked", True), ("pooler frozen", True)]


@contextmanager
def limited_gateway(stack, has_volume: bool) -> Iterator[LimitedGateway]:
    if not has_volume:
        with another_gateway(stack, **LIMITS) as gateway:
            yield gateway
        return
    with volume_folder(stack) as folder, volume_gateway(stack, folder=folder, **LIMITS) as gateway:
        yield gateway


def assert_in_time(answers: dict[str, Told]) -> None:
    late = {name: told for name, told in answers.items() if told.seconds > BOUND_S or told.status == 0}
    assert late == {}
    wrong = {name: told for name, told in answers.items() if told.status not in (200, 201, 202, 204, 404, 503)}
    assert wrong == {}


def assert_probes_answer(gateways, indexnodes) -> None:
    for probe in [gateway.probe for gateway in gateways] + [node.probe for node in indexnodes]:
        assert http.call("GET", f"{probe}/livez", timeout_s=PROBE_BOUND_S)[0] == 200, probe
        assert http.call("GET", f"{probe}/readyz", timeout_s=PROBE_BOUND_S)[0] in (200, 503), probe
        assert http.call("GET", f"{probe}/metrics", timeout_s=PROBE_BOUND_S)[0] == 200, probe


def assert_outcomes(rest: Rest, mutations: dict[str, Keyed]) -> None:
    """Each request is carried out once: its id gives its outcome, and gives it again."""
    for name, mutation in mutations.items():
        assert outcome(mutation.insist(rest)) == outcome(mutation.insist(rest)), name


def outcome(answer: Answer) -> tuple[int, object]:
    """The status and the body, of which an operation in the background has only the constant fields."""
    if answer.status != 202:
        return answer.status, answer.body
    return answer.status, {field: answer.body[field] for field in ("id", "kind", "directory_id", "created")}


@pytest.mark.faults
@pytest.mark.usefixtures("whole")
@pytest.mark.allows("gateway", r"the database is unavailable|the outcome is unknown|cannot answer in time")
@pytest.mark.allows("gateway", r"the volume cannot be looked after")
@pytest.mark.allows(
    "pgbouncer", r"query_wait_timeout|client unexpected eof|client_login_timeout|pgbouncer cannot connect"
)
@pytest.mark.allows(
    "postgresql", r"canceling statement due to lock timeout|expected SASL response|statement:|still waiting"
)
@pytest.mark.allows("indexnode", r"source::|membership::|rename lock expired|abort record")
@pytest.mark.parametrize(("hold", "has_volume"), CASES, ids=[hold + ", a volume" * has for hold, has in CASES])
def test_every_verb_answers_in_time(stack, bucket, rest, s3, hold, has_volume):
    block, gives_up = HOLDS[hold]
    verbs = EveryVerb(rest, s3, bucket)
    mutations = verbs.mutations()
    with limited_gateway(stack, has_volume) as gateway:
        client = Rest("127.0.0.1", gateway.port, rest.token)
        # The gateway knows the group and has ids by now.
        client.mkdir(bucket, "warm")
        with block(stack):
            answers = verbs.call_all(client, gateway.s3(stack), mutations)
            assert_probes_answer([gateway, stack.gateway], [stack.indexnodes[replica] for replica in REPLICAS])
        assert_in_time(answers)
        if gives_up:
            unknown = {name for name in mutations if answers[name].code == "unknown_outcome"}
            assert unknown == set(), "the server gave up before the commit"
        held = [name for name, told in answers.items() if told.status == 503]
        assert len(held) > len(answers) // 4, "it held nothing up"
        wait_until(gateway.is_ready, "the gateway to be ready", READY_BOUND_S)
        assert_outcomes(client, mutations)
    acknowledged = verbs.of_s3(s3)
    assert acknowledged["GetObject"]() == b"bytes"
    if answers["PutObject"].status == 200 and not has_volume:
        assert s3.get_object(Bucket=bucket, Key="objects/put")["Body"].read() == b"bytes"
    s3.put_object(Bucket=bucket, Key="after", Body=b"after")
    assert s3.get_object(Bucket=bucket, Key="after")["Body"].read() == b"after"
    rest.mkdir(bucket, "after-all")
    assert rest.exists(bucket, "there/made/") and rest.exists(bucket, "there/moved/")


def statements_waiting(superuser) -> int:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'gateway' AND wait_event_type = 'Lock'"
    return superuser.execute(waiting).fetchone()[0]


@pytest.mark.faults
@pytest.mark.allows("gateway", r"the database is unavailable|worker does not work")
@pytest.mark.allows("postgresql", r"canceling statement due to lock timeout|connection to client lost")
def test_a_read_that_nobody_waits_for_leaves_the_server(stack, bucket, rest, superuser):
    """Otherwise each client that asks again would add a session that waits."""
    with another_gateway(stack, **LIMITS) as gateway:
        client = Rest("127.0.0.1", gateway.port, rest.token)
        assert client.call("GET", f"/v1/ns/{bucket}/usage/").status == 200
        with meta_locked(stack):
            assert client.call("GET", f"/v1/ns/{bucket}/usage/").code == "database_unavailable"
            wait_until(lambda: statements_waiting(superuser) == 0, "the statement's end", READY_BOUND_S)
        assert client.call("GET", f"/v1/ns/{bucket}/usage/").status == 200


@pytest.mark.faults
@pytest.mark.usefixtures("whole")
@pytest.mark.allows("gateway", r"the database is unavailable|the outcome is unknown")
def test_what_was_not_sent_is_said_not_to_be(stack, bucket, rest):
    """Behind a frozen pooler a change that was sent may still happen; one that waited for its turn does not."""
    port = stack.layout.port_base + OFFSET
    gateway = LimitedGateway(stack.layout, stack.account, "gateway-beside", port=port, batch_elements_max=2)
    gateway.limits = LIMITS
    with running(gateway):
        client = Rest("127.0.0.1", gateway.port, rest.token)
        client.mkdir(bucket, "warm")
        mkdirs = {
            name: Keyed("PUT", f"/v1/ns/{bucket}/dirs/{name}", None, str(uuid.uuid4()))
            for name in (f"made-{number}" for number in range(60))
        }
        # Without a request id the gateway looks for no recorded answer first: the change itself is what waits.
        unnamed = lambda keyed: client.twin().call(keyed.method, keyed.target)
        with pooler_frozen(stack):
            answers = call_each(mkdirs, unnamed)
        assert {answer.status for answer in answers.values()} == {503}
        codes = {answer.code for answer in answers.values()}
        assert codes == {"unknown_outcome", "database_unavailable"}
        wait_until(gateway.is_ready, "the gateway to be ready", READY_BOUND_S)
        unsent = {name for name, answer in answers.items() if answer.code == "database_unavailable"}
        # A later change of the same directory: what was sent before has happened, or never will.
        for name, answer in answers.items():
            if name not in unsent:
                again = client.insist("PUT", f"/v1/ns/{bucket}/dirs/{name}", key=answer.body["request_id"])
                assert again.status == 201
        there = set(client.list(bucket, ""))
        assert there == {f"{name}/" for name in mkdirs.keys() - unsent} | {"warm/"}


def call_each(calls: dict[str, Keyed], call: Callable) -> dict:
    with ThreadPoolExecutor(len(calls)) as pool:
        running = {name: pool.submit(call, keyed) for name, keyed in calls.items()}
        return {name: future.result() for name, future in running.items()}


@pytest.mark.allows("postgresql", r"canceling statement due to lock timeout")
def test_a_lock_that_ends_in_time_costs_no_answer(stack, bucket, rest):
    """As a short ALTER TABLE: who waits is served when it ends."""
    with ThreadPoolExecutor(1) as pool:
        with meta_locked(stack):
            begun = time.monotonic()
            waiting = pool.submit(rest.twin().call, "PUT", f"/v1/ns/{bucket}/dirs/waited")
            wait_until(lambda: time.monotonic() - begun > 0.5, "the change to wait", READY_BOUND_S)
        assert waiting.result().status == 201
    assert rest.exists(bucket, "waited/")
