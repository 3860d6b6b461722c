"""Whoever looks for the answer to a request waits for a transaction that is recording it (P19). It may have committed,
and wait for its standby: nobody sees its rows yet.
"""

import uuid

import psycopg
import pytest

from stack.poll import wait_until

from . import verbs
from .server import SuiteServer
from .tree import Op
from .verbs import Key

BOUND_S = 20.0
WAITS = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = %s"
KNOWN = "SELECT known FROM mantle.replay(%s, %s, %s, 0)"


@pytest.fixture(scope="module")
def target(make_target):
    return make_target("answers")


class Request:
    """A mkdir in a namespace of its own."""

    def __init__(self, connection: psycopg.Connection):
        name = uuid.uuid4().hex
        self.ns = verbs.create_namespace(connection, f"answers-{name[:12]}")
        self.op = Op("mkdir", self.ns, "a/", verbs.allocate_ids(connection, 1), explicit=True)
        self.key = Key(uuid.UUID(name))

    def send(self, connection: psycopg.Connection) -> str | None:
        return verbs.call_one(connection, self.ns, self.op, self.key).code

    def is_known(self, connection: psycopg.Connection) -> bool:
        return connection.execute(KNOWN, (verbs.PRINCIPAL, self.ns, self.key.request)).fetchone()[0]


def await_wait(observer: psycopg.Connection, waiting: psycopg.Connection, event: str) -> None:
    session = (waiting.info.backend_pid, event)
    wait_until(lambda: observer.execute(WAITS, session).fetchone() is not None, f"a wait: {event}", BOUND_S)


@pytest.mark.parametrize("commits", [True, False])
def test_the_answer_of_a_change_under_way_is_awaited(target, later, commits):
    with target.connect() as changing, target.connect() as waiting, target.connect() as observer:
        request = Request(observer)
        with changing.transaction(force_rollback=not commits):
            assert request.send(changing) is None
            found = later(request.is_known, waiting)
            await_wait(observer, waiting, "transactionid")
        assert found.result(BOUND_S) == commits


def test_it_is_awaited_for_some_time_only_and_others_are_not(target):
    with target.connect() as changing, target.connect() as waiting:
        request, other = Request(waiting), Request(waiting)
        with changing.transaction():
            assert request.send(changing) is None
            assert not other.is_known(waiting)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                request.is_known(waiting)
            assert request.is_known(changing), "a transaction does not wait for itself"


@pytest.mark.timeout(60)
def test_a_change_that_waits_for_its_standby_is_awaited(running_server: SuiteServer, target, later):
    with target.connect() as changing, target.connect() as waiting, target.connect() as observer:
        request = Request(observer)
        with running_server.without_standby():
            changed = later(request.send, changing)
            await_wait(observer, changing, "SyncRep")
            found = later(request.is_known, waiting)
            await_wait(observer, waiting, "transactionid")
        assert changed.result(BOUND_S) is None and found.result(BOUND_S)
