"""Progress messages on the terminal, and external commands."""

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .failure import Failure

OUTPUT_TAIL_LINES = 15


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Prints the step's name, then how long it took."""
    began = time.monotonic()
    sys.stdout.write(f"  {what} … ")
    sys.stdout.flush()
    try:
        yield
    except BaseException:
        say("failed")
        raise
    say(f"{time.monotonic() - began:.1f} s")


def run(command: list, what: str, *, show: bool = False, **arguments) -> str:
    """Runs a command to its end and returns its standard output. `show` lets it write to the terminal instead.

    Its standard error is only in the message of a failure: psql complains there, yet succeeds, when its server ends
    after the answer.
    """
    captured = {} if show else {"capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(command, check=False, **captured, **arguments)
    except OSError as error:
        raise Failure(f"{what}: cannot run {command[0]}: {error}") from error
    if done.returncode != 0:
        lines = [] if show else (done.stdout + done.stderr).strip().splitlines()[-OUTPUT_TAIL_LINES:]
        tail = "\n".join(f"    {line}" for line in lines)
        raise Failure(f"{what} failed (status {done.returncode}): {shlex.join(map(str, command))}\n{tail}".rstrip())
    return "" if show else done.stdout


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner may read; whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_text(text, encoding="utf-8")
    new.replace(path)
