"""The plan of every statement that the extension's SQL runs for a gateway, from auto_explain. None scans a whole table,
and each reads a bounded number of blocks, among 16,000 entries of one directory.

tests/pgtap/plans.sql bounds whole calls; here each statement inside them is checked.
"""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import pytest

from . import verbs
from .target import PlainTarget
from .tree import Op
from .verbs import Key

ENTRIES, SUBDIRECTORIES = 16_000, 300
# Fills tables that are small in a new database: enough that an index scan is worth it.
FILLER = 3000
# Of one statement, also of the outermost, which includes the blocks of all that it calls. More for each row of a list.
BLOCKS_MAX, BLOCKS_OF_ROW = 120, 4
BATCH, PAGE = 8, 100
WARM_UP = 6  # calls after which PostgreSQL keeps a generic plan
FILL = """
    INSERT INTO mantle.namespaces (ns, name, owner) SELECT 2^40 + n, 'filler-' || n, 7 FROM generate_series(1, {n}) n;
    INSERT INTO mantle.index_groups (index_group, slot_name) SELECT 1000 + n, 'filler_' || n
      FROM generate_series(1, {n}) n;
    INSERT INTO mantle.prepare_keys (index_group, key) SELECT 1000 + n, '' FROM generate_series(1, {n}) n;
    INSERT INTO mantle.requests (ns, principal, request_id, request_hash, verb, pid)
    SELECT 5, 5, gen_random_uuid(), 0, 'mkdir', 5 FROM generate_series(1, {n}) n;
    INSERT INTO mantle.rename_attempts (ns, principal, request_id, attempt, state)
    SELECT 5, 5, gen_random_uuid(), n, 'aborted' FROM generate_series(1, {n}) n;
    INSERT INTO mantle.prune_queue (pid, seq, id) SELECT 5, 2^40 + n, 5 FROM generate_series(1, {n}) n;
    INSERT INTO mantle.operations (id, ns, principal, kind, directory_id)
    SELECT gen_random_uuid(), 5, 5, 'remove_tree', 5 FROM generate_series(1, {n}) n;
    INSERT INTO mantle.namespace_grants (role, ns) SELECT 'filler', 2^40 + n FROM generate_series(1, {n}) n;
    INSERT INTO mantle.id_blocks (first_id, last_id, timeline, owner)
    SELECT 2^40 + 10 * n, 2^40 + 10 * n + 9, 1, 'filler' FROM generate_series(1, {n}) n;
    INSERT INTO mantle.admitted_segments (volume, segment, epoch, mount_epoch, lineage)
    SELECT 1, n, 1, 1, mantle.lineage() FROM generate_series(0, {n}) n;
    INSERT INTO mantle.freed (locator, volume, segment)
    SELECT format('v1:1.%s.1/1.%s/0+1', n, n), 1, n FROM generate_series(1, {n}) n;
    INSERT INTO mantle.inline (pid, id, bytes) SELECT 5, n, 'x' FROM generate_series(1, 5 * {n}) n;
    INSERT INTO mantle.meta (pid, name, ns, id, locator)
    SELECT 5, 'volume-' || n, 5, 2^40 + n, format('v1:1.%s.1/1.%s/1+1', n % 100, n) FROM generate_series(1, {n}) n;
"""
TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'mantle'::regnamespace AND relkind = 'r'"
IMPORT = """
    SELECT mantle.import_objects(5, %(ns)s, array_fill(%(pid)s::bigint, ARRAY[%(n)s]),
           ARRAY(SELECT 'o' || lpad(g::text, 6, '0') FROM generate_series(1, %(n)s) g),
           array_fill(1::bigint, ARRAY[%(n)s]), %(first)s, true, now())
"""


@dataclass
class Filled:
    """A namespace with a large directory, one of subdirectories, and some for single use."""

    ns: int
    large: int
    parent: int
    ids: list[int]
    subdirectories: list[int]

    def new_id(self) -> int:
        return self.ids.pop()


def fill(connection: psycopg.Connection) -> Filled:
    ns = verbs.create_namespace(connection, "plans")
    first = verbs.allocate_ids(connection, 2 * ENTRIES)
    ids = list(range(first + ENTRIES, first + 2 * ENTRIES))
    large, parent = ids.pop(), ids.pop()
    subdirectories = [ids.pop() for _ in range(SUBDIRECTORIES)]
    for op in (Op("mkdir", ns, "large/", large), Op("mkdir", ns, "parent/", parent)):
        call(connection, ns, [op])
    for at in range(0, SUBDIRECTORIES, 100):
        call(connection, ns, [Op("mkdir", parent, f"s{n}/", subdirectories[n]) for n in range(at, at + 100)])
    connection.execute(IMPORT, {"ns": ns, "pid": large, "n": ENTRIES, "first": first})
    connection.execute(FILL.format(n=FILLER))
    connection.execute("VACUUM ANALYZE")
    return Filled(ns, large, parent, ids, subdirectories)


def call(connection: psycopg.Connection, ns: int, ops: list[Op]) -> None:
    answers = verbs.call(connection, ns, ops, [Key(uuid.uuid4()) for _ in ops])
    assert all(answer.code is None for answer in answers), (ops[0], answers)


def changes(connection: psycopg.Connection, at: Filled) -> dict[str, Callable[[int], None]]:
    """Calls that change something, by description; each gets another number."""
    ns, large, parent = at.ns, at.large, at.parent
    (epoch,) = connection.execute("SELECT epoch FROM mantle.index_group(1)").fetchone()

    def old(n: int, of: int, number: int) -> list[str]:
        return [f"o{1000 * of + 10 * n + k:06}" for k in range(number)]

    def of_directory(verb: str, **more) -> Callable[[int, int], Op]:
        return lambda n, of: Op(verb, parent, f"s{of + n}/", at.subdirectories[of + n], epoch=epoch, **more)

    rename, remove = of_directory("rename_directory", dst_pid=large), of_directory("remove_tree")
    chmod, rmdir = of_directory("set_attributes", mode=448), of_directory("rmdir")

    def renamed(n: int) -> Op:
        op = rename(n, 0)
        return Op(**{**vars(op), "dst_name": f"r{n}/"})

    def new(n: int, count: int) -> list[Op]:
        return [Op("put_object", large, f"n{n}.{count}.{k}", at.new_id(), size=1) for k in range(count)]

    def inline(name: str) -> Op:
        return Op("put_object", large, name, at.new_id(), size=1, inline=b"x")

    def implied_then_made(n: int) -> list[list[Op]]:
        return [[Op("mkdir", parent, f"i{n}/", at.new_id(), explicit=is_explicit)] for is_explicit in (False, True)]

    made: dict[str, Callable[[int], list[list[Op]]]] = {
        "put_object": lambda n: [new(n, 1)],
        "put_object, a batch": lambda n: [new(n, BATCH)],
        "put_object over others": lambda n: [[Op("put_object", large, o, at.new_id(), size=2) for o in old(n, 1, 1)]],
        "put_object in a volume": lambda n: [
            [Op("put_object", large, o, at.new_id(), locator=f"v1:1.7.1/{k}.{n}/0+1")]
            for k, o in enumerate((f"v{n}", *[f"v{n}"] * 2), 1)
        ],
        "put_object inline": lambda n: [[inline(f"i{n}")] for _ in range(3)],
        "delete_object inline": lambda n: [[inline(f"j{n}")], [Op("delete_object", large, f"j{n}")]],
        "rename_object inline": lambda n: [
            [inline(f"k{n}")],
            [Op("rename_object", large, f"k{n}", dst_pid=parent, dst_name=f"k{n}")],
        ],
        "delete_object": lambda n: [[Op("delete_object", large, o) for o in old(n, 2, 1)]],
        "delete_object, a batch": lambda n: [[Op("delete_object", large, o) for o in old(n, 3, BATCH)]],
        "mkdir": lambda n: [[Op("mkdir", parent, f"m{n}/", at.new_id())]],
        "mkdir of an implicit one": implied_then_made,
        "set_attributes": lambda n: [[chmod(n, 20)]],
        "rename_object": lambda n: [[Op("rename_object", large, *old(n, 4, 1), dst_pid=parent, dst_name=f"moved{n}")]],
        "rename_directory": lambda n: [[renamed(n)]],
        "remove_tree": lambda n: [[remove(n, 40)]],
        "rmdir": lambda n: [[rmdir(n, 60)]],
        "rmdir, a batch": lambda n: [[rmdir(BATCH * n + k, 80) for k in range(BATCH)]],
        "compact": lambda n: [[Op("compact", large)]],
    }

    def carry_out(batches: list[list[Op]]) -> None:
        for ops in batches:
            call(connection, ns, ops)

    calls = {name: lambda n, make=make: carry_out(make(n)) for name, make in made.items()}
    return calls | {"abort_rename": lambda n: verbs.abort_rename(connection, ns, Key(uuid.uuid4()))}


# As the gateway calls it (gateway/src/store/sql.rs).
READS = {
    "stat": "SELECT * FROM mantle.stat(%(ns)s, ARRAY[%(large)s, %(large)s]::bigint[], ARRAY['o000001', 'o01000%(n)s'])",
    "dirstat": "SELECT * FROM mantle.dirstat(%(ns)s, ARRAY[%(large)s, %(parent)s]::bigint[])",
    "list": "SELECT * FROM mantle.list(%(ns)s, %(large)s, 'o01000%(n)s', NULL, %(page)s)",
    "list_tree": "SELECT * FROM mantle.list_tree(%(ns)s, %(ns)s, '', 'large/o01000%(n)s', %(page)s, '7')",
    "resolve_path": "SELECT * FROM mantle.resolve_path('plans', ARRAY['parent', 's20%(n)s'])",
    "replay": "SELECT r.* FROM mantle.namespace('plans') n CROSS JOIN LATERAL "
    "mantle.replay(5, n.ns, gen_random_uuid(), 0) r",
    "assignment": "SELECT * FROM mantle.assignment('plans')",
    "terms": "SELECT g.epoch, mantle.assignment_changes(1) FROM mantle.index_group(1) g",
    "usage": "SELECT * FROM mantle.usage(%(ns)s, (%(subdirectories)s::bigint[])[20%(n)s], 0)",
    "unused_locators": "SELECT * FROM mantle.unused_locators(ARRAY['none%(n)s'])",
    "operation": "SELECT * FROM mantle.operation(%(ns)s, gen_random_uuid())",
    "inline_bytes": "SELECT * FROM mantle.inline_bytes(%(large)s, 'inline:7%(n)s')",
    "segment_locators": "SELECT * FROM mantle.segment_locators(1, 7%(n)s, 1, NULL, 10)",
    "named_locators": "SELECT * FROM mantle.named_locators(1, 7%(n)s, '', 10)",
    "take_freed": "SELECT * FROM mantle.take_freed_delegated(1, 1, 1, mantle.lineage() || ' 3:3: 0/0', %(n)s, 10)",
}


class Plans:
    """The plans of all statements of a session, including those inside functions."""

    def __init__(self, connection: psycopg.Connection):
        self.connection, self.found = connection, []
        connection.execute("LOAD 'auto_explain'")
        for setting, value in (
            ("log_nested_statements", "on"), ("log_analyze", "on"), ("log_buffers", "on"), ("log_format", "json"),
            ("log_level", "notice"),
        ):  # fmt: skip
            connection.execute(f"SET auto_explain.{setting} = {value}")
        connection.add_notice_handler(self._note)

    def _note(self, diagnostic) -> None:
        if "plan:" in diagnostic.message_primary:
            self.found.append(json.loads(diagnostic.message_primary.split("plan:", 1)[1]))

    def of(self, work: Callable[[], None]) -> list[dict]:
        self.found = []
        self.connection.execute("SET auto_explain.log_min_duration = 0")
        work()
        self.connection.execute("SET auto_explain.log_min_duration = -1")
        return self.found


def nodes(plan: dict) -> list[dict]:
    return [plan, *(node for below in plan.get("Plans", ()) for node in nodes(below))]


def complaints(name: str, found: list[dict], tables: set[str]) -> list[str]:
    """The forbidden properties of a call's plans."""
    bound = BLOCKS_MAX * (BATCH if "a batch" in name else 1) + (BLOCKS_OF_ROW * PAGE if "list" in name else 0)
    texts = []
    for statement in found:
        plan, text = statement["Plan"], " ".join(statement["Query Text"].split())[:200]
        scans = [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
        texts += [f"reads all of {table}: {text}" for table in scans if table in tables]
        blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        if blocks > bound:
            texts.append(f"reads {blocks} blocks: {text}")
    return texts


def look(
    target: PlainTarget, only: set[str] | None = None, drop: str | None = None
) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Complaints by call, and the number of statements checked."""
    with target.connect() as connection:
        at = fill(connection)
        tables = {name for (name,) in connection.execute(TABLES)}
        calls = changes(connection, at)
        given = {"ns": at.ns, "large": at.large, "parent": at.parent, "page": PAGE, "subdirectories": at.subdirectories}
        for name, query in READS.items():
            calls[name] = lambda n, query=query: connection.execute(query.replace("%(n)s", str(n)), given)
        if drop is not None:
            connection.execute(drop)
        plans, bad, statements = Plans(connection), {}, {}
        for name in calls if only is None else only:
            for n in range(WARM_UP):
                calls[name](n)
            found = [plans.of(lambda name=name, n=n: calls[name](n)) for n in range(WARM_UP, WARM_UP + 3)]
            # After a vacuum, or for a new plan, one call may cost more than the others.
            bad[name] = min((complaints(name, one, tables) for one in found), key=len)
            statements[name] = min(len(one) for one in found)
        return {name: texts for name, texts in bad.items() if texts}, statements


def test_no_statement_reads_a_whole_table(make_target):
    bad, statements = look(make_target("plans"))
    assert bad == {}, "\n".join(f"{name}: {text}" for name, texts in bad.items() for text in texts)
    assert all(number > 0 for number in statements.values()), statements


LOST = {
    "ALTER TABLE mantle.meta DROP CONSTRAINT meta_pkey": {"stat", "dirstat", "list", "resolve_path"},
    "ALTER TABLE mantle.requests DROP CONSTRAINT requests_pkey": {"replay", "delete_object"},
    "ALTER TABLE mantle.namespaces DROP CONSTRAINT namespaces_name_key": {"assignment", "replay"},
}


@pytest.mark.parametrize("drop", LOST, ids=[drop.split()[-1] for drop in LOST])
def test_a_lost_index_is_noticed(make_target, drop):
    bad, _ = look(make_target(f"plans_{drop.split()[-1]}"), LOST[drop], drop)
    assert bad.keys() == LOST[drop], bad
