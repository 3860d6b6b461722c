"""Builds the services, and installs the extension into a private copy of Debian's PostgreSQL.

Invariant: nothing below /usr changes. Debian's PostgreSQL finds its files relative to its own binary. So a copy of its
lib and share trees under target/pg is a whole server, and the extension is installed there.
"""

import hashlib
import shutil
from pathlib import Path

from . import upgrade
from .layout import POSTGRESQL_MAJOR, REPOSITORY
from .packages import environment, target
from .terminal import run, say, step

BINARIES = ("mantle-gateway", "mantle-indexnode", "mantle")
# One set of features for every test, or Cargo would compile the same crates once for each phase.
TESTED = ("--locked", "--workspace", "--features", "mantle-indexnode/simulation")
EXTENSION_SOURCES = ("extension", "sql", "indexnode/types", "Cargo.toml", "Cargo.lock", "patroni/stack/upgrade.py")
DEBIAN = Path("/usr")


def postgresql_tree() -> Path:
    return target() / "pg"


def pg_config() -> Path:
    return postgresql_tree() / "lib" / "postgresql" / POSTGRESQL_MAJOR / "bin" / "pg_config"


def build_services() -> None:
    """Takes a second when nothing has changed."""
    say("  cargo build --release")
    run(["cargo", "build", "--release", "--locked"], "cargo build", show=True, cwd=REPOSITORY, env=environment())


def build_extension() -> None:
    """Builds and installs the extension unless this build of it, for this server, is installed."""
    fingerprint = _fingerprint()
    mark = postgresql_tree() / "mantle.fingerprint"
    if mark.exists() and mark.read_text(encoding="ascii") == fingerprint:
        return
    with step("a private copy of PostgreSQL's files"):
        _copy_postgresql()
    say("  cargo pgrx install --release")
    command = ["cargo", "pgrx", "install", "--release", "--package", "mantle", "--pg-config", str(pg_config())]
    # cargo-pgrx passes its own linker flags. In a shared target directory the two builds would invalidate each other.
    own = {"PGRX_PG_CONFIG_PATH": str(pg_config()), "CARGO_TARGET_DIR": str(target() / "extension")}
    directory = REPOSITORY / "extension"
    run(command, "building the extension", show=True, cwd=directory, env={**environment(), **own})
    with step("upgrade scripts"):
        upgrade.install_scripts(postgresql_tree() / "share" / "postgresql" / POSTGRESQL_MAJOR / "extension")
    mark.write_text(fingerprint, encoding="ascii")


def _copy_postgresql() -> None:
    tree = postgresql_tree()
    shutil.rmtree(tree, ignore_errors=True)
    for part in ("lib", "share"):
        versioned = Path(part, "postgresql", POSTGRESQL_MAJOR)
        shutil.copytree(DEBIAN / versioned, tree / versioned, symlinks=True)
    (tree / "include").mkdir()
    (tree / "include" / "postgresql").symlink_to(DEBIAN / "include" / "postgresql")


def _fingerprint() -> str:
    """A hash over the extension's sources, and the version and extensions of Debian's server."""
    digest = hashlib.sha256()
    for source in EXTENSION_SOURCES:
        path = REPOSITORY / source
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        for file in files:
            digest.update(f"{file.relative_to(REPOSITORY)}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    server = (DEBIAN / "lib" / "postgresql" / POSTGRESQL_MAJOR / "bin" / "postgres").stat()
    controls = (DEBIAN / "share" / "postgresql" / POSTGRESQL_MAJOR / "extension").glob("*.control")
    extensions = sorted(file.name for file in controls)
    digest.update(f"{server.st_size} {server.st_mtime_ns} {extensions}".encode())
    return digest.hexdigest()
