"""Faults of the store that has the objects' bytes. Each function causes one and returns the function that undoes it, as
those of catalogue.py do.
"""

import random
from collections.abc import Callable

import botocore.exceptions

from cluster import faults
from cluster.cluster import Cluster
from stack.poll import wait_until
from tests.cluster.clients import BytesBucket, rest_of, s3_of, session

Undo = Callable[[], None]
BOUND_S = 60.0
KEY, BODY = "object", b"bytes"


def bytes_lost(cluster: Cluster, draw: random.Random) -> Undo:
    """The bytes of one object are gone from the store; a client asks for it. They come back from a backup."""
    ns = f"lost-{draw.getrandbits(40):010x}"
    rest_of(cluster).create_namespace(ns)
    s3, kept = s3_of(cluster), BytesBucket(cluster)
    s3.put_object(Bucket=ns, Key=KEY, Body=BODY)
    with session(cluster) as connection:
        (locator,) = connection.execute(
            "SELECT m.locator FROM mantle.meta m JOIN mantle.namespaces n ON n.ns = m.ns WHERE n.name = %s"
            " AND m.locator IS NOT NULL", (ns,),
        ).fetchone()  # fmt: skip
    found = kept.remove(locator)

    def is_refused() -> bool:
        try:
            s3.get_object(Bucket=ns, Key=KEY)
        except botocore.exceptions.ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"] == 500
        return False

    wait_until(is_refused, "GetObject to fail", BOUND_S)

    def undo() -> None:
        kept.put_back(locator, found)
        assert s3.get_object(Bucket=ns, Key=KEY)["Body"].read() == BODY

    return undo


def machine_killed(cluster: Cluster, _draw: random.Random) -> Undo:
    """All of the store, as in a power failure. Objects are neither put nor read meanwhile; the rest goes on."""
    services = cluster.store.services()
    faults.kill_services(services)

    def undo() -> None:
        for service in services:
            service.start()

    return undo
