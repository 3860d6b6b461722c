"""The MetaTable distributed by Citus over two workers: the same histories and pairs as on plain PostgreSQL, the reads
of an index and a gateway, the findings of check_cluster, the distribution of a loaded TafDB. Shards that move:
test_citus_moves.py; the commands between nodes: test_citus_commands.py.
"""

import secrets
import subprocess
import threading
import uuid

import psycopg
import pytest

from stack import build, citus, packages
from stack.poll import wait_until
from tests.support import broken_steps
from tests.support.slots import slot_name
from tests.support.sql_wrappers import wrapped

from . import failpoints, state, verbs
from .distributed import PLACEMENTS, STEPS, CitusCluster, CitusTarget, SpreadNamespace, distributed_target
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
        done = [
            session.execute("SELECT mantle.run_maintenance(%s)", (s,)).fetchone()[0]
            for session in everywhere
            for s in STEPS
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
        "PGRX_PG_CONFIG_PATH": str(build.checked_pg_config()),
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


@pytest.mark.timeout(600)
def test_a_gateway_waits_for_answers_that_are_being_recorded(citus_cluster):
    """On a worker, by a transaction that is prepared (nodes/tests/answers.rs)."""
    with distributed_target(citus_cluster, "mantle_answers") as target:
        run_rust_test(citus_cluster, target, "citus_an_answer_that_is_being_recorded_is_awaited")
        with target.coordinator() as session:
            keys = session.execute("SELECT pg_get_indexdef('mantle.requests_pkey'::regclass)").fetchone()[0]
            assert keys.endswith("(ns, principal, request_id, pid)"), "a retry does not know the directory"


@pytest.mark.timeout(600)
def test_a_gateway_finds_answers_while_shards_move(citus_cluster):
    """By one search on each worker (nodes/tests/answers.rs)."""
    with distributed_target(citus_cluster, "mantle_moved_answers") as target:
        run_rust_test(citus_cluster, target, "citus_an_answer_is_found_while_its_shard_moves")


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
            rows = coordinator.execute(
                "SELECT node, problem FROM mantle.check_cluster() WHERE problem <> 'open_namespace'"
            ).fetchall()
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
        slot = slot_name(coordinator)
        worker.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        slots = coordinator.execute("SELECT node, detail FROM mantle.check_cluster() WHERE problem = 'slot'").fetchall()
        told = {int(node.rsplit(":", 1)[1]) == port: detail for node, detail in slots}
        assert told[True].startswith(f"{slot} has no reader:") and "is missing:" in told[False]
        worker.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        # What the index's leader reports is told wherever one asks.
        report = '[{"node_id": "2", "address": "10.0.0.2:7410", "problem": "not ready"}]'
        coordinator.execute("SELECT mantle.report_index_replicas(1, %s)", (report,))
        for session in (coordinator, worker):
            found = session.execute(
                "SELECT node, detail FROM mantle.check_cluster() WHERE problem = 'index_replica'"
            ).fetchall()
            assert [(int(node.rsplit(":", 1)[1]), detail) for node, detail in found] == [
                (int(target.all[0]["port"]), "index group 1, replica 2 at 10.0.0.2:7410: not ready")
            ]
        # A node whose copy of Citus' tables is old.
        with coordinator.transaction(force_rollback=True):
            coordinator.execute("UPDATE pg_dist_node SET metadatasynced = false WHERE nodeport = %s", (port,))
            assert (port, "node") in problems()


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
            waits = "SELECT relation::regclass FROM pg_locks WHERE pid = %s AND relation IS NOT NULL AND NOT granted"
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
