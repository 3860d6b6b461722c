"""Runs every test and prints the counts: `make test`.

Phases, each of which may be asked for alone with `--only`: lint, unit (Rust), simulation (seeded histories of an IndexNode
group on simulated hosts), concurrency (pairs of verbs, random histories,
crashes, in a PostgreSQL of its own), distributed (the same and more on a Citus cluster, where Citus is installed), replicas (IndexNodes over a PostgreSQL), pgtap (SQL, in a fresh and in an upgraded database),
upgrade (from the oldest version to this one), e2e (everything together), cluster (failovers of the highly available cluster).
Invariant: the last line is `N passed, N failed, N skipped` over all phases; a phase that breaks before it counts is one
failure. The stack under test lives in .test/ on ports from 7600 on, the PostgreSQL of the concurrency phase in .concurrency/ on
7902; the stack of `make run` is never touched.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
sys.path.insert(0, str(REPOSITORY / "patroni"))

from cluster import network, programs  # noqa: E402
from stack import __main__ as launcher  # noqa: E402
from stack import build, citus, load, packages  # noqa: E402
from stack.failure import Failure  # noqa: E402
from stack.stack import Stack  # noqa: E402

FOLDER = REPOSITORY / ".test"
PORT_BASE = 7600
INDEX_GROUPS = (1, 2)
DATA_GB = 3.0
OLDEST_VERSION = "0.1.0"  # of those in sql/versions
VENV = TESTS / ".venv"
SEEDED = "seeded::"  # the simulation's tests, which take minutes
DISTRIBUTED = sorted((TESTS / "concurrency").glob("test_citus*.py"))


@dataclass
class Counts:
    """What a phase found."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __iadd__(self, other: "Counts") -> "Counts":
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        return self

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def stream(command: list[str], **arguments) -> tuple[int, list[str]]:
    """Runs a command, shows its output as it comes, gives status and lines."""
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=REPOSITORY, **arguments
    ) as process:
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)
    return process.returncode, lines


def at_least_one_failure(status: int, counts: Counts) -> Counts:
    if status != 0 and counts.failed == 0:
        counts.failed = 1
    return counts


def cargo_environment() -> dict[str, str]:
    return {**packages.environment(), "PGRX_PG_CONFIG_PATH": str(build.pg_config())}


def lint(_stack: Stack) -> Counts:
    """Formatting and clippy; each is one test."""
    counts = Counts()
    commands = (
        ["cargo", "fmt", "--all", "--check"],
        ["cargo", "clippy", *build.TESTED, "--all-targets", "--", "-D", "warnings"],
    )
    for command in commands:
        status, _ = stream(command, env=cargo_environment())
        counts += Counts(passed=int(status == 0), failed=int(status != 0))
    return counts


def cargo_test(*arguments: str, **environment: str) -> Counts:
    """Ignored tests are no skipped ones: they are another phase's, or measurements."""
    command = ["cargo", "test", *build.TESTED, "--no-fail-fast", *arguments]
    status, lines = stream(command, env={**cargo_environment(), **environment})
    counts = Counts()
    for line in lines:
        found = re.match(r"test result: \w+\. (\d+) passed; (\d+) failed", line)
        if found:
            counts += Counts(int(found[1]), int(found[2]))
    return at_least_one_failure(status, counts)


def unit(_stack: Stack) -> Counts:
    """Rust's tests that need no service."""
    return cargo_test("--", "--skip", SEEDED)


def simulation(_stack: Stack) -> Counts:
    """Seeded histories of an IndexNode group; MANTLE_SIMULATION_SEEDS says how many."""
    return cargo_test("--test", "simulation", "--", "--nocapture", SEEDED)


def simulate(seed: int) -> int:
    """One seed with its trace."""
    command = ["cargo", "test", *build.TESTED, "--test", "simulation", "--"]
    environment = {**cargo_environment(), "MANTLE_SIMULATION_SEED": str(seed), "MANTLE_SIMULATION_TRACE": "1"}
    _, lines = stream([*command, f"{SEEDED}one_history", "--exact", "--ignored", "--nocapture"], env=environment)
    return 0 if any(line.rstrip().endswith("violation=none") for line in lines) else 1


def shorten_lease(stack: Stack) -> None:
    """Tests found groups and move namespaces, which waits gateways' leases out."""
    stack.postgresql.psql("ALTER SYSTEM SET mantle.epoch_lease_ms = 2000")
    stack.postgresql.psql("SELECT pg_reload_conf()")


def replicas(stack: Stack) -> Counts:
    """IndexNodes of their own, with databases of their own in the stack's PostgreSQL."""
    shorten_lease(stack)
    url = stack.postgresql.url("postgres", "superuser")
    account = stack.postgresql.account
    counts = cargo_test(
        "--", "--ignored", "replicas_", MANTLE_TEST_DATABASE_URL=url,
        # Those whose PostgreSQL fails over make servers of their own.
        MANTLE_TEST_POSTGRESQL_BIN=str(stack.layout.postgresql_bin), MANTLE_TEST_ACCOUNT=f"{account.uid}:{account.gid}",
    )  # fmt: skip
    return counts if counts.passed + counts.failed > 0 else Counts(failed=1)


def pgtap(stack: Stack) -> Counts:
    """The SQL tests, in a fresh database of the stack's PostgreSQL, and in one that the oldest version made."""
    counts = Counts()
    for version in ("", OLDEST_VERSION):
        print(f"-- in a database {f'upgraded from {version}' if version else 'made now'}", flush=True)
        counts += run_pgtap(stack, MANTLE_PGTAP_FROM=version)
    return counts


def run_pgtap(stack: Stack, **variables: str) -> Counts:
    environment = {
        **os.environ,
        **stack.postgresql.client_environment("postgres"),
        "PATH": f"{stack.layout.postgresql_bin}:{os.environ['PATH']}",
        "HARNESS_VERBOSE": "1",  # one line a test, to count them
        **variables,
    }
    status, lines = stream([str(TESTS / "pgtap" / "run")], env=environment)
    counts = Counts()
    for line in lines:
        found = re.match(r"(not )?ok \d+(.*)", line)
        if not found:
            continue
        if re.search(r"# skip", found[2], re.IGNORECASE):
            counts.skipped += 1
        elif found[1] and not re.search(r"# todo", found[2], re.IGNORECASE):
            counts.failed += 1
        else:
            counts.passed += 1
    return at_least_one_failure(status, counts)


def run_pytest(*arguments: str, **environment: str) -> Counts:
    """A folder's tests, in the Python environment that all such phases share."""
    packages.make_venv(VENV, TESTS / "e2e" / "requirements.txt")
    counts = Counts()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(VENV / "bin" / "python"), "-m", "pytest", *arguments, "-v", f"--junitxml={report}"]
        status, _ = stream(command, env={**os.environ, **environment})
        if report.exists():
            for suite in ET.parse(report).getroot().iter("testsuite"):
                tests, skipped = int(suite.get("tests")), int(suite.get("skipped"))
                failed = int(suite.get("failures")) + int(suite.get("errors"))
                counts += Counts(tests - failed - skipped, failed, skipped)
    return at_least_one_failure(status, counts)


def upgrade(stack: Stack) -> Counts:
    """From the oldest version to this one: scripts, catalog, data. In databases of its own in the stack's PostgreSQL."""
    return run_pytest(str(TESTS / "upgrade"), **stack.postgresql.client_environment("postgres"))


def e2e(_stack: Stack) -> Counts:
    """Everything together: S3, REST and SQL against running services."""
    return run_pytest(str(TESTS / "e2e"))


def cluster(_stack: Stack) -> Counts:
    """The judge of histories; then switchover, crash and failover of a cluster of its own, in .test-cluster/; MANTLE_CLUSTER_LONG
    adds what takes minutes. Skipped where hosts cannot be told apart."""
    counts = run_pytest(str(TESTS / "chaos"))
    if os.geteuid() == 0:  # nobody else may make namespaces; whether they can be made is tried with a program of these
        packages.install_missing(programs.PACKAGES)
    if not network.is_permitted():
        print("network namespaces are not permitted on this machine: the cluster's tests were skipped")
        counts += Counts(skipped=1)
        return counts
    programs.make_patroni()
    chosen = [] if "MANTLE_CLUSTER_LONG" in os.environ else ["-m", "not long"]
    counts += run_pytest(str(TESTS / "cluster"), *chosen)
    return counts


def chaos(arguments: list[str], program: str = "run.py") -> Counts:
    """Every fault on a whole cluster, in .chaos/; writes docs/chaos.md. Not part of the suite."""
    packages.install_missing((*programs.PACKAGES, "libfaketime"))
    programs.make_patroni()
    packages.make_venv(VENV, TESTS / "e2e" / "requirements.txt")
    status, _ = stream([str(VENV / "bin" / "python"), str(TESTS / "chaos" / program), *arguments])
    return Counts(passed=int(status == 0), failed=int(status != 0))


def chaos_proof(arguments: list[str]) -> Counts:
    """The same with one protection left out after the other; writes docs/chaos-proof.md."""
    command = ["cargo", "build", *build.TESTED, "--bin", "mantle-indexnode"]
    status, _ = stream(command, env=cargo_environment())
    return Counts(failed=1) if status != 0 else chaos(arguments, "proof.py")


def concurrency(_stack: Stack) -> Counts:
    """All pairs of verbs at every failpoint, random histories against a model, crashes."""
    return run_pytest(str(TESTS / "concurrency"), *(f"--ignore={path}" for path in DISTRIBUTED))


def distributed(_stack: Stack) -> Counts:
    """The same and more on a Citus cluster of three nodes; skipped where Citus is not installed."""
    return run_pytest(*map(str, DISTRIBUTED))


def long_property(seconds: int) -> Counts:
    """Random histories for as long as is asked."""
    test = TESTS / "concurrency" / "test_property.py"
    return run_pytest(f"{test}::test_histories_are_sound", MANTLE_PROPERTY_SECONDS=str(seconds))


def whether_citus() -> str:
    """Plainly: was Citus there, and what follows."""
    if citus.is_installed():
        return "Citus: found; the phase `distributed` tests a cluster of it"
    return "Citus: not found; the distributed suite was skipped (plain PostgreSQL was tested)"


PHASES: dict[str, Callable[[Stack], Counts]] = {
    "lint": lint,
    "unit": unit,
    "simulation": simulation,
    "concurrency": concurrency,
    "distributed": distributed,
    "replicas": replicas,
    "pgtap": pgtap,
    "upgrade": upgrade,
    "e2e": e2e,
    "cluster": cluster,
}
NEED_STACK = {"replicas", "pgtap", "upgrade", "e2e"}


def measured(name: str, phase: Callable[[Stack], Counts], stack: Stack) -> tuple[Counts, float]:
    print(f"\n== {name} ==", flush=True)
    began = time.monotonic()
    try:
        counts = phase(stack)
    except Failure as failure:
        print(f"{name}: {failure}", flush=True)
        counts = Counts(failed=1)
    return counts, time.monotonic() - began


def run_phases(names: list[str], stack: Stack) -> Counts:
    total = Counts()
    table = []
    for name in names:
        if name in NEED_STACK and not stack.gateway.is_ready():
            print("\n== a stack of its own in .test/ ==", flush=True)
            stack.remove()
            try:
                with stack.alone():
                    stack.start()
            except Failure as failure:
                print(f"the stack does not start: {failure}", flush=True)
                total += Counts(failed=1)
                table.append(f"  {'stack':<12}did not start")
                break
        counts, took = measured(name, PHASES[name], stack)
        total += counts
        table.append(f"  {name:<12}{took:6.0f} s  {counts}")
    print("\n" + "\n".join(table))
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(PHASES), action="append", help="run this phase alone (may be repeated)")
    parser.add_argument("--property", type=int, metavar="SECONDS", help="only random histories, for so long")
    parser.add_argument("--simulate", type=int, metavar="SEED", help="only this seed of the simulation, with its trace")
    parser.add_argument("--chaos", nargs=argparse.REMAINDER, help="only the faults; what follows is for tests/chaos/run.py")
    parser.add_argument("--chaos-proof", nargs=argparse.REMAINDER, help="only the proof; what follows is for tests/chaos/proof.py")
    parser.add_argument("--keep", action="store_true", help="leave the stack running at the end")
    given = parser.parse_args()
    if given.simulate is not None:
        return simulate(given.simulate)
    began = time.monotonic()
    stack = Stack(FOLDER, PORT_BASE, INDEX_GROUPS)
    try:
        launcher.install()
        launcher.build()
        load.check_disk(FOLDER, DATA_GB, "the test")
        if given.chaos is not None:
            total = chaos(given.chaos)
        elif given.chaos_proof is not None:
            total = chaos_proof(given.chaos_proof)
        else:
            total = long_property(given.property) if given.property else run_phases(given.only or list(PHASES), stack)
    except Failure as failure:
        print(f"\nmantle: {failure}", file=sys.stderr, flush=True)
        total = Counts(failed=1)
    except KeyboardInterrupt:
        print("\nmantle: interrupted", file=sys.stderr, flush=True)
        return 130
    finally:
        if not given.keep:
            stack.stop()
    print(whether_citus())
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")
    print(total, flush=True)
    return 0 if total.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
