"""Runs `mantle import`: to its end, or for a test that kills it."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from stack import load
from stack.stack import Stack

BOUND_S = 300


@dataclass
class Row:
    """One row of the report."""

    line: int
    path: str
    code: str
    reason: str


def command(stack: Stack, ns: str, listing: Path, report: Path) -> list[str]:
    return [str(stack.layout.binaries / "mantle"), "import", "--namespace", ns, str(listing), "--report", str(report)]


def start(stack: Stack, ns: str, listing: Path) -> subprocess.Popen:
    report = listing.with_suffix(".report")
    return subprocess.Popen(
        command(stack, ns, listing, report),
        env={**os.environ, **load.import_environment(stack)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def whole(stack: Stack, ns: str, listing: Path) -> list[Row]:
    """Imports to the end; returns the report."""
    process = start(stack, ns, listing)
    output, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, output.decode("utf-8", "replace")
    lines = listing.with_suffix(".report").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "line\tpath\tcode\treason"
    rows = [line.split("\t") for line in lines[1:]]
    return [Row(int(row[0]), row[1], row[2], row[3]) for row in rows]
