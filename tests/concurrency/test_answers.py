"""`mantle.await_answers()` waits for the answers that are being recorded (P19). They may be those of a change that has
committed and waits for its standby, which nobody sees yet.
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
AWAIT = "SELECT mantle.await_answers()"
WAITS = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query = %s"
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


@pytest.mark.parametrize("commits", [True, False])
def test_a_change_under_way_is_awaited(target, later, commits):
    with target.connect() as changing, target.connect() as waiting, target.connect() as observer:
        request = Request(observer)
        with changing.transaction(force_rollback=not commits):
            assert request.send(changing) is None
            awaited = later(waiting.execute, AWAIT)
            wait_until(lambda: observer.execute(WAITS, (AWAIT,)).fetchone() is not None, "the wait", BOUND_S)
            assert not request.is_known(observer) and not awaited.done()
        awaited.result(BOUND_S)
        assert request.is_known(observer) == commits


def test_a_later_change_is_not_awaited(target, later):
    """Otherwise a wait would not end while there is load. A change that lasts long ends it with an error."""
    with target.connect() as one, target.connect() as other, target.connect() as waiting, target.connect() as observer:
        first, second = Request(observer), Request(observer)
        with other.transaction():
            with one.transaction():
                assert first.send(one) is None
                awaited = later(waiting.execute, AWAIT)
                wait_until(lambda: observer.execute(WAITS, (AWAIT,)).fetchone() is not None, "the wait", BOUND_S)
                assert second.send(other) is None
            awaited.result(BOUND_S)
            assert first.is_known(observer) and not second.is_known(observer)
            with pytest.raises(psycopg.errors.LockNotAvailable, match="may be under way"):
                waiting.execute(AWAIT)


@pytest.mark.timeout(60)
def test_a_change_that_waits_for_its_standby_is_awaited(running_server: SuiteServer, target, later):
    with target.connect() as changing, target.connect() as waiting, target.connect() as observer:
        request = Request(observer)
        with running_server.without_standby():
            changed = later(request.send, changing)
            waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
            pid = changing.info.backend_pid
            wait_until(lambda: observer.execute(waits, (pid,)).fetchone() is not None, "the commit", BOUND_S)
            assert not request.is_known(observer)
            with pytest.raises(psycopg.errors.LockNotAvailable, match="may be under way"):
                waiting.execute(AWAIT)
        assert changed.result(BOUND_S) is None
        waiting.execute(AWAIT)
        assert request.is_known(observer)
