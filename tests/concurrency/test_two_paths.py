"""mkdir and put_object exist twice: the fast path in Rust for new entries, the fallback in SQL for everything else.

Two databases get the same random batches (batches.py). One calls the verb. The other calls only the fallback, with one
element a call, in the verb's order: first the elements of the fast path, then the others by directory and name. Rows,
answers and messages must be the same. The last test breaks one path and demands that the comparison fails.

MANTLE_PROPERTY_SEED repeats a run.
"""

import collections
import os
import time
import uuid
from dataclasses import dataclass

import psycopg
import pytest

from tests.support.sql_wrappers import put_at_beginning

from . import verbs
from .batches import ADMITTED, OPTIONAL, PARAMETERS, Batches, Element
from .tree import Op

SECONDS = 4.0
SEED = int(os.environ.get("MANTLE_PROPERTY_SEED", time.time_ns() % 1_000_000))
BATCHES = 25
BATCH_ELEMENTS_MAX = 16_384
IDS_EACH = 1024
# Histories in which all cases are met, and a broken path is noticed.
HISTORIES_MAX = 40
CODES = (1, 2, 6, 11, 12, 15, 16, 18, 19, 20, 21, 30, 40, 44, 45, 48, 49)
OUTCOMES = ("fast", "done", "replayed", "messages", *(f"MT{code:03}" for code in CODES))
DELTA_RECORDS = ("auto", "never", "always")
SLOT_ANSWERS = (
    "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
    " 'publication_names', 'mantle_stream', 'messages', 'true')"
)
ANSWER = {
    "mkdir": "code, id, version, replayed, flush_lsn IS NULL, NULL",
    "put_object": "code, id, version, replayed, flush_lsn IS NULL, old_locator",
}
# Everything except times and the numbers of delta records and queue rows. Counts are summed: each call may append a
# delta record.
ROWS = {
    "entries": "SELECT pid, name, id, owner, grp, mode, version, explicit, size, synthetic, etag, content_type,"
    " user_metadata::text, locator, created IS NULL, modified IS NULL, created = modified FROM mantle.meta"
    " WHERE ns = %s AND ts = 0 AND id IS NOT NULL",
    "counts": "SELECT pid, ns, max(owner), max(grp), max(mode), sum(entries), sum(subdirectories), sum(bytes),"
    " bool_or(removed), bool_or(ts = 0), bool_or(ts > 0), count(*) = count(modified)"
    " FROM mantle.meta WHERE ns = %s AND id IS NULL GROUP BY pid, ns",
    "requests": "SELECT ns, principal, request_id, request_hash, verb, pid, id, version, created IS NULL"
    " FROM mantle.requests WHERE ns = %s",
    "inline": "SELECT i.pid, i.id, i.bytes FROM mantle.inline i"
    " WHERE i.pid IN (SELECT m.pid FROM mantle.meta m WHERE m.ns = %s)",
    "queue": "SELECT q.pid, q.id, queued IS NULL FROM mantle.prune_queue q"
    " JOIN mantle.meta m ON m.id = q.id WHERE m.ns = %s",
}
DIGEST = "SELECT md5(string_agg(r, ' ' ORDER BY r)) FROM ({}) AS _ (r)".format(
    " UNION ALL ".join(f"SELECT concat('{name}', q) FROM ({query}) AS q" for name, query in ROWS.items())
)

PLACE = "SELECT pid, name FROM mantle.meta WHERE id = %s AND explicit IS NOT NULL AND pid <> 0"
# Not the default, so that masking twice or not at all is noticed.
UMASK = 0o026

Answer = tuple[object, ...]


class Database:
    """One of the two databases, with a slot that keeps its messages."""

    def __init__(self, target):
        self.connection = target.connect()
        self.slot = target.database
        self.connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self.slot,))
        self.connection.cursor().executemany(
            "INSERT INTO mantle.admitted_segments (volume, segment, epoch, mount_epoch, lineage)"
            " VALUES (%s, %s, %s, 1, mantle.lineage())", ADMITTED,
        )  # fmt: skip
        self.next_id = verbs.allocate_ids(self.connection, 1 << 20)
        self.ns = 0

    def begin(self, delta_records: str) -> None:
        """A new namespace. Its id, and those of its entries, are the same in both databases."""
        self.ns = self.next_id
        self.next_id += IDS_EACH
        key = verbs.Key(uuid.UUID(int=self.ns))
        name = f"two-paths-{self.ns}"
        assert verbs.make_namespace(self.connection, name, self.ns, key).code is None
        assert self.connection.execute("SELECT mantle.set_umask(0, %s, %s)", (name, UMASK)).fetchone() == (None,)
        self.connection.execute("SELECT set_config('mantle.delta_records', %s, false)", (delta_records,))

    def close(self) -> None:
        self.connection.execute("SELECT pg_drop_replication_slot(%s)", (self.slot,))
        self.connection.close()

    def run(self, function: str, verb: str, arrays: dict[str, list | None], *rest: object) -> list[Answer]:
        """Calls a function with a verb's parameters, and the others of the fallback."""
        types = PARAMETERS[verb]
        given = [f"%({name})s::{types[name]}[]" for name in types] + [f"%(rest{at})s" for at in range(len(rest))]
        values = arrays | {f"rest{at}": value for at, value in enumerate(rest)}
        query = f"SELECT ord, {ANSWER[verb]} FROM mantle.{function}({', '.join(given)}) ORDER BY ord"
        return self.connection.execute(query, values).fetchall()

    def digest(self) -> str:
        """Of all rows."""
        return self.connection.execute(DIGEST, [self.ns] * len(ROWS)).fetchone()[0]

    def rows(self) -> dict[str, list]:
        return {name: sorted(map(repr, self.connection.execute(query, (self.ns,)))) for name, query in ROWS.items()}

    def messages(self) -> list[tuple[int, bytes]]:
        """For each transaction since the last call that emitted any: its number of operations, and these."""
        found: list[tuple[int, bytes]] = []
        for (data,) in self.connection.execute(SLOT_ANSWERS, (self.slot,)):
            kind = data[:1]
            if kind == b"B":
                found.append((0, b""))
            elif kind == b"M":
                prefix, content = data[10:].split(b"\0", 1)
                # A length, then the message: format version, number of operations (one byte below 128), operations.
                assert (prefix, content[4]) == (b"mantle", 1) and content[5] < 128, data
                found[-1] = (found[-1][0] + content[5], found[-1][1] + content[6:])
        return [transaction for transaction in found if transaction[0]]


class FastPath(Database):
    """Calls the verbs, and notes which elements the fast path has left to the fallback."""

    def __init__(self, target):
        super().__init__(target)
        for verb in PARAMETERS:
            note = "PERFORM set_config('test.made', coalesce(p_made::text, 'not begun'), false);"
            put_at_beginning(self.connection, f"{verb}_fallback", "test_two_paths", note)
        self.connection.execute("SELECT set_config('test.made', 'all', false)")

    def call(self, verb: str, elements: list[Element]) -> tuple[list[Answer], list[int]]:
        """The answers, and the elements that the fast path made."""
        answers = self.run(verb, verb, arrays_of(verb, elements))
        made, _ = self.connection.execute(
            "SELECT current_setting('test.made'), set_config('test.made', 'all', false)"
        ).fetchone()
        assert made != "not begun", elements
        numbers = range(len(elements)) if made == "all" else [int(n) - 1 for n in made.strip("{}").split(",") if n]
        return answers, list(numbers)


class Fallback(Database):
    """Calls the fallback alone."""

    def call(self, verb: str, elements: list[Element], order: list[int]) -> list[Answer]:
        """One transaction; each element is a call of its own, so that they run in this order."""
        answers = []
        with self.connection.transaction():
            for at in order:
                # The fast path has taken the umask's bits away.
                mode = elements[at]["mode"]
                element = elements[at] | {"mode": mode & ~UMASK if isinstance(mode, int) and mode >= 0 else mode}
                ((_, *answer),) = self.run(f"{verb}_fallback", verb, arrays_of(verb, [element]), "{}", None)
                answers.append((at + 1, *answer))
        return sorted(answers, key=lambda answer: answer[0])


def arrays_of(verb: str, elements: list[Element]) -> dict[str, list | None]:
    arrays: dict[str, list | None] = {name: [element[name] for element in elements] for name in PARAMETERS[verb]}
    for name in OPTIONAL:
        if name in arrays and all(value is None for value in arrays[name]):
            arrays[name] = None
    return arrays


def order_of(elements: list[Element], made: list[int]) -> list[int]:
    """What the fast path made; then the rest as the fallback sorts it, NULLs last."""

    def key(at: int) -> tuple:
        pid, name = elements[at]["pid"], elements[at]["name"]
        return pid is None, pid or 0, name is None, (name or "").encode(), at

    return made + sorted(set(range(len(elements))) - set(made), key=key)


def one_history(fast: FastPath, fallback: Fallback, seed: int) -> tuple[list[str], collections.Counter]:
    """Differences, and how elements ended."""
    outcomes: collections.Counter = collections.Counter()
    for database in (fast, fallback):
        database.begin(DELTA_RECORDS[seed % len(DELTA_RECORDS)])
    (lease,) = fast.connection.execute("SELECT mantle.lease(%s)", (fast.ns,)).fetchone()
    batches = Batches(seed, fast.ns, fast.ns, lease, int(time.time() * 1000))
    for number in range(BATCHES):
        verb, elements = batches.next()
        answers, made = fast.call(verb, elements)
        expected = fallback.call(verb, elements, order_of(elements, made))
        outcomes["fast"] += len(made)
        outcomes.update(code or ("replayed" if replayed else "done") for _, code, _, _, replayed, *_ in answers)
        if answers != expected or fast.digest() != fallback.digest():
            found = differences(answers, expected, fast.rows(), fallback.rows())
            return [f"batch {number}, {verb}: {element}" for element in elements] + [f"made: {made}", *found], outcomes
        if number % 4 == 0:
            remove_some(batches, fast, fallback)
        if number % 4 == 2:
            close_some(batches, fast, fallback)
    messages, expected_messages = fast.messages(), fallback.messages()
    outcomes["messages"] += len(messages)
    if messages != expected_messages:
        return [f"messages: {messages}", f"expected: {expected_messages}"], outcomes
    return [], outcomes


def remove_some(batches: Batches, *databases: Database) -> None:
    """Removes a directory, if it is empty, so that there are tombstones. The same in both databases."""
    id = batches.random.choice(batches.directories)
    key = verbs.Key(batches.request(4))
    for database in databases:
        found = database.connection.execute(PLACE, (id,)).fetchone()
        if found is not None:
            verbs.call(database.connection, database.ns, [Op("rmdir", found[0], found[1], id)], [key])


def close_some(batches: Batches, *databases: Database) -> None:
    """Changes the mode of a directory, if it is there. The same in both databases."""
    id, mode = batches.random.choice(batches.directories), batches.random.choice((0o500, 0o750, 0o770))
    key = verbs.Key(batches.request(4))
    for database in databases:
        found = database.connection.execute(PLACE, (id,)).fetchone()
        if found is not None:
            verbs.call(
                database.connection, database.ns, [Op("set_attributes", found[0], found[1], id, mode=mode)], [key]
            )


def differences(answers: list, expected: list, rows: dict[str, list], expected_rows: dict[str, list]) -> list[str]:
    texts = [f"answer: {a}, expected {e}" for a, e in zip(answers, expected, strict=True) if a != e]
    for table, found in rows.items():
        texts += [f"{table}: {row} is only in the fast path's" for row in set(found) - set(expected_rows[table])]
        texts += [f"{table}: {row} is only in the fallback's" for row in set(expected_rows[table]) - set(found)]
        if not texts and found != expected_rows[table]:
            texts.append(f"{table}: a row is there more often in one")
    return texts


@dataclass(frozen=True)
class Until:
    """When a comparison ends: so many seconds, and every outcome met, within so many histories from a seed on."""

    seed: int
    seconds: float
    histories_max: int
    outcomes: tuple[str, ...]


def compare_until_all_are_met(fast, fallback, one_history, until: Until, capsys) -> None:
    """Plays random histories at both, which must stay equal."""
    assert fast.next_id == fallback.next_id
    deadline, seed, total = time.monotonic() + until.seconds, until.seed, collections.Counter()
    # Goes on until every case was met: a generator that no longer reaches one would prove nothing.
    while time.monotonic() < deadline or not all(total[outcome] > 0 for outcome in until.outcomes):
        found, outcomes = one_history(fast, fallback, seed)
        assert found == [], f"MANTLE_PROPERTY_SEED={seed}:\n" + "\n".join(found)
        total += outcomes
        seed += 1
        assert seed - until.seed < until.histories_max, [*sorted(set(until.outcomes) - set(total)), total]
    with capsys.disabled():
        print(f"\n{seed - until.seed} histories, seeds {until.seed} to {seed - 1}: {dict(total.most_common())}")


@pytest.fixture(scope="module")
def databases(make_target):
    both = FastPath(make_target("paths_fast")), Fallback(make_target("paths_fallback"))
    yield both
    for database in both:
        database.close()


def test_the_fast_path_does_what_the_fallback_does(databases, capsys):
    fast, fallback = databases
    compare_until_all_are_met(fast, fallback, one_history, Until(SEED, SECONDS, HISTORIES_MAX, OUTCOMES), capsys)


def malformed() -> list[tuple[str, str, dict[str, list | None]]]:
    batches = Batches(1, 2000, 3000, "1/2/3/4", 0)
    cases = []
    for verb in PARAMETERS:
        good = arrays_of(verb, [batches.element(verb, True) for _ in range(2)])
        cases += [(verb, f"{name} is NULL", good | {name: None}) for name in good if name not in OPTIONAL]
        cases += [(verb, f"{name} is short", good | {name: (good[name] or ["x"])[:1]}) for name in good]
        cases.append((verb, "empty", {name: [] for name in good}))
        cases.append((verb, "too many", {name: [None] * (BATCH_ELEMENTS_MAX + 1) for name in good}))
    return cases


def test_malformed_batches_are_refused_alike(databases):
    fast, fallback = databases

    def outcome(call) -> object:
        try:
            return call()
        except psycopg.Error as error:
            return error.sqlstate

    codes = set()
    for verb, what, arrays in malformed():
        refused = outcome(lambda: fast.run(verb, verb, arrays))
        assert refused == outcome(lambda: fallback.run(f"{verb}_fallback", verb, arrays, None, None)), (verb, what)
        codes.add(str(refused))
    assert codes >= {"MT006", "MT007", "[]"}, codes


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        ("mkdir_one", "ROW(p_ns, p_pid, 1, 1, 0)", "ROW(p_ns, p_pid, 1, 0, 0)"),
        ("mkdir_one", "p_id, 1, p_owner, p_grp, p_mode, p_principal", "p_id, 1, p_grp, p_owner, p_mode, p_principal"),
        ("put_object_one", "(v_old.id IS NULL)::int, 0, p_size", "(v_old.id IS NULL)::int, 0, 0 * p_size"),
        ("put_object_one", "'MT015'", "'MT016'"),
        ("put_object_one", "PERFORM mantle.add_inline(p_pid, v_locator, p_inline);", "NULL;"),
        ("record_request", "coalesce(p_hash, 0)", "coalesce(p_hash, 1)"),
    ],
    ids=["counts", "message", "bytes", "code", "inline", "request"],
)
def test_a_broken_path_is_noticed(databases, function, right, wrong):
    fast, fallback = databases
    connection = fallback.connection
    (text,) = connection.execute("SELECT pg_get_functiondef(to_regproc(%s)::oid)", (f"mantle.{function}",)).fetchone()
    assert right in text, f"mantle.{function} has no {right} any more"
    connection.execute(text.replace(right, wrong))
    try:
        assert any(one_history(fast, fallback, seed)[0] for seed in range(SEED, SEED + HISTORIES_MAX)), (
            f"seeds from {SEED}"
        )
    finally:
        connection.execute(text)
