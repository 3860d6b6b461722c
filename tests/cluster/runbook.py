"""Runs the commands of docs/runbooks.md, as the page shows them.

Invariant: a test adds nothing to the page's commands but values for the words in capitals.
"""

import re
import subprocess

from cluster import environment
from cluster.cluster import Cluster
from stack.account import Account
from stack.layout import REPOSITORY

PAGE = REPOSITORY / "docs" / "runbooks.md"
BOUND_S = 120


def commands(section: str) -> str:
    """The shell commands of a section; those before the first one have the section ``."""
    return blocks(section, "sh")


def statements(section: str) -> list[str]:
    """The SQL statements of a section."""
    return [statement.strip() for statement in blocks(section, "sql").split(";") if statement.strip()]


def blocks(section: str, language: str) -> str:
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    body = dict(zip(["", *parts[1::2]], parts[::2], strict=True))[section]
    found = re.findall(rf"^```{language}\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL)
    assert found, f"{PAGE.name} has no {language} block under {section!r}"
    return "".join(found)


def typed(cluster: Cluster, section: str, bound_s: float = BOUND_S, **words: str) -> str:
    """Runs a section's commands in a shell that has read the environment file; returns their output."""
    return shell(cluster, commands(section), section, bound_s, **words)


def shell(cluster: Cluster, script: str, what: str = "", bound_s: float = BOUND_S, **words: str) -> str:
    """Runs commands in such a shell."""
    environment.write(cluster)
    script = f"set -e\n. {cluster.layout.environment_file}\n{script}"
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=False, timeout=bound_s, stdin=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8", **words},
    )  # fmt: skip
    assert done.returncode == 0, f"{what or script}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def typed_by(account: Account, section: str, bound_s: float = BOUND_S, **words: str) -> str:
    """Runs a section's commands as this account, without a cluster; returns their output."""
    done = subprocess.run(
        ["sh", "-c", f"set -e\n{commands(section)}"], capture_output=True, text=True, check=False, timeout=bound_s,
        stdin=subprocess.DEVNULL, cwd="/", env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8", **words},
        **account.popen_arguments(),
    )  # fmt: skip
    assert done.returncode == 0, f"{section}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def group(cluster: Cluster, number: int) -> str:
    """The value of $GROUP."""
    return str(number) if cluster.shape.is_citus else ""
