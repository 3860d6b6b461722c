"""`mantle data migrate`: moves bytes into the volume of a gateway."""

import json
import subprocess

from stack.poll import wait_until
from tests.support.volume_blocks import used_bytes

from .inspection import command_line
from .volume_gateway import BOUND_S, TOKEN_OF_UID_0, VolumeGateway

# Locators that objects and uploads of a namespace name.
NAMED = (
    "SELECT m.locator FROM mantle.meta m JOIN mantle.namespaces n ON m.ns = n.ns"
    " WHERE n.name = %s AND m.locator IS NOT NULL"
    " UNION SELECT e.locator FROM mantle.extents e JOIN mantle.uploads u ON u.id = e.upload"
    " JOIN mantle.namespaces n ON u.ns = n.ns WHERE n.name = %s"
)


def call(stack, gateway: VolumeGateway, bucket: str, token: str = TOKEN_OF_UID_0) -> tuple[str, ...]:
    """The arguments of the command."""
    file = stack.layout.config / f"{gateway.name}-token"
    gateway.account.write(file, token)
    return ("data", "migrate", "--json", "--gateway", gateway.url, "--token-file", str(file), "--namespace", bucket)


def migrate(stack, gateway: VolumeGateway, bucket: str, token: str = TOKEN_OF_UID_0) -> tuple[int, str]:
    done = command_line(stack, *call(stack, gateway, bucket, token))
    return done.returncode, done.stdout or done.stderr


def migrated(stack, gateway: VolumeGateway, bucket: str) -> dict:
    """What a migration without a failure says."""
    code, text = migrate(stack, gateway, bucket)
    told = json.loads(text)
    assert (code, told["state"], told["failed"]) == (0, "done", 0), text
    return told


def begun(stack, gateway: VolumeGateway, bucket: str) -> subprocess.Popen:
    """The command, which runs."""
    program = str(stack.layout.binaries / "mantle")
    return subprocess.Popen(
        [program, *call(stack, gateway, bucket)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def locators(superuser, bucket: str) -> set[str]:
    """Of all bytes that a namespace names, but of manifests."""
    found = {locator for (locator,) in superuser.execute(NAMED, (bucket, bucket)).fetchall()}
    return {locator for locator in found if not locator.startswith("manifest:")}


def in_files(superuser, bucket: str) -> set[str]:
    return {locator for locator in locators(superuser, bucket) if locator.startswith("objects/")}


def await_no_leak(superuser, gateway: VolumeGateway, bucket: str) -> None:
    """Waits until the used blocks are those that the namespace names. A sweep may remove some meanwhile."""
    is_right = lambda: gateway.bytes_of("used") == used(superuser, bucket)
    wait_until(is_right, "the used blocks to be those that rows name", BOUND_S)


def used(superuser, bucket: str) -> int:
    """Bytes of the blocks that a namespace names, if all of them are in one volume."""
    return sum(used_bytes(locator for locator in locators(superuser, bucket) if locator.startswith("v1:")).values())
