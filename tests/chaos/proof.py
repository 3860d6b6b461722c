"""`make chaos-proof` checks that `make chaos` would notice a missing protection. It removes one protection at a time,
on a cluster of its own, and causes the fault that the protection is for until the judges find a problem. If they find
none, the protection's row fails.

Removed in TafDB: the step that checks, by wrapping it (tests/support/broken_steps.py) at the primary of every group. In
IndexNodes: by a build with failpoints (indexnode/src/failpoints.rs), which no release has. Writes docs/chaos-proof.md.
"""

import argparse
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg

from cluster.cluster import Cluster
from cluster.shape import new_shape
from stack import citus, packages
from stack.layout import REPOSITORY
from tests.support.broken_steps import NO_EPOCH_LATCH, NO_LATCH, NO_TOMBSTONE, BrokenStep, break_steps

from . import run as chaos
from . import slow
from .catalogue import CATALOGUE
from .workload import BUDDING, CROSSING, HOPPING, SEEKING, Mix

REPORT = REPOSITORY / "docs" / "chaos-proof.md"
# Built by tests/run.py.
PROGRAM = packages.target() / "debug" / "mantle-indexnode"
ROUNDS_MAX = 6
MORE = 6  # workloads of the one mix that needs the protection
EPOCH_IS_COMPARED = r"\(s\.epoch = p_epoch AND d\.epoch = p_epoch\) IS NOT TRUE"
NO_LEASE = BrokenStep("no_lease", ("lease_fault",), "RETURN NULL;")


@dataclass(frozen=True)
class Protection:
    """A protection, the way to remove it, and the faults and the load that show its absence."""

    name: str
    leave_out: Callable[[Cluster], None]
    faults: tuple[str, ...]
    mixes: Sequence[Mix] = chaos.MIXES


@dataclass
class Finding:
    """For one protection, the judges' first finding, and the rounds until then."""

    protection: Protection
    rounds: int
    seconds: float
    said: str | None


def without_step(*broken: BrokenStep) -> Callable[[Cluster], None]:
    def leave_out(cluster: Cluster) -> None:
        for one in broken:
            slow.on_every_node(cluster, lambda connection: break_steps(connection, one))

    return leave_out


def without_epoch(cluster: Cluster) -> None:
    """Neither latched nor compared; nor the lease, which includes the epoch."""
    without_step(NO_EPOCH_LATCH, NO_LEASE)(cluster)
    slow.on_every_node(cluster, _compare_no_epoch)


def _compare_no_epoch(connection: psycopg.Connection) -> None:
    forms = connection.execute(
        "SELECT pg_get_functiondef(p.oid) FROM pg_proc p"
        " WHERE p.pronamespace = 'mantle'::regnamespace AND p.proname LIKE 'rename_directory%'"
    ).fetchall()
    by_name = {text.split("(")[0].split(".")[1]: text for (text,) in forms if "p_src_id bigint," in text}
    changed, count = re.subn(EPOCH_IS_COMPARED, "false", by_name["rename_directory_fallback"])
    if count != 1:
        raise AssertionError(
            "mantle.rename_directory compares epochs in other words now: name them in EPOCH_IS_COMPARED"
        )
    connection.execute(changed)
    # Without the fast path, which compares epochs, too.
    arguments = ", ".join(f"${number}" for number in range(1, 17))
    connection.execute(
        by_name["rename_directory"].split("AS '")[0].replace("LANGUAGE c", "LANGUAGE plpgsql")
        + "AS $$ BEGIN SELECT r.* INTO code, id, version, replayed, flush_lsn"
        f" FROM mantle.rename_directory_fallback({arguments}) AS r; END $$"
    )


def failpoint(name: str) -> Callable[[Cluster], None]:
    """Every replica continues with a build that omits the protection."""

    def leave_out(cluster: Cluster) -> None:
        program = cluster.layout.binaries / "mantle-indexnode-failpoints"
        shutil.copy2(PROGRAM, program)
        program.chmod(0o755)
        for replica in cluster.replicas:
            process = replica.process
            process.stop()
            process.command = [str(program) if part.endswith("/mantle-indexnode") else part for part in process.command]
            process.environment = {**process.environment, "MANTLE_FAILPOINT": name}
            process.start()
        for replica in cluster.replicas:
            replica.await_ready()

    return leave_out


PROTECTIONS = [
    Protection(
        "standby gating",
        failpoint("ApplyBeyondStandby"),
        ("standby behind, then primary's machine killed",),
        (BUDDING,) * 3,
    ),
    Protection(
        "version rule", failpoint("ApplyAnyVersion"), ("change streams stutter", "busy shards moved"), (HOPPING,) * MORE
    ),
    Protection("settled misses", failpoint("SettleWithoutSample"), ("change streams stutter",), (SEEKING,) * MORE),
    Protection("latch", without_step(NO_LATCH), ("slow changes",), (BUDDING,) * MORE),
    Protection("tombstone", without_step(NO_TOMBSTONE), ("slow changes",), (BUDDING,) * MORE),
    Protection(
        "abort record", failpoint("UnlockWithoutAbort"), ("renames that outlast their locks",), (CROSSING,) * MORE
    ),
    Protection("epoch check", without_epoch, ("slot dropped beneath a slow rename",), (CROSSING,) * 3),
]


def prove(protection: Protection, given: argparse.Namespace) -> Finding:
    """On a new cluster: rounds until one finds a problem."""
    cluster = Cluster(chaos.FOLDER, new_shape(citus.WORKERS, 1, plain=given.plain))
    chosen = [fault for name in protection.faults for fault in CATALOGUE if fault.name == name]
    began = time.monotonic()
    try:
        with cluster.alone():
            cluster.start()
            protection.leave_out(cluster)
            for number in range(given.rounds):
                row = chaos.one(cluster, number, chosen, given.seed, protection.mixes)
                if row.wrong and row.is_judged:
                    return Finding(protection, number + 1, time.monotonic() - began, row.wrong[0])
    finally:
        cluster.remove()
    return Finding(protection, given.rounds, time.monotonic() - began, None)


def report(findings: list[Finding], given: argparse.Namespace) -> str:
    """docs/chaos-proof.md: the new findings, and the old rows of the other protections."""
    head = f"""# Faults: would they be noticed?

Written by `make chaos-proof` (`tests/chaos/proof.py`; `ONLY=name` renews the rows of that name); do not edit.
{os.cpu_count()} processors, {platform.release()}. One protection at a time is left out, on a cluster of its own. The
faults beside it are caused, under the load of `make chaos` (or more of the part that needs the protection), until its
judges find something wrong.

| left out | faults | rounds until it was noticed | what was said first | when |
|---|---|---|---|---|
"""
    before = REPORT.read_text(encoding="utf-8").splitlines() if REPORT.exists() else []
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in before}
    for found in findings:
        cells = [found.protection.name, " + ".join(found.protection.faults), found.rounds, told(found.said)]
        when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, seed {given.seed}"
        rows[found.protection.name] = "| " + " | ".join(map(str, [*cells, when])) + " |"
    return head + "".join(f"{rows[protection.name]}\n" for protection in PROTECTIONS if protection.name in rows)


def told(said: str | None) -> str:
    """The first line, as a cell of a table."""
    return "**nothing**" if said is None else said.splitlines()[0][:200].replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos-proof", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS_MAX,
        help="how often a fault is caused before its absence counts as unnoticed",
    )
    parser.add_argument("--only", help="protections whose name has this in it; the report's other rows stay")
    parser.add_argument("--plain", action="store_true", help="without Citus, though it is there")
    given = parser.parse_args()
    chaos.begin()
    findings = []
    for protection in PROTECTIONS:
        if not given.only or given.only in protection.name:
            found = prove(protection, given)
            findings.append(found)
            # After each: a run that is stopped keeps what it found.
            REPORT.write_text(report(findings, given), encoding="utf-8")
            print(
                f"== without {protection.name}: {found.rounds} rounds, {found.seconds:.0f} s: {told(found.said)}",
                flush=True,
            )
    unnoticed = [found.protection.name for found in findings if found.said is None]
    print(f"{len(findings)} protections left out, {len(unnoticed)} unnoticed {unnoticed or ''}")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
