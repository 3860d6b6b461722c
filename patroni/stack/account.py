"""The unprivileged account that runs every service.

Invariant: no service runs as root (initdb and pgbouncer refuse to). When root starts a stack, its services run as the
system account `mantle`; otherwise as the caller. The account must be able to reach the stack's directory. Below a
closed directory (a clone in root's home) the stack's directory is a link to one under /var/lib/mantle.
"""

import hashlib
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .failure import Failure
from .terminal import run, write_private

NAME = "mantle"
OUTSIDE = Path("/var/lib/mantle")


@dataclass(frozen=True)
class Account:
    """The account of the services."""

    uid: int
    gid: int
    switch: bool  # root starts the services as another account

    def popen_arguments(self) -> dict:
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}

    def own(self, path: Path) -> None:
        if self.switch:
            os.chown(path, self.uid, self.gid)

    def own_folder(self, path: Path, mode: int = 0o755) -> None:
        """Makes a directory of the services, unless it exists."""
        path.mkdir(mode=mode, exist_ok=True)
        self.own(path)

    def write(self, path: Path, text: str) -> None:
        """Writes a file for the services alone. Leaves an unchanged file: a service may be reading it."""
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_private(path, text)
            self.own(path)


def service_account() -> Account:
    """The account; root creates it when it is missing."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), switch=False)
    try:
        entry = pwd.getpwnam(NAME)
    except KeyError:
        command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
        run([*command, "--shell", "/usr/sbin/nologin", NAME], f"making the system account `{NAME}`")
        entry = pwd.getpwnam(NAME)
    return Account(entry.pw_uid, entry.pw_gid, switch=True)


def reachable(path: Path, account: Account) -> bool:
    """Checks that the account may walk to `path`."""
    test = ["/usr/bin/test", "-x", str(path)]
    return not account.switch or subprocess.run(test, cwd="/", **account.popen_arguments()).returncode == 0


def make_folder(folder: Path, account: Account) -> Path:
    """Creates the stack's directory and returns its real path."""
    if folder.is_symlink():
        folder.resolve().mkdir(parents=True, exist_ok=True)
    elif not folder.exists():
        if reachable(folder.parent, account):
            folder.mkdir()
        else:
            tag = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
            outside = OUTSIDE / f"{folder.name.lstrip('.')}-{tag}"
            outside.mkdir(parents=True, exist_ok=True)
            OUTSIDE.chmod(0o755)
            folder.symlink_to(outside)
            print(f"{folder.parent} is closed to other accounts: the data lies in {outside}; {folder} leads there")
    place = folder.resolve()
    place.chmod(0o755)
    if not reachable(place, account):
        raise Failure(
            f"the account `{NAME}` cannot reach {place}: a folder above it is closed. Remove {folder} (or move it) and "
            f"run again: its data will then lie under {OUTSIDE}"
        )
    return place


def remove_folder(folder: Path) -> None:
    """Removes the stack's directory and the place that it links to."""
    place = folder.resolve()
    if folder.is_symlink():
        folder.unlink()
    if place.exists():
        shutil.rmtree(place)
