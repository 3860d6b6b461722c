"""Objects that come and go in a volume that is nearly full, until three times its size was put."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .volume_gateway import KIB, MIB, VolumeGateway, blocks, extents, named, volume_gateway

CAPACITY = 32 * MIB
SIZES = (4 * KIB, 512 * KIB)
FULL, EMPTIER = 0.95, 0.90  # shares of the capacity, between which the objects come and go
TIMES = 3
# An object over several segments has a manifest, whose bytes the sweeper finds.
QUICK = {"orphan_grace_ms": 20_000, "sweep_interval_ms": 200, "read_grace_ms": 1000}


@pytest.fixture
def gateway(stack) -> Iterator[VolumeGateway]:
    folder: Path = stack.layout.data / f"volume-of-{os.urandom(4).hex()}"
    with volume_gateway(stack, folder=folder, volumes=(f"bytes_max = {CAPACITY}",), **QUICK) as gateway:
        yield gateway
    shutil.rmtree(folder)


def size_of(choose: random.Random) -> int:
    """As many small ones as large ones."""
    smallest, largest = SIZES
    return int(smallest * (largest / smallest) ** choose.random())


def body_of(key: str, size: int) -> bytes:
    """Bytes that name the key all over."""
    return (f"{key}\n".encode() * (size // len(key) + 1))[:size]


def test_objects_come_and_go_in_a_volume_that_is_nearly_full(stack, gateway, superuser, bucket):
    """No put is refused while 5 % are free. Hardly any object is in pieces, and hardly any space is of no object."""
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
