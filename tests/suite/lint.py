"""The phase `lint`: formatting, warnings, documentation, and the checks in tests/lint/. Each command is one test."""

import subprocess

from stack import build, packages
from stack.layout import REPOSITORY

from .commands import TESTS, Counts, cargo_environment, one_test, python

CARGO_DENY = "0.20.2"
FETCH_S = 60
PYTHON_DIRECTORIES = [str(REPOSITORY / name) for name in ("patroni", "tests")]


def lint(_stack) -> Counts:
    cargo = cargo_environment()
    counts = one_test(["cargo", "fmt", "--all", "--check"], env=cargo)
    counts += one_test(["cargo", "clippy", *build.TESTED, "--all-targets", "--", "-D", "warnings"], env=cargo)
    counts += one_test(["cargo", "doc", *build.TESTED, "--no-deps"], env={**cargo, "RUSTDOCFLAGS": "-D warnings"})
    ruff = [python(), "-m", "ruff"]
    counts += one_test([*ruff, "check", "--no-cache", *PYTHON_DIRECTORIES])
    counts += one_test([*ruff, "format", "--no-cache", "--check", *PYTHON_DIRECTORIES])
    counts += dependencies(cargo)
    for script in sorted((TESTS / "lint").glob("*.py")):
        counts += one_test([python(), str(script)])
    return counts


def dependencies(cargo: dict[str, str]) -> Counts:
    """Licences and sources of every crate that is built; known faults too, where a database of them can be had."""
    packages.install_cargo_tool("deny", CARGO_DENY)
    command = ["cargo", "deny", "--locked", "--all-features"]
    counts = one_test([*command, "check", "licenses", "sources", "bans"], env=cargo)
    if has_advisories(cargo):
        counts += one_test([*command, "--offline", "check", "advisories"], env=cargo)
    else:
        print("cargo deny: no database of advisories can be had here; they were not checked", flush=True)
    return counts


def has_advisories(cargo: dict[str, str]) -> bool:
    """Fetches the database of advisories; one that is there already may be old."""
    try:
        done = subprocess.run(
            ["cargo", "deny", "fetch", "db"], capture_output=True, check=False, timeout=FETCH_S, env=cargo
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
