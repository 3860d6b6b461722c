"""What `mantle size` answers for rows and WAL, against a database that is loaded, and against patroni/config."""

import json
import os
import re

import psycopg
import pytest

from stack import secret
from stack.layout import CONFIG

from . import sizing
from .inspection import command_line
from .volume_gateway import SEGMENT_BYTES, volume_folder, volume_gateway

DIRECTORIES, OBJECTS, CALLS, PARENTS = 500, 5_000, 2_000, 50
# An answer is never less than what is used, and at most this many times as much.
EXCESS_MAX = 2.0
DIRECTORY_EXCESS_MAX = 3.0


def size(stack, **options: float) -> dict:
    arguments = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    done = command_line(stack, "size", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_covers(answer: float, used: float, what: str, excess: float = EXCESS_MAX) -> None:
    assert used <= answer <= excess * used, f"{what}: {used:.0f} are used, the answer is {answer:.0f}"


@pytest.fixture
def inside(stack, monkeypatch):
    """A session in the database for sizes, and its URL."""
    connect = lambda name: psycopg.connect(
        host="127.0.0.1", port=stack.layout.postgresql_port, dbname=name, user="postgres",
        password=secret.read(stack.layout, "superuser"), autocommit=True,
    )  # fmt: skip
    with sizing.database(connect) as session:
        yield session, stack.postgresql.url("postgres", "superuser").replace("/mantle", f"/{sizing.DATABASE}")


def test_rows_and_wal(stack, inside, tmp_path):
    session, url = inside
    listing = tmp_path / "listing"
    lines = [f"directory-{n % DIRECTORIES:05d}/object-of-25-bytes-{n:06d}\t1\n" for n in range(OBJECTS)]
    listing.write_text("".join(lines), encoding="utf-8")
    ns = sizing.make_namespace(session)
    loaded = sizing.imported(session, stack.layout.binaries / "mantle", url, listing)
    of_import = size(stack, objects=OBJECTS, directories=DIRECTORIES)["disk"]
    # An imported object has no etag and no locator: half of one that was put.
    assert_covers(of_import["objects"] / 2 + of_import["directories"], loaded.meta, "an import")
    parents = [
        id for (id,) in session.execute("SELECT id FROM mantle.meta WHERE explicit IS NOT NULL AND pid = %s", (ns,))
    ]
    made = sizing.each(session, sizing.MKDIR, ns, parents[:PARENTS], "directory-{:06d}/", CALLS)
    answer = size(stack, objects=0, directories=1, mkdirs=1)["disk"]
    # With an attribute record, which a directory gets with its first entry.
    assert_covers(answer["directories"], made.meta, "a mkdir", DIRECTORY_EXCESS_MAX)
    assert_covers(answer["wal_per_second"], made.wal, "the WAL of a mkdir")
    put = sizing.each(session, sizing.PUT, ns, parents[:PARENTS], "object-of-25-bytes-{:06d}", CALLS)
    answer = size(stack, objects=1, directories=0, puts=1)["disk"]
    assert_covers(answer["objects"], put.meta, "a put")
    assert_covers(answer["wal_per_second"], put.wal, "the WAL of a put")
    assert_covers(answer["requests"] / 86_400, put.requests, "the answer to a put")


def test_the_blocks_of_a_volume(stack, bucket):
    """Not an upper bound, but what objects of one size really take."""
    count, length = 30, 9000
    with volume_folder(stack) as folder, volume_gateway(stack, folder=folder) as gateway:
        s3 = gateway.s3(stack)
        for number in range(count):
            s3.put_object(Bucket=bucket, Key=f"k{number}", Body=os.urandom(length))
        options = {"objects": count, "directories": 0, "gateways": 1, "segment_bytes": SEGMENT_BYTES}
        gateway.await_used(size(stack, object_bytes=length, **options)["volume"]["used"])


def setting(text: str, name: str) -> int:
    return int(re.search(rf"^\s*{name}\s*[=:]\s*(\d+)", text, flags=re.MULTILINE)[1])


def test_the_shared_memory_of_this_server(stack, superuser):
    """The lock table is most of it, beside the buffers."""
    shown = {
        name: int(value)
        for name, value in superuser.execute(
            "SELECT name, setting FROM pg_settings"
            " WHERE name IN ('shared_memory_size', 'shared_buffers', 'max_connections')"
        )
    }
    buffers, connections = shown["shared_buffers"] * 8192, shown["max_connections"]
    reserved = size(stack, objects=0, directories=0)["connections"]
    fixed = sum(reserved[name] for name in ("index", "patroni", "reserved"))
    sessions = connections - fixed
    memory = size(
        stack, objects=0, directories=0, gateways=1, pool_size=sessions, pooler_size=sessions,
        shared_buffers=buffers / 2**30,
    )["memory"]  # fmt: skip
    assert_covers(memory["shared_other"], shown["shared_memory_size"] * 2**20 - buffers, "other shared memory")


@pytest.mark.parametrize("gateways", [1, 9])
def test_the_settings_permit_what_is_needed(stack, gateways):
    text = (CONFIG / "mantle.conf").read_text(encoding="utf-8")
    pooler = setting((CONFIG / "pgbouncer.ini").read_text(encoding="utf-8"), "default_pool_size")
    needed = size(stack, objects=0, directories=0, pooler_size=pooler, gateways=gateways)["connections"]
    assert setting(text, "max_connections") >= needed["max_connections"]
    assert setting(text, "max_wal_senders") >= needed["max_wal_senders"]
