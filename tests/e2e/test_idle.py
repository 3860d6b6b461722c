"""A stack to which nothing happens writes nothing: no transaction id is used, and the WAL has only PostgreSQL's own.

Transaction ids that are used while nothing happens bring the next wraparound vacuum, and their commits fill archives.
MANTLE_IDLE_SECONDS says how long the test watches; by default each periodic task of the services runs at least once.
"""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from stack import secret
from stack.poll import wait_until
from tests.support import idle
from tests.support.volume_blocks import blocks

from .another_gateway import another_gateway
from .clients import await_all_ready
from .volume_gateway import KIB, volume_folder, volume_gateway

pytestmark = pytest.mark.server

SECONDS = float(os.environ.get("MANTLE_IDLE_SECONDS", "25"))
WORK_BOUND_S = 60.0
SWEEP_MS = 2_000
# What the worker still has to do, except for what it keeps for long.
LEFT = """
    SELECT (SELECT count(*) FROM mantle.prune_queue) + (SELECT count(*) FROM mantle.meta WHERE ts > 0)
         + (SELECT count(*) FROM mantle.operations WHERE state = 'running')
"""


@pytest.fixture
def server(stack) -> idle.Server:
    def connect(database: str) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1",
            port=stack.layout.postgresql_port,
            dbname=database,
            user="postgres",
            password=secret.read(stack.layout, "superuser"),
            autocommit=True,
        )

    return idle.Server("postgresql", stack.layout.postgresql_bin, stack.postgresql.data, connect)


def use(bucket, rest, s3) -> None:
    """Leaves something for each periodic work: objects, an upload, directories, a removed tree, answers to requests."""
    for number in range(20):
        rest.mkdir(bucket, f"made-{number}")
        s3.put_object(Bucket=bucket, Key=f"implied/{number}/object", Body=b"bytes")
    s3.delete_object(Bucket=bucket, Key="implied/0/object")
    s3.create_multipart_upload(Bucket=bucket, Key="never-completed")
    rest.rename(bucket, "made-0/", "renamed/")
    rest.mkdir(bucket, "removed")
    rest.mkdir(bucket, "removed/below")
    rest.insist("DELETE", f"/v1/ns/{bucket}/dirs/removed?recursive=true")


def use_volume(gateway, s3, bucket) -> None:
    """Leaves an object in a volume, and the blocks of one that was deleted, which the gateway has taken back."""
    for number in range(2):
        s3.put_object(Bucket=bucket, Key=f"in-volume-{number}", Body=bytes(5 * KIB))
    s3.delete_object(Bucket=bucket, Key="in-volume-0")
    gateway.await_used(blocks(5 * KIB))


@pytest.mark.timeout(600)
def test_nothing_is_written_while_nothing_happens(stack, bucket, rest, s3, superuser, server):
    use(bucket, rest, s3)
    await_all_ready(stack)
    # Gateways that sweep all the time; by default they do so once an hour. One looks after a volume, which it does four
    # times a second.
    with (
        volume_folder(stack) as folder,
        volume_gateway(stack, folder=folder, sweep_interval_ms=SWEEP_MS) as volume,
        another_gateway(stack, sweep_interval_ms=SWEEP_MS),
    ):
        use_volume(volume, volume.s3(stack), bucket)
        wait_until(lambda: superuser.execute(LEFT).fetchone() == (0,), "the worker to end its work", WORK_BOUND_S)
        superuser.close()
        with idle.settled([server]):
            written = idle.written_in([server], SECONDS)
    assert written == {server.name: idle.Written(0, [])}


def test_a_change_is_noticed(bucket, rest, server):
    with ThreadPoolExecutor() as threads:
        watched = threads.submit(idle.written_in, [server], 2.0)
        for number in itertools.count():
            rest.mkdir(bucket, f"noticed-{number}")
            if watched.done():
                break
    written = watched.result()[server.name]
    assert written.transactions > 0
    assert any("desc: COMMIT" in record for record in written.records)
    assert not any(idle.OWN.search(record) for record in written.records)


SAID = """finished vacuuming "mantle.pg_catalog.pg_statistic": index scans: 0
pages: 0 removed, 19 remain, 1 scanned (5.26% of total)
tuples: 0 removed, 395 remain, 0 are dead but not yet removable
removable cutoff: 765, which was 0 XIDs old when operation ended
index scan not needed: 0 pages from table (0.00% of total) had 0 dead item identifiers removed"""


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("0 removed, 395", "1 removed, 395"),
        ("0 are dead but", "2 are dead but"),
        ("removable cutoff", "tuples missed: 1 dead from 1 pages not removed\nremovable cutoff"),
        ("had 0 dead item", "had 3 dead item"),
        ("removable cutoff", "frozen: 1 pages from table (5.26% of total) had 7 tuples frozen\nremovable cutoff"),
    ],
)
def test_what_vacuum_says_of_a_table(was, becomes):
    assert idle.is_clean(SAID)
    assert was in SAID and not idle.is_clean(SAID.replace(was, becomes, 1))
