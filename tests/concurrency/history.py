"""Judges a history: is there an order in which the model gives the same answers and ends with the same tables?

The order is that of the commits, by pg_xact_commit_timestamp of the requests' rows. Why that is sound: a transaction
takes its timestamp before its commit is flushed and its locks are released. Conflicting transactions are serialized by
latches or row locks held to the end, so the second takes its timestamp after the first has released them. Others may be
in either order. Rows of one transaction are ordered by the time when they were written, then by command (cmin, which a
crash loses). On Citus a transaction has a timestamp on each of its nodes. There the order is the clock when the request
was recorded, between the last latch and the first commit.

A refusal leaves no row. It is explained if its fact was true at some state of the tree that was visible between its
call and its answer. An unknown outcome took effect if its request has a row, and not otherwise.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import psycopg

from . import state
from .load import GAVE_UP, Submission
from .tree import Op, Tree, stem
from .verbs import WITHOUT_REQUEST

_ROWS = """
    WITH done AS (
        SELECT request_id, request_hash, verb, id, version, xmin::text::bigint AS xid,
               cmin::text::bigint AS command, ctid AS place, created
          FROM mantle.requests WHERE ns = %(ns)s
        UNION ALL
        -- Pruned: a tombstone that no request has left. It is never written again.
        SELECT NULL, 0, 'prune', pid, NULL, xmin::text::bigint, 0, ctid, created
          FROM mantle.meta
         WHERE ns = %(ns)s AND removed
           AND xmin::text NOT IN (SELECT xmin::text FROM mantle.requests WHERE ns = %(ns)s))
    SELECT request_id, request_hash, verb, id, version,
           extract(epoch FROM pg_xact_commit_timestamp(xid::text::xid))::float8
      FROM done ORDER BY pg_xact_commit_timestamp(xid::text::xid), xid, created, command, place
"""
# Where transactions have no common order: by the time when the row was written, at which all latches were held.
_ROWS_BY_TIME = """
    SELECT request_id, request_hash, verb, id, version, extract(epoch FROM created)::float8
      FROM mantle.requests WHERE ns = %(ns)s ORDER BY created, request_id
"""
PROBLEMS_MAX = 20


@dataclass(frozen=True)
class Row:
    """The record of one request in the database."""

    request: UUID | None
    hash: int
    verb: str
    id: int
    version: int | None
    committed: float


def judge(
    connection: psycopg.Connection, ns: int, submissions: list[Submission], surprises: list[str], has_xids: bool = True
) -> list[str]:
    """All contradictions, as texts; none means that the history is sound."""
    query = _ROWS if has_xids else _ROWS_BY_TIME
    rows = [Row(*columns) for columns in connection.execute(query, {"ns": ns}).fetchall()]
    by_key: dict[tuple[UUID, int], list[Submission]] = defaultdict(list)
    for submission in submissions:
        by_key[submission.key.request, submission.key.hash].append(submission)
    problems = list(surprises)
    problems += _judge_answers(rows, submissions, by_key)
    tree = Tree()
    problems += _replay(tree, rows, by_key, _windows(rows, by_key, submissions, _refusals(submissions)))
    problems += state.differences(connection, ns, tree)
    if len(problems) > PROBLEMS_MAX:
        problems[PROBLEMS_MAX:] = [f"and {len(problems) - PROBLEMS_MAX} more"]
    return problems


def _judge_answers(rows: list[Row], submissions: list[Submission], by_key: dict) -> list[str]:
    """Each request id is answered once, and nothing acknowledged is lost."""
    problems = []
    recorded = {row.request: row for row in rows}
    done: dict[UUID, int] = defaultdict(int)
    for s in submissions:
        row = recorded.get(s.key.request)
        what = f"{s.op} {s.key.request}"
        is_recorded = row is not None and row.hash == s.key.hash
        # An aborted attempt may have a record: another attempt of the same request has made it.
        is_alone = s.decided == "committed" or len(by_key[s.key.request, s.key.hash]) == 1
        if s.decided is not None and (s.decided == "committed") != is_recorded and is_alone:
            problems.append(f"abort: its abort answered {s.decided}, there is {row}: {what}")
        if s.answer is None or s.op.verb in WITHOUT_REQUEST:
            continue
        if s.answer.code is None:
            if row is None or row.hash != s.key.hash:
                problems.append(f"lost: acknowledged, but recorded is {row}: {what}")
            elif s.answer.id not in (None, row.id) or s.answer.version not in (None, row.version):
                problems.append(f"answer: {s.answer}, recorded is {row}: {what}")
            done[s.key.request] += not s.answer.replayed
        elif s.answer.code == "MT020" and (row is None or row.hash == s.key.hash or row.committed > s.ended):
            problems.append(f"refusal: MT020, recorded is {row}: {what}")
    return problems + [
        f"twice: request {request} was carried out {count} times" for request, count in done.items() if count > 1
    ]


def _refusals(submissions: list[Submission]) -> list[Submission]:
    """The refusals that the state of the tree must explain."""
    newest: dict[UUID, int] = defaultdict(int)
    aborted = {s.key.request for s in submissions if s.decided == "aborted"}
    for s in submissions:
        newest[s.key.request] = max(newest[s.key.request], s.key.attempt)
    return [
        s
        for s in submissions
        if s.answer is not None
        and s.answer.code not in (None, "MT020", *GAVE_UP)
        and not (s.answer.code == "MT025" and (newest[s.key.request] > s.key.attempt or s.key.request in aborted))
    ]


def _replay(tree: Tree, rows: list[Row], by_key: dict, windows: dict[int, list[tuple[int, Submission]]]) -> list[str]:
    """Applies the rows in order, and finds for each refusal a state that explains it."""
    problems = []
    open_refusals: list[tuple[int, Submission]] = []
    for step in range(len(rows) + 1):
        if step > 0:
            problems += _apply(tree, rows[step - 1], by_key)
        open_refusals += windows.get(step, ())
        still = []
        for last, s in open_refusals:
            if _holds(tree, s):
                continue
            if step >= last:
                problems.append(f"refusal: {s.answer.code} was true at no moment of {s.op} {s.key.request}")
            else:
                still.append((last, s))
        open_refusals = still
    return problems


def _apply(tree: Tree, row: Row, by_key: dict) -> list[str]:
    submitted = by_key.get((row.request, row.hash))
    if not submitted and row.verb != "prune":
        return [f"nobody asked for {row}"]
    op = submitted[0].op if submitted else Op("prune", 0, id=row.id)
    outcome = tree.apply(op)
    if (outcome.code, outcome.id, outcome.version) != (None, row.id, row.version) or row.verb != op.verb:
        return [f"order: {row} of {op}: one after the other it would have been {outcome}"]
    return []


def _windows(
    rows: list[Row], by_key: dict, submissions: list[Submission], refusals: list[Submission]
) -> dict[int, list[tuple[int, Submission]]]:
    """Groups refusals by the first state that they may have seen; gives the last one, too. State n follows n rows. It
    begins at the commit of row n and ends when row n + 1 is visible, which it is once that row's answer has arrived.
    """
    prunings: dict[int, list[Submission]] = defaultdict(list)
    for s in submissions:
        if s.op.verb == "prune":
            prunings[s.op.id].append(s)

    def ends_of(row: Row) -> list[Submission]:
        return prunings[row.id] if row.verb == "prune" else by_key.get((row.request, row.hash), [])

    over: list[float] = []
    for row in rows:
        ends = [s.ended for s in ends_of(row) if s.answer is None or s.answer.code is None]
        over.append(max([row.committed, *over[-1:], *ends]))
    committed = [row.committed for row in rows]
    found: dict[int, list[tuple[int, Submission]]] = defaultdict(list)
    for s in refusals:
        last = bisect_right(committed, s.ended)
        found[min(bisect_left(over, s.began), last)].append((last, s))
    return found


def _holds(tree: Tree, s: Submission) -> bool:
    """Checks that the fact named by a refusal is true."""
    rule = _REFUSALS.get((s.answer.code, s.op.verb))
    return rule is not None and rule(tree, s.op)


def _other_id(tree: Tree, op: Op) -> bool:
    found = tree.at(op.pid, op.name)
    return found is not None and found.id != op.id


def _source_changed(tree: Tree, op: Op) -> bool:
    found = tree.at(op.pid, op.name)
    return found is None or found.id != op.id


def _condition_fails(tree: Tree, op: Op) -> bool:
    found = tree.at(op.pid, op.name)
    if op.condition == "*absent":
        return found is not None
    return op.condition is not None and (found is None or op.condition not in ("*present", found.etag))


def _directory_stands(tree: Tree, op: Op) -> bool:
    found = tree.at(op.pid, op.name)
    return found is not None and (found.explicit or not op.explicit)


def _destination_taken(tree: Tree, op: Op) -> bool:
    found = tree.at(op.dst_pid, op.dst_name)
    return found is not None and (found.id != op.victim or found.id == op.id)


def _absent(tree: Tree, op: Op) -> bool:
    return tree.at(op.pid, op.name) is None


def _victim_full(tree: Tree, op: Op) -> bool:
    found = tree.at(op.dst_pid, op.dst_name)
    return not tree.is_empty(op.victim) or (found is not None and not tree.is_empty(found.id))


_REFUSALS: dict[tuple[str, str], Callable[[Tree, Op], bool]] = {
    ("MT010", "delete_object"): _absent,
    ("MT010", "rmdir"): _absent,
    ("MT010", "set_attributes"): _absent,
    ("MT010", "rename_object"): _absent,
    ("MT012", "mkdir"): _directory_stands,
    ("MT012", "rename_object"): lambda tree, op: not op.overwrite and tree.at(op.dst_pid, op.dst_name) is not None,
    ("MT012", "rename_directory"): _destination_taken,
    ("MT015", "put_object"): lambda tree, op: tree.at(op.pid, op.name + "/") is not None,
    ("MT015", "rename_object"): lambda tree, op: tree.at(op.dst_pid, op.dst_name + "/") is not None,
    ("MT016", "mkdir"): lambda tree, op: tree.at(op.pid, stem(op.name)) is not None,
    ("MT016", "rename_directory"): lambda tree, op: tree.at(op.dst_pid, stem(op.dst_name)) is not None,
    ("MT017", "rmdir"): lambda tree, op: not tree.is_empty(op.id),
    ("MT017", "rename_directory"): _victim_full,
    ("MT018", "put_object"): lambda tree, op: op.pid in tree.removed,
    ("MT018", "mkdir"): lambda tree, op: op.pid in tree.removed,
    ("MT018", "rename_object"): lambda tree, op: op.dst_pid in tree.removed,
    ("MT018", "rename_directory"): lambda tree, op: op.dst_pid in tree.removed,
    ("MT018", "rmdir"): _other_id,
    ("MT018", "set_attributes"): _other_id,
    ("MT019", "put_object"): _condition_fails,
    ("MT022", "rename_directory"): lambda tree, op: op.dst_pid == op.id,
    ("MT026", "rename_directory"): _source_changed,
    ("MT026", "remove_tree"): _source_changed,
}
