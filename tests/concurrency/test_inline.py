"""Bytes inside PostgreSQL (P62): what is read with an entry, and what a crash or a rollback leaves of them."""

import os
import uuid
from contextlib import closing
from itertools import count

import psycopg
import pytest

from . import copies, state, verbs
from .target import PlainTarget
from .tree import Op
from .verbs import Key

SIZES = (1, 100, 2000, 4096, 8100, 16_384)
COLUMNS = 15  # of an entry
READ = "SELECT code, entry FROM mantle.stat_local(%s::bigint[], %s::bigint[], %s::text[], %s::boolean[]) ORDER BY ord"
KEPT = "SELECT i.bytes FROM mantle.inline i WHERE i.pid = %s ORDER BY 1"


class Inline:
    """A namespace, whose objects are in its root."""

    def __init__(self, target: PlainTarget):
        self.target = target
        self.session = target.connect()
        self.ns = verbs.create_namespace(self.session, f"inline-{uuid.uuid4().hex[:12]}")
        self.ids = count(verbs.allocate_ids(self.session, 10_000))

    def put(self, name: str, body: bytes, session: psycopg.Connection | None = None) -> None:
        op = Op("put_object", self.ns, name, next(self.ids), size=len(body), inline=body)
        assert verbs.call(session or self.session, self.ns, [op], [Key(uuid.uuid4())])[0].code is None

    def read(self, names: list[str], wanted: list[bool] | None) -> list[tuple]:
        """Codes and entries."""
        given = ([self.ns], [self.ns] * len(names), names, wanted)
        return self.session.execute(READ, given).fetchall()

    def kept(self) -> list[bytes]:
        return [body for (body,) in self.session.execute(KEPT, (self.ns,))]


@pytest.fixture(scope="module")
def target(make_target):
    return make_target("inline")


@pytest.fixture
def inline(target):
    inline = Inline(target)
    with closing(inline.session):
        yield inline
        assert state.damage(inline.session) == []


def last_column(entry: bytes, size: int) -> bytes:
    """Of an entry that has bytes of this size."""
    assert int.from_bytes(entry[:2]) == COLUMNS + 1
    assert int.from_bytes(entry[-size - 4 : -size]) == size
    return entry[-size:]


def test_bytes_come_with_the_entry_if_they_are_wanted(inline):
    bodies = {f"k{size}": os.urandom(size) for size in SIZES}
    for name, body in bodies.items():
        inline.put(name, body)
    op = Op("put_object", inline.ns, "elsewhere", next(inline.ids), locator="objects/00/x")
    assert verbs.call(inline.session, inline.ns, [op], [Key(uuid.uuid4())])[0].code is None
    names = [*bodies, "elsewhere", "none"]
    plain = inline.read(names, None)
    assert [code for code, _ in plain] == [None] * (len(names) - 1) + ["MT010"]
    assert plain == inline.read(names, [False] * len(names))
    wanted = inline.read(names, [True] * len(names))
    for name, (code, entry), (_, without) in zip(bodies, wanted, plain, strict=False):
        assert code is None and last_column(entry, len(bodies[name])) == bodies[name], name
        assert entry[2 : len(without)] == without[2:], "the other columns are the same"
    assert wanted[len(bodies) :] == plain[len(bodies) :], "others have no such column"
    mixed = inline.read(names[:2], [False, True])
    assert [mixed[0], mixed[1]] == [plain[0], wanted[1]]


def test_an_entry_and_its_bytes_are_of_one_snapshot(inline):
    """A reader between the put and its commit sees the old bytes with the old entry."""
    inline.put("k", b"old")
    with closing(inline.target.connect()) as writer, writer.transaction():
        inline.put("k", b"newer", writer)
        ((_, entry),) = inline.read(["k"], [True])
        assert last_column(entry, 3) == b"old"
    ((_, entry),) = inline.read(["k"], [True])
    assert last_column(entry, 5) == b"newer"
    assert inline.kept() == [b"newer"]


def test_bytes_that_are_lost_are_null(inline):
    inline.put("k", b"lost")
    with inline.session.transaction(force_rollback=True):
        inline.session.execute("DELETE FROM mantle.inline WHERE pid = %s", (inline.ns,))
        ((code, entry),) = inline.read(["k"], [True])
        assert code is None and int.from_bytes(entry[:2]) == COLUMNS + 1 and entry.endswith(b"\xff" * 4)
        found = inline.session.execute("SELECT problem, pid FROM mantle.check()").fetchall()
        assert found == [("inline_bytes", inline.ns)]


def test_a_rollback_leaves_nothing(inline):
    inline.put("k", b"kept")
    with inline.session.transaction(force_rollback=True):
        inline.put("k", b"replaced")
        inline.put("new", b"new")
    with inline.session.transaction(force_rollback=True):
        assert copies.delete(inline.session, inline.ns, inline.ns, "k") == (None, None)
    assert inline.kept() == [b"kept"]


def test_a_batch_of_new_and_existing_objects(inline):
    """The fast path makes some, the fallback overwrites the others; some have their bytes elsewhere."""
    inline.put("old", b"old")
    given = {"a": b"a", "old": b"new", "b": None, "c": bytes(16_384)}
    ops = [
        Op("put_object", inline.ns, name, next(inline.ids), size=len(body or b""), inline=body,
           locator=None if body else "objects/00/b")
        for name, body in given.items()
    ]  # fmt: skip
    answers = verbs.call(inline.session, inline.ns, ops, [Key(uuid.uuid4()) for _ in ops])
    assert [answer.code for answer in answers] == [None] * len(ops)
    assert inline.kept() == sorted(body for body in given.values() if body)


def test_a_crash_keeps_what_was_acknowledged(running_server, make_target):
    """And nothing of what was not."""
    target = make_target("inline_crash")
    inline = Inline(target)
    bodies = {f"k{number}": os.urandom(4096) for number in range(50)}
    for name, body in bodies.items():
        inline.put(name, body)
    copies.delete(inline.session, inline.ns, inline.ns, "k0")
    inline.session.execute("BEGIN")
    inline.put("uncommitted", b"x")
    inline.put("k1", b"y")
    running_server.kill()
    running_server.start()
    inline.session = target.connect_when_up()
    assert inline.kept() == sorted(body for name, body in bodies.items() if name != "k0")
    assert state.damage(inline.session) == []
