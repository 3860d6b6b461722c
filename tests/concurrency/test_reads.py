"""mantle.stat, mantle.list and mantle.list_filled exist twice: the fast path in Rust, and the fallback in SQL for what
it cannot read. Both are called with the same arguments on the same random rows, in the same transaction, during changes
of other sessions and of its own, on one node and on Citus. The answers must be the same. The entries of
mantle.stat_local and the pages of mantle.list_local must have the same bytes, unless they leave one out.

MANTLE_PROPERTY_SEED repeats a run.
"""

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import pytest

from stack import citus
from stack.poll import wait_until
from tests.support.sql_wrappers import put_at_beginning

from . import state
from .distributed import CitusTarget, SpreadNamespace, distributed_target, move
from .pages import copied, entries_together, pages_together

SEED = int(os.environ.get("MANTLE_PROPERTY_SEED", time.time_ns() % 1_000_000))
HISTORIES = 12
QUESTIONS = 8
WRONG_NODE = "MT043"
FALLBACKS = ("stat_fallback", "list_fallback", "list_filled_fallback")
STAMP = "2026-01-02T03:04:05Z"
# Around the ranges of a listing, which leaves out names that begin with a slash.
NAMES = ("!", "a", "a/", "a.", "ab", "b/", ".", "0", "0/", "~", "é/", "\u07ff", "\U0010ffff" * 3, "n" * 255, "/_ATTR")
PREFIXES = (None, "", "a", "a/", "/", "0", ".", "\U0010ffff", "zz")
COLUMNS = (
    "pid", "name", "ts", "ns", "id", "owner", "grp", "mode", "version", "explicit", "size", "synthetic", "etag",
    "content_type", "user_metadata", "locator", "created", "modified", "entries", "removed",
)  # fmt: skip
INSERT = "INSERT INTO mantle.meta ({}) VALUES ({}) ON CONFLICT DO NOTHING".format(
    ", ".join(COLUMNS), ", ".join(f"%({name})s" for name in COLUMNS)
)
UPDATE = "UPDATE mantle.meta SET mode = %s, user_metadata = NULL WHERE pid = %s AND name = %s"
DELETE = "DELETE FROM mantle.meta WHERE pid = %s AND name = %s"
STAT = "SELECT * FROM mantle.{}(%s::{}, %s::bigint[], %s::text[]) ORDER BY ord"
# What stat_fallback answers of elements that have an entry, and are among some.
FOUND = (
    "SELECT name, id, owner, grp, mode, version, explicit, size, synthetic, etag, content_type, user_metadata, locator,"
    " created, modified FROM mantle.stat_fallback(%s::bigint[], %s::bigint[], %s::text[])"
    " WHERE code IS NULL AND ord = ANY (%s::int[]) ORDER BY ord"
)
LIST = "SELECT * FROM mantle.{}(%s::bigint, %s::bigint, %s::text, %s::text, %s::int)"


@dataclass
class Place:
    """Where the rows are: sessions of the node that is asked, and directories that are, and are not, on it."""

    connect: Callable[[], psycopg.Connection]
    ns: int
    here: list[int]
    elsewhere: list[int] = field(default_factory=list)


class Questions:
    """Random rows and questions about them."""

    def __init__(self, seed: int, place: Place):
        self.random, self.place = random.Random(seed), place

    def row(self) -> dict:
        r = self.random
        some = {name: r.choice((None, r.randrange(1 << 20))) for name in ("owner", "grp", "version", "size", "entries")}
        texts = {name: r.choice((None, "", "x" * 300)) for name in ("etag", "content_type", "locator")}
        # The last one is too large for its row, and does not compress.
        metadata = r.choice((None, '{"k": "v"}', json.dumps({"k": r.randbytes(6000).hex()})))
        name = r.choice(NAMES)
        return {
            **some, **texts, "pid": r.choice(self.place.here + self.place.elsewhere), "name": name,
            "ts": r.choice((0, 7)) if name == "/_ATTR" else r.choice((0, 0, 0, 0, 9)),
            "ns": r.choice((self.place.ns, self.place.ns, self.place.ns + 1)),
            "id": None if name == "/_ATTR" else r.choice((None, 1 << 40, 1 << 40, (1 << 40) + 1)),
            "mode": r.randrange(512), "explicit": r.choice((None, True, False)),
            "synthetic": r.choice((None, True)), "user_metadata": metadata, "removed": r.choice((None, True)),
            "created": r.choice((None, STAMP)), "modified": r.choice((None, STAMP)),
        }  # fmt: skip

    def change(self, connection: psycopg.Connection) -> None:
        for _ in range(self.random.randrange(1, 12)):
            row = self.row()
            kind = self.random.randrange(4)
            if kind < 2:
                connection.execute(INSERT, row)
            elif kind == 2:
                connection.execute(UPDATE, (row["mode"], row["pid"], row["name"]))
            else:
                connection.execute(DELETE, (row["pid"], row["name"]))

    def places(self, pids: list[int]) -> tuple[list | None, list | None, list | None]:
        """Namespaces, directories and names; seldom of different lengths, with NULLs, or not a list."""
        r = self.random
        count = r.choice((0, 1, 1, 2, 5, 40))
        of = [
            [r.choice((values[0], *values)) for _ in range(count)]
            for values in (
                [self.place.ns, self.place.ns, self.place.ns, self.place.ns + 1, None],
                [r.choice(pids), *pids, *pids, 999, None],
                [r.choice(NAMES), *NAMES, "none", None],
            )
        ]
        if r.randrange(5) == 0:
            short = r.randrange(1, 3)
            of[short] = of[short][: count // 2]
        if r.randrange(3) == 0:
            of[0] = of[0][:1]
        if r.randrange(12) == 0:
            of[r.randrange(3)] = None
        return tuple(of)

    def page(self) -> tuple:
        r = self.random
        return (
            r.choice((self.place.ns, self.place.ns, self.place.ns + 1, None)),
            r.choice((*self.place.here, *self.place.here, *self.place.elsewhere, 0, 999, None)),
            r.choice((None, "", *NAMES)),
            r.choice(PREFIXES),
            r.choice((None, 0, 1, 2, 5, 1000, 1000)),
        )


class Comparison:
    """Asks both functions in one session, and counts how often the fast path answered."""

    def __init__(self, place: Place):
        self.place, self.fast, self.slow, self.together, self.left = place, 0, 0, 0, 0

    @contextlib.contextmanager
    def session(self) -> Iterator[psycopg.Connection]:
        with self.place.connect() as connection:
            # Maps of shards are of earlier transactions.
            connection.execute("SELECT mantle.is_distributed()")
            yield connection

    def both(self, connection: psycopg.Connection, fast: tuple[str, tuple], fallback: tuple[str, tuple]) -> tuple:
        """The answers of two calls."""
        connection.execute("SELECT set_config('test.fallback', '', false)")
        found = connection.execute(*fast).fetchall()
        used = connection.execute("SELECT current_setting('test.fallback')").fetchone()[0]
        self.slow += used != ""
        self.fast += used == ""
        return found, connection.execute(*fallback).fetchall()

    def ask(self, connection: psycopg.Connection, questions: Questions) -> list[str]:
        r, place = questions.random, self.place
        places = questions.places(place.here if r.randrange(4) else place.here + place.elsewhere)
        problems = self.ask_places(connection, places)
        ns, (_, pids, names) = r.choice((place.ns, place.ns + 1, None)), places
        fallback = (STAT.format("stat_fallback", "bigint[]"), ([ns], pids, names))
        found, expected = self.both(connection, (STAT.format("stat", "bigint"), (ns, pids, names)), fallback)
        if found != expected:
            problems.append(f"stat{(ns, pids, names)}: {found}, expected {expected}")
        page = questions.page()
        for name in ("list", "list_filled"):
            calls = [(LIST.format(function), page) for function in (name, f"{name}_fallback")]
            found, expected = self.both(connection, *calls)
            if found != expected:
                problems.append(f"{name}{page}: {found}, expected {expected}")
        return problems + self.ask_together(connection, questions)

    def ask_places(self, connection: psycopg.Connection, places: tuple) -> list[str]:
        """On one node every element is answered."""
        found = entries_together(connection, places)
        expected = connection.execute(STAT.format("stat_fallback", "bigint[]"), places).fetchall()
        left = [ord for ord, code, entry in found if code == WRONG_NODE or (code is None and entry is None)]
        self.left += len(left)
        self.together += len(found) - len(left)
        is_local = "SELECT mantle.is_local(ARRAY[%s::bigint])"
        refused = [places[1][ord - 1] for ord, code, _ in found if code == WRONG_NODE]
        wrong = [pid for pid in refused if connection.execute(is_local, (pid,)).fetchone()[0]]
        problems = [f"directory {pid} is here" for pid in wrong]
        if left and not self.place.elsewhere:
            problems.append(f"stat_local{places} leaves {left}")
        codes = [[(row[0], row[1]) for row in rows if row[0] not in left] for rows in (found, expected)]
        entries = b"".join(entry for _, _, entry in found if entry is not None)
        there = [ord for ord, _, entry in found if entry is not None]
        if codes[0] != codes[1] or entries != copied(connection, FOUND, (*places, there)):
            problems.append(f"stat_local{places}: {found}, expected {expected}")
        return problems

    def ask_together(self, connection: psycopg.Connection, questions: Questions) -> list[str]:
        """On one node a page is left only if something of it is missing."""
        r, problems = questions.random, []
        pages = [(*questions.page(), r.choice((False, True, True, None))) for _ in range(r.choice((0, 1, 1, 2, 8)))]
        for asked, (code, page) in zip(pages, pages_together(connection, pages), strict=True):
            ns, pid, _, _, limit, is_filled = asked
            is_whole = None not in (ns, pid, limit, is_filled)
            if page is None:
                self.left += 1
                is_expected = code is not None or not is_whole or self.place.elsewhere
                if code not in (None, WRONG_NODE) or not is_expected:
                    problems.append(f"list_local{asked} is left: {code}")
                continue
            self.together += 1
            expected = copied(
                connection, LIST.format("list_filled_fallback" if is_filled else "list_fallback"), asked[:5]
            )
            if not is_whole or code is not None or bytes(page) != expected:
                problems.append(f"list_local{asked}: {page}, expected {expected}")
        return problems


def refused_alike(comparison: Comparison, connection: psycopg.Connection) -> list[str]:
    """What is refused, by the SQLSTATE of each."""
    ns, pid = comparison.place.ns, comparison.place.here[0]
    cases = [
        (STAT.format("stat", "bigint"), STAT.format("stat_fallback", "bigint[]"), (ns, None, None), ([ns], None, None)),
        (LIST.format("list"), LIST.format("list_fallback"), *[(ns, pid, None, None, -1)] * 2),
    ]
    problems = []
    for fast, fallback, given, other in cases:
        states = []
        for query, values in ((fast, given), (fallback, other)):
            try:
                states.append(connection.execute(query, values).fetchall())
            except psycopg.Error as error:
                states.append(error.sqlstate)
        if states[0] != states[1] or not isinstance(states[0], str):
            problems.append(f"{fast}{given}: {states}")
    return problems


def one_history(comparison: Comparison, seed: int) -> list[str]:
    """Differences. The session reads at several moments of one transaction: before and after changes that others have
    not committed, have committed, and that are its own.
    """
    questions = Questions(seed, comparison.place)
    problems = []

    def ask(connection: psycopg.Connection) -> None:
        for _ in range(QUESTIONS):
            problems.extend(comparison.ask(connection, questions))

    isolation = ("READ COMMITTED", "REPEATABLE READ")[seed % 2]
    with comparison.place.connect() as other, comparison.session() as own:
        questions.change(other)
        ask(own)
        own.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        ask(own)
        other.execute("BEGIN")
        # Rows that both change would wait for each other.
        questions.change(other)
        ask(own)
        other.execute("COMMIT")
        ask(own)
        try:
            questions.change(own)
        except psycopg.errors.SerializationFailure:
            own.execute("ROLLBACK")
            own.execute("BEGIN")
        ask(own)
        own.execute("SAVEPOINT here")
        with contextlib.suppress(psycopg.errors.SerializationFailure):
            questions.change(own)
        own.execute("ROLLBACK TO here")
        ask(own)
        own.execute("ROLLBACK" if seed % 3 else "COMMIT")
        ask(own)
        problems.extend(refused_alike(comparison, own))
    return problems


def directory_of_another_shard(spread: SpreadNamespace, worker: int, pid: int) -> int:
    """On the same node."""
    while True:
        id = spread.new_id()
        if spread.worker_of(id) == worker and spread.shard_of(id) != spread.shard_of(pid):
            return id


def note_fallbacks(connection: psycopg.Connection) -> None:
    for name in FALLBACKS:
        put_at_beginning(connection, name, "test_reads", f"PERFORM set_config('test.fallback', '{name}', false);")


@pytest.fixture(scope="module")
def plain(make_target) -> Place:
    target = make_target("reads")
    with target.connect() as connection:
        note_fallbacks(connection)
    return Place(target.connect, 5000, [5001, 5002, 5003])


def compare(place: Place, capsys) -> Comparison:
    comparison = Comparison(place)
    for seed in range(SEED, SEED + HISTORIES):
        problems = one_history(comparison, seed)
        assert problems == [], f"MANTLE_PROPERTY_SEED={seed}:\n" + "\n".join(problems[:5])
    with capsys.disabled():
        print(f"\nseeds {SEED} to {seed}: {comparison.fast} by the fast path, {comparison.slow} left to the fallback")
        print(f"pages together: {comparison.together} answered, {comparison.left} left")
    return comparison


def test_the_fast_path_answers_what_the_fallback_does(plain, capsys):
    comparison = compare(plain, capsys)
    assert comparison.fast > comparison.slow
    assert comparison.together > 300


def test_the_snapshot_is_the_statements(plain):
    """A change that the statement makes itself is not seen, as in every stable function."""
    name = f"own{SEED}"
    insert = f"INSERT INTO mantle.meta (pid, name, ns, id) VALUES (5001, '{name}', 5000, {1 << 41}) RETURNING 1"
    for function, of in (("stat", "bigint"), ("stat_fallback", "bigint[]")):
        query = f"WITH made AS ({insert}) SELECT s.id FROM made, mantle.{function}(%s::{of}, %s, %s) AS s"
        with plain.connect() as connection, connection.transaction(force_rollback=True):
            given = ([5000] if "[]" in of else 5000, [5001], [name])
            assert connection.execute(query, given).fetchall() == [(None,)]
            again = f"SELECT id FROM mantle.{function}(%s::{of}, %s, %s)"
            assert connection.execute(again, given).fetchall() == [(1 << 41,)], "the next statement sees it"


def test_a_listing_hides_only_what_holds_nothing(plain):
    """While a directory waits for the worker, the fallback looks into the implicit ones of a page (P54)."""
    comparison = Comparison(plain)
    with comparison.session() as connection, connection.transaction(force_rollback=True):
        connection.execute("DELETE FROM mantle.meta WHERE pid = 5001")
        for name, explicit in (("empty/", False), ("kept/", True), ("object", None)):
            connection.execute(
                "INSERT INTO mantle.meta (pid, name, ns, id, explicit) VALUES (5001, %s, 5000, %s, %s)",
                (name, (1 << 42) + len(name), explicit),
            )
        page = (5000, 5001, None, None, 10)

        def listed() -> list[str]:
            calls = [(LIST.format(function), page) for function in ("list_filled", "list_filled_fallback")]
            found, expected = comparison.both(connection, *calls)
            assert found == expected
            return [row[0] for row in found]

        def are_left() -> list[bool]:
            """Of a filled page and of another, with others."""
            return [page is None for _, page in pages_together(connection, [(*page, True), (*page, False)])]

        assert (listed(), comparison.slow, are_left()) == (["empty/", "kept/", "object"], 0, [False, False])
        connection.execute("INSERT INTO mantle.prune_queue (pid, seq, id) VALUES (5001, 1, 1)")
        assert (listed(), comparison.slow, are_left()) == (["kept/", "object"], 1, [True, False])
        connection.execute("DELETE FROM mantle.meta WHERE pid = 5001 AND name = 'empty/'")
        assert (listed(), comparison.slow) == (["kept/", "object"], 1), "a page without implicit ones is read here"
        assert are_left() == [False, False]


def test_a_page_past_what_is_gone_delays_no_other(plain):
    """It would pass entries of the PostgreSQL index whose rows nobody sees; an old snapshot keeps them."""
    pid, other = 5004, 5005
    insert = (
        "INSERT INTO mantle.meta (pid, name, ns, id) SELECT {}, 'n' || g, 5000, {} + g FROM generate_series(1, {}) g"
    )
    with plain.connect() as connection, plain.connect() as old:
        connection.execute(insert.format(pid, 1 << 43, 1100))
        connection.execute(insert.format(other, 1 << 44, 900))
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM mantle.meta")
        connection.execute("DELETE FROM mantle.meta WHERE pid IN (%s, %s)", (pid, other))
        pages = [(5000, of, None, None, 1000, False) for of in (pid, other)]
        assert pages_together(connection, pages) == [(None, None), (None, b"")]
        assert connection.execute(LIST.format("list"), pages[0][:5]).fetchall() == []
        assert len(old.execute(LIST.format("list"), pages[0][:5]).fetchall()) == 1000


def test_pages_are_left_that_are_too_large_together(plain):
    """Thirteen million bytes each, of which five fit."""
    with plain.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute(
            "INSERT INTO mantle.meta (pid, name, ns, id, content_type)"
            " SELECT 5006, 'n' || g, 5000, %s + g, repeat('x', 1300000) FROM generate_series(1, 10) g",
            (1 << 45,),
        )
        small = (5000, 999, None, None, 1000, False)
        pages = [small, *[(5000, 5006, None, None, 1000, False)] * 7]
        found = [page for _, page in pages_together(connection, pages)]
        assert [page is None for page in found] == [False] + [False] * 5 + [True] * 2
        assert len(found[5]) > 13_000_000


@pytest.fixture(scope="module")
def target(citus_cluster) -> Iterator[CitusTarget]:
    with distributed_target(citus_cluster, "mantle_reads") as target:
        target.on_all_nodes(note_fallbacks)
        yield target


needs_citus = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")


@needs_citus
@pytest.mark.timeout(180)
def test_the_fast_path_answers_what_citus_does(target, capsys):
    spread = SpreadNamespace(target)

    def connect() -> psycopg.Connection:
        return psycopg.connect(**target.all[1], autocommit=True)

    comparison = compare(Place(connect, spread.ns, *spread.by_worker), capsys)
    assert comparison.fast > 100
    assert comparison.together > 100
    with spread.coordinator as connection:
        connection.execute("DELETE FROM mantle.meta WHERE id IS NULL OR id >= 1::bigint << 40")


# Reads the mode of an object before and after it gets a lock. In a page, byte 34 is the mode of its first entry: one
# whose name has one character, and that has neither owner nor group.
READ_TWICE = """
    DO $$
    DECLARE
        v_query text := 'SELECT string_agg(e.mode::text, '','') FROM (
            SELECT mode FROM mantle.stat({ns}, ARRAY[{pid}]::bigint[], ''{{o}}'')
            UNION ALL SELECT mode FROM mantle.list({ns}, {pid}, NULL, ''o'', 1)
            UNION ALL SELECT get_byte(page, 34) FROM mantle.list_local(
                ARRAY[{ns}], ARRAY[{pid}], ARRAY[NULL], ''{{o}}'', ''{{1}}'', ''{{f}}'')) AS e';
        v_before text;
        v_after text;
    BEGIN
        FOR i IN 1..7 LOOP
            EXECUTE v_query INTO v_before;
        END LOOP;
        PERFORM pg_advisory_xact_lock({lock});
        EXECUTE v_query INTO v_after;
        PERFORM set_config('test.modes', v_before || ' ' || v_after, false);
    END $$
"""
LOCK = 7_701
IS_WAITING = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"


@needs_citus
@pytest.mark.timeout(180)
def test_a_shard_that_has_left_is_not_read(citus_cluster, later):
    """A session that reads in its shard, in one transaction, does not notice by itself that the shard moves: it has all
    locks, so nothing makes it look at what others have reported. What was changed where the shard went is read there,
    and a gateway is told to ask there (P57).
    """
    with distributed_target(citus_cluster, "mantle_reads_moved") as target:
        spread = SpreadNamespace(target)
        pid, session = spread.by_worker[0][0], spread.sessions[0]
        insert = "INSERT INTO mantle.meta (pid, name, ns, id, mode) VALUES (%s, 'o', %s, %s, 1)"
        spread.coordinator.execute(insert, (pid, spread.ns, spread.new_id()))
        ends = [(node["host"], int(node["port"])) for node in target.all[1:]]
        session.execute("SELECT mantle.is_distributed()")
        with psycopg.connect(**target.all[1], autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
            reading = later(session.execute, READ_TWICE.format(ns=spread.ns, pid=pid, lock=LOCK))
            wait_until(
                lambda: reading.done() or holder.execute(IS_WAITING, (LOCK,)).fetchone() is not None, "the read", 30.0
            )
            move(spread.coordinator, spread.shard_of(pid), *ends, "block_writes")
            spread.coordinator.execute("UPDATE mantle.meta SET mode = 2 WHERE pid = %s AND name = 'o'", (pid,))
        reading.result(60.0)
        assert session.execute("SELECT current_setting('test.modes')").fetchone() == ("1,1,1 2,2",), "the page is left"
        local = "SELECT code FROM mantle.stat_local(ARRAY[%s]::bigint[], ARRAY[%s]::bigint[], '{o}')"
        codes, pages = [], []
        for at in spread.sessions:
            at.execute("SELECT mantle.is_distributed()")
            codes += at.execute(local, (spread.ns, pid)).fetchall()
            pages += pages_together(at, [(spread.ns, pid, None, "o", 1, False)])
        assert codes == [(WRONG_NODE,), (None,)]
        assert pages[0] == (WRONG_NODE, None)
        assert (pages[1][0], pages[1][1][34]) == (None, 2)
        spread.coordinator.execute("DELETE FROM mantle.meta WHERE pid = %s AND name = 'o'", (pid,))
        assert state.damage(spread.coordinator) == []


@needs_citus
def test_a_locked_shard_delays_no_other(target):
    """The other elements of the call are answered; that one may be asked alone."""
    spread = SpreadNamespace(target)
    here = spread.by_worker[0]
    other = directory_of_another_shard(spread, 0, here[0])
    session = spread.sessions[0]
    session.execute("SELECT mantle.is_distributed()")
    session.execute("SET statement_timeout = '20s'")
    with psycopg.connect(**target.all[1]) as holder:
        holder.execute("SET citus.enable_manual_changes_to_shards = on")
        holder.execute(f"LOCK TABLE mantle.meta_{spread.shard_of(here[0])} IN ACCESS EXCLUSIVE MODE")
        codes = session.execute(
            "SELECT code FROM mantle.stat_local(%s::bigint[], %s::bigint[], '{none,none}') ORDER BY ord",
            ([spread.ns], [here[0], other]),
        ).fetchall()
        pages = pages_together(session, [(spread.ns, of, None, "none", 1, False) for of in (here[0], other)])
    assert codes == [(WRONG_NODE,), ("MT010",)]
    assert pages == [(WRONG_NODE, None), (None, b"")]


@needs_citus
@pytest.mark.parametrize("status", ["off", "over a connection"])
def test_what_citus_must_read_is_left_to_it(target, status):
    """Where local execution is off, and after the transaction has sent a change of the shard over a connection, which
    this session cannot see.
    """
    spread = SpreadNamespace(target)
    session, pid = spread.sessions[0], spread.by_worker[0][0]
    session.execute("SELECT mantle.is_distributed()")
    with session.transaction(force_rollback=True):
        session.execute("SET LOCAL citus.enable_local_execution = off")
        session.execute("INSERT INTO mantle.meta (pid, name, ns, id) VALUES (%s, 'sent', %s, 1)", (pid, spread.ns))
        if status != "off":
            session.execute("SET LOCAL citus.enable_local_execution = on")
        found = session.execute(
            "SELECT id FROM mantle.stat(%s, ARRAY[%s]::bigint[], '{sent}')", (spread.ns, pid)
        ).fetchall()
        assert found == [(1,)]
