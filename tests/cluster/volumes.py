"""Volumes of a cluster's gateways, and what holds of them after any fault.

Each gateway gets a volume of its own and reads those of the others, as their settings say. Segments are small, so that
a load uses many of them. All that is removed only after a while (uploads, blocks in doubt) is removed soon.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.cluster import Cluster
from cluster.services import ClusterGateway
from stack.failure import Failure
from stack.poll import wait_until
from tests.support.volume_blocks import used_bytes

from .clients import session
from .oracle import mantle

MIB = 1 << 20
SEGMENT_BYTES = 4 * MIB
BOUND_S = 90.0
HOUR_MS = 3_600_000
SOON = {"sweep_interval_ms": 500, "read_grace_ms": 1000, "orphan_grace_ms": 20_000}
NAMED = (
    "SELECT m.locator FROM mantle.meta m WHERE m.locator ^@ 'v1:'",
    "SELECT e.locator FROM mantle.extents e WHERE e.locator ^@ 'v1:'",
)
# What a gateway's log says when volumes and rows disagree.
COMPLAINTS = re.compile(
    "bytes are (missing|damaged)|blocks that were freed are not|rows name|is malformed|leads nowhere"
    "|the volume failed|a flush failed"
)


@dataclass
class VolumeOf:
    """A volume, and the gateway that has it."""

    gateway: ClusterGateway
    folder: Path

    @property
    def number(self) -> int:
        (file,) = self.folder.glob("volume-*")
        return int(file.name.removeprefix("volume-"))

    def bytes_of(self, what: str) -> int:
        """`volume`, `leased`, `used`, `waiting` or `in_doubt`; -1 while the gateway does not say it."""
        return int(self.gateway.metrics().get(f'mantle_gateway_volume_bytes{{of="{what}"}}', -1))

    def is_mounted(self) -> bool:
        return self.gateway.metrics().get("mantle_gateway_volume_mounted") == 1


def settings(text: str, folder: Path, others: list[Path], **limits: int) -> str:
    """A gateway's settings with a volume for new bytes."""
    text = re.sub(r"^new_bytes = .*\n", "", text, flags=re.MULTILINE)
    lines = "".join(f"{name} = {value}\n" for name, value in {**SOON, **limits}.items())
    assert "\n[limits]\n" in text
    text = text.replace("\n[limits]\n", f"\n[limits]\n{lines}", 1)
    return f"""new_bytes = "volumes"
{text}
[volumes]
folder = "{folder}"
read_folders = {json.dumps([str(other) for other in others])}
segment_bytes = {SEGMENT_BYTES}
growth_segments = 2
doubt_ms = 1000
"""


def restart(gateway: ClusterGateway) -> None:
    gateway.process.stop()
    gateway.start()
    gateway.await_ready()


def folder_of(cluster: Cluster, number: int) -> Path:
    return cluster.layout.data / f"volume-of-gateway{number + 1}"


@contextmanager
def volumes(cluster: Cluster, **limits: int) -> Iterator[list[VolumeOf]]:
    """A volume for each gateway, which gets its former settings back at the end. The volumes stay."""
    folders = [folder_of(cluster, number) for number in range(len(cluster.gateways))]
    with ExitStack() as at_end:
        for gateway, folder in zip(cluster.gateways, folders, strict=True):
            before = gateway.config.read_text(encoding="utf-8")
            cluster.account.own_folder(folder, 0o700)
            others = [other for other in folders if other != folder]
            at_end.callback(put_settings, gateway, before)
            put_settings(gateway, settings(before, folder, others, **limits))
        yield [VolumeOf(gateway, folder) for gateway, folder in zip(cluster.gateways, folders, strict=True)]


def put_settings(gateway: ClusterGateway, text: str) -> None:
    gateway.account.write(gateway.config, text)
    restart(gateway)


@contextmanager
def stand_in(cluster: Cluster, name: str, folder: Path, others: list[Path]) -> Iterator[ClusterGateway]:
    """One more gateway, on the last gateway's host, for the volume of one that is gone."""
    gateway = ClusterGateway(cluster.layout, cluster.account, 4 * len(cluster.gateways), name)
    gateway.prepare()
    gateway.account.write(gateway.config, settings(gateway.settings(), folder, others))
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.process.stop()


def locators(cluster: Cluster) -> list[str]:
    """Of all bytes in volumes that rows name."""
    with session(cluster) as connection:
        return [locator for query in NAMED for (locator,) in connection.execute(query)]


def freed(cluster: Cluster) -> int:
    """How many deletes nobody has taken yet, on all nodes."""
    count = 0
    for group in cluster.groups:
        with session(cluster, group) as connection:
            count += connection.execute("SELECT count(*) FROM mantle.freed WHERE shared_by = '0'").fetchone()[0]
    return count


def differences(cluster: Cluster, all_volumes: list[VolumeOf], named: dict[int, int]) -> list[str]:
    """Where the used blocks of a volume are not as many as are named, and deletes that wait."""
    count = freed(cluster)
    found = [f"{count} deletes wait"] if count else []
    for volume in all_volumes:
        used, waiting, in_doubt = (volume.bytes_of(what) for what in ("used", "waiting", "in_doubt"))
        expected = named.get(volume.number, 0)
        if (used, waiting, in_doubt) != (expected, 0, 0):
            found.append(f"volume {volume.number}: {used=} {waiting=} {in_doubt=}, rows name {expected}")
    return found


def await_none(what: str, problems: Callable[[], list[str]], bound_s: float) -> None:
    found: list[str] = []

    def is_right() -> bool:
        found[:] = problems()
        return not found

    try:
        wait_until(is_right, what, bound_s)
    except Failure as failure:
        raise AssertionError(f"{failure}: {'; '.join(found)}") from failure


def await_no_leak(cluster: Cluster, all_volumes: list[VolumeOf]) -> None:
    """Waits until the used blocks of each volume are as many as rows name. No two writes may have the same block."""
    problems = lambda: differences(cluster, all_volumes, used_bytes(locators(cluster)))
    await_none("the used blocks to be those that rows name", problems, BOUND_S)


def await_empty(cluster: Cluster, all_volumes: list[VolumeOf], bound_s: float = BOUND_S) -> None:
    """Waits until no row names bytes in volumes, and all blocks are free."""
    problems = lambda: [*locators(cluster), *differences(cluster, all_volumes, {})]
    await_none("all blocks to be free", problems, bound_s)


def assert_scrubbed(cluster: Cluster, all_volumes: list[VolumeOf]) -> None:
    """`mantle data scrub` finds no damage."""
    for volume in all_volumes:
        given = ("--json", "--folder", str(volume.folder), "--bytes-per-second", str(1 << 30))
        done = mantle(cluster, "data", "scrub", *given, superuser=True)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        assert json.loads(done.stdout)["damaged"] == []


class Logs:
    """The logs of the gateways, from now on."""

    def __init__(self, cluster: Cluster):
        self._folder = cluster.layout.logs
        self._begin = {path: path.stat().st_size for path in self._paths()}

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("gateway*.log"))

    def complaints(self) -> list[str]:
        found = []
        for path in self._paths():
            text = path.read_bytes()[self._begin.get(path, 0) :].decode(errors="replace")
            found += [f"{path.name}: {line}" for line in text.splitlines() if COMPLAINTS.search(line)]
        return found
