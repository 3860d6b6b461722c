"""A change on two nodes: one part has committed, the other is only prepared. No client gets an acknowledgement."""

import uuid

import pytest

from cluster.cluster import Cluster

from .clients import rest_of, session

# Of a coordinator that does not exist, so Citus' recovery leaves it alone.
HALF = "citus_99_1_1_1"


def test_a_repeated_request_waits_for_prepared_parts(cluster: Cluster, ns: str) -> None:
    if not cluster.shape.is_citus:
        pytest.skip("without Citus a change has no halves")
    first, other = rest_of(cluster, 0), rest_of(cluster, 1)
    key, target = str(uuid.uuid4()), f"/v1/ns/{ns}/dirs/made"
    made = first.insist("PUT", target, key=key)
    with session(cluster, max(cluster.groups)) as connection:
        connection.execute("BEGIN")
        connection.execute(f"PREPARE TRANSACTION '{HALF}'")
        try:
            refused = other.call("PUT", target, key=key)
        finally:
            connection.execute(f"ROLLBACK PREPARED '{HALF}'")
    assert (refused.status, refused.code) == (503, "await_timeout")
    assert other.insist("PUT", target, key=key).body["id"] == made.body["id"]
