"""Clients of a cluster under test: REST, S3, a superuser's session, and the availability probes."""

import uuid
from collections.abc import Callable

import boto3
import botocore.config
import grpc
import psycopg

from cluster import certificates, store
from cluster.cluster import Cluster
from cluster.layout import COORDINATOR
from stack import secret
from stack.layout import DATABASE, REGION, Layout
from tests.support.rest import Rest

from . import oracle
from .load import Probe

PROBES_EACH = 2


def rest_of(cluster: Cluster, gateway: int = 0) -> Rest:
    """The native API at one gateway."""
    return oracle.rest_at(cluster, cluster.gateways[gateway])


def s3_of(cluster: Cluster, gateway: int = 0):
    """S3 at one gateway through boto3, which does not retry."""
    return s3_at(cluster, cluster.gateways[gateway].url)


def s3_at(cluster: Cluster, url: str, layout: Layout | None = None, whose: str = "", connections: int = 10):
    """The same at any address. `layout`: where the secrets are; `whose`: what their names begin with.

    `connections`: how many it keeps.
    """
    read = lambda name: secret.read(layout or cluster.layout, f"{whose}{name}")
    return boto3.session.Session().client(
        "s3", endpoint_url=url, region_name=REGION, aws_access_key_id=read("access_key"),
        aws_secret_access_key=read("secret_key"),
        verify=str(certificates.path(cluster.layout, f"{certificates.AUTHORITY}.crt")),
        config=botocore.config.Config(
            retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, max_pool_connections=connections
        ),
    )  # fmt: skip


class BytesBucket:
    """The bucket in the cluster's store that has the objects' bytes, by the gateways' key."""

    def __init__(self, cluster: Cluster):
        self.s3 = s3_at(cluster, cluster.store.gateway.url, cluster.store.layout, store.KEY)

    @staticmethod
    def _place(locator: str) -> dict[str, str]:
        """Where the bytes are that a locator names: `bucket:NAME/KEY`."""
        kind, _, key = locator.partition("/")
        assert kind == f"bucket:{store.NAME}", locator
        return {"Bucket": store.BUCKET, "Key": key}

    def locators(self) -> set[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=store.BUCKET)
        return {f"bucket:{store.NAME}/{found['Key']}" for page in pages for found in page.get("Contents", [])}

    def read(self, locator: str) -> bytes:
        return self.s3.get_object(**self._place(locator))["Body"].read()

    def remove(self, locator: str) -> bytes:
        """Removes the bytes, and returns them."""
        found = self.read(locator)
        self.s3.delete_object(**self._place(locator))
        return found

    def put_back(self, locator: str, content: bytes) -> None:
        self.s3.put_object(**self._place(locator), Body=content)


def session(cluster: Cluster, group: int = COORDINATOR) -> psycopg.Connection:
    """A superuser's session at a group's primary."""
    leader = cluster.leader(group)
    return psycopg.connect(
        host=leader.host.address,
        port=leader.port,
        dbname=DATABASE,
        user="postgres",
        password=secret.read(cluster.layout, "superuser"),
        autocommit=True,
    )


def index_channel(cluster: Cluster, address: str, role: str | None = None) -> grpc.Channel:
    """A channel to an IndexNode, with a certificate of this role; without a role, with none."""
    layout, own = cluster.layout, (None, None)
    read = lambda file: certificates.path(layout, file).read_bytes()
    if role:
        name, hosts = f"test-{role}", [host.address for host in layout.index_hosts]
        subject = f"/OU=mantle-{role}/CN=test"
        certificates.make(layout, cluster.account, name, subject, hosts, [certificates.BOTH])
        own = read(f"{name}.key"), read(f"{name}.crt")
    trusted = read(f"{certificates.AUTHORITY}.crt")
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted, *own))


def make_directories(cluster: Cluster, ns: str, each: int) -> dict[int, list[tuple[str, int]]]:
    """Names and ids of new directories, so many by each group that has the content of directories."""
    found: dict[int, list[tuple[str, int]]] = {
        group: [] for group in cluster.groups if cluster.groups[group][0].is_source
    }
    writer = rest_of(cluster)
    with session(cluster) as connection:
        while min(len(made) for made in found.values()) < each:
            name = f"d{uuid.uuid4().hex[:8]}"
            id = writer.mkdir(ns, name).body["id"]
            group = oracle.group_of(connection, id) if cluster.shape.is_citus else COORDINATOR
            if len(found[group]) < each:
                found[group].append((name, id))
    return found


def make_probes(cluster: Cluster, ns: str, rest: Callable[[Cluster, int], Rest] = rest_of) -> dict[int, list[Probe]]:
    """Probes in new directories, by the group that has the content of each. `rest`: a client at a gateway."""
    clients = lambda number: [rest(cluster, (number + at) % 2) for at in range(2)]
    return {
        group: [Probe(ns, *made, *clients(number), keyed=number % 2 == 0) for number, made in enumerate(directories)]
        for group, directories in make_directories(cluster, ns, PROBES_EACH).items()
    }
