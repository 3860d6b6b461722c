"""A volume on a block device: a loop device here, whose bytes are in a file."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import botocore.exceptions
import pytest

from stack.poll import wait_until

from .another_gateway import running
from .inspection import command_line
from .uploads import refused
from .volume_gateway import (
    BOUND_S,
    HEAD_BYTES,
    KIB,
    SEGMENT_BYTES,
    VolumeGateway,
    assert_all_read,
    make,
    put_some,
    volume_gateway,
)

SEGMENTS = 5  # the volume grows by two: the last step has room for one


def losetup(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["losetup", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def device(stack, tmp_path) -> Iterator[Path]:
    """A device that the gateway's account may write to."""
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, HEAD_BYTES + SEGMENTS * SEGMENT_BYTES + 1000 * 512)
    made = losetup("--find", "--show", str(image))
    if made.returncode != 0:
        pytest.skip(f"this machine gives no loop device: {made.stderr.strip()}")
    device = Path(made.stdout.strip())
    owner = device.stat()
    try:
        stack.account.own(device)
        yield device
    finally:
        os.chown(device, owner.st_uid, owner.st_gid)
        losetup("--detach", str(device))


@pytest.fixture
def gateway(stack, folder, device) -> VolumeGateway:
    return make(stack, folder=folder, volumes=(f'device = "{device}"',))


def formatted(stack, device: Path, *more: str) -> tuple[int, str]:
    """The exit code of `mantle data format`, and the bytes or the refusal that it tells."""
    done = command_line(stack, "data", "format", "--json", str(device), *more)
    if done.returncode == 0:
        return 0, str(json.loads(done.stdout)["bytes"])
    return done.returncode, json.loads(done.stderr)["error"]["message"]


def size(device: Path) -> int:
    with device.open("rb") as opened:
        return opened.seek(0, os.SEEK_END)


def test_only_a_device_that_holds_nothing_known_is_formatted(stack, device, tmp_path):
    assert formatted(stack, device) == (0, str(size(device)))
    assert formatted(stack, device)[0] == 0, "the mark is no content"
    subprocess.run(["mkfs.ext4", "-q", "-F", str(device)], check=True)
    code, why = formatted(stack, device)
    assert code == 2 and "ext4" in why and "--force" in why
    assert formatted(stack, device, "--force")[0] == 0
    assert subprocess.run(["blkid", "--probe", str(device)], capture_output=True, check=False).returncode == 2
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    assert formatted(stack, file, "--force") == (2, f"{file}: it is no block device")
    assert formatted(stack, tmp_path / "none")[0] == 2


@pytest.mark.allows("gateway", "the volume is not mounted")
def test_a_device_that_was_not_prepared_stays_as_it_is(stack, device, gateway):
    with device.open("r+b") as opened:
        opened.write(b"what nobody knows")
    gateway.prepare()
    gateway.start()
    try:
        wait_until(lambda: "mantle data format" in gateway.problem(), "its refusal", BOUND_S)
        assert device.open("rb").read(17) == b"what nobody knows"
        assert formatted(stack, device)[0] == 0
        gateway.await_ready()
    finally:
        gateway.process.stop()


@pytest.mark.allows("gateway", "the volume is full|there is no room for a larger volume")
def test_a_volume_fills_its_device(stack, device, gateway, bucket, tmp_path):
    formatted(stack, device)
    keys: list[str] = []
    with running(gateway):
        s3 = gateway.s3(stack)
        bodies = put_some(s3, bucket, "k", [1000, 70 * KIB, 3 << 20])
        assert formatted(stack, device, "--force")[0] == 2, "it is in use"
        while True:
            try:
                s3.put_object(Bucket=bucket, Key=f"f{len(keys)}", Body=os.urandom(200 * KIB))
            except botocore.exceptions.ClientError as full:
                assert full.response["ResponseMetadata"]["HTTPStatusCode"] == 507, full
                break
            keys.append(f"f{len(keys)}")
        assert gateway.bytes_of("volume") == SEGMENTS * SEGMENT_BYTES
        assert gateway.bytes_of("used") > 0.9 * SEGMENTS * SEGMENT_BYTES
        assert list(gateway.folder.glob("volume-*")) == []
        gateway.process.kill()
    code, why = formatted(stack, device)
    assert code == 2 and "holds volume " in why
    scrub = ("data", "scrub", "--json", "--device", str(device), "--state", str(tmp_path))
    done = command_line(stack, *scrub, DATABASE_URL=stack.postgresql.url("postgres", "superuser"))
    assert done.returncode == 0 and json.loads(done.stdout)["bytes"] >= sum(map(len, bodies.values())), done.stderr
    with running(gateway):
        s3 = gateway.s3(stack)
        assert_all_read(s3, bucket, bodies)
        assert len(s3.get_object(Bucket=bucket, Key=keys[-1])["Body"].read()) == 200 * KIB


@pytest.mark.allows("gateway", "a volume cannot be read")
def test_another_gateway_reads_a_device(stack, folder, device, gateway, bucket):
    formatted(stack, device)
    other = folder.with_name(f"{folder.name}-other")
    with running(gateway):
        bodies = put_some(gateway.s3(stack), bucket, "k", [1000, 70 * KIB])
        with volume_gateway(stack, 1, folder=other) as second:
            assert refused(second.s3(stack).get_object, Bucket=bucket, Key="k0")[1] == 503
        with volume_gateway(stack, 1, folder=other, volumes=(f'read_devices = ["{device}"]',)) as second:
            assert_all_read(second.s3(stack), bucket, bodies)
            late = put_some(gateway.s3(stack), bucket, "late", [5 * KIB] * 3)
            assert_all_read(second.s3(stack), bucket, late)
