"""SQL users on a distributed TafDB: the pgTAP tests, bulk imports, and the workers."""

import os
import subprocess
import uuid
from pathlib import Path

import psycopg
import psycopg.sql
import pytest

from stack import build, citus, packages
from stack.poll import wait_until

from . import distributed, state, verbs
from .distributed import CitusTarget, distributed_target
from .server import SuiteServer
from .tree import Op
from .verbs import Key

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

# Left out: two that bound a call's reads by EXPLAIN (ANALYZE, BUFFERS), which Citus runs on another node and without
# the statements of functions (plans, listing_cost); one about workers' settings, which these servers have on their
# command line (worker; see test_a_worker_outlives_a_shard_that_moves); one whose roles cannot log in (row_security;
# analysts, check and privileges exercise the policies); and those about volumes, whose tables are the coordinator's or
# each node's own (test_citus_volumes.py).
PGTAP = (
    "analysts", "attributes", "bad_elements", "batches", "check", "compaction", "directories", "faults", "import",
    "index_groups", "leases", "listing", "maintenance", "messages", "modified", "monitor", "names", "namespaces",
    "objects", "privileges", "races", "remove_tree", "rename_directory", "renames", "request_age", "schema", "usage",
)  # fmt: skip
# These run also from the coordinator of two workers, which has no directories itself. The others change their role
# after writing in one transaction, read the latches, the stream or the workers of their own server, set how that keeps
# counts, run maintenance there, or take its leases: a lease is good on the node that gave it (leases).
PGTAP_FROM_THE_COORDINATOR = (
    "attributes", "bad_elements", "batches", "directories", "faults", "import", "index_groups", "listing", "names",
    "namespaces", "objects", "rename_directory", "renames", "schema", "usage",
)  # fmt: skip
GROUP_ROLES = ("mantle_analyst", "mantle_gateway", "mantle_index", "mantle_monitor")


def let_group_roles_log_in(connection: psycopg.Connection) -> None:
    """The tests act as the group roles themselves, and a session's role is that of its sessions on other nodes."""
    for role in GROUP_ROLES:
        password = connection.info.password
        connection.execute(
            psycopg.sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(psycopg.sql.Identifier(role), password)
        )
        connection.execute("INSERT INTO pg_dist_authinfo VALUES (0, %s, %s)", (role, f"password={password}"))


def run_pgtap(target: CitusTarget, server: SuiteServer, name: str, *settings: str) -> None:
    environment = {
        **os.environ,
        **server.postgresql.client_environment("postgres"),
        "MANTLE_PGTAP_DATABASE": target.database,
        "MANTLE_PGTAP_PREPARED": "yes",
        "PGOPTIONS": " ".join(f"-c {setting}" for setting in settings),
        "PATH": f"{server.postgresql.layout.postgresql_bin}:{os.environ['PATH']}",
    }
    run = build.REPOSITORY / "tests" / "pgtap" / "run"
    done = subprocess.run([str(run), f"./{name}.sql"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def pgtap_database(citus_cluster):
    with distributed_target(citus_cluster, "mantle_pgtap") as target:
        yield target


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", PGTAP_FROM_THE_COORDINATOR)
def test_pgtap_from_the_coordinator(citus_cluster, pgtap_database, name):
    run_pgtap(pgtap_database, citus_cluster.servers[0], name)


@pytest.fixture(scope="module")
def pgtap_worker_database(citus_cluster):
    with distributed_target(citus_cluster, "mantle_pgtap_worker", workers=1) as target:
        target.on_all_nodes(let_group_roles_log_in)
        yield target


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", PGTAP)
def test_pgtap_on_the_worker(citus_cluster, pgtap_worker_database, name):
    """All directories are on the worker of the session. The objects that tests define exist only there."""
    run_pgtap(pgtap_worker_database, citus_cluster.servers[1], name, "citus.enable_ddl_propagation=off")


WORKER = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'mantle worker' AND datname = current_database()"
WORKER_BOUND_S = 60.0


@pytest.fixture
def worked(citus_cluster):
    """A database in which workers run, and a session on the worker node that changes functions there alone."""
    with distributed_target(citus_cluster, distributed.WORKED_DATABASE, workers=1) as target:
        node = psycopg.connect(**target.all[1], autocommit=True)
        node.execute("SET citus.enable_ddl_propagation = off")
        wait_until(lambda: told_of_workers(target) == [], "a worker on every node", WORKER_BOUND_S)
        yield target, node


def told_of_workers(target: CitusTarget) -> list[tuple[int, str]]:
    """The problems of workers that check_cluster names, by the port of the node."""
    with target.coordinator() as coordinator:
        rows = coordinator.execute("SELECT node, detail FROM mantle.check_cluster() WHERE problem = 'worker'")
        return [(int(node.rsplit(":", 1)[1]), detail) for node, detail in rows]


@pytest.mark.timeout(120)
def test_a_worker_outlives_a_shard_that_moves(worked):
    """Citus' error ends a step, not the process, which would be away for ten seconds."""
    target, node = worked
    node.execute("CREATE SEQUENCE steps")
    for code in (*distributed.MOVED_CODES, "40001"):
        node.execute(f"""CREATE OR REPLACE FUNCTION mantle.run_maintenance(p_step text) RETURNS bigint
            LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM nextval('public.steps');
                IF mantle.is_distributed() THEN RAISE EXCEPTION 'moved' USING ERRCODE = '{code}'; END IF;
                RETURN 0;
            END $$""")
        before, first = node.execute(WORKER).fetchone(), node.execute("SELECT nextval('steps')").fetchone()[0]
        # Two rounds of steps.
        wait_until(
            lambda first=first: node.execute("SELECT last_value FROM steps").fetchone()[0] > first + 14, code, 30.0
        )
        assert node.execute(WORKER).fetchone() == before, f"{code} ended the worker"
    steps = node.execute("SELECT sqlstate, fatal FROM mantle.worker_steps WHERE failures > 1").fetchall()
    assert steps and set(steps) == {("40001", False)}
    assert told_of_workers(target) == [], "not before a minute is over"


@pytest.mark.timeout(180)
def test_check_cluster_names_a_worker_that_keeps_dying(worked):
    """It dies in its first step each time, or in a later one."""
    target, node = worked
    port = int(target.all[1]["port"])

    def told() -> list[tuple[int, str]]:
        node.execute("SELECT pg_reload_conf()")  # then a worker that has ended is started at once
        return told_of_workers(target)

    for broken, step in (("mantle.run_maintenance(text)", "compact"), ("mantle.maintain_pruning()", "prune")):
        before = node.execute(WORKER).fetchone()
        (whole,) = node.execute("SELECT pg_get_functiondef(%s::regprocedure)", (broken,)).fetchone()
        head = whole.split("AS $function$")[0]
        node.execute(f"{head} AS $function$ BEGIN RAISE EXCEPTION 'broken' USING ERRCODE = '22012'; END $function$")
        ((number, detail),) = wait_until(told, "the worker to be named", WORKER_BOUND_S)
        assert number == port and detail.startswith(f"step {step} has failed "), detail
        assert detail.endswith(", at last with 22012: broken") and node.execute(WORKER).fetchone() != before
        assert len(node.execute("SELECT FROM mantle.worker_steps WHERE failures > 1").fetchall()) == 1
        node.execute(whole)
        wait_until(lambda: told() == [], "the worker to be well", WORKER_BOUND_S)


def lines() -> dict[str, int]:
    """Objects by key, with their sizes: some 1,900 directories on three levels, and one that exists already."""
    return {f"a{n % 4}/b{n % 20}/c{n % 376}/o{n}": n for n in range(4000)} | {"held/o": 7}


def start_import(target: CitusTarget, ns: str, listing: Path) -> subprocess.Popen:
    node = target.all[0]
    url = f"postgresql://{node['user']}:{node['password']}@{node['host']}:{node['port']}/{target.database}"
    listing.write_text("".join(f"{key}\t{size}\n" for key, size in lines().items()), encoding="ascii")
    command = [
        str(packages.target() / "release" / "mantle"),
        "import",
        "--namespace",
        ns,
        "--connections",
        "2",
        str(listing),
    ]
    return subprocess.Popen(
        command, env={**os.environ, "DATABASE_URL": url}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish_import(target: CitusTarget, ns: str, listing: Path) -> None:
    process = start_import(target, ns, listing)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output.decode("utf-8", "replace")


def assert_loaded(coordinator: psycopg.Connection, ns: str) -> None:
    """Everything of the listing once, counted in primary attribute records, sound."""
    found = coordinator.execute("SELECT key, size FROM mantle.find(%s, '') WHERE kind = 'object'", (ns,)).fetchall()
    assert dict(found) == lines() and len(found) == len(lines())
    directories = {key.rsplit("/", depth)[0] for key in lines() for depth in range(1, key.count("/") + 1)}
    usage = coordinator.execute("SELECT objects, directories, bytes FROM mantle.du(%s, '')", (ns,)).fetchone()
    assert usage == (len(lines()), len(directories), sum(lines().values()))
    assert state.damage(coordinator) == []


@pytest.mark.timeout(300)
def test_an_import_is_resumed(citus_cluster, tmp_path):
    """Killed while its objects wait for a directory that another session holds; then run to the end, and once more."""
    with distributed_target(citus_cluster, "mantle_imported") as target, target.coordinator() as coordinator:
        ns = verbs.create_namespace(coordinator, "imported")
        held, late = verbs.allocate_ids(coordinator, 2), verbs.allocate_ids(coordinator, 1)
        assert (
            verbs.call(coordinator, ns, [Op("mkdir", ns, "held/", held, explicit=True)], [Key(uuid.uuid4())])[0].code
            is None
        )
        sessions = [psycopg.connect(**node, autocommit=True) for node in target.all[1:]]
        home = next(
            s for s in sessions if s.execute("SELECT mantle.is_local(ARRAY[%s::bigint])", (held,)).fetchone()[0]
        )
        with home.transaction(force_rollback=True):
            verbs.call(
                home, ns, [Op("put_object", held, "other", late, size=1, mode=420, etag="e")], [Key(uuid.uuid4())]
            )
            process = start_import(target, "imported", tmp_path / "listing")
            watcher = next(
                psycopg.connect(**n, autocommit=True) for n in target.all if n["port"] == str(home.info.port)
            )
            waits = "SELECT EXISTS (SELECT FROM mantle.latches WHERE class = 'directory' AND key = %s AND NOT granted)"
            wait_until(
                lambda: watcher.execute(waits, (held,)).fetchone()[0], "the import's wait", 120.0, lambda: dead(process)
            )
            process.kill()
            process.wait()
        left = coordinator.execute(
            "SELECT count(*) FROM mantle.meta WHERE ns = %s AND explicit IS NOT NULL", (ns,)
        ).fetchone()[0]
        assert left > 1000, "directories, but not all"
        finish_import(target, "imported", tmp_path / "listing")
        assert_loaded(coordinator, "imported")
        before = state.read_tree(coordinator, ns)
        finish_import(target, "imported", tmp_path / "listing")
        assert state.differences(coordinator, ns, before) == [], "a second one changes nothing"


def dead(process: subprocess.Popen) -> str | None:
    return None if process.poll() is None else f"the import ended with status {process.returncode}"


def test_a_message_of_an_import_is_on_the_node_of_its_row(citus_cluster):
    """One call, directories of both workers: each worker's stream has its own rows (P1)."""
    with distributed_target(citus_cluster, "mantle_import_stream") as target, target.coordinator() as coordinator:
        workers = [psycopg.connect(**node, autocommit=True) for node in target.all[1:]]
        for number, worker in enumerate(workers):
            worker.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (f"imported_{number}",))
        ns, first = verbs.create_namespace(coordinator, "streamed"), verbs.allocate_ids(coordinator, 100)
        # A chain, each below the one before.
        pids, ids = [ns, *range(first, first + 39)], list(range(first, first + 40))
        names = [f"streamed{id}" for id in ids]
        refused = coordinator.execute(
            "SELECT * FROM mantle.import_directories(0, %s, %s, %s, %s)",
            (ns, pids, [f"{name}/" for name in names], ids),
        )
        assert refused.fetchall() == []
        for number, worker in enumerate(workers):
            rows = worker.execute(
                "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
                " 'publication_names',"
                " 'mantle_stream', 'messages', 'true')",
                (f"imported_{number}",),
            ).fetchall()
            worker.execute("SELECT pg_drop_replication_slot(%s)", (f"imported_{number}",))
            stream = b"".join(bytes(data) for (data,) in rows)
            here = {
                n
                for pid, n in zip(pids, names, strict=True)
                if worker.execute("SELECT mantle.is_local(ARRAY[%s::bigint])", (pid,)).fetchone()[0]
            }
            assert 0 < len(here) < len(names)
            assert {name for name in names if name.encode() in stream} == here
        assert state.damage(coordinator) == []
