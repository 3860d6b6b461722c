"""What runs, where, and how far each replica is."""

from pathlib import Path

from . import http
from .stack import Stack
from .terminal import say

KIB = 1024


def resident_mib(pid: int) -> float:
    """Resident memory of a process, MiB."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / KIB
    except OSError:
        pass
    return 0.0


def show(stack: Stack) -> bool:
    """Prints the table; true when everything runs and is ready."""
    ready = {node.name: node.is_ready for node in stack.indexnodes.values()}
    ready |= {"postgresql": stack.postgresql.is_ready, "pgbouncer": stack.pgbouncer.is_ready, "gateway": stack.gateway.is_ready}
    ports = stack.layout.ports()
    say(f"{'service':<14}{'state':<12}{'pid':>8}{'port':>7}{'MiB':>8}")
    good = True
    for process in stack.processes():
        pid = process.pid()
        state = "stopped" if pid is None else "ready" if ready[process.name]() else "not ready"
        good &= state == "ready"
        memory = f"{resident_mib(pid):.0f}" if pid else ""
        say(f"{process.name:<14}{state:<12}{pid or '':>8}{ports[process.name]:>7}{memory:>8}")
    _show_replicas(stack)
    return good


def _show_replicas(stack: Stack) -> None:
    """Role and positions of the replicas, from their metrics."""
    rows = []
    for node in stack.indexnodes.values():
        samples = http.metrics(f"{node.probe}/metrics")
        rows.append((node.name, {name: value for name, value in samples.items() if name.startswith("mantle_index_")}))
    names = sorted({name for _, samples in rows for name in samples})
    if names:
        say("")
    for name in names:
        values = "".join(f"{samples.get(name, float('nan')):>16g}" for _, samples in rows)
        say(f"{name:<48}{values}")
