"""The MetaTable distributed by Citus over two workers: the same histories and pairs, the nodes that a verb touches, the
reads of an index and a gateway, the findings of check_cluster, the distribution of a loaded TafDB. Shards that move:
test_citus_moves.py.
"""

import secrets
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from stack import build, citus, packages
from stack.poll import wait_until
from tests.support import broken_steps
from tests.support.sql_wrappers import wrapped

from . import failpoints, state, verbs
from .distributed import PLACEMENTS, CitusCluster, CitusTarget, SpreadNamespace, distributed_target
from .pairs import PAIRS, VERBS, Pairs, run_pair
from .random_histories import ELEMENTS_ON_CITUS, SEED, assert_sound, one_history
from .tree import Op
from .verbs import Key

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")


@pytest.fixture(scope="module")
def database(citus_cluster):
    """For tests that read in namespaces of their own."""
    with distributed_target(citus_cluster, "mantle_distributed") as target:
        yield target


@pytest.mark.timeout(180)
def test_histories_are_sound(database):
    assert_sound(database)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("fault", [broken_steps.NO_TOMBSTONE, broken_steps.NO_LATCH], ids=lambda fault: fault.name)
def test_a_broken_step_is_noticed(citus_cluster, fault):
    with distributed_target(citus_cluster, f"mantle_{fault.name}") as target:
        target.on_all_nodes(lambda connection: broken_steps.break_steps(connection, fault))
        assert any(one_history(target, seed, ELEMENTS_ON_CITUS)[1] for seed in range(SEED, SEED + 10)), fault.name


@pytest.fixture(scope="module")
def pairs(citus_cluster):
    """All directories on one worker, and all sessions on it: the isolation matrix as on plain PostgreSQL."""
    with distributed_target(citus_cluster, "mantle_pairs", workers=1) as target:
        target.on_all_nodes(failpoints.install_steps)
        with target.coordinator() as coordinator:
            failpoints.install_triggers(coordinator)
        pairs = Pairs(target)
        yield pairs
        pairs.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("scenario", "a"), VERBS, ids=[f"{scenario.name}: {a}" for scenario, a in VERBS])
def test_pairs(pairs, scenario, a):
    """A verb held at each of its failpoints while each of the others comes."""
    found = {b: run_pair(pairs, scenario, a, b) for at, held, b in PAIRS if (at, held) == (scenario, a)}
    assert {b: problems for b, problems in found.items() if problems} == {}


@pytest.fixture(scope="module")
def spread(database) -> SpreadNamespace:
    return SpreadNamespace(database)


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
        Op("set_attributes", pid, f"m{directory}/", directory, mode=448),
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


@pytest.mark.parametrize("at", ["of one side", "of the other side", "of neither side"])
def test_changes_across_nodes_commit_in_two_phases(spread, at):
    """A rename of an object, a rename of a directory and an rmdir, each across two workers: every participating node
    but the session's own prepares, then all commit.
    """
    here, there = spread.by_worker[0][1], spread.by_worker[1][1]
    session, others = {
        "of one side": (spread.sessions[0], [1]),
        "of the other side": (spread.sessions[1], [0]),
        "of neither side": (spread.coordinator, [0, 1]),
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


@pytest.mark.timeout(120)
def test_the_workers_steps_do_their_work_on_every_node(citus_cluster):
    """Compaction, pruning, emptying of removed trees, purging: each node works on its own shards."""
    with distributed_target(citus_cluster, "mantle_steps") as target:
        work_off(SpreadNamespace(target))


def work_off(spread: SpreadNamespace) -> None:
    epoch = spread.coordinator.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()[0]
    here, there = spread.by_worker[0][1], spread.by_worker[1][1]
    tree, below, implicit = spread.new_id(), spread.new_id(), spread.new_id()
    for op in (
        Op("mkdir", here, "tree/", tree, explicit=True),
        Op("mkdir", tree, "below/", below, explicit=True),
        *(
            Op("put_object", pid, f"o{n}", spread.new_id(), size=3, mode=420, etag="e")
            for pid in (tree, below)
            for n in range(20)
        ),
        Op("mkdir", there, "implicit/", implicit, explicit=False),
        Op("remove_tree", here, "tree/", tree, epoch=epoch),
    ):
        assert spread.call(spread.coordinator, op).code is None
    spread.coordinator.execute("UPDATE mantle.prune_queue SET queued = now() - interval '1 day'")
    everywhere = [spread.coordinator, *spread.sessions]
    for _ in range(60):
        steps = (
            "compact",
            "compact_busy",
            "prune",
            "empty_trash",
            "purge_operations",
            "purge_requests",
            "purge_tombstones",
            "purge_attempts",
        )
        done = [
            session.execute("SELECT mantle.run_maintenance(%s)", (s,)).fetchone()[0]
            for session in everywhere
            for s in steps
        ]
        if not any(done):
            break
    found = spread.coordinator.execute(
        "SELECT state, objects, directories FROM mantle.operations WHERE directory_id = %s", (tree,)
    )
    assert found.fetchall() == [("done", 40, 2)]
    assert (
        spread.coordinator.execute(
            "SELECT count(*) FROM mantle.meta WHERE ts > 0 OR pid = 1 OR id = %s", (implicit,)
        ).fetchone()[0]
        == 0
    )
    assert state.damage(spread.coordinator) == []


def test_a_message_is_on_the_node_of_its_row(spread):
    """Each node's stream has the changes of its directories, whichever session made them."""
    slots = [f"messages_{worker}" for worker in (0, 1)]
    for session, slot in zip(spread.sessions, slots, strict=True):
        session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    try:
        names = {}
        for worker in (0, 1):
            for session in (*spread.sessions, spread.coordinator):
                id = spread.new_id()
                name = f"streamed{id}"
                spread.call(session, Op("mkdir", spread.by_worker[worker][2], f"{name}/", id, explicit=True))
                names[name] = worker
        for worker, (session, slot) in enumerate(zip(spread.sessions, slots, strict=True)):
            rows = session.execute(
                "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
                " 'publication_names',"
                " 'mantle_stream', 'messages', 'true')",
                (slot,),
            ).fetchall()
            stream = b"".join(bytes(data) for (data,) in rows)
            assert {name for name in names if name.encode() in stream} == {n for n, at in names.items() if at == worker}
    finally:
        for session, slot in zip(spread.sessions, slots, strict=True):
            session.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


def run_rust_test(citus_cluster: CitusCluster, target: CitusTarget, name: str) -> None:
    """Runs one ignored test by its name."""
    environment = {
        **packages.environment(),
        "PGRX_PG_CONFIG_PATH": str(build.pg_config()),
        "MANTLE_TEST_CITUS_PORT": target.all[0]["port"],
        "MANTLE_TEST_CITUS_DATABASE": target.database,
        "MANTLE_TEST_CITUS_PASSWORD_FILE": str(citus_cluster.servers[0].postgresql.layout.secrets / "superuser"),
    }
    command = ["cargo", "test", *build.TESTED, "--", "--ignored", name]
    done = subprocess.run(command, cwd=build.REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert f"{name} ... ok" in done.stdout


@pytest.mark.timeout(600)
def test_a_gateway_asks_the_node_that_has_the_directory(citus_cluster):
    """Runs the gateway's store (gateway/src/store/nodes/tests.rs)."""
    with distributed_target(citus_cluster, "mantle_routed") as target:
        run_rust_test(citus_cluster, target, "citus_calls_go_to_the_node_that_has_the_directory")


@pytest.mark.timeout(600)
def test_a_gateways_lookups_wait_for_prepared_parts(citus_cluster):
    """During a rename between nodes a lookup finds the entry at exactly one place (nodes/tests/prepared_parts.rs)."""
    with distributed_target(citus_cluster, "mantle_halves") as target:
        run_rust_test(citus_cluster, target, "citus_lookups_wait_for_prepared_parts")


def test_walks_that_never_agree_are_no_answer(spread):
    """Each walk seems to meet another rename. The caller gets an error that asks for a retry, never an inconsistent
    answer.
    """
    asked = "SELECT depth, id FROM mantle.resolve_path((SELECT name FROM mantle.namespaces WHERE ns = %s), %s)"
    pid = spread.by_worker[0][0]
    path = [f"d{pid}"]
    with spread.target.coordinator() as session:
        session.execute("SET citus.enable_ddl_propagation = off")
        with (
            wrapped(session, "walk_down", "test_citus", after="ids := ids || (random() * 1e15)::bigint;"),
            pytest.raises(psycopg.errors.SerializationFailure),
        ):
            session.execute(asked, (spread.ns, path))
        assert session.execute(asked, (spread.ns, path)).fetchone() == (1, pid)


def test_an_index_reads_all_directories_by_its_role(database):
    """The initial copy has every directory of every node, and only directories."""
    spread = SpreadNamespace(database)
    for directories in spread.by_worker:
        id = spread.new_id()
        assert (
            spread.call(spread.coordinator, Op("put_object", directories[0], "o", id, size=1, mode=420, etag="e")).code
            is None
        )
    password = secrets.token_urlsafe(24)
    spread.coordinator.execute(f"CREATE ROLE index_of_citus LOGIN IN ROLE mantle_index PASSWORD '{password}'")
    try:
        database.on_all_nodes(
            lambda node: node.execute(
                f"INSERT INTO pg_dist_authinfo VALUES (0, 'index_of_citus', 'password={password}')"
            )
        )
        with psycopg.connect(**{**database.all[0], "user": "index_of_citus", "password": password}) as reader:
            found = reader.execute("SELECT count(*) FROM mantle.directories WHERE ns = %s", (spread.ns,)).fetchone()[0]
            assert found == 1 + sum(len(directories) for directories in spread.by_worker)
            assert reader.execute("SELECT count(*) FROM mantle.meta WHERE explicit IS NULL").fetchone()[0] == 0
    finally:
        database.on_all_nodes(
            lambda node: node.execute("DELETE FROM pg_dist_authinfo WHERE rolename = 'index_of_citus'")
        )
        spread.coordinator.execute("DROP ROLE index_of_citus")


@pytest.mark.timeout(600)
def test_an_index_reads_every_node(citus_cluster):
    """A replica over both workers: renames across nodes, a restart, a lost slot (indexnode/tests/citus.rs)."""
    with distributed_target(citus_cluster, "mantle_indexed") as target:
        run_rust_test(citus_cluster, target, "citus_index_holds_what_several_nodes_hold")


def test_check_cluster_names_what_is_missing_where(citus_cluster):
    with distributed_target(citus_cluster, "mantle_checked") as target:
        worker = psycopg.connect(**target.all[2], autocommit=True)
        coordinator = target.coordinator()

        def problems() -> set[tuple[int, str]]:
            rows = coordinator.execute("SELECT node, problem FROM mantle.check_cluster()").fetchall()
            # The suites' servers run no workers, and no index reads them.
            return {
                (int(node.rsplit(":", 1)[1]), problem) for node, problem in rows if problem not in ("worker", "slot")
            }

        assert problems() == set()
        assert (
            coordinator.execute("SELECT count(*) FROM mantle.check_cluster() WHERE problem = 'slot'").fetchone()[0] == 2
        )
        worker.execute("SET citus.enable_ddl_propagation = off")
        worker.execute("GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text) TO PUBLIC")
        port = int(target.all[2]["port"])
        assert problems() == {(port, "privileges")}
        worker.execute("SELECT pg_create_logical_replication_slot('mantle_index_1', 'pgoutput')")
        slots = coordinator.execute("SELECT node FROM mantle.check_cluster() WHERE problem = 'slot'").fetchall()
        assert len(slots) == 1 and not slots[0][0].endswith(str(port))
        worker.execute("SELECT pg_drop_replication_slot('mantle_index_1')")


@pytest.mark.timeout(120)
def test_a_call_that_waits_for_distribute_goes_where_its_directory_went(citus_cluster):
    """It was about to write to a table that is then empty. The shards are on its own node, so it is not refused."""
    name = "mantle_waiting"
    citus.make_databases(citus_cluster.servers, name)
    target = CitusTarget(citus_cluster.parameters, name, citus.WORKERS)
    with target.coordinator() as coordinator, target.coordinator() as caller, target.coordinator() as watcher:
        ns, id = verbs.create_namespace(coordinator, "waiting"), verbs.allocate_ids(coordinator, 1)
        host, port = target.all[0]["host"], int(target.all[0]["port"])
        coordinator.execute("SELECT citus_set_coordinator_host(%s, %s)", (host, port))
        coordinator.execute("SELECT citus_set_node_property(%s, %s, 'shouldhaveshards', true)", (host, port))
        op, answers = Op("put_object", ns, "late", id, size=5, mode=420, etag="e"), []
        thread = threading.Thread(target=lambda: answers.extend(verbs.call(caller, ns, [op], [Key(uuid.uuid4())])))
        with coordinator.transaction():
            coordinator.execute("SELECT mantle.distribute()")
            thread.start()
            waits = "SELECT FROM pg_locks WHERE pid = %s AND relation = 'mantle.meta'::regclass AND NOT granted"
            wait_until(lambda: watcher.execute(waits, (caller.info.backend_pid,)).fetchall(), "the call", 60.0)
        thread.join()
        assert [answer.code for answer in answers] == [None]
        kept = watcher.execute("SELECT count(*) FROM mantle.meta WHERE pid = %s AND name = 'late'", (ns,)).fetchone()[0]
        assert kept == 1
    citus.drop(citus_cluster.servers, name)


def test_a_loaded_database_is_distributed(citus_cluster):
    """Entries, counts and request ids are kept, and a retry of an earlier request gets its first answer."""
    name = "mantle_loaded"
    target = CitusTarget(citus_cluster.parameters, name, citus.WORKERS)
    citus.make_databases(citus_cluster.servers, name)
    with target.coordinator() as coordinator:
        ns = verbs.create_namespace(coordinator, "loaded")
        first = verbs.allocate_ids(coordinator, 1000)
        ops = [Op("mkdir", ns, f"d{n}/", first + n, explicit=True) for n in range(40)]
        ops += [
            Op("put_object", first + n % 40, f"o{n}", first + 100 + n, size=n, mode=420, etag="e") for n in range(200)
        ]
        keys = [Key(uuid.uuid4(), 1) for _ in ops]
        for op, key in zip(ops, keys, strict=True):
            assert verbs.call(coordinator, ns, [op], [key])[0].code is None
        before = state.read_tree(coordinator, ns)
        citus.join(citus_cluster.servers, name)
        assert state.differences(coordinator, ns, before) == []
        retried = verbs.call(coordinator, ns, [ops[-1]], [keys[-1]])[0]
        assert (retried.code, retried.replayed) == (None, True)
        assert {port for _, _, port in coordinator.execute(PLACEMENTS).fetchall()} == {
            int(n["port"]) for n in target.all[1:]
        }
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            coordinator.execute("SELECT mantle.distribute()")
    citus.drop(citus_cluster.servers, name)
