"""versitygw's tests of any S3 service (`versitygw test full-flow`), built from a checkout of it."""

import os
import re
import subprocess
from pathlib import Path

from stack import secret
from stack.failure import Failure
from stack.stack import Stack

from .results import Results

# "PASS name", "FAIL name: why"; in colours.
LINE = re.compile(r"^(?:\x1b\[\d+m)?(PASS|FAIL) (?:\x1b\[0m)?(\S+?):?(?:\s|$)")
BOUND_S = 1800


def build(checkout: Path, program: Path) -> None:
    command = ["go", "build", "-o", str(program), "./cmd/versitygw"]
    try:
        subprocess.run(command, cwd=checkout, check=True)
    except FileNotFoundError as error:
        raise Failure("versitygw is written in Go, and there is no `go` here") from error


def play(checkout: Path, stack: Stack, folder: Path, chosen: str | None) -> Results:
    """`chosen`: only these of the results; the suite cannot run one of its tests by name."""
    program = folder / "versitygw"
    build(checkout, program)
    keys = {"AWS_ACCESS_KEY_ID": "access_key", "AWS_SECRET_ACCESS_KEY": "secret_key"}
    environment = {name: secret.read(stack.layout, key) for name, key in keys.items()}
    # Nothing of this machine's settings for AWS; and some of its tests start `./versitygw`.
    environment |= {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    command = [f"./{program.name}", "test", "--endpoint", stack.gateway.url, "full-flow"]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        timeout=BOUND_S,
        check=False,
    )
    (folder / "versitygw.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    found = Results()
    for line in done.stdout.splitlines():
        match = LINE.match(line)
        if match and (chosen is None or chosen in match[2]):
            found.ran.add(match[2])
            if match[1] == "FAIL":
                found.failed.add(match[2])
    if not found.ran:
        raise Failure(f"versitygw ran no test: {(done.stdout + done.stderr)[-2000:]}")
    return found
