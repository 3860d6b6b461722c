"""For the reads that exist twice (test_reads.py): random rows, questions about them, a comparison of the answers."""

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg

from .pages import copied, entries_together, pages_together

QUESTIONS = 8
WRONG_NODE = "MT043"
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
IS_THERE = "SELECT FROM mantle.meta WHERE pid = %(pid)s AND name = %(name)s AND ts = %(ts)s"
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
                # REPEATABLE READ may still show a row that others have deleted, and a new one beside it.
                if connection.execute(IS_THERE, row).fetchone() is None:
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
