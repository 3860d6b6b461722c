"""Installs the packages that the machine lacks.

Invariant: the installation starts no service of Debian's. A drop-in tells postgresql-common not to make a cluster, and
a policy-rc.d refuses starts. Both are removed afterwards; files that existed before stay.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .failure import Failure
from .layout import REPOSITORY
from .terminal import run, say, step

RUST_MIN = (1, 95)
PYTHON_MIN = (3, 11)
CARGO_PGRX = "0.18.1"

PACKAGES = (
    "postgresql-15",
    "postgresql-client-15",
    "postgresql-server-dev-15",
    "postgresql-15-pgtap",
    "libtap-parser-sourcehandler-pgtap-perl",
    "pgbouncer",
    "apt-file",
    "build-essential",
    "ca-certificates",
    "clang",
    "curl",
    "libclang-dev",
    "libssl-dev",
    "pkg-config",
    "protobuf-compiler",
)
# Packages that start a service, which the stack does not use.
SERVICES = {
    "pgbouncer": "pgbouncer.service",
    "etcd-server": "etcd.service",
    "haproxy": "haproxy.service",
    "logrotate": "logrotate.timer",
}
DEBIAN_PYTHON_PACKAGE = "python3-venv"
CREATE_NO_CLUSTER = Path("/etc/postgresql-common/createcluster.d/mantle-no-cluster.conf")
START_NO_SERVICE = Path("/usr/sbin/policy-rc.d")


def tools() -> Path:
    """The tools that the launcher builds itself."""
    return target() / "tools"


def target() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).absolute()


def environment() -> dict[str, str]:
    """The environment of cargo. Includes cargo's usual directory, in case no shell profile was read."""
    own = [str(tools() / "bin"), str(Path.home() / ".cargo" / "bin")]
    usual = os.environ.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return {**os.environ, "PATH": os.pathsep.join([*own, usual])}


def check_toolchain() -> None:
    """The launcher does not install Rust and Python, so it says what is missing."""
    if sys.version_info < PYTHON_MIN:
        wanted = ".".join(map(str, PYTHON_MIN))
        raise Failure(f"Python {wanted} or newer is needed; {sys.executable} is {sys.version.split()[0]}")
    wanted = ".".join(map(str, RUST_MIN))
    for tool in ("rustc", "cargo"):
        if shutil.which(tool, path=environment()["PATH"]) is None:
            raise Failure(f"`{tool}` is not installed. Install Rust {wanted} or newer, then run this again")
    version = run(["rustc", "--version"], "rustc", env=environment())
    found = re.match(r"rustc (\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < RUST_MIN:
        raise Failure(f"Rust {wanted} or newer is needed; this is {version.strip()}. `rustup update stable` brings it")


def missing_packages(more: tuple[str, ...] = ()) -> list[str]:
    query = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n"]
    wanted = [*PACKAGES, *more]
    if sys.executable.startswith("/usr/bin/"):  # Debian's Python lacks ensurepip
        wanted.append(DEBIAN_PYTHON_PACKAGE)
    try:
        shown = subprocess.run([*query, *wanted], capture_output=True, text=True, check=False)
    except OSError as error:
        text = "this is not Debian (no dpkg-query); the launcher installs with apt-get. See patroni/README.md"
        raise Failure(text) from error
    installed = {line.split()[0] for line in shown.stdout.splitlines() if line.endswith(" installed")}
    return [name for name in wanted if name not in installed]


@contextmanager
def _no_services() -> Iterator[None]:
    made = []
    for path, text, mode in (
        (CREATE_NO_CLUSTER, "create_main_cluster = false\n", 0o644),
        (START_NO_SERVICE, "#!/bin/sh\nexit 101\n", 0o755),
    ):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="ascii")
            path.chmod(mode)
            made.append(path)
    try:
        yield
    finally:
        for path in made:
            path.unlink()


def install_missing(more: tuple[str, ...] = ()) -> None:
    """Installs missing Debian packages and cargo-pgrx. Disables the services that come with the packages."""
    missing = missing_packages(more)
    if missing:
        if os.geteuid() != 0:
            raise Failure(f"packages are missing. As root: apt-get install {' '.join(missing)}")
        say(f"  missing packages: {' '.join(missing)}")
        new_services = [service for package, service in SERVICES.items() if package in missing]
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        with step("apt-get update"):
            run(["apt-get", "update", "-q"], "apt-get update", env=quiet)
        with step("apt-get install"), _no_services():
            command = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing]
            run(command, "apt-get install", env=quiet, stdin=subprocess.DEVNULL)
        if new_services and Path("/run/systemd/system").is_dir():
            run(["systemctl", "disable", "--now", *new_services], "switching off services that came with the packages")
    install_cargo_tool("pgrx", CARGO_PGRX)


def install_cargo_tool(name: str, version: str) -> None:
    """Builds `cargo-NAME`, unless it is there in this version."""
    command = ["cargo", name, "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    if found.returncode == 0 and found.stdout.split()[-1] == version:
        return
    say(f"  cargo-{name} {version} is built once (some minutes)")
    command = ["cargo", "install", "--root", str(tools()), "--locked", f"cargo-{name}@{version}"]
    run(command, f"cargo install cargo-{name}", show=True, env=environment())


def unpacked(package: str) -> Path:
    """A directory with the files of a Debian package. It is not installed, so none of its services is started."""
    folder = tools() / "debian" / package
    if not folder.is_dir():
        with step(f"Debian's {package}, unpacked"), tempfile.TemporaryDirectory() as place:
            if os.geteuid() == 0:
                os.chmod(place, 0o777)  # apt downloads as an account of its own
            download = lambda: run(["apt-get", "download", "-q", package], "apt-get download", cwd=place)
            try:
                download()
            except Failure:  # the lists are older than the archive
                run(["apt-get", "update", "-q"], "apt-get update")
                download()
            (archive,) = Path(place).glob("*.deb")
            new = folder.with_name(f"{package}.new")
            shutil.rmtree(new, ignore_errors=True)
            new.parent.mkdir(parents=True, exist_ok=True)
            run(["dpkg-deb", "-x", str(archive), str(new)], f"unpacking {package}")
            new.replace(folder)
    return folder


def make_venv(folder: Path, requirements: Path, python: str = sys.executable, options: tuple[str, ...] = ()) -> None:
    """Makes a Python environment with exactly the pins of `requirements`; makes it again when that file changes.
    `options`: of `pip install`.
    """
    mark = folder / "requirements.txt"
    wanted = requirements.read_text(encoding="utf-8")
    if mark.exists() and mark.read_text(encoding="utf-8") == wanted and (folder / "bin" / "python").exists():
        return
    with step(f"Python packages of {requirements.relative_to(REPOSITORY)}"):
        shutil.rmtree(folder, ignore_errors=True)
        run([python, "-m", "venv", str(folder)], "making a Python environment")
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run([*pip, *options, "-r", str(requirements)], "pip install")
        mark.write_text(wanted, encoding="utf-8")
