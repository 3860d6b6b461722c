"""ALTER EXTENSION mantle UPDATE: the catalog and the data of a database afterwards."""

import difflib
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from stack.upgrade import frozen_versions

from . import older

FOLDER = Path(__file__).parent
Make = Callable[[str], psycopg.Connection]


def catalog(connection: psycopg.Connection) -> list[str]:
    """The extension as lines; a definition's lines each say whose they are."""
    rows = connection.execute((FOLDER / "catalog.sql").read_text(encoding="utf-8"))
    return [f"{kind} {name}, {what}: {line}" for kind, name, what, value in rows for line in value.splitlines()]


def tables(connection: psycopg.Connection) -> dict[str, list[dict]]:
    """Every row of every table, by table."""
    names = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'mantle'::regnamespace AND relkind = 'r' ORDER BY relname"
    ).fetchall()
    return {
        name: [row for (row,) in connection.execute(f"SELECT to_jsonb(t) FROM mantle.{name} AS t ORDER BY t::text")]
        for (name,) in names
    }


@pytest.mark.parametrize("version", [*frozen_versions(), older.VERSION])
def test_an_upgraded_database_equals_a_fresh_one(make_database: Make, older_version: str, version: str):
    fresh, upgraded = make_database("fresh"), make_database("upgraded")
    fresh.execute("CREATE EXTENSION mantle")
    upgraded.execute(f"CREATE EXTENSION mantle VERSION '{version}'")
    before = catalog(upgraded)
    upgraded.execute("ALTER EXTENSION mantle UPDATE")
    expected, found = catalog(fresh), catalog(upgraded)
    assert len(expected) > 1000 and before != expected, "the comparison looks at nothing"
    differences = list(difflib.unified_diff(expected, found, "fresh", "upgraded", n=0, lineterm=""))
    assert not differences, "\n".join(["an upgraded database differs from a fresh one:", *differences[:200]])


@pytest.mark.parametrize(
    "change",
    [
        "GRANT EXECUTE ON FUNCTION mantle.may_read(bigint) TO mantle_monitor",
        "GRANT SELECT (ns) ON mantle.requests TO mantle_analyst",
        "GRANT SELECT ON mantle.operations TO mantle_index",
        "ALTER FUNCTION mantle.check() SET work_mem = '1MB'",
        "ALTER FUNCTION mantle.check() SECURITY DEFINER",
        "COMMENT ON FUNCTION mantle.check() IS 'another'",
        "COMMENT ON COLUMN mantle.meta.ns IS NULL",
        "COMMENT ON INDEX mantle.meta_delta IS NULL",
        "COMMENT ON POLICY analyst ON mantle.meta IS NULL",
        "COMMENT ON PUBLICATION mantle_stream IS NULL",
        "COMMENT ON SCHEMA mantle IS NULL",
        "CREATE FUNCTION mantle.left_over() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "ALTER TABLE mantle.operations ALTER state DROP DEFAULT",
        "ALTER TABLE mantle.operations DROP CONSTRAINT operations_kind_check",
        "ALTER TABLE mantle.operations RENAME stepped TO turned",
        "ALTER TABLE mantle.meta SET (fillfactor = 100)",
        "ALTER TABLE mantle.meta DISABLE ROW LEVEL SECURITY",
        "DROP POLICY analyst ON mantle.namespaces",
        "DROP INDEX mantle.requests_created",
        "ALTER SEQUENCE mantle.delta_ts CACHE 1",
        "ALTER TYPE mantle.delta ADD ATTRIBUTE n int",
        "ALTER VIEW mantle.duplicates RESET (security_invoker)",
        "ALTER EXTENSION mantle DROP TABLE mantle.namespace_grants",
        "ALTER PUBLICATION mantle_stream SET (publish = 'insert')",
    ],
)
def test_the_comparison_sees(make_database: Make, change: str):
    fresh = make_database("changed")
    fresh.execute("CREATE EXTENSION mantle")
    before = catalog(fresh)
    fresh.execute(change)
    assert catalog(fresh) != before


FILL = """
SELECT mantle.allocate_ids('test', 1000);
SELECT mantle.create_namespace(5, 'photos', 1024, 7, 8, 493, '{0}1', 1);
SELECT mantle.mkdir('{{5,5}}', '{{1024,1024}}', '{{1024,1024}}', '{{album/,old/}}', '{{1025,1026}}',
                    '{{7,7}}', '{{8,8}}', '{{493,493}}', '{{true,true}}', '{{NULL,NULL}}', '{{{0}2,{0}3}}', '{{2,3}}',
                    p_caller => '{{0,0}}');
SELECT mantle.mkdir('{{5}}', '{{1024}}', '{{1025}}', '{{implied/}}', '{{1027}}',
                    '{{7}}', '{{8}}', '{{493}}', '{{false}}', '{{NULL}}', '{{{0}4}}', '{{4}}',
                    p_caller => '{{0}}');
SET mantle.delta_records = always;
SELECT mantle.put_object('{{5}}', '{{1024}}', '{{1025}}', '{{sea.jpg}}', '{{1028}}', '{{7}}', '{{8}}',
                         '{{420}}', '{{250}}', '{{s2}}', '{{image/jpeg}}', '{{NULL}}', '{{blob-1}}',
                         '{{NULL}}', '{{{0}5}}', '{{5}}', p_caller => '{{0}}');
SELECT mantle.create_upload_delegated(1030, 1024, 'album/new.jpg', 7, 8, NULL, NULL, NULL, 'FULL_OBJECT');
SELECT mantle.put_part_delegated(1030, 1024, 1, 's3', 'c', '{{blob-2}}', '{{0}}', '{{5}}', false, NULL);
SELECT mantle.remove_tree(5, 1024, 1024, 'old/', 1026, 1, 0, 44, '{0}6', 6, '{0}7', p_caller => '0',
                          p_proof => mantle.prove(1, 0, 44, 5, 1024, '{0}6', 1024, 'old/', 1026, 1, '', 0));
SELECT mantle.abort_rename(5, 1024, '{0}8', 45);
SELECT mantle.mount_volume(mantle.cluster_id(), mantle.register_volume(mantle.cluster_id(), 'v', 4096, 100, 3), 1, 4096,
                           100, 3, 'gateway');
SELECT mantle.admit_segments(1, 1, 1, ARRAY[l.segment], ARRAY[l.epoch]) FROM mantle.lease_segments(1, 1, 1, true) AS l;
SELECT mantle.free_bytes('{{v1:1.0.1/1.1/0+1}}');
INSERT INTO mantle.purged_requests (up_to) VALUES (now() - interval '1 year');
SELECT mantle.report_index_replicas(1, '[{{"node_id": "2", "address": "10.0.0.2:7410", "problem": "not ready"}}]');
""".format("00000000-0000-4000-8000-00000000000")


@pytest.fixture
def upgraded(make_database: Make, older_version: str) -> psycopg.Connection:
    """Filled under an older version, then brought up to date."""
    connection = make_database("filled")
    connection.execute(f"CREATE EXTENSION mantle VERSION '{older_version}'")
    connection.execute(FILL)
    before = tables(connection)
    empty = [name for name, rows in before.items() if not rows]
    assert not empty, f"nothing to lose in {empty}"
    connection.execute("ALTER EXTENSION mantle UPDATE")
    connection.before = before
    return connection


def test_every_row_is_there_as_it_was(upgraded: psycopg.Connection):
    after = tables(upgraded)
    for name, rows in upgraded.before.items():
        assert len(after[name]) == len(rows), name
        for row in rows:
            assert any(row.items() <= found.items() for found in after[name]), f"{name} has lost {row}"


def test_it_is_sound_and_goes_on(upgraded: psycopg.Connection):
    assert upgraded.execute("SELECT * FROM mantle.check()").fetchall() == []
    retry = FILL.splitlines()[3:6]
    rows = upgraded.execute(" ".join(retry).replace("SELECT", "SELECT id, replayed FROM", 1)).fetchall()
    assert rows == [(1025, True), (1026, True)], "a retry gets the first answer"
    assert upgraded.execute("SELECT first_id FROM mantle.allocate_ids('test', 1)").fetchone()[0] > 2023
