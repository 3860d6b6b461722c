"""TafDB is restored to a point in time. An index that knows more than PostgreSQL then answers nothing until it is
rebuilt.
"""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stack.layout import REPLICAS
from stack.poll import wait_until

from .inspection import READY_BOUND_S, command_line
from .one_replica import only_replica

pytestmark = [pytest.mark.server, pytest.mark.faults]
POINT = "before_the_mistake"


class Backup:
    """A copy of the whole cluster, and the WAL since, as a backup program keeps them."""

    def __init__(self, stack):
        self.stack, self.server = stack, stack.postgresql
        self.copy = self.server.data.with_name("backup")
        self.archive = self.server.data.with_name("archive")

    def take(self) -> None:
        self.archive.mkdir(mode=0o700)
        self.stack.account.own(self.archive)
        self.server.psql("ALTER SYSTEM SET archive_mode = 'on'")
        self.server.psql(f"ALTER SYSTEM SET archive_command = 'cp %p {self.archive}/%f'")
        self.server.process.stop()
        shutil.copytree(self.server.data, self.copy, symlinks=True)
        self.server.start()

    def await_archived(self) -> None:
        file = self.server.psql("SELECT pg_walfile_name(pg_switch_wal())").strip()
        last = "SELECT last_archived_wal >= '{}' FROM pg_stat_archiver"
        wait_until(lambda: self.server.psql(last.format(file)).strip() == "t", "the WAL's archive", READY_BOUND_S)

    def restore(self, point: str) -> None:
        """Follows docs/runbooks.md."""
        self.server.process.kill()
        shutil.rmtree(self.server.data)
        shutil.copytree(self.copy, self.server.data, symlinks=True)
        (self.server.data / "recovery.signal").touch()
        with (self.server.data / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
            settings.write(f"restore_command = 'cp {self.archive}/%f %p'\n")
            settings.write(f"recovery_target_name = '{point}'\nrecovery_target_action = 'promote'\n")
        for place in (self.server.data, *self.server.data.rglob("*")):
            self.stack.account.own(place)
        self.server.start()
        primary = "SELECT NOT pg_is_in_recovery()"
        wait_until(lambda: self.server.psql(primary).strip() == "t", "the end of recovery", READY_BOUND_S)

    def remove(self) -> None:
        for setting in (
            "archive_mode",
            "archive_command",
            "restore_command",
            "recovery_target_name",
            "recovery_target_action",
        ):
            self.server.psql(f"ALTER SYSTEM RESET {setting}")
        self.server.process.stop()
        self.server.start()
        for place in (self.copy, self.archive):
            shutil.rmtree(place)


@pytest.fixture
def backup(stack, whole) -> Iterator[Backup]:
    backup = Backup(stack)
    yield backup
    backup.remove()


@contextmanager
def tried(rest, ns: str, path: str) -> Iterator[list[int]]:
    """Makes directories below a path all the time; returns the answers."""
    answers: list[int] = []
    end, own = threading.Event(), rest.twin()

    def work() -> None:
        while not end.wait(0.02):
            answers.append(own.call("PUT", f"/v1/ns/{ns}/dirs/{path}/{len(answers)}").status)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield answers
    finally:
        end.set()
        thread.join()


def rebuilds(stack) -> float:
    return sum(node.metric("mantle_index_rebuilds_completed_total") or 0 for node in stack.indexnodes.values())


@pytest.mark.allows("indexnode", r"rebuilding the index reason=PostgreSQL left timeline")
def test_an_index_that_knows_more_than_postgresql_refuses_until_it_is_rebuilt(stack, bucket, rest, backup):
    backup.take()
    rest.mkdir(bucket, "kept/below", parents=True)
    stack.postgresql.psql(f"SELECT pg_create_restore_point('{POINT}')")
    rest.mkdir(bucket, "lost")
    rest.rename(bucket, "kept/below/", "lost/moved/")
    backup.await_archived()
    rebuilt = rebuilds(stack)

    backup.restore(POINT)
    with tried(rest, bucket, "lost") as answers:
        wait_until(lambda: rebuilds(stack) > rebuilt, "the index to be rebuilt", READY_BOUND_S)
        wait_until(lambda: 404 in answers, "an answer that `lost` is not there", READY_BOUND_S)
    assert set(answers) <= {404, 503}, answers
    rest.insist("PUT", f"/v1/ns/{bucket}/dirs/kept/below/after")
    for replica in REPLICAS:
        with only_replica(stack, replica) as alone:
            found = {
                path: alone.exists(bucket, path)
                for path in ("kept/", "kept/below/", "kept/below/after/", "lost/", "lost/moved/")
            }
            assert found == {
                "kept/": True,
                "kept/below/": True,
                "kept/below/after/": True,
                "lost/": False,
                "lost/moved/": False,
            }
    done = command_line(stack, "fsck", DATABASE_URL=stack.postgresql.url("postgres", "superuser"))
    assert done.returncode == 0, done.stdout
