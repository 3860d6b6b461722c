"""Installs what the build needs, and builds the services and the extension."""

from . import load, packages, servers
from .build import BINARIES, build_extension, build_services

BUILD_GB = 7.0


def install() -> None:
    packages.check_toolchain()
    if not all((packages.target() / "release" / name).exists() for name in BINARIES):
        load.check_disk(packages.target(), BUILD_GB, "the build")
    packages.install_missing(servers.needed_packages())


def build() -> None:
    build_services()
    build_extension()
