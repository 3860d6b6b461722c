"""`pg_dump` and a restore reproduce the data, whole and sound, while the original is being written."""

import subprocess

import psycopg
import pytest

from stack.poll import wait_until
from tests.support.digests import NOT_DUMPED, digests

from .another_gateway import another_gateway
from .clients import connect_as
from .mkdir_load import MkdirLoad

pytestmark = pytest.mark.server

RESTORED = "mantle_restored"
# Options of pg_dump and of pg_restore.
WAYS = {
    "one file": (["--format=custom"], []),
    "a directory, by two jobs, over an extension that is there": (
        ["--format=directory", "--jobs=2"],
        ["--jobs=2", "--clean", "--if-exists", "--no-owner"],
    ),
}
END_BOUND_S = 30


@pytest.fixture
def restored(stack):
    """The name of an empty database, removed afterwards."""
    with connect_as(stack, "postgres", "superuser") as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {RESTORED} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {RESTORED}")
        yield RESTORED
        # A closed session ends in the server a moment later. Dropping the database earlier would log a complaint about
        # it.
        sessions = (
            f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{RESTORED}' AND backend_type = 'client backend'"
        )
        wait_until(
            lambda: admin.execute(sessions).fetchone() == (0,), "the restored database's sessions to end", END_BOUND_S
        )
        admin.execute(f"DROP DATABASE {RESTORED} WITH (FORCE)")


@pytest.mark.parametrize("way", WAYS)
def test_a_dump_restores_to_the_same(stack, rest, bucket, s3, restored, tmp_path, way):
    dumping, restoring = WAYS[way]
    rest.mkdir(bucket, "d/e", parents=True)
    s3.put_object(Bucket=bucket, Key="d/o", Body=b"1", Metadata={"k": "v"})
    s3.put_object(Bucket=bucket, Key="gone/o", Body=b"2")
    s3.delete_object(Bucket=bucket, Key="gone/o")
    with another_gateway(stack, inline_bytes_max=4096) as gateway:
        gateway.s3(stack).put_object(Bucket=bucket, Key="d/inline", Body=b"in the dump")
    environment = {**stack.postgresql.client_environment(), "PATH": "/usr/bin:/bin"}
    programs = stack.layout.postgresql_bin
    dump = tmp_path / "dump"
    with (
        MkdirLoad(rest, bucket) as load,
        connect_as(stack, "postgres", "superuser") as original,
        original.transaction(),
    ):
        original.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        snapshot = original.execute("SELECT pg_export_snapshot()").fetchone()[0]
        subprocess.run(
            [programs / "pg_dump", *dumping, f"--snapshot={snapshot}", f"--file={dump}"], env=environment, check=True
        )
        expected = digests(original)
        identity = original.execute("SELECT mantle.cluster_id()").fetchone()
        load.await_progress(10)
    where = {
        "host": "127.0.0.1", "port": stack.layout.postgresql_port, "dbname": restored, "user": "postgres",
        "password": environment["PGPASSWORD"], "autocommit": True,
    }  # fmt: skip
    if "--clean" in restoring:
        with psycopg.connect(**where) as made:
            made.execute("CREATE EXTENSION mantle")
    subprocess.run(
        [programs / "pg_restore", "--exit-on-error", *restoring, f"--dbname={restored}", str(dump)],
        env=environment,
        check=True,
    )
    with psycopg.connect(**where) as copy:
        found = digests(copy)
        # The extension creates group 1, so a restored database has an index history of its own.
        assert expected.pop("index_groups")[0] == found.pop("index_groups")[0] == len(stack.groups)
        # The same holds for the signing keys. An administrator creates those of other groups.
        kept, made = expected.pop("prepare_keys"), found.pop("prepare_keys")
        assert (kept[0], made[0]) == (len(stack.groups), 1) and kept[1] != made[1]
        assert copy.execute("SELECT mantle.make_prepare_keys()").fetchone() == (len(stack.groups) - 1,)
        # A restored database has an identity of its own, too, and keeps that of the one that was dumped.
        assert (expected.pop("cluster")[0], found.pop("cluster")[0]) == (1, 2)
        assert copy.execute("SELECT mantle.cluster_id()").fetchone() == identity
        # A restored database admits no segment of a volume, and knows nothing that was freed.
        for table in NOT_DUMPED:
            expected.pop(table)
            assert found.pop(table)[0] == 0
        assert found == expected
        assert found["meta"][0] > 0 and found["requests"][0] > 0 and found["id_blocks"][0] > 0
        assert copy.execute("SELECT epoch FROM mantle.index_group(1)").fetchone() == (0,)
        assert copy.execute("SELECT problem, name, detail FROM mantle.check()").fetchall() == []
        path = copy.execute(
            "SELECT kind, user_metadata->>'k' FROM mantle.resolve(%s, 'd/o') JOIN mantle.meta USING (pid, name)",
            (bucket,),
        )
        assert path.fetchone() == ("object", "v")
        # Ids continue where they were: none is given twice.
        last = copy.execute("SELECT max(last_id) FROM mantle.id_blocks").fetchone()[0]
        assert copy.execute("SELECT first_id FROM mantle.allocate_ids('restored', 1)").fetchone()[0] > last
