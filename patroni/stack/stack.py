"""All services of a stack together: start, stop, state.

Invariant: `start` either leaves everything running or ends what it started itself. Services start in the order of their
dependencies (PostgreSQL, PgBouncer, IndexNodes, gateway) and stop in reverse.
"""

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import programs, secret, upgrade
from .account import make_folder, remove_folder, service_account
from .failure import Failure
from .gateway import Gateway
from .indexnode import IndexNode
from .layout import INDEX_GROUPS, POSTGRESQL_MAJOR, REPLICAS, Layout
from .lock import alone_in
from .pgbouncer import PgBouncer
from .postgresql import PostgreSQL
from .process import Process
from .terminal import step


class Stack:
    """One stack, given by its directory and its first port."""

    def __init__(self, folder: Path, port_base: int, groups: tuple[int, ...] = INDEX_GROUPS):
        self.groups = groups
        self.given_folder = folder.absolute()
        self.layout = Layout(self.given_folder.resolve(), port_base)
        self._compose()

    def _compose(self) -> None:
        self.account = service_account()
        self.postgresql = PostgreSQL(self.layout, self.account)
        self.pgbouncer = PgBouncer(self.layout, self.account, self.postgresql)
        self.indexnodes = {replica: IndexNode(self.layout, self.account, replica, self.groups) for replica in REPLICAS}
        self.gateway = Gateway(self.layout, self.account)
        # For the bench: one like the first, and two that send each call by itself.
        self.more_gateways = [
            Gateway(self.layout, self.account, 2),
            Gateway(self.layout, self.account, 3, batch_elements_max=1),
            Gateway(self.layout, self.account, 4, batch_elements_max=1),
        ]

    def processes(self) -> list[Process]:
        """In the order in which they start."""
        nodes = [node.process for node in self.indexnodes.values()]
        return [self.postgresql.process, self.pgbouncer.process, *nodes, self.gateway.process]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One launcher at a time works on a stack."""
        place = make_folder(self.given_folder, self.account)
        if place != self.layout.folder:
            self.layout = Layout(place, self.layout.port_base)
            self._compose()
        with alone_in(place, self.given_folder):
            yield

    def start(self) -> None:
        """Starts what does not run. Call within `alone`."""
        self._prepare_folder()
        self._check_ports()
        running = {process.name for process in self.processes() if process.pid() is not None}
        try:
            self._start_all()
        except BaseException:
            for process in reversed(self.processes()):
                if process.name not in running:
                    process.stop()
            raise

    def _start_all(self) -> None:
        with step("PostgreSQL"):
            self.postgresql.prepare()
            self.postgresql.start()
            self._check_extension()
            self.postgresql.set_up()
            for group in self.groups:
                self.postgresql.psql(f"SELECT mantle.create_index_group({group})")
        with step("PgBouncer"):
            self.pgbouncer.prepare()
            self.pgbouncer.start()
        with step("three IndexNodes"):
            for node in self.indexnodes.values():
                node.prepare()
                node.start()
            for node in self.indexnodes.values():
                node.await_ready()
        with step("gateway"):
            self.gateway.prepare()
            self.gateway.start()
            self.gateway.await_ready()

    def start_more_gateways(self) -> None:
        """For the bench, on a running stack. Call within `alone`."""
        with step("three more gateways"):
            for gateway in self.more_gateways:
                gateway.prepare()
                gateway.start()
                gateway.await_ready()  # one after the other: they share the directory of objects

    def stop(self) -> list[str]:
        """Stops everything that runs; returns the names."""
        stopped = []
        for process in reversed([*self.processes(), *(gateway.process for gateway in self.more_gateways)]):
            if process.pid() is not None:
                process.stop()
                stopped.append(process.name)
        return stopped

    def remove(self) -> None:
        """Stops everything and removes the directory with all data."""
        self.stop()
        remove_folder(self.given_folder)

    def _prepare_folder(self) -> None:
        layout = self.layout
        for folder in (layout.data, layout.config, layout.logs, layout.pids):
            self.account.make(folder, 0o755)
        layout.binaries.mkdir(exist_ok=True)
        layout.marks.mkdir(exist_ok=True)
        (layout.folder / "port_base").write_text(f"{layout.port_base}\n", encoding="ascii")
        secret.make_missing(layout, self.account)
        programs.renew(layout, self.stop)

    def _check_extension(self) -> None:
        """roles.sql upgrades data of a released version, but not of another build of the same version."""
        folder = self.layout.postgresql_tree / "share" / "postgresql" / POSTGRESQL_MAJOR / "extension"
        known = {}  # digest of an install script: its name
        for script in folder.glob("mantle--*.sql"):
            if script.stem.count("--") == 1:
                known[hashlib.sha256(script.name.encode() + script.read_bytes()).hexdigest()] = script.stem
        current = f"mantle--{upgrade.installed_version(folder)}"
        mark = self.layout.marks / "extension"
        if mark.exists() and mark.read_text(encoding="ascii") not in known:
            raise Failure(
                f"the data in {self.given_folder} was made by another build of the extension, "
                "under the same version number. "
                "`make clean` removes it; then run again"
            )
        mark.write_text(next(digest for digest, script in known.items() if script == current), encoding="ascii")

    def _check_ports(self) -> None:
        running = {process.name for process in self.processes() if process.pid() is not None}
        for name, port in self.layout.ports().items():
            if name.split()[0] in running:
                continue
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError as error:
                    raise Failure(
                        f"port {port}, wanted by {name}, is in use{_holder(port)} ({error.strerror}). "
                        "End what holds it, or choose other "
                        "ports: make run PORT_BASE=8400"
                    ) from None


def _holder(port: int) -> str:
    """The process that listens on a port, if the launcher may know it."""
    wanted = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == "0A" and int(columns[1].rsplit(":", 1)[1], 16) == port:
                wanted.add(f"socket:[{columns[9]}]")
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(descriptor) in wanted:
                pid = descriptor.parts[2]
                command = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
                return f" by {command} (pid {pid})"
        except OSError:
            continue
    return ""
