"""The programs that a stack runs: copies of the build, so that a rebuild does not change what runs.

Invariant: a process of an older build is stopped before its program is replaced.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from .build import BINARIES, postgresql_tree
from .failure import Failure
from .layout import Layout
from .packages import target
from .postgresql import copy_tree


def renew(layout: Layout, stop: Callable[[], object]) -> None:
    """Copies new builds. `stop` ends the services, which the caller starts again."""
    built = {name: target() / "release" / name for name in BINARIES}
    absent = [name for name, path in built.items() if not path.exists()]
    if absent or not (postgresql_tree() / "mantle.fingerprint").exists():
        raise Failure(f"not built yet: {', '.join(absent) or 'the extension'}. `make build` builds everything")
    renewed = [name for name, path in built.items() if differs(path, layout.binaries / name)]
    fresh_tree = differs(postgresql_tree() / "mantle.fingerprint", layout.postgresql_tree / "mantle.fingerprint")
    if renewed or fresh_tree:
        stop()
    for name in renewed:
        new = layout.binaries / f"{name}.new"
        shutil.copy2(built[name], new)
        new.chmod(0o755)
        new.replace(layout.binaries / name)
    copy_tree(postgresql_tree(), layout)


def differs(built: Path, own: Path) -> bool:
    """Compares size and time; the copy keeps both."""
    if not own.exists():
        return True
    new, old = built.stat(), own.stat()
    return (new.st_size, new.st_mtime_ns) != (old.st_size, old.st_mtime_ns)
