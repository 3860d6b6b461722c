"""Slots belong to the server: each database has its own slot names, and existing names stay."""

import os
from collections.abc import Callable

import psycopg

from tests.support.slots import slot_name

Make = Callable[[str], psycopg.Connection]
SLOT_PROBLEMS = "SELECT detail FROM mantle.check_cluster() WHERE problem = 'slot'"


def with_extension(make_database: Make, name: str, version: str = "") -> psycopg.Connection:
    database = make_database(name)
    database.execute(f"CREATE EXTENSION mantle {version}")
    return database


def make_slot(database: psycopg.Connection) -> None:
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot_name(database),))


def drop_slots(database: psycopg.Connection) -> None:
    database.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )


def test_two_databases_of_a_server_have_two_slots(make_database: Make):
    one, other = (with_extension(make_database, name) for name in ("one", "other"))
    assert slot_name(one) != slot_name(other)


def test_a_database_of_an_earlier_name_gets_another_slot(make_database: Make):
    """The usual way to put a database in place of another: the old one is renamed, and keeps its slot."""
    old = with_extension(make_database, "place")
    slot = slot_name(old)
    name = old.info.dbname
    make_slot(old)
    old.close()
    renamed = f"mantle_upgrade_renamed_{os.getpid()}"
    with psycopg.connect(dbname="postgres", autocommit=True) as server:
        server.execute(f"ALTER DATABASE {name} RENAME TO {renamed}")
        try:
            new = with_extension(make_database, "place")
            with psycopg.connect(dbname=renamed, autocommit=True) as old:
                assert slot_name(old) == slot, "a database keeps its slot when it is renamed"
                assert old.execute("SELECT exists FROM mantle.index_slots").fetchone() == (True,)
                assert slot_name(new) not in ("", slot)
                # A copy of the whole database has the name of a slot that is not its own, until somebody renames it.
                new.execute("UPDATE mantle.index_groups SET slot_name = %s", (slot,))
                (told,) = new.execute(SLOT_PROBLEMS).fetchone()
                assert told.startswith(f"{slot} belongs to database {renamed}: ")
                (given,) = new.execute("SELECT mantle.rename_index_slot(1)").fetchone()
                assert given == slot_name(new) != slot
                drop_slots(old)
        finally:
            server.execute(f"DROP DATABASE {renamed} WITH (FORCE)")


def test_a_database_of_an_older_release_keeps_its_slot(make_database: Make, older_version: str):
    older = with_extension(make_database, "kept", f"VERSION '{older_version}'")
    assert slot_name(older) == "mantle_index_1"
    make_slot(older)
    older.execute("ALTER EXTENSION mantle UPDATE")
    assert slot_name(older) == "mantle_index_1"
    assert older.execute("SELECT exists FROM mantle.index_slots").fetchone() == (True,)
    (later,) = older.execute("SELECT mantle.create_index_group(2)").fetchone()
    assert later.startswith("mantle_index_2_"), "new groups have new names"
    drop_slots(older)
