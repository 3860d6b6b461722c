"""Which blocks of volumes rows name (docs/formats.md: locators and extents). Blocks have 4 KiB, as by default."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

BLOCK = 4 << 10
UNIT = 4 << 10  # data bytes that share a checksum
HEADER, SUM = 40, 4
LOCATOR = re.compile(r"v1:(\d+)\.(\d+)\.\d+/(\d+\.\d+)/([\d+,]+)")


@dataclass(frozen=True)
class Extent:
    """Bytes of one write in one piece. Its epoch is left out: a write may be named under several."""

    volume: int
    segment: int
    generation: str
    block: int
    length: int

    def blocks(self) -> range:
        return range(self.block, self.block + blocks(self.length) // BLOCK)


def blocks(size: int) -> int:
    """Bytes of the blocks that an extent of so many bytes takes."""
    head = HEADER + SUM * -(-size // UNIT)
    return -(-(head + size) // BLOCK) * BLOCK


def extents(locators: Iterable[str]) -> set[Extent]:
    """What locators of volumes name."""
    found = set()
    for locator in locators:
        volume, segment, generation, pieces = LOCATOR.fullmatch(locator).groups()
        for piece in pieces.split(","):
            block, _, length = piece.partition("+")
            found.add(Extent(int(volume), int(segment), generation, int(block), int(length)))
    return found


def used_bytes(locators: Iterable[str]) -> dict[int, int]:
    """Bytes of the blocks that locators name, by volume. No two writes may have the same block."""
    owners: dict[tuple[int, int, int], Extent] = {}
    for extent in extents(locators):
        for block in extent.blocks():
            other = owners.setdefault((extent.volume, extent.segment, block), extent)
            assert other is extent, f"{other} and {extent} have the same block"
    found: dict[int, int] = {}
    for volume, _, _ in owners:
        found[volume] = found.get(volume, 0) + BLOCK
    return found
