"""A gateway that keeps the objects' bytes in a volume: one file for many objects."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import botocore.exceptions
import pytest

from stack.poll import wait_until
from tests.support import monitoring
from tests.support.volume_blocks import HEADER, SUM, UNIT, blocks

from .another_gateway import running
from .clients import connect_as, read
from .uploads import PART, begin, complete, pieces, put, refused
from .volume_gateway import (
    BOUND_S,
    KIB,
    MIB,
    VolumeGateway,
    extents,
    fill,
    locator_of,
    make,
    named,
    place_of,
    volume_gateway,
)

QUICK = {"orphan_grace_ms": 20_000, "sweep_interval_ms": 200, "read_grace_ms": 1000}


@pytest.fixture
def gateway(stack, folder) -> Iterator[VolumeGateway]:
    with volume_gateway(stack, folder=folder, volumes=("doubt_ms = 500",), **QUICK) as gateway:
        yield gateway


@pytest.fixture
def beside(stack, gateway):
    """Its client."""
    return gateway.s3(stack)


def test_every_metric_of_a_volume_exists_from_the_start(gateway):
    there = monitoring.shown({"mantle-gateway": [f"{gateway.probe}/metrics"]})
    missing = [monitoring.missing(there, text, monitoring.OF_CERTIFICATES) for text in monitoring.expressions()]
    assert [problem for problems in missing for problem in problems] == []


@pytest.mark.parametrize("size", [0, 1, 4 * KIB, MIB - 1, MIB, 3 * MIB + 5])
def test_bytes_are_in_the_volume_and_come_back(gateway, beside, superuser, bucket, size):
    body = os.urandom(size)
    beside.put_object(Bucket=bucket, Key="k", Body=body)
    locator = locator_of(superuser, bucket, "k")
    assert locator == "empty:" if size == 0 else locator.startswith("v1:")
    assert read(beside, bucket, "k") == body
    if size > 1:
        assert read(beside, bucket, "k", Range=f"bytes={size // 2}-{size - 1}") == body[size // 2 :]
    if 0 < size < MIB:
        at, length = place_of(locator)
        with gateway.file().open("rb") as volume:
            volume.seek(at)
            assert length == size and body in volume.read(size + 64 * KIB)
    beside.delete_object(Bucket=bucket, Key="k")
    gateway.await_used(0)


def test_blocks_are_used_again_within_a_second(gateway, beside, bucket):
    """Overwrites and deletes go through any gateway. The one with the volume learns of them."""
    beside.put_object(Bucket=bucket, Key="k", Body=os.urandom(10 * KIB))
    beside.put_object(Bucket=bucket, Key="k", Body=os.urandom(20 * KIB))
    wait_until(lambda: gateway.bytes_of("used") == blocks(20 * KIB), "the replaced bytes' end", 1.5)
    beside.delete_object(Bucket=bucket, Key="k")
    wait_until(lambda: gateway.bytes_of("used") == 0, "the deleted bytes' end", 1.5)


def test_blocks_of_large_objects_are_used_again_within_a_second(stack, rest, superuser, bucket, folder):
    """Of objects with a manifest, long before the sweeper comes. They have few extents: their size is announced."""
    with volume_gateway(stack, folder=folder) as gateway:
        s3 = gateway.s3(stack)
        is_used = lambda amount: wait_until(lambda: gateway.bytes_of("used") == amount, f"{amount} used bytes", 1.5)
        s3.put_object(Bucket=bucket, Key="k", Body=os.urandom(9 * MIB))
        assert locator_of(superuser, bucket, "k").startswith("manifest:")
        assert len(extents(superuser, bucket)) <= 4
        s3.put_object(Bucket=bucket, Key="k", Body=os.urandom(10 * MIB))
        is_used(named(superuser, bucket))
        upload = begin(s3, bucket, "k")
        complete(s3, upload, put(s3, upload, pieces(PART, PART, 1000)))
        is_used(named(superuser, bucket))
        s3.delete_object(Bucket=bucket, Key="k")
        is_used(0)
        s3.put_object(Bucket=bucket, Key="a/b/k", Body=os.urandom(9 * MIB))
        rest.insist("DELETE", f"/v1/ns/{bucket}/dirs/a/?recursive=true")
        gateway.await_used(0)


def test_a_delete_through_another_gateway_frees_blocks(gateway, beside, s3, rest, bucket):
    for key in ["a/b/1", "a/b/2", "c"]:
        beside.put_object(Bucket=bucket, Key=key, Body=os.urandom(9000))
    s3.delete_object(Bucket=bucket, Key="c")
    gateway.await_used(2 * blocks(9000))
    rest.insist("DELETE", f"/v1/ns/{bucket}/dirs/a/?recursive=true")
    gateway.await_used(0)


def test_copies_share_bytes_until_the_last_is_gone(gateway, beside, bucket):
    body = os.urandom(9000)
    beside.put_object(Bucket=bucket, Key="k", Body=body)
    beside.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k"})
    beside.delete_object(Bucket=bucket, Key="k")
    beside.put_object(Bucket=bucket, Key="other", Body=os.urandom(9000))
    assert read(beside, bucket, "copy") == body
    beside.delete_object(Bucket=bucket, Key="copy")
    gateway.await_used(blocks(9000))


SETTLED = "SELECT count(*) FROM mantle.freed WHERE locator LIKE %s AND shared_by = '0'"


def test_the_reuse_delay_holds_for_bytes_that_were_shared(stack, superuser, bucket, folder):
    """Also once the sweeper has found that no copy names them any more."""
    delay = ("reuse_delay_ms = 3600000", f"bytes_max = {12 * MIB}")
    with volume_gateway(stack, folder=folder, volumes=delay, **QUICK) as gateway:
        s3 = gateway.s3(stack)
        s3.put_object(Bucket=bucket, Key="k", Body=os.urandom(MIB))
        upload = begin(s3, bucket, "parted")
        complete(s3, upload, put(s3, upload, pieces(MIB)))
        used = named(superuser, bucket)
        for key in ["k", "parted"]:
            s3.copy_object(Bucket=bucket, Key=f"{key} copy", CopySource={"Bucket": bucket, "Key": key})
            s3.delete_object(Bucket=bucket, Key=key)
            s3.delete_object(Bucket=bucket, Key=f"{key} copy")
        here = f"v1:{gateway.file().name.removeprefix('volume-')}.%"
        wait_until(lambda: superuser.execute(SETTLED, (here,)).fetchone() == (2,), "the sweeper to free both", BOUND_S)
        gateway.await_used(used)
        s3.put_object(Bucket=bucket, Key="later", Body=os.urandom(MIB))
        gateway.await_used(used + named(superuser, bucket))


def test_uploads_in_parts(gateway, beside, bucket):
    bodies = pieces(PART, PART, 1000)
    upload = begin(beside, bucket, "k")
    parts = put(beside, upload, bodies)
    parts[2] = put_again(beside, upload, 3, bodies)
    complete(beside, upload, parts)
    assert read(beside, bucket, "k") == b"".join(bodies)
    assert read(beside, bucket, "k", Range=f"bytes={PART - 5}-{PART + 4}") == b"".join(bodies)[PART - 5 : PART + 5]
    beside.delete_object(Bucket=bucket, Key="k")
    gateway.await_used(0)
    upload = begin(beside, bucket, "k")
    put(beside, upload, bodies[:1])
    beside.abort_multipart_upload(**upload)
    gateway.await_used(0)


def put_again(s3, upload: dict, number: int, bodies: list[bytes]) -> dict:
    bodies[number - 1] = os.urandom(2000)
    etag = s3.upload_part(**upload, PartNumber=number, Body=bodies[number - 1])["ETag"]
    return {"PartNumber": number, "ETag": etag}


def test_an_object_over_several_segments_has_a_manifest(stack, superuser, bucket, folder):
    body = os.urandom(9 * MIB)
    with volume_gateway(stack, folder=folder) as gateway:
        s3 = gateway.s3(stack)
        s3.put_object(Bucket=bucket, Key="k", Body=body)
        assert locator_of(superuser, bucket, "k").startswith("manifest:")
        assert read(s3, bucket, "k") == body
        assert read(s3, bucket, "k", Range="bytes=1048570-8388609") == body[1048570:8388610]
        assert s3.head_object(Bucket=bucket, Key="k")["ContentLength"] == len(body)
        assert s3.list_multipart_uploads(Bucket=bucket).get("Uploads") is None
        gateway.await_used(named(superuser, bucket))


def test_a_refused_put_keeps_nothing(gateway, beside, bucket):
    beside.put_object(Bucket=bucket, Key="k", Body=b"first", IfNoneMatch="*")
    used = blocks(5)
    for _ in range(3):
        assert refused(beside.put_object, Bucket=bucket, Key="k", Body=os.urandom(9000), IfNoneMatch="*")[1] == 412
    gateway.await_used(used)
    assert gateway.bytes_of("in_doubt") == 0
    assert read(beside, bucket, "k") == b"first"


@pytest.mark.allows("gateway", "the volume is full")
def test_a_full_volume_answers_507_and_takes_bytes_again(stack, superuser, bucket, folder):
    with volume_gateway(stack, folder=folder, volumes=(f"bytes_max = {12 * MIB}",)) as gateway:
        s3 = gateway.s3(stack)
        keys = list(fill(s3, bucket, 100 * KIB))
        assert len(keys) * blocks(100 * KIB) > 0.95 * 12 * MIB, "it grew as far as it may"
        assert gateway.bytes_of("volume") == 12 * MIB and gateway.count("volume_can_grow") == 0
        assert refused(s3.put_object, Bucket=bucket, Key="x", Body=os.urandom(MIB)) == ("InsufficientStorage", 507)
        for key in keys[:10]:
            s3.delete_object(Bucket=bucket, Key=key)
        # The last ones lie in several extents.
        gateway.await_used(named(superuser, bucket))
        s3.put_object(Bucket=bucket, Key="x", Body=os.urandom(500 * KIB))


def test_the_bitmap_follows_from_rows_after_a_restart(stack, s3, superuser, bucket, folder):
    gateway = make(stack, folder=folder)
    bodies = {f"k{number}": os.urandom(1000 + 3000 * number) for number in range(20)}
    with running(gateway):
        for key, body in bodies.items():
            gateway.s3(stack).put_object(Bucket=bucket, Key=key, Body=body)
        gateway.process.kill()
    # Deleted while no gateway has the volume.
    for key in ["k3", "k7"]:
        s3.delete_object(Bucket=bucket, Key=key)
        del bodies[key]
    with running(gateway):
        gateway.await_used(named(superuser, bucket))
        new = os.urandom(60 * KIB)
        gateway.s3(stack).put_object(Bucket=bucket, Key="new", Body=new)
        for key, body in {**bodies, "new": new}.items():
            assert read(gateway.s3(stack), bucket, key) == body, key


@pytest.mark.allows("gateway", "an object's bytes are damaged")
def test_a_flipped_bit_is_an_error_and_a_metric(gateway, beside, superuser, bucket):
    body = os.urandom(20_000)
    beside.put_object(Bucket=bucket, Key="k", Body=body)
    at, _ = place_of(locator_of(superuser, bucket, "k"))
    with gateway.file().open("r+b") as volume:
        volume.seek(at + 40 + 5 * 4 + 10_000)
        byte = volume.read(1)[0]
        volume.seek(-1, os.SEEK_CUR)
        volume.write(bytes([byte ^ 4]))
    assert refused(read, beside, bucket, "k")[1] == 500
    assert gateway.count("bytes_corrupt_total") == 1
    assert read(beside, bucket, "k", Range="bytes=0-99") == body[:100], "the rest of it is whole"


def flip(file: Path, at: int) -> None:
    """Flips a bit."""
    with file.open("r+b") as volume:
        volume.seek(at)
        byte = volume.read(1)[0]
        volume.seek(at)
        volume.write(bytes([byte ^ 4]))


PART_LOCATOR = (
    "SELECT e.locator FROM mantle.meta m JOIN mantle.namespaces n ON m.pid = n.ns"
    " JOIN mantle.extents e ON m.locator = 'manifest:' || e.upload"
    " WHERE n.name = %s AND m.name = %s AND e.part = %s AND e.extent = 0"
)


@pytest.mark.allows("gateway", "an object's bytes are damaged")
def test_a_flipped_bit_at_the_beginning_of_a_later_part_is_counted(gateway, beside, superuser, bucket):
    """The client has the first part by then."""
    bodies = pieces(PART, PART, 1000)
    upload = begin(beside, bucket, "k")
    complete(beside, upload, put(beside, upload, bodies))
    at, length = place_of(superuser.execute(PART_LOCATOR, (bucket, "k", 2)).fetchone()[0])
    flip(gateway.file(), at + HEADER + SUM * -(-length // UNIT))
    got, is_whole = read_on(beside.get_object(Bucket=bucket, Key="k")["Body"])
    assert not is_whole and bodies[0].startswith(got)
    wait_until(lambda: gateway.count("bytes_corrupt_total") == 1, "the metric", BOUND_S)
    assert read(beside, bucket, "k", Range=f"bytes=0-{PART - 1}") == bodies[0]


def read_on(stream) -> tuple[bytes, bool]:
    """What comes, and whether it comes to its end."""
    got = b""
    try:
        while piece := stream.read(64 * KIB):
            got += piece
    except (botocore.exceptions.IncompleteReadError, botocore.exceptions.ResponseStreamingError):
        return got, False
    return got, True


@pytest.mark.allows("gateway", "the volume is full")
@pytest.mark.parametrize("segment_bytes", [4 * MIB, 32 * MIB], ids=["many extents", "one extent"])
def test_a_read_elsewhere_ends_short_when_its_blocks_are_used_again(stack, superuser, folder, bucket, segment_bytes):
    """The gateway that has the volume does not know of it. What the other one sends is the object's, each byte."""
    body = os.urandom(28 * MIB)
    owner = make(stack, folder=folder, volumes=(f"bytes_max = {32 * MIB}",))
    owner.segment_bytes = segment_bytes
    beside = folder.with_name(f"{folder.name}-beside")
    reader = make(stack, 1, folder=beside, volumes=(f'read_folders = ["{folder}"]',))
    with running(owner), running(reader):
        s3 = owner.s3(stack)
        s3.put_object(Bucket=bucket, Key="k", Body=body)
        stream = reader.s3(stack).get_object(Bucket=bucket, Key="k")["Body"]
        first = stream.read(100)
        owner.await_used(named(superuser, bucket))
        s3.delete_object(Bucket=bucket, Key="k")
        owner.await_used(0)
        assert len(fill(s3, bucket, 400 * KIB)) > 60, "all blocks are used again"
        got, is_whole = read_on(stream)
        assert not is_whole and body.startswith(first + got)
        assert [reader.count(f"bytes_{what}_total") for what in ("corrupt", "missing")] == [0, 0], "that is no damage"


@pytest.mark.allows("gateway", "the volume is full")
def test_a_long_read_keeps_the_bytes_of_a_deleted_object(stack, folder, bucket):
    """Larger than what the sockets hold. All other blocks are used meanwhile, and those that were sent."""
    body = os.urandom(24 * MIB)
    with volume_gateway(stack, folder=folder, volumes=(f"bytes_max = {32 * MIB}",)) as gateway:
        s3 = gateway.s3(stack)
        s3.put_object(Bucket=bucket, Key="k", Body=body)
        stream = s3.get_object(Bucket=bucket, Key="k")["Body"]
        first = stream.read(100)
        s3.delete_object(Bucket=bucket, Key="k")
        assert 10 <= len(fill(s3, bucket, 400 * KIB)) <= 40, "of 80"
        assert first + stream.read() == body


@pytest.mark.allows("gateway", "the volume is not mounted")
def test_the_second_gateway_waits_for_the_folder(stack, gateway, beside, bucket, folder):
    """The folder is locked. Meanwhile the second reads the volume in it, and is not ready."""
    beside.put_object(Bucket=bucket, Key="k", Body=b"abc")
    second = make(stack, 1, folder=folder)
    second.prepare()
    second.start()
    try:
        wait_until(lambda: second.metrics().get("mantle_gateway_volume_mounted") == 0, "its metrics", BOUND_S)
        assert read(second.s3(stack), bucket, "k") == b"abc"
        assert refused(second.s3(stack).put_object, Bucket=bucket, Key="x", Body=b"x")[1] == 503
        assert not second.is_ready() and "another gateway has the folder" in second.problem()
        gateway.process.kill()
        second.await_ready()
        second.s3(stack).put_object(Bucket=bucket, Key="x", Body=b"second")
        assert read(second.s3(stack), bucket, "x") == b"second"
    finally:
        second.process.stop()


@pytest.mark.allows("gateway", "the volume is not mounted")
@pytest.mark.allows("postgresql", "lock timeout")
def test_two_gateways_that_start_on_an_empty_folder_make_one_volume(stack, superuser, bucket, folder):
    """The first is held up while it registers its volume, so the second finds the folder empty too."""
    gateways = [make(stack, number, folder=folder) for number in range(2)]
    is_refused = lambda gateway: "another gateway has the folder" in gateway.problem()
    with ExitStack() as at_end:
        with connect_as(stack, "postgres", "superuser") as holder, holder.transaction():
            holder.execute("LOCK TABLE mantle.volumes IN SHARE MODE")
            for gateway in gateways:
                gateway.prepare()
                gateway.start()
                at_end.callback(gateway.process.stop)
            wait_until(lambda: any(map(is_refused, gateways)), "one to be refused", BOUND_S)
            assert list(folder.glob("volume-*")) == []
        wait_until(lambda: any(gateway.is_mounted() for gateway in gateways), "a volume", BOUND_S)
        first, second = sorted(gateways, key=lambda gateway: not gateway.is_mounted())
        wait_until(lambda: is_refused(second), "the other to wait", BOUND_S)
        known = superuser.execute("SELECT count(*) FROM mantle.volumes v WHERE v.name = %s", (str(folder),)).fetchone()
        assert known == (1,) and first.file().exists()
        first.await_ready()
        first.s3(stack).put_object(Bucket=bucket, Key="k", Body=b"abc")
        first.process.kill()
        second.await_ready()
        assert read(second.s3(stack), bucket, "k") == b"abc"
