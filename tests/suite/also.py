"""The phases that depend on PostgreSQL's version, on another one than the rest of the run: `--also 18`, or with names
`--also 18=pgtap,server`. `server` is the part of e2e that may differ between versions of PostgreSQL.

They run in a process of their own, because a stack belongs to one version. It has a directory and ports of its own.
"""

from .beside import Job

PHASES = ("pgtap", "upgrade", "e2e")
SERVER = "server"
PLACE = {"MANTLE_TEST_FOLDER": ".test-also", "MANTLE_TEST_PORT_BASE": "8300"}


def job(given: str) -> Job:
    server, _, names = given.partition("=")
    chosen = names.split(",") if names else list(PHASES)
    environment = {**PLACE, "MANTLE_PG": server}
    environment |= {"MANTLE_E2E_SERVER": "1"} if SERVER in chosen else {}
    phases = ["e2e" if name == SERVER else name for name in chosen]
    return Job(phases, environment, label=f"PostgreSQL {server}: ")


def may_run_beside(given: Job) -> bool:
    """Whether nothing in it has one place for all runs, as the tests of upgrades have."""
    return "upgrade" not in given.phases
