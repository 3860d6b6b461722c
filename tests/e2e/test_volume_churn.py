"""Puts and deletes objects in a volume that is nearly full, until three times its size was put: space is not lost."""

import os
import random
import shutil
from collections.abc import Iterator

import pytest

from tests.support.volume_blocks import blocks

from .another_gateway import running
from .volume_gateway import KIB, MIB, VolumeGateway, extents, make, named

CAPACITY = 32 * MIB
SIZES = (4 * KIB, 512 * KIB)
FULL, EMPTIER = 0.95, 0.90  # shares of the capacity between which the used space varies
TIMES = 3


@pytest.fixture
def gateway(stack) -> Iterator[VolumeGateway]:
    gateway = make(stack, folder=stack.layout.data / f"volume-of-{os.urandom(4).hex()}")
    # Several segments: an object in two of them has a manifest.
    gateway.segment_bytes = CAPACITY // 4
    gateway.volumes = (f"bytes_max = {CAPACITY}",)
    with running(gateway):
        yield gateway
    shutil.rmtree(gateway.folder)


def size_of(choose: random.Random) -> int:
    """A random size, evenly on a logarithmic scale: as many small objects as large ones."""
    smallest, largest = SIZES
    return int(smallest * (largest / smallest) ** choose.random())


def body_of(key: str, size: int) -> bytes:
    """Bytes that repeat the key, so that those of another object are noticed."""
    return (f"{key}\n".encode() * (size // len(key) + 1))[:size]


def test_objects_come_and_go_in_a_volume_that_is_nearly_full(stack, gateway, superuser, bucket):
    """No put is refused while 5 % are free. Few objects are in pieces, and little space belongs to no object."""
    s3, choose = gateway.s3(stack), random.Random(1)
    live: dict[str, int] = {}
    put = count = 0
    occupied = lambda: sum(map(blocks, live.values()))
    while put < TIMES * CAPACITY:
        while occupied() > EMPTIER * CAPACITY:
            key = choose.choice(sorted(live))
            s3.delete_object(Bucket=bucket, Key=key)
            del live[key]
        gateway.await_used(named(superuser, bucket))
        while True:
            key, size = f"k{count}", size_of(choose)
            if occupied() + blocks(size) > FULL * CAPACITY:
                break
            s3.put_object(Bucket=bucket, Key=key, Body=body_of(key, size))
            live[key], put, count = size, put + size, count + 1
        pieces = extents(superuser, bucket)
        assert len(pieces) <= 1.3 * len(live)
        assert sum(live.values()) > 0.85 * sum(map(blocks, pieces))
    assert gateway.bytes_of("volume") == CAPACITY
    for key, size in live.items():
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == body_of(key, size), key
    for key in live:
        s3.delete_object(Bucket=bucket, Key=key)
    gateway.await_used(0)
