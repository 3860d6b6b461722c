"""The commands that verbs and reads send between the nodes of a Citus cluster. A verb in one directory touches one
node. A change on two nodes commits in two phases. A new entry is written in its shard itself.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from stack import citus

from . import state, verbs
from .distributed import SpreadNamespace, distributed_target
from .tree import Op
from .verbs import Key

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")


@pytest.fixture(scope="module")
def spread(citus_cluster) -> Iterator[SpreadNamespace]:
    with distributed_target(citus_cluster, "mantle_commands") as target:
        yield SpreadNamespace(target)


def remote_commands(session: psycopg.Connection, work) -> list[tuple[str, str]]:
    """The commands that a session sends to other nodes during a call: node (host:port) and command."""
    sent: list[tuple[str, str]] = []

    def note(diagnostic) -> None:
        if diagnostic.message_primary.startswith("issuing "):
            node = diagnostic.message_detail.split("@", 1)[1].split(" ", 1)[0]
            sent.append((node, diagnostic.message_primary.removeprefix("issuing ")))

    session.add_notice_handler(note)
    session.execute("SET citus.log_remote_commands = on")
    try:
        work()
    finally:
        session.execute("SET citus.log_remote_commands = off")
        session.remove_notice_handler(note)
    return sent


# How a node's part of a transaction begins and ends. Longer texts first.
_ENDS = ("BEGIN", "PREPARE TRANSACTION", "COMMIT PREPARED", "ROLLBACK PREPARED", "COMMIT", "ROLLBACK")
ONE_PHASE = ["BEGIN", "COMMIT"]
TWO_PHASES = ["BEGIN", "PREPARE TRANSACTION", "COMMIT PREPARED"]


def transactions(sent: list[tuple[str, str]]) -> dict[int, list[str]]:
    """How the transactions on each node, by port, began and ended. A single statement is no transaction."""
    found: dict[int, list[str]] = {}
    for node, command in sent:
        ends = found.setdefault(int(node.rsplit(":", 1)[1]), [])
        ends += [end for end in _ENDS if command.startswith(end)][:1]
    return found


def prepared_names(sent: list[tuple[str, str]], how: str) -> list[str]:
    return sorted(command.split("'")[1] for _, command in sent if command.startswith(how))


def single_directory_operations(spread: SpreadNamespace, pid: int) -> list[Op]:
    id, directory = spread.new_id(), spread.new_id()
    return [
        Op("put_object", pid, f"o{id}", id, size=5, mode=420, etag="e"),
        Op("put_object", pid, f"o{id}", id, size=7, mode=420, etag="f"),
        Op("set_attributes", pid, f"o{id}", id, mode=384),
        Op("mkdir", pid, f"m{directory}/", directory, explicit=True),
        Op("rename_object", pid, f"o{id}", dst_pid=pid, dst_name=f"p{id}"),
        Op("delete_object", pid, f"p{id}"),
        Op("compact", pid),
    ]


def test_a_verb_in_one_directory_touches_its_node_alone(spread):
    """From the directory's node nothing is sent. From another node only that node is asked, and commits once, in one
    phase.
    """
    for worker, session in enumerate(spread.sessions):
        for op in single_directory_operations(spread, spread.by_worker[worker][0]):
            sent = remote_commands(session, lambda op=op: spread.call(session, op))
            assert sent == [], f"{op.verb} on its own node sent {sent}"
    for session in (spread.sessions[0], spread.coordinator):
        for op in single_directory_operations(spread, spread.by_worker[1][0]):
            answer = []
            sent = remote_commands(session, lambda op=op, answer=answer: answer.append(spread.call(session, op)))
            assert answer[0].code is None
            assert transactions(sent) == {spread.port(1): ONE_PHASE}, f"{op.verb} sent {sent}"


def test_a_chmod_of_a_directory_touches_the_node_of_its_entries_too(spread):
    """The directory's record of its own permission is with its entries (P56); if that node is another, both commit."""
    session, pid = spread.sessions[0], spread.by_worker[0][0]
    found = []
    for _ in range(12):
        directory = spread.new_id()
        spread.call(session, Op("mkdir", pid, f"m{directory}/", directory, explicit=True))
        change = Op("set_attributes", pid, f"m{directory}/", directory, mode=448)
        found.append(transactions(remote_commands(session, lambda op=change: spread.call(session, op))))
    assert {} in found, "a directory whose entries are on its parent's node"
    others = [sent for sent in found if sent]
    assert others and all(list(sent.values()) == [TWO_PHASES] for sent in others), others


def put(spread: SpreadNamespace, pid: int, name: str | None = None) -> Op:
    id = spread.new_id()
    return Op("put_object", pid, name or f"o{id}", id, size=5, mode=420, etag="e")


def test_changes_on_two_nodes_commit_in_two_phases(spread):
    """One is written to its shard directly, the other is sent. Citus has to know of the first
    (extension/src/citus/transaction.rs).
    """
    session = spread.sessions[0]

    def change_both() -> None:
        with session.transaction():
            for directories in spread.by_worker:
                assert spread.call(session, put(spread, directories[0])).code is None

    sent = [command for _, command in remote_commands(session, change_both)]
    assert sum(command.startswith("PREPARE TRANSACTION") for command in sent) == 1, sent


@contextmanager
def sent_to_its_own_node(session: psycopg.Connection, pid: int, how: str) -> Iterator[None]:
    """Citus sends statements on this node's shards over a connection: by its setting, or because the transaction began
    so.
    """
    session.execute("SET statement_timeout = '20s'")
    session.execute("SET citus.enable_local_execution = off")
    try:
        if how == "setting":
            yield
        else:
            with session.transaction():
                session.execute("SELECT count(*) FROM mantle.meta WHERE pid = %s", (pid,))
                session.execute("SET citus.enable_local_execution = on")
                yield
    finally:
        session.execute("RESET citus.enable_local_execution")
        session.execute("RESET statement_timeout")


@pytest.mark.parametrize("how", ["setting", "transaction"])
def test_what_citus_sends_to_its_own_node_sees_what_was_changed_there(spread, how):
    """Changes have to take that connection too. The message of a mkdir, which does not, commits with them."""
    session, pid = spread.sessions[0], spread.by_worker[0][0]
    new, directory = put(spread, pid), Op("mkdir", pid, f"m{spread.new_id()}/", spread.next_id, explicit=True)
    answers: list[verbs.Answer] = []

    def change() -> None:
        with sent_to_its_own_node(session, pid, how):
            for ops in ([new, put(spread, pid, new.name)], [directory]):
                answers.extend(verbs.call(session, spread.ns, ops, [Key(uuid.uuid4()) for _ in ops]))

    sent = [command for _, command in remote_commands(session, change)]
    assert [(answer.code, answer.version) for answer in answers] == [(None, 1), (None, 2), (None, 1)]
    transactions = 2 if how == "setting" else 1
    assert sum(command.startswith("PREPARE TRANSACTION") for command in sent) == transactions, sent


def calls_of(session: psycopg.Connection, function: str) -> int:
    session.execute("SELECT pg_stat_force_next_flush()")
    return session.execute(
        "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname = %s", (function,)
    ).fetchone()[0]


def test_a_new_entry_is_made_in_its_shard_itself(spread):
    """Not by the fallback, a plpgsql function that costs several times as much."""
    session, pid = spread.sessions[0], spread.by_worker[0][0]
    for op, function in (
        (put(spread, pid), "put_object_one"),
        (Op("mkdir", pid, f"m{spread.new_id()}/", spread.next_id, explicit=True), "mkdir_one"),
    ):
        before = calls_of(session, function)
        assert spread.call(session, op).code is None
        assert calls_of(session, function) == before
        spread.call(session, op)
        assert calls_of(session, function) == before + 1, "what exists goes that way"


# The number of statements of each: a list reads two ranges of a directory.
READS = {
    "SELECT * FROM mantle.stat(%(ns)s, ARRAY[%(pid)s::bigint], ARRAY['x'])": 1,
    "SELECT * FROM mantle.list(%(ns)s, %(pid)s, NULL, NULL, 100)": 2,
    "SELECT * FROM mantle.dirstat(%(ns)s, ARRAY[%(pid)s::bigint])": 1,
}


@pytest.mark.parametrize("query", READS, ids=[query.split("(")[0].split(".")[1] for query in READS])
def test_reads_touch_one_node(spread, query):
    """From the directory's node nothing is sent. From another node one query goes there, without a transaction around
    it.
    """
    for worker, session in enumerate(spread.sessions):
        given = {"ns": spread.ns, "pid": spread.by_worker[worker][0]}
        sent = remote_commands(session, lambda session=session, given=given: session.execute(query, given))
        assert sent == []
    for session in (spread.sessions[0], spread.coordinator):
        given = {"ns": spread.ns, "pid": spread.by_worker[1][0]}
        sent = remote_commands(session, lambda session=session, given=given: session.execute(query, given))
        assert len(sent) == READS[query] and transactions(sent) == {spread.port(1): []}, sent


def prepared_anywhere(spread: SpreadNamespace) -> list[str]:
    """Names of transactions that wait for their second phase, on any node."""
    found = []
    for session in (spread.coordinator, *spread.sessions):
        found += [
            gid for (gid,) in session.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        ]
    return found


@pytest.mark.parametrize("at", ["the source's node", "the destination's node", "another node"])
def test_changes_across_nodes_commit_in_two_phases(spread, at):
    """A rename of an object, a rename of a directory and an rmdir, each across two workers: every participating node
    but the session's own prepares, then all commit.
    """
    here, there = spread.by_worker[0][1], spread.by_worker[1][1]
    session, others = {
        "the source's node": (spread.sessions[0], [1]),
        "the destination's node": (spread.sessions[1], [0]),
        "another node": (spread.coordinator, [0, 1]),
    }[at]
    object_id = spread.new_id()
    spread.call(session, Op("put_object", here, "moved", object_id, size=9, mode=420, etag="e"))
    directory = spread.new_id()
    while spread.worker_of(directory) != 1:
        directory = spread.new_id()
    spread.call(session, Op("mkdir", here, "dir/", directory, explicit=True))
    epoch = session.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()[0]
    for op in (
        Op("rename_object", here, "moved", dst_pid=there, dst_name=f"arrived{object_id}"),
        Op("rename_directory", here, "dir/", directory, dst_pid=there, dst_name="dir/", victim=0, epoch=epoch),
        Op("rename_directory", there, "dir/", directory, dst_pid=here, dst_name="back/", victim=0, epoch=epoch),
        Op("rmdir", here, "back/", directory),
    ):
        answer = []
        sent = remote_commands(session, lambda op=op, answer=answer: answer.append(spread.call(session, op)))
        assert answer[0].code is None, f"{op}: {answer}"
        assert transactions(sent) == {spread.port(worker): TWO_PHASES for worker in others}, f"{op.verb} sent {sent}"
        prepared = prepared_names(sent, "PREPARE TRANSACTION")
        assert len(set(prepared)) == len(others) and prepared_names(sent, "COMMIT PREPARED") == prepared, sent
        assert prepared_anywhere(spread) == []
    assert state.damage(spread.coordinator) == []
