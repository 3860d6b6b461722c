"""Fixtures of the end-to-end tests: one stack for the session, clients, and the checks that follow every test.

After every test `mantle.check()` must report no problem, and no service may have logged a warning or an error that
allowed_logs.py does not name.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from stack import secret
from stack.stack import Stack
from tests.support import stack_under_test
from tests.support.rest import Rest
from tests.support.s3_wire import Wire

from .allowed_logs import ALLOWED_IN_FAULTS
from .clients import await_all_ready, connect_as, s3_client
from .logs import LogWatch
from .principals import SharedGateway, chmod, shared_gateway
from .volume_gateway import volume_folder

LINES_SHOWN_MAX = 20


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "allows(service, pattern): what this test makes a service complain about")
    config.addinivalue_line(
        "markers", "faults: the test breaks services; their complaints about lost peers are expected"
    )


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The stack under test. tests/run.py starts it beforehand; without it, this fixture starts and stops it."""
    stack = stack_under_test.make()
    started_here = not stack.gateway.is_ready()
    if started_here:
        with stack.alone():
            stack.start()
    stack_under_test.shorten_lease(stack)
    yield stack
    if started_here:
        stack.stop()


@pytest.fixture
def whole(stack: Stack) -> Iterator[None]:
    """After the test, starts every service that it broke."""
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
    assert not unexpected, f"{len(unexpected)} unexpected lines in the logs:\n" + "\n".join(
        unexpected[:LINES_SHOWN_MAX]
    )


@pytest.fixture(autouse=True)
def oracle(stack: Stack, logs: LogWatch) -> Iterator[None]:
    """`mantle.check()` finds nothing at the end of every test."""
    yield
    with connect_as(stack, "postgres", "superuser") as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # one snapshot, whatever the worker does
        problems = connection.execute("SELECT problem, ns, pid, name, detail FROM mantle.check()").fetchall()
    assert problems == []


@pytest.fixture
def wire(stack: Stack) -> Wire:
    """Raw S3 requests."""
    return Wire(stack)


@pytest.fixture
def key(wire: Wire, bucket: str) -> str:
    """The target of an object that holds `old`."""
    target = f"/{bucket}/k"
    assert wire.call("PUT", target, b"old").status == 200
    return target


@pytest.fixture
def sql(stack: Stack) -> Iterator[psycopg.Connection]:
    """An analyst's session."""
    with connect_as(stack, "analyst", "analyst") as connection:
        yield connection


@pytest.fixture
def superuser(stack: Stack) -> Iterator[psycopg.Connection]:
    """A superuser's session, without the pooler."""
    with connect_as(stack, "postgres", "superuser") as connection:
        yield connection


@pytest.fixture
def folder(stack: Stack) -> Iterator[Path]:
    """The place of a test's volume, removed afterwards."""
    with volume_folder(stack) as folder:
        yield folder


@pytest.fixture
def connect(stack: Stack):
    """Opens sessions of other roles."""
    return lambda user, password=None: connect_as(stack, user, password or user)


@pytest.fixture
def rest(stack: Stack) -> Rest:
    """A client of the native API."""
    return Rest("127.0.0.1", stack.layout.gateway_port, secret.read(stack.layout, "token"))


@pytest.fixture
def s3(stack: Stack):
    return s3_client(stack)


@pytest.fixture
def bucket(rest: Rest) -> str:
    """A namespace for one test."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    rest.create_namespace(name)
    return name


@pytest.fixture(scope="module")
def shared(stack: Stack) -> Iterator[SharedGateway]:
    """A gateway that knows Alice, Bob, Carol and root (principals.py)."""
    with shared_gateway(stack) as gateway:
        yield gateway


@pytest.fixture
def alice(shared: SharedGateway) -> Rest:
    return shared.rest("alice")


@pytest.fixture
def bob(shared: SharedGateway) -> Rest:
    return shared.rest("bob")


@pytest.fixture
def carol(shared: SharedGateway) -> Rest:
    return shared.rest("carol")


@pytest.fixture
def s3_of(shared: SharedGateway, stack: Stack):
    """The S3 client of a principal."""
    return lambda name: shared.s3_of(stack, name)


@pytest.fixture
def private(alice: Rest) -> str:
    """A bucket of Alice's as S3 makes it."""
    name = f"perm-{uuid.uuid4().hex[:12]}"
    assert alice.call("PUT", f"/v1/ns/{name}").status == 201
    return name


@pytest.fixture
def open_bucket(alice: Rest) -> str:
    """A bucket of Alice's that all may use, with a directory `shared/` that all may write to."""
    name = f"perm-{uuid.uuid4().hex[:12]}"
    assert alice.call("PUT", f"/v1/ns/{name}?mode=0755&umask=022").status == 201
    assert alice.call("PUT", f"/v1/ns/{name}/dirs/shared/").status == 201
    chmod(alice, name, "shared/", "0777")
    return name
