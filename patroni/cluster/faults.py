"""What tests do to a cluster: end, freeze, cut off. Everything can be undone by `thaw`, `Network.heal` and `Cluster.start`.

Invariant: signals go to processes of this cluster only, by pid: those that were started here, what they started, and each
server's postmaster.
"""

import os
import signal
from contextlib import suppress

from stack.process import Process, children

from .member import Member


def tree(pid: int | None) -> list[int]:
    """A process and all below it."""
    return [] if pid is None else [pid, *(below for child in children(pid) for below in tree(child))]


def freeze(*processes: Process) -> None:
    """They stand still, with all that they started: alive for the kernel, dead for everybody else."""
    _send(signal.SIGSTOP, [pid for process in processes for pid in tree(process.pid())])


def freeze_postgresql(member: Member) -> None:
    """PostgreSQL alone: its Patroni goes on."""
    _send(signal.SIGSTOP, tree(member.postmaster()))


def kill_postgresql(member: Member) -> None:
    """kill -9 of the postmaster; its backends notice by themselves. Patroni starts it again."""
    _send(signal.SIGKILL, [pid for pid in [member.postmaster()] if pid is not None])


def kill_all_of_postgresql(member: Member) -> None:
    """kill -9 of the postmaster and everything it started, also of what stands still: what was on its way to them is lost."""
    _send(signal.SIGKILL, tree(member.postmaster()))


def kill_machine(member: Member) -> None:
    """kill -9 of Patroni, then of PostgreSQL with everything it started, as when the power goes. Nothing restarts it."""
    member.process.kill()
    kill_all_of_postgresql(member)


def thaw(processes: list[Process], members: list[Member]) -> None:
    """Whatever stands still goes on."""
    pids = [pid for process in processes for pid in tree(process.pid())]
    _send(signal.SIGCONT, pids + [pid for member in members for pid in tree(member.postmaster())])


def _send(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
