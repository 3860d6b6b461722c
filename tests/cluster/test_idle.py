"""An idle cluster writes nothing: no primary uses a transaction id, and the WAL has only PostgreSQL's own records.
Patroni, poolers, probes, IndexNodes, two gateways and, on Citus, its daemons run meanwhile.
"""

import os

import psycopg
import pytest

from cluster.cluster import Cluster
from cluster.member import Member
from stack import secret
from stack.poll import wait_until
from tests.support import idle
from tests.support.rest import Rest

from .clients import s3_of, session

SECONDS = float(os.environ.get("MANTLE_IDLE_SECONDS", "25"))
WORK_BOUND_S = 60.0
# What the workers still have to do, except for what they keep for long.
LEFT = """
    SELECT (SELECT count(*) FROM mantle.prune_queue) + (SELECT count(*) FROM mantle.meta WHERE ts > 0)
         + (SELECT count(*) FROM mantle.operations WHERE state = 'running')
"""


def server(cluster: Cluster, primary: Member) -> idle.Server:
    def connect(database: str) -> psycopg.Connection:
        password = secret.read(cluster.layout, "superuser")
        where = {"host": primary.host.address, "port": primary.port, "dbname": database, "user": "postgres"}
        return psycopg.connect(**where, password=password, autocommit=True)

    return idle.Server(primary.name, cluster.layout.postgresql_bin, primary.data, connect)


@pytest.mark.long
def test_nothing_is_written_while_nothing_happens(cluster: Cluster, ns: str, rest: Rest) -> None:
    for number in range(20):
        rest.mkdir(ns, f"made-{number}")
        s3_of(cluster).put_object(Bucket=ns, Key=f"implied/{number}/object", Body=b"bytes")
    rest.rename(ns, "made-0/", "renamed/")
    with session(cluster) as coordinator:
        wait_until(lambda: coordinator.execute(LEFT).fetchone() == (0,), "the workers to end their work", WORK_BOUND_S)
    primaries = [server(cluster, cluster.leader(group)) for group in cluster.groups]
    with idle.settled(primaries):
        written = idle.written_in(primaries, SECONDS)
    assert written == {primary.name: idle.Written(0, []) for primary in primaries}
