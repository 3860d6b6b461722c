"""Analysts read while others write: each answer is of one moment.

Writers rename objects and directories between directories, higher up or lower down, and create one entry for each that
they remove, both in one transaction. So the namespace always holds the same number of objects, directories and bytes.
An answer that mixes two moments shows other numbers.
"""

import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable

import psycopg
import pytest

from . import verbs
from .target import PlainTarget
from .tree import Op
from .verbs import Key

SECONDS = 4.0
NOTICED_BOUND_S = 40.0
NAME = "analysed"
PLACES, DIRECTORIES, OBJECTS, SIZE = 6, 40, 120, 10
ROLE = "mantle_analyst"
# Functions that read in several statements.
FUNCTIONS = (
    "du", "du_below", "du_rows", "rows_below", "keys_below", "sums_by_row", "find", "top_dirs", "check",
    "check_entries", "check_directories", "check_places", "dirstat",
)  # fmt: skip


class Writers:
    """Threads that change a namespace whose totals stay. Places are directories that stay, each inside the previous
    one. Everything else in them moves.
    """

    def __init__(self, target: PlainTarget):
        self.target, self.stop, self.changes, self.failures = target, threading.Event(), 0, []
        with target.connect() as connection:
            self.ns = verbs.create_namespace(connection, NAME)
            self.ids = itertools.count(verbs.allocate_ids(connection, 100_000))
            self.places = [next(self.ids) for _ in range(PLACES)]
            self.directories = {f"s{n}/": (next(self.ids), self.places[n % PLACES]) for n in range(DIRECTORIES)}
            self.objects = {f"o{n}": self.places[n % PLACES] for n in range(OBJECTS)}
            # In each place, one more that replaces another, with the object in it.
            self.spare = {pid: ("x/", next(self.ids)) for pid in self.places}
            ops = [Op("mkdir", pid, "t/", id) for pid, id in zip([self.ns, *self.places], self.places, strict=False)]
            ops += [Op("mkdir", pid, name, id) for name, (id, pid) in self.directories.items()]
            # Each directory that moves contains an object that moves along.
            ops += [self.put(id, "inside") for id, _ in self.directories.values()]
            ops += [self.put(pid, name) for name, pid in self.objects.items()]
            for pid, (name, id) in self.spare.items():
                ops += [Op("mkdir", pid, name, id), self.put(id, "inside")]
            for op in ops:
                self.call(connection, op)
            self.epoch = connection.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()[0]
        works = (self._objects, self._directories, self._pairs)
        self.threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    @property
    def totals(self) -> tuple[int, int, int]:
        objects = OBJECTS + DIRECTORIES + PLACES
        return objects, PLACES + DIRECTORIES + PLACES, objects * SIZE

    def put(self, pid: int, name: str) -> Op:
        return Op("put_object", pid, name, next(self.ids), size=SIZE)

    def call(self, connection: psycopg.Connection, op: Op) -> None:
        assert verbs.call(connection, self.ns, [op], [Key(uuid.uuid4())])[0].code is None, op

    def __enter__(self) -> "Writers":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_error) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert self.failures == []

    def _run(self, work: Callable[[psycopg.Connection, random.Random], None]) -> None:
        choose = random.Random(work.__name__)
        try:
            with self.target.connect() as connection:
                while not self.stop.is_set():
                    work(connection, choose)
                    self.changes += 1
        except BaseException as failure:
            self.failures.append(failure)
            raise

    def _objects(self, connection: psycopg.Connection, choose: random.Random) -> None:
        name, to = choose.choice(list(self.objects)), choose.choice(self.places)
        if to != self.objects[name]:
            self.call(connection, Op("rename_object", self.objects[name], name, dst_pid=to, dst_name=name))
            self.objects[name] = to

    def _directories(self, connection: psycopg.Connection, choose: random.Random) -> None:
        name, to = choose.choice(list(self.directories)), choose.choice(self.places)
        id, pid = self.directories[name]
        if pid != to:
            self.call(connection, Op("rename_directory", pid, name, id, dst_pid=to, dst_name=name, epoch=self.epoch))
            self.directories[name] = (id, to)

    def _pairs(self, connection: psycopg.Connection, choose: random.Random) -> None:
        """Replaces a directory with an object in it by another."""
        at, name, new = choose.choice(self.places), f"x{next(self.ids)}/", next(self.ids)
        old_name, old = self.spare[at]
        with connection.transaction():
            for op in (
                Op("mkdir", at, name, new),
                self.put(new, "inside"),
                Op("delete_object", old, "inside"),
                Op("rmdir", at, old_name, old),
            ):
                self.call(connection, op)
        self.spare[at] = (name, new)


ANSWERS = {
    "du": "SELECT objects, directories, bytes FROM mantle.du(%(name)s, '')",
    "du by directory": "SELECT objects, directories, bytes FROM mantle.du(%(name)s, '', 1) WHERE level = 0",
    "find": "SELECT count(*) FILTER (WHERE kind = 'object'), count(*) FILTER (WHERE kind = 'directory'),"
    " sum(size)::bigint"
    " FROM mantle.find(%(name)s, '')",
    "top_dirs": "SELECT sum(objects)::bigint, sum(entries - objects)::bigint, sum(bytes)::bigint"
    " FROM mantle.top_dirs(%(name)s, '', 1000, 'entries')",
    # A gateway's query: the counts of all directories.
    "dirstat": "SELECT sum(entries - subdirectories)::bigint, sum(subdirectories)::bigint, sum(bytes)::bigint"
    " FROM mantle.dirstat(%(ns)s, ARRAY(SELECT id FROM mantle.meta WHERE ns = %(ns)s AND explicit IS NOT NULL))",
}
SAME = {
    "ls": ("SELECT name FROM mantle.ls(%(name)s, '')", [("t/",)]),
    "check": ("SELECT problem, pid, name, detail FROM mantle.check()", []),
}


class Analyst:
    """Runs one query after the other, and keeps wrong answers."""

    def __init__(self, target: PlainTarget, writers: Writers):
        self.connection, self.gateway, self.writers = target.connect(), target.connect(), writers
        self.connection.execute("SELECT mantle.grant_namespace(%s, %s)", (NAME, ROLE))
        self.connection.execute(f"SET ROLE {ROLE}")
        self.wrong: dict[str, list] = {}
        self.asked = 0

    def ask(self) -> None:
        given = {"name": NAME, "ns": self.writers.ns}
        for what, query in ANSWERS.items():
            session = self.gateway if what == "dirstat" else self.connection
            self._compare(what, session.execute(query, given).fetchall(), [self.writers.totals])
        for what, (query, expected) in SAME.items():
            self._compare(what, self.connection.execute(query, given).fetchall(), expected)

    def _compare(self, what: str, found: list, expected: list) -> None:
        self.asked += 1
        if found != expected:
            self.wrong.setdefault(what, []).append(found[:5])


@pytest.mark.timeout(120)
def test_each_answer_is_of_one_moment(make_target):
    target = make_target("analysts")
    writers = Writers(target)
    analyst = Analyst(target, writers)
    with writers:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            analyst.ask()
        changes = writers.changes
    assert analyst.wrong == {}
    assert changes > 100 and analyst.asked > 100, "too little happened to prove anything"


@pytest.mark.timeout(120)
def test_an_answer_of_several_moments_is_noticed(make_target):
    """Functions that are declared VOLATILE would answer so: each of their statements has its own snapshot."""
    target = make_target("analysts_volatile")
    with target.connect() as connection:
        for name in FUNCTIONS:
            found = connection.execute(
                "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'mantle'::regnamespace"
                " AND proname = %s",
                (name,),
            ).fetchall()
            assert found, f"mantle.{name} is no function of the extension any more: name its successor in FUNCTIONS"
            for (signature,) in found:
                connection.execute(f"ALTER FUNCTION {signature} VOLATILE")
    writers = Writers(target)
    analyst = Analyst(target, writers)
    wanted = {"du", "find", "top_dirs", "check", "dirstat"}
    with writers:
        until = time.monotonic() + NOTICED_BOUND_S
        while time.monotonic() < until and not wanted <= analyst.wrong.keys():
            analyst.ask()
    assert wanted <= analyst.wrong.keys(), analyst.wrong
