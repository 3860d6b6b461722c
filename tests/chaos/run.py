"""`make chaos`: every fault once, then pairs of faults drawn by the seed, on a whole cluster under mixed load.

A round runs workloads whose histories are judged (workload.py), probes that measure the time without an acknowledgement
or an answer, analysts who query in SQL, a watch for phantom directories (phantom_watch.py), and objects whose bytes are
read back at the end (kept.py). Then comes the fault, and its end. Once the cluster is whole again, nothing acknowledged
may be lost, `mantle fsck` must find no difference on any replica, and no lock may be left. Writes docs/chaos.md with
the cost of each fault; fails if anything was wrong.
"""

import argparse
import itertools
import os
import platform
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from cluster import faults, network
from cluster.cluster import Cluster
from cluster.shape import new_shape
from stack import citus, secret
from stack.layout import DATABASE, REPOSITORY
from stack.poll import wait_until
from tests.cluster.clients import make_probes, rest_of, s3_of, session
from tests.cluster.load import Load
from tests.cluster.oracle import assert_nothing_is_lost, await_no_problem, fsck

from . import clocks
from .alerts import SHORTENED, Alerts
from .catalogue import CATALOGUE, LEADER_BOUND_S, Fault
from .kept import Kept
from .objects import Objects
from .phantom_watch import Phantoms
from .workload import CROSSING, EVERYTHING, GROWING, HOPPING, S3, Mix, Workload

FOLDER = REPOSITORY / ".chaos"
MIXES = (EVERYTHING, S3, GROWING, CROSSING, HOPPING)
CLIENTS = 3
REPORT = REPOSITORY / "docs" / "chaos.md"
ANALYST_PAUSE_S = 0.5
NO_FAULT = "no fault"


@dataclass
class Row:
    """The result of a round."""

    faults: str
    writes_s: float = 0.0
    reads_s: float = 0.0
    other_writes_s: float = 0.0
    other_reads_s: float = 0.0
    alerts: str = ""  # those that the faults must raise, or why there is none
    refusals: int = 0
    calls: int = 0
    windows: int = 0
    acknowledged: int = 0
    wrong: list[str] = field(default_factory=list)
    fired: set[str] = field(default_factory=set)
    is_judged: bool = True  # False: the round itself broke, which says nothing about Mantle's answers


class Analyst:
    """Queries in SQL all the time; a query that a failover refuses is repeated."""

    def __init__(self, cluster: Cluster, ns: str):
        self.cluster, self.ns = cluster, ns
        self.wrong: list[str] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        while not self._end.is_set():
            try:
                proxy = self.cluster.proxies[-1].host.address
                with psycopg.connect(
                    host=proxy, dbname=DATABASE, user="postgres", connect_timeout=5, autocommit=True,
                    password=secret.read(self.cluster.layout, "superuser"),
                ) as connection:  # fmt: skip
                    while not self._end.wait(ANALYST_PAUSE_S):
                        connection.execute("SELECT * FROM mantle.du(%s, '')", (self.ns,)).fetchall()
            except psycopg.errors.InternalError_ as error:
                # Citus' error for a node that is gone.
                if "connection" not in str(error) and "failed" not in str(error):
                    self.wrong.append(f"an analyst: {error}")
            except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
                pass
            except psycopg.Error as error:
                self.wrong.append(f"an analyst: {error.sqlstate} {error}")
            self._end.wait(ANALYST_PAUSE_S)

    def __enter__(self) -> "Analyst":
        self._thread.start()
        return self

    def __exit__(self, *_ignored) -> None:
        self._end.set()
        self._thread.join()


def play(cluster: Cluster, chosen: list[Fault], seed: str, mixes: Sequence[Mix], alerts: Alerts | None) -> Row:
    """One round, with a workload of each mix. `alerts` judges the alerts that the faults must raise."""
    row, draw = Row(" + ".join(fault.name for fault in chosen)), random.Random(seed)
    expected = {name for fault in chosen for name in fault.alerts if isinstance(fault.alerts, tuple)}
    if alerts:
        alerts.await_silence(expected)
    ns = f"chaos-{draw.getrandbits(40):010x}"
    rest_of(cluster).create_namespace(ns)
    probes = make_probes(cluster, ns)
    every = [probe for of_group in probes.values() for probe in of_group]
    workloads = [
        Workload(ns, f"workload{at}", mix, [clients(cluster, at + n) for n in range(CLIENTS)], draw.getrandbits(32))
        for at, mix in enumerate(mixes)
    ]
    kept = Kept(ns, [clients(cluster, at)[1] for at in range(len(cluster.gateways))], draw.getrandbits(32))
    with Analyst(cluster, ns) as analyst, ExitStack() as running:
        running.enter_context(kept)
        load = running.enter_context(Load(every))
        for workload in workloads:
            running.enter_context(workload)
        phantoms = running.enter_context(Phantoms(cluster, ns, workloads, every))
        load.await_progress()
        since, hit_at = time.monotonic(), time.time()
        hit(cluster, chosen, draw)
        mend(cluster)
        load.await_progress()
        until = time.monotonic()
        if alerts:
            judge_alerts(alerts, chosen, expected, hit_at, row)
    writes, reads = zip(*(load.longest_s(since, until, of_group) for of_group in probes.values()), strict=True)
    row.writes_s, row.other_writes_s = max(writes), min(writes)
    row.reads_s, row.other_reads_s = max(reads), min(reads)
    row.refusals = sum(probe.writes.refusals + probe.reads.refusals for probe in every) + sum(
        workload.refusals for workload in workloads
    )
    row.calls, row.windows = (
        sum(workload.calls for workload in workloads),
        sum(workload.windows for workload in workloads),
    )
    row.acknowledged = len(load.acknowledged)
    row.wrong += (
        [problem for workload in workloads for problem in workload.wrong]
        + analyst.wrong
        + phantoms.wrong()
        + kept.wrong()
        + unsound(cluster, ns, load.acknowledged)
    )
    if row.wrong:
        row.wrong.append(f"what there was: {evidence(cluster, ns, workloads)}")
    return row


def judge_alerts(alerts: Alerts, chosen: list[Fault], expected: set[str], since: float, row: Row) -> None:
    missed, fired = alerts.missed(expected, since)
    row.fired = set(fired)
    row.alerts = ", ".join(sorted(expected)) or "; ".join(str(fault.alerts) for fault in chosen)
    print(f"    fired: {', '.join(sorted(fired)) or 'nothing'}", flush=True)
    row.wrong += [f"the alert {name} did not fire" for name in sorted(missed)]


def play_nothing(cluster: Cluster, seconds: float, seed: str, mixes: Sequence[Mix], alerts: Alerts) -> Row:
    """Full load without a fault, under the rules as they are: no alert may fire."""
    with alerts.as_they_are():
        row = play(
            cluster, [Fault(NO_FAULT, lambda *_: lambda: None, seconds, alerts="none may fire")], seed, mixes, alerts
        )
    row.wrong += [f"the alert {name} fired without a fault" for name in sorted(row.fired)]
    return row


def evidence(cluster: Cluster, ns: str, workloads: list[Workload]) -> Path:
    """A directory with the evidence of a problem: all calls, directories and requests in PostgreSQL, all logs."""
    place = kept_logs(cluster)
    for workload in workloads:
        (place / f"{workload.name}.txt").write_text("\n".join(workload.history), encoding="utf-8")
    tables = {
        "directories": "SELECT m.id, m.pid, m.name, m.version, m.created FROM mantle.meta m WHERE m.ns = %s"
        " AND m.explicit IS NOT NULL",
        "requests": "SELECT r.id, r.pid, r.verb, r.version, r.created, r.principal, r.request_id"
        " FROM mantle.requests r WHERE r.ns = %s",
    }
    with session(cluster) as connection:
        (number,) = connection.execute("SELECT n.ns FROM mantle.namespaces n WHERE n.name = %s", (ns,)).fetchone()
        for table, rows in tables.items():
            found = connection.execute(f"{rows} ORDER BY 1, 2", (number,)).fetchall()
            (place / f"{table}.txt").write_text("\n".join("  ".join(map(str, row)) for row in found), encoding="utf-8")
    return place


def kept_logs(cluster: Cluster) -> Path:
    """A directory with all logs, which outlives the cluster."""
    place = Path(tempfile.mkdtemp(prefix="mantle-chaos-"))
    shutil.copytree(cluster.layout.logs, place / "logs")
    return place


def clients(cluster: Cluster, at: int):
    number = at % len(cluster.gateways)
    return rest_of(cluster, number), Objects(s3_of(cluster, number))


def hit(cluster: Cluster, chosen: list[Fault], draw: random.Random) -> None:
    """Causes the faults together, for as long as the longest lasts; undoes them in any case."""
    with ExitStack() as undoing:
        for fault in chosen:
            undoing.callback(fault.cause(cluster, draw))
        time.sleep(max(fault.lasts_s for fault in chosen))  # this is the fault


def mend(cluster: Cluster) -> None:
    """Waits until the cluster is whole: everything runs, every group has a standby that may be promoted, a replica
    leads.
    """
    cluster.network.heal()
    faults.thaw(list(cluster.processes.values()), cluster.members)
    for name, process in cluster.processes.items():
        if process.pid() is None and name not in {member.name for member in cluster.members}:
            process.start()
    for member in cluster.members:
        if member.process.pid() is None:
            member.start()
    for group in cluster.groups:
        cluster.await_protection(group)
    for part in (*cluster.store.services(), *cluster.replicas, *cluster.gateways):
        part.await_ready()


def unsound(cluster: Cluster, ns: str, acknowledged: list[str]) -> list[str]:
    """Violations of what must hold after every round."""
    found = []
    try:
        wait_until(
            lambda: all(replica.metric("mantle_index_locks") == 0 for replica in cluster.replicas),
            "no lock",
            LEADER_BOUND_S,
        )
        assert_nothing_is_lost(cluster, ns, acknowledged)
        await_no_problem(cluster)
    except Exception as error:  # report this round, then run the next
        found.append(f"{type(error).__name__}: {error}")
    return found + fsck(cluster)


def rounds(cluster: Cluster, given: argparse.Namespace) -> list[list[Fault]]:
    possible = [fault for fault in CATALOGUE if fault.is_possible(cluster)]
    if given.only == NO_FAULT:
        return [[]] * given.times
    if given.only:
        named = [[fault for fault in possible if re.search(name, fault.name)] for name in given.only.split(" + ")]
        return [list(chosen) for chosen in itertools.product(*named)] * given.times
    draw = random.Random(given.seed)
    # A server that starts while its clock differs from its Patroni's records that time, and Patroni takes it for
    # another server's.
    to_pair = [fault for fault in possible if not fault.needs_clocks]
    return [[], *([fault] for fault in possible)] + [draw.sample(to_pair, 2) for _ in range(given.pairs)]


def begin() -> None:
    """Removes the remains of an earlier run. Makes sure that this run's cluster is ended with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds the stack, so that the cluster is ended
    os.umask(0o022)
    if not network.is_permitted():
        print("network namespaces are not permitted here: partitions are left out", flush=True)
    if (FOLDER / "shape.json").exists():
        Cluster(FOLDER).remove()


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=6, help="pairs of faults after the single ones")
    parser.add_argument(
        "--only",
        help="faults whose name matches (with ` + `: several at once), nothing else; the report's other rows stay",
    )
    parser.add_argument("--times", type=int, default=1, help="with --only: how often")
    parser.add_argument("--healthy", type=float, default=600, help="seconds of the round without a fault")
    parser.add_argument("--plain", action="store_true", help="without Citus, though it is there")
    given = parser.parse_args()
    begin()
    cluster = Cluster(FOLDER, new_shape(citus.WORKERS, 1, plain=given.plain))
    rows: list[Row] = []
    try:
        with cluster.alone():
            clocks.give(cluster)
            cluster.start()
            with Alerts(cluster) as alerts:
                planned = rounds(cluster, given)
                for number, chosen in enumerate(planned):
                    rows.append(one(cluster, number, chosen, given.seed, alerts=alerts, healthy_s=given.healthy))
                    write_report(cluster, rows, len(planned), given)
    finally:
        cluster.remove()
    wrong = [problem for row in rows for problem in row.wrong]
    print(f"{len(rows)} rounds, {len(wrong)} problems (seed {given.seed})")
    return 1 if wrong else 0


def one(
    cluster: Cluster,
    number: int,
    chosen: list[Fault],
    seed: int,
    mixes: Sequence[Mix] = MIXES,
    alerts: Alerts | None = None,
    healthy_s: float = 0.0,
) -> Row:
    """A failing round reports its error, and the next begins with a whole cluster. Without a fault: full load only."""
    try:
        if chosen or alerts is None:
            row = play(cluster, chosen, f"{seed} {number}", mixes, alerts)
        else:
            row = play_nothing(cluster, healthy_s, f"{seed} {number}", mixes, alerts)
    except Exception as error:
        traceback.print_exc()
        row = Row(" + ".join(fault.name for fault in chosen) or NO_FAULT, wrong=[f"{type(error).__name__}: {error}"])
        row.is_judged = isinstance(error, AssertionError)
        row.wrong.append(f"logs: {kept_logs(cluster)}")
        mend(cluster)
    outcome = f"{len(row.wrong)} WRONG" if row.wrong else "sound"
    print(
        f"{row.faults:<60} writes {row.writes_s:5.1f}  reads {row.reads_s:5.1f}"
        f"  others {row.other_writes_s:5.1f} {row.other_reads_s:5.1f}"
        f"  refusals {row.refusals:5}  windows {row.windows:4}  {outcome}",
        flush=True,
    )
    for problem in row.wrong:
        print(f"    {problem}", flush=True)
    return row


def write_report(cluster: Cluster, rows: list[Row], planned: int, given: argparse.Namespace) -> None:
    """Writes docs/chaos.md. Called after every round: a whole run takes an hour, and one that is stopped keeps its
    results.
    """
    page = REPORT.read_text(encoding="utf-8")
    text = renewed(page, rows[-1:]) if given.only else report(cluster, rows, planned, given)
    REPORT.write_text(text, encoding="utf-8")


def report(cluster: Cluster, rows: list[Row], planned: int, given: argparse.Namespace) -> str:
    """The text of docs/chaos.md."""
    shape = cluster.shape
    what = (
        f"a Citus coordinator and {shape.workers} workers" if shape.is_citus else "one PostgreSQL group, without Citus"
    )
    head = f"""# Faults

Written by `make chaos SEED={given.seed} PAIRS={given.pairs}` (`tests/chaos`); do not edit.
{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} processors, {platform.release()}; {what}, {shape.standbys}
standby each; three IndexNode replicas and a learner, two gateways, a store of the objects' bytes, all on one machine in
network namespaces of their own. Load over S3, REST and SQL while each fault lasts. {len(rows)} of {planned} rounds were
played.

*Writes*, *reads*: the longest time, in seconds, without an acknowledged mkdir, and without an answered lookup, in the
directories that waited longest. The mkdirs are those of clients that name no request: a named one is looked for on
every node first. *Other writes*, *other reads*: the same for the PostgreSQL group that waited least.
*Refusals*: answers that say "later" (503, a broken connection), which clients repeated. *Windows*: pieces of history
that were found linearizable, and their calls. *Sound*: nothing acknowledged is lost or done twice, the bytes of every
acknowledged object were read back and compared, no replica answered with a directory that PostgreSQL never had,
`mantle fsck` is clean on every replica, no lock is left.

*Alerts*: those of `patroni/monitoring/alerts.yml` that the fault must raise, and did. Debian's Prometheus evaluates
them every second, with `for` and ranges a {SHORTENED}th as long (`for` at most 20 s), because a fault lasts seconds. In
the round without a fault, {given.healthy:.0f} s of full load, the rules are as they are, and no alert may fire.

| fault | writes | reads | other writes | other reads | refusals | windows | calls | acknowledged | alerts | outcome |
|---|---|---|---|---|---|---|---|---|---|---|
"""
    return head + "".join(f"{line(row)}\n" for row in rows)


def line(row: Row, when: str = "") -> str:
    """A row of the page's table."""
    outcome = "sound" if not row.wrong else f"**{len(row.wrong)} problems**"
    cells = [
        f"{row.writes_s:.1f}",
        f"{row.reads_s:.1f}",
        f"{row.other_writes_s:.1f}",
        f"{row.other_reads_s:.1f}",
        row.refusals,
        row.windows,
        row.calls,
    ]
    return "| " + " | ".join(map(str, [row.faults, *cells, row.acknowledged, row.alerts, outcome + when])) + " |"


def renewed(page: str, rows: list[Row]) -> str:
    """The page with new rows for faults that were caused again by themselves; they show the time."""
    lines = page.splitlines()
    for row in rows:
        new = line(row, f", alone at {datetime.now(UTC):%Y-%m-%d %H:%M}")
        at = next((at for at, old in enumerate(lines) if old.startswith(f"| {row.faults} |")), len(lines))
        lines[at : at + 1] = [new]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
