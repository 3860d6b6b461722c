"""One test by its name: what `make one TEST=…` runs, with the services that its suite needs.

A Python test is named as pytest does (`tests/e2e/test_renames.py::test_x`, or a whole file), a pgTAP file by its path,
a Rust test by its path or a part of it (`index::tests::rules`), or by its file and name, as docs/protocols.md does.
"""

from pathlib import Path

from stack.stack import Stack

from .commands import Counts, cargo_test, run_pytest
from .phases import NEED_STACK, REPLICAS, replicas, run_cluster, run_pgtap


def suite_of(test: str) -> str:
    """The phase that the test belongs to: its directory below tests/, or one of Rust's."""
    parts = Path(test.split("::")[0]).parts
    if parts[:1] == ("tests",) and len(parts) > 2:
        return parts[1]
    return "replicas" if test.split("::")[-1].startswith(REPLICAS) else "unit"


def needs_stack(test: str) -> bool:
    return suite_of(test) in NEED_STACK


def run_one(test: str, stack: Stack) -> Counts:
    suite = suite_of(test)
    if ".rs::" in test:
        test = test.split(".rs::")[1]
    if suite == "pgtap":
        return run_pgtap(stack, [test])
    if suite == "replicas":
        return replicas(stack, test)
    if suite == "cluster":
        return run_cluster(test)
    if suite == "unit":
        counts = cargo_test(test)
        return counts if counts.passed else Counts(failed=max(counts.failed, 1))  # a name that no test has
    return run_pytest(test, **stack.postgresql.client_environment("postgres") if needs_stack(test) else {})
