"""The services of one host by the names of their units: what `systemctl --host HOST start UNIT…` does in production.

A host of `make cluster` is a network namespace without systemd. The environment file puts a `systemctl` on PATH that
comes here, so that docs/runbooks.md has the same commands for both. It takes no lock of the launcher's: it changes one
host, as an administrator does beside others.
"""

import argparse
import sys
from pathlib import Path

from stack.command_line import run_command
from stack.failure import Failure
from stack.service import Service

from .cluster import Cluster
from .etcd import Etcd
from .member import Member
from .services import ClusterGateway, Pooler, Proxy, Replica
from .store import StoreGateway, StoreIndexNode, StorePostgreSQL

UNITS: dict[type[Service], str] = {
    Etcd: "etcd",
    Member: "patroni",
    Pooler: "pgbouncer",
    Proxy: "haproxy",
    Replica: "mantle-indexnode",
    ClusterGateway: "mantle-gateway",
    StorePostgreSQL: "postgresql",
    StoreIndexNode: "mantle-indexnode",
    StoreGateway: "mantle-gateway",
}


def units(cluster: Cluster, host: str) -> dict[str, Service]:
    """The services of a host, in the order of their start."""
    found = {UNITS[type(service)]: service for service in cluster.services() if service.host.name == host}
    if not found:
        hosts = sorted({service.host.name for service in cluster.services()})
        raise Failure(f"there is no host {host}; there are {', '.join(hosts)}")
    return found


def start(service: Service) -> None:
    """Settings that are there stay, as an administrator may have edited them. Patroni's environment is made anew."""
    if service.process.pid() is not None:
        return
    if isinstance(service, Member) or not service.config.exists():
        service.prepare()
    service.start()


def stop(service: Service) -> None:
    """Patroni's unit ends its PostgreSQL too."""
    if isinstance(service, Member):
        service.stop()
    else:
        service.process.stop()


def act(verb: str, services: list[Service]) -> int:
    """Does to each service what the verb says; returns the exit code."""
    if verb == "is-active":
        return 0 if all(service.process.pid() is not None for service in services) else 3
    if verb in ("stop", "restart"):
        for service in reversed(services):
            stop(service)
    if verb in ("start", "restart"):
        for service in services:
            start(service)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="systemctl --host", description="the services of a host of `make cluster`")
    parser.add_argument("folder", type=Path)
    parser.add_argument("host")
    parser.add_argument("verb", choices=["start", "stop", "restart", "is-active"])
    parser.add_argument("units", nargs="+")
    given = parser.parse_args()
    there = units(Cluster(given.folder), given.host)
    unknown = [unit for unit in given.units if unit not in there]
    if unknown:
        raise Failure(f"{given.host} has no unit {unknown[0]}; it has {', '.join(there)}")
    return act(given.verb, [service for unit, service in there.items() if unit in given.units])


if __name__ == "__main__":
    sys.exit(run_command(main))
