"""mantle.stat, mantle.list and mantle.list_filled exist twice: the fast path in Rust, and the fallback in SQL for what
it cannot read. Both are called with the same arguments on the same random rows, in the same transaction, during changes
of other sessions and of its own, on one node and on Citus. The answers must be the same. The entries of
mantle.stat_local and the pages of mantle.list_local must have the same bytes, unless they leave one out.

MANTLE_PROPERTY_SEED repeats a run.
"""

import os
import time
from collections.abc import Iterator

import psycopg
import pytest

from stack import citus
from stack.poll import wait_until
from tests.support.sql_wrappers import put_at_beginning

from . import state
from .compared_reads import LIST, WRONG_NODE, Comparison, Place, one_history
from .distributed import CitusTarget, SpreadNamespace, distributed_target, move
from .pages import pages_together

SEED = int(os.environ.get("MANTLE_PROPERTY_SEED", time.time_ns() % 1_000_000))
HISTORIES = 12
FALLBACKS = ("stat_fallback", "list_fallback", "list_filled_fallback")


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
