"""ceph/s3-tests, from a checkout of it: its packages, its settings, and its users as credentials of the gateway."""

import os
import subprocess
import venv
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from stack import secret
from stack.gateway import OWNER_UID
from stack.layout import REGION
from stack.stack import Stack

from .results import Results

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


def results(report: Path) -> Results:
    found = Results()
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
        if case.find("skipped") is None:
            found.ran.add(name)
        if case.find("failure") is not None or case.find("error") is not None:
            found.failed.add(name)
    return found


def play(checkout: Path, stack: Stack, folder: Path, chosen: str | None) -> Results:
    environment = folder / "venv"
    if not environment.exists():
        venv.create(environment, with_pip=True)
        pip = [environment / "bin" / "pip", "install", "-q", "-r", checkout / "requirements.txt", *PACKAGES]
        subprocess.run(pip, check=True)
    all_users = users(stack)
    add_users(stack, all_users[1:])
    configuration, report = folder / "s3tests.conf", folder / "report.xml"
    configuration.write_text(settings(stack, all_users), encoding="utf-8")
    command = [environment / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"]
    command += [f"--junitxml={report}", f"--timeout={TEST_TIMEOUT_S}", *FILES, *(["-k", chosen] if chosen else [])]
    subprocess.run(command, cwd=checkout, env={**os.environ, "S3TEST_CONF": str(configuration)}, check=False)
    return results(report)
