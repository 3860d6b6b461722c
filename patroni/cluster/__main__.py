"""The command line behind `make cluster`: `python3 -m cluster COMMAND`."""

import argparse
import sys
from pathlib import Path

from stack import citus, packages, servers
from stack.command_line import run_command
from stack.install import build
from stack.layout import REPOSITORY
from stack.load import check_disk, shown
from stack.terminal import say

from . import environment, monitoring, programs, status, times
from .cluster import Cluster
from .layout import read_shape
from .shape import new_shape

FOLDER = REPOSITORY / ".cluster"
DATA_GB = 5.0
OF_AN_OLDER_VERSION = """  An older version made this cluster: its gateways share {folder} for the objects' bytes,
  and go on so. A new one has a store for them: copy the objects elsewhere, then `make clean` and `make cluster`."""


def install() -> None:
    """Installs packages, services, extension and Patroni."""
    packages.check_toolchain()
    packages.install_missing((*programs.PACKAGES, *servers.needed_packages()))
    build()
    programs.make_patroni()


def start(folder: Path, given: argparse.Namespace) -> None:
    times.read()
    say("Mantle: checking what is installed, and building")
    install()
    if read_shape(folder.resolve()) is None:
        check_disk(folder, DATA_GB, "the cluster")
    shape = read_shape(folder.resolve()) or new_shape(given.workers, given.standbys, plain=given.plain)
    cluster = Cluster(folder, shape)
    if cluster.store is None:
        say(OF_AN_OLDER_VERSION.format(folder=shown(cluster.layout.data / "objects")))
    with cluster.alone():
        say(f"Mantle: starting a cluster in {shown(folder)}/")
        cluster.start()
        environment.write(cluster)
        monitoring.write(cluster)
    environment.suggest(cluster)


def add_worker(cluster: Cluster) -> None:
    with cluster.alone():
        number = cluster.add_worker()
        monitoring.write(cluster)
    say(f"group {number} has joined. docs/runbooks.md: what to look at, and how shards move there")


def stop(cluster: Cluster) -> None:
    with cluster.alone():
        stopped = cluster.stop()
    say(f"stopped {len(stopped)} services; the data stays" if stopped else "nothing runs")


def clean(cluster: Cluster) -> None:
    cluster.remove()
    say(f"removed {shown(cluster.given_folder)}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cluster", description="a highly available Mantle on one machine")
    parser.add_argument("command", choices=["start", "add-worker", "stop", "status", "clean"])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--workers", type=int, default=citus.WORKERS, help="of a new Citus cluster")
    parser.add_argument("--standbys", type=int, default=1, help="of each group of a new cluster")
    parser.add_argument("--plain", action="store_true", help="a new cluster without Citus")
    return parser.parse_args()


def on_tls(given: argparse.Namespace) -> int | None:
    """A cluster's connections use TLS, which not every server of a version knows."""
    with servers.on(servers.with_tls()):
        return main(given)


def main(given: argparse.Namespace) -> int | None:
    folder = given.folder.absolute()
    if given.command == "start":
        return start(folder, given)
    if read_shape(folder.resolve()) is None and given.command != "add-worker":
        if given.command != "clean":
            say("there is no cluster: `make cluster` makes one")
        return 0
    cluster = Cluster(folder)
    match given.command:
        case "add-worker":
            return add_worker(cluster)
        case "stop":
            return stop(cluster)
        case "clean":
            return clean(cluster)
    return 0 if status.show(cluster) else 1


if __name__ == "__main__":
    given = arguments()
    sys.exit(run_command(lambda: on_tls(given)))
