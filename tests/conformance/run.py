"""`make conformance`: runs public suites of S3, from checkouts of them, against a stack of its own.

A checkout stays where it is, and no part of it enters this repository. Each failing test is compared with the suite's
kept list (s3_tests.tsv, versitygw.tsv); a failure that is not kept, or a kept one that passes, fails the run. `KEEP=1`
renews the lists: new failures get the class `open`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stack.layout import REPOSITORY
from stack.stack import Stack

from . import kept, s3_tests, versitygw
from .results import Results

FOLDER = REPOSITORY / ".conformance"
PORT_BASE = 8300


@dataclass(frozen=True)
class Suite:
    name: str
    checkout: Path
    # A file that every checkout of it has.
    mark: str
    list: Path
    play: Callable[[Path, Stack, Path, str | None], Results]


def suites(given: argparse.Namespace) -> list[Suite]:
    """Those of which there is a checkout."""
    kept_in = lambda name: Path(__file__).with_name(f"{name}.tsv")
    chosen = []
    if given.s3_tests:
        chosen.append(Suite("ceph/s3-tests", given.s3_tests, "requirements.txt", kept_in("s3_tests"), s3_tests.play))
    if given.versitygw:
        chosen.append(
            Suite("versitygw", given.versitygw, "cmd/versitygw/test.go", kept_in("versitygw"), versitygw.play)
        )
    return chosen


def judge(suite: Suite, found: Results, keep: bool, is_whole: bool) -> list[str]:
    """What differs from the kept list."""
    known = kept.read(suite.list)
    if keep and is_whole:
        rows = [known.get(test) or kept.Row(test, "open", "not explained yet") for test in found.failed]
        kept.write(suite.list, rows)
        known = kept.read(suite.list)
    classes = Counter(known[test].kind if test in known else "not kept" for test in found.failed)
    passed = len(found.ran) - len(found.failed)
    print(f"{suite.name}: {passed} of {len(found.ran)} pass; failures by class: {dict(sorted(classes.items()))}")
    if is_whole:
        return kept.compare(known, found.failed, found.ran)
    return [f"fails: {test}" for test in sorted(found.failed)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--s3-tests", type=Path, help="a checkout of github.com/ceph/s3-tests")
    parser.add_argument("--versitygw", type=Path, help="a checkout of github.com/versity/versitygw; Go is needed")
    parser.add_argument("--keep", action="store_true", help="renew the kept lists")
    parser.add_argument("--only", help="tests with this in their names; the kept lists are not compared")
    given = parser.parse_args()
    chosen = suites(given)
    for suite in chosen:
        if not (suite.checkout / suite.mark).exists():
            parser.error(f"{suite.checkout} is no checkout of {suite.name}")
    if not chosen:
        parser.error("give a checkout: --s3-tests or --versitygw")
    FOLDER.mkdir(exist_ok=True)
    stack = Stack(FOLDER / "stack", PORT_BASE)
    faults = []
    with stack.alone():
        stack.start()
    try:
        for suite in chosen:
            found = suite.play(suite.checkout.absolute(), stack, FOLDER, given.only)
            faults += judge(suite, found, given.keep, given.only is None)
    finally:
        stack.stop()
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
