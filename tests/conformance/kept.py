"""The kept list of failures of a suite: a table of test, class and reason. It is compared with what fails.

Classes: `needs` (a feature that is not offered), `differs` (Mantle answers otherwise, on purpose), `suite` (the suite
asks for what is not S3, or is wrong), `open` (not explained yet). A reason that begins with `sometimes` is of a test
that may also pass.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

CLASSES = ("needs", "differs", "suite", "open")


@dataclass(frozen=True)
class Row:
    test: str
    kind: str
    reason: str


def read(path: Path) -> dict[str, Row]:
    """The rows by their tests. A row of another form, or one that is there twice, is an error."""
    rows: dict[str, Row] = {}
    if not path.exists():
        return rows
    with path.open(encoding="utf-8", newline="") as file:
        for number, fields in enumerate(csv.reader(file, delimiter="\t"), 1):
            if len(fields) != 3 or fields[1] not in CLASSES or not fields[2] or fields[0] in rows:
                raise ValueError(f"{path}:{number}: a test, one of {', '.join(CLASSES)}, and a reason are expected")
            rows[fields[0]] = Row(*fields)
    return rows


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerows((row.test, row.kind, row.reason) for row in sorted(rows, key=lambda row: row.test))


def compare(kept: dict[str, Row], failed: set[str], ran: set[str]) -> list[str]:
    """What the kept list does not say: failures that it lacks, and rows whose tests pass or are gone."""
    new = [f"fails, and is not kept: {test}" for test in sorted(failed - kept.keys())]
    must_fail = {test for test, row in kept.items() if not row.reason.startswith("sometimes")}
    passing = [f"passes, and is kept as failing: {test}" for test in sorted(must_fail & ran - failed)]
    gone = [f"is kept, and did not run: {test}" for test in sorted(kept.keys() - ran)]
    return new + passing + gone
