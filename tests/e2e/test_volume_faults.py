"""Volumes on a disk that is full, and rows that cannot be. The disk is a tmpfs of some MiB, which root mounts."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack import http
from stack.poll import wait_until

from .another_gateway import running
from .clients import read
from .uploads import refused
from .volume_gateway import (
    BOUND_S,
    KIB,
    LOCATOR,
    MIB,
    SEGMENT_BYTES,
    VolumeGateway,
    assert_all_read,
    fill,
    locator_of,
    make,
    named,
    put_some,
    volume_folder,
    volume_gateway,
)

DISK_BYTES, LARGER_BYTES = 12 * MIB, 32 * MIB  # a volume has 8 MiB at first, and grows by 8
CHANGE = "UPDATE mantle.meta SET locator = %s WHERE locator = %s"


@pytest.fixture
def disk(stack) -> Iterator[Path]:
    place = stack.layout.data / f"disk-{os.urandom(4).hex()}"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "mantle-volume", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode != 0:
        place.rmdir()
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr}")
    stack.account.own(place)
    yield place
    subprocess.run(["umount", str(place)], check=True)
    place.rmdir()


def free(disk: Path) -> int:
    system = os.statvfs(disk)
    return system.f_bavail * system.f_frsize


@pytest.mark.allows("gateway", "the volume is full|there is no room for a larger volume")
def test_a_full_disk_refuses_puts_and_loses_nothing(stack, superuser, bucket, disk):
    with volume_gateway(stack, folder=disk / "volume") as gateway:
        s3 = gateway.s3(stack)
        bodies = fill(s3, bucket, 100 * KIB)
        assert named(superuser, bucket) > 0.95 * 2 * SEGMENT_BYTES
        assert gateway.bytes_of("volume") == 2 * SEGMENT_BYTES and gateway.count("volume_can_grow") == 0
        assert refused(s3.put_object, Bucket=bucket, Key="x", Body=os.urandom(MIB)) == ("InsufficientStorage", 507)
        assert free(disk) > 3 * MIB, "what is too little for the volume is left to others"
        assert_all_read(s3, bucket, bodies)

        for key in list(bodies)[:5]:
            s3.delete_object(Bucket=bucket, Key=key)
            del bodies[key]
        gateway.await_used(named(superuser, bucket))
        bodies |= put_some(s3, bucket, "again", [200 * KIB])
        assert_all_read(s3, bucket, bodies)

        subprocess.run(["mount", "-o", f"remount,size={LARGER_BYTES}", str(disk)], check=True)
        wait_until(lambda: gateway.bytes_of("volume") == 4 * SEGMENT_BYTES, "a larger volume", BOUND_S)
        wait_until(lambda: gateway.count("volume_can_grow") == 1, "its report", BOUND_S)
        bodies |= put_some(s3, bucket, "more", [3 * MIB] * 2)
        assert_all_read(s3, bucket, bodies)


@pytest.mark.allows("gateway", "the volume is not mounted")
def test_a_volume_is_made_once_there_is_room(stack, superuser, bucket, disk):
    filler = disk / "filler"
    filler.write_bytes(bytes(6 * MIB))
    before = free(disk)
    gateway = make(stack, folder=disk / "volume")
    gateway.prepare()
    gateway.start()
    try:
        why = lambda: http.call("GET", f"{gateway.probe}/readyz")
        wait_until(lambda: "no storage space" in str(why()), "the reason", BOUND_S, gateway.process.why_dead)
        assert refused(gateway.s3(stack).put_object, Bucket=bucket, Key="k", Body=b"k")[1] == 503
        assert list(gateway.folder.glob("volume-*")) == [] and free(disk) > before - 64 * KIB
        registered = "SELECT count(*) FROM mantle.volumes WHERE name = %s"
        assert superuser.execute(registered, (str(gateway.folder),)).fetchone() == (0,), "an attempt uses up no number"
        filler.unlink()
        gateway.await_ready()
        assert_all_read(gateway.s3(stack), bucket, put_some(gateway.s3(stack), bucket, "k", [100 * KIB]))
    finally:
        gateway.process.stop()


@pytest.fixture
def gateway(stack) -> Iterator[VolumeGateway]:
    with volume_folder(stack) as folder:
        yield make(stack, folder=folder)


@pytest.mark.allows("gateway", "rows name the same blocks for different bytes")
def test_a_segment_is_left_out_if_rows_name_the_same_blocks(stack, superuser, gateway, bucket):
    with running(gateway):
        bodies = put_some(gateway.s3(stack), bucket, "k", [9000, 9000])
        gateway.process.kill()
    first, second = (locator_of(superuser, bucket, key) for key in bodies)
    volume, segment, epoch, generation, block, length = LOCATOR.fullmatch(first).groups()
    overlapping = f"v1:{volume}.{segment}.{epoch}/9.{generation.partition('.')[2]}/{int(block) + 1}+{length}"
    superuser.execute(CHANGE, (overlapping, second))
    try:
        with running(gateway):
            wait_until(lambda: gateway.count("segments_refused_total") > 0, "the metric", BOUND_S)
            new = put_some(gateway.s3(stack), bucket, "new", [9000])
            assert LOCATOR.fullmatch(locator_of(superuser, bucket, "new0"))[2] != segment
            assert_all_read(gateway.s3(stack), bucket, new)
            assert read(gateway.s3(stack), bucket, "k0") == bodies["k0"]
    finally:
        superuser.execute(CHANGE, (second, overlapping))
