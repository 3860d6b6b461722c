"""The services, their ports, and the position of each replica."""

import os
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from .layout import Layout
from .service import Service
from .stack import Stack
from .terminal import say


def resident_mib(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def show_services(services: Iterable[Service], cells: Callable[[Service, int | None], str]) -> set[str]:
    """Prints a row for each service: name, state, pid, and the text of `cells`. Returns the states."""
    states = set()
    for service in services:
        pid = service.process.pid()
        state = "stopped" if pid is None else "ready" if service.is_ready() else "not ready"
        states.add(state)
        say(f"{service.name:<26}{state:<12}{pid or '':>8}{cells(service, pid)}")
    return states


def show_replicas(layout: Layout) -> None:
    """Role and positions of the replicas, from `mantle status`."""
    program = layout.binaries / "mantle"
    if program.exists():
        say("")
        environment = {**os.environ, "MANTLE_INDEX": ",".join(layout.index_addresses)}
        subprocess.run([program, "status"], check=False, env=environment)


def show(stack: Stack) -> bool:
    """Prints the table; true when all services are ready, or none runs."""
    memory = lambda pid: f"{resident_mib(pid):.0f}" if pid else ""
    say(f"{'service':<26}{'state':<12}{'pid':>8}{'port':>7}{'MiB':>8}")
    states = show_services(stack.services(), lambda service, pid: f"{service.port:>7}{memory(pid):>8}")
    if states != {"stopped"}:
        show_replicas(stack.layout)
    return len(states) == 1 and "not ready" not in states
