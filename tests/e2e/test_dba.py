"""What a DBA, or another tool, does to a database that is in use: rewrites of tables and of PostgreSQL indexes, another
owner, publications and slots of others. No request fails, the index follows without a rebuild, and nothing is lost.
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from stack import packages, secret, servers
from tests.support.rest import Rest
from tests.support.slots import slot_name

from .background import Repeated
from .clients import await_all_ready, s3_client

pytestmark = pytest.mark.server

PROGRESS_BOUND_S = 120.0
KEPT_EVERY = 3
OTHER = "another_tool"
OWNED = "mantle_owned"
FIRST, SECOND = "mantle_test_owner", "mantle_test_owner_2"


class EveryVerb(Repeated):
    """Threads that make, fill, move, empty and remove directories. `kept`: those that stay."""

    def __init__(self, stack, rest: Rest, ns: str, threads: int = 3):
        super().__init__([partial(self._turn, rest.twin(), s3_client(stack), n) for n in range(threads)])
        self.ns = ns
        self.turns = 0
        self.kept: list[str] = []

    def _turn(self, rest: Rest, s3, number: int, count: int) -> None:
        name, moved = f"{number}-{count}", f"moved-{number}-{count}"
        rest.mkdir(self.ns, f"{name}/below", parents=True, key=str(uuid.uuid4()))
        for body in (b"1", b"22"):
            s3.put_object(Bucket=self.ns, Key=f"{name}/o", Body=body)
        rest.rename(self.ns, f"{name}/", f"{moved}/", key=str(uuid.uuid4()))
        s3.delete_object(Bucket=self.ns, Key=f"{moved}/o")
        if count % KEPT_EVERY == 0:
            self.kept.append(f"{moved}/below/")
        else:
            rest.rmdir(self.ns, f"{moved}/below", key=str(uuid.uuid4()))
        self.turns += 1

    def await_turns(self, more: int) -> None:
        self.await_more(lambda: self.turns, more, "turns of the load", PROGRESS_BOUND_S)


@contextmanager
def undisturbed(stack, rest: Rest, ns: str, superuser: psycopg.Connection) -> Iterator[EveryVerb]:
    """A load before, during and after the block, of which nothing fails and nothing is lost; and no rebuild."""
    group = "SELECT epoch, slot_name FROM mantle.index_group(1)"
    before = superuser.execute(group).fetchone()
    with EveryVerb(stack, rest, ns) as load:
        load.await_turns(5)
        yield load
        load.await_turns(10)
    assert superuser.execute(group).fetchone() == before, "the index was rebuilt"
    missing = [path for path in load.kept if not rest.exists(ns, path)]
    assert load.kept and missing == []


def test_every_index_of_postgresql_is_rebuilt(stack, rest, bucket, superuser):
    """REINDEX CONCURRENTLY puts another relation in each one's place, while sessions have the old one open."""
    with undisturbed(stack, rest, bucket, superuser) as load:
        for _ in range(2):
            superuser.execute("REINDEX SCHEMA CONCURRENTLY mantle")
            load.await_turns(5)
    invalid = "SELECT indexrelid::regclass FROM pg_index WHERE NOT indisvalid OR NOT indisready"
    assert superuser.execute(invalid).fetchall() == []


@pytest.fixture
def pg_repack(stack) -> Path:
    """The program, added to the stack's copy of the server. Debian builds it for its own version alone."""
    program = stack.layout.postgresql_bin / "pg_repack"
    if not program.exists():
        if servers.chosen() != servers.DEFAULT:
            pytest.skip(f"pg_repack can be had for PostgreSQL {servers.DEFAULT} alone")
        package = packages.unpacked(f"postgresql-{servers.DEFAULT}-repack")
        for part in ("lib", "share"):
            versioned = Path(part, "postgresql", servers.DEFAULT)
            shutil.copytree(package / "usr" / versioned, stack.layout.postgresql_tree / versioned, dirs_exist_ok=True)
    return program


def test_tables_are_rewritten_by_pg_repack(stack, rest, bucket, superuser, pg_repack):
    """It copies a table, takes the changes since from a trigger, and swaps the two under a short lock."""
    environment = {**os.environ, **stack.postgresql.client_environment()}
    superuser.execute("CREATE EXTENSION pg_repack")
    try:
        with undisturbed(stack, rest, bucket, superuser) as load:
            for table in ("meta", "requests", "prune_queue", "namespaces"):
                node = superuser.execute("SELECT pg_relation_filenode(%s)", (f"mantle.{table}",)).fetchone()
                subprocess.run(
                    [pg_repack, "--no-kill-backend", f"--table=mantle.{table}", "--dbname=mantle"],
                    env=environment, check=True, capture_output=True, text=True,
                )  # fmt: skip
                assert superuser.execute("SELECT pg_relation_filenode(%s)", (f"mantle.{table}",)).fetchone() != node
                load.await_turns(5)
    finally:
        superuser.execute("DROP EXTENSION pg_repack CASCADE")


def test_another_tool_reads_all_tables(stack, rest, bucket, superuser):
    """A publication FOR ALL TABLES takes in ours: every change then needs a replica identity, and goes there, too."""
    superuser.execute(f"CREATE PUBLICATION {OTHER} FOR ALL TABLES")
    superuser.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (OTHER,))
    try:
        with undisturbed(stack, rest, bucket, superuser):
            pass
        kinds = (
            "SELECT get_byte(data, 0), count(*) FROM pg_logical_slot_get_binary_changes("
            "%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s) GROUP BY 1"
        )
        found = {chr(kind): count for kind, count in superuser.execute(kinds, (OTHER, OTHER)).fetchall()}
        assert min(found.get(kind, 0) for kind in "IUD") > 0, f"the other tool sees rows: {found}"
        assert "M" not in found, "and none of our messages"
    finally:
        superuser.execute("SELECT pg_drop_replication_slot(%s)", (OTHER,))
        superuser.execute(f"DROP PUBLICATION {OTHER}")


@pytest.fixture
def owned(stack, superuser) -> Iterator[psycopg.Connection]:
    """A superuser's session with a database whose extension belongs to a role of its own."""
    remove = [f"DROP DATABASE IF EXISTS {OWNED} WITH (FORCE)", f"DROP ROLE IF EXISTS {FIRST}, {SECOND}"]
    for statement in remove:
        superuser.execute(statement)
    superuser.execute(f"CREATE ROLE {FIRST} SUPERUSER")
    superuser.execute(f"CREATE ROLE {SECOND}")
    superuser.execute(f"CREATE DATABASE {OWNED}")
    parameters = superuser.info.get_parameters() | {"dbname": OWNED}
    try:
        with psycopg.connect(
            **parameters, password=secret.read(stack.layout, "superuser"), autocommit=True
        ) as connection:
            connection.execute(f"SET ROLE {FIRST}")
            connection.execute("CREATE EXTENSION mantle")
            connection.execute("RESET ROLE")
            yield connection
    finally:
        superuser.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (OWNED,)
        )
        for statement in remove:
            superuser.execute(statement)


def test_the_extension_gets_another_owner(owned):
    """REASSIGN OWNED, as before a role is removed. The new owner need not be a superuser."""
    slot = slot_name(owned)
    owned.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    owned.execute(f"REASSIGN OWNED BY {FIRST} TO {SECOND}")
    owners = (
        "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'mantle'::regnamespace"
        " UNION SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'mantle'::regnamespace"
        " UNION SELECT pubowner::regrole::text FROM pg_publication"
        " UNION SELECT extowner::regrole::text FROM pg_extension WHERE extname = 'mantle'"
    )
    assert owned.execute(owners).fetchall() == [(SECOND,)]
    owned.execute("SET ROLE mantle_gateway")
    (first,) = owned.execute("SELECT first_id FROM mantle.allocate_ids('owned', 10)").fetchone()
    namespace = "SELECT code FROM mantle.create_namespace(0, 'owned', %s, 0, 0, 493, gen_random_uuid(), 1)"
    assert owned.execute(namespace, (first,)).fetchone() == (None,)
    mkdir = (
        "SELECT code FROM mantle.mkdir('{0}', ARRAY[%(ns)s::bigint], ARRAY[%(ns)s::bigint], '{d/}',"
        " ARRAY[%(id)s::bigint], '{0}', '{0}', '{493}', '{true}', ARRAY[NULL::jsonb], ARRAY[gen_random_uuid()], '{1}')"
    )
    assert owned.execute(mkdir, {"ns": first, "id": first + 1}).fetchone() == (None,)
    owned.execute("SET ROLE mantle_index")
    assert owned.execute("SELECT name FROM mantle.directories WHERE id = %s", (first + 1,)).fetchone() == ("d",)
    assert owned.execute("SELECT slot_name FROM mantle.index_group(1)").fetchone() == (slot,)
    owned.execute("RESET ROLE")
    messages = (
        "SELECT count(*) FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
        " 'publication_names', 'mantle_stream', 'messages', 'true') WHERE get_byte(data, 0) = ascii('M')"
    )
    assert owned.execute(messages, (slot,)).fetchone() == (2,), "the namespace and the directory"
    # What the new owner may not see is told, and how to mend it.
    problem = "SELECT detail FROM mantle.check_cluster() WHERE problem = 'owner'"
    (told,) = owned.execute(problem).fetchone()
    owned.execute(told.rpartition(": ")[2])
    assert owned.execute(problem).fetchall() == []


@pytest.mark.usefixtures("whole")
@pytest.mark.faults
def test_the_index_s_slot_is_made_a_failover_slot(stack, rest, bucket, superuser):
    """PostgreSQL 17 copies such slots to standbys by itself. Beside Patroni, which does so too, they are of no use."""
    if superuser.info.server_version < 170_000:
        pytest.skip("PostgreSQL 17 has failover slots first")
    slot = slot_name(superuser)
    rest.mkdir(bucket, "before")
    for node in stack.indexnodes.values():
        node.process.stop()
    with psycopg.connect(
        host="127.0.0.1", port=stack.layout.postgresql_port, dbname="mantle", user="postgres", replication="database",
        password=secret.read(stack.layout, "superuser"), autocommit=True,
    ) as replication:  # fmt: skip
        replication.pgconn.exec_(f'ALTER_REPLICATION_SLOT "{slot}" (FAILOVER true)'.encode())
    failover = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    assert superuser.execute(failover, (slot,)).fetchone() == (True,)
    with stack.alone():
        stack.start()
    await_all_ready(stack)
    with undisturbed(stack, rest, bucket, superuser):
        pass
    assert rest.exists(bucket, "before/")
    assert superuser.execute(failover, (slot,)).fetchone() == (True,)
