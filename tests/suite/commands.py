"""Runs cargo, pytest and other commands of a phase, and counts the tests they report."""

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stack import build, packages
from stack.layout import REPOSITORY

TESTS = REPOSITORY / "tests"
VENV = TESTS / ".venv"

# Of an error, what the summary at the end shows.
MESSAGE_CHARACTERS = 200


@dataclass
class Counts:
    """The tests of a phase by outcome, and those that failed: their names, and what they said where it is known."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)

    def __iadd__(self, other: "Counts") -> "Counts":
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures
        return self

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def stream(command: list[str], show: bool = True, **arguments) -> tuple[int, list[str]]:
    """Runs a command, shows its output as it comes if that is asked, and returns its exit status and lines."""
    lines = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=REPOSITORY,
        **arguments,
    ) as process:
        for line in process.stdout:
            if show:
                sys.stdout.write(line)
                sys.stdout.flush()
            lines.append(line)
    return process.returncode, lines


def one_test(command: list[str], **arguments) -> Counts:
    """A command that is one test: it passes if its exit status is 0."""
    status, _ = stream(command, **arguments)
    return Counts(passed=1) if status == 0 else Counts(failed=1, failures=[" ".join(map(str, command))])


def at_least_one_failure(status: int, counts: Counts) -> Counts:
    if status != 0 and counts.failed == 0:
        counts.failed = 1
    return counts


def cargo_environment() -> dict[str, str]:
    return {**packages.environment(), "PGRX_PG_CONFIG_PATH": str(build.checked_pg_config())}


def cargo_test(*arguments: str, **environment: str) -> Counts:
    """Tests that Cargo ignores are not counted as skipped: they belong to another phase, or measure something."""
    command = ["cargo", "test", *build.TESTED, "--no-fail-fast", *arguments]
    status, lines = stream(command, env={**cargo_environment(), **environment})
    counts = Counts()
    for line in lines:
        found = re.match(r"test result: \w+\. (\d+) passed; (\d+) failed", line)
        if found:
            counts += Counts(int(found[1]), int(found[2]))
        elif failed := re.match(r"test (\S+) \.\.\. FAILED", line):
            counts.failures.append(failed[1])
    return at_least_one_failure(status, counts)


def python() -> str:
    """The interpreter of the environment that all Python tests share."""
    packages.make_venv(VENV, TESTS / "requirements.txt")
    return str(VENV / "bin" / "python")


def failures_in(suite: ET.Element) -> Iterator[str]:
    """The tests of a report that failed, each with the beginning of its error."""
    for case in suite.iter("testcase"):
        for failure in (*case.iter("failure"), *case.iter("error")):
            message = " ".join(failure.get("message", "").split())
            yield f"{case.get('classname')}::{case.get('name')}: {message[:MESSAGE_CHARACTERS]}"


def run_pytest(*arguments: str, **environment: str) -> Counts:
    counts = Counts()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        slowest = ["--durations=15", "--durations-min=3"]
        command = [python(), "-m", "pytest", *arguments, "-v", *slowest, f"--junitxml={report}"]
        status, _ = stream(command, env={**os.environ, **environment})
        if report.exists():
            for suite in ET.parse(report).getroot().iter("testsuite"):
                tests, skipped = int(suite.get("tests")), int(suite.get("skipped"))
                failed = int(suite.get("failures")) + int(suite.get("errors"))
                counts += Counts(tests - failed - skipped, failed, skipped, list(failures_in(suite)))
    return at_least_one_failure(status, counts)
