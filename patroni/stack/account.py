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
from .terminal import write_private

NAME = "mantle"
OUTSIDE = Path("/var/lib/mantle")


@dataclass(frozen=True)
class Account:
    """The account of the services."""

    uid: int
    gid: int
    switch: bool  # root starts the services as another account

    def popen_arguments(self) -> dict:
        if not self.switch:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        if self.switch:
            os.chown(path, self.uid, self.gid)

    def make(self, folder: Path, mode: int) -> None:
        """Makes a directory of the account's, unless it exists."""
        folder.mkdir(mode=mode, exist_ok=True)
        self.own(folder)

    def write(self, path: Path, text: str) -> None:
        """Only the services can read it. An unchanged file is not rewritten, since a service may be reading it."""
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
        made = subprocess.run(
            [*command, "--shell", "/usr/sbin/nologin", NAME], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            raise Failure(f"cannot make the system account `{NAME}`: {made.stderr.strip()}") from None
        entry = pwd.getpwnam(NAME)
    return Account(entry.pw_uid, entry.pw_gid, switch=True)


def reachable(path: Path, account: Account) -> bool:
    """Checks that the account may walk to `path`."""
    if not account.switch:
        return True
    test = subprocess.run(["/usr/bin/test", "-x", str(path)], check=False, cwd="/", **account.popen_arguments())
    return test.returncode == 0


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
            print(
                f"{folder.parent} is closed to other accounts, so the stack's data lies in {outside}; "
                f"{folder} leads there"
            )
    place = folder.resolve()
    place.chmod(0o755)
    if not reachable(place, account):
        raise Failure(
            f"the account `{NAME}` cannot reach {place}: a folder above it is closed. "
            f"Remove {folder} (or move it) and run again: "
            f"its data will then lie under {OUTSIDE}"
        )
    return place


def remove_folder(folder: Path) -> None:
    """Removes the stack's directory and the place that it links to."""
    place = folder.resolve()
    if folder.is_symlink():
        folder.unlink()
    if place.exists():
        shutil.rmtree(place)
