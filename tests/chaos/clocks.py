"""Clocks that faults set: of the servers, the IndexNodes and the gateways of a cluster, by libfaketime and a file a host.

Invariant: only the clock of the wall jumps, as when somebody sets a machine's clock; what programs measure time with does not.
Patroni, etcd, PgBouncer and HAProxy keep the machine's clock: Patroni cannot sleep beneath the library, and etcd, in Go, asks the
kernel itself.
"""

from collections.abc import Callable
from pathlib import Path

from cluster.cluster import Cluster
from cluster.layout import Host
from cluster.member import Member
from stack.account import Account

LIBRARIES = "*/faketime/libfaketimeMT.so.1"
# A program looks at the file that often, in seconds.
NOTICED_S = 1


def library() -> Path | None:
    """Where Debian has it, if it is installed."""
    return next(iter(sorted(Path("/usr/lib").glob(LIBRARIES))), None)


def give(cluster: Cluster) -> None:
    """Call within `alone`, before `start`; without the library nothing is given, and no clock can be set."""
    if library() is None:
        return
    folder = _folder(cluster)
    folder.mkdir(mode=0o755, exist_ok=True)
    for part in (*cluster.replicas, *cluster.gateways):
        put(cluster, part.host, 0)
        part.process.environment = {**part.process.environment, **_variables(folder / part.host.name)}
    for member in cluster.members:
        put(cluster, member.address, 0)
        member.prepare = _prepared_with_clock(member, member.prepare, folder, cluster.account)


def put(cluster: Cluster, host: Host, seconds: int) -> None:
    """Sets the host's clock so far before ours; after it, if negative."""
    clock = _folder(cluster) / host.name
    new = clock.with_suffix(".new")
    new.write_text(f"{seconds:+d}\n", encoding="ascii")
    new.chmod(0o644)
    new.replace(clock)


def _folder(cluster: Cluster) -> Path:
    return cluster.layout.folder / "clocks"


def _variables(clock: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(library()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": str(NOTICED_S),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # It would leave shared memory behind for each program; of one that is not there it needs none.
        "FAKETIME_SHARED": "/mantle-none /mantle-none",
    }


def _prepared_with_clock(member: Member, prepare: Callable[[], None], folder: Path, account: Account) -> Callable[[], None]:
    """Patroni starts its server by a script that hands the clock to it, and to it alone."""
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
        member.config.write_text(written.replace(line, f"{line}  bin_name:\n    postgres: {script}\n"), encoding="utf-8")
        account.own(member.config)

    return prepare_with_clock
