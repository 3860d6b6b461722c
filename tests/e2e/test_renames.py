"""Crossing directory renames, and renames whose leader, gateway or PostgreSQL is killed at each step: no cycle, nothing
lost or doubled, no lock left (P20, P21, P23, P24).
"""

import os
import random
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial

import psycopg
import pytest

from stack.poll import wait_until
from stack.process import children
from tests.support.rest import Refused, Rest
from tests.support.slots import slot_name

from .clients import connect_as
from .inspection import READY_BOUND_S, frozen, ids, leader, locks, replicas, walk

# Refusals of a move that another move preceded.
CROSSED = {"not_found", "already_exists", "rename_loop", "source_changed", "locked", "not_empty"}
ROUNDS = 120
CHAINS, DEPTH, CLIENTS, MOVES = 12, 6, 32, 12


def crossing(rest: Rest, ns: str, src: str, dst: str) -> bool:
    """Moves a directory unless another client moved it first."""
    try:
        rest.rename(ns, src, dst)
    except Refused as refused:
        assert refused.code in CROSSED, refused
        return False
    return True


def await_no_lock(stack) -> None:
    wait_until(lambda: locks(stack) == 0, "the end of every lock", READY_BOUND_S)


def assert_sound(stack, rest: Rest, superuser: psycopg.Connection, ns: str, before: list[int]) -> None:
    """Every directory exists once and is reachable from the root. A cycle is not reachable."""
    assert ids(superuser, ns) == before
    assert len(walk(rest, ns)) == len(before)
    await_no_lock(stack)


def test_two_clients_move_two_directories_into_each_other(stack, bucket, rest, superuser):
    """/a under /b and /b under /a, repeatedly: one of two that meet is refused."""
    for name in "ab":
        rest.mkdir(bucket, name)
        rest.mkdir(bucket, f"{name}/inside")
    before = ids(superuser, bucket)

    def move(client: Rest, mine: str, other: str) -> int:
        done = 0
        for _ in range(ROUNDS):
            if crossing(client, bucket, f"{mine}/", f"{other}/{mine}/"):
                done += 1
                assert client.exists(bucket, f"{other}/{mine}/inside/")
                client.rename(bucket, f"{other}/{mine}/", f"{mine}/")
        return done

    with ThreadPoolExecutor(2) as pool:
        moved = [pool.submit(move, rest.twin(), *pair) for pair in (("a", "b"), ("b", "a"))]
        counts = [client.result() for client in moved]
    assert all(counts), f"one of them never moved: {counts}"
    assert_sound(stack, rest, superuser, bucket, before)
    assert walk(rest, bucket) == {"a/", "a/inside/", "b/", "b/inside/"}


def test_deep_chains_cross_from_many_clients(stack, bucket, rest, superuser):
    """Any directory below any other, from 32 clients at once."""
    for chain in range(CHAINS):
        for depth in range(DEPTH):  # one by one: implicit parents disappear when they become empty
            rest.mkdir(bucket, "/".join(f"c{chain}-{level}" for level in range(depth + 1)))
    before = ids(superuser, bucket)

    def descend(client: Rest, choose: random.Random) -> str:
        """A random directory, as it was a moment ago."""
        path = ""
        for _ in range(choose.randrange(1, 2 * DEPTH)):
            try:
                below = [name for name in client.list(bucket, path) if name.endswith("/")]
            except Refused:
                break
            if not below:
                break
            path += choose.choice(below)
        return path

    def move(number: int) -> int:
        client, choose = rest.twin(), random.Random(number)
        done = 0
        for _ in range(MOVES):
            src, below = descend(client, choose), descend(client, choose)
            name = src.rstrip("/").rpartition("/")[2]
            done += bool(src) and crossing(client, bucket, src, f"{below}{name}/")
        return done

    with ThreadPoolExecutor(CLIENTS) as pool:
        counts = list(pool.map(move, range(CLIENTS)))
    assert sum(counts) > CLIENTS, f"hardly anything moved: {counts}"
    assert_sound(stack, rest, superuser, bucket, before)


# The lock that a test holds to make renames wait in PostgreSQL, and the triggers that wait for it. They are on the rows
# that a rename writes, and deferred: everything is written, the message too.
GATE = 0x4D54_0002
HELD = """
    CREATE SCHEMA held;
    CREATE FUNCTION held.wait() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = 0 AS $$
    BEGIN
        IF EXISTS (SELECT FROM held.step s WHERE s.name = TG_ARGV[0]) THEN
            PERFORM pg_advisory_xact_lock_shared({gate});
        END IF;
        RETURN coalesce(NEW, OLD);
    END $$;
    CREATE TABLE held.step AS SELECT '' AS name;
    CREATE TRIGGER held_claimed BEFORE INSERT ON mantle.requests FOR EACH ROW EXECUTE FUNCTION held.wait('claimed');
    CREATE TRIGGER held_taken AFTER DELETE ON mantle.meta
        FOR EACH ROW WHEN (OLD.explicit IS NOT NULL) EXECUTE FUNCTION held.wait('taken out');
    CREATE TRIGGER held_put AFTER INSERT ON mantle.meta
        FOR EACH ROW WHEN (NEW.explicit IS NOT NULL) EXECUTE FUNCTION held.wait('put in');
    -- On one node the entry is moved by one update.
    CREATE TRIGGER held_moved AFTER UPDATE ON mantle.meta FOR EACH ROW
        WHEN (NEW.explicit IS NOT NULL AND (OLD.pid <> NEW.pid OR OLD.name <> NEW.name))
        EXECUTE FUNCTION held.wait('taken out');
    CREATE TRIGGER held_moved_too AFTER UPDATE ON mantle.meta FOR EACH ROW
        WHEN (NEW.explicit IS NOT NULL AND (OLD.pid <> NEW.pid OR OLD.name <> NEW.name))
        EXECUTE FUNCTION held.wait('put in');
    CREATE CONSTRAINT TRIGGER held_written AFTER INSERT ON mantle.requests DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION held.wait('written');
"""
UNHELD = """
    DROP TRIGGER held_claimed ON mantle.requests; DROP TRIGGER held_written ON mantle.requests;
    DROP TRIGGER held_taken ON mantle.meta; DROP TRIGGER held_put ON mantle.meta;
    DROP TRIGGER held_moved ON mantle.meta; DROP TRIGGER held_moved_too ON mantle.meta; DROP SCHEMA held CASCADE;
"""
IN_POSTGRESQL = ("claimed", "taken out", "put in", "written")


class Steps:
    """Holds a rename at a step of its protocol. `connect` opens a superuser's session; a test may kill PostgreSQL
    meanwhile.
    """

    def __init__(self, stack, connect: Callable[[], psycopg.Connection]):
        self.stack, self.connect = stack, connect

    def asked(self) -> float:
        """How often the gateway has asked for recorded answers."""
        return self.stack.gateway.metrics().get('mantle_gateway_sql_seconds_count{statement="replay"}', 0)

    @contextmanager
    def held_at(self, step: str, begin: Callable[[], Future]) -> Iterator[Future]:
        """Starts a rename, and holds it at the step while the block runs."""
        holds = {"prepared": self._prepared, "committed": self._committed}.get(step, self._in_postgresql)
        with closing(self.connect()) as session, holds(session, step) as (started, is_held):
            moved = started(begin)
            wait_until(
                is_held,
                f"the rename at `{step}`",
                READY_BOUND_S,
                lambda: str(moved.exception()) if moved.done() else None,
            )
            yield moved

    @contextmanager
    def _prepared(self, _session: psycopg.Connection, _step: str):
        """The index has locked it; PostgreSQL knows nothing. The gateway first asks PostgreSQL for a recorded answer.
        The leader then keeps the prepare waiting, until no connection to PostgreSQL works any more.
        """

        pooler = self.stack.pgbouncer.process.pid()

        def started(begin: Callable[[], Future]) -> Future:
            with frozen(self.stack.indexnodes[leader(self.stack)].process.pid()):
                before = self.asked()
                moved = begin()
                wait_until(lambda: self.asked() > before, "the question before", READY_BOUND_S)
                os.kill(pooler, signal.SIGSTOP)
            return moved

        try:
            yield started, lambda: locks(self.stack) == 1
        finally:
            os.kill(pooler, signal.SIGCONT)

    @contextmanager
    def _in_postgresql(self, session: psycopg.Connection, step: str):
        """Waits at a row that the rename writes."""
        session.execute("UPDATE held.step SET name = %s", (step,))
        session.execute("SELECT pg_advisory_lock(%s)", (GATE,))
        waiting = "SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objid = %s AND NOT l.granted"
        yield lambda begin: begin(), lambda: session.execute(waiting, (GATE,)).fetchone() is not None

    @contextmanager
    def _committed(self, session: psycopg.Connection, _step: str):
        """Its message is in the WAL, which no walsender sends."""
        sender = session.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (slot_name(session),)
        ).fetchone()[0]
        done = "SELECT count(*) FROM mantle.requests WHERE verb = 'rename_directory'"
        before = session.execute(done).fetchone()
        with frozen(sender):
            yield lambda begin: begin(), lambda: session.execute(done).fetchone() > before


@pytest.fixture(scope="module")
def steps(stack) -> Iterator[Steps]:
    connect = partial(connect_as, stack, "postgres", "superuser")
    with connect() as session:
        session.execute(HELD.format(gate=GATE))
    yield Steps(stack, connect)
    with connect() as session:
        session.execute(UNHELD)


def kill_leader(stack) -> Callable[[], None]:
    node = stack.indexnodes[leader(stack)]
    node.process.kill()

    def restart() -> None:
        node.start()
        node.await_ready(READY_BOUND_S)

    return restart


def kill_gateway(stack) -> Callable[[], None]:
    stack.gateway.process.kill()

    def restart() -> None:
        stack.gateway.start()
        stack.gateway.await_ready(READY_BOUND_S)

    return restart


def kill_postgresql(stack) -> Callable[[], None]:
    postmaster = stack.postgresql.process.pid()
    # The postmaster first, since it would restart a killed backend. A stopped process does not end with the postmaster.
    for process in (postmaster, *children(postmaster)):
        os.kill(process, signal.SIGKILL)
    stack.postgresql.process.kill()
    return stack.postgresql.start


KILLS = {"leader": kill_leader, "gateway": kill_gateway, "postgresql": kill_postgresql}


@pytest.mark.faults
@pytest.mark.parametrize("step", ["prepared", *IN_POSTGRESQL, "committed"])
@pytest.mark.parametrize("victim", KILLS)
def test_a_rename_survives_kill_9_at_each_step(stack, bucket, rest, steps, victim, step):
    """The client retries with one key, and its directory is moved once, whichever process is killed."""
    for path in ("old", "old/directory", "old/directory/inside", "new"):
        rest.mkdir(bucket, path)
    await_no_lock(stack)
    # Not to a longer path: that would ask PostgreSQL once more before it is prepared.
    source, destination = "old/directory/", "new/place/"
    with ThreadPoolExecutor(1) as pool:
        with steps.held_at(step, lambda: pool.submit(rest.twin().rename, bucket, source, destination)) as moved:
            restart = KILLS[victim](stack)
        restart()
        moved.result()
    assert rest.exists(bucket, "new/place/inside/") and not rest.exists(bucket, source)
    await_no_lock(stack)
    # The directory is not locked for the next rename, and the leader follows PostgreSQL again.
    rest.rename(bucket, destination, source)
    assert walk(rest, bucket) == {"new/", "old/", "old/directory/", "old/directory/inside/"}
    wait_until(lambda: len(replicas(stack)) == len(stack.indexnodes), "every replica", READY_BOUND_S)


def test_a_retry_is_not_refused_while_its_first_attempt_may_commit(stack, bucket, rest, steps, superuser):
    """Its path has led elsewhere since the first attempt, which nobody sees yet (P19)."""
    rest.mkdir(bucket, "old")
    mkdir = partial(rest.twin().mkdir, bucket, "old/directory", key=str(uuid.uuid4()))
    awaits = "SELECT FROM pg_stat_activity WHERE wait_event = 'transactionid' AND query LIKE '%mantle.replay(%'"
    with ThreadPoolExecutor(2) as pool:
        with steps.held_at("written", lambda: pool.submit(mkdir)) as first:
            superuser.execute("UPDATE held.step SET name = ''")
            rest.rename(bucket, "old/", "new/")
            retry = pool.submit(mkdir)
            wait_until(
                lambda: retry.done() or superuser.execute(awaits).fetchone() is not None,
                "a retry that waits, or is refused",
                READY_BOUND_S,
            )
        assert (retry.result().status, retry.result().body) == (first.result().status, first.result().body)
    assert walk(rest, bucket) == {"new/", "new/directory/"}


@pytest.mark.allows("postgresql", "terminating connection due to administrator command")
def test_locks_are_released_through_one_session(stack, bucket, rest, s3, superuser):
    """A session is opened for the first abort record, and again when it has ended. It does not stay for long."""
    for top in "ab":
        s3.put_object(Bucket=bucket, Key=f"{top}/{'d/' * 99}object", Body=b"1")
    recorders = "SELECT pid FROM pg_stat_activity WHERE usename = 'index' AND query LIKE '%mantle.abort_rename(%'"

    def recorder() -> int:
        """Lets a rename be refused while its source is locked; the session that wrote its abort record."""
        with pytest.raises(Refused, match="path_too_deep"):
            rest.rename(bucket, "a/", f"b/{'d/' * 99}a/")
        assert locks(stack) == 0
        [(pid,)] = superuser.execute(recorders).fetchall()
        return pid

    wait_until(lambda: not superuser.execute(recorders).fetchall(), "no session of earlier tests", READY_BOUND_S)
    first = recorder()
    assert [recorder() for _ in range(3)] == [first] * 3
    superuser.execute("SELECT pg_terminate_backend(%s, 5000)", (first,))
    assert recorder() != first
    wait_until(lambda: not superuser.execute(recorders).fetchall(), "the end of a session without use", READY_BOUND_S)


@pytest.mark.allows("postgresql", r"canceling statement due to lock timeout")
@pytest.mark.allows("indexnode", r"source::rename_locks: (cannot write an abort record|a rename lock expired)")
def test_a_lock_that_cannot_be_released_is_counted(stack, bucket, rest, connect):
    """Neither the rename nor its abort can write its record, until another session releases the table."""
    rest.mkdir(bucket, "old")
    expired = lambda: sum(node.metric("mantle_index_expired_locks") for node in stack.indexnodes.values())
    body = {"src": "old/", "dst": "new/", "overwrite": False}
    with connect("postgres", "superuser") as holder, ThreadPoolExecutor() as pool:
        with holder.transaction():
            holder.execute("LOCK TABLE mantle.rename_attempts")
            under_way = pool.submit(rest.twin().call, "POST", f"/v1/ns/{bucket}/rename", body)
            wait_until(lambda: locks(stack) == 1, "a lock", READY_BOUND_S)
            assert expired() == 0
            wait_until(lambda: expired() == 1, "an expired lock", READY_BOUND_S)
        under_way.result()
    await_no_lock(stack)
    wait_until(lambda: expired() == 0, "no expired lock", READY_BOUND_S)
