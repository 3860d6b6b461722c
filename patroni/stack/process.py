"""Starts, checks and ends one process of a stack.

Invariant: a process is ended only if the pid in its file still belongs to the process that was started: same start time
(clock ticks since boot, field 22 of /proc/pid/stat) and same boot. A pidfd closes the gap between check and signal.
Source: proc(5), pidfd_open(2).
"""

import json
import os
import select
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .account import Account
from .failure import Failure
from .poll import wait_until

LOG_TAIL_LINES = 12
KILL_BOUND_S = 20.0


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """The start time of a process; None if it does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the command's name may contain spaces and parentheses
    return None if fields[0] in "ZX" else int(fields[19])


def children(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text(encoding="ascii").split()]
    return found


@dataclass
class Process:
    """A service's process, known by its pid file."""

    name: str
    command: list[str]
    account: Account
    pid_file: Path
    log_file: Path
    stop_signal: signal.Signals = signal.SIGTERM
    environment: dict[str, str] = field(default_factory=dict)
    _child: subprocess.Popen | None = None

    def pid(self) -> int | None:
        """The pid, if the process that was started still exists."""
        if self._child is not None:
            self._child.poll()  # reaps it, so that a zombie does not count as alive
        try:
            note = json.loads(self.pid_file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        if note["boot"] != boot_id() or note["ticks"] is None or start_ticks(note["pid"]) != note["ticks"]:
            return None
        return note["pid"]

    def start(self) -> None:
        """Starts it unless it runs. Output is appended to its log. It survives the terminal that started it."""
        if self.pid() is not None:
            return
        with open(self.log_file, "ab") as log:
            try:
                self._child = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **self.environment},
                    cwd="/",
                    start_new_session=True,
                    umask=0o077,
                    **self.account.popen_arguments(),
                )
            except OSError as error:
                raise Failure(f"{self.name}: cannot run {self.command[0]}: {error}") from error
        ticks = start_ticks(self._child.pid)
        note = {"pid": self._child.pid, "ticks": ticks, "boot": boot_id()}
        self.pid_file.write_text(json.dumps(note), encoding="ascii")

    def why_dead(self) -> str | None:
        """None while it lives; else its exit status and the end of its log."""
        if self.pid() is not None:
            return None
        status = None if self._child is None else self._child.returncode
        ended = "" if status is None else f" with status {status}"
        try:
            lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = ["(no log)"]
        tail = "\n".join(f"    {line}" for line in lines[-LOG_TAIL_LINES:])
        return f"{self.name} ended{ended}; the end of {self.log_file}:\n{tail}"

    def signal(self, number: signal.Signals, bound_s: float) -> bool:
        """Sends a signal and waits until the process has ended. False if it is alive after `bound_s`."""
        pid = self.pid()
        if pid is None:
            return True
        offspring = [(child, start_ticks(child)) for child in children(pid)]
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            if self.pid() != pid:
                return True
            signal.pidfd_send_signal(handle, number)
            ended, _, _ = select.select([handle], [], [], bound_s)
        finally:
            os.close(handle)
        if not ended:
            return False
        # PostgreSQL's backends notice the postmaster's death by themselves; a new one must not start earlier.
        are_gone = lambda: all(ticks is None or start_ticks(pid) != ticks for pid, ticks in offspring)
        wait_until(are_gone, f"the end of {self.name}'s child processes", KILL_BOUND_S)
        if self._child is not None:
            self._child.poll()
        self.pid_file.unlink(missing_ok=True)
        return True

    def stop(self, bound_s: float = 30.0) -> None:
        """Sends the stop signal, and SIGKILL after `bound_s`."""
        if not self.signal(self.stop_signal, bound_s):
            self.kill()

    def kill(self) -> None:
        """kill -9, as a crash."""
        if not self.signal(signal.SIGKILL, KILL_BOUND_S):
            raise Failure(f"{self.name} (pid {self.pid()}) does not end, not even by SIGKILL")
