"""Workers of several databases where PostgreSQL permits only one (`max_worker_processes`)."""

import psycopg
import pytest

from stack.poll import wait_until

from .server import SuiteServer
from .target import TEMPLATE

NUMBER = 5
WAIT_BOUND_S = 60.0
# PostgreSQL's launcher of logical replication, the extension's launcher, and one more.
ROOM = {"max_worker_processes": "3", "mantle.compaction_databases": "*", "mantle.compaction_naptime_ms": "50"}
WORKERS = "SELECT datname FROM pg_stat_activity WHERE backend_type = 'mantle worker'"
COMPLAINT = "mantle launcher: no worker for database"
FIRST, SECOND = "mantle_first", "mantle_second"


@pytest.fixture
def crowded():
    server = SuiteServer(NUMBER, ROOM)
    server.start()
    yield server
    server.stop()


def test_a_database_without_a_worker_gets_one_when_there_is_room(crowded):
    log = crowded.postgresql.layout.logs / "postgresql.log"

    def lines() -> int:
        return log.read_text(encoding="utf-8").count(COMPLAINT)

    before = lines()  # from an earlier run
    with psycopg.connect(**crowded.parameters, dbname="postgres", autocommit=True) as admin:

        def workers() -> set[str]:
            return {name for (name,) in admin.execute(WORKERS).fetchall()}

        # Databases without the extension take turns, and leave the slot to the database that has it.
        admin.execute(f"CREATE DATABASE {TEMPLATE} IS_TEMPLATE true")
        with psycopg.connect(**crowded.parameters, dbname=TEMPLATE, autocommit=True) as template:
            template.execute("CREATE EXTENSION mantle")
        admin.execute(f"CREATE DATABASE {FIRST} TEMPLATE {TEMPLATE}")
        admin.execute("SELECT pg_reload_conf()")
        wait_until(lambda: workers() == {FIRST}, "the worker of the first", WAIT_BOUND_S)
        admin.execute(f"CREATE DATABASE {SECOND} TEMPLATE {TEMPLATE}")
        wait_until(lambda: lines() > before, "the launcher to say that there is no room", WAIT_BOUND_S)
        assert workers() == {FIRST}
        with psycopg.connect(**crowded.parameters, dbname=SECOND, autocommit=True) as second:

            def problems() -> list[str]:
                return [problem for (problem,) in second.execute("SELECT mantle.worker_problems()").fetchall()]

            (problem,) = wait_until(problems, "the second to tell that it has none", WAIT_BOUND_S)
            assert problem.startswith("none runs")
            admin.execute(f"DROP DATABASE {FIRST} WITH (FORCE)")
            wait_until(lambda: workers() == {SECOND}, "the worker of the second", WAIT_BOUND_S)
            assert problems() == []
        assert lines() == before + 1, "said once, tried every second"
