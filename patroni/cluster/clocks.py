"""Hosts with clocks of their own, for tests that set them: libfaketime before every program of a host, told by a file.

Invariant: only the clock of the wall jumps, as when somebody sets a machine's clock; what programs measure time with does not.
A cluster whose shape has no clocks runs its programs as they are.
"""

from pathlib import Path

from stack.account import Account
from stack.failure import Failure

from .layout import Host

PACKAGE = "libfaketime"
LIBRARIES = "*/faketime/libfaketimeMT.so.1"
# A program looks at the file that often, in seconds.
NOTICED_S = 1


def library() -> Path:
    """Where Debian has it."""
    found = sorted(Path("/usr/lib").glob(LIBRARIES))
    if not found:
        raise Failure(f"libfaketime is not installed: `apt-get install {PACKAGE}`")
    return found[0]


def behind(host: Host, command: list[str]) -> list[str]:
    """The command as it runs where the host has a clock."""
    if host.clock is None:
        return command
    variables = {
        "LD_PRELOAD": library(), "FAKETIME_TIMESTAMP_FILE": host.clock, "FAKETIME_CACHE_DURATION": NOTICED_S,
        "FAKETIME_DONT_FAKE_MONOTONIC": 1,
        # It would leave shared memory behind for each program; of one that is not there it needs none.
        "FAKETIME_SHARED": "/mantle-none /mantle-none",
    }  # fmt: skip
    return ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items()), *command]


def put(host: Host, seconds: int, account: Account) -> None:
    """Sets the host's clock so far before ours (or after, if negative)."""
    if host.clock is None:
        raise Failure(f"{host.name} has no clock of its own: the cluster's shape has none")
    new = host.clock.with_suffix(".new")
    new.write_text(f"{seconds:+d}\n", encoding="ascii")
    account.own(new)
    new.replace(host.clock)
