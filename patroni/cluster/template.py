"""Fills in the files of patroni/config/.

Invariant: every `$name` of a template has a value, or nothing is written.
"""

from string import Template

from stack.failure import Failure
from stack.layout import CONFIG


def filled(name: str, values: dict) -> str:
    """The text of patroni/config/`name`."""
    try:
        return Template((CONFIG / name).read_text(encoding="utf-8")).substitute(values)
    except (KeyError, ValueError) as error:
        raise Failure(f"patroni/config/{name} cannot be filled in: {error}") from error
