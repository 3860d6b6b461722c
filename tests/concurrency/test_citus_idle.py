"""A Citus cluster to which nothing happens writes nothing, on any of its nodes: no transaction id, and no WAL but
PostgreSQL's own. The workers run, and sessions ask all the time what gateways and IndexNodes ask without a request.

What Citus itself writes is counted apart: records of its own catalogs.
"""

import os
import re
import threading
from collections.abc import Iterator

import psycopg
import pytest

from stack import citus
from stack.layout import REPOSITORY
from stack.poll import wait_until
from tests.support import idle

from .distributed import WORKED_DATABASE, CitusTarget, SpreadNamespace, distributed_target
from .tree import Op
from .volumes import Volume

pytestmark = pytest.mark.skipif(not citus.is_installed(), reason="Citus is not installed")

SECONDS = float(os.environ.get("MANTLE_IDLE_SECONDS", "25"))
BOUND_S = 60.0
ROUND_S = 0.25
LEFT = """
    SELECT (SELECT count(*) FROM mantle.prune_queue) + (SELECT count(*) FROM mantle.meta WHERE ts > 0)
         + (SELECT count(*) FROM mantle.operations WHERE state = 'running')
"""
# The files of Citus' catalogs, as WAL records name them.
CITUS_FILES = """
    SELECT pg_relation_filenode(c.oid) FROM pg_class c
     WHERE pg_relation_filenode(c.oid) IS NOT NULL
       AND (c.relname ~ '^pg_dist_' OR c.relnamespace::regnamespace::text ~ '^citus')
"""
# A sweeper asks for the bytes that it finds. What it then finds unused it removes, which is work: this is used.
LOCATOR = "at/a-place"
# What is asked again and again without a request, and its parameters. The texts are those of the programs.
GATEWAY = {
    "PING": (), "SHARD_MAP": (), "RESOLUTION_CONTEXT": ("1",), "FLUSHED": (), "PREPARED": (), "EMIT_GRANTS": (),
    "WORKER_PROBLEMS": (), "SERVER_PROBLEMS": (), "REFUSALS": (), "HOSTED_GROUPS": (), "ALL_UPLOADS": ("0", "100"),
    "UNUSED_LOCATORS": (f"'{{{LOCATOR}}}'::text[]",), "LIST_NAMESPACES": (), "CLUSTER_ID": (),
    "NAMED_LOCATORS": ("1", "0", "''", "5000"),
}  # fmt: skip
# What is asked only for a request, at a start, after a refusal, or by what `asked_of_a_volume` says.
GATEWAY_ELSEWHERE = frozenset({
    "ARE_PREPARED", "END_STALE_SESSION", "END_CUTTING_SESSION", "RESOLVE_PATHS", "REPLAY", "REPLAY_LOCAL",
    "REPLAY_NAMESPACE", "REPLAY_NAMESPACE_LOCAL", "ASSIGNMENTS", "NAMESPACE", "LARGEST_BELOW", "NAMES_BELOW",
    "DIRECTORIES_BELOW", "UPLOAD", "UPLOAD_EXTENTS", "LIST_UPLOADS", "LIST_PARTS", "PART_OF_OBJECT", "EXTENTS_BETWEEN",
    "UPLOAD_USAGE", "INLINE_BYTES", "DIRSTAT", "KNOWN_VOLUME", "VOLUME_NODES", "SEGMENT_LOCATORS", "LINEAGE",
    "USAGE", "OPERATION",
})  # fmt: skip
INDEX = {
    "SYSTEM": (), "INDEX_SOURCES": (), "STANDBY_FLUSH": (), "FLUSHED": (), "INDEX_GROUP": ("1",), "PREPARE_KEY": ("1",),
    "REPORT_INDEX_REPLICAS": ("1", "'[]'"), "SLOT": ("'mantle_index_1'",), "SLOTS_ARE_BOUNDED": (),
    "INDEX_NAMESPACES": ("1",), "TRASH_NAMESPACES": (), "ASSIGNMENTS": ("'{1024}'",), "ASSIGNMENT_CHANGES": (),
    "DIRECTORIES_AFTER": ("0", "2000"), "DIRECTORIES": ("'{1024,1025}'",), "EPOCH_LEASE": (),
}  # fmt: skip
_TEXT = r'"((?:[^"\\]|\\.|\\\n)*)"'


def _unquoted(text: str) -> str:
    """The value of a string literal of Rust."""
    return re.sub(r"\\(.)", r"\1", re.sub(r"\\\n\s*", "", text))


def _statements(
    file: str, pattern: str, asked: dict[str, tuple[str, ...]], elsewhere: frozenset[str] | None = None
) -> list[str]:
    """The texts of `asked`. With `elsewhere`, each statement of the file must be in one of both."""
    source = (REPOSITORY / file).read_text(encoding="utf-8")
    found = {name: _unquoted(text) for name, text in re.findall(pattern, source)}
    assert set(asked) <= set(found), set(asked) - set(found)
    if elsewhere is not None:
        assert set(found) == set(asked) | elsewhere, "each is asked here, or said to be asked elsewhere"
    return [
        re.sub(r"\$(\d)", lambda number, given=given: given[int(number[1]) - 1], found[name])
        for name, given in asked.items()
    ]


def asked() -> list[str]:
    gateway = _statements("gateway/src/store/sql.rs", r'(\w+) "\w+" read\s+' + _TEXT, GATEWAY, GATEWAY_ELSEWHERE)
    index = _statements("indexnode/src/postgres/sql.rs", r"const (\w+): &str =\s+" + _TEXT, INDEX)
    return [f"{text} WHERE (SELECT pg_current_wal_flush_lsn()) IS NOT NULL" for text in gateway] + index


@pytest.fixture
def worked(citus_cluster) -> Iterator[CitusTarget]:
    """A database in which a worker runs on every node."""
    with distributed_target(citus_cluster, WORKED_DATABASE) as target:
        with target.coordinator() as coordinator:
            query = "SELECT FROM mantle.check_cluster() WHERE problem = 'worker'"
            wait_until(lambda: coordinator.execute(query).fetchone() is None, "a worker on every node", BOUND_S)
        yield target


def use(target: CitusTarget) -> None:
    """Leaves something for each step of the workers."""
    spread = SpreadNamespace(target)
    for ids in spread.by_worker:
        for number in range(5):
            op = Op("put_object", ids[0], f"o{number}", spread.new_id(), locator=LOCATOR)
            assert spread.call(spread.coordinator, op).code is None
        made = spread.new_id()
        assert spread.call(spread.coordinator, Op("mkdir", ids[0], "i/", made, explicit=False)).code is None
        assert spread.call(spread.coordinator, Op("delete_object", ids[0], "o0")).code is None
    for session in (*spread.sessions, spread.coordinator):
        session.close()


def ask_until(ended: threading.Event, node: dict[str, str], statements: list[str]) -> None:
    with psycopg.connect(**node, autocommit=True) as session:
        while not ended.wait(ROUND_S):
            for statement in statements:
                session.execute(statement)


def asked_of_a_volume(coordinator: psycopg.Connection) -> list[str]:
    """What a gateway with a volume asks the coordinator all the time: whether it was promoted, and what was freed on
    each node. Its sweeper's question is left out: once an hour it latches all nodes for each segment, which is a
    two-phase commit.
    """
    volume = Volume(coordinator)
    volume.new_segment()
    for at in volume.nodes():
        assert volume.take(at) == []
    mount = f"{volume.number}, {volume.mount_epoch}"
    taken = [
        f"SELECT horizon, locators FROM mantle.take_freed_delegated({at}, {mount}, '{horizon}', 0, 1000)"
        for at, horizon in volume.horizons.items()
    ]
    return ["SELECT mantle.lineage()", *taken]


def servers_of(target: CitusTarget, citus_cluster) -> list[idle.Server]:
    def server(number: int, node: dict[str, str]) -> idle.Server:
        postgresql = citus_cluster.servers[number].postgresql
        connect = lambda database: psycopg.connect(**{**node, "dbname": database}, autocommit=True)
        return idle.Server(f"node {number}", postgresql.layout.postgresql_bin, postgresql.data, connect)

    return [server(number, node) for number, node in enumerate(target.all)]


def of_citus(servers: list[idle.Server], record: str, name: str) -> bool:
    """Whether a record is of Citus' own catalogs."""
    server = next(server for server in servers if server.name == name)
    with server.connect(WORKED_DATABASE) as session:
        files = {str(file) for (file,) in session.execute(CITUS_FILES).fetchall()}
    return any(file in files for file in re.findall(r"rel \d+/\d+/(\d+)", record))


@pytest.mark.timeout(900)
def test_nothing_is_written_while_nothing_happens(worked, citus_cluster, later):
    use(worked)
    with worked.coordinator() as coordinator:
        wait_until(lambda: coordinator.execute(LEFT).fetchone() == (0,), "the workers to end their work", BOUND_S)
        of_a_volume = asked_of_a_volume(coordinator)
    servers, statements, ended = servers_of(worked, citus_cluster), asked(), threading.Event()
    asking = [later(ask_until, ended, node, statements) for node in worked.all]
    asking.append(later(ask_until, ended, worked.all[0], of_a_volume))
    try:
        with idle.settled(servers):
            written = idle.written_in(servers, SECONDS)
    finally:
        ended.set()
    for session in asking:
        session.result(BOUND_S)
    own = {name: [r for r in found.records if not of_citus(servers, r, name)] for name, found in written.items()}
    of_citus_itself = {name: len(found.records) - len(own[name]) for name, found in written.items()}
    assert own == {name: [] for name in written}
    # Citus 13.2 writes nothing either.
    assert of_citus_itself == dict.fromkeys(written, 0)
    assert {name: found.transactions for name, found in written.items()} == dict.fromkeys(written, 0)
