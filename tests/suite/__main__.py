"""Runs the phases of the suite and prints the counts: `make test`, or `python3 tests/run.py`.

Phases, each of which `--only` runs alone: lint, unit (Rust), simulation (seeded histories of an IndexNode group on simulated
hosts), concurrency (pairs of verbs, random histories and crashes, on a PostgreSQL of its own), distributed (the same and more
on a Citus cluster, where Citus is installed), replicas (IndexNodes over a PostgreSQL), pgtap (SQL, in a fresh database and in
ones upgraded from frozen versions), upgrade (from an older version to this one), e2e (everything together), cluster
(failovers of the highly available cluster).
Invariant: the last line is `N passed, N failed, N skipped` over all phases. A phase that breaks before it counts is one
failure. The stack under test lives in .test/ on ports from 7600 on, the PostgreSQL of the concurrency phase in .concurrency/
on 7902; the stack of `make run` is never touched.
"""

import argparse
import sys
import time
from collections.abc import Callable

from stack import citus, install, load
from stack.failure import Failure
from stack.stack import Stack
from tests.support import stack_under_test

from .commands import Counts
from .phases import NEED_STACK, PHASES, chaos, chaos_proof, long_property, simulate

DATA_GB = 3.0


def whether_citus() -> str:
    """Plainly: was Citus there, and what follows."""
    if citus.is_installed():
        return "Citus: found; the phase `distributed` tests a cluster of it"
    return "Citus: not found; the distributed suite was skipped (plain PostgreSQL was tested)"


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
    parser.add_argument(
        "--chaos", nargs=argparse.REMAINDER, help="only the faults; what follows is for tests/chaos/run.py"
    )
    parser.add_argument(
        "--chaos-proof", nargs=argparse.REMAINDER, help="only the proof; what follows is for tests/chaos/proof.py"
    )
    parser.add_argument("--keep", action="store_true", help="leave the stack running at the end")
    given = parser.parse_args()
    if given.simulate is not None:
        return simulate(given.simulate)
    began = time.monotonic()
    stack = stack_under_test.make()
    try:
        install.install()
        install.build()
        load.check_disk(stack_under_test.FOLDER, DATA_GB, "the test")
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
