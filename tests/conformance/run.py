"""`make conformance S3_TESTS=path`: runs ceph/s3-tests, from a checkout of it, against a stack of its own.

The checkout stays where it is, and no part of it enters this repository. Each failing test is compared with the kept
list (s3_tests.tsv); a failure that is not kept, or a kept one that passes, fails the run. `KEEP=1` renews the list: new
failures get the class `open`.
"""

import argparse
import os
import subprocess
import sys
import venv
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from stack import secret
from stack.gateway import OWNER_UID
from stack.layout import REGION, REPOSITORY
from stack.stack import Stack

from . import kept

FOLDER = REPOSITORY / ".conformance"
PORT_BASE = 8300
KEPT = Path(__file__).with_name("s3_tests.tsv")
# The other files are about services that S3 does not consist of: IAM, STS, SNS, Select.
FILES = ("s3tests/functional/test_s3.py", "s3tests/functional/test_headers.py")
TEST_TIMEOUT_S = 120
PACKAGES = ("pytest-timeout",)


@dataclass(frozen=True)
class User:
    """A section of the suite's settings."""

    section: str
    uid: int
    access_key: str
    secret_key: str


def users(stack: Stack) -> list[User]:
    """The stack's own user, and others that the suite wants."""
    names = ("s3 alt", "s3 tenant", "iam", "iam root", "iam alt root")
    others = [User(name, 3000 + at, f"CONFORMANCE{at}", f"conformance-{at}") for at, name in enumerate(names)]
    read = lambda name: secret.read(stack.layout, name)
    return [User("s3 main", OWNER_UID, read("access_key"), read("secret_key")), *others]


def add_users(stack: Stack, others: list[User]) -> None:
    gateway = stack.gateway
    text = gateway.credentials.read_text(encoding="utf-8")
    for user in others:
        text += (
            f'[[credential]]\naccess_key = "{user.access_key}"\nsecret_key = "{user.secret_key}"\n'
            f'token = "{user.secret_key}"\nuid = {user.uid}\n'
        )
    gateway.process.stop()
    gateway.account.write(gateway.credentials, text)
    gateway.process.start()
    gateway.await_ready(60)


def settings(stack: Stack, all_users: list[User]) -> str:
    head = f"[DEFAULT]\nhost = 127.0.0.1\nport = {stack.gateway.port}\nis_secure = False\nssl_verify = False\n\n"
    head += "[fixtures]\nbucket prefix = conf-{random}-\niam name prefix = s3-tests-\niam path prefix = /s3-tests/\n\n"
    sections = (
        f"[{user.section}]\ndisplay_name = {stack.gateway.owner_name}\nuser_id = {user.uid}\nemail = {user.uid}@test\n"
        f"api_name = {REGION}\naccess_key = {user.access_key}\nsecret_key = {user.secret_key}\ntenant = testx\n"
        for user in all_users
    )
    return head + "\n".join(sections)


def results(report: Path) -> tuple[set[str], set[str]]:
    """The tests that ran, and those that failed."""
    ran, failed = set(), set()
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
        if case.find("skipped") is None:
            ran.add(name)
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
    return ran, failed


def play(checkout: Path, stack: Stack, chosen: str | None) -> tuple[set[str], set[str]]:
    environment = FOLDER / "venv"
    if not environment.exists():
        venv.create(environment, with_pip=True)
        pip = [environment / "bin" / "pip", "install", "-q", "-r", checkout / "requirements.txt", *PACKAGES]
        subprocess.run(pip, check=True)
    all_users = users(stack)
    add_users(stack, all_users[1:])
    configuration, report = FOLDER / "s3tests.conf", FOLDER / "report.xml"
    configuration.write_text(settings(stack, all_users), encoding="utf-8")
    command = [environment / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"]
    command += [f"--junitxml={report}", f"--timeout={TEST_TIMEOUT_S}", *FILES, *(["-k", chosen] if chosen else [])]
    subprocess.run(command, cwd=checkout, env={**os.environ, "S3TEST_CONF": str(configuration)}, check=False)
    return results(report)


def main() -> int:
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("checkout", type=Path, help="of github.com/ceph/s3-tests")
    parser.add_argument("--keep", action="store_true", help="renew the kept list")
    parser.add_argument("--only", help="tests with this in their names; the kept list is not compared")
    given = parser.parse_args()
    if not (given.checkout / "requirements.txt").exists():
        parser.error(f"{given.checkout} is no checkout of ceph/s3-tests")
    FOLDER.mkdir(exist_ok=True)
    stack = Stack(FOLDER / "stack", PORT_BASE)
    with stack.alone():
        stack.start()
    try:
        ran, failed = play(given.checkout.absolute(), stack, given.only)
    finally:
        stack.stop()
    known = kept.read(KEPT)
    if given.keep and not given.only:
        rows = [known.get(test) or kept.Row(test, "open", "not explained yet") for test in failed]
        kept.write(KEPT, rows)
        known = kept.read(KEPT)
    faults = [] if given.only else kept.compare(known, failed, ran)
    print("\n".join(faults))
    classes = Counter(known[test].kind if test in known else "not kept" for test in failed)
    print(f"{len(ran) - len(failed)} of {len(ran)} pass; failures by class: {dict(sorted(classes.items()))}")
    return 1 if faults or (given.only and failed) else 0


if __name__ == "__main__":
    sys.exit(main())
