"""Generated trees, and the listings that every interface must give of them.

A tree is its set of S3 keys. Their order is that of UTF-8 bytes, as in S3 and `COLLATE "C"`.
"""

import random
from collections.abc import Iterable
from pathlib import Path

SEED = 20_261_121


def in_order(keys: Iterable[str]) -> list[str]:
    return sorted(keys, key=lambda key: key.encode())


def directories(keys: Iterable[str]) -> set[str]:
    """All directories that the keys imply, with their trailing slash."""
    found: set[str] = set()
    for key in keys:
        at = key.rfind("/", 0, len(key) - 1)
        while at > 0 and key[: at + 1] not in found:
            found.add(key[: at + 1])
            at = key.rfind("/", 0, at)
        if key.endswith("/"):
            found.add(key)
    return found


def children(keys: Iterable[str], path: str) -> list[str]:
    """Names directly below `path`, directories with their slash, in order."""
    names = set()
    for key in keys:
        if key.startswith(path) and key != path:
            name, slash, _ = key[len(path) :].partition("/")
            names.add(name + slash)
    return in_order(names)


def documents(count: int) -> list[str]:
    """A tree like usr/share/doc: `count` packages, most with two files, some with deeper directories."""
    chance = random.Random(SEED)
    keys = []
    for number in range(count):
        prefix, suffix = chance.choice(["lib", "python3-", "golang-", "r-"]), chance.choice(["", "-dev", ".doc", "+x"])
        package = f"usr/share/doc/{prefix}{number:05d}{suffix}"
        keys += [f"{package}/changelog.Debian.gz", f"{package}/copyright"]
        if chance.random() < 0.1:
            keys += [f"{package}/examples/a.b/run.sh", f"{package}/examples/a/über.txt", f"{package}/examples/a-/x"]
    keys += [f"usr/bin/tool-{number}" for number in range(200)]
    return keys


def write_listing(path: Path, lines: Iterable[str | bytes]) -> Path:
    encoded = (line if isinstance(line, bytes) else line.encode() for line in lines)
    path.write_bytes(b"".join(line + b"\n" for line in encoded))
    return path
