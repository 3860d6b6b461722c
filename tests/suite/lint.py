"""The phase `lint`: formatting, warnings, documentation, and the checks in tests/lint/. Each command is one test."""

from stack import build
from stack.layout import REPOSITORY

from .commands import TESTS, Counts, cargo_environment, one_test, python

PYTHON_DIRECTORIES = [str(REPOSITORY / name) for name in ("patroni", "tests")]


def lint(_stack) -> Counts:
    cargo = cargo_environment()
    counts = one_test(["cargo", "fmt", "--all", "--check"], env=cargo)
    counts += one_test(["cargo", "clippy", *build.TESTED, "--all-targets", "--", "-D", "warnings"], env=cargo)
    counts += one_test(["cargo", "doc", *build.TESTED, "--no-deps"], env={**cargo, "RUSTDOCFLAGS": "-D warnings"})
    ruff = [python(), "-m", "ruff"]
    counts += one_test([*ruff, "check", "--no-cache", *PYTHON_DIRECTORIES])
    counts += one_test([*ruff, "format", "--no-cache", "--check", *PYTHON_DIRECTORIES])
    for script in sorted((TESTS / "lint").glob("*.py")):
        counts += one_test([python(), str(script)])
    return counts
