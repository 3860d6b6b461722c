"""rename_directory and rmdir exist twice, as mkdir and put_object do (test_two_paths.py): the fast path in Rust, the
fallback in SQL. Two databases get the same random calls. One calls the verb, the other only the fallback. Rows, answers
and messages must be the same. The last test breaks one path and demands that the comparison fails.

MANTLE_PROPERTY_SEED repeats a run.
"""

import collections
import os
import random
import time
import uuid
from dataclasses import dataclass, field

import pytest

from tests.support.sql_wrappers import put_at_beginning

from . import verbs
from .batches import Batches
from .test_two_paths import DELTA_RECORDS, DIGEST, ROWS, Database, Until, compare_until_all_are_met, differences
from .tree import Op

SECONDS = 4.0
SEED = int(os.environ.get("MANTLE_PROPERTY_SEED", time.time_ns() % 1_000_000))
CALLS = 60
HISTORIES_MAX = 40
NAMES = ("a/", "b/", "c/", "é/", "o/")
RENAME = {
    "principal": "int",
    "ns": "bigint",
    "src_pid": "bigint",
    "src_name": "text",
    "src_id": "bigint",
    "dst_pid": "bigint",
    "dst_name": "text",
    "victim_id": "bigint",
    "index_group": "int",
    "epoch": "bigint",
    "attempt": "bigint",
    "request": "uuid",
    "hash": "bigint",
    "lease": "text",
    "caller": "text",
}
# After the proof.
PARENTS = ("src_parent", "dst_parent")
RMDIR = {
    "principal": "int",
    "ns": "bigint",
    "pid": "bigint",
    "name": "text",
    "id": "bigint",
    "request": "uuid",
    "hash": "bigint",
    "lease": "text",
    "caller": "text",
    "parent": "text",
}
ATTEMPTS = "SELECT principal, request_id, attempt, state, created IS NULL FROM mantle.rename_attempts WHERE ns = %s"
# `fast` ends an element without the fallback.
OUTCOMES = (
    *(f"{verb} {end}" for verb in ("rename_directory", "rmdir") for end in ("fast", "done", "replayed")),
    "rename_directory replaces",
    "rmdir in part",
    *(f"rename_directory MT{code:03}" for code in (1, 6, 11, 12, 16, 17, 18, 20, 22, 24, 25, 26, 30, 44, 46)),
    *(f"rmdir MT{code:03}" for code in (1, 6, 10, 11, 17, 18, 20, 30, 44)),
)


class Side(Database):
    """One of the two databases. `suffix`: of the functions that it calls."""

    suffix = ""
    more = ""

    def rename(self, given: dict[str, object], proven: dict[str, object]) -> tuple:
        """`proven`: what the index has signed."""
        arguments = ", ".join(f"%({name})s::{of}" for name, of in RENAME.items())
        signed = [name for name in RENAME if name not in ("hash", "lease", "caller")]
        order = ("index_group", "epoch", "attempt", "principal", "ns", "request")
        signed = [*order, *(name for name in signed if name not in order)]
        proof = f"mantle.prove({', '.join(f'%(proven_{name})s::{RENAME[name]}' for name in signed)})"
        query = (
            "SELECT code, id, version, replayed, flush_lsn IS NULL"
            f" FROM mantle.rename_directory{self.suffix}({arguments}, {proof}, %(src_parent)s, %(dst_parent)s)"
        )
        values = given | {f"proven_{name}": value for name, value in proven.items()}
        return self.connection.execute(query, values).fetchone()

    def rmdir(self, elements: list[dict[str, object]]) -> list[tuple]:
        arguments = ", ".join(f"%({name})s::{of}[]" for name, of in RMDIR.items())
        query = (
            "SELECT ord, code, id, NULL, replayed, flush_lsn IS NULL"
            f" FROM mantle.rmdir{self.suffix}({arguments}{self.more}) ORDER BY ord"
        )
        return self.connection.execute(query, {name: [e[name] for e in elements] for name in RMDIR}).fetchall()

    def everything(self) -> tuple:
        attempts = self.connection.execute(ATTEMPTS, (self.ns,)).fetchall()
        return sorted(map(repr, attempts)), self.connection.execute(DIGEST, [self.ns] * len(ROWS)).fetchone()[0]


class Fast(Side):
    def __init__(self, target):
        super().__init__(target)
        for verb, note in (("rename_directory", "'all'"), ("rmdir", "coalesce(p_made::text, 'all')")):
            statement = f"PERFORM set_config('test.left', {note}, false);"
            put_at_beginning(self.connection, f"{verb}_fallback", "test_two_paths_moves", statement)
        self.left()

    def left(self) -> str:
        """What the last call has left to the fallback: `none`, `all`, or the numbers that it has done itself."""
        query = "SELECT current_setting('test.left', true), set_config('test.left', 'none', false)"
        return self.connection.execute(query).fetchone()[0]


class Slow(Side):
    suffix = "_fallback"
    more = ", NULL, NULL"


@dataclass
class Calls:
    """A source of calls for one namespace, whose directories' ids are all known."""

    seed: int
    ns: int
    lease: str
    ids: list[int] = field(default_factory=list)
    used: list[uuid.UUID] = field(default_factory=list)
    answered: list[uuid.UUID] = field(default_factory=list)
    attempt: int = 0

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.batches = Batches(self.seed, self.ns, self.ns, self.lease, int(time.time() * 1000))

    def directory(self) -> int:
        return self.random.choice([self.ns, *self.ids[-6:]])

    def common(self) -> dict[str, object]:
        self.used.append(self.batches.request(7))
        is_repeated = self.answered and self.random.random() < 0.15
        return {
            "principal": 5,
            "ns": self.ns,
            "request": self.random.choice(self.answered) if is_repeated else self.used[-1],
            "hash": self.random.choice((1, 1, 2)) if is_repeated else 1,
            "lease": self.random.choice((self.lease, None)),
            "caller": self.random.choice(("0", "7,8", "7,8", "9,8")),
        }

    def odd(self, oddities: dict[str, tuple]) -> dict[str, object]:
        if self.random.random() < 0.5:
            return {}
        name = self.random.choice(sorted(oddities))
        return {name: self.random.choice(oddities[name])}

    def rename(self, found: list[tuple[int, str, int]]) -> tuple[dict[str, object], dict[str, object]]:
        """`found`: directory, name and id of the entries."""
        pid, name, id = self.random.choice(found)
        self.attempt += self.random.choice((1, 1, 1, 0, -1))
        given = self.common() | {
            "src_pid": pid,
            "src_name": name,
            "src_id": id,
            "dst_pid": self.random.choice((pid, self.directory())),
            "dst_name": self.random.choice(NAMES),
            "victim_id": 0,
            "index_group": 1,
            "epoch": 0,
            "attempt": self.attempt,
            **{parent: self.random.choice((None, "7,8,504")) for parent in PARENTS},
        }
        there = [of for of in found if of[:2] == (given["dst_pid"], given["dst_name"])]
        if there and self.random.random() < 0.5:
            given["victim_id"] = there[0][2]
        proven = dict(given)
        odd = self.odd(
            {
                "principal": (6, None),
                "ns": (self.ns + (1 << 40), None),
                "src_pid": (1, None, self.directory()),
                "src_name": ("a", "", "./", "x/y/", None),
                "src_id": (id + 1, None),
                "dst_pid": (1, id, None),
                "dst_name": ("a", "..", "y" * 256 + "/", None),
                "victim_id": (7, -1, None),
                "epoch": (1, None),
                "attempt": (None, self.attempt - 3),
                "request": (self.random.choice(self.used), None, self.batches.request(4)),
                "hash": (2, None),
                "lease": tuple(self.batches.leases[2:]),
                "caller": ("nobody", None, "9"),
                **dict.fromkeys(PARENTS, ("7,8,1016", "5,8,504", "0770")),
            }
        )
        given |= odd
        # Mostly the index has signed what is asked for. A NULL proves nothing.
        if self.random.random() < 0.85:
            proven |= odd
        return given, proven

    def rmdir(self, found: list[tuple[int, str, int]]) -> list[dict[str, object]]:
        chosen = self.random.choices(found, k=self.random.choice((1, 1, 2, 4)))
        # What the fast path removes it removes before the others. So no answer may depend on the order.
        is_repeated = len(set(chosen)) < len(chosen)
        elements = []
        for pid, name, id in chosen:
            element = self.common() | {"pid": pid, "name": name, "id": id, "parent": "7,8,504"}
            odd = {
                "principal": (6, None),
                "ns": (self.ns + (1 << 40), None),
                "pid": (1, None, self.directory()),
                "name": ("a", "", "z/", None),
                "id": (id + 1, None),
                "hash": (2, None),
                "lease": tuple(self.batches.leases[2:]),
                "caller": ("nobody", None, "9"),
                "parent": ("7,8,455", "0755", None),
            }
            if len(chosen) == 1:
                odd["request"] = (self.random.choice(self.used), None, self.batches.request(7, 300_000))
            if len(chosen) > 1:
                element["request"] = self.used[-1]
            elements.append(element | ({"caller": "0"} if is_repeated else self.odd(odd)))
        return elements


def entries(side: Side) -> list[tuple[int, str, int]]:
    query = "SELECT pid, name, id FROM mantle.meta WHERE ns = %s AND explicit IS NOT NULL AND pid > 1 ORDER BY id"
    return side.connection.execute(query, (side.ns,)).fetchall()


def fill(calls: Calls, *sides: Side) -> None:
    """Makes a directory or an object, or changes a directory's mode; the same in both databases."""
    new, pid, kind = sides[0].next_id, calls.directory(), calls.random.random()
    op = Op("mkdir", pid, calls.random.choice(NAMES), new, explicit=calls.random.random() < 0.5, mode=0o770)
    if kind < 0.1:
        op = Op("put_object", pid, "o", new, size=1, mode=0o644)
    elif kind < 0.2:
        found = [of for of in entries(sides[0]) if of[2] == pid]
        if found:
            mode = calls.random.choice((0o500, 0o770, 0o1770))
            op = Op("set_attributes", found[0][0], found[0][1], pid, mode=mode)
    key = verbs.Key(calls.batches.request(4))
    codes = {verbs.call(side.connection, side.ns, [op], [key])[0].code for side in sides}
    assert len(codes) == 1
    for side in sides:
        side.next_id += 1
    if codes == {None} and op.verb == "mkdir":
        calls.ids.append(new)


def one_history(fast: Fast, slow: Slow, seed: int) -> tuple[list[str], collections.Counter]:
    """Differences, and how calls ended."""
    outcomes: collections.Counter = collections.Counter()
    for side in (fast, slow):
        side.begin(DELTA_RECORDS[seed % len(DELTA_RECORDS)])
    (lease,) = fast.connection.execute("SELECT mantle.lease(%s)", (fast.ns,)).fetchone()
    calls = Calls(seed, fast.ns, lease)
    for number in range(CALLS):
        fill(calls, fast, slow)
        found = entries(fast)
        if not found:
            continue
        # A lease that ends between the two calls would make a difference.
        (calls.lease,) = fast.connection.execute("SELECT mantle.lease(%s)", (fast.ns,)).fetchone()
        if number % 2:
            given, proven = calls.rename(found)
            if calls.random.random() < 0.1 and given["request"] and given["attempt"]:
                key = verbs.Key(given["request"], attempt=given["attempt"])
                assert verbs.abort_rename(fast.connection, fast.ns, key) == verbs.abort_rename(
                    slow.connection, slow.ns, key
                )
            fast.left()
            answer, expected = fast.rename(given, proven), slow.rename(given, proven)
            left, what = fast.left(), f"rename_directory {given}, proven {proven}"
            outcomes["rename_directory fast"] += left == "none"
            outcomes["rename_directory replaces"] += answer[0] is None and bool(given["victim_id"])
            calls.answered += [given["request"]] if answer[0] is None else []
            outcomes[f"rename_directory {answer[0] or ('replayed' if answer[3] else 'done')}"] += 1
        else:
            elements = calls.rmdir(found)
            fast.left()
            answer, expected = fast.rmdir(elements), slow.rmdir(elements)
            left, what = fast.left(), f"rmdir {elements}"
            calls.answered += [elements[0]["request"]] if answer[0][1] is None else []
            outcomes["rmdir fast"] += left == "none"
            outcomes["rmdir in part"] += left not in ("none", "all", "{}")
            outcomes.update(
                f"rmdir {code or ('replayed' if replayed else 'done')}" for _, code, _, _, replayed, _ in answer
            )
        if answer != expected or fast.everything() != slow.everything():
            found = differences([answer], [expected], fast.rows(), slow.rows())
            return [
                f"call {number}, {what}",
                f"left: {left}",
                *map(str, (fast.everything(), slow.everything())),
                *found,
            ], outcomes
    messages, expected_messages = fast.messages(), slow.messages()
    if messages != expected_messages:
        return [f"messages: {messages}", f"expected: {expected_messages}"], outcomes
    return [], outcomes


@pytest.fixture(scope="module")
def sides(make_target):
    both = Fast(make_target("moves_fast")), Slow(make_target("moves_slow"))
    yield both
    for side in both:
        side.close()


def test_the_fast_path_does_what_the_fallback_does(sides, capsys):
    fast, slow = sides
    compare_until_all_are_met(fast, slow, one_history, Until(SEED, SECONDS, HISTORIES_MAX, OUTCOMES), capsys)


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        ("remove_entry_delegated", "-1, -v_directory", "-1, 0"),
        ("rename_directory_move", "p_src.version + 1", "p_src.version + 2"),
        ("record_attempt_delegated", "a.attempt > p_attempt", "false"),
        ("remove_entry_delegated", "PERFORM mantle.queue_pruning(p_pid, p_pid);", ""),
        ("rename_directory_fault", "p_dst_pid <> m.pid AND", "false AND"),
        ("rename_directory_fault", "coalesce(s.permission, p_src_parent)", "s.permission"),
        ("rename_directory_fault", "coalesce(d.permission, p_dst_parent)", "d.permission"),
        ("rmdir_delegated", "v_old.id <> p_id", "false"),
    ],
    ids=["counts", "version", "attempt", "queue", "permission", "source's parent", "destination's parent", "id"],
)
def test_a_broken_path_is_noticed(sides, function, right, wrong):
    fast, slow = sides
    (text,) = slow.connection.execute(
        "SELECT pg_get_functiondef(to_regproc(%s)::oid)", (f"mantle.{function}",)
    ).fetchone()
    assert right in text, f"mantle.{function} has no {right} any more"
    slow.connection.execute(text.replace(right, wrong))
    try:
        assert any(one_history(fast, slow, seed)[0] for seed in range(SEED, SEED + HISTORIES_MAX)), f"seeds from {SEED}"
    finally:
        slow.connection.execute(text)
