"""Gateways that keep the objects' bytes in a volume."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import botocore.exceptions

from stack import http
from stack.poll import wait_until
from tests.support.volume_blocks import blocks

from .another_gateway import OFFSET, LimitedGateway, running

KIB, MIB = 1 << 10, 1 << 20
BOUND_S = 60.0
SEGMENT_BYTES = 4 * MIB
HEAD_BYTES = 64 * KIB  # before the first segment
TOKEN_OF_UID_0 = "Troot"
LOCATOR = re.compile(r"v1:(\d+)\.(\d+)\.(\d+)/(\d+\.\d+)/(\d+)\+(\d+)")


class VolumeGateway(LimitedGateway):
    """A gateway with a volume of small segments. `volumes`: further lines of its section."""

    folder: Path
    volumes: tuple[str, ...] = ()
    segment_bytes = SEGMENT_BYTES

    def prepare(self) -> None:
        self.account.own_folder(self.folder, 0o700)
        self.credentials = self.layout.config / f"{self.name}-credentials.toml"
        super().prepare()
        administrator = f"""
[[credential]]
access_key = "AKroot"
secret_key = "SKroot"
token = "{TOKEN_OF_UID_0}"
uid = 0
gids = [0]
"""
        self.account.write(self.credentials, self.credentials.read_text(encoding="utf-8") + administrator)

    def settings(self) -> str:
        section = [
            "[volumes]",
            f'folder = "{self.folder}"',
            f"segment_bytes = {self.segment_bytes}",
            "growth_segments = 2",
            *self.volumes,
            "",
        ]
        return 'new_bytes = "volumes"\n' + super().settings() + "\n".join(section)

    def file(self) -> Path:
        (file,) = self.folder.glob("volume-*")
        return file

    def bytes_of(self, what: str) -> int:
        """`volume`, `leased`, `used`, `waiting` or `in_doubt`, as the gateway reports."""
        return int(self.metrics()[f'mantle_gateway_volume_bytes{{of="{what}"}}'])

    def count(self, name: str) -> int:
        return int(self.metrics().get(f"mantle_gateway_{name}", 0))

    def is_mounted(self) -> bool:
        return self.count("volume_mounted") == 1

    def problem(self) -> str:
        """Why it is not ready, as it says."""
        return http.call("GET", f"{self.probe}/readyz")[1]

    def await_used(self, amount: int) -> None:
        """Waits until so many bytes of the volume are used."""
        wait_until(lambda: self.bytes_of("used") == amount, f"{amount} used bytes", BOUND_S)


def make(stack, number: int = 0, folder: Path | None = None, volumes: tuple[str, ...] = (), **limits: int):
    port = stack.layout.port_base + OFFSET + 4 + number
    gateway = VolumeGateway(stack.layout, stack.account, f"gateway-volume-{number}", port=port)
    gateway.folder = folder or stack.layout.data / f"volumes-{number}"
    gateway.limits, gateway.volumes = limits, volumes
    return gateway


@contextmanager
def volume_gateway(stack, number: int = 0, **given) -> Iterator[VolumeGateway]:
    gateway = make(stack, number, **given)
    with running(gateway):
        yield gateway


@contextmanager
def volume_folder(stack) -> Iterator[Path]:
    """A folder for one test's volume. Folders whose names begin with its name are removed with it."""
    folder = stack.layout.data / f"volume-of-{os.urandom(4).hex()}"
    yield folder
    for made in folder.parent.glob(f"{folder.name}*"):
        shutil.rmtree(made)


def flip(gateway: VolumeGateway, locator: str) -> None:
    """Changes a bit of the last byte of an extent, on the disk."""
    at, length = place_of(locator)
    with gateway.file().open("r+b") as volume:
        volume.seek(at + length - 1)
        byte = volume.read(1)[0]
        volume.seek(-1, os.SEEK_CUR)
        volume.write(bytes([byte ^ 1]))


def put_some(s3, bucket: str, prefix: str, sizes: Iterable[int]) -> dict[str, bytes]:
    """An object of each size; the bodies by their keys."""
    bodies = {f"{prefix}{number}": os.urandom(size) for number, size in enumerate(sizes)}
    for key, body in bodies.items():
        s3.put_object(Bucket=bucket, Key=key, Body=body)
    return bodies


def fill(s3, bucket: str, size: int) -> dict[str, bytes]:
    """Puts objects until one is refused; the bodies of the others by their keys."""
    bodies: dict[str, bytes] = {}
    while True:
        key, body = f"f{len(bodies)}", os.urandom(size)
        try:
            s3.put_object(Bucket=bucket, Key=key, Body=body)
        except botocore.exceptions.ClientError as full:
            assert full.response["ResponseMetadata"]["HTTPStatusCode"] == 507, full
            return bodies
        bodies[key] = body


def assert_all_read(s3, bucket: str, bodies: dict[str, bytes]) -> None:
    for key, body in bodies.items():
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == body, key


def extents(superuser, bucket: str) -> list[int]:
    """Bytes of data in each extent that the objects in a bucket's root name."""
    rows = superuser.execute(
        "WITH o AS (SELECT m.locator FROM mantle.meta m JOIN mantle.namespaces n ON m.pid = n.ns WHERE n.name = %s)"
        " SELECT o.locator FROM o WHERE o.locator LIKE 'v1:%%'"
        " UNION ALL SELECT e.locator FROM o JOIN mantle.extents e ON o.locator = 'manifest:' || e.upload",
        (bucket,),
    )
    found = [extent for (locator,) in rows for extent in locator.rpartition("/")[2].split(",")]
    return [int(extent.partition("+")[2]) for extent in found]


def named(superuser, bucket: str) -> int:
    """Bytes of the blocks that the objects in a bucket's root name."""
    return sum(map(blocks, extents(superuser, bucket)))


def locator_of(superuser, bucket: str, name: str) -> str:
    """Of an object in the bucket's root."""
    row = superuser.execute(
        "SELECT m.locator FROM mantle.meta m JOIN mantle.namespaces n ON m.pid = n.ns"
        " WHERE n.name = %s AND m.name = %s",
        (bucket, name),
    )
    return row.fetchone()[0]


def place_of(locator: str) -> tuple[int, int]:
    """Where in the volume's file the only extent of a locator begins, and how many bytes of data it has."""
    _, segment, _, _, block, length = LOCATOR.fullmatch(locator).groups()
    return HEAD_BYTES + int(segment) * SEGMENT_BYTES + int(block) * 4 * KIB, int(length)
