"""All services of a stack together: start, stop, state.

Invariant: services start in the order of their dependencies (PostgreSQL, PgBouncer, IndexNodes, gateway) and stop in
reverse.
"""

import hashlib
import os
import socket
from pathlib import Path

from . import programs, upgrade
from .deployment import Deployment
from .failure import Failure
from .gateway import Gateway
from .indexnode import IndexNode
from .layout import INDEX_GROUPS, REPLICAS, Layout
from .pgbouncer import PgBouncer
from .postgresql import PostgreSQL
from .process import Process
from .service import Service, start_each
from .terminal import step


class Stack(Deployment):
    """One stack, given by its directory and its first port. `postgresql_settings`: settings beyond the usual ones.
    `volume`: its gateway puts the bytes of new objects into a volume, and goes on reading those in files.
    """

    def __init__(
        self,
        folder: Path,
        port_base: int,
        groups: tuple[int, ...] = INDEX_GROUPS,
        postgresql_settings: dict[str, str] | None = None,
        volume: bool = False,
    ):
        self.groups = groups
        self.puts_into_volume = volume
        self.postgresql_settings = postgresql_settings or {}
        super().__init__(folder, Layout(folder.absolute().resolve(), port_base))

    def _compose(self, layout: Layout) -> None:
        self.layout, account = layout, self.account
        self.postgresql = PostgreSQL(layout, account)
        for name, value in self.postgresql_settings.items():
            self.postgresql.process.command += ["-c", f"{name}={value}"]
        self.pgbouncer = PgBouncer(layout, account, self.postgresql)
        self.indexnodes = {replica: IndexNode(layout, account, replica, self.groups) for replica in REPLICAS}
        self.gateway = Gateway(layout, account)
        if self.puts_into_volume:
            self.gateway.volume = layout.data / "volume"
        # For the bench: one like the first, and two that send each call by itself.
        self.more_gateways = [
            Gateway(layout, account, f"gateway-{n}", port=layout.more_gateway_port(n), batch_elements_max=elements_max)
            for n, elements_max in ((2, None), (3, 1), (4, 1))
        ]

    def services(self) -> list[Service]:
        return [self.postgresql, self.pgbouncer, *self.indexnodes.values(), self.gateway]

    def processes(self) -> list[Process]:
        """In the order in which they start."""
        return [service.process for service in self.services()]

    def _start_all(self) -> None:
        with step("PostgreSQL"):
            start_each([self.postgresql])
            self._check_extension()
            self.postgresql.set_up()
            for group in self.groups:
                self.postgresql.psql(f"SELECT mantle.create_index_group({group})")
        with step("PgBouncer"):
            start_each([self.pgbouncer])
        with step("three IndexNodes"):
            start_each(self.indexnodes.values())
        with step("gateway"):
            start_each([self.gateway])

    def start_more_gateways(self) -> None:
        """For the bench, on a running stack. Call within `alone`."""
        with step("three more gateways"):
            for gateway in self.more_gateways:
                start_each([gateway])  # one after the other: they share the directory of objects

    def stop(self, except_for: frozenset[str] = frozenset()) -> list[str]:
        """Stops everything that runs; returns the names."""
        stopped = []
        for service in reversed([*self.services(), *self.more_gateways]):
            if service.name not in except_for and service.process.pid() is not None:
                service.process.stop()
                stopped.append(service.name)
        return stopped

    def _prepare(self) -> None:
        super()._prepare()
        self.layout.marks.mkdir(exist_ok=True)
        (self.layout.folder / "port_base").write_text(f"{self.layout.port_base}\n", encoding="ascii")
        programs.renew(self.layout, self.stop)
        self._check_ports()

    def _check_extension(self) -> None:
        """roles.sql upgrades data of a released version, but not of another build of the same version."""
        folder = self.layout.postgresql_extensions
        known = {  # digest of an install script: its name
            hashlib.sha256(script.name.encode() + _without_places(script)).hexdigest(): script.stem
            for script in folder.glob("mantle--*.sql")
            if script.stem.count("--") == 1
        }
        current = f"mantle--{upgrade.installed_version(folder)}"
        mark = self.layout.marks / "extension"
        if mark.exists() and mark.read_text(encoding="ascii") not in known:
            raise Failure(
                f"the data in {self.given_folder} was made by another build of the extension, under the same version "
                "number. `make clean` removes it; then run again"
            )
        mark.write_text(next(digest for digest, script in known.items() if script == current), encoding="ascii")

    def _check_ports(self) -> None:
        running = self.running()
        for name, port in self.layout.ports().items():
            if name.split()[0] in running:
                continue
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError as error:
                    raise Failure(
                        f"port {port}, wanted by {name}, is in use{_holder(port)} ({error.strerror}). End what holds "
                        "it, or choose other ports: make run PORT_BASE=8400"
                    ) from None


def _without_places(script: Path) -> bytes:
    """An install script without the comments that name files of the build, whose paths differ between versions."""
    return b"".join(line for line in script.read_bytes().splitlines(True) if not line.startswith(b"-- /"))


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
