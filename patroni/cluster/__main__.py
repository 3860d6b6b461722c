"""The command line behind `make cluster`: `python3 -m cluster COMMAND`."""

import argparse
import os
import signal
import sys
from pathlib import Path

from stack import __main__ as stack_launcher
from stack import citus, packages
from stack.failure import Failure
from stack.layout import REPOSITORY
from stack.load import check_disk, shown
from stack.terminal import say

from . import environment, network, programs, status, times
from .cluster import Cluster
from .layout import Shape, read_shape

FOLDER = REPOSITORY / ".cluster"
DATA_GB = 4.0
LOOPBACK = "127.77.0"


def install() -> None:
    """Packages, services and extension, Patroni."""
    packages.check_toolchain()
    packages.install_missing(programs.PACKAGES)
    stack_launcher.build()
    programs.make_patroni()


def new_shape(workers: int, standbys: int, *, plain: bool = False) -> Shape:
    """What can be made on this machine; says what cannot. `plain`: without Citus, though it is there."""
    has_namespaces = network.is_permitted()
    if not has_namespaces:
        say("  network namespaces are not permitted here: the hosts are loopback addresses, and cannot be cut off")
    is_citus = citus.is_installed() and not plain
    if not is_citus:
        say("  without Citus, as asked: one PostgreSQL group" if plain else f"  {citus.NOT_FOUND}. One PostgreSQL group, not distributed")
    return Shape(network.free_network() if has_namespaces else LOOPBACK, has_namespaces, is_citus, workers, standbys)


def start(folder: Path, given: argparse.Namespace) -> None:
    times.read()
    say("Mantle: checking what is installed, and building")
    install()
    if read_shape(folder.resolve()) is None:
        check_disk(folder, DATA_GB, "the cluster")
    cluster = Cluster(folder, read_shape(folder.resolve()) or new_shape(given.workers, given.standbys, plain=given.plain))
    with cluster.alone():
        say(f"Mantle: starting a cluster in {shown(folder)}/")
        cluster.start()
        environment.write(cluster)
    environment.suggest(cluster)


def add_worker(folder: Path) -> None:
    cluster = Cluster(folder)
    with cluster.alone():
        number = cluster.add_worker()
    say(f"group {number} has joined. docs/runbooks.md: what to look at, and how shards move there")


def stop(folder: Path) -> None:
    if read_shape(folder.resolve()) is None:
        say("nothing runs")
        return
    cluster = Cluster(folder)
    with cluster.alone():
        stopped = cluster.stop()
    say(f"stopped {len(stopped)} services; the data stays" if stopped else "nothing runs")


def clean(folder: Path) -> None:
    if read_shape(folder.resolve()) is not None:
        Cluster(folder).remove()
        say(f"removed {shown(folder)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster", description="a highly available Mantle on one machine")
    parser.add_argument("command", choices=["start", "add-worker", "stop", "status", "clean"])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--workers", type=int, default=citus.WORKERS, help="of a new Citus cluster")
    parser.add_argument("--standbys", type=int, default=1, help="of each group of a new cluster")
    parser.add_argument("--plain", action="store_true", help="a new cluster without Citus")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that a start cut short ends what it started
    os.umask(0o022)
    folder = given.folder.absolute()
    try:
        if given.command == "start":
            start(folder, given)
        elif given.command == "add-worker":
            add_worker(folder)
        elif given.command == "stop":
            stop(folder)
        elif given.command == "clean":
            clean(folder)
        elif read_shape(folder.resolve()) is None:
            say("there is no cluster: `make cluster` makes one")
        else:
            return 0 if status.show(Cluster(folder)) else 1
    except Failure as failure:
        print(f"\nmantle: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nmantle: interrupted; what this run had started was ended", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
