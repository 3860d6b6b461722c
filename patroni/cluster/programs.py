"""Packages that a cluster needs beyond a stack's, and Patroni's Python environment.

Invariant: as for a stack, no service of Debian's is started or changed. Services that come with a package are disabled.
"""

import shutil
from pathlib import Path

from stack import packages, programs
from stack.failure import Failure
from stack.layout import REPOSITORY

from .layout import ClusterLayout

PACKAGES = ("etcd-server", "etcd-client", "haproxy", "iproute2", "logrotate", "openssl", "python3-venv")
REQUIREMENTS = REPOSITORY / "patroni" / "requirements" / "patroni.txt"
# Debian's Python, which every account can run; a user's own may be in a closed home.
PYTHON = "/usr/bin/python3"


def make_patroni() -> None:
    """Makes the environment in target/, once."""
    packages.make_venv(packages.target() / "patroni", REQUIREMENTS, PYTHON)


def renew(layout: ClusterLayout, stop) -> None:
    """Copies new builds into the cluster; processes of older ones are stopped first."""
    programs.renew(layout, stop)
    mark = Path("requirements.txt")
    source = packages.target() / "patroni"
    if not (source / mark).exists():
        raise Failure("Patroni is not installed yet: `make cluster` does it")
    if programs.differs(source / mark, layout.patroni / mark):
        stop()
        shutil.rmtree(layout.patroni, ignore_errors=True)
        shutil.copytree(source, layout.patroni, symlinks=True)
        for name in ("patroni", "patronictl"):  # scripts of an environment name their interpreter by its path
            script = layout.patroni / "bin" / name
            text = script.read_text(encoding="utf-8").replace(str(source), str(layout.patroni))
            script.write_text(text, encoding="utf-8")
