"""The phases of the suite, in the order in which they run. Each takes the stack under test and returns its counts."""

import os
import re
from collections.abc import Callable
from pathlib import Path

from cluster import network, programs
from stack import build, packages, servers
from stack.stack import Stack
from stack.upgrade import frozen_versions
from tests.support.stack_under_test import shorten_lease

from . import locales
from .commands import (
    TESTS,
    Counts,
    at_least_one_failure,
    cargo_environment,
    cargo_test,
    one_test,
    python,
    run_pytest,
    stream,
)
from .lint import lint

REPLICAS = "replicas_"  # what the names of the Rust tests that need a PostgreSQL begin with
SEEDED = "seeded::"  # the simulation's tests, which take minutes
DISTRIBUTED = sorted((TESTS / "concurrency").glob("test_citus*.py"))


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


def replicas(stack: Stack, names: str = REPLICAS) -> Counts:
    """IndexNodes of their own, with databases of their own in the stack's PostgreSQL."""
    shorten_lease(stack)
    url = stack.postgresql.url("postgres", "superuser")
    account = stack.postgresql.account
    counts = cargo_test(
        "--", "--ignored", names, MANTLE_TEST_DATABASE_URL=url,
        # Those whose PostgreSQL fails over make servers of their own.
        MANTLE_TEST_POSTGRESQL_BIN=str(stack.layout.postgresql_bin), MANTLE_TEST_ACCOUNT=f"{account.uid}:{account.gid}",
    )  # fmt: skip
    return counts if counts.passed + counts.failed > 0 else Counts(failed=1)


def pgtap(stack: Stack) -> Counts:
    """The SQL tests, in a fresh database of the stack's PostgreSQL, in one upgraded from each frozen version, and in
    some that compare text by other rules.
    """
    counts = Counts()
    for version in ("", *frozen_versions()):
        print(f"-- in a database {f'upgraded from {version}' if version else 'made now'}", flush=True)
        counts += run_pgtap(stack, [], MANTLE_PGTAP_FROM=version)
    for name, options in locales.databases().items():
        print(f"-- in a database with {name}", flush=True)
        counts += run_pgtap(stack, [], MANTLE_PGTAP_OPTIONS=options)
    return counts


def run_pgtap(stack: Stack, files: list[str], **variables: str) -> Counts:
    """Runs these files, or all of them."""
    environment = {
        **os.environ,
        **stack.postgresql.client_environment("postgres"),
        "PATH": f"{stack.layout.postgresql_bin}:{os.environ['PATH']}",
        "HARNESS_VERBOSE": "1",  # one line a test, to count them
        **variables,
    }
    status, lines = stream([str(TESTS / "pgtap" / "run"), *(Path(file).name for file in files)], env=environment)
    counts = Counts()
    for line in lines:
        found = re.match(r"(not )?ok \d+(.*)", line)
        if not found:
            continue
        if re.search(r"# skip", found[2], re.IGNORECASE):
            counts.skipped += 1
        elif found[1] and not re.search(r"# todo", found[2], re.IGNORECASE):
            counts.failed += 1
            counts.failures.append(f"pgTAP{found[2]}")
        else:
            counts.passed += 1
    return at_least_one_failure(status, counts)


def upgrade(stack: Stack) -> Counts:
    """From an older version to this one: scripts, catalog, data. In databases of its own in the stack's PostgreSQL."""
    return run_pytest(str(TESTS / "upgrade"), **stack.postgresql.client_environment("postgres"))


def e2e(_stack: Stack) -> Counts:
    """Everything together: S3, REST and SQL against running services.

    With MANTLE_E2E_SERVER only what may differ between versions of PostgreSQL (the mark `server`).
    """
    chosen = ["-m", "server"] if "MANTLE_E2E_SERVER" in os.environ else []
    return run_pytest(str(TESTS / "e2e"), *chosen)


def cluster(_stack: Stack) -> Counts:
    """The judge of histories; then switchovers, crashes and failovers of a cluster in .test-cluster/.

    MANTLE_CLUSTER_LONG adds tests that take minutes.
    """
    chosen = [] if "MANTLE_CLUSTER_LONG" in os.environ else ["-m", "not long"]
    counts = run_pytest(str(TESTS / "chaos"))
    counts += run_cluster(str(TESTS / "cluster"), *chosen)
    return counts


def run_cluster(*tests: str) -> Counts:
    """On a server that knows TLS, as a cluster needs it. Skipped where network namespaces are not permitted."""
    with servers.on(servers.with_tls()):
        if os.geteuid() == 0:  # only root may make namespaces; iproute2, one of these packages, shows whether it can
            packages.install_missing((*programs.PACKAGES, *servers.needed_packages()))
        if not network.is_permitted():
            print("network namespaces are not permitted on this machine: the cluster's tests were skipped")
            return Counts(skipped=1)
        programs.make_patroni()
        build.build_extension()
        return run_pytest(*tests)


def chaos(arguments: list[str], module: str = "run") -> Counts:
    """Every fault on a whole cluster, in .chaos/; writes docs/chaos.md. Not part of the suite."""
    with servers.on(servers.with_tls()):
        packages.install_missing((*programs.PACKAGES, *servers.needed_packages(), "libfaketime", "strace"))
        programs.make_patroni()
        build.build_extension()
        return one_test([python(), "-m", f"tests.chaos.{module}", *arguments])


def chaos_proof(arguments: list[str]) -> Counts:
    """The same with one protection left out after the other; writes docs/chaos-proof.md."""
    command = ["cargo", "build", *build.TESTED, "--bin", "mantle-indexnode"]
    status, _ = stream(command, env=cargo_environment())
    return Counts(failed=1) if status != 0 else chaos(arguments, "proof")


def clients(arguments: list[str]) -> Counts:
    """Real S3 clients against a stack of their own."""
    return one_test([python(), "-m", "tests.clients.run", *arguments])


def conformance(arguments: list[str]) -> Counts:
    """A public S3 suite, from a checkout of it; compared with a kept list. Not part of the suite."""
    return one_test([python(), "-m", "tests.conformance.run", *arguments])


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
