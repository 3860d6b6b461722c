"""Runs the phases of the suite and prints the counts: `make test`, or `python3 tests/run.py`.

`--only` runs one phase:

- lint: formatting, warnings, documentation, imports, pages
- unit: Rust tests that need no service
- simulation: seeded histories of an IndexNode group on simulated hosts
- concurrency: pairs of verbs, random histories and crashes, on a PostgreSQL of its own
- distributed: the same and more on a Citus cluster; skipped where Citus is not installed
- replicas: IndexNodes over a PostgreSQL
- pgtap: SQL, in a fresh database and in one upgraded from each frozen version
- upgrade: from an older version to this one
- e2e: all services together
- cluster: failovers of the highly available cluster

In a run of several phases, concurrency and distributed run beside those from replicas to e2e. Their output comes last.

Invariant: the last line is `N passed, N failed, N skipped` over all phases. A phase that breaks before it counts is one
failure. The stack under test lives in .test/ on ports from 7600 on, that of `--also` in .test-also/ from 8300 on, the
PostgreSQL of the concurrency phase in .concurrency/ on 7902. The stack of `make run` is never touched.
"""

import argparse
import sys
import time

from stack import citus, install, load
from stack.failure import Failure
from stack.stack import Stack
from tests.support import stack_under_test

from . import also, locales
from .beside import BESIDE, Beside, Job, beside, run_job
from .commands import Counts
from .fuzz import fuzz
from .one import needs_stack, run_one
from .phases import NEED_STACK, PHASES, chaos, chaos_proof, clients, conformance, long_property, simulate

DATA_GB = 3.0
HAVE_SERVERS = ("concurrency", "distributed")


def whether_citus() -> str:
    """Says whether the machine has Citus, and what follows for the tests."""
    if citus.is_installed():
        return "Citus: found; the phase `distributed` tests a cluster of it"
    return f"{citus.absence()}; the distributed suite was skipped (plain PostgreSQL was tested)"


def start(stack: Stack) -> None:
    """A new stack, unless the one under test runs already."""
    if not stack.gateway.is_ready():
        print(f"\n== a stack of its own in {stack_under_test.FOLDER.name}/ ==", flush=True)
        stack.remove()
        with stack.alone():
            locales.give(stack)
            stack.start()


def run_phase(name: str, stack: Stack) -> Counts:
    print(f"\n== {name} ==", flush=True)
    try:
        return PHASES[name](stack)
    except Failure as failure:
        print(f"{name}: {failure}", flush=True)
        return Counts(failed=1, failures=[f"{name}: {failure}"])


def apart(names: list[str]) -> tuple[list[str], list[Job]]:
    """The phases of this process, and those that run beside them because they have servers of their own."""
    own = [name for name in names if name in HAVE_SERVERS]
    if not own or not any(name in BESIDE for name in names):
        return names, []
    # Its stack is never started; it must not be this process', which it would stop.
    return [name for name in names if name not in own], [Job(own, {"MANTLE_TEST_FOLDER": ".test-beside"})]


def run_phases(names: list[str], stack: Stack, others: Beside) -> Counts:
    total = Counts()
    table = []
    for name in names:
        others.before(name)
        if name in NEED_STACK:
            try:
                start(stack)
            except Failure as failure:
                print(f"the stack does not start: {failure}", flush=True)
                total += Counts(failed=1, failures=[f"the stack: {failure}"])
                table.append(f"  {'stack':<12}did not start")
                break
        began = time.monotonic()
        counts = run_phase(name, stack)
        total += counts
        table.append(f"  {name:<12}{time.monotonic() - began:6.0f} s  {counts}")
    for outcome in others.outcomes():
        total += outcome.counts
        table += outcome.table
    print("\n" + "\n".join(table))
    for failure in total.failures:
        print(f"  failed: {failure}")
    return total


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/run.py", description=__doc__.splitlines()[0])
    rest = argparse.REMAINDER
    parser.add_argument("--keep", action="store_true", help="leave the stack running at the end")
    parser.add_argument("--only", choices=list(PHASES), action="append", help="run this phase alone (may be repeated)")
    parser.add_argument(
        "--one", metavar="TEST", help="run one test alone: its path as pytest names it, a pgTAP file, a Rust name"
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="MAJOR",
        help="also run what depends on PostgreSQL on this version, beside phases that leave processors idle",
    )
    parser.add_argument("--property", type=int, metavar="SECONDS", help="run random histories alone, for so long")
    parser.add_argument("--simulate", type=int, metavar="SEED", help="run one seed of the simulation, with its trace")
    parser.add_argument("--fuzz", type=int, metavar="SECONDS", help="run each fuzz target for so long")
    parser.add_argument("--target", default="", metavar="REGEX", help="with --fuzz: only these targets")
    parser.add_argument("--chaos", nargs=rest, help="run tests/chaos/run.py alone with these arguments")
    parser.add_argument("--chaos-proof", nargs=rest, help="run tests/chaos/proof.py alone with these arguments")
    parser.add_argument("--clients", nargs=rest, help="run tests/clients/run.py alone with these arguments")
    parser.add_argument("--conformance", nargs=rest, help="run tests/conformance/run.py alone with these arguments")
    return parser.parse_args()


def run_given(given: argparse.Namespace, stack: Stack) -> Counts:
    if given.chaos is not None:
        return chaos(given.chaos)
    if given.chaos_proof is not None:
        return chaos_proof(given.chaos_proof)
    if given.clients is not None:
        return clients(given.clients)
    if given.conformance is not None:
        return conformance(given.conformance)
    if given.fuzz is not None:
        return fuzz(given.fuzz, given.target)
    if given.property is not None:
        return long_property(given.property)
    if given.one is not None:
        if needs_stack(given.one):
            start(stack)
        return run_one(given.one, stack)
    names, jobs = apart(given.only or list(PHASES))
    versions = [also.job(version) for version in given.also]
    with beside([*jobs, *filter(also.may_run_beside, versions)]) as others:
        total = run_phases(names, stack, others)
    alone = [version for version in versions if not also.may_run_beside(version)]
    if alone:
        stack.stop()
    for version in alone:
        total += run_job(version).counts
    return total


def main() -> int:
    given = arguments()
    if given.simulate is not None:
        return simulate(given.simulate)
    began = time.monotonic()
    stack = stack_under_test.make()
    try:
        install.install()
        install.build()
        load.check_disk(stack_under_test.FOLDER, DATA_GB, "the test")
        total = run_given(given, stack)
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
