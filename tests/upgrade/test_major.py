"""`pg_upgrade` to another major version, typed from docs/runbooks.md: a loaded stack with its IndexNodes and gateway,
and twenty databases with work left for the worker.

Runs if the suite uses another server than Debian's (`make test PG=18`); the old server is Debian's. A worker that ran
in the old server meanwhile would use transaction ids: `check` and `pg_amcheck` find the damage that this causes.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from stack import build, environment, programs, secret, servers
from stack.layout import DATABASE, REPOSITORY
from stack.poll import wait_until
from stack.service import start_each
from stack.stack import Stack
from tests.cluster import runbook
from tests.e2e.clients import s3_client
from tests.support.digests import NOT_DUMPED, digests
from tests.support.rest import Rest

from .test_upgrade import catalog

FOLDER = REPOSITORY / ".test-upgrade" / "stack"
PORT_BASE = 8200
DATABASES = 20
UNUSED = "unused"  # the extension alone, without the grants of a stack
ODD = 'a copy, o\'ne = "2"'  # the shell and libpq might misread it
DIRECTORIES = 200
OBJECTS = 20
BOUND_S = 600
NS = "loaded"
LOST = "SELECT count(*) FROM mantle.lost_by_upgrade()"
SETTINGS = {"max_worker_processes": "40", "mantle.delta_records": "always", "max_wal_size": "1GB"}

pytestmark = [
    pytest.mark.skipif(servers.chosen() == servers.DEFAULT, reason="there is one server only: make test PG=18"),
    pytest.mark.timeout(1800),
]


class Timed:
    """The seconds of each step, printed at the end."""

    def __init__(self):
        self.steps: list[tuple[str, float]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.steps.append((name, time.monotonic() - began))

    def __str__(self) -> str:
        return "\n".join(f"  {name:<40}{seconds:8.1f} s" for name, seconds in self.steps)


class Upgrade:
    """The stack before, during and after."""

    def __init__(self, stack: Stack):
        self.stack = stack
        self.folder = stack.layout.folder
        self.names = [DATABASE, *(f"copy_{number}" for number in range(3, DATABASES)), ODD, UNUSED]
        self.rest = Rest("127.0.0.1", stack.layout.gateway_port, secret.read(stack.layout, "token"))
        self.s3 = s3_client(stack)

    def connect(self, name: str = DATABASE) -> psycopg.Connection:
        where = {"host": "127.0.0.1", "port": self.stack.layout.postgresql_port, "user": "postgres"}
        password = secret.read(self.stack.layout, "superuser")
        return psycopg.connect(**where, password=password, dbname=name, autocommit=True)

    def choose_databases(self, databases: str) -> None:
        """Of the workers. They start and end at once."""
        with self.connect("postgres") as server:
            server.execute(f"ALTER SYSTEM SET mantle.compaction_databases = '{databases}'")
            server.execute("SELECT pg_reload_conf()")

    def await_no_worker(self) -> None:
        with self.connect("postgres") as server:
            workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'mantle worker'"
            wait_until(lambda: server.execute(workers).fetchone() == (0,), "the workers to end", BOUND_S)

    def load(self) -> None:
        """Directories in all states, delta records that nobody has folded, and objects whose bytes are in a volume."""
        self.choose_databases("")
        self.await_no_worker()
        self.rest.create_namespace(NS)
        for number in range(DIRECTORIES):
            self.rest.mkdir(NS, f"d{number % 10}/e{number}", parents=True)
        self.rest.rename(NS, "d0/", "renamed/")
        self.rest.rmdir(NS, "d1/e1")
        for number in range(OBJECTS):
            self.s3.put_object(Bucket=NS, Key=f"d2/o{number}", Body=b"%d" % number)
        self.s3.delete_object(Bucket=NS, Key="d2/o0")

    def read_and_put(self) -> None:
        """The volume's segments are leased anew, since their leases are of the old server's history."""
        for number in range(1, OBJECTS):
            assert self.s3.get_object(Bucket=NS, Key=f"d2/o{number}")["Body"].read() == b"%d" % number
        self.s3.put_object(Bucket=NS, Key="d2/after", Body=b"after")
        assert self.s3.get_object(Bucket=NS, Key="d2/after")["Body"].read() == b"after"

    def multiply(self) -> None:
        """Copies of the database, made while nobody uses it."""
        with self.connect("postgres") as server:
            for name in self.names[1:-1]:
                server.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*map(sql.Identifier, (name, DATABASE))))
            server.execute(f"CREATE DATABASE {UNUSED}")
        with self.connect(UNUSED) as connection:
            connection.execute("CREATE EXTENSION mantle")

    def digests(self) -> dict[str, dict]:
        found = {}
        for name in self.names:
            with self.connect(name) as connection:
                found[name] = digests(connection)
        return found

    def words(self) -> dict[str, str]:
        data = self.stack.postgresql.data
        return {
            **self.stack.postgresql.client_environment("postgres"),
            "OLD_BIN": str(self.folder / "pg-old" / "bin"), "OLD_DATA": str(data.with_name("postgresql-old")),
            "NEW_BIN": str(self.stack.layout.postgresql_bin), "NEW_DATA": str(data),
        }  # fmt: skip

    def typed(self, section: str, **words: str) -> str:
        return runbook.typed_by(self.stack.account, section, BOUND_S, **self.words(), **words)


@pytest.fixture
def new_server() -> str:
    return servers.chosen()


@pytest.fixture
def upgrade(new_server: str) -> Iterator[Upgrade]:
    """A stack on the old server."""
    assert new_server != servers.DEFAULT
    build.build_extension(servers.DEFAULT)
    (REPOSITORY / ".test-upgrade").mkdir(exist_ok=True)
    with servers.on(servers.DEFAULT):
        stack = Stack(FOLDER, PORT_BASE, postgresql_settings=SETTINGS, volume=True)
        stack.remove()
        with stack.alone():
            try:
                stack.start()
                yield Upgrade(stack)
            finally:
                stack.stop()


def stop_but_postgresql(stack: Stack) -> None:
    for service in reversed(stack.services()):
        if service is not stack.postgresql:
            service.process.stop()


def fsck(stack: Stack) -> subprocess.CompletedProcess:
    variables = {**os.environ, **environment.variables(stack)}
    program = stack.layout.binaries / "mantle"
    return subprocess.run([program, "fsck"], env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("mode", ["--copy", "--link"])
def test_pg_upgrade_by_the_runbook(upgrade: Upgrade, mode: str, new_server: str, tmp_path: Path):
    stack, timed = upgrade.stack, Timed()
    upgrade.load()
    stop_but_postgresql(stack)
    upgrade.multiply()
    before = upgrade.digests()
    dump = dump_by_the_new(upgrade, new_server)
    shutil.copytree(stack.layout.postgresql_tree, upgrade.folder / "pg-old", symlinks=True)
    # Before the last block: workers that were awake in the old server would now have something to do.
    with upgrade.connect("postgres") as server:
        server.execute("ALTER SYSTEM SET mantle.compaction_databases = '*'")
    remove_stamps(upgrade)
    with timed.step("before: checks, slots"):
        upgrade.typed("Before a new major version of PostgreSQL")
    stack.postgresql.process.stop()
    stack.postgresql.data.rename(upgrade.words()["OLD_DATA"])

    with servers.on(new_server):
        programs.renew(stack.layout, stack.stop)
        with timed.step(f"pg_upgrade {mode}"):
            upgrade.typed("Upgrading to a new major version of PostgreSQL", MODE=mode)
        settings = Path(upgrade.words()["OLD_DATA"], "postgresql.auto.conf").read_text(encoding="utf-8")
        stack.account.write(stack.postgresql.data / "postgresql.auto.conf", settings.replace("'*'", "''"))
        with timed.step("start of the new server"):
            start_each([stack.postgresql])
        with upgrade.connect() as connection:
            assert connection.info.server_version // 10_000 == int(servers.major(new_server))
        assert upgrade.digests() == before, "rows differ"
        the_worker_restores(upgrade)
        with timed.step("after: checks, statistics, pg_amcheck"):
            shown = upgrade.typed("After a new major version of PostgreSQL")
        assert shown.split() == [], f"the checks show something: {shown}"
        with timed.step("start of the services"):
            stack.start()
        with timed.step("first mkdir and rename"):
            upgrade.rest.mkdir(NS, "renamed/after")
            upgrade.rest.rename(NS, "renamed/", "renamed-again/")
        upgrade.read_and_put()
        with timed.step("fsck"):
            done = fsck(stack)
        assert done.returncode == 0, done.stdout + done.stderr
        is_as_made_new(upgrade)
        restored_is_the_same(upgrade, dump, before)
    print(f"\n{timed}")


def remove_stamps(upgrade: Upgrade) -> None:
    """Debian's server stamps new columns (`pg_attver`) since 15.20. A newer major version knows the stamps from the
    minor versions of the same day on. Those of the registries are older, and their pg_upgrade fails on a stamp.
    """
    for name in upgrade.names:
        with upgrade.connect(name) as connection:
            connection.execute(
                "UPDATE pg_attribute SET attoptions = NULL"
                " WHERE cardinality(attoptions) = 1 AND attoptions[1] LIKE 'pg\\_attver=%'"
            )


def dump_by_the_new(upgrade: Upgrade, new_server: str) -> Path:
    """The new server's `pg_dump` reads the old server, as its documentation advises."""
    dump = upgrade.folder / "dump"
    command = [build.postgresql_tree(new_server) / "bin" / "pg_dump", "--format=custom", f"--file={dump}"]
    subprocess.run(command, env={"PATH": "/usr/bin:/bin", **upgrade.stack.postgresql.client_environment()}, check=True)
    return dump


def the_worker_restores(upgrade: Upgrade) -> None:
    """By itself, in every database, what pg_upgrade has lost."""
    for name in upgrade.names:
        with upgrade.connect(name) as connection:
            assert connection.execute(LOST).fetchone() == (3,), f"{name}: pg_upgrade loses something else now"
    upgrade.choose_databases("*")
    for name in upgrade.names:
        with upgrade.connect(name) as connection:
            nothing = lambda connection=connection: connection.execute(LOST).fetchone() == (0,)
            wait_until(nothing, f"the worker of {name} to restore", BOUND_S)
            connection.execute("SET ROLE mantle_analyst")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT pg_logical_emit_message(true, 'mantle', 'forged')")


def is_as_made_new(upgrade: Upgrade) -> None:
    """The upgraded catalog equals that of a database made on the new server."""
    with upgrade.connect("postgres") as server:
        server.execute("CREATE DATABASE made_new")
    with upgrade.connect("made_new") as fresh, upgrade.connect(UNUSED) as upgraded:
        fresh.execute("CREATE EXTENSION mantle")
        assert catalog(upgraded) == catalog(fresh)


def restored_is_the_same(upgrade: Upgrade, dump: Path, before: dict[str, dict]) -> None:
    """A dump of the old server, restored in the new one, where no worker goes on with it."""
    upgrade.choose_databases("")
    upgrade.await_no_worker()
    with upgrade.connect("postgres") as server:
        server.execute("CREATE DATABASE restored")
    command = [upgrade.stack.layout.postgresql_bin / "pg_restore", "--exit-on-error", "--dbname=restored", str(dump)]
    subprocess.run(command, env={"PATH": "/usr/bin:/bin", **upgrade.stack.postgresql.client_environment()}, check=True)
    with upgrade.connect("restored") as connection:
        expected, found = dict(before[DATABASE]), digests(connection)
        for own in ("index_groups", "prepare_keys", *NOT_DUMPED):  # a restored database has its own
            expected.pop(own), found.pop(own)
        assert (expected.pop("cluster")[0], found.pop("cluster")[0]) == (1, 2), "its own identity, and the dumped one"
        assert found == expected
        assert connection.execute("SELECT problem, name, detail FROM mantle.check()").fetchall() == []
