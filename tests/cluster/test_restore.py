"""TafDB is restored to a point in time under Patroni, every group to the same point, by docs/runbooks.md."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import botocore.exceptions
import pytest

from cluster.cluster import Cluster
from cluster.member import Member
from cluster.services import ClusterGateway
from stack import secret
from stack.poll import wait_until
from stack.service import command_on

from . import runbook
from .clients import BytesBucket, rest_of, s3_at, s3_of, session
from .oracle import assert_nothing_is_lost, fsck, rebuilds

pytestmark = pytest.mark.long
POINT = "before_the_mistake"
WITH_FOLDER = 20  # the number of a gateway beside the others
BOUND_S = 180.0


class Backup:
    """A copy of every group's primary, and the WAL since, as a backup program keeps them."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.place = cluster.layout.folder / "backup"

    def archive(self, group: int) -> Path:
        return self.place / f"archive-{group}"

    def copy(self, group: int) -> Path:
        return self.place / f"base-{group}"

    def take(self) -> None:
        for group in self.cluster.groups:
            self.archive(group).mkdir(parents=True)
            self.cluster.account.own(self.archive(group))
            self.keep_wal(group, f"cp %p {self.archive(group)}/%f")
        for group in self.cluster.groups:
            leader = self.cluster.leader(group)
            where = ["-h", leader.host.address, "-p", str(leader.port), "-U", "replicator"]
            where += ["-D", str(self.copy(group)), "-c", "fast"]
            password = secret.read(self.cluster.layout, "replication")
            subprocess.run(
                [str(self.cluster.layout.postgresql_bin / "pg_basebackup"), *where],
                check=True,
                env={**os.environ, "PGPASSWORD": password},
            )

    def keep_wal(self, group: int, how: str) -> None:
        runbook.typed(
            self.cluster, "Keeping what a restore needs", GROUP=runbook.group(self.cluster, group), ARCHIVE=how
        )
        for member in self.cluster.groups[group]:
            shown = lambda member=member: member.psql("SHOW archive_mode").strip() == "on"
            wait_until(shown, f"{member.name} to keep its WAL", BOUND_S)
        self.cluster.await_protection(group)

    def await_archived(self, group: int) -> None:
        leader = self.cluster.leader(group)
        file = leader.psql("SELECT pg_walfile_name(pg_switch_wal())").strip()
        last = f"SELECT last_archived_wal >= '{file}' FROM pg_stat_archiver"
        wait_until(lambda: leader.psql(last).strip() == "t", f"the WAL of {leader.name} to be kept", BOUND_S)

    def restore(self, primary: Member) -> None:
        """The steps that docs/runbooks.md describes in words, for the data directory of the group's next primary."""
        for member in self.cluster.groups[primary.group]:
            member.signal_postmaster(signal.SIGQUIT)
        for member in self.cluster.groups[primary.group]:
            wait_until(
                lambda member=member: member.postmaster() is None, f"the end of {member.name}'s PostgreSQL", BOUND_S
            )
        shutil.rmtree(primary.data)
        shutil.copytree(self.copy(primary.group), primary.data, symlinks=True)
        runbook.typed(self.cluster, "Preparing a restored directory", DATA=str(primary.data))
        for place in (primary.data, *primary.data.rglob("*")):
            self.cluster.account.own(place)
        self.start(primary)

    def start(self, primary: Member) -> None:
        """Only the first start has the recovery target; Patroni's next start does not know it."""
        fetch = f"cp {self.archive(primary.group)}/%f %p"
        given = f"-c recovery_target_name={POINT} -c recovery_target_action=promote -c restore_command='{fetch}'"
        log = self.cluster.layout.logs / f"{primary.name}-restored.log"
        command = [
            str(self.cluster.layout.postgresql_bin / "pg_ctl"), "start", "-w", "-t", str(int(BOUND_S)),
            "-D", str(primary.data), "-l", str(log), "-o", given,
        ]  # fmt: skip
        entered, account = command_on(primary.host, self.cluster.account, command)
        environment = {"PATH": os.environ["PATH"], "PGPASSFILE": primary.environment()["PGPASSFILE"]}
        subprocess.run(entered, check=True, env=environment, cwd="/", **account.popen_arguments())
        wait_until(
            lambda: primary.psql("SELECT NOT pg_is_in_recovery()").strip() == "t",
            f"{primary.name} to be restored",
            BOUND_S,
        )


@pytest.fixture
def backup(cluster: Cluster) -> Iterator[Backup]:
    backup = Backup(cluster)
    yield backup
    for group in cluster.groups:
        backup.keep_wal(group, "/bin/true")
    shutil.rmtree(backup.place)


@pytest.fixture
def with_folder(cluster: Cluster) -> Iterator[ClusterGateway]:
    """A gateway that keeps bytes in a folder, as the runbooks' commands expect it. The others cannot read them."""
    gateway = ClusterGateway(cluster.layout, cluster.account, WITH_FOLDER, "gateway-with-folder")
    gateway.data, gateway.bucket = cluster.layout.data / "objects", None
    gateway.prepare()
    gateway.start()
    try:
        gateway.await_ready()
        yield gateway
    finally:
        gateway.process.stop()
        shutil.rmtree(gateway.data)


def test_every_group_goes_back_to_one_point(
    cluster: Cluster, ns: str, backup: Backup, with_folder: ClusterGateway
) -> None:
    rest = rest_of(cluster)
    backup.take()
    kept = [f"kept{n}/below" for n in range(8)]
    for path in kept:
        rest.mkdir(ns, path, parents=True)
    stores = {"kept0/in-bucket": s3_of(cluster), "kept0/in-folder": s3_at(cluster, with_folder.url)}
    for key, s3 in stores.items():
        s3.put_object(Bucket=ns, Key=key, Body=b"before")
    with session(cluster) as connection:
        point = "citus_create_restore_point" if cluster.shape.is_citus else "pg_create_restore_point"
        connection.execute(f"SELECT {point}(%s)", (POINT,))
    copy = backup.place / "bytes"
    copy.mkdir()
    data_dir = with_folder.data
    runbook.typed(cluster, "Copying the bytes of objects", BYTES=str(data_dir), COPY=str(copy))
    bucket = BytesBucket(cluster)
    versions = {locator: bucket.read(locator) for locator in bucket.locators()}  # as a bucket with versions keeps them
    for key, s3 in stores.items():
        s3.put_object(Bucket=ns, Key=key, Body=b"after the point")
    for n in range(8):
        rest.mkdir(ns, f"lost{n}")
        rest.rename(ns, f"kept{n}/below/", f"lost{n}/moved/")
    for group in cluster.groups:
        backup.await_archived(group)
    rebuilt = rebuilds(cluster)

    primaries = {group: cluster.leader(group) for group in cluster.groups}
    for group in primaries:
        runbook.typed(cluster, "Restoring to a point in time", GROUP=runbook.group(cluster, group))
    for primary in primaries.values():
        backup.restore(primary)
    for group, primary in primaries.items():
        standby = next(member for member in cluster.groups[group] if member is not primary)
        runbook.typed(cluster, "After a restore", GROUP=runbook.group(cluster, group), SERVER=standby.name)
        assert cluster.leader(group) is primary

    wait_until(lambda: rebuilds(cluster) > rebuilt, "the index to be rebuilt", BOUND_S)
    rest.insist("PUT", f"/v1/ns/{ns}/dirs/kept0/below/after")
    for group in cluster.groups:
        cluster.await_protection(group)
    assert rest.list(ns, "") == sorted(f"kept{n}/" for n in range(8))
    assert rest.list(ns, "kept0/below/") == ["after/"]
    for key, s3 in stores.items():
        with pytest.raises(botocore.exceptions.ClientError):  # the bytes went when it was overwritten
            s3.get_object(Bucket=ns, Key=key)
    runbook.typed(cluster, "Putting the bytes of objects back", BYTES=str(data_dir), COPY=str(copy))
    for locator in versions.keys() - bucket.locators():
        bucket.put_back(locator, versions[locator])
    for key, s3 in stores.items():
        assert s3.get_object(Bucket=ns, Key=key)["Body"].read() == b"before"
    assert_nothing_is_lost(cluster, ns, kept)
    assert fsck(cluster) == []
