"""Fuzz targets (gateway/fuzz): parsers of untrusted bytes, for some time each. What the fuzzer has found is kept under
the target directory, so that the next run goes on from there.
"""

import re

from stack import packages
from stack.layout import REPOSITORY
from stack.terminal import run

from .commands import Counts, one_test

CARGO_FUZZ = "0.13.1"
FOLDER = REPOSITORY / "gateway" / "fuzz"
# For the instrumentation; the compiler stays that of the project.
UNSTABLE = {"RUSTC_BOOTSTRAP": "1"}


def targets() -> list[str]:
    return sorted(path.stem for path in (FOLDER / "fuzz_targets").glob("*.rs"))


def fuzz(seconds: int, only: str) -> Counts:
    """Each target is one test; a crash shows the bytes, and how to run them again."""
    environment = packages.environment()
    build = packages.target() / "fuzz"
    install = ["cargo", "install", "--root", str(packages.tools()), "--locked", f"cargo-fuzz@{CARGO_FUZZ}"]
    run(install, "cargo install cargo-fuzz", show=True, env=environment)
    counts = Counts()
    for target in targets():
        if not re.search(only, target):
            continue
        corpus, crashes = build / "corpus" / target, build / "crashes" / target
        corpus.mkdir(parents=True, exist_ok=True)
        crashes.mkdir(parents=True, exist_ok=True)
        command = ["cargo", "fuzz", "run", "--fuzz-dir", str(FOLDER), "--target-dir", str(build), "--sanitizer", "none"]
        options = [f"-max_total_time={seconds}", f"-dict={FOLDER / 'words.dict'}", f"-artifact_prefix={crashes}/"]
        command += [target, str(corpus), "--", *options, "-print_final_stats=1"]
        counts += one_test(command, env={**environment, **UNSTABLE})
    return counts
