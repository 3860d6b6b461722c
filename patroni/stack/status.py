"""The services, their ports, and the position of each replica."""

import os
import subprocess
from pathlib import Path

from .layout import Layout
from .stack import Stack
from .terminal import say

KIB = 1024


def resident_mib(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / KIB
    except OSError:
        pass
    return 0.0


def show(stack: Stack) -> bool:
    """Prints the table; true when all services are ready, or none runs."""
    ready = {node.name: node.is_ready for node in stack.indexnodes.values()}
    ready |= {
        "postgresql": stack.postgresql.is_ready,
        "pgbouncer": stack.pgbouncer.is_ready,
        "gateway": stack.gateway.is_ready,
    }
    ports = stack.layout.ports()
    say(f"{'service':<14}{'state':<12}{'pid':>8}{'port':>7}{'MiB':>8}")
    states = set()
    for process in stack.processes():
        pid = process.pid()
        state = "stopped" if pid is None else "ready" if ready[process.name]() else "not ready"
        states.add(state)
        memory = f"{resident_mib(pid):.0f}" if pid else ""
        say(f"{process.name:<14}{state:<12}{pid or '':>8}{ports[process.name]:>7}{memory:>8}")
    if states != {"stopped"}:
        show_replicas(stack.layout)
    return len(states) == 1 and "not ready" not in states


def show_replicas(layout: Layout) -> None:
    """Role and positions of the replicas, from `mantle status`."""
    program = layout.binaries / "mantle"
    if program.exists():
        say("")
        index = ",".join(layout.index_addresses)
        subprocess.run([program, "status"], check=False, env={**os.environ, "MANTLE_INDEX": index})
