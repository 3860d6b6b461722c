"""What the machine must have for a cluster beyond what a stack needs, and Patroni's Python environment.

Invariant: as for a stack, no service of Debian's is started or changed; what comes with a package is switched off.
"""

import shutil
from pathlib import Path

from stack import packages, programs
from stack.failure import Failure
from stack.layout import REPOSITORY

from .layout import ClusterLayout

PACKAGES = ("etcd-server", "etcd-client", "haproxy", "iproute2", "openssl", "python3-venv")
REQUIREMENTS = REPOSITORY / "patroni" / "requirements" / "patroni.txt"
# Debian's, which every account can run; a person's own may lie in a closed home.
PYTHON = "/usr/bin/python3"


def make_patroni() -> None:
    """In target/, once."""
    packages.make_venv(packages.target() / "patroni", REQUIREMENTS, PYTHON)


def renew(layout: ClusterLayout, stop) -> None:
    """The cluster's own copies; what runs from older ones is stopped first."""
    programs.renew(layout, stop)
    mark = Path("requirements.txt")
    source = packages.target() / "patroni"
    if not (source / mark).exists():
        raise Failure("Patroni is not installed yet: `make cluster` does it")
    if programs.differs(source / mark, layout.patroni / mark):
        stop()
        shutil.rmtree(layout.patroni, ignore_errors=True)
        shutil.copytree(source, layout.patroni, symlinks=True)
        _move_scripts(source, layout.patroni)


def _move_scripts(source: Path, copy: Path) -> None:
    """An environment's scripts name its interpreter by its place."""
    for script in ("patroni", "patronictl"):
        path = copy / "bin" / script
        path.write_text(path.read_text(encoding="utf-8").replace(str(source), str(copy)), encoding="utf-8")
