"""ALTER EXTENSION mantle UPDATE: what a database is afterwards, and what it still holds."""

import difflib
import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

OLDEST = "0.1.0"
FOLDER = Path(__file__).parent
Make = Callable[[str], psycopg.Connection]

NAMESPACE = 1024
ALBUM, SUMMER, EMPTY, REMOVED = 1025, 1026, 1027, 1029
EPOCH = 4


def request(number: int) -> uuid.UUID:
    """As in written_by_0_1_0.sql."""
    return uuid.UUID(f"00000000-0000-4000-8000-{number:012}")


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


def test_an_upgraded_database_equals_a_fresh_one(make_database: Make):
    fresh, upgraded = make_database("fresh"), make_database("upgraded")
    fresh.execute("CREATE EXTENSION mantle")
    upgraded.execute(f"CREATE EXTENSION mantle VERSION '{OLDEST}'")
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


@pytest.fixture
def upgraded(make_database: Make) -> psycopg.Connection:
    """Filled under the oldest version, then brought up to date."""
    connection = make_database("filled")
    connection.execute(f"CREATE EXTENSION mantle VERSION '{OLDEST}'")
    connection.execute((FOLDER / "written_by_0_1_0.sql").read_text(encoding="utf-8"))
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
            if name == "prune_queue":
                del row["seq"]  # counted anew, within a directory
            elif name == "requests" and row["verb"] in ("rename_directory", "remove_tree"):
                row["pid"] = row["ns"]  # now kept with the namespace's root
            elif name == "meta" and row["removed"]:
                row["created"] = row["modified"]  # when the directory was removed
            assert any(row.items() <= found.items() for found in after[name]), f"{name} has lost {row}"


def test_it_is_sound(upgraded: psycopg.Connection):
    assert upgraded.execute("SELECT * FROM mantle.check()").fetchall() == []
    counts = upgraded.execute(
        "SELECT sum(entries), sum(bytes) FROM mantle.meta WHERE pid = %s AND name = '/_ATTR'", [SUMMER]
    ).fetchone()
    assert counts == (2, 350)


def test_a_retry_is_answered(upgraded: psycopg.Connection):
    mkdir = upgraded.execute(
        "SELECT code, id, version, replayed FROM mantle.mkdir('{5}', '{1024}', '{1025}', '{summer/}', '{2100}', '{7}', '{8}', '{493}',"
        " '{true}', ARRAY[NULL]::jsonb[], %s, '{11}')", [[request(1)]],
    ).fetchone()  # fmt: skip
    put = upgraded.execute(
        "SELECT code, id, version, replayed FROM mantle.put_object('{5}', '{1024}', '{1026}', '{sea.jpg}', '{2101}', '{7}', '{8}',"
        " '{420}', '{250}', '{s2}', '{image/jpeg}', ARRAY[NULL]::jsonb[], '{blob-3}', ARRAY[NULL]::text[], %s, '{12}')", [[request(2)]],
    ).fetchone()  # fmt: skip
    rename = upgraded.execute(
        "SELECT code, id, version, replayed FROM mantle.rename_directory(5, 1024, 1024, 'collection/', 1025, 1024, 'album/', 0, 1, %s, 44,"
        " %s, 13)", [EPOCH, request(3)],
    ).fetchone()  # fmt: skip
    removal = upgraded.execute(
        "SELECT code, id, version, replayed FROM mantle.remove_tree(5, 1024, 1025, 'old/', 1029, 1, %s, 45, %s, 14, %s)",
        [EPOCH, request(4), request(5)],
    ).fetchone()
    assert mkdir == (None, SUMMER, 1, True)
    assert put == (None, 1031, 2, True)
    assert rename == (None, ALBUM, 3, True)
    assert removal == (None, REMOVED, 2, True)
    replay = upgraded.execute(
        "SELECT known, code, verb, id FROM mantle.replay(5, 1024, %s, 99)", [request(3)]
    ).fetchone()
    assert replay == (True, "MT020", None, None), "another request under the same id"
    assert upgraded.execute("SELECT * FROM mantle.check()").fetchall() == []


def test_a_renames_fate_stays(upgraded: psycopg.Connection):
    fates = [
        upgraded.execute("SELECT mantle.abort_rename(5, 1024, %s, %s)", [request(3), attempt]).fetchone()[0]
        for attempt in (41, 42)
    ]
    assert fates == ["aborted", "committed"]


def test_a_tombstone_refuses(upgraded: psycopg.Connection):
    answer = upgraded.execute(
        "SELECT code FROM mantle.mkdir('{5}', '{1024}', '{1028}', '{late/}', '{2100}', '{7}', '{8}', '{493}', '{true}',"
        " ARRAY[NULL]::jsonb[], %s, '{0}')", [[uuid.uuid4()]],
    ).fetchone()  # fmt: skip
    assert answer == ("MT018",)


def test_ids_go_on_above(upgraded: psycopg.Connection):
    assert upgraded.execute("SELECT first_id FROM mantle.allocate_ids('gateway-1', 1)").fetchone()[0] > 3071


def test_the_worker_finishes_what_was_begun(upgraded: psycopg.Connection):
    for step in ("compact", "prune", "empty_trash"):
        for _ in range(20):
            if upgraded.execute("SELECT mantle.run_maintenance(%s)", [step]).fetchone()[0] == 0:
                break
        else:
            pytest.fail(f"{step} does not end")
    operation = upgraded.execute(
        "SELECT state, objects, directories, bytes FROM mantle.operation(5, %s)", [request(5)]
    ).fetchone()
    assert operation == ("done", 1, 1, 50)
    left = upgraded.execute(
        "SELECT name FROM mantle.meta WHERE id IS NOT NULL AND ns = %s ORDER BY name", [NAMESPACE]
    ).fetchall()
    assert [name for (name,) in left] == ["album/", "beach.jpg", "photos/", "sea.jpg", "summer/"]
    assert upgraded.execute("SELECT count(*) FROM mantle.meta WHERE ts > 0").fetchone() == (0,)
    assert upgraded.execute("SELECT count(*) FROM mantle.prune_queue WHERE id = %s", [EMPTY]).fetchone() == (0,)
    assert upgraded.execute("SELECT * FROM mantle.check()").fetchall() == []


def test_tombstones_are_purged_when_they_are_due(upgraded: psycopg.Connection):
    upgraded.execute("SELECT mantle.run_maintenance('purge_tombstones')")
    assert upgraded.execute("SELECT pid FROM mantle.meta WHERE removed").fetchall() == [(1028,)]


def test_between_restart_and_update_a_call_says_what_to_do(make_database: Make):
    old = make_database("old")
    old.execute(f"CREATE EXTENSION mantle VERSION '{OLDEST}'")
    for call in (
        "mantle.is_set('{1}', '{a}', '{00000000-0000-4000-8000-000000000000}')",
        "mantle.try_latch_removal(1, 2, 'a/')",
    ):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as refused:
            old.execute(f"SELECT {call}")
        assert "ALTER EXTENSION mantle UPDATE" in refused.value.diag.message_hint
