"""A service of a stack or a cluster: its process on a host, the files it owns, its probe.

Invariant: a process runs in its host's namespace as the unprivileged account. `nsenter` and `setpriv` exec the program,
so the recorded pid is the program's own.
"""

import signal
from collections.abc import Iterable
from pathlib import Path

from . import http
from .account import Account
from .layout import DATABASE, LOOPBACK, Host, Layout
from .poll import wait_until
from .process import Process

LOGGING = {"RUST_BACKTRACE": "1", "RUST_LOG": "info"}  # of the Rust services


def command_on(host: Host, account: Account, command: list) -> tuple[list, Account]:
    """The command with the prefix that enters the host's namespace and drops privileges."""
    if host.namespace is None:
        return command, account
    become = ["setpriv", f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups", "--"]
    enter = ["nsenter", f"--net=/run/netns/{host.namespace}", "--"]
    return [*enter, *become, *command], Account(0, 0, switch=False)


class Service:
    """One service. By default it answers HTTP probes at `probe`, and needs a directory `data` and its `settings()`."""

    READY_BOUND_S = 60.0
    probe: str
    data: Path | None = None

    def __init__(
        self,
        layout: Layout,
        account: Account,
        name: str,
        program: list,
        *,
        host: Host = LOOPBACK,
        config: str | None = "toml",
        stop_signal: signal.Signals = signal.SIGTERM,
        environment: dict[str, str] | None = None,
    ):
        """`config`: the suffix of its settings' file, whose path ends the command."""
        self.layout, self.account, self.name, self.host = layout, account, name, host
        self.database_address = host.address  # where PostgreSQL answers it
        self.config = layout.config / f"{name}.{config}"
        command, runner = command_on(host, account, [*map(str, program), *([str(self.config)] if config else [])])
        log = layout.logs / f"{name}.log"
        self.process = Process(name, command, runner, layout.pids / name, log, stop_signal, environment or {})

    def prepare(self) -> None:
        """Makes the directory of its data, and renews its settings."""
        if self.data is not None:
            self.account.own_folder(self.data, 0o700)
        self.account.write(self.config, self.settings())

    def database_settings(self, port: int, user: str) -> str:
        """The section about PostgreSQL, which answers on the service's own host."""
        return f"""[postgres]
host = "{self.database_address}"
port = {port}
database = "{DATABASE}"
user = "{user}"
password_file = "{self.layout.secrets / user}"
"""

    def start(self) -> None:
        self.process.start()

    def await_ready(self, bound_s: float | None = None) -> None:
        wait_until(self.is_ready, self.name, bound_s or self.READY_BOUND_S, self.process.why_dead)

    def is_ready(self) -> bool:
        return http.is_ready(f"{self.probe}/readyz")

    def metrics(self) -> dict[str, float]:
        return http.metrics(f"{self.probe}/metrics")


def start_each(services: Iterable[Service]) -> None:
    """Starts those that do not run, side by side, and waits until all are ready."""
    for service in services:
        if service.process.pid() is None:
            service.prepare()
            service.start()
    for service in services:
        service.await_ready()
