"""The faults that tests cause in a cluster. `thaw`, `Network.heal` and `Cluster.start` undo them all.

Invariant: signals go to processes of this cluster only, by pid: those that the launcher started, their children, and
each server's postmaster.
"""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from stack.process import Process, children
from stack.service import Service

from .member import Member


def tree(pid: int | None) -> list[int]:
    """A process and all its descendants."""
    return [] if pid is None else [pid, *(below for child in children(pid) for below in tree(child))]


def freeze(*processes: Process) -> None:
    """Stops processes and their descendants with SIGSTOP: alive for the kernel, silent for everything else."""
    _send(signal.SIGSTOP, [pid for process in processes for pid in tree(process.pid())])


def freeze_postgresql(member: Member) -> None:
    """PostgreSQL alone: its Patroni goes on."""
    _send(signal.SIGSTOP, tree(member.postmaster()))


def kill_postgresql(member: Member) -> None:
    """kill -9 of the postmaster; its backends notice by themselves. Patroni starts it again."""
    _send(signal.SIGKILL, [pid for pid in [member.postmaster()] if pid is not None])


def kill_all_of_postgresql(member: Member) -> None:
    """kill -9 of the postmaster and its descendants, frozen ones too. Data in their socket buffers is lost."""
    _send(signal.SIGKILL, tree(member.postmaster()))


def kill_machine(member: Member) -> None:
    """kill -9 of Patroni, then of PostgreSQL with all its descendants, as in a power failure. Nothing restarts it."""
    member.process.kill()
    kill_all_of_postgresql(member)


def kill_services(services: Iterable[Service]) -> None:
    """kill -9 of all services of a machine, as in a power failure. For a server under Patroni: `kill_machine`."""
    for service in services:
        service.process.kill()


def thaw(processes: list[Process], members: list[Member]) -> None:
    """Continues all that is frozen."""
    pids = [pid for process in processes for pid in tree(process.pid())]
    _send(signal.SIGCONT, pids + [pid for member in members for pid in tree(member.postmaster())])


def _send(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
