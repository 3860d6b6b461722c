"""Faults of clocks: of the servers, the IndexNodes and the gateways of a cluster, by libfaketime and one file for each
host.

Invariant: only the wall clock jumps, as when a person sets a machine's clock. The clock that programs measure durations
with does not. Patroni, etcd, PgBouncer and HAProxy keep the machine's clock: Patroni cannot sleep under the library,
and etcd, in Go, asks the kernel directly.
"""

import time
import urllib.request
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path

from cluster.cluster import Cluster
from cluster.layout import Host
from cluster.member import Member
from stack.account import Account
from stack.poll import wait_until

LIBRARIES = "*/faketime/libfaketimeMT.so.1"
# A program reads the file this often, in seconds.
NOTICED_S = 1
NOTICED_BOUND_S = 30.0
PRECISE_S = 5.0


def library() -> Path | None:
    """Debian's library, if it is installed."""
    return next(iter(sorted(Path("/usr/lib").glob(LIBRARIES))), None)


def give(cluster: Cluster) -> None:
    """Call within `alone`, before `start`. Without the library no clock can be set."""
    if library() is None:
        return
    folder = _folder(cluster)
    folder.mkdir(mode=0o755, exist_ok=True)
    for part in (*cluster.replicas, *cluster.gateways):
        put(cluster, part.host, 0)
        part.process.command = _behind(folder / part.host.name, part.process.command)
    for member in cluster.members:
        put(cluster, member.host, 0)
        member.prepare = _prepared_with_clock(member, member.prepare, folder, cluster.account)


def put(cluster: Cluster, host: Host, seconds: int) -> None:
    """Sets the host's clock this far ahead of ours, or behind if negative."""
    clock = _folder(cluster) / host.name
    new = clock.with_suffix(".new")
    new.write_text(f"{seconds:+d}\n", encoding="ascii")
    new.chmod(0o644)
    new.replace(clock)


def jump(cluster: Cluster, host: Host, seconds: int) -> None:
    """Sets the clock, and waits until the host's program shows it. A server always does. A program with an HTTP date
    does so only for a jump ahead: it caches the date until the time is past it.
    """
    dates = all(member.host != host for member in cluster.members)
    before = _now_at(cluster, host) if dates else 0
    put(cluster, host, seconds)
    if before > time.time() + seconds:
        return
    shown = lambda: abs(_now_at(cluster, host) - time.time() - seconds) < PRECISE_S
    wait_until(shown, f"{host.name}'s clock to be set", NOTICED_BOUND_S)


def _now_at(cluster: Cluster, host: Host) -> float:
    """Seconds since 1970, by PostgreSQL or by the date of an HTTP answer."""
    for member in cluster.members:
        if member.host == host:
            return float(member.psql("SELECT extract(epoch FROM clock_timestamp())"))
    probes = {replica.host: replica.probe for replica in cluster.replicas} | {
        gateway.host: gateway.probe for gateway in cluster.gateways
    }
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        f"{probes[host]}/readyz", timeout=PRECISE_S
    ) as response:
        return parsedate_to_datetime(response.headers["Date"]).timestamp()


def _folder(cluster: Cluster) -> Path:
    return cluster.layout.folder / "clocks"


def _variables(clock: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(library()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": str(NOTICED_S),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # The library would leave a shared memory segment behind for each program; with a missing one it makes none.
        "FAKETIME_SHARED": "/mantle-none /mantle-none",
    }


def _behind(clock: Path, command: list[str]) -> list[str]:
    """The command with the library before the program alone. The commands that enter the host and drop privileges are
    not preloaded.
    """
    at = len(command) - command[::-1].index("--") if "--" in command else 0
    given = [f"{name}={value}" for name, value in _variables(clock).items()]
    return [*command[:at], "/usr/bin/env", *given, *command[at:]]


def _prepared_with_clock(
    member: Member, prepare: Callable[[], None], folder: Path, account: Account
) -> Callable[[], None]:
    """Patroni starts its server by a script that passes the clock to it alone."""
    script = folder / f"{member.name}-postgres"

    def prepare_with_clock() -> None:
        prepare()
        exports = "".join(f"export {name}='{value}'\n" for name, value in _variables(folder / member.name).items())
        script.write_text(f'#!/bin/sh\n{exports}exec {member.layout.postgresql_bin}/postgres "$@"\n', encoding="ascii")
        script.chmod(0o755)
        written = member.config.read_text(encoding="utf-8")
        line = f"  bin_dir: {member.layout.postgresql_bin}\n"
        if written.count(line) != 1:
            raise AssertionError("patroni.yml names bin_dir otherwise now: name the server's script there too")
        member.config.write_text(
            written.replace(line, f"{line}  bin_name:\n    postgres: {script}\n"), encoding="utf-8"
        )
        account.own(member.config)

    return prepare_with_clock
