"""The life of services that belong together, in one directory: a stack or a cluster.

Invariant: one launcher at a time works on a directory. `start` either leaves everything running or ends what it started
itself. A second start starts what is missing.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from . import secret
from .account import make_folder, remove_folder, service_account
from .failure import Failure
from .layout import Layout


class Deployment:
    """Services, given by their directory. A subclass has `_compose(layout)`, which makes them, `_start_all()`, which
    starts them in order, `services()` in that order, and `stop(except_for)`, which returns the names that it stopped.
    """

    SECRETS: tuple[str, ...] = secret.NAMES

    def __init__(self, folder: Path, layout: Layout):
        self.given_folder = folder.absolute()
        self.account = service_account()
        self._compose(layout)

    def running(self) -> frozenset[str]:
        """The names of the services that run."""
        return frozenset(service.name for service in self.services() if service.process.pid() is not None)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the directory's lock, which ends with the process. Raises Failure when another launcher holds it."""
        place = make_folder(self.given_folder, self.account)
        if place != self.layout.folder:
            self._compose(replace(self.layout, folder=place))
        with open(place / "lock", "w", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Failure(f"another launcher is working on {self.given_folder}; wait for its end") from None
            yield

    def start(self) -> None:
        """Starts what does not run. Call within `alone`."""
        self._prepare()
        running = self.running()
        try:
            self._start_all()
        except BaseException:
            self.stop(except_for=running)
            raise

    def _prepare(self) -> None:
        for folder in (self.layout.data, self.layout.config, self.layout.logs, self.layout.pids):
            self.account.own_folder(folder)
        # They name keys and directories, which other users of the machine may not see.
        self.layout.logs.chmod(0o700)
        self.layout.binaries.mkdir(exist_ok=True)
        secret.make_missing(self.layout, self.account, self.SECRETS)

    def remove(self) -> None:
        """Stops everything and removes the directory with all data."""
        self.stop()
        remove_folder(self.given_folder)
