"""Fills in the files of patroni/config/.

Invariant: every `$name` of a template has a value, or nothing is written.
"""

from pathlib import Path
from string import Template

from stack.account import Account
from stack.failure import Failure
from stack.layout import CONFIG
from stack.terminal import write_private


def filled(name: str, values: dict) -> str:
    """The text of patroni/config/`name`."""
    try:
        return Template((CONFIG / name).read_text(encoding="utf-8")).substitute(values)
    except (KeyError, ValueError) as error:
        raise Failure(f"patroni/config/{name} cannot be filled in: {error}") from error


def write(path: Path, text: str, account: Account) -> None:
    """Only the services can read the file. An unchanged file is not rewritten, since a service may be reading it."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    write_private(path, text)
    account.own(path)
