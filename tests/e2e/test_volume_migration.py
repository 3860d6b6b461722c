"""Bytes of uploads in parts, and of objects with several locators, move into a volume while everything goes on."""

import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import botocore.exceptions
import pytest

from stack.poll import wait_until

from . import migrations
from .another_gateway import running
from .background import Repeated
from .clients import connect_as, read
from .inspection import blocked_by
from .migrations import in_files, migrated
from .uploads import PART, begin, complete, etag_of, files, pieces, put
from .volume_gateway import BOUND_S, KIB, MIB, VolumeGateway, locator_of, make

QUICK = {"orphan_grace_ms": 20_000, "sweep_interval_ms": 500, "read_grace_ms": 1000}
HELD = 16  # more than are moved at a time (gateway/src/ops/migrate/mod.rs)


@pytest.fixture
def gateway(stack, folder) -> Iterator[VolumeGateway]:
    gateway = make(stack, folder=folder, volumes=("doubt_ms = 500",), **QUICK)
    with running(gateway):
        yield gateway


def upload(s3, bucket: str, key: str, *sizes: int) -> list[bytes]:
    bodies = pieces(*sizes)
    begun = begin(s3, bucket, key)
    complete(s3, begun, put(s3, begun, bodies))
    return bodies


def test_shared_manifests_move_once(stack, s3, gateway, superuser, bucket):
    """Copies share the manifest. A part that was copied, and parts of an upload that is not finished, move too."""
    before = files(stack)
    bodies = upload(s3, bucket, "k", PART, PART, 1000)
    source = {"Bucket": bucket, "Key": "k"}
    for number in range(3):
        s3.copy_object(Bucket=bucket, Key=f"copy{number}", CopySource=source)
    parted = begin(s3, bucket, "parted")
    first = s3.upload_part_copy(**parted, PartNumber=1, CopySource=source, CopySourceRange=f"bytes=7-{PART + 6}")
    complete(s3, parted, [{"PartNumber": 1, "ETag": first["CopyPartResult"]["ETag"]}])
    open_one = begin(s3, bucket, "open")
    parts = put(s3, open_one, [bodies[0], b""])
    head = s3.head_object(Bucket=bucket, Key="k")
    whole = b"".join(bodies)
    told = migrated(stack, gateway, bucket)
    assert (told["objects"], told["bytes"]) == (3, len(whole) + PART + PART)
    assert in_files(superuser, bucket) == set()
    assert files(stack) <= before, "the files that nothing names any more are gone"
    beside = gateway.s3(stack)
    for key in ["k", "copy0", "copy1", "copy2"]:
        assert read(beside, bucket, key) == whole, key
    assert read(beside, bucket, "parted") == whole[7 : PART + 7]
    assert read(beside, bucket, "k", Range=f"bytes={PART - 3}-{PART + 3}") == whole[PART - 3 : PART + 4]
    assert read(beside, bucket, "k", PartNumber=2) == bodies[1]
    after = s3.head_object(Bucket=bucket, Key="k")
    assert after["ETag"] == etag_of(bodies)
    assert [after[name] for name in ("ETag", "LastModified")] == [head[name] for name in ("ETag", "LastModified")]
    complete(s3, open_one, parts)
    assert read(beside, bucket, "open") == bodies[0]
    migrations.await_no_leak(superuser, gateway, bucket)
    assert migrated(stack, gateway, bucket)["objects"] == 0, "a second run finds nothing to do"


def test_an_object_that_needs_several_locators_moves(stack, s3, gateway, superuser, bucket):
    """It is larger than a segment."""
    body = os.urandom(9 * MIB)
    s3.put_object(Bucket=bucket, Key="k", Body=body)
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k"})
    told = migrated(stack, gateway, bucket)
    assert (told["objects"], in_files(superuser, bucket)) == (2, set())
    assert locator_of(superuser, bucket, "k").startswith("manifest:")
    for key in ["k", "copy"]:
        assert read(gateway.s3(stack), bucket, key) == body, key
    migrations.await_no_leak(superuser, gateway, bucket)


class Users:
    """They change objects through the gateway without a volume: new bytes are in files. They read by the other one.
    Each line of an object says its key and version."""

    KEYS = 6

    def __init__(self, s3, beside, bucket: str):
        self.into_files, self.beside, self.bucket = s3, beside, bucket
        self.known: dict[str, bytes | None] = {}
        self.changing = {f"k{number}": threading.Lock() for number in range(self.KEYS)}
        self.reads = self.changes = self.copies = 0

    def body(self, key: str, count: int, size: int) -> bytes:
        return f"{key} {count:08}\n".encode() * (size // 12)

    def change(self, count: int) -> None:
        """An upload in parts, an overwrite or a delete."""
        choose, s3 = random.Random(count), self.into_files
        key = f"k{count % self.KEYS}"
        with self.changing[key]:
            if choose.random() < 0.2:
                s3.delete_object(Bucket=self.bucket, Key=key)
                self.known[key] = None
            elif choose.random() < 0.5:
                body = self.body(key, count, choose.randrange(12, 200 * KIB))
                s3.put_object(Bucket=self.bucket, Key=key, Body=body)
                self.known[key] = body
            else:
                body = self.body(key, count, PART + 100 * KIB)
                begun = begin(s3, self.bucket, key)
                complete(s3, begun, put(s3, begun, [body[:PART], body[PART:]]))
                self.known[key] = body
        self.changes += 1

    def read(self, count: int) -> None:
        key = f"k{random.Random(-count - 1).randrange(self.KEYS)}"
        with self.changing[key]:
            wanted = self.known.get(key)
            if wanted is None:
                return
            assert read(self.beside, self.bucket, key) == wanted, key
        self.reads += 1

    def read_kept(self, count: int) -> None:
        """What nobody changes but its bytes' place."""
        name = "kept" if count % 2 else "kept copy"
        assert read(self.beside, self.bucket, name) == self.kept
        self.reads += 1

    def copy_part(self, count: int) -> None:
        s3 = self.beside
        begun = begin(s3, self.bucket, f"parted{count}")
        source = {"Bucket": self.bucket, "Key": "kept"}
        copied = s3.upload_part_copy(**begun, PartNumber=1, CopySource=source)["CopyPartResult"]["ETag"]
        complete(s3, begun, [{"PartNumber": 1, "ETag": copied}])
        self.known[f"parted{count}"] = self.kept
        self.copies += 1

    def keep(self) -> None:
        s3 = self.into_files
        self.kept = b"".join(upload(s3, self.bucket, "kept", PART, 1000))
        s3.copy_object(Bucket=self.bucket, Key="kept copy", CopySource={"Bucket": self.bucket, "Key": "kept"})

    def check(self) -> None:
        for key, body in self.known.items():
            if body is None:
                with pytest.raises(botocore.exceptions.ClientError):
                    read(self.beside, self.bucket, key)
            else:
                assert read(self.beside, self.bucket, key) == body, key


def test_bytes_move_while_everything_goes_on(stack, s3, gateway, superuser, bucket):
    users = Users(s3, gateway.s3(stack), bucket)
    users.keep()
    moved = 0
    with Repeated([users.change, users.read, users.read_kept, users.copy_part]) as others:
        for _ in range(3):
            others.await_more(lambda: users.changes, 6, "changes", BOUND_S)
            others.await_more(lambda: users.copies, 2, "copies", BOUND_S)
            moved += migrated(stack, gateway, bucket)["objects"]
            assert not others.faults, others.faults
    assert moved > 0 and users.reads > 0
    migrated(stack, gateway, bucket)
    assert in_files(superuser, bucket) == set()
    users.check()
    users.read_kept(0)
    migrations.await_no_leak(superuser, gateway, bucket)


def test_an_object_that_is_overwritten_after_it_was_listed_is_passed(stack, s3, gateway, superuser, bucket):
    """Its old bytes are gone when its turn comes. It waits for its turn, because the moves of those before it wait."""
    keys = [f"k{number}" for number in range(10, 10 + HELD + 1)]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=f"{key} 1".encode())
    with connect_as(stack, "postgres", "superuser") as holder, ThreadPoolExecutor(1) as beside:
        with holder.transaction():
            holder.execute(
                "SELECT FROM mantle.meta m JOIN mantle.namespaces n ON m.pid = n.ns"
                " WHERE n.name = %s AND m.name = ANY (%s) FOR UPDATE OF m",
                (bucket, keys[:-1]),
            )
            migration = beside.submit(migrated, stack, gateway, bucket)
            wait_until(lambda: blocked_by(superuser, holder.info.backend_pid), "a move that waits", BOUND_S)
            before = files(stack)
            s3.put_object(Bucket=bucket, Key=keys[-1], Body=f"{keys[-1]} 2".encode())
            wait_until(lambda: before - files(stack), "the removal of the old bytes", BOUND_S)
        assert migration.result()["objects"] == HELD
    for key, version in zip(keys, [1] * HELD + [2], strict=True):
        assert read(gateway.s3(stack), bucket, key) == f"{key} {version}".encode(), key


@pytest.mark.parametrize("killed", ["gateway", "command"])
def test_a_migration_that_is_killed_goes_on_when_it_is_asked_for_again(stack, s3, folder, superuser, bucket, killed):
    gateway = make(stack, folder=folder, volumes=("doubt_ms = 500",), **QUICK)
    before = files(stack)
    bodies = {f"k{number}": upload(s3, bucket, f"k{number}", PART, PART, 100) for number in range(8)}
    bodies |= {f"o{number}": [os.urandom(5 * MIB)] for number in range(8)}
    for number in range(8):
        s3.put_object(Bucket=bucket, Key=f"o{number}", Body=bodies[f"o{number}"][0])
    total = len(in_files(superuser, bucket))
    with running(gateway):
        command = migrations.begun(stack, gateway, bucket)
        wait_until(lambda: len(in_files(superuser, bucket)) <= total - 12, "some of them to move", BOUND_S)
        (gateway.process if killed == "gateway" else command).kill()
        left = len(in_files(superuser, bucket))
        assert left > 0, "it was killed in the middle"
        command.wait()
    with running(gateway):
        migrated(stack, gateway, bucket)
        assert in_files(superuser, bucket) == set()
        for key, parts in bodies.items():
            assert read(gateway.s3(stack), bucket, key) == b"".join(parts), key
        migrations.await_no_leak(superuser, gateway, bucket)
        wait_until(lambda: files(stack) <= before, "the end of the old files", BOUND_S)
