"""Builds the services, and installs the extension into a private copy of PostgreSQL's files (servers.py).

Invariant: nothing below /usr changes. Each version of PostgreSQL has a tree and a build of the extension of its own,
so a change of the version rebuilds nothing.
"""

import hashlib
import shutil
from pathlib import Path

from . import servers, upgrade
from .layout import REPOSITORY
from .packages import environment, target
from .terminal import run, say, step

BINARIES = ("mantle-gateway", "mantle-indexnode", "mantle")
# One set of features for every test, or Cargo would compile the same crates once for each phase.
TESTED = ("--locked", "--workspace", "--features", "mantle-indexnode/simulation")
EXTENSION_SOURCES = (
    "extension", "sql", "indexnode/types", "Cargo.toml", "Cargo.lock",
    "patroni/stack/upgrade.py", "patroni/stack/servers.py",
)  # fmt: skip
MARK = "mantle.fingerprint"


def postgresql_tree(server: str | None = None) -> Path:
    """The files of a server, by default of the chosen one."""
    name = server or servers.chosen()
    return target() / ("pg" if name == servers.DEFAULT else f"pg-{name}")


def pg_config(server: str | None = None) -> Path:
    """By its real path: Cargo compiles anew when the path changes."""
    return (postgresql_tree(server) / "bin").resolve() / "pg_config"


def checked_pg_config() -> Path:
    """Of the default server, for which Cargo checks and tests the whole workspace. Makes its tree if there is none."""
    tree = postgresql_tree(servers.DEFAULT)
    if not tree.exists():
        servers.make_tree(servers.DEFAULT, tree)
    return pg_config(servers.DEFAULT)


def build_services() -> None:
    """Takes a second when nothing has changed."""
    say("  cargo build --release")
    run(["cargo", "build", "--release", "--locked"], "cargo build", show=True, cwd=REPOSITORY, env=environment())


def build_extension(server: str | None = None) -> None:
    """Builds and installs the extension unless this build of it, for this server, is installed."""
    name = server or servers.chosen()
    tree = postgresql_tree(name)
    fingerprint = _fingerprint(name)
    mark = tree / MARK
    if mark.exists() and mark.read_text(encoding="ascii") == fingerprint:
        return
    build_of = servers.build_of(name)
    if build_of != name:
        build_extension(build_of)
    with step(f"a private copy of PostgreSQL's files ({name})"):
        servers.make_tree(name, tree)
    if build_of == name:
        _install_extension(name)
    else:
        _copy_extension(build_of, name)
    mark.write_text(fingerprint, encoding="ascii")


def _install_extension(server: str) -> None:
    say("  cargo pgrx install --release")
    program = str(pg_config(server))
    command = ["cargo", "pgrx", "install", "--release", "--package", "mantle", "--pg-config", program]
    command += ["--no-default-features", "--features", f"pg{servers.major(server)}"]
    # cargo-pgrx passes its own linker flags. In a shared target directory the two builds would invalidate each other.
    folder = "extension" if server == servers.DEFAULT else f"extension-{server}"
    own = {"PGRX_PG_CONFIG_PATH": program, "CARGO_TARGET_DIR": str(target() / folder)}
    directory = REPOSITORY / "extension"
    run(command, "building the extension", show=True, cwd=directory, env={**environment(), **own})
    with step("upgrade scripts"):
        upgrade.install_scripts(postgresql_tree(server) / "extension")


def _copy_extension(source: str, server: str) -> None:
    library = lambda name: Path(run([pg_config(name), "--pkglibdir"], "pg_config").strip())
    shutil.copy2(library(source) / "mantle.so", library(server))
    for file in (postgresql_tree(source) / "extension").glob("mantle*"):
        shutil.copy2(file, postgresql_tree(server) / "extension")


def _fingerprint(server: str) -> str:
    """A hash over the extension's sources, and what the server is."""
    digest = hashlib.sha256()
    for source in EXTENSION_SOURCES:
        path = REPOSITORY / source
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        for file in files:
            digest.update(f"{file.relative_to(REPOSITORY)}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    digest.update(servers.identity(server).encode())
    return digest.hexdigest()
