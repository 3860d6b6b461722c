"""The namespace `debian`: created through the gateway and filled once by `mantle import`.

Invariant: a mark file, written after the import succeeds, prevents a second one. Without it the import runs again. That
is safe: it is idempotent and resumes where it stopped.
"""

import os
import shutil
import subprocess
from pathlib import Path

from . import debian, secret
from .failure import Failure
from .stack import Stack
from .terminal import say

NAMESPACE = "debian"
DATA_GB = {"amd64": 6.0, "full": 20.0}


def import_environment(stack: Stack) -> dict[str, str]:
    return {
        "MANTLE_IMPORT_URL": stack.postgresql.url("importer"),
        "MANTLE_INDEX": ",".join(stack.layout.index_addresses),
    }


def load_debian(stack: Stack, part: str) -> bool:
    """Fills the namespace unless the mark exists; returns whether it did so."""
    mark = stack.layout.marks / f"import-{part}"
    if mark.exists():
        return False
    stack.gateway.create_namespace(NAMESPACE, secret.read(stack.layout, "token"))
    folder = stack.layout.folder / "import"
    folder.mkdir(exist_ok=True)
    listing = folder / f"{part}.list"
    count = debian.make_listing(part, listing)
    say(f"  mantle import: {count:,} paths")
    report = folder / f"{part}.report"
    import_listing(stack, NAMESPACE, listing, report)
    say(f"  what was refused, and why: {shown(report)}")
    mark.write_text(f"{count}\n", encoding="ascii")
    return True


def import_listing(stack: Stack, namespace: str, listing: Path, report: Path) -> None:
    """Runs the import of the command line on the terminal."""
    command = [stack.layout.binaries / "mantle", "import", "--namespace", namespace, listing, "--report", report]
    done = subprocess.run(command, check=False, env={**os.environ, **import_environment(stack)})
    if done.returncode != 0:
        raise Failure(f"mantle import ended with status {done.returncode}. Running this again goes on where it stopped")


def shown(path: Path) -> str:
    """A path, relative to the current directory where that is shorter."""
    try:
        return str(path.relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path)


def check_disk(folder: Path, need_gb: float, what: str) -> None:
    """Refuses to begin when the disk would fill up in the middle of a build or an import."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free / 2**30
    if free < need_gb:
        text = f"{what} needs about {need_gb:g} GiB; {place} has {free:.1f} GiB free. Make room, then run this again"
        raise Failure(text)
