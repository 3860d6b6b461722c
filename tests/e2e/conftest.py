"""Fixtures of the end-to-end tests: one stack for the session, clients, and the checks that follow every test.

After every test two oracles are asked, whatever the test itself looked at: `mantle.check()` must report no problem, and no
service may have logged a warning or an error that allowed_logs.py does not name.
"""

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import botocore.config
import psycopg
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "patroni"), str(REPOSITORY / "tests"), str(Path(__file__).parent)]

from stack import secret  # noqa: E402
from stack.layout import REGION  # noqa: E402
from stack.stack import Stack  # noqa: E402

import run  # noqa: E402
from allowed_logs import ALLOWED_IN_FAULTS  # noqa: E402
from logs import LogWatch  # noqa: E402
from moves import READY_BOUND_S  # noqa: E402
from rest import Rest  # noqa: E402


LINES_SHOWN_MAX = 20


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "allows(service, pattern): what this test makes a service complain about")
    config.addinivalue_line("markers", "faults: the test breaks services; their complaints about lost peers are expected")


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The stack under test. tests/run.py starts it beforehand; a lone pytest starts it, and stops it at the end."""
    stack = Stack(run.FOLDER, run.PORT_BASE, run.INDEX_GROUPS)
    started_here = not stack.gateway.is_ready()
    if started_here:
        with stack.alone():
            stack.start()
    run.shorten_lease(stack)
    yield stack
    if started_here:
        stack.stop()


def await_all_ready(stack: Stack) -> None:
    for node in stack.indexnodes.values():
        node.await_ready(READY_BOUND_S)
    stack.gateway.await_ready(READY_BOUND_S)


@pytest.fixture
def whole(stack: Stack) -> Iterator[None]:
    """Whatever a test breaks runs again for the next one."""
    yield
    with stack.alone():
        stack.start()
    await_all_ready(stack)


@pytest.fixture(autouse=True)
def logs(request: pytest.FixtureRequest, stack: Stack) -> Iterator[LogWatch]:
    """Fails a test during which a service logged something unexpected."""
    watch = LogWatch(stack.layout.logs)
    yield watch
    allowed = [(*mark.args, "the test's own") for mark in request.node.iter_markers("allows")]
    if request.node.get_closest_marker("faults") is not None:
        allowed += ALLOWED_IN_FAULTS
    unexpected = watch.unexpected(allowed)
    assert not unexpected, f"{len(unexpected)} unexpected lines in the logs:\n" + "\n".join(unexpected[:LINES_SHOWN_MAX])


@pytest.fixture(autouse=True)
def oracle(stack: Stack, logs: LogWatch) -> Iterator[None]:
    """`mantle.check()` finds nothing at the end of every test."""
    yield
    with connect_as(stack, "postgres", "superuser") as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # one snapshot, whatever the worker does
        problems = connection.execute("SELECT problem, ns, pid, name, detail FROM mantle.check()").fetchall()
    assert problems == []


def connect_as(stack: Stack, user: str, password: str) -> psycopg.Connection:
    """A session past the pooler; `password` names the secret."""
    return psycopg.connect(
        host="127.0.0.1",
        port=stack.layout.postgresql_port,
        dbname="mantle",
        user=user,
        password=secret.read(stack.layout, password),
        autocommit=True,
    )


@pytest.fixture
def sql(stack: Stack) -> Iterator[psycopg.Connection]:
    """An analyst's session."""
    with connect_as(stack, "analyst", "analyst") as connection:
        yield connection


@pytest.fixture
def superuser(stack: Stack) -> Iterator[psycopg.Connection]:
    """A superuser's session, past the pooler."""
    with connect_as(stack, "postgres", "superuser") as connection:
        yield connection


@pytest.fixture
def connect(stack: Stack):
    """Sessions of other roles."""
    return lambda user, password=None: connect_as(stack, user, password or user)


@pytest.fixture
def rest(stack: Stack) -> Rest:
    """The native API."""
    return Rest("127.0.0.1", stack.layout.gateway_port, secret.read(stack.layout, "token"))


def s3_client(stack: Stack, **overrides):
    """A boto3 client; it does not retry, so that a test sees the first answer."""
    settings = {
        "endpoint_url": stack.gateway.url,
        "region_name": REGION,
        "aws_access_key_id": secret.read(stack.layout, "access_key"),
        "aws_secret_access_key": secret.read(stack.layout, "secret_key"),
        "config": botocore.config.Config(
            retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, max_pool_connections=32, read_timeout=60
        ),
        **overrides,
    }
    return boto3.session.Session().client("s3", **settings)


@pytest.fixture
def s3(stack: Stack):
    """S3 as boto3 speaks it."""
    return s3_client(stack)


@pytest.fixture
def bucket(rest: Rest) -> str:
    """A namespace of the test's own."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    rest.create_namespace(name)
    return name
