"""A client of S3 as the run sees it: how it is installed, and its command for each operation."""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).with_name("programs")
TIMEOUT_S = 900


@dataclass(frozen=True)
class Endpoint:
    """What a user of a client knows."""

    url: str
    region: str
    access_key: str
    secret_key: str

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }


class Failed(Exception):
    """A command failed, or did another thing than it should."""


@dataclass
class Client:
    """`commands`: the words of each operation; names in braces are filled in. `install` has a folder of its own."""

    name: str
    install: Callable[[Path], None]
    commands: Mapping[str, list[str]]
    version: list[str] = field(default_factory=list)
    settings: Callable[[Endpoint, Path], dict[str, str]] = lambda _endpoint, _folder: {}

    def prepare(self, folder: Path) -> None:
        """Installs it, once."""
        done = folder / "installed"
        if not done.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self.install(folder)
            done.touch()

    def run(
        self, words: list[str], endpoint: Endpoint, folder: Path, stdin: Path | None = None, /, **values: str
    ) -> str:
        """One command; answers what it printed. `folder`: where it is installed; a value may have that name too."""
        filled = [word.format(home=folder, endpoint=endpoint, programs=PROGRAMS, **values) for word in words]
        home = folder / "home"
        home.mkdir(exist_ok=True)
        environment = {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            **{name: os.environ[name] for name in ("JAVA_HOME", "PYENV_ROOT") if name in os.environ},
            **endpoint.environment(),
            **self.settings(endpoint, folder),
        }
        # A pipe, not a file: the client cannot know the size.
        feed = subprocess.Popen(["cat", stdin], stdout=subprocess.PIPE) if stdin else None
        try:
            done = subprocess.run(
                filled, env=environment, stdin=feed.stdout if feed else subprocess.DEVNULL, capture_output=True,
                timeout=TIMEOUT_S, check=False, text=True, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failed(f"no end after {TIMEOUT_S} s") from None
        finally:
            if feed:
                feed.stdout.close()
                feed.wait()
        if done.returncode:
            said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            telling = [line for line in said if re.search(r"[Ee]rror|Exception", line)][:2] or said[-2:]
            raise Failed(" / ".join(telling)[:600] or f"exit code {done.returncode}")
        return done.stdout


def python(*packages: str) -> Callable[[Path], None]:
    """Installs packages from PyPI into an environment of their own."""

    def install(folder: Path) -> None:
        venv.create(folder, with_pip=True, symlinks=True)
        subprocess.run([folder / "bin" / "pip", "install", "-q", *packages], check=True, stdout=sys.stderr)

    return install


def debian(*packages: str) -> Callable[[Path], None]:
    """Unpacks Debian packages, with those that they need, into a folder: nothing is installed into the system."""

    def install(folder: Path) -> None:
        (folder / "partial").mkdir(exist_ok=True)
        download = ["apt-get", "install", "--download-only", "--no-install-recommends", "-qq", "-y"]
        subprocess.run([*download, "-o", f"Dir::Cache::archives={folder}", *packages], check=True, stdout=sys.stderr)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
        (folder / "bin").mkdir(exist_ok=True)
        for program in (folder / "root" / "usr" / "bin").iterdir():
            (folder / "bin" / program.name).symlink_to(program)

    return install


def golang(module: str) -> Callable[[Path], None]:
    def install(folder: Path) -> None:
        environment = {**os.environ, "GOBIN": str(folder / "bin"), "GOFLAGS": "-modcacherw"}
        subprocess.run(["go", "install", module], env=environment, check=True, stdout=sys.stderr)

    return install


def built(source: str, *commands: list[str]) -> Callable[[Path], None]:
    """Copies a program of ours that uses a library, and builds it there."""

    def install(folder: Path) -> None:
        subprocess.run(["cp", "-r", f"{PROGRAMS / source}/.", folder], check=True)
        for command in commands:
            words = [word.format(home=folder) for word in command]
            subprocess.run(words, cwd=folder, check=True, stdout=sys.stderr)

    return install
