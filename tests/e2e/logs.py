"""Reads the services' logs and finds unexpected complaints.

Source of the habit: neon's `allowed_errors.py`. A line counts when its level is WARN or worse. allowed_logs.py names
the lines that are part of correct work, with reasons.
"""

import re
from pathlib import Path

from .allowed_logs import ALLOWED

# Rust's tracing pads the level. PostgreSQL ends it with a colon; PgBouncer puts it where LOG stands otherwise.
LEVEL = {
    "postgresql": re.compile(r"\b(WARNING|ERROR|FATAL|PANIC):  "),
    "pgbouncer": re.compile(r"\b(WARNING|ERROR|FATAL) "),
    "indexnode": re.compile(r"\b(WARN|ERROR)\b|panicked at"),
    "gateway": re.compile(r"\b(WARN|ERROR)\b|panicked at"),
}
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def service(log: Path) -> str:
    return log.stem.split("-")[0]


class LogWatch:
    """The lines logged since it was made."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.from_offset = {log.name: log.stat().st_size for log in folder.glob("*.log")}

    def lines(self) -> list[tuple[Path, str]]:
        found = []
        for log in sorted(self.folder.glob("*.log")):
            with open(log, "rb") as file:
                file.seek(self.from_offset.get(log.name, 0))
                text = file.read().decode("utf-8", "replace")
            found += [(log, COLOUR.sub("", line)) for line in text.splitlines()]
        return found

    def unexpected(self, also: list[tuple[str, str, str]]) -> list[str]:
        """Complaints that neither ALLOWED nor `also` allows."""
        allowed = ALLOWED + also
        bad = []
        for log, line in self.lines():
            name = service(log)
            if not LEVEL[name].search(line):
                continue
            if not any(who in (name, "*") and re.search(pattern, line) for who, pattern, _why in allowed):
                bad.append(f"{log.name}: {line}")
        return bad
