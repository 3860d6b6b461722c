"""The list of files in the Debian archive, as a listing for `mantle import`.

Source: the Contents files that apt-file fetches. A line is a path, white space, and a comma-separated list of packages.
The path may contain spaces and the list may not, so the last column is cut off. Measured in November 2026 for Debian
12, main: Contents-amd64 has 1,655,516 paths, Contents-all 5,661,134. Of both together 962 occur twice, 10 are a file
and a directory, and 3,222 are not ASCII. Nothing is corrected here: the import reports it.
"""

import os
import subprocess
from pathlib import Path

from .failure import Failure
from .terminal import run, say, step

SUITE = "Codename: bookworm"
COMPONENT = "Component: main"
PARTS = {"amd64": ("Contents-amd64",), "full": ("Contents-all", "Contents-amd64")}


def make_listing(part: str, target: Path) -> int:
    """Writes the listing of a part; returns its number of paths."""
    _update()
    sources = _contents_files(part)
    with step(f"listing of {', '.join(source.name.rsplit('_', 1)[-1] for source in sources)}"):
        new = target.with_name(target.name + ".new")
        with open(new, "wb") as out:
            count = sum(_append(source, out) for source in sources)
        new.replace(target)
    return count


def _update() -> None:
    if os.geteuid() != 0:
        return  # only root may update; use what an earlier update fetched
    with step("apt-file update"):
        try:
            run(["apt-file", "update"], "apt-file update")
        except Failure as failure:
            say(f"\n  {failure}\n  Going on with what an earlier update left, if anything.")


def _contents_files(part: str) -> list[Path]:
    """The fetched Contents files of the suite's main component, in the part's order."""
    command = ["apt-get", "indextargets", "--format", "$(SHORTDESC)\t$(FILENAME)", "Created-By: Contents-deb"]
    lines = run([*command, SUITE, COMPONENT], "apt-get indextargets").splitlines()
    found = dict(line.split("\t", 1) for line in lines if "\t" in line)
    missing = [name for name in PARTS[part] if name not in found or not Path(found[name]).exists()]
    if missing:
        raise Failure(
            f"apt-file update left no {', '.join(missing)} of {SUITE.split()[-1]}/main. Is the Debian archive "
            "reachable, and does /etc/apt name `bookworm main`?"
        )
    return [Path(found[name]) for name in PARTS[part]]


def _append(source: Path, out) -> int:
    """Appends the paths of one Contents file, which apt keeps compressed and apt-helper unpacks."""
    count = 0
    with subprocess.Popen(["/usr/lib/apt/apt-helper", "cat-file", str(source)], stdout=subprocess.PIPE) as unpacked:
        for line in unpacked.stdout:
            columns = line.rstrip(b"\n").rsplit(None, 1)
            if len(columns) == 2:
                count += 1
                out.write(columns[0].rstrip() + b"\n")
    if unpacked.returncode != 0:
        raise Failure(f"cannot unpack {source} (apt-helper ended with status {unpacked.returncode})")
    return count
