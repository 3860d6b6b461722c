"""On several nodes too no check races a change of the permission, though a directory's entry and the partition that
verbs latch are on two of them (P56).
"""

import uuid
from contextlib import closing

import psycopg
import pytest

from stack import citus
from stack.poll import wait_until

from . import verbs
from .distributed import SpreadNamespace, distributed_target
from .tree import Op
from .verbs import Answer, Key

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

BOUND_S = 30.0
DENIED = "MT030"
OTHER = "9,20"
OPEN = "7,7,511"
WAITING = "SELECT count(*) FROM mantle.latches WHERE class = 'directory' AND NOT granted"


@pytest.fixture(scope="module")
def target(citus_cluster):
    with distributed_target(citus_cluster, "mantle_permissions") as target:
        yield target


class Apart:
    """A directory whose partition is on one worker and its entry, in another directory, on the other."""

    def __init__(self, spread: SpreadNamespace):
        self.spread = spread
        self.parent = spread.by_worker[0][0]
        self.id = next(id for id in iter(spread.new_id, None) if spread.worker_of(id) == 1)
        assert self.call(spread.coordinator, Op("mkdir", self.parent, "open/", self.id, mode=0o777)).code is None

    def call(self, session: psycopg.Connection, op: Op, **given: str) -> Answer:
        return verbs.call(session, self.spread.ns, [op], [Key(uuid.uuid4())], **given)[0]

    def chmod(self, session: psycopg.Connection, mode: int) -> Answer:
        return self.call(session, Op("set_attributes", self.parent, "open/", self.id, mode=mode))

    def put(self, session: psycopg.Connection, name: str) -> Answer:
        return self.call(session, Op("put_object", self.id, name, self.spread.new_id()), caller=OTHER, parent=OPEN)

    def mkdir(self, session: psycopg.Connection, name: str) -> Answer:
        return self.call(session, Op("mkdir", self.id, name, self.spread.new_id()), caller=OTHER, parent=OPEN)

    def delete(self, session: psycopg.Connection, name: str) -> Answer:
        return self.call(session, Op("delete_object", self.id, name), caller=OTHER, parent=OPEN)


@pytest.fixture
def apart(spread):
    yield Apart(spread)
    assert spread.coordinator.execute("SELECT * FROM mantle.check()").fetchall() == []


@pytest.mark.parametrize("at", [0, 1, None], ids=["at its entry", "at its partition", "at the coordinator"])
def test_a_chmod_counts_wherever_it_was_made(spread, apart, at):
    chmodding = spread.coordinator if at is None else spread.sessions[at]
    for session in (*spread.sessions, spread.coordinator):
        assert apart.put(session, f"before{session.info.port}").code is None
    assert apart.chmod(chmodding, 0o700).code is None
    for session in (*spread.sessions, spread.coordinator):
        assert apart.put(session, f"after{session.info.port}").code == DENIED
        assert apart.mkdir(session, f"d{session.info.port}/").code == DENIED
        assert apart.delete(session, f"before{session.info.port}").code == DENIED
    assert apart.chmod(chmodding, 0o1777).code is None
    for session in (*spread.sessions, spread.coordinator):
        assert apart.put(session, f"again{session.info.port}").code is None
        assert apart.delete(session, f"again{session.info.port}").code == DENIED, "sticky, and it belongs to 7"


def test_a_chmod_waits_for_changes_that_were_allowed(target, spread, apart, later):
    with closing(psycopg.connect(**target.all[2], autocommit=True)) as there:
        with spread.sessions[1].transaction():
            assert apart.put(spread.sessions[1], "allowed").code is None
            chmod = later(apart.chmod, spread.sessions[0], 0o700)
            wait_until(lambda: chmod.done() or there.execute(WAITING).fetchone()[0], "the chmod", BOUND_S)
            assert not chmod.done(), "it did not wait"
        assert chmod.result(BOUND_S).code is None
    assert apart.put(spread.sessions[1], "late").code == DENIED


def test_a_change_waits_for_a_chmod_and_then_sees_it(target, spread, apart, later):
    with closing(psycopg.connect(**target.all[2], autocommit=True)) as there:
        with spread.sessions[0].transaction():
            assert apart.chmod(spread.sessions[0], 0o700).code is None
            put = later(apart.put, spread.sessions[1], "raced")
            wait_until(lambda: put.done() or there.execute(WAITING).fetchone()[0], "the put", BOUND_S)
            assert not put.done(), "it did not wait"
        assert put.result(BOUND_S).code == DENIED
